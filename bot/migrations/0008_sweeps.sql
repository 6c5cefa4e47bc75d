-- The model that a job asked; none for jobs of earlier releases and where no session began.
ALTER TABLE jobs ADD COLUMN model TEXT;

-- What became of each draft, as JSON, once it is known.
CREATE TABLE fates (
    job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    fate_json TEXT NOT NULL,
    decided_at INTEGER NOT NULL
) STRICT;
CREATE INDEX jobs_pull ON jobs (id) WHERE pull IS NOT NULL;

-- Where each sweep stands.
CREATE TABLE sweeps (
    name TEXT PRIMARY KEY,
    -- The scheduled instant that it works on or has worked on, or that of its first sight.
    instant INTEGER NOT NULL,
    is_over INTEGER NOT NULL,
    paused_at INTEGER,
    paused_why TEXT,
    resumed_at INTEGER
) STRICT;
CREATE INDEX jobs_created ON jobs (created_at);
