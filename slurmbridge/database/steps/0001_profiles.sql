CREATE TABLE IF NOT EXISTS runs (
	id       INTEGER PRIMARY KEY,
	job_id   INTEGER NOT NULL,
	restart  INTEGER NOT NULL,
	node     TEXT NOT NULL,
	ref      TEXT NOT NULL,
	user     TEXT NOT NULL,
	app      TEXT NOT NULL,     -- "" = not recognised
	started  INTEGER NOT NULL,  -- ns since 1970
	ended    INTEGER NOT NULL,
	solo     INTEGER NOT NULL,
	slowdown REAL,              -- its time over its profile's, where there was one
	body     TEXT NOT NULL,     -- gpuprof.Record as JSON
	UNIQUE (node, job_id, restart, started)
);
CREATE INDEX IF NOT EXISTS runs_app ON runs (user, app);
CREATE INDEX IF NOT EXISTS runs_ref ON runs (ref);
CREATE INDEX IF NOT EXISTS runs_ended ON runs (ended);

CREATE TABLE IF NOT EXISTS profiles (
	user    TEXT NOT NULL,      -- "" = the whole site's
	app     TEXT NOT NULL,
	updated INTEGER NOT NULL,   -- ns since 1970
	body    TEXT NOT NULL,      -- rlcore.Profile as JSON
	PRIMARY KEY (user, app)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS jobs (
	ref  TEXT PRIMARY KEY,
	user TEXT NOT NULL,
	app  TEXT NOT NULL,
	seen INTEGER NOT NULL       -- ns since 1970
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS families (
	user   TEXT NOT NULL,       -- "" = the whole site's
	app    TEXT NOT NULL,
	family TEXT NOT NULL,       -- alike for scripts that differ in sizes only
	name   TEXT NOT NULL,       -- of its program
	sizes  TEXT NOT NULL,       -- appid.Size as JSON
	seen   INTEGER NOT NULL,    -- ns since 1970
	PRIMARY KEY (user, app)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS families_family ON families (family, user);
