-- What rules for adoption match besides user, account and partition, and a job's own deadline (ms since 1970, 0 = none):
-- adopt preview replays jobs by them.
ALTER TABLE bridge_ran ADD COLUMN qos         TEXT NOT NULL DEFAULT '';
ALTER TABLE bridge_ran ADD COLUMN reservation TEXT NOT NULL DEFAULT '';
ALTER TABLE bridge_ran ADD COLUMN deadline    INTEGER NOT NULL DEFAULT 0;
