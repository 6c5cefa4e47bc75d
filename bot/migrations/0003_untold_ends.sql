-- Since when a job waits for its forge; kept once set, so that waiting has an end.
ALTER TABLE jobs ADD COLUMN waiting_since INTEGER;
-- How a job ended, until people have been told.
ALTER TABLE jobs ADD COLUMN end_json TEXT;
