-- Measured sizes of finished layers (src/records/sizes.rs). Only a cache: what is lost is
-- measured again, so nothing else refers to these tables and they refer to nothing else.

CREATE TABLE size_stores (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    -- A path: any bytes.
    root BLOB NOT NULL,
    driver TEXT NOT NULL,
    -- Wall clock, by the day: a store that no survey meets any more is forgotten.
    last_used INTEGER NOT NULL,
    UNIQUE (kind, root, driver)
) STRICT;

CREATE TABLE layer_sizes (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL REFERENCES size_stores (id),
    tag TEXT NOT NULL,
    unit TEXT NOT NULL,
    -- Fingerprints of the layer's record and of what its directories show.
    record BLOB NOT NULL,
    evidence BLOB NOT NULL,
    -- Which files were looked at for shared extents: 0 none, 1 big ones, 2 all.
    extents INTEGER NOT NULL,
    inode_chunks INTEGER NOT NULL,
    -- Wall clock, which file times go by too; not record time.
    measured INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    apparent_bytes INTEGER NOT NULL,
    inodes INTEGER NOT NULL,
    metadata_bytes INTEGER NOT NULL,
    inline_bytes INTEGER NOT NULL,
    -- Inodes on XFS (src/usage/inode_chunks/of_unit.rs).
    held BLOB NOT NULL,
    -- What it shares with other finished layers (src/usage/kept/groups.rs).
    groups BLOB NOT NULL,
    -- Fingerprint of the row: a row that does not fit it counts as absent.
    seal BLOB NOT NULL,
    UNIQUE (store, tag, unit)
) STRICT;

-- Who shared inodes or extents with somebody outside, when this set of stores was last
-- measured in one walk.
CREATE TABLE outside_shares (
    scope BLOB PRIMARY KEY,
    -- Fingerprints, 16 bytes each.
    groups BLOB NOT NULL,
    last_used INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
