-- The audit record: one JSON text for each thing that happened, with the SHA-256 of the text before it. Nothing is ever
-- changed or removed; that it was not is for `hyla audit verify` to show.
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    record TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit record takes additions only'); END;
CREATE TRIGGER audit_stays_whole BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit record takes additions only'); END;
