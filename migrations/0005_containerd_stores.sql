-- One row for each containerd root. Until now the name of a snapshotter was part of what named
-- one: of the first that had a snapshot. Where that changed, the store began anew, and when its
-- images had been used was forgotten.
--
-- Of several rows the one last seen stays. What it says of an image stays too, unless another row
-- knows something that makes the image younger; what only others have is moved to it.

CREATE TABLE merged (
    old INTEGER PRIMARY KEY,
    kept INTEGER NOT NULL
) STRICT;
INSERT INTO merged (old, kept)
SELECT id, last FROM (
    SELECT id, first_value(id) OVER (PARTITION BY root ORDER BY last_seen DESC, id DESC) AS last
    FROM stores WHERE kind = 'containerd'
) WHERE id <> last;

-- What the old store said for its rows, they say for themselves.
UPDATE images SET last_seen = (SELECT stores.last_seen FROM stores WHERE stores.id = images.store)
WHERE last_seen IS NULL AND store IN (SELECT old FROM merged);
UPDATE containers SET last_seen = (SELECT stores.last_seen FROM stores WHERE stores.id = containers.store)
WHERE last_seen IS NULL AND store IN (SELECT old FROM merged);

-- Images that the kept store has never had: all their lives, from the old store last seen.
UPDATE images SET store = kept
FROM (
    SELECT kept, old, image_id, handler, max(stores.last_seen)
    FROM images AS one JOIN merged ON old = one.store JOIN stores ON stores.id = old
    WHERE NOT EXISTS (
        SELECT 1 FROM images AS has
        WHERE has.store = kept AND has.image_id = one.image_id AND has.handler = one.handler)
    GROUP BY kept, image_id, handler
) AS moved
WHERE images.store = old AND images.image_id = moved.image_id AND images.handler = moved.handler;

-- Images that were gone from the kept store and then seen again in an old one.
UPDATE images SET store = kept, life = newest + 1
FROM (
    SELECT one.id AS present, kept, max(one.last_seen), (
        SELECT max(life) FROM images AS has
        WHERE has.store = kept AND has.image_id = one.image_id AND has.handler = one.handler) AS newest
    FROM images AS one JOIN merged ON old = one.store
    WHERE gone_since IS NULL AND NOT EXISTS (
        SELECT 1 FROM images AS has
        WHERE has.store = kept AND has.image_id = one.image_id AND has.handler = one.handler
            AND coalesce(has.gone_since >= one.last_seen, 1))
    GROUP BY kept, one.image_id, one.handler
) AS moved
WHERE images.id = present;

-- Images that both have: first detected when the later of both says, used when either says.
UPDATE images SET first_detected = other.first_detected, evidence = other.evidence
FROM (
    SELECT kept, image_id, handler, max(first_detected) AS first_detected, evidence
    FROM images JOIN merged ON old = store WHERE gone_since IS NULL GROUP BY kept, image_id, handler
) AS other
WHERE images.store = kept AND images.image_id = other.image_id AND images.handler = other.handler
    AND images.gone_since IS NULL AND images.first_detected < other.first_detected;
UPDATE images SET
    last_used = nullif(max(coalesce(images.last_used, 0), coalesce(used, 0)), 0),
    proven_since = nullif(max(coalesce(images.proven_since, 0), coalesce(proven, 0)), 0),
    use_count = max(images.use_count, uses)
FROM (
    SELECT kept, image_id, handler, max(iif(in_use, last_seen, last_used)) AS used,
        max(proven_since) AS proven, max(use_count) AS uses
    FROM images JOIN merged ON old = store WHERE gone_since IS NULL GROUP BY kept, image_id, handler
) AS other
WHERE images.store = kept AND images.image_id = other.image_id AND images.handler = other.handler
    AND images.gone_since IS NULL;

-- Containers that only old stores have, as uses of the lives that stay.
UPDATE containers SET image = (
    SELECT stays.id FROM images AS goes JOIN merged ON old = goes.store
    JOIN images AS stays ON stays.store = kept AND stays.image_id = goes.image_id
        AND stays.handler = goes.handler AND stays.gone_since IS NULL
    WHERE goes.id = containers.image AND goes.gone_since IS NULL)
WHERE image IN (SELECT images.id FROM images JOIN merged ON old = images.store);
UPDATE containers SET store = kept
FROM (
    SELECT one.id AS only, kept, max(one.last_seen)
    FROM containers AS one JOIN merged ON old = one.store
    WHERE NOT EXISTS (
        SELECT 1 FROM containers AS has WHERE has.store = kept AND has.container_id = one.container_id)
    GROUP BY kept, one.container_id
) AS moved
WHERE containers.id = only;

UPDATE stores SET first_seen = all_first, last_complete = all_complete
FROM (
    SELECT kept, min(stores.first_seen) AS all_first, max(stores.last_complete) AS all_complete
    FROM merged JOIN stores ON stores.id IN (old, kept) GROUP BY kept
) AS other
WHERE stores.id = kept;
DELETE FROM containers WHERE store IN (SELECT old FROM merged);
DELETE FROM images WHERE store IN (SELECT old FROM merged);
DELETE FROM stores WHERE id IN (SELECT old FROM merged);
DROP TABLE merged;
UPDATE stores SET driver = '' WHERE kind = 'containerd';

-- Of several the last.
DELETE FROM attempts WHERE kind = 'containerd' AND EXISTS (
    SELECT 1 FROM attempts AS later
    WHERE later.kind = attempts.kind AND later.root = attempts.root AND later.image_id = attempts.image_id
        AND (later.tried, later.next_try, later.driver) > (attempts.tried, attempts.next_try, attempts.driver));
UPDATE attempts SET driver = '' WHERE kind = 'containerd';

-- Only a cache.
DELETE FROM size_stores WHERE kind = 'containerd' AND EXISTS (
    SELECT 1 FROM size_stores AS later
    WHERE later.kind = size_stores.kind AND later.root = size_stores.root
        AND (later.last_used, later.id) > (size_stores.last_used, size_stores.id));
DELETE FROM layer_sizes WHERE store NOT IN (SELECT id FROM size_stores);
UPDATE size_stores SET driver = '' WHERE kind = 'containerd';
