use super::*;

fn manifest(config: &str) -> Document {
    let one = |digest: &str| Descriptor { digest: digest.into(), size: Some(10), platform: None };
    Document::Manifest { config: Some(one(config)), layers: vec![one("layer")] }
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
