use std::os::unix::fs::symlink;

use super::*;
use crate::stores::containerd::places::{CONTENT, META_DB, SNAPSHOTTER};

#[test]
fn symlinks_are_reported_and_not_followed() {
    for linked in [
        CONTENT.to_owned(),
        format!("{CONTENT}/blobs"),
        format!("{CONTENT}/blobs/sha256"),
        "io.containerd.metadata.v1.bolt".into(),
        format!("{SNAPSHOTTER}overlayfs"),
        format!("{SNAPSHOTTER}overlayfs/snapshots"),
        "io.containerd.grpc.v1.cri/containers".into(),
        "io.containerd.grpc.v1.cri/containers/c1".into(),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        for path in ["io.containerd.metadata.v1.bolt", CONTENT] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        let elsewhere = dir.path().join("elsewhere");
        std::fs::create_dir_all(elsewhere.join("stray")).unwrap();
        std::fs::write(elsewhere.join("meta.db"), b"").unwrap();
        std::fs::write(elsewhere.join("status"), b"{\"StartedAt\":1}").unwrap();
        std::fs::write(root.join(META_DB), b"").unwrap();
        let link = root.join(&linked);
        #[allow(clippy::disallowed_methods)] // a temporary directory of this test
        let _ = std::fs::remove_dir_all(&link);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&elsewhere, &link).unwrap();
        let snapshot =
            read(&ContainerdPlaces::at(&root, true), ReadPatience::default(), &ReadCache::default()).unwrap();
        assert_eq!(snapshot.consistency, Consistency::Damaged, "{linked}");
        let named = format!("{} is a symlink; not followed", link.display());
        let is_reported =
            snapshot.findings.iter().any(|finding| finding.incomplete && finding.message.contains(&named));
        assert!(is_reported, "{linked}: {:?}", snapshot.findings);
        assert!(snapshot.listing.values().flatten().all(|entry| entry.name != "stray"), "{linked}");
        assert!(snapshot.states.is_empty());
    }
}

#[test]
fn damaged_record_makes_store_damaged() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd/2.3.4/root").join(META_DB);
    let good = std::fs::read(fixture).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let meta_db = dir.path().join(META_DB);
    std::fs::create_dir_all(meta_db.parent().unwrap()).unwrap();
    let read_with = |bytes: &[u8]| {
        std::fs::write(&meta_db, bytes).unwrap();
        let patience = ReadPatience { confirm: Some(Duration::ZERO), ..ReadPatience::default() };
        read(&ContainerdPlaces::at(dir.path(), true), patience, &ReadCache::default()).unwrap()
    };
    assert_eq!(read_with(&good).consistency, Consistency::Consistent);
    // A value follows its key; a time starts with its version, which is 1. Some of these places are in old pages,
    // which are not read.
    let key = b"createdat\x01";
    let mut seen = 0;
    for position in (0..good.len() - key.len()).filter(|position| good[*position..].starts_with(key)) {
        let mut broken = good.clone();
        broken[position + key.len() - 1] = 0x77;
        let snapshot = read_with(&broken);
        let odd = !snapshot.metadata.oddities.is_empty();
        seen += usize::from(odd);
        let expected = if odd { Consistency::Damaged } else { Consistency::Consistent };
        assert_eq!(snapshot.consistency, expected, "{:?}", snapshot.findings);
    }
    assert!(seen > 0, "some of the records are in use");
}

#[test]
fn only_digests_are_names_of_blobs() {
    fn hex(length: usize) -> String {
        "0123456789abcdef".repeat(length / 16)
    }
    for (algorithm, length) in [("sha256", 64), ("sha384", 96), ("sha512", 128)] {
        let name = hex(length);
        assert_eq!(places::digest(algorithm, &name), Some(format!("{algorithm}:{name}")));
        for stray in [&name[1..], &format!("{name}0"), &name.to_uppercase(), &format!("{}g", &name[1..])] {
            assert_eq!(places::digest(algorithm, stray), None, "{algorithm} {stray}");
        }
    }
    let name = hex(64);
    for (algorithm, name) in [
        ("", &*name),
        ("SHA256", &name),
        ("blake3", &name),
        ("sha256:sha256", &name),
        ("sha256+b64u", &name),
        ("..", &name),
        ("sha256", ""),
        ("sha256", "."),
        ("sha256", "../../../../etc/shadow"),
        ("sha256", "lost+found"),
        ("sha256", &format!("{}:", &name[1..])),
    ] {
        assert_eq!(places::digest(algorithm, name), None, "{algorithm} {name}");
    }
}
