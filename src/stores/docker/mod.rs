//! Docker's own store (graph driver `overlay2`), read from its files alone. Read-only: only Docker deletes in it.
//!
//! A layer of an image is a directory of `overlay2` and a record in `image/overlay2/layerdb`, which maps the chain id of
//! the layer to the name of the directory. A container has two directories, its writable layer and below that
//! `<id>-init`, which `layerdb/mounts` names. BuildKit names the directories of its cache in `buildkit/snapshots.db`;
//! when it exports an image, the same directory gets a record in `layerdb` as well. A directory that none of these three
//! names is an orphan: Docker has forgotten it, and never deletes it.
//!
//! [`read`] reads the records, [`units`] assigns every entry to a unit, [`fill`] builds the inventory, and [`leaks`]
//! adds what nothing names. Versions: moby 17.06 to 29, `daemon/graphdriver/overlay2`, `daemon/internal/layer`,
//! `daemon/internal/builder-next/adapters/snapshot`.

mod fill;
mod leaks;
pub mod places;
mod read;
mod records;
pub(super) mod store;
mod units;
