//! What an image's blobs say: index, manifest, configuration. Pure; the caller brings the
//! bytes.

use serde_json::Value;

/// One entry of an index or manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Digest of the blob.
    pub digest: String,
    /// Its length in bytes, as written there.
    pub size: Option<u64>,
    /// `os/architecture`, of an index's entry that has a platform.
    pub platform: Option<String>,
}

/// A blob that leads to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// An index or manifest list.
    Index(Vec<Descriptor>),
    /// A manifest.
    Manifest {
        /// The configuration.
        config: Descriptor,
        /// The layers, the base first.
        layers: Vec<Descriptor>,
    },
}

/// Parses an index or manifest; `None` for anything else.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Document> {
    let json: Value = serde_json::from_slice(bytes).ok()?;
    if let Some(manifests) = json.get("manifests").and_then(Value::as_array) {
        return Some(Document::Index(manifests.iter().filter_map(descriptor).collect()));
    }
    let config = descriptor(json.get("config")?)?;
    let layers = json.get("layers").and_then(Value::as_array)?;
    Some(Document::Manifest { config, layers: layers.iter().filter_map(descriptor).collect() })
}

fn descriptor(json: &Value) -> Option<Descriptor> {
    let of = |path: &str| json.pointer(path).and_then(Value::as_str);
    Some(Descriptor {
        digest: of("/digest")?.to_owned(),
        size: json.get("size").and_then(Value::as_u64),
        platform: of("/platform/os").zip(of("/platform/architecture")).map(|(os, cpu)| format!("{os}/{cpu}")),
    })
}

/// What a name stands for on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The target is an index.
    pub index: bool,
    /// Digest of this node's manifest.
    pub manifest: Option<String>,
    /// Its configuration: what CRI calls the image's id.
    pub config: Option<Descriptor>,
    /// Its layers, the base first.
    pub layers: Vec<Descriptor>,
    /// Sum of the lengths that CRI counts as the image's size: what the manifest lists,
    /// the manifest, and the index if there is one.
    pub listed_bytes: Option<u64>,
    /// Blobs without which CRI cannot read the image: target, manifest, configuration.
    pub missing: Vec<String>,
}

/// Follows `target` to the manifest of this node's platform.
///
/// `document` gives a blob's content if the file is there and parses, `exists` says whether
/// a blob's file is there, `unpacked` whether a configuration's layers were unpacked here.
/// Of several platforms those unpacked come first, then `platform`, then the first one.
pub fn resolve(
    target: (&str, Option<u64>),
    platform: &str,
    document: &dyn Fn(&str) -> Option<Document>,
    exists: &dyn Fn(&str) -> bool,
    unpacked: &dyn Fn(&str) -> bool,
) -> Resolved {
    let (target, target_size) = target;
    let (index, manifest, manifest_size, sum) = match document(target) {
        None => return Resolved { missing: vec![target.to_owned()], ..Resolved::default() },
        Some(Document::Manifest { config, layers }) => {
            (false, (target.to_owned(), config, layers), target_size, Some(0))
        }
        Some(Document::Index(children)) => {
            let best = children
                .iter()
                .filter_map(|child| match document(&child.digest)? {
                    Document::Manifest { config, layers } => Some((child, config, layers)),
                    Document::Index(_) => None,
                })
                .max_by_key(|(child, config, _)| {
                    let known = child.platform.as_deref() != Some("unknown/unknown");
                    let fits = child.platform.as_deref().is_some_and(|one| one == platform);
                    // `max_by_key` takes the last of equals; indexes put the best first.
                    let place = children.iter().position(|one| one.digest == child.digest);
                    (exists(&config.digest), unpacked(&config.digest), known, fits, std::cmp::Reverse(place))
                });
            let Some((child, config, layers)) = best else {
                let missing = children.iter().find(|child| child.platform.as_deref() == Some(platform));
                let missing = missing.or(children.first()).map(|child| child.digest.clone());
                return Resolved {
                    index: true,
                    missing: missing.into_iter().collect(),
                    ..Resolved::default()
                };
            };
            (true, (child.digest.clone(), config, layers), child.size, target_size)
        }
    };
    let (manifest, config, layers) = manifest;
    let mut sizes = layers.iter().map(|layer| layer.size).chain([config.size, manifest_size, sum]);
    let listed_bytes = sizes.try_fold(0_u64, |sum, size| sum.checked_add(size?));
    let missing = if exists(&config.digest) { Vec::new() } else { vec![config.digest.clone()] };
    Resolved { index, manifest: Some(manifest), config: Some(config), layers, listed_bytes, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(config: &str) -> Document {
        let one = |digest: &str| Descriptor { digest: digest.into(), size: Some(10), platform: None };
        Document::Manifest { config: one(config), layers: vec![one("layer")] }
    }

    #[test]
    fn documents() {
        let index = br#"{"manifests":[{"digest":"sha256:a","size":7,"platform":{"os":"linux","architecture":"arm64"}},{"x":1}]}"#;
        let child =
            Descriptor { digest: "sha256:a".into(), size: Some(7), platform: Some("linux/arm64".into()) };
        assert_eq!(parse(index), Some(Document::Index(vec![child])));
        let plain = br#"{"config":{"digest":"c","size":10},"layers":[{"digest":"layer","size":10}]}"#;
        assert_eq!(parse(plain), Some(manifest("c")));
        for other in [b"".as_slice(), b"[]", b"{}", br#"{"config":{}}"#, br#"{"rootfs":{"diff_ids":[]}}"#] {
            assert_eq!(parse(other), None);
        }
    }

    #[test]
    fn the_platform_that_is_here() {
        let child = |digest: &str, platform: Option<&str>| Descriptor {
            digest: digest.into(),
            size: Some(100),
            platform: platform.map(str::to_owned),
        };
        let children = vec![
            child("m-arm", Some("linux/arm64")),
            child("m-amd", Some("linux/amd64")),
            child("m-notes", Some("unknown/unknown")),
        ];
        let resolve_with = |present: &[&str], unpacked: &[&str]| {
            let document = |digest: &str| match digest {
                "index" => Some(Document::Index(children.clone())),
                _ => present.contains(&digest).then(|| manifest(&digest.replacen('m', "c", 1))),
            };
            let exists = |_: &str| true;
            let unpacked = |digest: &str| unpacked.contains(&digest);
            resolve(("index", Some(1000)), "linux/amd64", &document, &exists, &unpacked)
        };
        let all = ["m-arm", "m-amd", "m-notes"];
        let chosen = |present: &[&str], unpacked: &[&str]| resolve_with(present, unpacked).manifest;
        assert_eq!(chosen(&all, &[]).as_deref(), Some("m-amd"), "the platform");
        assert_eq!(chosen(&all, &["c-arm"]).as_deref(), Some("m-arm"), "what was unpacked");
        assert_eq!(chosen(&["m-arm", "m-notes"], &[]).as_deref(), Some("m-arm"), "what is there");
        let image = resolve_with(&all, &[]);
        assert_eq!((image.index, image.listed_bytes), (true, Some(1120)));
        assert_eq!(resolve_with(&[], &[]).missing, ["m-amd"]);
    }

    #[test]
    fn what_is_missing() {
        let gone = resolve(("t", None), "linux/amd64", &|_| None, &|_| false, &|_| false);
        assert_eq!((gone.missing, gone.config), (vec!["t".to_owned()], None));
        let broken = resolve(("t", Some(5)), "linux/amd64", &|_| Some(manifest("c")), &|_| false, &|_| false);
        assert_eq!((broken.missing, broken.listed_bytes), (vec!["c".to_owned()], Some(25)));
    }
}
