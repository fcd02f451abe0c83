//! Origins of containerd's images: pulls through CRI and `ctr`, and imports.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

use crate::stores::origins::origins;
use crate::support::{self, containerd, program, store};
use containerd::{Collection, Rig};
use program::{list, text};

#[test]
fn pulls_and_imports_are_told_apart() {
    if !containerd::require_rig() || !support::require_program("docker-registry") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("var/lib/containerd");
    let rig = Rig::start(&root, Collection::OnRequest);
    rig.script("20-images.sh", &[]);
    rig.shell(
        r#"port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        registry=127.0.0.1:$port
        printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s"}\n' "$RC/blobs" "$registry" >"$RC/registry.yml"
        docker-registry serve "$RC/registry.yml" >"$RC/registry.log" 2>&1 &
        trap "kill $!" EXIT
        for _ in $(seq 600); do curl -fs "http://$registry/v2/" >/dev/null && break; sleep 0.1; done
        C images push --plain-http "$registry/by/ctr-pull:1" reg.local/app-a:1 >/dev/null
        C images push --plain-http "$registry/by/cri-pull:1" reg.local/app-b:1 >/dev/null
        as_pulled ''
        C images ls -q | grep -v '^sha256:' | xargs -r ctr -a "$SOCK" -n "$NS" images rm --sync >/dev/null
        C images pull --plain-http "$registry/by/ctr-pull:1" >/dev/null
        cri ImageService/PullImage "$(pb_msg 1 "$(pb_str 1 "$registry/by/cri-pull:1")")" >/dev/null
        C images import "$RC/images.tar" >/dev/null
        C images ls -q | grep -v -e '^sha256:' -e pull -e app-c -e dup -e zdup | xargs -r ctr -a "$SOCK" -n "$NS" images rm >/dev/null
        CN default images import "$RC/images.tar" >/dev/null"#,
    );
    for (archive, expected) in [(false, "loaded"), (true, "preloaded")] {
        if archive {
            let archives = dir.path().join("var/lib/rancher/k3s/agent/images");
            std::fs::create_dir_all(&archives).unwrap();
            std::fs::write(archives.join("airgap.tar.zst"), "").unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
        command.arg("--sysroot").arg(dir.path()).args(["images", "--format", "json"]);
        let document: Value = serde_json::from_str(&store::succeed(&mut command)).unwrap();
        let is_cri = |image: &&Value| !text(image, "/id").contains('/');
        let (cri, default): (Vec<_>, Vec<_>) = list(&document, "/images").iter().partition(is_cri);
        let of = |images: Vec<&Value>| origins(&serde_json::json!({ "images": images }));
        let (cri, default) = (of(cri), of(default));
        for pulled in ["ctr-pull", "cri-pull"] {
            assert_eq!(cri[pulled], "pulled", "{document:#}");
        }
        assert_eq!(cri["app-c"], expected, "{document:#}");
        // Only CRI's namespace is filled from the archives.
        assert_eq!(default["app-a"], "loaded", "its own labels count: {document:#}");
    }
}
