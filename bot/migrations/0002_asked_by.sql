-- The login of who asked; none for an operator on the command line, and for jobs of earlier releases.
ALTER TABLE jobs ADD COLUMN asked_by TEXT;
