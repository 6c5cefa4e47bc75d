-- Deliveries as they came, and the jobs that they led to. Times are microseconds since 1970, UTC.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    forge TEXT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    issue INTEGER NOT NULL,
    key TEXT UNIQUE,
    ask_number INTEGER,
    attempt INTEGER NOT NULL DEFAULT 0,
    -- `queued`, `running` or `ended`; the whole state is in `state_json`.
    phase TEXT NOT NULL DEFAULT 'queued' CHECK (phase IN ('queued', 'running', 'ended')),
    state_json TEXT NOT NULL DEFAULT '{"state":"queued"}',
    due_at INTEGER NOT NULL,
    lease_token TEXT,
    lease_until INTEGER,
    base_commit TEXT,
    input_digest TEXT,
    comment INTEGER,
    ready_json TEXT,
    pull INTEGER,
    last_error TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX jobs_due ON jobs (phase, due_at);
CREATE INDEX jobs_subject ON jobs (forge, owner, name, issue);

CREATE TABLE deliveries (
    forge TEXT NOT NULL,
    id TEXT NOT NULL,
    event TEXT NOT NULL,
    payload BLOB NOT NULL,
    received_at INTEGER NOT NULL,
    job INTEGER REFERENCES jobs (id) ON DELETE SET NULL,
    -- Why no job follows, for the operator.
    note TEXT,
    PRIMARY KEY (forge, id)
) STRICT;

CREATE INDEX deliveries_job ON deliveries (job);
