-- What scans saw, for `layersweep diff`. Not copies: an entry stands as long as nothing of it
-- changes, so that a scan that finds all as it was costs one row. Times are microseconds of record
-- time, as in 0001_images.sql. What is kept for how long: src/records/pictures.rs.

CREATE TABLE kept_scans (
    -- Ascending; the newest is that of the entries that have no end.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- As in `runs`.
    run_id TEXT NOT NULL UNIQUE,
    at INTEGER NOT NULL,
    complete INTEGER NOT NULL,
    -- Allocated bytes of all stores.
    bytes INTEGER NOT NULL
) STRICT;

-- Stores; one without a name for what lies in none.
CREATE TABLE picture_places (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    root TEXT NOT NULL,
    driver TEXT NOT NULL,
    UNIQUE (kind, root, driver)
) STRICT;

CREATE TABLE picture_entries (
    place INTEGER NOT NULL REFERENCES picture_places (id),
    -- filesystem, share, image, layer, container, leak (src/inventory/picture.rs).
    what TEXT NOT NULL,
    -- Its id: 32 bytes where that is 64 digits, else text.
    object ANY NOT NULL,
    -- The scan that saw it first as it is here.
    since INTEGER NOT NULL,
    -- The last scan that saw it so; NULL: the newest did.
    until INTEGER,
    bytes INTEGER NOT NULL,
    extra INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (place, what, object, since)
) STRICT, WITHOUT ROWID;
CREATE INDEX picture_entries_ended ON picture_entries (until) WHERE until IS NOT NULL;
