use std::os::unix::fs::symlink;

use super::*;
use crate::containerd::places::{META_DB, SNAPSHOTTER};

#[test]
fn symlinks_below_the_root_are_named_and_not_followed() {
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
        let snapshot = read(&Places::at(&root, true), Patience::default()).unwrap();
        assert_eq!(snapshot.consistency, Consistency::Damaged, "{linked}");
        let named = format!("{} is a symlink; not followed", link.display());
        let said = |finding: &Finding| finding.incomplete && finding.message.contains(&named);
        assert!(snapshot.findings.iter().any(said), "{linked}: {:?}", snapshot.findings);
        assert!(snapshot.listing.values().flatten().all(|entry| entry.name != "stray"), "{linked}");
        assert!(snapshot.states.is_empty());
    }
}
