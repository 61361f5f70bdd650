-- Files of format 1 may have any of these already: each part of the program made its own tables when it
-- was first used.
CREATE TABLE IF NOT EXISTS bridge_groups (
	id      INTEGER PRIMARY KEY,
	state   TEXT NOT NULL,
	decided INTEGER NOT NULL, -- ms since 1970
	body    TEXT NOT NULL     -- job.Group as JSON
);
CREATE INDEX IF NOT EXISTS bridge_groups_state ON bridge_groups (state);
CREATE INDEX IF NOT EXISTS bridge_groups_decided ON bridge_groups (decided);

CREATE TABLE IF NOT EXISTS bridge_members (
	group_id INTEGER NOT NULL,
	ref      TEXT NOT NULL,
	started  INTEGER, -- ns since 1970, from the node's record; NULL = none yet
	PRIMARY KEY (ref, group_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS bridge_members_group ON bridge_members (group_id);

CREATE TABLE IF NOT EXISTS bridge_changes (
	id       INTEGER PRIMARY KEY,
	at       INTEGER NOT NULL, -- ms since 1970
	mode     TEXT NOT NULL,
	group_id INTEGER NOT NULL, -- 0 = of no group
	ref      TEXT NOT NULL,
	step     TEXT NOT NULL,
	change   TEXT NOT NULL,
	was      TEXT NOT NULL,    -- the values it replaced
	result   TEXT NOT NULL     -- "ok", or Slurm's error
);
CREATE INDEX IF NOT EXISTS bridge_changes_ref ON bridge_changes (ref);
CREATE INDEX IF NOT EXISTS bridge_changes_at ON bridge_changes (at);

CREATE TABLE IF NOT EXISTS bridge_notes (
	ref  TEXT PRIMARY KEY,
	at   INTEGER NOT NULL,
	body TEXT NOT NULL -- job.Explanation as JSON
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS bridge_tasks (
	id    INTEGER PRIMARY KEY, -- the task's own job number
	array INTEGER NOT NULL,    -- its name is array_task
	task  INTEGER NOT NULL,
	at    INTEGER NOT NULL     -- ms since 1970; when a poll first showed it running
);

CREATE TABLE IF NOT EXISTS bridge_book (
	id   INTEGER PRIMARY KEY CHECK (id = 1),
	body TEXT NOT NULL -- waits, unmanaged jobs, progress as JSON
);

CREATE TABLE IF NOT EXISTS bridge_outcomes (
	run   INTEGER PRIMARY KEY, -- of the store's runs
	ref   TEXT NOT NULL,
	ended INTEGER NOT NULL,    -- ms since 1970
	body  TEXT NOT NULL        -- history.Outcome as JSON
);
CREATE INDEX IF NOT EXISTS bridge_outcomes_ref ON bridge_outcomes (ref);
CREATE INDEX IF NOT EXISTS bridge_outcomes_ended ON bridge_outcomes (ended);

CREATE TABLE IF NOT EXISTS bridge_ran (
	ref       TEXT NOT NULL,
	start     INTEGER NOT NULL, -- ms since 1970; 0 = no poll showed it running
	submit    INTEGER NOT NULL,
	ready     INTEGER NOT NULL, -- since when it waited for nothing but its turn
	ended     INTEGER,          -- NULL = the last poll showed it running
	user      TEXT NOT NULL,
	account   TEXT NOT NULL,
	partition TEXT NOT NULL,
	app       TEXT NOT NULL,
	node      TEXT NOT NULL,
	gpus      TEXT NOT NULL,    -- indexes on the node, separated by commas
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
	body TEXT NOT NULL -- history.Intended as JSON
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
	partitions TEXT NOT NULL, -- separated by commas
	seen       INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS bridge_models (
	id   INTEGER PRIMARY KEY AUTOINCREMENT,
	made INTEGER NOT NULL, -- ms since 1970
	body TEXT NOT NULL     -- models.Model as JSON
);
CREATE TABLE IF NOT EXISTS bridge_model_use (
	id     INTEGER PRIMARY KEY CHECK (id = 1),
	model  INTEGER NOT NULL, -- 0 = the one built in
	pinned INTEGER NOT NULL,
	since  INTEGER NOT NULL
);
