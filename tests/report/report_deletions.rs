//! The list of what to delete: each command, run as printed, frees what the list says.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support;
use support::program::{self, list, number, text};
use support::store::{self, succeed};
use support::{loopfs::Fs, machine, schema};

/// Mounts a new disk as `/var` and fills it with one of each kind of data that can be deleted.
const SCENE: &str = r#"
set -e
truncate -s 600M "$1/disk"; mkfs.ext4 -q -m 2 "$1/disk"
mount -t tmpfs tmpfs /run; mount -o loop "$1/disk" /var
mkdir -p /var/lib /var/tmp /var/srv /var/log/app /var/lib/systemd/coredump; ln -s /run /var/run
fill() { head -c "$1"M /dev/urandom >"$2"; }
container=$(buildah from scratch)
fill 20 "$(buildah mount "$container")/data"; buildah umount "$container" >/dev/null
buildah commit -q "$container" localhost/job:1 >/dev/null; buildah rm "$container" >/dev/null
podman volume create spare >/dev/null; podman volume create used >/dev/null
fill 15 /var/lib/containers/storage/volumes/spare/_data/wal
fill 12 /var/lib/containers/storage/volumes/used/_data/wal
podman create --name etl-job --network none -v used:/d localhost/job:1 /x >/dev/null
fill 40 "$(podman mount etl-job)/out"; podman umount etl-job >/dev/null
log=/var/lib/containers/storage/overlay-containers/$(podman inspect -f '{{.Id}}' etl-job)/userdata/ctr.log
fill 9 "$log"
container=$(buildah from localhost/job:1)
fill 25 "$(buildah mount "$container")/x"; buildah umount "$container" >/dev/null
fill 50 /var/log/app/app.log.1
fill 30 /var/lib/systemd/coredump/core.app.1
journal=/var/log/journal/$(cat /etc/machine-id); mkdir -p "$journal"
for number in 1 2 3 4 5; do
    fill 8 "$journal/system@3f1c3f1c3f1c3f1c3f1c3f1c3f1c3f1c-000000000000000$number-000640000000000$number.journal"
done
fill 8 "$journal/system.journal"
fill 80 /var/srv/backup.tar
fill 35 /var/srv/open
sync
"#;

fn report() -> Value {
    let report = program::layersweep(["report", "--format", "json"]).expect_no_crash().expect_code(0).json();
    schema::assert_fits("report", &report);
    report
}

fn free_bytes() -> u64 {
    succeed(Command::new("sync").arg("-f").arg("/var"));
    let room = succeed(Command::new("stat").args(["-f", "-c", "%f %S", "/var"]));
    let numbers: Vec<u64> = room.split_whitespace().map(|number| number.parse().unwrap()).collect();
    numbers[0] * numbers[1]
}

/// Runs a command as printed; returns the bytes that it frees.
fn freed_by(command: &str) -> u64 {
    let before = free_bytes();
    succeed(Command::new("sh").args(["-ec", command]));
    free_bytes().saturating_sub(before)
}

#[test]
fn printed_commands_free_what_the_list_says() {
    if !store::require_tools()
        || !Fs::Ext4.require()
        || Command::new("journalctl").arg("--version").output().is_err()
    {
        return;
    }
    machine::require_checkout_elsewhere();
    let work = tempfile::tempdir_in("/tmp").unwrap();
    succeed(Command::new("bash").args(["-c", SCENE, "scene"]).arg(work.path()));
    let mut open = std::fs::File::open("/var/srv/open").ok();
    std::fs::write("/var/srv/gone", vec![1; 28 << 20]).unwrap();
    let mut gone = std::fs::File::open("/var/srv/gone").ok();
    std::fs::remove_file("/var/srv/gone").unwrap();
    free_bytes();

    let shown = program::layersweep(["report"]).expect_code(0).stdout;
    println!("{shown}");
    let before = report();
    let causes = list(&before, "/verdict/causes").to_vec();
    // A file that a process has open is not deleted.
    let in_use = causes.iter().find(|cause| cause["path"] == "/var/srv/open").unwrap();
    assert_eq!((&in_use["command"], text(in_use, "/taken_by")), (&Value::Null, "nobody"), "{in_use:#}");
    let deletions: Vec<_> = causes.iter().filter(|cause| number(cause, "/frees_bytes") > 0).collect();
    for wanted in [
        "rm /var/srv/backup.tar",
        "truncate -s 0 /var/log/app/app.log.1",
        "podman rm ",
        "buildah rm ",
        "podman volume rm spare",
        "find /var/lib/systemd/coredump -xdev -type f -delete",
        "journalctl --vacuum-size=16M",
    ] {
        let is_listed = deletions
            .iter()
            .any(|cause| cause["command"].as_str().is_some_and(|command| command.starts_with(wanted)));
        assert!(is_listed, "{wanted}: {deletions:#?}");
        assert!(shown.contains(&format!("\n                       {wanted}")), "{wanted}: {shown}");
    }
    let used = causes.iter().find(|cause| cause["title"] == "volume used").unwrap();
    assert_eq!(
        (text(used, "/text"), &used["command"]),
        ("volume used (podman): used by etl-job", &Value::Null)
    );
    // A volume is explained by its name and by its path.
    for reference in ["used", "/var/lib/containers/storage/volumes/used"] {
        let explained = program::layersweep(["explain", reference]).expect_code(0).stdout;
        assert!(explained.contains("  volume  used (podman): used by etl-job\n"), "{explained}");
        assert!(explained.contains("  delete  podman volume rm used\n"), "{explained}");
    }
    let mut freed = 0;
    for cause in deletions {
        let expected = number(cause, "/frees_bytes");
        let really = match cause["command"].as_str() {
            Some(command) => freed_by(command),
            None => {
                assert_eq!(text(cause, "/kind"), "deleted-open", "{cause:#}");
                let before = free_bytes();
                drop(gone.take());
                free_bytes() - before
            }
        };
        assert!(really.abs_diff(expected) <= expected / 20, "{really} instead of {expected}: {cause:#}");
        freed += really;
    }
    drop(open.take());
    assert!(freed > 250 << 20, "{freed}");
    let left = report();
    let left = list(&left, "/verdict/causes").iter().filter(|cause| number(cause, "/frees_bytes") > 0);
    let left: Vec<_> = left.map(|cause| text(cause, "/title").to_owned()).collect();
    println!("{left:?}");
    assert!(Path::new("/var/srv/open").exists());
    succeed(Command::new("umount").args(["-l", "/var"]));
}
