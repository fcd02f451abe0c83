use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn manifest(config: &str) -> Document {
    let one = |digest: &str| Descriptor { digest: digest.into(), size: Some(10), platform: None };
    Document::Manifest { config: one(config), layers: vec![one("layer")] }
}

#[test]
fn documents() {
    let index = br#"{"manifests":[{"digest":"sha256:a","size":7,"platform":{"os":"linux","architecture":"arm64"}},{"x":1}]}"#;
    let child = Descriptor { digest: "sha256:a".into(), size: Some(7), platform: Some("linux/arm64".into()) };
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
fn manifest_named_many_times_is_read_once() {
    let child = |digest: &str| Descriptor { digest: digest.into(), size: Some(100), platform: None };
    let children: Vec<_> = (0..50_000).map(|at| child(["m", "other"][at % 2])).collect();
    let reads = std::cell::RefCell::new(Vec::new());
    let document = |digest: &str| {
        reads.borrow_mut().push(digest.to_owned());
        Some(if digest == "index" { Document::Index(children.clone()) } else { manifest(digest) })
    };
    let image = resolve(("index", Some(1)), "linux/amd64", &document, &|_| true, &|_| false);
    assert_eq!(image.manifest.as_deref(), Some("m"));
    assert_eq!(reads.into_inner(), ["index", "m", "other"]);
}

#[test]
fn what_is_missing() {
    let gone = resolve(("t", None), "linux/amd64", &|_| None, &|_| false, &|_| false);
    assert_eq!((gone.missing, gone.config), (vec!["t".to_owned()], None));
    let broken = resolve(("t", Some(5)), "linux/amd64", &|_| Some(manifest("c")), &|_| false, &|_| false);
    assert_eq!((broken.missing, broken.listed_bytes), (vec!["c".to_owned()], Some(25)));
}

/// Every index and manifest of the fixtures is what the specification says, and reads the same in both
/// ways.
#[test]
fn documents_of_three_versions() {
    let mut read = 0;
    for version in ["1.6.20", "1.7.34", "2.3.4"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd").join(version);
        let blobs = root.join("root/io.containerd.content.v1.content/blobs/sha256");
        for blob in std::fs::read_dir(blobs).unwrap() {
            let bytes = std::fs::read(blob.unwrap().path()).unwrap();
            let Ok(json) = serde_json::from_slice::<Value>(&bytes) else { continue };
            let of_the_types = (
                image::ImageIndex::deserialize(&json).is_ok(),
                image::ImageManifest::deserialize(&json).is_ok(),
            );
            let expected = match parse(&bytes) {
                Some(Document::Index(_)) => (true, false),
                Some(Document::Manifest { .. }) => (false, true),
                None => (false, false),
            };
            assert_eq!(of_the_types, expected, "{json:#}");
            assert_eq!(parse(&bytes), odd(&json), "{json:#}");
            read += usize::from(parse(&bytes).is_some());
        }
    }
    assert!(read > 20, "{read}");
}

/// What the specification's types would refuse. Everything that can be read of it is.
#[test]
fn documents_that_nobody_should_have_written() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let other = format!("sha256:{}", "cd".repeat(32));
    let one = |digest: &str, size| Descriptor { digest: digest.into(), size, platform: None };
    let good = json!({"mediaType": "application/octet-stream", "digest": other, "size": 2});
    let manifest = |config: Value| json!({"schemaVersion": 2, "config": config, "layers": [good]});
    let layers = vec![one(&other, Some(2))];
    let docker = "application/vnd.docker.container.image.v1+json";
    for (config, expected) in [
        (json!({"mediaType": docker, "digest": digest, "size": 7}), one(&digest, Some(7))),
        (json!({"digest": digest, "size": 7}), one(&digest, Some(7))),
        (json!({"mediaType": null, "digest": digest, "size": 7}), one(&digest, Some(7))),
        (json!({"mediaType": docker, "digest": digest}), one(&digest, None)),
        (json!({"mediaType": docker, "digest": digest, "size": -1}), one(&digest, None)),
        (json!({"mediaType": docker, "digest": digest, "size": "7"}), one(&digest, None)),
        (
            json!({"mediaType": docker, "digest": digest, "size": 7, "annotations": {"a": null}}),
            one(&digest, Some(7)),
        ),
        (json!({"mediaType": docker, "digest": digest, "size": 7, "urls": "no list"}), one(&digest, Some(7))),
        (
            json!({"mediaType": docker, "digest": digest, "size": 7, "platform": {"os": 1}}),
            one(&digest, Some(7)),
        ),
        (json!({"mediaType": docker, "digest": "SHA256:AB", "size": 7}), one("SHA256:AB", Some(7))),
        (json!({"mediaType": docker, "digest": "", "size": 7}), one("", Some(7))),
        (json!({"mediaType": docker, "digest": "../../etc", "size": 7}), one("../../etc", Some(7))),
    ] {
        let document = manifest(config.clone());
        let expected = Some(Document::Manifest { config: expected, layers: layers.clone() });
        assert_eq!(parse(document.to_string().as_bytes()), expected, "{config}");
        // An entry of an index is odd by itself: those beside it are read.
        let index = json!({"schemaVersion": "two", "manifests": [config, good, null, 7, {}]});
        let Some(Document::Index(children)) = parse(index.to_string().as_bytes()) else { panic!("{index}") };
        assert_eq!(children.len(), 2, "{index}");
    }
    for version in [json!(null), json!(1), json!("2"), json!({})] {
        let mut document = manifest(good.clone());
        document["schemaVersion"] = version;
        assert!(parse(document.to_string().as_bytes()).is_some(), "{document}");
    }
    // A list of manifests is an index, whatever else it has and however odd it is.
    let mut both = manifest(good.clone());
    both["manifests"] = json!([{"digest": 1}]);
    assert_eq!(parse(both.to_string().as_bytes()), Some(Document::Index(vec![])));
    both["manifests"] = json!(null);
    assert!(matches!(parse(both.to_string().as_bytes()), Some(Document::Manifest { .. })));
    // Deeper than any parser goes.
    assert_eq!(parse("[".repeat(100_000).as_bytes()), None);
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<String>().prop_map(Value::from),
        "sha256:[0-9a-f]{64}".prop_map(Value::from),
        "(linux|windows|amd64|arm64|386|unknown|x)".prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!({"a": "b"})),
        Just(json!([])),
    ]
}

fn entry() -> impl Strategy<Value = Value> {
    const KEYS: [&str; 7] = ["digest", "size", "mediaType", "annotations", "platform", "urls", "data"];
    let platform = (text(), text()).prop_map(|(os, cpu)| json!({"os": os, "architecture": cpu}));
    let good = ("sha256:[0-9a-f]{64}", any::<u64>(), proptest::option::of(platform)).prop_map(
        |(digest, size, platform)| match platform {
            None => json!({"mediaType": "a/b", "digest": digest, "size": size}),
            Some(one) => json!({"mediaType": "a/b", "digest": digest, "size": size, "platform": one}),
        },
    );
    let any =
        prop::collection::btree_map(prop::sample::select(&KEYS[..]), text(), 0..6).prop_map(|map| json!(map));
    prop_oneof![3 => good, 1 => any, 1 => text()]
}

proptest! {
    /// Where the specification's types understand a document, they say of it what its fields do.
    #[test]
    fn both_ways_agree(
        manifests in proptest::option::of(prop::collection::vec(entry(), 0..4)),
        config in entry(),
        layers in prop::collection::vec(entry(), 0..4),
        version in prop_oneof![3 => Just(json!(2)), 1 => text()],
    ) {
        let mut document = json!({"schemaVersion": version, "config": config, "layers": layers});
        if let Some(manifests) = manifests {
            document["manifests"] = manifests.into();
        }
        prop_assert_eq!(parse(document.to_string().as_bytes()), odd(&document));
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }
}
