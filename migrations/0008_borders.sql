-- What the borders of a run leave behind: deletions whose outcome is open, and leaps of the clock.

-- A deletion is written before it is asked for, so that a run that ends in the middle of it has left
-- what it began. Its outcome is `unknown` then, until the run itself (`seen`) or a later scan
-- (`confirmed`) says what came of it: `error` is NULL where it is gone.
ALTER TABLE deletions ADD COLUMN outcome TEXT NOT NULL DEFAULT 'seen';
CREATE INDEX deletions_unknown ON deletions (run) WHERE outcome = 'unknown';

-- Nothing is counted before its outcome is known.
DROP TRIGGER count_deletion;
CREATE TRIGGER count_deletion AFTER INSERT ON deletions
WHEN NEW.outcome <> 'unknown'
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

-- Its bytes are counted by `count_measured`, which the same update sets off.
CREATE TRIGGER count_certain AFTER UPDATE OF outcome ON deletions
WHEN OLD.outcome = 'unknown' AND NEW.outcome <> 'unknown'
BEGIN
    INSERT INTO counters (name, command, label, value)
    SELECT iif(NEW.error IS NULL, 'deletions', 'failures'), command, NEW.kind, 1
    FROM runs WHERE id = NEW.run AND dry_run = 0
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
END;

-- JSON array: leaps of the wall clock (src/sys/clock.rs), which dates on the disk are corrected by.
ALTER TABLE clock ADD COLUMN leaps TEXT NOT NULL DEFAULT '[]';
