-- What runs held, did and cost, in short: a row a run. The rows outlive the details of runs. usage.Store reads and
-- writes them, and moves what bridge_footprints holds, a day in one row, into them.
CREATE TABLE bridge_labels (
	id        INTEGER PRIMARY KEY,
	user      TEXT NOT NULL,
	account   TEXT NOT NULL,
	partition TEXT NOT NULL,
	app       TEXT NOT NULL,
	node      TEXT NOT NULL,
	UNIQUE (user, account, partition, app, node)
);

-- Times are in ms, times of use in ms of the run, memory in KiB, energy in J.
CREATE TABLE bridge_used (
	ended     INTEGER NOT NULL, -- since 1970
	ref       TEXT NOT NULL,
	who       INTEGER NOT NULL, -- label of user, account, partition and application
	place     INTEGER NOT NULL, -- label of partition and node
	took      INTEGER NOT NULL,
	shares    INTEGER NOT NULL, -- held at a time, 100 = a GPU; 0 = not known
	flags     INTEGER NOT NULL, -- usage.flags
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
-- Runs of more than two days: others on a GPU in a period ended in it or within two days of it.
CREATE INDEX bridge_used_long ON bridge_used (ended - took) WHERE took > 172800000;
-- Runs that came to harm, or failed alone, too.
CREATE INDEX bridge_used_harm ON bridge_used (ref) WHERE flags >= 16;

-- The sums of a whole week's runs by label, of either kind: a year's sums are read at once.
CREATE TABLE bridge_used_weeks (
	week        INTEGER NOT NULL, -- of seven days since 1970, in which the runs ended
	label       INTEGER NOT NULL,
	runs        REAL NOT NULL,
	unheld      REAL NOT NULL,
	held        REAL NOT NULL,
	whole       REAL NOT NULL,
	computed    REAL NOT NULL,
	computed_of REAL NOT NULL,
	split       REAL NOT NULL,
	memory      REAL NOT NULL,
	memory_of   REAL NOT NULL,
	peak        REAL NOT NULL,
	idle        REAL NOT NULL,
	idle_of     REAL NOT NULL,
	shared      REAL NOT NULL,
	shared_of   REAL NOT NULL,
	saved       REAL NOT NULL,
	timed       REAL NOT NULL,
	lost        REAL NOT NULL,
	judged      REAL NOT NULL,
	energy      REAL NOT NULL,
	energy_of   REAL NOT NULL,
	PRIMARY KEY (week, label)
) WITHOUT ROWID;
