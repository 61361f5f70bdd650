-- A record's times are its node's. Periods are compared with ended_at, the end by the controller's clock,
-- which no disagreement between clocks moves out of its period.
ALTER TABLE runs ADD COLUMN ended_at INTEGER GENERATED ALWAYS AS -- ns since 1970
	(ended + CAST(round(1e9 * coalesce(json_extract(body, '$.clock_behind_s'), 0)) AS INTEGER)) VIRTUAL;
CREATE INDEX runs_ended_at ON runs (ended_at);
DROP INDEX runs_ended;
