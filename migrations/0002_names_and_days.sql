-- Manifest digests, and names that an image had earlier in this life: `history NAME` finds an image by them.
-- Both are JSON arrays.
ALTER TABLE images ADD COLUMN digests TEXT NOT NULL DEFAULT '[]';
ALTER TABLE images ADD COLUMN former_names TEXT NOT NULL DEFAULT '[]';

-- Readings are rolled up into days only.
DELETE FROM usage WHERE span = 3600;
