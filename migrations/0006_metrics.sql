-- What `layersweep metrics` tells. Times are microseconds of record time, as in 0001_images.sql.

-- What the last scan found in each store, and when. Stores that are gone are forgotten by the first
-- complete scan of all stores without them (src/records/figures.rs).
CREATE TABLE store_figures (
    store INTEGER PRIMARY KEY REFERENCES stores (id) ON DELETE CASCADE,
    at INTEGER NOT NULL,
    -- When the scan began, by the wall clock.
    wall INTEGER NOT NULL,
    -- How long the whole scan took.
    seconds REAL NOT NULL,
    -- JSON object of counts and bytes.
    figures TEXT NOT NULL
) STRICT;

-- Sums that never go down, whatever is forgotten of the rows they come from. The triggers below keep
-- them: whatever way a row takes here (at once, late from the spool, more than once), it counts once.
CREATE TABLE counters (
    -- runs, deletions, failures, freed_bytes, predicted_bytes.
    name TEXT NOT NULL,
    -- scan, gc, sweep, rm.
    command TEXT NOT NULL,
    -- Of runs the outcome, or `killed`; of the rest the kind of what was deleted, or `byproduct` for
    -- bytes of leaks that went along.
    label TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (name, command, label)
) STRICT, WITHOUT ROWID;

-- A run of a command that deletes, counted as killed: it has no end, and a later one has begun, which
-- only happens when it is over.
ALTER TABLE runs ADD COLUMN killed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_open ON runs (started) WHERE outcome IS NULL;
UPDATE runs SET killed = 1
WHERE outcome IS NULL AND dry_run = 0 AND command <> 'scan' AND started < (
    SELECT max(started) FROM runs WHERE dry_run = 0 AND command <> 'scan');

-- What was done so far, as far as it is still known.
INSERT INTO counters (name, command, label, value)
SELECT 'runs', command, iif(killed, 'killed', outcome), sum(summed) FROM runs
WHERE dry_run = 0 AND (outcome IS NOT NULL OR killed) GROUP BY 2, 3;
INSERT INTO counters (name, command, label, value)
SELECT iif(error IS NULL, 'deletions', 'failures'), command, kind, count(*)
FROM deletions JOIN runs ON runs.id = run WHERE dry_run = 0 GROUP BY 1, 2, 3;
INSERT INTO counters (name, command, label, value)
SELECT 'freed_bytes', command, kind, sum(min(max(one.measured_bytes, 0), 1 << 46))
FROM deletions AS one JOIN runs ON runs.id = run
WHERE dry_run = 0 AND one.measured_bytes IS NOT NULL GROUP BY 2, 3;
INSERT INTO counters (name, command, label, value)
SELECT 'freed_bytes', command, 'byproduct', sum(min(byproduct_bytes, 1 << 46))
FROM deletions JOIN runs ON runs.id = run WHERE dry_run = 0 AND byproduct_bytes > 0 GROUP BY 2;
INSERT INTO counters (name, command, label, value)
SELECT 'predicted_bytes', command, kind, sum(min(max(one.predicted_bytes, 0), 1 << 46))
FROM deletions AS one JOIN runs ON runs.id = run
WHERE dry_run = 0 AND one.measured_bytes IS NOT NULL AND error IS NULL GROUP BY 2, 3;

-- From here on. Sums stay integers, whatever a row says (a STRICT table takes nothing else).
CREATE TRIGGER count_run AFTER UPDATE OF outcome ON runs
WHEN OLD.outcome IS NULL AND NEW.outcome IS NOT NULL AND NEW.dry_run = 0 AND NEW.killed = 0
BEGIN
    INSERT INTO counters (name, command, label, value) VALUES ('runs', NEW.command, NEW.outcome, 1)
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
END;

CREATE TRIGGER find_killed AFTER INSERT ON runs
WHEN NEW.command <> 'scan' AND NEW.dry_run = 0
BEGIN
    UPDATE runs SET killed = 1
    WHERE outcome IS NULL AND killed = 0 AND dry_run = 0 AND command <> 'scan' AND started < NEW.started;
END;

CREATE TRIGGER count_killed AFTER UPDATE OF killed ON runs
WHEN OLD.killed = 0 AND NEW.killed = 1
BEGIN
    INSERT INTO counters (name, command, label, value) VALUES ('runs', NEW.command, 'killed', 1)
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
END;

CREATE TRIGGER count_deletion AFTER INSERT ON deletions
BEGIN
    INSERT INTO counters (name, command, label, value)
    SELECT iif(NEW.error IS NULL, 'deletions', 'failures'), command, NEW.kind, 1
    FROM runs WHERE id = NEW.run AND dry_run = 0
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, NEW.kind, min(max(NEW.measured_bytes, 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND dry_run = 0 AND NEW.measured_bytes IS NOT NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, 'byproduct', min(NEW.byproduct_bytes, 1 << 61)
    FROM runs WHERE id = NEW.run AND dry_run = 0 AND NEW.byproduct_bytes > 0
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'predicted_bytes', command, NEW.kind, min(max(NEW.predicted_bytes, 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND dry_run = 0 AND NEW.measured_bytes IS NOT NULL AND NEW.error IS NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
END;

-- Measured after it was done, or once more.
CREATE TRIGGER count_measured AFTER UPDATE OF measured_bytes, byproduct_bytes ON deletions
BEGIN
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, NEW.kind,
        max(min(max(NEW.measured_bytes, 0), 1 << 61) - min(max(coalesce(OLD.measured_bytes, 0), 0), 1 << 61), 0)
    FROM runs WHERE id = NEW.run AND dry_run = 0 AND NEW.measured_bytes IS NOT NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, 'byproduct',
        min(NEW.byproduct_bytes, 1 << 61) - min(max(OLD.byproduct_bytes, 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND dry_run = 0 AND NEW.byproduct_bytes > max(OLD.byproduct_bytes, 0)
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'predicted_bytes', command, NEW.kind, min(max(NEW.predicted_bytes, 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND dry_run = 0 AND NEW.measured_bytes IS NOT NULL
        AND OLD.measured_bytes IS NULL AND NEW.error IS NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
END;
