-- What runs held, did and cost, in short: a day's in one row, which is small and quickly read. They outlive the runs.
CREATE TABLE bridge_footprints (
	day   INTEGER PRIMARY KEY, -- days since 1970, UTC, in which the runs ended
	first INTEGER NOT NULL,    -- ms since 1970; the earliest start among them
	runs  INTEGER NOT NULL,
	body  BLOB NOT NULL        -- []history.Footprint, gob, gzip
);
CREATE TABLE bridge_settled (
	id     INTEGER PRIMARY KEY CHECK (id = 1),
	at     INTEGER NOT NULL, -- ms since 1970; up to when footprints were made
	record INTEGER NOT NULL  -- and up to which record
);
