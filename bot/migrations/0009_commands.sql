-- Comments that are commands, each once, whoever tells of it and how often.
CREATE TABLE commands (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    forge TEXT NOT NULL,
    -- The forge's ids of the comment and of who wrote it.
    comment INTEGER NOT NULL,
    author INTEGER NOT NULL,
    -- Its name, as the delivery showed it. What counts is what the comment says when it is carried out.
    name_seen TEXT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    issue INTEGER NOT NULL,
    phase TEXT NOT NULL DEFAULT 'queued' CHECK (phase IN ('queued', 'running', 'done')),
    attempt INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL,
    lease_token TEXT,
    lease_until INTEGER,
    -- What it has changed, as JSON, written with the change.
    effect_json TEXT,
    -- The job that it asked for.
    job INTEGER REFERENCES jobs (id) ON DELETE SET NULL,
    -- The comment that answers it.
    answer INTEGER,
    -- What came of it, for the operator.
    note TEXT,
    received_at INTEGER NOT NULL,
    UNIQUE (forge, comment)
) STRICT;
CREATE INDEX commands_open ON commands (forge, owner, name, issue) WHERE phase <> 'done';
CREATE INDEX commands_due ON commands (due_at) WHERE phase <> 'done';
CREATE INDEX commands_job ON commands (job);

-- The command that a delivery told of.
ALTER TABLE deliveries ADD COLUMN comment INTEGER;
CREATE INDEX deliveries_comment ON deliveries (forge, comment) WHERE comment IS NOT NULL;

-- Who wants a job stopped, as JSON; until it has ended.
ALTER TABLE jobs ADD COLUMN halt_json TEXT;
CREATE INDEX jobs_halted ON jobs (phase) WHERE halt_json IS NOT NULL AND phase <> 'ended';
