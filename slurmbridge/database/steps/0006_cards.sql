-- A profile is of a GPU model: what an application takes and how long it runs is another on each.
CREATE TABLE profiles_of_cards (
	user    TEXT NOT NULL,      -- "" = the whole site's
	app     TEXT NOT NULL,
	card    TEXT NOT NULL,      -- gpuprof.Record.Card; "" = imported, or of an earlier release
	updated INTEGER NOT NULL,   -- ns since 1970
	body    TEXT NOT NULL,      -- rlcore.Profile as JSON
	PRIMARY KEY (user, app, card)
) WITHOUT ROWID;
INSERT INTO profiles_of_cards (user, app, card, updated, body) SELECT user, app, '', updated, body FROM profiles;
DROP TABLE profiles;
ALTER TABLE profiles_of_cards RENAME TO profiles;

-- The card of each GPU, as its last record named it.
CREATE TABLE cards (
	node TEXT NOT NULL,
	gpu  INTEGER NOT NULL, -- index on the node, in gres.conf's order
	card TEXT NOT NULL,
	PRIMARY KEY (node, gpu)
) WITHOUT ROWID;
