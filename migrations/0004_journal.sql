-- What a run of `gc` leaves besides its deletions. Times are microseconds of record time, as in
-- 0001_images.sql.

-- Images that would not go. Named like the stores of cached sizes and not by a row of `stores`:
-- a row there says that a scan has seen the store, and would make scans that still wait to be
-- saved look late.
CREATE TABLE attempts (
    kind TEXT NOT NULL,
    -- As in `stores`.
    root TEXT NOT NULL,
    driver TEXT NOT NULL,
    image_id TEXT NOT NULL,
    -- In a row.
    failures INTEGER NOT NULL,
    -- When it was last tried.
    tried INTEGER NOT NULL,
    -- Not before this again.
    next_try INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    PRIMARY KEY (kind, root, driver, image_id)
) STRICT, WITHOUT ROWID;

-- JSON array of {reason, message}: what the kubelet would tell its node.
ALTER TABLE runs ADD COLUMN events TEXT NOT NULL DEFAULT '[]';
-- What the kubelet would believe to have freed; NULL: another policy.
ALTER TABLE runs ADD COLUMN believed_bytes INTEGER;

-- Bytes of leaks that went along, which are no part of measured_bytes.
ALTER TABLE deletions ADD COLUMN byproduct_bytes INTEGER NOT NULL DEFAULT 0;
