-- Which issue a delivery was about, also where nothing follows from it.
ALTER TABLE deliveries ADD COLUMN owner TEXT;
ALTER TABLE deliveries ADD COLUMN name TEXT;
ALTER TABLE deliveries ADD COLUMN issue INTEGER;
UPDATE deliveries SET (owner, name, issue) = (SELECT owner, name, issue FROM jobs WHERE jobs.id = deliveries.job)
WHERE job IS NOT NULL;
CREATE INDEX deliveries_subject ON deliveries (forge, owner COLLATE NOCASE, name COLLATE NOCASE, issue)
WHERE issue IS NOT NULL;

-- What happened to each job, and to each look that came to nothing and whose job is gone.
CREATE TABLE steps (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
    -- Counted from 1 for each job; steps in the middle of a long story are left out.
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    forge TEXT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    issue INTEGER NOT NULL,
    step_json TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX steps_job ON steps (job, number);
CREATE INDEX steps_subject ON steps (forge, owner COLLATE NOCASE, name COLLATE NOCASE, issue);

-- What is asked of every delivery and every claim, however many jobs an issue has had.
CREATE INDEX jobs_waiting ON jobs (forge, owner, name, issue) WHERE phase = 'queued' AND key IS NULL;
CREATE INDEX jobs_running ON jobs (forge, owner, name, issue) WHERE phase = 'running';
