use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn documents() {
    let index = br#"{"manifests":[{"digest":"sha256:a","size":7,"platform":{"os":"linux","architecture":"arm64"}},{"x":1}]}"#;
    let child = Descriptor { digest: "sha256:a".into(), size: Some(7), platform: Some("linux/arm64".into()) };
    assert_eq!(parse(index), Some(Document::Index(vec![child])));
    let plain = br#"{"config":{"digest":"c","size":10},"layers":[{"digest":"layer","size":10}]}"#;
    let one = |digest: &str| Descriptor { digest: digest.into(), size: Some(10), platform: None };
    let expected = Document::Manifest { config: Some(one("c")), layers: vec![one("layer")] };
    assert_eq!(parse(plain), Some(expected));
    let artifact = br#"{"blobs":[{"digest":"layer","size":10}]}"#;
    assert_eq!(parse(artifact), Some(Document::Manifest { config: None, layers: vec![one("layer")] }));
    assert_eq!(parse(br#"{"manifests":null}"#), Some(Document::Index(vec![])));
    for other in [b"".as_slice(), b"[]", b"{}", br#"{"config":{}}"#, br#"{"rootfs":{"diff_ids":[]}}"#] {
        assert_eq!(parse(other), None);
    }
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
            let lists = ["manifests", "layers"].map(|name| json[name].as_array());
            for row in lists.into_iter().flatten().flatten().chain(json.get("config")) {
                assert_eq!(descriptor(row), odd_descriptor(row), "{row:#}");
            }
            read += usize::from(parse(&bytes).is_some());
        }
    }
    assert!(read > 20, "{read}");
}

/// Documents that the specification's types refuse: everything readable in them is read.
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
        let expected = Some(Document::Manifest { config: Some(expected), layers: layers.clone() });
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
    /// The specification's types and the raw fields agree on each descriptor that both read.
    #[test]
    fn both_ways_agree(descriptor in entry()) {
        if let Ok(typed) = image::Descriptor::deserialize(&descriptor) {
            prop_assert_eq!(Some(typed.into()), odd_descriptor(&descriptor));
        }
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }
}
