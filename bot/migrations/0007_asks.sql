-- An ask is looked for on the whole forge: its repository may have another name by now.
CREATE INDEX jobs_ask ON jobs (forge, issue) WHERE key IS NOT NULL;
