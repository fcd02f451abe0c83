//! The list of what to delete: each deleting command, run as printed, frees what the list says, and no screen has one for
//! what cannot be made again.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::{self, Node};
use support::program::{self, list, number, text};
use support::store::{self, Store, succeed};
use support::{machine, promises, schema};

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
if command -v apt-get >/dev/null; then
    mkdir -p /var/cache/apt/archives/partial; fill 11 /var/cache/apt/archives/tool_1_all.deb
fi
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
    if !store::require_tools() || !Fs::Ext4.require() || !support::require_program("journalctl") {
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
    let of_group = |group: &str| -> Vec<&Value> {
        causes
            .iter()
            .filter(|cause| text(cause, "/group") == group && number(cause, "/frees_bytes") > 0)
            .collect()
    };
    for cause in &causes {
        let group = text(cause, "/group");
        let deletes = ["layersweep", "can-be-made-again", "stopped-container"].contains(&group);
        let command = if deletes { "shows" } else { "deletes" };
        assert_eq!(cause["command"].get(command), None, "{cause:#}");
    }
    // The least risk first.
    let heads = ["Can be made again:", "Stopped containers, ", "Only you can judge; "];
    let places: Vec<_> = heads.iter().map(|head| shown.find(&format!("\n{head}"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}: {shown}");
    let first = text(&before, "/verdict/causes/0/command/deletes");
    assert_eq!(first, "journalctl --vacuum-size=16M", "{before:#}");

    // A command shows what only a person can judge.
    let judged = of_group("only-you-can-judge");
    for wanted in [
        "fuser -v /var/srv/backup.tar",
        "fuser -v /var/srv/open",
        "fuser -v /var/log/app/app.log.1",
        "podman volume inspect spare",
        "coredumpctl list",
        "lsof +L1 /var",
    ] {
        assert!(judged.iter().any(|cause| cause["command"]["shows"] == wanted), "{wanted}: {judged:#?}");
        assert!(shown.contains(&format!("\n                       {wanted}\n")), "{wanted}: {shown}");
    }
    let apt = causes.iter().find(|cause| cause["path"] == "/var/cache/apt/archives");
    assert_eq!(apt.is_some(), Path::new("/usr/bin/apt-get").exists(), "{causes:#?}");
    if let Some(apt) = apt {
        assert_eq!(
            (text(apt, "/group"), text(apt, "/command/deletes")),
            ("can-be-made-again", "apt-get clean")
        );
    }
    let backup = judged.iter().find(|cause| cause["path"] == "/var/srv/backup.tar").unwrap();
    assert!(text(backup, "/text").contains("(file of root, written 20"), "{backup:#}");
    let used = causes.iter().find(|cause| cause["title"] == "volume used").unwrap();
    assert_eq!(
        (text(used, "/text"), text(used, "/group")),
        ("volume used (podman): used by etl-job", "kept")
    );
    // A volume is explained by its name and by its path, without a command that deletes it.
    for (name, users) in [("used", "used by etl-job"), ("spare", "no container uses it now; ")] {
        for reference in [name.to_owned(), format!("/var/lib/containers/storage/volumes/{name}")] {
            let explained = program::layersweep(["explain", &reference]).expect_code(0).stdout;
            assert!(explained.contains(&format!("  volume  {name} (podman): {users}")), "{explained}");
            assert!(
                explained.starts_with("directory ") && !explained.contains("other volumes"),
                "{explained}"
            );
            assert!(explained.contains(&format!("/storage/volumes/{name}\n")), "{explained}");
            assert!(explained.contains(&format!("  show    podman volume inspect {name}\n")), "{explained}");
        }
    }
    // Both stopped containers keep the image.
    let containers = of_group("stopped-container");
    let keeps = "lets gc free 20.";
    let others =
        ": the image localhost/job:1, once the other stopped containers that keep it are removed too";
    assert_eq!(containers.len(), 2, "{containers:#?}");
    for container in &containers {
        let remedy = text(container, "/remedy");
        assert!(remedy.contains(keeps) && remedy.contains(others), "{container:#}");
        assert!(number(container, "/keeps_bytes") > 20 << 20, "{container:#}");
    }
    let gc = program::layersweep(["gc", "--dry-run", "--high", "2", "--low", "1"]).expect_code(4).stdout;
    let in_use = "1 image is in use only by stopped containers: ";
    assert!(gc.contains(in_use) && gc.contains("etl-job") && gc.contains(" (20."), "{gc}");

    let paths = causes.iter().filter_map(|cause| cause["path"].as_str().map(str::to_owned));
    let references: Vec<_> =
        paths.filter(|path| Path::new(path).exists()).chain(["etl-job".into()]).collect();
    promises::assert_nothing_destroys(
        |words| {
            let run = program::layersweep(words).expect_no_crash();
            run.stdout + &run.stderr
        },
        &references,
    );
    let explained = program::layersweep(["explain", "etl-job"]).expect_code(0).stdout;
    assert!(explained.contains("  remove  podman rm "), "{explained}");

    let mut freed = 0;
    for cause in [of_group("can-be-made-again"), containers].concat() {
        let expected = number(cause, "/frees_bytes");
        let really = freed_by(text(cause, "/command/deletes"));
        assert!(really.abs_diff(expected) <= expected / 20, "{really} instead of {expected}: {cause:#}");
        freed += really;
    }
    assert!(freed > 100 << 20, "{freed}");
    let lost = judged.iter().find(|cause| text(cause, "/kind") == "deleted-open").unwrap();
    let room = free_bytes();
    drop((gone.take(), open.take()));
    assert!((free_bytes() - room).abs_diff(number(lost, "/frees_bytes")) < 1 << 20, "{lost:#}");
    succeed(Command::new("umount").args(["-l", "/var"]));
}

/// Of the images `kept`, `never`, `over` and `build`, which share a base, a rule keeps the first and a running container uses
/// the base. Their containers were never started, have exited, or are a build container.
#[test]
fn stopped_containers_are_one_list_everywhere() {
    let tools = ["runc", "busybox"].map(support::require_program);
    if !store::require_tools() || !Fs::Ext4.require() || tools.contains(&false) {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 300 * MIB);
    let layer = |name: &str, mib: u64| LayerSpec {
        files: vec![mib * MIB],
        younger: support::slot(),
        ..LayerSpec::new(name)
    };
    let image = |name: &str, layers: Vec<LayerSpec>| ImageSpec {
        names: vec![format!("localhost/{name}:1")],
        layers,
        label: name.to_owned(),
    };
    let on_base = |name: &str| image(name, vec![layer("stopped-base", 5), layer(name, 20)]);
    let mut images = ["kept", "never", "over", "build"].map(on_base).to_vec();
    images.push(image("web", vec![layer("stopped-base", 5)]));
    let store = Store::of(&loopfs.path().join("root"), "overlay", &images);
    for (container, image) in [("pinned", "kept"), ("later", "never")] {
        let image = format!("localhost/{image}:1");
        store.podman(["create", "--name", container, "--network", "none", &image, "/x"]);
    }
    store.start("localhost/over:1", "migrate");
    store.podman(["stop", "--time", "0", "migrate"]);
    let working = store.buildah(["from", "localhost/build:1"]).trim().to_owned();
    store.start("localhost/web:1", "web");
    let config = store.scratch().join("names.toml");
    std::fs::write(&config, "[protect]\nnames = [\"localhost/kept:1\"]\nnot_repullable = \"never\"\n")
        .unwrap();
    let node = Node::of(store);
    let run = |words: &[&str], code| {
        node.run(&[words, &["--config", config.to_str().unwrap()]].concat()).expect_code(code)
    };
    let json = |words: &[&str], code| node::document(run(&[words, &["--format", "json"]].concat(), code));
    let gc = &["gc", "--via", "direct", "--dry-run", "--min-age", "0s", "--high", "2", "--low", "1"][..];

    let of_gc = json(gc, 4);
    let stopped = &of_gc["stopped"];
    for words in [&["usage"][..], &["report"]] {
        assert_eq!(json(words, 0)["stopped"], *stopped, "{words:?}");
    }
    // Three images of 20 MiB: the base stays.
    let expected = 60 * MIB..61 * MIB;
    assert!(expected.contains(&number(stopped, "/keeps_bytes")), "{stopped:#}");
    let names = list(stopped, "/images").iter().map(|image| text(image, "/name")).collect::<Vec<_>>();
    let held = ["localhost/build:1", "localhost/never:1", "localhost/over:1"];
    assert!(names.len() == held.len() && held.iter().all(|name| names.contains(name)), "{names:?}");
    let removals = list(stopped, "/removals");
    let command = |removal: &Value| text(removal, "/command/deletes").to_owned();
    let tool = |name: &str| format!("{name} --root {} rm ", node.store.root().display());
    let of = |name: &str| removals.iter().find(|removal| command(removal).starts_with(&tool(name))).unwrap();
    let (podman, buildah) = (of("podman"), of("buildah"));
    assert_eq!(removals.len(), 2, "{removals:#?}");
    let mut containers: Vec<_> = list(podman, "/containers").iter().map(|c| text(c, "/name")).collect();
    containers.sort_unstable();
    assert_eq!(containers, ["later", "migrate"]);
    assert_eq!(command(buildah), tool("buildah") + &working);
    assert!((40 * MIB..41 * MIB).contains(&number(podman, "/keeps_bytes")), "{podman:#}");

    // The screens print the same commands.
    for (words, code) in [(gc, 4), (&["usage"], 0), (&["report"], 0)] {
        let shown = run(words, code).stdout;
        for removal in removals {
            assert!(shown.contains(&format!(" {}\n", command(removal))), "{words:?}: {shown}");
        }
        assert!(shown.contains("lets gc free 40."), "{words:?}: {shown}");
    }
    let shown = run(gc, 4).stdout;
    assert!(shown.contains("5 images are in use, 3 of them only by stopped containers: "), "{shown}");
    assert!(shown.contains("localhost/web:1: used by the podman container web (running)\n"), "{shown}");
    // An image that stays has its own holders.
    let explained = run(&["explain", "localhost/over:1"], 0).stdout;
    assert!(explained.contains("\nOnly stopped containers keep it\n"), "{explained}");
    assert!(explained.contains(&format!(" {}migrate\n", tool("podman"))), "{explained}");
    assert!(explained.contains("lets gc free 20."), "{explained}");
    let explained = run(&["explain", "localhost/web:1"], 0).stdout;
    assert!(!explained.contains("Only stopped"), "{explained}");

    // The commands, run as printed, let gc free what was said.
    let planned = number(&of_gc, "/predicted_bytes");
    for removal in removals {
        let words: Vec<_> = command(removal).split(' ').map(str::to_owned).collect();
        let mut tool = match words[0].as_str() {
            "podman" => node.store.podman_command(),
            _ => node.store.buildah_command(),
        };
        succeed(tool.args(&words[3..]));
    }
    let after = json(gc, 4);
    let more = number(&after, "/predicted_bytes") - planned;
    assert!(more.abs_diff(number(stopped, "/keeps_bytes")) < MIB / 16, "{more}: {after:#}");
    assert_eq!(after["stopped"]["removals"], serde_json::json!([]), "{after:#}");
}

#[test]
fn destroying_commands_are_recognised() {
    for (line, destroys) in [
        ("                       rm /srv/db/data.mdb", true),
        ("    rm '/srv/a b'", true),
        ("hint: free space by hand: truncate -s 0 /var/log/a (24.0 MiB)", true),
        ("find /var/lib/systemd/coredump -xdev -type f -delete", true),
        ("podman --root /home/alice/x volume rm etcd", true),
        (r#""remedy": "`podman container rm --storage 0a`""#, true),
        ("podman rm -f web", true),
        ("`podman rmi --force a`", true),
        ("rm -rf /var/lib/containers/storage", true),
        ("podman system prune", true),
        ("docker builder prune --all", true),
        ("podman rm 0a1b", false),
        ("as alice: podman rm 0a1b", false),
        ("crictl rmp 0a1b", false),
        ("journalctl --vacuum-size=16M", false),
        ("layersweep sweep --delete --class orphan-dir", false),
        ("layersweep rm -y --file /tmp/cve.txt", false),
        ("layersweep rm a; rm /srv/b", true),
        ("layersweep rm registry.example/notes:1", false),
        ("podman run --rm --network none registry.example/notes:1 busybox", false),
        ("rm /run/layersweep/hold", false),
        ("rm -rf /var/lib/layersweep /etc/layersweep /run/layersweep", false),
        ("rm -rf /var/lib/layersweep /srv", true),
        ("docker builder prune", false),
    ] {
        assert_eq!(!promises::destroying_commands(line).is_empty(), destroys, "{line}");
    }
}
