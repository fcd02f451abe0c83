//! A node with containerd, podman's store and the store of a user, each on a disk of its own: the timers of the package,
//! enabled as the pages say, bring every disk down, and `doctor` names the timer of each store.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use serde_json::Value;

use crate::support;
use support::archive::{self, ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::packages::{Booted, Root, deb, quietly, ready};
use support::program::{Run, list, text};
use support::reserve_file::{fill, used_percent};

/// Packages of the node, beside its init.
const PACKAGES: [&str; 5] = ["libpam-systemd", "podman", "uidmap", "containerd", "runc"];

/// Graphroot on podman's own disk.
const STORAGE: &str = "[storage]\ndriver = \"overlay\"\ngraphroot = \"/data/containers\"\nrunroot = \"/run/containers/storage\"\n";
/// Settings for a node that is itself a container, whose images are a minute old and were loaded.
const SETTINGS: &str =
    "trust_pid_namespace = true\n[images]\nmin_age = \"0s\"\n[protect]\nnot_repullable = \"never\"\n";
/// Drop-in for a timer that does not wait for five minutes.
const SOON: &str = "[Timer]\nOnCalendar=\nOnCalendar=*:*:0/2\nRandomizedDelaySec=0\nAccuracySec=1s\n";

const CONTAINERD: &str = "/var/lib/containerd";
const PODMAN: &str = "/data/containers";
const ALICE: &str = "/home/alice/.local/share/containers/storage";
/// Default low threshold.
const LOW: f64 = 70.0;

/// Six images of 5 MiB on a common layer.
fn images(owner: &str) -> Vec<ImageSpec> {
    let images = (0..6).map(|number| {
        let name = format!("reg.local/node-{owner}-{number}:1");
        let layers = [(format!("node-{owner}-base"), 1), (format!("node-{owner}-{number}"), 5)]
            .map(|(layer, size)| LayerSpec { plain: vec![size * MIB], ..LayerSpec::new(&layer) });
        ImageSpec { names: vec![name.clone()], layers: layers.into(), label: name }
    });
    images.collect()
}

/// Runs a shell script as alice, in the environment that a login gives her.
fn as_alice(node: &Booted, script: &str) -> Run {
    node.run(&format!(
        "cd /home/alice && XDG_RUNTIME_DIR=/run/user/5001 HOME=/home/alice \
         setpriv --reuid alice --regid alice --init-groups /bin/sh -c '{script}'"
    ))
}

/// Results of `doctor` for the stores with images.
fn store_timers(run: Run) -> Vec<Value> {
    let document = run.expect_code(0).json();
    list(&document, "/checks").iter().filter(|check| check["name"] == "store-timer").cloned().collect()
}

/// Fails unless `checks` contains a result for a store with this status and message.
#[track_caller]
fn assert_timer(checks: &[Value], store: &str, status: &str, message: &str) {
    let check = checks.iter().find(|check| check["object"] == store);
    let check = check.unwrap_or_else(|| panic!("nothing about {store}: {checks:#?}"));
    assert!(text(check, "/status") == status && text(check, "/message").contains(message), "{check:#}");
}

#[test]
fn timers_bring_every_disk_down() {
    if !ready(&["mmdebstrap", "systemd-nspawn", "nsenter"]) {
        return;
    }
    let [containerd, podman, alice] = [160, 80, 80].map(|size| LoopFs::new(Fs::Ext4, size * MIB));
    let root = Root::with(&PACKAGES);
    std::fs::write(root.path("/etc/containers/storage.conf"), STORAGE).unwrap();
    for owner in ["containerd", "podman", "alice"] {
        archive::write(&root.path(&format!("/srv/{owner}.tar")), &images(owner)).unwrap();
    }
    let node = root.boot(&[(&containerd, CONTAINERD), (&podman, "/data"), (&alice, "/home/alice")]);
    node.run(
        "useradd --uid 5001 --home-dir /home/alice alice && chown alice:alice /home/alice && \
         chmod 700 /home/alice && loginctl enable-linger alice && podman load --quiet --input /srv/podman.tar && \
         podman create --network none --name app reg.local/node-podman-0:1 /x && \
         ctr --namespace k8s.io images import /srv/containerd.tar",
    )
    .expect_code(0);
    as_alice(&node, "podman load --quiet --input /srv/alice.tar").expect_code(0);
    for disk in [&containerd, &podman, &alice] {
        fill(disk, 80.0);
    }
    let package = node.root.bring(&deb());
    quietly(node.run(&format!("dpkg --install {package}")));
    std::fs::write(node.root.path("/etc/layersweep/layersweep.toml.d/node.toml"), SETTINGS).unwrap();
    let doctor = || store_timers(node.run("layersweep doctor --format json"));
    let checks = doctor();
    assert_timer(&checks, CONTAINERD, "note", "no timer empties it");
    assert_timer(&checks, PODMAN, "note", "no timer empties it");
    let enable = "systemctl --user enable --now layersweep.timer";
    assert_timer(&checks, ALICE, "note", &format!("no timer empties it; `as alice: {enable}`"));

    node.run("systemctl enable --now layersweep-gc.timer").expect_code(0);
    let checks = doctor();
    assert_timer(&checks, CONTAINERD, "ok", "layersweep-gc.timer empties it: images are deleted through");
    assert_timer(&checks, PODMAN, "warning", "layersweep-gc.service may not write there");
    let sealed = checks.iter().find(|check| check["object"] == PODMAN).unwrap();
    node.run(text(sealed, "/remedy")).expect_code(0);
    assert_timer(&doctor(), PODMAN, "ok", "layersweep-gc.timer empties it: images are deleted directly");
    elapse_soon(|script| node.run(script), "/etc/systemd/system/layersweep-gc.timer", "systemctl");
    node.wait("root's timer empties its two stores", || {
        used_percent(&containerd) <= LOW && used_percent(&podman) <= LOW
    });
    let service = "layersweep-gc.service";
    let command = format!("are in {ALICE}; `as alice: podman unshare layersweep gc`");
    node.wait("its run prints the command of alice", || node.journal(service).contains(&command));
    node.run("systemctl stop layersweep-gc.timer").expect_code(0);
    node.wait("no run is at work", || node.property(service, "ActiveState") == "inactive");
    assert_eq!(node.property(service, "Result"), "success");
    assert!(used_percent(&alice) > 75.0, "root edits no store of a user");

    as_alice(&node, enable).expect_code(0);
    assert_timer(&doctor(), ALICE, "ok", "layersweep.timer of alice empties it");
    let checks = store_timers(as_alice(&node, "layersweep doctor --format json"));
    assert_eq!(checks.len(), 1, "{checks:#?}");
    assert_timer(&checks, ALICE, "ok", "layersweep.timer of alice empties it");
    elapse_soon(
        |script| as_alice(&node, script),
        "$HOME/.config/systemd/user/layersweep.timer",
        "systemctl --user",
    );
    let journal = || node.run("journalctl --no-pager --output=cat _UID=5001").stdout;
    node.wait("alice's timer empties her store", || journal().contains("Low threshold reached"));
    assert!(used_percent(&alice) <= LOW, "{}", journal());
    // The stores of root and of the runtime do not concern her.
    assert!(!journal().contains("cannot be read"), "{}", journal());
    node.run("loginctl disable-linger alice").expect_code(0);
    assert_timer(&doctor(), ALICE, "warning", "only while alice is logged in");
    // Images in use are still there.
    node.run("podman image exists reg.local/node-podman-0:1").expect_code(0);
}

/// Lets a timer elapse every two seconds from now on.
fn elapse_soon(run: impl Fn(&str) -> Run, unit: &str, systemctl: &str) {
    let timer = unit.rsplit('/').next().unwrap();
    run(&format!(
        "mkdir -p {unit}.d && printf \"{}\" >{unit}.d/soon.conf && {systemctl} daemon-reload && {systemctl} restart {timer}",
        SOON.replace('\n', "\\n")
    ))
    .expect_code(0);
}
