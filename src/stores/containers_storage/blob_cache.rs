//! Reader for the blob-info cache, in which the tools note the registries of the blobs that they pull or push.
//!
//! `/var/lib/containers/cache/blob-info-cache-v1.boltdb`, or `….sqlite` from container-libs 2024 on; a user's cache is
//! beside the user's graphroot (container-libs, `image/pkg/blobinfocache`). A tool that pulls in a container, with
//! only the graphroot mounted, notes nothing here.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use super::engine::{TableError, opened};
use super::places::StorePlaces;
use crate::stores::bolt::{BoltDatabase, Bucket, BucketEntry, Limits, go_time};
use crate::sys::allowance;
use crate::sys::quiet::Within;
use crate::sys::sqlite;

/// Directory of root's cache.
pub(in crate::stores) const OF_ROOT: &str = "/var/lib/containers/cache";

/// Directory of a user's cache, beside the graphroot.
pub(in crate::stores) const BESIDE_GRAPHROOT: &str = "cache";

const BOLT: &str = "blob-info-cache-v1.boltdb";
const SQLITE: &str = "blob-info-cache-v1.sqlite";

/// Maximum size of a cache. That of a node that pulled 100,000 blobs has some 30 MiB.
const MOST_BYTES: u64 = 128 << 20;

/// Transport of registries.
const REGISTRY: &str = "docker";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlobLocation {
    /// Registry and repository: `quay.io/team/app`.
    pub(super) repository: String,
    /// Time at which the blob was last pulled from there, or pushed there.
    pub(super) time: Timestamp,
}

/// Blobs that registries are known to have, by digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlobLocations {
    pub(super) by_digest: HashMap<String, Vec<BlobLocation>>,
    /// There is no cache: no tool has pulled anything here.
    pub(super) is_absent: bool,
    pub(super) unreadable: Option<String>,
}

impl BlobLocations {
    pub(super) fn of(&self, digest: &str) -> &[BlobLocation] {
        self.by_digest.get(digest).map_or(&[], Vec::as_slice)
    }

    /// Returns the time since which the cache has been kept; `None` if it is empty.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.by_digest.values().flatten().map(|location| location.time).min()
    }

    pub(super) fn add(&mut self, digest: String, location: BlobLocation) {
        self.by_digest.entry(digest).or_default().push(location);
    }
}

pub(super) fn read(places: &StorePlaces) -> BlobLocations {
    let within = places.within();
    let mut found = BlobLocations { is_absent: true, ..BlobLocations::default() };
    for directory in &places.caches {
        let (bolt, tables) = (directory.join(BOLT), directory.join(SQLITE));
        found.is_absent &= [&bolt, &tables].into_iter().all(|path| within.facts(path).is_err());
        if let Err(error) = read_bolt(&within, &bolt, places, &mut found) {
            found.unreadable = Some(format!("{}: {error}", bolt.display()));
        }
        if let Err(error) = read_sqlite(&within, &tables, places, &mut found) {
            found.unreadable = Some(format!("{}: {error}", tables.display()));
        }
    }
    found
}

/// Reads `knownLocations/<transport>/<registry>/<digest>/<repository>` (`blobinfocache/boltdb/boltdb.go`).
fn read_bolt(
    within: &Within,
    path: &Path,
    places: &StorePlaces,
    found: &mut BlobLocations,
) -> Result<(), String> {
    let limits = Limits { bytes: MOST_BYTES, attempts: 10, patience: Duration::from_millis(300) };
    let file = match within.open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|error| error.to_string())?,
    };
    within.charge(&file).map_err(|error| error.to_string())?;
    let database = BoltDatabase::read(&file, &limits).map_err(|error| error.to_string())?;
    let locations = database.root().bucket("knownLocations").and_then(|bucket| bucket.bucket(REGISTRY));
    for (_, registry) in locations.iter().flat_map(Bucket::buckets) {
        for (digest, repositories) in registry.buckets() {
            for (repository, time) in repositories.entries() {
                places.allowance.charge(allowance::TEXT).map_err(|error| error.to_string())?;
                let BucketEntry::Value(time) = time else { continue };
                let time = go_time(time).flatten();
                let digest = String::from_utf8_lossy(digest).into_owned();
                let repository = String::from_utf8_lossy(repository).into_owned();
                found.add(digest, BlobLocation { repository, time: time.unwrap_or_default() });
            }
        }
    }
    Ok(())
}

/// Reads the table `KnownLocations` (`blobinfocache/sqlite/sqlite.go`).
fn read_sqlite(
    within: &Within,
    path: &Path,
    places: &StorePlaces,
    found: &mut BlobLocations,
) -> Result<(), TableError> {
    let Some(bytes) = sqlite::copy(within, path, MOST_BYTES)? else { return Ok(()) };
    let connection = opened(bytes, &["KnownLocations"])?;
    let sql = "SELECT digest, location, time FROM KnownLocations WHERE transport = ?1";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([REGISTRY])?;
    while let Some(row) = rows.next()? {
        places.allowance.charge(allowance::TEXT)?;
        let time =
            row.get::<_, String>(2).unwrap_or_default().replacen(' ', "T", 1).parse().unwrap_or_default();
        found.add(row.get(0)?, BlobLocation { repository: row.get(1)?, time });
    }
    Ok(())
}
