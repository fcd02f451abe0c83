//! A node with the package and a real systemd, from the installation to the purge: the permissions of the units, and
//! their work.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::process::Command;

use crate::support;
use support::packages::{Booted, Root, deb, quietly, ready, remains, succeed, tool};
use support::program::Run;
use support::store::{self, Store};

/// A booted system with the package, and a store with the leaks that `leaks` names.
fn booted(leaks: &[&str]) -> Booted {
    let root = Root::new();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let store = Store::rig(&source.join("root"), "overlay");
    succeed(Command::new("cp").arg("-a").arg(store.runroot()).arg(source.join("run")));
    let with = dir.path().join("with");
    succeed(tool(store::rig("inject.sh")).arg(&source).arg(&with).args(leaks));
    std::fs::create_dir_all(root.path("/var/lib/containers")).unwrap();
    succeed(
        Command::new("cp").arg("-a").arg(with.join("root")).arg(root.path("/var/lib/containers/storage")),
    );
    root.boot(&[])
}

#[test]
fn installed_package_maintains_the_node() {
    if !ready(&["mmdebstrap", "systemd-nspawn", "nsenter"]) || !store::require_tools() {
        return;
    }
    let node = booted(&["orphan-dir", "unref-old", "incomplete", "vartmp", "volatile-ok", "mapped-top"]);
    // The first run does not wait for the timer's random delay.
    let soon = node.root.path("/etc/systemd/system/layersweep-scan.timer.d/soon.conf");
    std::fs::create_dir_all(soon.parent().unwrap()).unwrap();
    std::fs::write(&soon, "[Timer]\nOnCalendar=\nOnCalendar=*:*:0/5\nRandomizedDelaySec=0\nAccuracySec=1s\n")
        .unwrap();
    let package = node.root.bring(&deb());
    quietly(node.run(&format!("dpkg --install {package}")));
    assert_eq!(node.property("layersweep-scan.timer", "ActiveState"), "active");
    assert_eq!(node.property("layersweep-gc.timer", "ActiveState"), "inactive");
    node.wait("the timer scans", || {
        node.property("layersweep-scan.service", "ExecMainExitTimestampMonotonic") != "0"
    });
    std::fs::remove_file(&soon).unwrap();
    node.run("systemctl daemon-reload; systemctl restart layersweep-scan.timer").expect_code(0);
    node.wait("no scan is at work", || node.property("layersweep-scan.service", "ActiveState") == "inactive");
    assert_eq!(node.property("layersweep-scan.service", "Result"), "success");
    // A healthy node is quiet: the journal has only systemd's messages.
    let said = node.journal("layersweep-scan.service");
    for sign in ["warning", "error", "hint"] {
        assert!(!said.contains(sign), "{said}");
    }
    let history = node.run("layersweep history --all --format json").expect_code(0).json();
    assert_eq!(history["runs"][0]["command"], "scan", "{history:#}");
    sandboxed_scan_sees_all(&node);
    no_mount_is_held(&node);
    gc_deletes_what_leaks(&node);
    hold_files_hold(&node);
    container_of_five_seconds_is_seen(&node);
    let doctor = node.run("layersweep doctor --format json").json();
    fn of(doctor: &serde_json::Value, name: &str) -> Vec<serde_json::Value> {
        let checks = doctor["checks"].as_array().unwrap().iter();
        checks.filter(|check| check["name"] == name).map(|check| check["status"].clone()).collect::<Vec<_>>()
    }
    assert_eq!(of(&doctor, "scan-timer"), ["ok"], "{doctor:#}");
    assert_eq!(of(&doctor, "gc-timer"), ["note"], "{doctor:#}");
    assert_eq!(of(&doctor, "store-timer"), ["note"], "{doctor:#}");
    node.run("systemctl enable --quiet layersweep-gc.timer").expect_code(0);
    let doctor = node.run("layersweep doctor --format json").json();
    assert_eq!(of(&doctor, "store-timer"), ["ok"], "{doctor:#}");
    assert!(doctor.to_string().contains("images are deleted directly in its store"), "{doctor:#}");
    node.run("systemctl disable --quiet layersweep-gc.timer").expect_code(0);

    // A failed unit is removed from systemd's list with the package.
    node.run("sed -i 's/^\\(trust_pid_namespace =\\) true/#\\1 false/' /etc/layersweep/layersweep.toml")
        .expect_code(0);
    assert_ne!(node.run("systemctl start layersweep-gc.service").code, 0);
    quietly(node.run("dpkg --purge layersweep"));
    assert_eq!(node.run("systemctl list-units --failed --plain --no-legend 'layersweep*'").stdout, "");
    for unit in ["layersweep-scan.timer", "layersweep-uses.path"] {
        assert_eq!(node.property(unit, "LoadState"), "not-found", "{unit}");
    }
    // The file in it was removed above; the purge leaves the directory of a drop-in.
    let _ = std::fs::remove_dir(soon.parent().unwrap());
    assert_eq!(remains(&node.root).replace("/tmp/systemd-private", ""), "");
}

/// Runs a command line in the sandbox of a unit, and returns its output.
fn in_sandbox(node: &Booted, unit: &str, line: &str) -> Run {
    let dir = node.root.path(&format!("/etc/systemd/system/{unit}.d"));
    std::fs::create_dir_all(&dir).unwrap();
    let output = "/var/lib/layersweep/output";
    let text = format!(
        "[Service]\nExecStart=\nExecStart={line}\nStandardOutput=truncate:{output}\nStandardError=truncate:{output}.err\n"
    );
    std::fs::write(dir.join("test.conf"), text).unwrap();
    node.run("systemctl daemon-reload").expect_code(0);
    let mut run = node.run(&format!("systemctl start {unit}"));
    run.code = node.property(unit, "ExecMainStatus").parse().unwrap();
    fn read(node: &Booted, output: &str, end: &str) -> String {
        std::fs::read_to_string(node.root.path(&format!("{output}{end}"))).unwrap()
    }
    (run.stdout, run.stderr) = (read(node, output, ""), read(node, output, ".err"));
    succeed(Command::new("rm").args(["-rf", "--one-file-system"]).arg(&dir));
    for end in ["", ".err"] {
        std::fs::remove_file(node.root.path(&format!("{output}{end}"))).unwrap();
    }
    node.run("systemctl daemon-reload").expect_code(0);
    run
}

/// Returns a scan's document without the fields that differ between two scans.
fn told(run: Run) -> serde_json::Value {
    let mut document = run.expect_code(0).json();
    for field in ["generated_at", "filesystems", "scan", "warnings"] {
        if field == "filesystems" {
            // The mount point is the same in every sandbox.
            for filesystem in document[field].as_array_mut().unwrap() {
                *filesystem = filesystem["mount"].clone();
            }
        } else if field == "warnings" {
            assert_eq!(document[field].as_array().unwrap().len(), 0, "{:#}", document[field]);
        } else {
            document.as_object_mut().unwrap().remove(field);
        }
    }
    for list in ["images", "leaks"] {
        for object in document[list].as_array_mut().unwrap() {
            for field in ["last_used", "age_seconds"] {
                object.as_object_mut().unwrap().remove(field);
            }
        }
    }
    document
}

fn sandboxed_scan_sees_all(node: &Booted) {
    let line = "/usr/bin/layersweep scan --full --no-record --format json";
    // Blocks of new files are allocated late, some between two scans.
    node.run("sync --file-system /var/lib/containers").expect_code(0);
    let free = told(node.run(line));
    for unit in ["layersweep-scan.service", "layersweep-gc.service"] {
        let run = in_sandbox(node, unit, line);
        assert_eq!(run.stderr, "", "{unit}");
        assert_eq!(told(run), free, "{unit}");
    }
    // Forbidden operations fail.
    for (unit, line, may) in [
        ("layersweep-scan.service", "/usr/bin/touch /var/lib/containers/storage/x", false),
        ("layersweep-scan.service", "/usr/bin/touch /etc/layersweep/x", false),
        ("layersweep-scan.service", "/usr/bin/touch /var/lib/layersweep/x", true),
        ("layersweep-uses.service", "/usr/bin/touch /var/lib/containers/storage/x", false),
        ("layersweep-uses.service", "/usr/bin/touch /var/lib/layersweep/x", true),
        ("layersweep-gc.service", "/usr/bin/touch /var/lib/containers/storage/x", true),
        ("layersweep-gc.service", "/usr/bin/touch /etc/layersweep/x", false),
        ("layersweep-gc.service", "/usr/bin/mount -t tmpfs tmpfs /var/lib/layersweep", false),
        ("layersweep-gc.service", "/usr/bin/chown 1 /var/lib/containers/storage/x", false),
    ] {
        let run = in_sandbox(node, unit, line);
        assert_eq!(run.code == 0, may, "{unit}: {line}: {run:?}");
    }
    node.run("rm /var/lib/containers/storage/x /var/lib/layersweep/x").expect_code(0);
}

/// A filesystem that the runtime unmounts while a unit runs is unmounted in the unit too: with a held mount, the
/// runtime could not remove its container.
fn no_mount_is_held(node: &Booted) {
    let layer = "/var/lib/containers/storage/overlay/held";
    for unit in ["layersweep-scan.service", "layersweep-gc.service"] {
        let mount = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged";
        let make = format!("mkdir -p {layer} && cd {layer} && mkdir lower upper work merged && {mount}");
        node.run(&make).expect_code(0);
        let dir = node.root.path(&format!("/etc/systemd/system/{unit}.d"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("test.conf"), "[Service]\nExecStart=\nExecStart=/usr/bin/sleep 600\n")
            .unwrap();
        node.run(&format!("systemctl daemon-reload; systemctl start --no-block {unit}")).expect_code(0);
        let sees = || {
            let pid = node.property(unit, "ExecMainPID");
            let run =
                node.run(&format!("grep -c {layer}/merged /proc/{pid}/mountinfo; cat /proc/{pid}/comm"));
            let mut lines = run.stdout.lines();
            let mounts = lines.next().and_then(|count| count.parse::<usize>().ok()).unwrap_or_default();
            (mounts > 0, lines.next().unwrap_or_default() == "sleep")
        };
        node.wait("the unit is at work and sees the mount", || sees() == (true, true));
        node.run(&format!("umount {layer}/merged")).expect_code(0);
        assert_eq!(sees(), (false, true), "{unit} holds the mount");
        node.run(&format!("rm -r {layer}; systemctl stop {unit}; systemctl reset-failed {unit}"));
        assert!(!node.root.path(layer).exists());
        succeed(Command::new("rm").args(["-rf", "--one-file-system"]).arg(&dir));
        node.run("systemctl daemon-reload").expect_code(0);
    }
}

fn gc_deletes_what_leaks(node: &Booted) {
    // Only podman runs here, so the unit deletes in the store itself. The node is a container, and processes outside of
    // it cannot be seen; only its operator can say that none uses the store. Without that, the unit fails with a
    // message.
    let failed = node.run("systemctl start layersweep-gc.service");
    assert_ne!(failed.code, 0);
    assert_eq!(node.property("layersweep-gc.service", "ExecMainStatus"), "5");
    assert!(node.journal("layersweep-gc.service").contains("set trust_pid_namespace = true"));
    // The library may keep the containers' lock there (transient_store), and layersweep takes every lock.
    node.run(
        "mkdir -p /run/containers/storage/overlay-containers && \
         touch /run/containers/storage/overlay-containers/containers.lock",
    )
    .expect_code(0);
    let line = "/usr/bin/layersweep gc --yes --only leaks --format json";
    let blind = in_sandbox(node, "layersweep-gc.service", line);
    assert_eq!(blind.code, 5, "{blind:?}");
    assert!(blind.stderr.contains("set trust_pid_namespace = true"), "{blind:?}");
    node.run("sed -i 's/^#\\(trust_pid_namespace =\\) false/\\1 true/' /etc/layersweep/layersweep.toml")
        .expect_code(0);
    let run = in_sandbox(node, "layersweep-gc.service", line);
    let document = run.expect_code(0).json();
    assert_eq!(document["via"], "direct", "{document:#}");
    let deleted = document["deleted"].as_array().unwrap();
    assert_eq!(document["errors"].as_array().unwrap().len(), 0, "{document:#}");
    assert!(deleted.len() >= 2, "{document:#}");
    assert!(
        deleted.iter().all(|deletion| deletion["kind"] == "leak" && deletion["measured_bytes"].is_i64()),
        "{document:#}"
    );
    let left = node.run("layersweep scan --no-record --format json").expect_code(0).json();
    let classes = left["leaks"].as_array().unwrap().iter().map(|leak| leak["class"].clone());
    assert!(!classes.into_iter().any(|class| class == "unreferenced" || class == "incomplete"), "{left:#}");
    assert_eq!(node.property("layersweep-gc.service", "Result"), "success");
}

fn hold_files_hold(node: &Booted) {
    for hold in ["/run/layersweep/hold", "/etc/layersweep/hold"] {
        node.run(&format!("touch {hold} && systemctl start layersweep-gc.service")).expect_code(0);
        assert_eq!(node.property("layersweep-gc.service", "ConditionResult"), "no", "{hold}");
        node.run(&format!("rm {hold}")).expect_code(0);
    }
}

/// A container that lives five seconds has used its image, although the timer does not scan meanwhile. Other containers
/// come and go all the time, more often than systemd would start a unit by default.
fn container_of_five_seconds_is_seen(node: &Booted) {
    let far = node.root.path("/etc/systemd/system/layersweep-scan.timer.d/far.conf");
    std::fs::write(&far, "[Timer]\nOnCalendar=\nOnActiveSec=1h\nRandomizedDelaySec=0\n").unwrap();
    node.run("systemctl daemon-reload; systemctl restart layersweep-scan.timer").expect_code(0);
    node.run("systemctl start layersweep-scan.service && systemctl enable --now layersweep-uses.path")
        .expect_code(0);
    let store = Store::at(&node.root.path("/var/lib/containers/storage"), "overlay");
    let images = || node.run("layersweep images --format json").expect_code(0).json();
    fn find<'a>(document: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
        let mut images = document["images"].as_array().unwrap().iter();
        images.find(|image| image["names"][0] == format!("localhost/mk/{name}:1")).unwrap()
    }
    let before = images();
    let [brief, other] =
        ["svc-c", "svc-d"].map(|name| find(&before, name)["id"].as_str().unwrap().to_owned());
    for name in ["svc-c", "svc-d", "tools-x"] {
        assert!(find(&before, name)["last_used"].is_null(), "{name}");
    }
    let history = || node.run("layersweep history --all --format json").expect_code(0).json()["runs"].clone();
    let runs = history();

    let started = std::time::Instant::now();
    store.storage(["create-container", "--name", "brief", &brief]);
    while started.elapsed() < std::time::Duration::from_secs(5) {
        store.storage(["create-container", "--name", "other", &other]);
        std::thread::sleep(std::time::Duration::from_millis(1200));
        store.storage(["delete-container", "other"]);
    }
    store.storage(["delete-container", "brief"]);
    let idle = || node.property("layersweep-uses.service", "ActiveState") == "inactive";
    node.wait("the removal is seen", || idle() && find(&images(), "svc-c")["last_used"].is_string());
    let after = images();
    assert!(find(&after, "tools-x")["last_used"].is_null());
    assert_eq!(history(), runs);
    assert_eq!(node.property("layersweep-uses.path", "ActiveState"), "active");
    assert_eq!(node.property("layersweep-uses.service", "Result"), "success");
    let said = node.journal("layersweep-uses.service");
    assert!(!said.contains("Finished") && !said.contains("warning"), "a line for each container: {said}");
    let timer = node.property("layersweep-scan.timer", "NextElapseUSecMonotonic");
    assert!(timer.contains("h") || timer.contains("min"), "the timer would have scanned: {timer}");
    std::fs::remove_file(&far).unwrap();
    node.run("systemctl daemon-reload; systemctl restart layersweep-scan.timer").expect_code(0);
}
