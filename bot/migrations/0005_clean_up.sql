-- Set once the files and refs of an ended job have been removed.
ALTER TABLE jobs ADD COLUMN is_cleared INTEGER NOT NULL DEFAULT 0;
