use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn indexes_and_manifests_are_parsed() {
    let index = br#"{"manifests":[{"digest":"sha256:a","size":7,"platform":{"os":"linux","architecture":"arm64"}},{"x":1}]}"#;
    let child = Descriptor {
        digest: "sha256:a".into(),
        size: Some(7),
        platform: Some("linux/arm64".into()),
        ..Descriptor::default()
    };
    assert_eq!(parse(index), Some(Document::Index(vec![child])));
    let plain = br#"{"config":{"digest":"c","size":10},"layers":[{"digest":"layer","size":10}]}"#;
    fn blob(digest: &str) -> Descriptor {
        Descriptor { digest: digest.into(), size: Some(10), ..Descriptor::default() }
    }
    let expected = Document::Manifest { config: Some(blob("c")), layers: vec![blob("layer")] };
    assert_eq!(parse(plain), Some(expected));
    let artifact = br#"{"blobs":[{"digest":"layer","size":10}]}"#;
    assert_eq!(parse(artifact), Some(Document::Manifest { config: None, layers: vec![blob("layer")] }));
    assert_eq!(parse(br#"{"manifests":null}"#), Some(Document::Index(vec![])));
    for other in [b"".as_slice(), b"[]", b"{}", br#"{"config":{}}"#, br#"{"rootfs":{"diff_ids":[]}}"#] {
        assert_eq!(parse(other), None);
    }
}

/// Every index and manifest of the fixtures conforms to the specification, and both ways of reading it agree.
#[test]
fn fixtures_are_read_the_same_both_ways() {
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
fn invalid_documents_are_read_field_by_field() {
    fn blob(digest: &str, size: Option<u64>) -> Descriptor {
        Descriptor { digest: digest.into(), size, ..Descriptor::default() }
    }
    fn manifest(config: &Value, layer: &Value) -> Value {
        json!({"schemaVersion": 2, "config": config, "layers": [layer]})
    }
    let digest = format!("sha256:{}", "ab".repeat(32));
    let other = format!("sha256:{}", "cd".repeat(32));
    let good = json!({"mediaType": "application/octet-stream", "digest": other, "size": 2});
    let layers = vec![Descriptor { media_type: "application/octet-stream".into(), ..blob(&other, Some(2)) }];
    let docker = "application/vnd.docker.container.image.v1+json";
    for (config, expected) in [
        (json!({"mediaType": docker, "digest": digest, "size": 7}), blob(&digest, Some(7))),
        (json!({"digest": digest, "size": 7}), blob(&digest, Some(7))),
        (json!({"mediaType": null, "digest": digest, "size": 7}), blob(&digest, Some(7))),
        (json!({"mediaType": docker, "digest": digest}), blob(&digest, None)),
        (json!({"mediaType": docker, "digest": digest, "size": -1}), blob(&digest, None)),
        (json!({"mediaType": docker, "digest": digest, "size": "7"}), blob(&digest, None)),
        (
            json!({"mediaType": docker, "digest": digest, "size": 7, "annotations": {"a": null}}),
            blob(&digest, Some(7)),
        ),
        (
            json!({"mediaType": docker, "digest": digest, "size": 7, "urls": "no list"}),
            blob(&digest, Some(7)),
        ),
        (
            json!({"mediaType": docker, "digest": digest, "size": 7, "platform": {"os": 1}}),
            blob(&digest, Some(7)),
        ),
        (json!({"mediaType": docker, "digest": "SHA256:AB", "size": 7}), blob("SHA256:AB", Some(7))),
        (json!({"mediaType": docker, "digest": "", "size": 7}), blob("", Some(7))),
        (json!({"mediaType": docker, "digest": "../../etc", "size": 7}), blob("../../etc", Some(7))),
    ] {
        let document = manifest(&config, &good);
        let media_type = config["mediaType"].as_str().unwrap_or_default().to_owned();
        let expected = Descriptor { media_type, ..expected };
        let expected = Some(Document::Manifest { config: Some(expected), layers: layers.clone() });
        assert_eq!(parse(document.to_string().as_bytes()), expected, "{config}");
        // One invalid entry of an index does not prevent the others from being read.
        let index = json!({"schemaVersion": "two", "manifests": [config, good, null, 7, {}]});
        let Some(Document::Index(children)) = parse(index.to_string().as_bytes()) else { panic!("{index}") };
        assert_eq!(children.len(), 2, "{index}");
    }
    for version in [json!(null), json!(1), json!("2"), json!({})] {
        let mut document = manifest(&good, &good);
        document["schemaVersion"] = version;
        assert!(parse(document.to_string().as_bytes()).is_some(), "{document}");
    }
    // A document with a list of manifests is an index, whatever else it contains.
    let mut both = manifest(&good, &good);
    both["manifests"] = json!([{"digest": 1}]);
    assert_eq!(parse(both.to_string().as_bytes()), Some(Document::Index(vec![])));
    both["manifests"] = json!(null);
    assert!(matches!(parse(both.to_string().as_bytes()), Some(Document::Manifest { .. })));
    // Deeper than any parser accepts.
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
            Some(platform) => {
                json!({"mediaType": "a/b", "digest": digest, "size": size, "platform": platform})
            }
        },
    );
    let any =
        prop::collection::btree_map(prop::sample::select(&KEYS[..]), text(), 0..6).prop_map(|map| json!(map));
    prop_oneof![3 => good, 1 => any, 1 => text()]
}

proptest! {
    /// The specification's types and the raw fields agree on each descriptor that both can read.
    #[test]
    fn typed_and_raw_descriptors_agree(descriptor in entry()) {
        if let Ok(typed) = image::Descriptor::deserialize(&descriptor) {
            prop_assert_eq!(Some(typed.into()), odd_descriptor(&descriptor));
        }
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }
}
