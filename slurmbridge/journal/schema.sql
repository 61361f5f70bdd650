CREATE TABLE IF NOT EXISTS bridge_groups (
	id      INTEGER PRIMARY KEY,
	state   TEXT NOT NULL,
	decided INTEGER NOT NULL, -- ms since 1970
	body    TEXT NOT NULL     -- slurmbridge.Group as JSON
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
	was      TEXT NOT NULL,    -- the values that were replaced
	result   TEXT NOT NULL     -- "ok", or what Slurm said
);
CREATE INDEX IF NOT EXISTS bridge_changes_ref ON bridge_changes (ref);
CREATE INDEX IF NOT EXISTS bridge_changes_at ON bridge_changes (at);

CREATE TABLE IF NOT EXISTS bridge_notes (
	ref  TEXT PRIMARY KEY,
	at   INTEGER NOT NULL,
	body TEXT NOT NULL -- slurmbridge.Note as JSON
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS bridge_tasks (
	id    INTEGER PRIMARY KEY, -- the task's own job number
	array INTEGER NOT NULL,    -- its name is array_task
	task  INTEGER NOT NULL,
	at    INTEGER NOT NULL     -- ms since 1970; when it was first seen running
);

CREATE TABLE IF NOT EXISTS bridge_book (
	id   INTEGER PRIMARY KEY CHECK (id = 1),
	body TEXT NOT NULL -- waits, hands off, progress as JSON
);

CREATE TABLE IF NOT EXISTS bridge_outcomes (
	run   INTEGER PRIMARY KEY, -- of the store's runs
	ref   TEXT NOT NULL,
	ended INTEGER NOT NULL,    -- ms since 1970
	body  TEXT NOT NULL        -- slurmbridge.Outcome as JSON
);
CREATE INDEX IF NOT EXISTS bridge_outcomes_ref ON bridge_outcomes (ref);
CREATE INDEX IF NOT EXISTS bridge_outcomes_ended ON bridge_outcomes (ended);
