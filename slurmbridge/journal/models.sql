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
