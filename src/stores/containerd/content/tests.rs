use super::*;

fn manifest(config: &str) -> Document {
    Document::Manifest { config: Some(blob(config, 10)), layers: vec![blob("layer", 10)] }
}

fn blob(digest: &str, size: u64) -> Descriptor {
    Descriptor { digest: digest.into(), size: Some(size), ..Descriptor::default() }
}

#[test]
fn best_platform_is_chosen() {
    let child = |digest: &str, platform: Option<&str>| Descriptor {
        platform: platform.map(str::to_owned),
        ..blob(digest, 100)
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
        resolve(("index", Some(1000)), "linux/amd64", &document, &|_| true, &|digest| {
            unpacked.contains(&digest)
        })
    };
    let all = ["m-arm", "m-amd", "m-notes"];
    let chosen = |present: &[&str], unpacked: &[&str]| resolve_with(present, unpacked).manifest;
    assert_eq!(chosen(&all, &[]).as_deref(), Some("m-amd"), "the platform");
    assert_eq!(chosen(&all, &["c-arm"]).as_deref(), Some("m-arm"), "the unpacked one");
    assert_eq!(chosen(&["m-arm", "m-notes"], &[]).as_deref(), Some("m-arm"), "the only one that exists");
    let image = resolve_with(&all, &[]);
    assert_eq!((image.index, image.listed_bytes), (true, Some(1120)));
    assert_eq!(resolve_with(&[], &[]).missing, ["m-amd"]);
}

#[test]
fn manifest_named_many_times_is_read_once() {
    let children: Vec<_> = (0..50_000).map(|number| blob(["m", "other"][number % 2], 100)).collect();
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
fn missing_blobs_are_named() {
    let gone = resolve(("t", None), "linux/amd64", &|_| None, &|_| false, &|_| false);
    assert_eq!((gone.missing, gone.config), (vec!["t".to_owned()], None));
    let broken = resolve(("t", Some(5)), "linux/amd64", &|_| Some(manifest("c")), &|_| false, &|_| false);
    assert_eq!((broken.missing, broken.listed_bytes), (vec!["c".to_owned()], Some(25)));
}
