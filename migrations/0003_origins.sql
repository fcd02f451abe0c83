-- JSON object: the way in which the image came to this node, and its registry (src/model/repull.rs, KnownOrigin).
-- NULL: no evidence, or not seen since this column exists.
ALTER TABLE images ADD COLUMN origin TEXT;
