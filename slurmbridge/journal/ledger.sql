CREATE TABLE IF NOT EXISTS bridge_ran (
	ref       TEXT NOT NULL,
	start     INTEGER NOT NULL, -- ms since 1970; 0 = it came and went between two looks
	submit    INTEGER NOT NULL,
	ready     INTEGER NOT NULL, -- since when nothing but its turn kept it waiting
	ended     INTEGER,          -- NULL = it was running at the last look
	user      TEXT NOT NULL,
	account   TEXT NOT NULL,
	partition TEXT NOT NULL,
	app       TEXT NOT NULL,
	node      TEXT NOT NULL,
	gpus      TEXT NOT NULL,    -- indexes on the node, by commas
	shares    INTEGER NOT NULL, -- 0 = whole GPUs
	count     INTEGER NOT NULL, -- whole GPUs
	group_id  INTEGER NOT NULL, -- 0 = of no group
	mode      TEXT NOT NULL,
	PRIMARY KEY (ref, start)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS bridge_ran_ended ON bridge_ran (ended);

CREATE TABLE IF NOT EXISTS bridge_intended (
	ref  TEXT PRIMARY KEY,
	at   INTEGER NOT NULL,
	body TEXT NOT NULL -- Intended as JSON
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS bridge_intended_at ON bridge_intended (at);

CREATE TABLE IF NOT EXISTS bridge_refusals (
	ref    TEXT NOT NULL,
	reason TEXT NOT NULL,
	first  INTEGER NOT NULL,
	last   INTEGER NOT NULL,
	looks  INTEGER NOT NULL,
	PRIMARY KEY (ref, reason)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS bridge_refusals_last ON bridge_refusals (last);

CREATE TABLE IF NOT EXISTS bridge_nodes (
	node       TEXT PRIMARY KEY,
	gpus       INTEGER NOT NULL,
	type       TEXT NOT NULL,
	partitions TEXT NOT NULL, -- by commas
	seen       INTEGER NOT NULL
) WITHOUT ROWID;
