-- Observations and their times. Times are microseconds since 1970-01-01T00:00:00Z in
-- *record time* (src/history/clock.rs): wall-clock time if the node's clock is right,
-- and never ahead of the time that has provably passed. A scan that finds no change
-- writes only one row of `clock` and one of `stores`: NULL in `last_seen` below means
-- the value of the store.

-- One row: the last reading of the clocks (src/history/clock.rs).
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    record_time INTEGER NOT NULL,
    wall INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    since_boot INTEGER NOT NULL,
    -- NULL: settled. Else times recorded after this one are not confirmed yet.
    unsettled_after INTEGER,
    -- JSON array: jumps of the wall clock (src/sys/clock.rs), used to correct dates on the disk.
    leaps TEXT NOT NULL
) STRICT;

CREATE TABLE stores (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    -- Bytes that are not UTF-8, and '%', as %FF (src/model/path_text.rs).
    root TEXT NOT NULL,
    driver TEXT NOT NULL,
    first_seen INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    -- The last scan that could list all of it; NULL: none so far.
    last_complete INTEGER,
    -- The wall clock at last_seen; NULL: not known, about the same.
    last_wall INTEGER,
    UNIQUE (kind, root, driver)
) STRICT;

-- One row for each lifetime of an image: from the first scan that sees it to the first
-- complete scan that no longer finds it.
CREATE TABLE images (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES stores (id) ON DELETE CASCADE,
    image_id TEXT NOT NULL,
    life INTEGER NOT NULL,
    -- Never changes.
    first_detected INTEGER NOT NULL,
    -- JSON: what first_detected was taken from (src/history/ages.rs, FirstSight).
    evidence TEXT NOT NULL,
    -- Wall clock: birth of the metadata directory or of containerd's record, which every pull
    -- creates. A different value later means that the image was deleted and pulled again.
    made INTEGER,
    -- NULL: as the store.
    last_seen INTEGER,
    -- A container used it when it was last seen.
    in_use INTEGER NOT NULL DEFAULT 0,
    -- NULL: never seen in use before. While in_use, last_seen says more.
    last_used INTEGER,
    -- NULL: its age counts from first_detected or last_used. Else from here, if that is
    -- later: a scan saw it unused again, and its last container may have existed until then;
    -- or record time has jumped, which must not make the image older.
    proven_since INTEGER,
    -- Number of distinct containers seen that were made from it.
    use_count INTEGER NOT NULL DEFAULT 0,
    -- NULL: present.
    gone_since INTEGER,
    -- JSON arrays. `history NAME` also finds an image by its manifest digests, and by names that it had earlier in this
    -- life.
    names TEXT NOT NULL,
    digests TEXT NOT NULL DEFAULT '[]',
    former_names TEXT NOT NULL DEFAULT '[]',
    -- JSON object: the way in which the image came to this node, and its registry (src/model/repull.rs, KnownOrigin).
    -- NULL: no evidence.
    origin TEXT,
    total_bytes INTEGER NOT NULL,
    exclusive_bytes INTEGER NOT NULL,
    frees_bytes INTEGER NOT NULL,
    listed_bytes INTEGER,
    pinned INTEGER NOT NULL,
    UNIQUE (store, image_id, life)
) STRICT;
CREATE UNIQUE INDEX images_present ON images (store, image_id) WHERE gone_since IS NULL;
CREATE INDEX images_gone ON images (gone_since) WHERE gone_since IS NOT NULL;

CREATE TABLE containers (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES stores (id) ON DELETE CASCADE,
    container_id TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    -- The lifetime of the image in whose use_count it is counted.
    image INTEGER REFERENCES images (id) ON DELETE SET NULL,
    -- The image id in the container's record, if it differs from that of `image`.
    image_id TEXT,
    -- By the wall clock.
    created INTEGER,
    state TEXT NOT NULL,
    sandbox INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL,
    first_seen INTEGER NOT NULL,
    -- NULL: as the store.
    last_seen INTEGER,
    -- NULL: present.
    gone_since INTEGER,
    UNIQUE (store, container_id)
) STRICT;
CREATE INDEX containers_present ON containers (store) WHERE gone_since IS NULL;
CREATE INDEX containers_gone ON containers (gone_since) WHERE gone_since IS NOT NULL;
CREATE INDEX containers_image ON containers (image);

-- Measured sizes of finished layers (src/history/sizes.rs). Only a cache: lost rows are
-- measured again.
CREATE TABLE layer_sizes (
    kind TEXT NOT NULL,
    -- As in `stores`.
    root TEXT NOT NULL,
    driver TEXT NOT NULL,
    -- Wall clock, by the day: rows of stores that scans no longer find are purged.
    last_used INTEGER NOT NULL,
    -- All layers of the store (src/disk/size_cache.rs).
    sizes BLOB NOT NULL,
    PRIMARY KEY (kind, root, driver)
) STRICT;

-- One row for each run. Older runs that deleted nothing are summed up: one row for each day, command
-- and outcome (src/history/runs.rs).
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    -- scan, gc, sweep, rm.
    command TEXT NOT NULL,
    started INTEGER NOT NULL,
    -- NULL: still running, or killed.
    ended INTEGER,
    -- NULL as above.
    outcome TEXT,
    policy TEXT,
    via TEXT,
    trigger_space INTEGER NOT NULL DEFAULT 0,
    trigger_age INTEGER NOT NULL DEFAULT 0,
    -- JSON array: each filesystem before and after the run (src/model/deletion/outcome.rs, UsageChange).
    filesystems TEXT NOT NULL DEFAULT '[]',
    wanted_bytes INTEGER,
    predicted_bytes INTEGER,
    measured_bytes INTEGER,
    -- JSON array of {id, step, message}.
    errors TEXT NOT NULL DEFAULT '[]',
    -- JSON array of {reason, message}: the events that the kubelet would emit.
    events TEXT NOT NULL DEFAULT '[]',
    -- Rows of `deletions`.
    deletions INTEGER NOT NULL DEFAULT 0,
    -- Nothing worth showing: no error, no deletion needed.
    quiet INTEGER NOT NULL DEFAULT 0,
    -- Number of runs summed up in this row.
    summed INTEGER NOT NULL DEFAULT 1,
    -- It has no end, but a later run has begun, which is possible only after it ended.
    killed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX runs_started ON runs (started);
CREATE INDEX runs_open ON runs (started) WHERE outcome IS NULL;
-- Runs to be summed up; partial, since sums and runs with deletions far outnumber them.
CREATE INDEX runs_single ON runs (quiet, started) WHERE summed = 1 AND deletions = 0;

CREATE TABLE deletions (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- Order within the run, from 0.
    position INTEGER NOT NULL,
    at INTEGER NOT NULL,
    -- image, container, sandbox, log, leak.
    kind TEXT NOT NULL,
    -- The store, as in `stores`; NULL for objects outside of stores (logs).
    store_kind TEXT,
    root TEXT,
    driver TEXT,
    object_id TEXT NOT NULL,
    -- JSON array.
    names TEXT NOT NULL,
    -- space, age, limit, leak, request.
    reason TEXT NOT NULL,
    predicted_bytes INTEGER NOT NULL,
    -- NULL: not measured.
    measured_bytes INTEGER,
    -- Other processes wrote or deleted during the measurement: measured_bytes says more about them than about the
    -- deletion, which counts as freed bytes what was predicted. Otherwise the counters would only drift upwards, because
    -- negative bytes count as 0.
    others_wrote INTEGER NOT NULL DEFAULT 0,
    -- NULL: the filesystem reported invalid numbers.
    usage_after_percent REAL,
    -- NULL: success.
    error TEXT,
    -- Bytes of leaks freed with it, not included in measured_bytes.
    byproduct_bytes INTEGER NOT NULL,
    -- A deletion is recorded before it is requested, so that an interrupted run leaves a record of it.
    -- Its outcome is `unknown` then, until the run itself (`seen`) or a later scan (`confirmed`)
    -- determines it.
    outcome TEXT NOT NULL,
    -- JSON array of id and creation time: layers of an image that is deleted directly; empty once they are known to be deleted.
    layers TEXT NOT NULL,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX deletions_unknown ON deletions (run) WHERE outcome = 'unknown';
CREATE INDEX deletions_layers ON deletions (run) WHERE layers != '[]';

CREATE TABLE filesystems (
    id INTEGER PRIMARY KEY,
    mount TEXT NOT NULL,
    fstype TEXT NOT NULL,
    -- As last seen: it may change with a reboot.
    device TEXT NOT NULL,
    capacity INTEGER NOT NULL,
    first_seen INTEGER NOT NULL,
    last_seen INTEGER NOT NULL
) STRICT;
CREATE INDEX filesystems_mount ON filesystems (mount);

-- Usage over time. Single readings are later rolled up into days that keep the lowest and highest values.
CREATE TABLE usage (
    filesystem INTEGER NOT NULL REFERENCES filesystems (id) ON DELETE CASCADE,
    -- Seconds: 0 for single readings, 86400.
    span INTEGER NOT NULL,
    -- Start of the span, on the day in UTC.
    at INTEGER NOT NULL,
    -- Part of the key: one low and one high cannot describe percentages of two sizes.
    capacity INTEGER NOT NULL,
    readings INTEGER NOT NULL,
    used_low INTEGER NOT NULL,
    used_mean INTEGER NOT NULL,
    used_high INTEGER NOT NULL,
    available_low INTEGER NOT NULL,
    available_mean INTEGER NOT NULL,
    available_high INTEGER NOT NULL,
    inodes INTEGER NOT NULL,
    inodes_free_low INTEGER NOT NULL,
    inodes_free_mean INTEGER NOT NULL,
    inodes_free_high INTEGER NOT NULL,
    PRIMARY KEY (filesystem, span, at, capacity)
) STRICT, WITHOUT ROWID;

-- The keep-list.
CREATE TABLE pins (
    pattern TEXT PRIMARY KEY,
    note TEXT NOT NULL,
    added INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Failed deletions of images, for backing off.
CREATE TABLE attempts (
    kind TEXT NOT NULL,
    -- As in `stores`.
    root TEXT NOT NULL,
    driver TEXT NOT NULL,
    image_id TEXT NOT NULL,
    -- Consecutive failures.
    failures INTEGER NOT NULL,
    -- Last attempt.
    tried INTEGER NOT NULL,
    -- No attempt before this time.
    next_try INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    PRIMARY KEY (kind, root, driver, image_id)
) STRICT, WITHOUT ROWID;

-- Figures of the last scan of each store. The first complete scan of all stores that no longer finds
-- a store deletes its row (src/history/figures.rs).
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

-- Counters that never decrease, even when the rows they come from are purged. The triggers below
-- maintain them: a row counts once, whether it is saved at once, later or repeatedly.
CREATE TABLE counters (
    -- runs, deletions, failures, freed_bytes, predicted_bytes.
    name TEXT NOT NULL,
    -- scan, gc, sweep, rm.
    command TEXT NOT NULL,
    -- For runs the outcome, or `killed`; otherwise the kind of the deleted object, or `byproduct` for
    -- bytes of leaks freed with another object.
    label TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (name, command, label)
) STRICT, WITHOUT ROWID;

-- min(): sums must not overflow into floats, which a STRICT table rejects.
CREATE TRIGGER count_run AFTER UPDATE OF outcome ON runs
WHEN OLD.outcome IS NULL AND NEW.outcome IS NOT NULL AND NEW.killed = 0
BEGIN
    INSERT INTO counters (name, command, label, value) VALUES ('runs', NEW.command, NEW.outcome, 1)
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
END;

CREATE TRIGGER find_killed AFTER INSERT ON runs
WHEN NEW.command <> 'scan'
BEGIN
    UPDATE runs SET killed = 1
    WHERE outcome IS NULL AND killed = 0 AND command <> 'scan' AND started < NEW.started;
END;

CREATE TRIGGER count_killed AFTER UPDATE OF killed ON runs
WHEN OLD.killed = 0 AND NEW.killed = 1
BEGIN
    INSERT INTO counters (name, command, label, value) VALUES ('runs', NEW.command, 'killed', 1)
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
END;

-- Deletions count only when their outcome is known.
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

-- `count_measured`, which the same update triggers, counts its bytes.
CREATE TRIGGER count_certain AFTER UPDATE OF outcome ON deletions
WHEN OLD.outcome = 'unknown' AND NEW.outcome <> 'unknown'
BEGIN
    INSERT INTO counters (name, command, label, value)
    SELECT iif(NEW.error IS NULL, 'deletions', 'failures'), command, NEW.kind, 1
    FROM runs WHERE id = NEW.run
    ON CONFLICT (name, command, label) DO UPDATE SET value = min(value, 1 << 62) + 1;
END;

-- Measured later, or again.
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

-- Kept scans, for `layersweep diff`. Retention: src/history/kept_scans.rs.
CREATE TABLE kept_scans (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- As in `runs`.
    run_id TEXT NOT NULL UNIQUE,
    at INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    -- Allocated bytes of all stores.
    bytes INTEGER NOT NULL,
    -- JSON: the stores and filesystems in it.
    outline TEXT NOT NULL,
    -- JSON, deflated.
    summary BLOB NOT NULL
) STRICT;
