-- What was seen, and since when. Times are microseconds since 1970-01-01T00:00:00Z in
-- *record time* (src/records/clock.rs): wall-clock time on a node whose clock is right,
-- and never further ahead than what is proven to have passed.

-- One row: the last reading of the clocks (src/records/clock.rs).
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    record_time INTEGER NOT NULL,
    wall INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    since_boot INTEGER NOT NULL,
    settled INTEGER NOT NULL
) STRICT;

CREATE TABLE stores (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    root TEXT NOT NULL,
    driver TEXT NOT NULL,
    first_seen INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    UNIQUE (kind, root, driver)
) STRICT;

-- One row for each life of an image: from its first sight to the first complete scan that
-- no longer finds it.
CREATE TABLE images (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES stores (id),
    image_id TEXT NOT NULL,
    -- Runtime handler where CRI gives one.
    handler TEXT NOT NULL DEFAULT '',
    life INTEGER NOT NULL,
    first_detected INTEGER NOT NULL,
    -- JSON: what first_detected was taken from.
    evidence TEXT NOT NULL,
    last_seen INTEGER NOT NULL,
    -- NULL: never seen in use.
    last_used INTEGER,
    -- Containers seen that were made from it, each once.
    use_count INTEGER NOT NULL DEFAULT 0,
    -- NULL: it is there.
    gone_since INTEGER,
    -- JSON array.
    names TEXT NOT NULL,
    total_bytes INTEGER NOT NULL,
    exclusive_bytes INTEGER NOT NULL,
    frees_bytes INTEGER NOT NULL,
    listed_bytes INTEGER,
    pinned INTEGER NOT NULL,
    UNIQUE (store, image_id, handler, life)
) STRICT;
CREATE UNIQUE INDEX images_present ON images (store, image_id, handler) WHERE gone_since IS NULL;

CREATE TABLE containers (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES stores (id),
    container_id TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    image_id TEXT,
    created INTEGER,
    state TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    first_seen INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    gone_since INTEGER,
    UNIQUE (store, container_id)
) STRICT;

-- What once waited in the spool and was saved since (src/records/save.rs), so that none is
-- saved twice when we are killed before its file is gone.
CREATE TABLE caught_up (
    name TEXT PRIMARY KEY
) STRICT;
