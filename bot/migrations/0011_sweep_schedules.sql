-- The schedule that a sweep follows, and since when: what another one had is nobody's.
ALTER TABLE sweeps ADD COLUMN schedule TEXT;
ALTER TABLE sweeps ADD COLUMN since INTEGER;
