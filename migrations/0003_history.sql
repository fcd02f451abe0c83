-- What was done and how full the filesystems were. Times are microseconds of record time, as
-- in 0001_images.sql.

-- One row a run. Runs that deleted nothing are summed up after a while: one row a day, command
-- and outcome (src/records/runs.rs).
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    -- scan, gc, sweep, rm.
    command TEXT NOT NULL,
    started INTEGER NOT NULL,
    -- NULL: still running, or ended without a word.
    ended INTEGER,
    -- NULL as above.
    outcome TEXT,
    dry_run INTEGER NOT NULL DEFAULT 0,
    policy TEXT,
    via TEXT,
    trigger_space INTEGER NOT NULL DEFAULT 0,
    trigger_age INTEGER NOT NULL DEFAULT 0,
    -- Mount of the filesystem that the percents are of.
    mount TEXT,
    usage_before_percent REAL,
    usage_after_percent REAL,
    wanted_bytes INTEGER,
    predicted_bytes INTEGER,
    measured_bytes INTEGER,
    -- JSON array of {id, step, message}.
    errors TEXT NOT NULL DEFAULT '[]',
    -- Rows of `deletions`.
    deletions INTEGER NOT NULL DEFAULT 0,
    -- Nothing happened that anybody would look for: no error, nothing to do.
    quiet INTEGER NOT NULL DEFAULT 0,
    -- How many runs the row stands for.
    summed INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX runs_started ON runs (started);
-- Those that wait to be summed up; sums and runs with deletions are far more in the end.
CREATE INDEX runs_single ON runs (quiet, started) WHERE summed = 1 AND deletions = 0;

CREATE TABLE deletions (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    -- Order within the run, from 0.
    position INTEGER NOT NULL,
    at INTEGER NOT NULL,
    -- image, container, sandbox, log, leak.
    kind TEXT NOT NULL,
    -- Root of the store; empty for what lies in none (logs).
    store TEXT NOT NULL,
    object_id TEXT NOT NULL,
    -- JSON array.
    names TEXT NOT NULL,
    -- space, age, limit, leak, request.
    reason TEXT NOT NULL,
    predicted_bytes INTEGER NOT NULL,
    -- NULL: not measured, or ended before it was.
    measured_bytes INTEGER,
    -- NULL: the filesystem's numbers contradicted each other.
    usage_after_percent REAL,
    -- NULL: it went well.
    error TEXT,
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;

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

-- Points of the series. Single readings are rolled up into hours and days later, lows and
-- highs kept.
CREATE TABLE usage (
    filesystem INTEGER NOT NULL REFERENCES filesystems (id) ON DELETE CASCADE,
    -- Seconds: 0 for single readings, 3600, 86400.
    span INTEGER NOT NULL,
    -- Begin of the span, on the hour or day of UTC.
    at INTEGER NOT NULL,
    -- Part of the key: percents of two sizes cannot be told from one low and one high.
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

-- What the operator keeps.
CREATE TABLE pins (
    pattern TEXT PRIMARY KEY,
    note TEXT NOT NULL,
    added INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
