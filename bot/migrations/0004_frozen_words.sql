-- What people say on the issue, as JSON, frozen at the first attempt.
ALTER TABLE jobs ADD COLUMN input_json TEXT;
-- Whether a delivery saw the label on the issue, and SHA-256 of the issue's title and text at that time.
ALTER TABLE deliveries ADD COLUMN has_label INTEGER;
ALTER TABLE deliveries ADD COLUMN words_digest TEXT;
