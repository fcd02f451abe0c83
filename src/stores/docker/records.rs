//! Parses Docker's records of images and layers, and BuildKit's of its snapshots. Pure.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::stores::bolt::{BoltDatabase, Bucket, BucketEntry};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageRecord {
    /// Hex digest of its configuration.
    pub(super) id: String,
    pub(super) names: Vec<String>,
    /// Names with the digest of a manifest: `repository@sha256:…`.
    pub(super) digested: Vec<String>,
    pub(super) created: Option<Timestamp>,
    /// Chain ids of its layers, as hex, the top one last.
    pub(super) chains: Vec<String>,
    pub(super) bytes: Vec<u8>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Configuration {
    created: Option<String>,
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RootFs {
    diff_ids: Option<Vec<String>>,
}

impl ImageRecord {
    /// Parses the configuration of an image.
    ///
    /// # Errors
    /// If it is not JSON of this structure.
    pub(super) fn parse(id: &str, bytes: Vec<u8>) -> serde_json::Result<Self> {
        let configuration: Configuration = serde_json::from_slice(&bytes)?;
        let diff_ids = configuration.rootfs.diff_ids.unwrap_or_default();
        let chains = diff_ids.iter().scan(None, |below: &mut Option<String>, diff_id| {
            let chain = chain_id(below.as_deref(), diff_id);
            *below = Some(chain.clone());
            Some(hex(&chain).to_owned())
        });
        Ok(Self {
            id: id.to_owned(),
            created: configuration.created.and_then(|created| created.parse().ok()),
            chains: chains.collect(),
            bytes,
            ..Self::default()
        })
    }
}

/// Returns the chain id of a layer (OCI image specification, `config.md`).
fn chain_id(parent: Option<&str>, diff_id: &str) -> String {
    let Some(parent) = parent else { return diff_id.to_owned() };
    let digest = Sha256::digest(format!("{parent} {diff_id}").as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Returns true for a name that Docker gives to a directory of a layer.
pub(super) fn is_directory_name(name: &str) -> bool {
    name.len() >= 20 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns the digits of a digest.
pub(super) fn hex(digest: &str) -> &str {
    digest.trim().rsplit(':').next().unwrap_or_default()
}

#[derive(Deserialize)]
struct Repositories {
    #[serde(rename = "Repositories", default)]
    repositories: BTreeMap<String, BTreeMap<String, String>>,
}

/// Returns the names of images by the hex digest of their configuration.
///
/// # Errors
/// If `repositories.json` is not JSON of this structure.
pub(super) fn names(bytes: &[u8]) -> serde_json::Result<HashMap<String, Vec<String>>> {
    let parsed: Repositories = serde_json::from_slice(bytes)?;
    let mut names: HashMap<String, Vec<String>> = HashMap::new();
    for (name, id) in parsed.repositories.into_values().flatten() {
        names.entry(hex(&id).to_owned()).or_default().push(name);
    }
    Ok(names)
}

/// A directory of `overlay2` that a record names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DriverLayer {
    /// Name of the directory.
    pub(super) id: String,
    /// Name of its parent's directory.
    pub(super) parent: Option<String>,
    /// Chain id as hex, if it is a layer of an image.
    pub(super) chain: Option<String>,
    pub(super) diff_id: Option<String>,
    /// Length of the uncompressed tar in bytes.
    pub(super) listed_bytes: Option<u64>,
    /// It is the writable layer of a container.
    pub(super) is_writable: bool,
}

/// Record of a layer in `layerdb/sha256`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChainRecord {
    /// Name of its directory.
    pub(super) cache_id: String,
    /// Chain id of its parent, as hex.
    pub(super) parent: Option<String>,
    pub(super) diff_id: Option<String>,
    pub(super) size: Option<u64>,
}

impl ChainRecord {
    /// Returns true if the record is whole, and that of the layer with this chain id.
    pub(super) fn is_of(&self, chain: &str) -> bool {
        let parent = self.parent.as_ref().map(|parent| format!("sha256:{parent}"));
        let of = self.diff_id.as_ref().map(|diff_id| chain_id(parent.as_deref(), diff_id));
        is_directory_name(&self.cache_id) && of.is_some_and(|of| hex(&of) == chain)
    }
}

/// Record of a container's layers in `layerdb/mounts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountRecord {
    pub(super) mount_id: String,
    pub(super) init_id: Option<String>,
    /// Chain id of the top layer of its image, as hex.
    pub(super) parent: Option<String>,
}

/// A snapshot of BuildKit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheSnapshot {
    pub(super) key: String,
    /// Key of its parent.
    pub(super) parent: Option<String>,
    /// Snapshot that it was committed from: its directory has the name of that.
    pub(super) committed: Option<String>,
    /// Chain id as hex, if it is a layer of an image.
    pub(super) chain: Option<String>,
}

impl CacheSnapshot {
    /// Returns the name of its directory. The key of a layer that was pulled is its chain id.
    pub(super) fn directory(&self) -> Option<&str> {
        let by_key = Some(self.key.as_str()).filter(|key| !key.contains(':'));
        self.committed.as_deref().or(by_key)
    }

    /// Returns the chain id of its layer as hex, if it is one of an image.
    pub(super) fn of_image(&self) -> Option<&str> {
        let by_key = self.key.contains(':').then(|| hex(&self.key));
        self.chain.as_deref().or(by_key)
    }
}

/// Reads all snapshots of BuildKit's `snapshots.db`. An empty bucket is a layer of an image.
pub(super) fn snapshots(database: &BoltDatabase) -> Vec<CacheSnapshot> {
    let buckets = database.root().buckets();
    buckets
        .map(|(key, bucket)| CacheSnapshot {
            key: String::from_utf8_lossy(key).into_owned(),
            parent: text(&bucket, "parent"),
            committed: text(&bucket, "committed"),
            chain: text(&bucket, "chainid").map(|chain| hex(&chain).to_owned()),
        })
        .collect()
}

fn text(bucket: &Bucket<'_>, key: &str) -> Option<String> {
    let value = bucket.value(key).filter(|value| !value.is_empty())?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Returns the number of cache records in BuildKit's `metadata_v2.db`, as `docker system df` counts them: a record that is
/// the same as another one that can still change is not counted.
pub(super) fn cache_records(database: &BoltDatabase) -> usize {
    let all = database.root().bucket("_main");
    let records = all.iter().flat_map(Bucket::entries);
    let counted = records.filter(|(_, entry)| match entry {
        BucketEntry::Bucket(record) => record.value("cache.equalMutable").is_none_or(<[u8]>::is_empty),
        BucketEntry::Value(_) => false,
    });
    counted.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_image_are_its_chain_ids() {
        // Of the fixture: the second layer of registry.local/small/i0.
        let base = "sha256:f3c0c79c9303f30b606de3239e4f833ac53fcac2333d97da97b59e394f3ddef3";
        let top = "sha256:607d1f3786bc8c556a0ceac72d7772b886d3be95c782d697f482e25dcd6f1e7b";
        let chain = "e62a0647fafe5185307bfa2114765269b74dd8473596478a890e696dbb8569e4";
        for (layers, expected) in
            [(vec![], vec![]), (vec![base], vec![hex(base)]), (vec![base, top], vec![hex(base), chain])]
        {
            let json = serde_json::json!({"rootfs": {"diff_ids": layers}, "created": "2023-11-14T00:00:00Z"});
            let record = ImageRecord::parse("a", json.to_string().into_bytes()).unwrap();
            assert_eq!(record.chains, expected);
            assert!(record.created.is_some());
        }
        assert!(ImageRecord::parse("a", b"1".to_vec()).is_err());
        let record = ChainRecord {
            cache_id: "a".repeat(25),
            parent: Some(hex(base).into()),
            diff_id: Some(top.into()),
            size: None,
        };
        assert!(record.is_of(chain) && !record.is_of(hex(base)));
        assert!(!ChainRecord { parent: None, ..record.clone() }.is_of(chain));
        assert!(!ChainRecord { cache_id: "../../etc".into(), ..record }.is_of(chain));
    }

    #[test]
    fn names_are_by_configuration() {
        let json = r#"{"Repositories": {"a": {"a:1": "sha256:00", "a@sha256:ff": "sha256:00"}}}"#;
        let names = names(json.as_bytes()).unwrap();
        assert_eq!(names["00"], ["a:1", "a@sha256:ff"]);
        assert!(super::names(b"{}").unwrap().is_empty() && super::names(b"").is_err());
    }

    #[test]
    fn directory_of_committed_snapshot_is_another() {
        let snapshot = CacheSnapshot { key: "a".into(), ..CacheSnapshot::default() };
        assert_eq!((snapshot.directory(), snapshot.of_image()), (Some("a"), None));
        let committed =
            CacheSnapshot { committed: Some("b".into()), chain: Some("0a".into()), ..snapshot.clone() };
        assert_eq!((committed.directory(), committed.of_image()), (Some("b"), Some("0a")));
        let pulled = CacheSnapshot { key: "sha256:0b".into(), ..snapshot };
        assert_eq!((pulled.directory(), pulled.of_image()), (None, Some("0b")));
    }
}
