-- A run of a job, once, whoever showed it: polls, which make its row, the nodes' records, which complete it, and what was
-- concluded of it. history reads and writes the rows. Times are ms since 1970.
CREATE TABLE run (
	id      INTEGER PRIMARY KEY,
	ref     TEXT NOT NULL,
	ended   INTEGER,            -- by its record, otherwise by polls; NULL = it still runs
	record  INTEGER,            -- the first that came of it; NULL = none has come
	used    INTEGER,            -- end of its footprint in bridge_used; NULL = it has none
	task    INTEGER,            -- the own job number of an array's task; NULL = it is none, or no poll showed it run
	judged  INTEGER NOT NULL DEFAULT 0, -- 1 = it has an outcome
	detail  TEXT NOT NULL       -- history.Run as JSON
);
CREATE INDEX run_ref ON run (ref);
CREATE INDEX run_ended ON run (ended);
CREATE INDEX run_task ON run (task) WHERE task IS NOT NULL;
CREATE UNIQUE INDEX run_record ON run (record) WHERE record IS NOT NULL;
CREATE INDEX run_unjudged ON run (record) WHERE NOT judged AND record IS NOT NULL;

-- What nodes recorded of runs, each node's part. Times are ns since 1970, by the node's clock.
CREATE TABLE record (
	id       INTEGER PRIMARY KEY,
	fitted   INTEGER NOT NULL DEFAULT 0, -- 1 = it is part of its run; 0 = it has just come
	job_id   INTEGER NOT NULL,
	restart  INTEGER NOT NULL,
	node     TEXT NOT NULL,
	started  INTEGER NOT NULL,
	ended    INTEGER NOT NULL,  -- when it ended, by the controller's clock
	app      TEXT NOT NULL,     -- "" = not recognised
	body     TEXT NOT NULL,     -- gpuprof.Record as JSON
	UNIQUE (node, job_id, restart, started)
);
CREATE INDEX record_ended ON record (ended);
CREATE INDEX record_new ON record (id) WHERE NOT fitted;

-- The tables of the profile store: profiles and applications. Times are ns since 1970.
-- A profile is of a GPU model: what an application takes and how long it runs is another on each.
CREATE TABLE profiles (
	user    TEXT NOT NULL,      -- "" = the whole site's
	app     TEXT NOT NULL,
	card    TEXT NOT NULL,      -- gpuprof.Record.Card; "" = imported
	updated INTEGER NOT NULL,
	body    TEXT NOT NULL,      -- rlcore.Profile as JSON
	PRIMARY KEY (user, app, card)
) WITHOUT ROWID;

-- The card of each GPU, as its last record named it.
CREATE TABLE cards (
	node TEXT NOT NULL,
	gpu  INTEGER NOT NULL,      -- index on the node, in gres.conf's order
	card TEXT NOT NULL,
	no_limits INTEGER NOT NULL, -- 1: its driver holds no MPS client to a part of the memory, which the card could
	PRIMARY KEY (node, gpu)
) WITHOUT ROWID;

CREATE TABLE jobs (
	ref  TEXT PRIMARY KEY,
	user TEXT NOT NULL,
	app  TEXT NOT NULL,
	seen INTEGER NOT NULL
) WITHOUT ROWID;

-- What is known of a user's application beside its profiles.
CREATE TABLE applications (
	user     TEXT NOT NULL,              -- "" = the whole site's
	app      TEXT NOT NULL,
	family   TEXT NOT NULL DEFAULT '',   -- alike for scripts that differ in sizes only; "" = none is known
	name     TEXT NOT NULL DEFAULT '',   -- of its program
	sizes    TEXT NOT NULL DEFAULT '[]', -- appid.Size as JSON
	standing TEXT,                       -- interference.Standing as JSON; NULL = no run was judged
	seen     INTEGER NOT NULL,
	PRIMARY KEY (user, app)
) WITHOUT ROWID;
CREATE INDEX applications_family ON applications (family, user);

-- What co-runs have shown of one application beside the same others, in the order of the first co-runs.
CREATE TABLE cells (
	id   INTEGER PRIMARY KEY,
	key  TEXT NOT NULL UNIQUE,  -- interference.Cell.Key
	seen INTEGER NOT NULL,
	body TEXT NOT NULL          -- interference.Cell as JSON
);

-- The tables of the journal. Times are ms since 1970.
CREATE TABLE bridge_groups (
	id      INTEGER PRIMARY KEY,
	state   TEXT NOT NULL,
	decided INTEGER NOT NULL,
	body    TEXT NOT NULL       -- job.Group as JSON
);
CREATE INDEX bridge_groups_state ON bridge_groups (state);
CREATE INDEX bridge_groups_decided ON bridge_groups (decided);

CREATE TABLE bridge_members (
	group_id INTEGER NOT NULL,
	ref      TEXT NOT NULL,
	started  INTEGER,           -- ns since 1970, from the node's record; NULL = none yet
	PRIMARY KEY (ref, group_id)
) WITHOUT ROWID;
CREATE INDEX bridge_members_group ON bridge_members (group_id);

CREATE TABLE bridge_changes (
	id       INTEGER PRIMARY KEY,
	at       INTEGER NOT NULL,
	mode     TEXT NOT NULL,
	group_id INTEGER NOT NULL,  -- 0 = of no group
	ref      TEXT NOT NULL,
	step     TEXT NOT NULL,
	change   TEXT NOT NULL,
	was      TEXT NOT NULL,     -- the values it replaced
	result   TEXT NOT NULL      -- "ok", or Slurm's error
);
CREATE INDEX bridge_changes_ref ON bridge_changes (ref);
CREATE INDEX bridge_changes_at ON bridge_changes (at);

CREATE TABLE bridge_notes (
	ref  TEXT PRIMARY KEY,
	at   INTEGER NOT NULL,
	body TEXT NOT NULL          -- job.Explanation as JSON
) WITHOUT ROWID;

CREATE TABLE bridge_book (
	id   INTEGER PRIMARY KEY CHECK (id = 1),
	body TEXT NOT NULL          -- tracker.Tracker as JSON
);

CREATE TABLE bridge_refusals (
	ref    TEXT NOT NULL,
	reason TEXT NOT NULL,
	first  INTEGER NOT NULL,
	last   INTEGER NOT NULL,
	looks  INTEGER NOT NULL,
	waited INTEGER NOT NULL, -- ms
	PRIMARY KEY (ref, reason)
) WITHOUT ROWID;
CREATE INDEX bridge_refusals_last ON bridge_refusals (last);

CREATE TABLE bridge_nodes (
	node       TEXT PRIMARY KEY,
	body       TEXT NOT NULL,   -- what of a job.Node says which GPUs there are, as JSON
	seen       INTEGER NOT NULL
) WITHOUT ROWID;

-- What runs hold, did and cost, in short: a row a run, which outlives the run's details by a year; history writes the
-- rows and reads them for usage. Times are in ms, times of use in ms of the run, memory in KiB, energy in J.
CREATE TABLE bridge_labels (
	id        INTEGER PRIMARY KEY,
	user      TEXT NOT NULL,
	account   TEXT NOT NULL,
	partition TEXT NOT NULL,
	app       TEXT NOT NULL,
	node      TEXT NOT NULL,
	UNIQUE (user, account, partition, app, node)
);

CREATE TABLE bridge_used (
	ended     INTEGER NOT NULL, -- since 1970; 2^53 = it still runs
	ref       TEXT NOT NULL,
	who       INTEGER NOT NULL, -- label of user, account, partition and application
	place     INTEGER NOT NULL, -- label of partition and node
	took      INTEGER NOT NULL, -- since it began, at ended - took
	shares    INTEGER NOT NULL, -- held at a time, 100 = a GPU; 0 = not known
	flags     INTEGER NOT NULL, -- of history.Footprint
	known     INTEGER NOT NULL,
	computed  INTEGER NOT NULL,
	split     INTEGER NOT NULL,
	idleknown INTEGER NOT NULL,
	idle      INTEGER NOT NULL,
	shared    INTEGER NOT NULL,
	mean      INTEGER NOT NULL,
	peak      INTEGER NOT NULL,
	card      INTEGER NOT NULL, -- 0 = memory is not known
	energy    INTEGER NOT NULL, -- 0 = not known
	saved     INTEGER NOT NULL,
	lost      INTEGER NOT NULL,
	PRIMARY KEY (ended, ref)
) WITHOUT ROWID;

-- Mails that were sent to owners of jobs; mail reads and writes the rows.
CREATE TABLE bridge_mails (
	kind TEXT NOT NULL,         -- idle or report
	job  TEXT NOT NULL,         -- without its task
	run  INTEGER NOT NULL,      -- the record of the run that was reported; 0 = of none
	user TEXT NOT NULL,
	at   INTEGER NOT NULL,      -- ms since 1970
	PRIMARY KEY (kind, job, run)
) WITHOUT ROWID;
