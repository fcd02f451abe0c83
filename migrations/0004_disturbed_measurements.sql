-- Other processes wrote or deleted during the measurement: measured_bytes says more about them than about the deletion.
ALTER TABLE deletions ADD COLUMN others_wrote INTEGER NOT NULL DEFAULT 0;

-- Such a deletion counts as freed bytes what was predicted. Otherwise the counters would only drift upwards, because
-- negative bytes count as 0.
DROP TRIGGER count_deletion;
CREATE TRIGGER count_deletion AFTER INSERT ON deletions
WHEN NEW.outcome <> 'unknown'
BEGIN
    INSERT INTO counters (name, command, label, value)
    SELECT iif(NEW.error IS NULL, 'deletions', 'failures'), command, NEW.kind, 1
    FROM runs WHERE id = NEW.run
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, NEW.kind,
        min(max(iif(NEW.others_wrote, NEW.predicted_bytes, NEW.measured_bytes), 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND NEW.measured_bytes IS NOT NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, 'byproduct', min(NEW.byproduct_bytes, 1 << 61)
    FROM runs WHERE id = NEW.run AND NEW.byproduct_bytes > 0
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'predicted_bytes', command, NEW.kind, min(max(NEW.predicted_bytes, 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND NEW.measured_bytes IS NOT NULL AND NEW.error IS NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
END;

DROP TRIGGER count_measured;
CREATE TRIGGER count_measured AFTER UPDATE OF measured_bytes, byproduct_bytes ON deletions
BEGIN
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, NEW.kind,
        max(min(max(iif(NEW.others_wrote, NEW.predicted_bytes, NEW.measured_bytes), 0), 1 << 61)
            - iif(OLD.measured_bytes IS NULL, 0,
                min(max(iif(OLD.others_wrote, OLD.predicted_bytes, OLD.measured_bytes), 0), 1 << 61)), 0)
    FROM runs WHERE id = NEW.run AND NEW.measured_bytes IS NOT NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'freed_bytes', command, 'byproduct',
        min(NEW.byproduct_bytes, 1 << 61) - min(max(OLD.byproduct_bytes, 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND NEW.byproduct_bytes > max(OLD.byproduct_bytes, 0)
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
    INSERT INTO counters (name, command, label, value)
    SELECT 'predicted_bytes', command, NEW.kind, min(max(NEW.predicted_bytes, 0), 1 << 61)
    FROM runs WHERE id = NEW.run AND NEW.measured_bytes IS NOT NULL
        AND OLD.measured_bytes IS NULL AND NEW.error IS NULL
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + excluded.value;
END;
