-- What jobs used of their nodes' cores and memory.
ALTER TABLE bridge_used ADD COLUMN cpu  INTEGER NOT NULL DEFAULT 0; -- ms of CPU time; 0 = not known
ALTER TABLE bridge_used ADD COLUMN host INTEGER NOT NULL DEFAULT 0; -- KiB at most; 0 = not known
ALTER TABLE bridge_used_weeks ADD COLUMN cpu    REAL NOT NULL DEFAULT 0;
ALTER TABLE bridge_used_weeks ADD COLUMN cpu_of REAL NOT NULL DEFAULT 0;
ALTER TABLE bridge_used_weeks ADD COLUMN host   REAL NOT NULL DEFAULT 0;
