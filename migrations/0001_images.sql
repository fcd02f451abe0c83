-- What was seen, and since when. Times are microseconds since 1970-01-01T00:00:00Z in
-- *record time* (src/records/clock.rs): wall-clock time on a node whose clock is right,
-- and never further ahead than what is proven to have passed. A scan that finds all as it
-- was writes one row of `clock` and one of `stores`: what those say holds for every row
-- that a column below leaves NULL.

-- One row: the last reading of the clocks (src/records/clock.rs).
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    record_time INTEGER NOT NULL,
    wall INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    since_boot INTEGER NOT NULL,
    -- NULL: settled. Else what was recorded after this time was recorded in doubt.
    unsettled_after INTEGER
) STRICT;

CREATE TABLE stores (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    -- Bytes that are not UTF-8, and '%', as %FF (src/records/paths.rs).
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

-- One row for each life of an image: from its first sight to the first complete scan that
-- no longer finds it.
CREATE TABLE images (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES stores (id) ON DELETE CASCADE,
    image_id TEXT NOT NULL,
    -- Runtime handler where CRI gives one.
    handler TEXT NOT NULL DEFAULT '',
    life INTEGER NOT NULL,
    -- Never changes.
    first_detected INTEGER NOT NULL,
    -- JSON: what first_detected was taken from (src/records/ages.rs, FirstSight).
    evidence TEXT NOT NULL,
    -- By the wall clock, when what every pull makes anew was made: the metadata directory
    -- or containerd's record. Another one later means deleted and pulled again.
    made INTEGER,
    -- NULL: as the store.
    last_seen INTEGER,
    -- A container was on it when it was last seen.
    in_use INTEGER NOT NULL DEFAULT 0,
    -- NULL: never seen in use before. While in_use, last_seen says more.
    last_used INTEGER,
    -- NULL: its age is counted from first_detected or last_used. Else from here, if that is
    -- later: a scan saw it unused again, and its last container may have been there until then;
    -- or record time has leapt, and the image has not grown older by it.
    proven_since INTEGER,
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
CREATE INDEX images_gone ON images (gone_since) WHERE gone_since IS NOT NULL;

CREATE TABLE containers (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES stores (id) ON DELETE CASCADE,
    container_id TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    -- The life of the image that it was counted as a use of.
    image INTEGER REFERENCES images (id) ON DELETE SET NULL,
    -- The image as the container's record has it, where `image` does not say the same.
    image_id TEXT,
    -- By the wall clock.
    created INTEGER,
    state TEXT NOT NULL,
    sandbox INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL,
    first_seen INTEGER NOT NULL,
    -- NULL: as the store.
    last_seen INTEGER,
    -- NULL: it is there.
    gone_since INTEGER,
    UNIQUE (store, container_id)
) STRICT;
CREATE INDEX containers_present ON containers (store) WHERE gone_since IS NULL;
CREATE INDEX containers_gone ON containers (gone_since) WHERE gone_since IS NOT NULL;
CREATE INDEX containers_image ON containers (image);

-- What once waited in the spool and was saved since (src/records/save.rs), so that none is
-- saved twice when we are killed before its file is gone.
CREATE TABLE caught_up (
    name TEXT PRIMARY KEY
) STRICT;
