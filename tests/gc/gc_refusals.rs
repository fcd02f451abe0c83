//! `gc` and `rm` where safety is not proven: nothing is deleted, and one line names the reason. Also invalid arguments
//! and configurations.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, IN_USE, deleted, name, rule};
use cri_server::{Listing, Removal};
use rusqlite::Connection;
use support::loopfs::Fs;
use support::node;
use support::program::{self, Run, list, text};

const GC: [&str; 5] = ["gc", "--high", "1", "--low", "0"];

/// Checks for one error in one line that contains all of `parts`, and for a hint if one is expected.
#[track_caller]
fn assert_error(run: &Run, parts: &[&str], hint: Option<&str>) {
    let errors: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{run:?}");
    for part in parts {
        assert!(errors[0].contains(part), "{part:?}: {run:?}");
    }
    let hints: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("hint: ")).collect();
    if let Some(hint) = hint {
        assert!(hints.iter().any(|line| line.contains(hint)), "{hint:?}: {run:?}");
    }
}

/// Checks a refusal: exit code 5, a document that reports it, and every image still exists.
#[track_caller]
fn assert_refused(node: &GcNode, words: &[&str], parts: &[&str], hint: Option<&str>) -> Run {
    let images = node.names();
    let run = node.run(&[words, &["--format", "json"]].concat()).expect_code(5);
    let document = node::document(run.clone());
    assert_eq!(document["outcome"], "refused", "{document:#}");
    assert_eq!(list(&document, "/deleted").len(), 0);
    let message = text(&document, "/errors/0/message").to_owned();
    for part in parts {
        assert!(message.contains(part), "{part:?}: {message:?}");
    }
    assert_error(&run, parts, hint);
    assert_eq!(node.names(), images, "something was deleted");
    run
}

/// Images can be deleted through the runtime. An unfinished deletion of a killed run waits for a run that sees all
/// processes, which is reported.
#[test]
fn unfinished_run_behind_hidden_processes_is_reported() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    if !support::require_program("unshare") {
        return;
    }
    node.age();
    // The name of an emptied layer: `layersweep` in hexadecimal digits, then number, layer and images.
    let emptied = node.store.root().join("overlay").join(format!("{:0<64}", "6c617965727377656570"));
    fn rm(node: &GcNode, number: usize) -> program::Run {
        let visible = node.command(&["rm", "-y", "--min-age", "0s", &name(number)]);
        let mut command = Command::new("unshare");
        program::hermetic(&mut command);
        command.args(["--pid", "--fork", "--mount-proc"]).arg(visible.get_program()).args(visible.get_args());
        program::run(&mut command).expect_code(0)
    }
    let message = "an interrupted run is not finished";
    assert!(!rm(&node, 0).stderr.contains(message));
    std::fs::create_dir(&emptied).unwrap();
    let run = rm(&node, 1);
    assert!(run.stderr.contains(message) && emptied.exists(), "{run:?}");
}

#[test]
fn partial_listing_deletes_nothing() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    for words in [&GC[..], &["rm", "reg.local/old-0:1"]] {
        for listing in [Listing::Error("out of order"), Listing::WrongIds, Listing::SameId, Listing::EmptyId]
        {
            for which in ["images", "containers", "sandboxes"] {
                if which != "images" && listing == Listing::SameId {
                    continue; // there is only one
                }
                node.server.behave(|behaviour| {
                    let field = match which {
                        "images" => &mut behaviour.images,
                        "containers" => &mut behaviour.containers,
                        _ => &mut behaviour.sandboxes,
                    };
                    *field = listing.clone();
                });
                assert_refused(&node, words, &["nothing was deleted"], None);
                node.server.behave(|behaviour| *behaviour = cri_server::Behaviour::default());
            }
        }
    }
    // A dry run is refused too.
    node.server.behave(|behaviour| behaviour.images = Listing::Error("out of order"));
    assert_refused(&node, &[&GC[..], &["--dry-run"]].concat(), &["out of order"], None);
    assert_eq!(node.removals(), 0);
    node.server.behave(|behaviour| behaviour.images = Listing::Honest);
    // A listing without any image of the disk belongs to another store, or is empty.
    node.server.behave(|behaviour| behaviour.unlisted = node.names());
    assert_refused(&node, &GC, &["none of the 6 images", "partial"], None);
    assert_eq!(node.removals(), 0);
    // An image that the runtime does not list is out of its reach, as with containerd, which lists no image whose
    // manifest is gone. The others are deleted, and the low threshold is not reached.
    node.server.behave(|behaviour| behaviour.unlisted = vec![name(0), name(1)]);
    let document = node.json(4, &GC);
    assert_eq!(document["outcome"], "not_reached", "{document:#}");
    assert_eq!(deleted(&document), [name(2), name(3), name(4)], "{document:#}");
    for number in [0, 1] {
        assert_eq!(rule(&document, &name(number)), "out-of-reach", "{document:#}");
    }
    // An image in use is kept by the disk's records, whether the runtime lists it or not.
    node.server.behave(|behaviour| behaviour.unlisted = vec![name(IN_USE)]);
    let document = node.json(4, &GC);
    assert_eq!(deleted(&document), [name(0), name(1)], "{document:#}");
    assert_eq!(rule(&document, &name(IN_USE)), "in-use", "{document:#}");
    assert_eq!(node.names(), [name(IN_USE)]);
}

#[test]
fn listing_that_breaks_ends_the_run() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    node.age();
    node.server.behave(|behaviour| {
        behaviour.removals = vec![(name(1), Removal::Slow(Duration::from_secs(2)))];
    });
    let running = node.start(&GC);
    node.wait_for_a_removal();
    node.wait_for_a_removal();
    node.server.behave(|behaviour| behaviour.containers = Listing::Error("too busy to tell"));
    let document = node::document(running.end().expect_no_crash().expect_code(1));
    assert_eq!(document["outcome"], "failed");
    assert_eq!(deleted(&document), [name(0), name(1)]);
    assert!(text(&document, "/errors/0/message").contains("too busy to tell"), "{document:#}");
    let ended = list(&document, "/kept").iter().filter(|kept| kept["rule"] == "run-ended");
    assert_eq!(ended.count(), 5, "{document:#}");
    assert_eq!(node.names().len(), 6);
}

#[test]
fn run_without_runtime_deletes_nothing() {
    let Some(mut node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    // A socket that does not exist.
    let missing = node.store.scratch().join("none.sock").display().to_string();
    fn gc_at(node: &GcNode, endpoint: &str) -> program::Run {
        let mut command = program::command();
        command.args(GC).arg("--graphroot").arg(node.store.root()).arg("--state-dir").arg(&node.state);
        command.args(["--runroot"]).arg(node.store.runroot()).args(["--cri-endpoint", endpoint]);
        program::run(&mut command).expect_no_crash()
    }
    let run = gc_at(&node, &format!("unix://{missing}")).expect_code(5);
    assert_error(&run, &[&missing], Some("--cri-endpoint"));
    assert!(run.took < Duration::from_secs(3), "{run:?}");
    for endpoint in ["tcp://127.0.0.1:1", "crio.sock", "unix://"] {
        let run = gc_at(&node, endpoint).expect_code(2);
        assert_error(&run, &["--cri-endpoint"], Some("unix:///run/crio/crio.sock"));
    }
    // A directory, and a socket with another server behind it.
    let run = gc_at(&node, &format!("unix://{}", node.store.scratch().display())).expect_code(5);
    assert_error(&run, &[&node.store.scratch().display().to_string()], None);
    let other = node.store.scratch().join("other.sock");
    let listener = UnixListener::bind(&other).unwrap();
    let speaks = std::thread::spawn(move || {
        // This server answers everything, and is not gRPC.
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { break };
            let mut bytes = [0; 1024];
            if matches!(stream.read(&mut bytes), Ok(0) | Err(_)) {
                break;
            }
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let run = gc_at(&node, &format!("unix://{}", other.display())).expect_code(5);
    assert_error(&run, &["other.sock"], Some("CRI socket"));
    drop(std::os::unix::net::UnixStream::connect(&other));
    speaks.join().unwrap();
    // A stopped runtime has no socket; a killed one leaves its socket.
    let endpoint = node.server.endpoint();
    node.server.stop();
    assert_error(&gc_at(&node, &endpoint).expect_code(5), &["cri.sock"], Some("start CRI-O"));
    // Policy kubelet needs the figures of a runtime.
    let by_kubelet = [&GC[..], &["--via", "direct", "--dry-run", "--policy", "kubelet"]].concat();
    assert_refused(&node, &by_kubelet, &["policy kubelet"], Some("--policy exact"));
    drop(UnixListener::bind(node.server.socket()).unwrap());
    let run = gc_at(&node, &endpoint).expect_code(5);
    assert_error(&run, &["cri.sock"], Some("start CRI-O"));
    std::fs::remove_file(node.server.socket()).unwrap();
    node.server.restart();
    // The store is named, but its runtime is not.
    let run = program::run(
        program::command()
            .args(GC)
            .arg("--graphroot")
            .arg(node.store.root())
            .arg("--state-dir")
            .arg(&node.state),
    )
    .expect_no_crash()
    .expect_code(2);
    assert_error(&run, &["a store is named"], Some("--cri-endpoint"));
    assert_eq!(node.names().len(), 6);
    // The runtime serves another store than the named one.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = support::small::store(&elsewhere.path().join("other"));
    let run = program::run(
        program::command()
            .args(GC)
            .args(["--format", "json", "--cri-endpoint", &node.server.endpoint()])
            .arg("--graphroot")
            .arg(other.root())
            .arg("--state-dir")
            .arg(&node.state),
    )
    .expect_no_crash()
    .expect_code(5);
    assert_error(&run, &["which was not read"], None);
    assert_eq!(node::document(run)["outcome"], "refused");
    other.remove_containers();
}

#[test]
fn unprivileged_user_is_refused() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    if !support::require_program("setpriv") {
        return;
    }
    // A copy of the program that this user can reach.
    let public = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let program = public.path().join("layersweep");
    std::fs::copy(env!("CARGO_BIN_EXE_layersweep"), &program).unwrap();
    let mut command = std::process::Command::new("setpriv");
    program::hermetic(&mut command);
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program).args(GC).arg("-y");
    command.arg("--graphroot").arg(node.store.root()).arg("--state-dir").arg(public.path().join("state"));
    command.args(["--cri-endpoint", &node.server.endpoint()]);
    let run = program::run(&mut command).expect_no_crash().expect_code(5);
    assert_error(&run, &[], None);
    assert_eq!(node.names().len(), 6);
}

#[test]
fn unreadable_records_pin_everything() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    node.run(&["pin", "add", &name(0)]).expect_code(0);
    let database = node.state.join("layersweep.db");
    let good = std::fs::read(&database).unwrap();
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(node.state.join(format!("layersweep.db{suffix}")));
    }
    std::fs::write(&database, vec![0x5a; good.len()]).unwrap();
    let dry = [&GC[..], &["--dry-run"]].concat();
    let scan = format!("--state-dir {} scan` quarantines a damaged database", node.state.display());
    assert_refused(&node, &dry, &["pinned"], Some(&scan));
    assert_refused(&node, &["rm", &name(0)], &["pinned"], None);
    let run = assert_refused(&node, &GC, &["pinned"], None);
    assert!(run.stderr.contains("layersweep.db"), "{run:?}");
    assert_eq!(node.removals(), 0);
    // A scan sets the file aside. The pins are unknown, so every image is pinned until the user changes that.
    node.run(&["scan", "-q"]);
    let names: Vec<_> = std::fs::read_dir(&node.state).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().any(|name| name.to_string_lossy().contains("corrupt")), "{names:?}");
    let kept = node.json(4, &[&GC[..], &["--min-age", "0s"]].concat());
    assert_eq!(deleted(&kept).len(), 0, "{kept:#}");
    assert!(node.run(&["pin", "list"]).expect_code(0).stdout.contains("corrupt"), "it says why");
    node.run(&["pin", "remove", "*"]).expect_code(0);
    node.run(&["pin", "add", &name(1)]).expect_code(0);
    let real = node.json(4, &[&GC[..], &["--min-age", "0s"]].concat());
    assert_eq!(deleted(&real).len(), 4, "{real:#}");
    assert!(node.names().contains(&name(1)));
}

#[test]
fn records_of_newer_version_are_unchanged() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    let database = Connection::open(node.state.join("layersweep.db")).unwrap();
    database.execute_batch("PRAGMA user_version = 999").unwrap();
    drop(database);
    for words in [&GC[..], &["gc", "--dry-run"], &["rm", "reg.local/old-0:1"]] {
        let run = node.run(words).expect_code(2);
        assert_error(&run, &["999"], Some("newer layersweep"));
    }
    assert_eq!(node.removals(), 0);
    assert_eq!(node.names().len(), 6);
}

#[test]
fn second_run_is_refused() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    node.age();
    node.server.behave(|behaviour| {
        behaviour.removals = vec![(name(0), Removal::Slow(Duration::from_secs(6)))];
    });
    let first = node.start(&GC);
    node.wait_for_a_removal();
    let pid = first.pid().to_string();
    for words in [&GC[..], &["rm", "reg.local/old-1:1"]] {
        let second = node.run(&[words, &["--format", "json"]].concat()).expect_code(5);
        assert!(second.took < Duration::from_secs(1), "{:?}", second.took);
        assert_error(&second, &["run.lock", &pid, "layersweep gc"], Some("wait"));
        assert_eq!(node::document(second)["outcome"], "refused");
    }
    // A dry run is not a run.
    let dry = node.json(4, &[&GC[..], &["--dry-run"]].concat());
    assert!(!deleted(&dry).is_empty());
    node.json(0, &["images"]);
    let done = node::document(first.end().expect_no_crash().expect_code(4));
    assert_eq!(deleted(&done).len(), 7);
    // Afterwards the lock is released.
    node.json(4, &GC);
}

#[test]
fn invalid_arguments_and_configurations_are_refused() {
    fn bad(words: &[&str]) -> Run {
        program::layersweep(words).expect_no_crash().expect_code(2)
    }
    for (words, parts) in [
        (&["gc", "--high", "101"][..], &["--high", "101"][..]),
        (&["gc", "--high", "many"], &["--high", "many"]),
        (&["gc", "--high", "70", "--low", "71"], &["--low", "71", "70"]),
        (&["gc", "--low", "76"], &["--low", "76", "75"]),
        (&["gc", "--min-age", "soon"], &["--min-age", "soon"]),
        (&["gc", "--min-age=-3m"], &["--min-age"]),
        (&["gc", "--high=-1"], &["--high", "-1"]),
        (&["gc", "--max-age", "5"], &["--max-age", "5"]),
        (&["gc", "--min-age", "2d", "--max-age", "1d"], &["--min-age", "2d", "--max-age", "24h"]),
        (&["gc", "--max-age", "99999999999999999d"], &["--max-age", "is too long"]),
        (&["gc", "--min-free", "lots"], &["--min-free", "lots"]),
        (&["rm", "x", "--min-age", "never"], &["--min-age", "never"]),
    ] {
        let run = bad(words);
        assert!(run.stdout.is_empty(), "{run:?}");
        let first = run.stderr.lines().next().unwrap();
        assert!(first.starts_with("error: "), "{run:?}");
        for part in parts {
            assert!(first.contains(part), "{part:?}: {run:?}");
        }
    }
    for words in
        [&["gc", "--policy", "mine"][..], &["gc", "--via", "hope"], &["gc", "reg.local/a:1"], &["rm"]]
    {
        bad(words);
    }
    // Policy kubelet deletes nothing, and is shown only for settings that the kubelet accepts.
    let kubelet = ["gc", "--policy", "kubelet"];
    assert_error(&bad(&kubelet), &["--policy kubelet", "deletes nothing"], Some("--dry-run"));
    for (more, part) in [
        (&["--high", "75", "--low", "75"][..], "the low threshold is not below"),
        (&["--max-age", "2m"], "the maximum age is not above"),
        (&["--min-free", "5"], "only targets in percent used"),
        (&["--high", "off"], "only targets in percent used"),
    ] {
        let run = bad(&[&kubelet[..], &["--dry-run"], more].concat());
        assert_error(&run, &["policy kubelet", part], None);
    }
    // Nothing is deleted from a disk below a sysroot.
    assert_error(&bad(&["gc", "--sysroot", "/"]), &["--sysroot"], Some("report"));

    // All errors of a file are reported together, each with its line.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("layersweep.toml");
    let text = "[images]\nhigh_percent = 101\nlow_percent = \"low\"\nmin_age = \"soon\"\n\
                colour = \"red\"\n[protect]\nnames = [\"[\"]\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_string_lossy().into_owned();
    let run = bad(&["gc", "--config", &file]);
    let errors: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let expected = [
        ("line 2", "high_percent"),
        ("line 3", "low_percent"),
        ("line 4", "min_age"),
        ("line 5", "colour"),
        ("line 7", "names"),
    ];
    assert_eq!(errors.len(), expected.len(), "{run:?}");
    for (line, key) in expected {
        let told = errors
            .iter()
            .any(|error| error.contains(&file) && error.contains(&format!("{line},")) && error.contains(key));
        assert!(told, "{line} {key}: {run:?}");
    }
    let missing = dir.path().join("none.toml").to_string_lossy().into_owned();
    assert!(bad(&["gc", "--config", &missing]).stderr.contains(&missing));
}

#[test]
fn run_without_store_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let root = empty.path().to_string_lossy().into_owned();
    let socket = format!("unix://{root}/none.sock");
    // Whatever is missing first is reported in one line.
    let run = program::layersweep(["gc", "--graphroot", &root, "--cri-endpoint", &socket]);
    let run = run.expect_no_crash().expect_code(5);
    assert_error(&run, &["none.sock"], Some("--cri-endpoint"));
    // The runtime exists, but the store does not.
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    let run = program::layersweep(["gc", "--graphroot", &root, "--cri-endpoint", &node.server.endpoint()]);
    let run = run.expect_no_crash().expect_code(10);
    assert_error(&run, &[&root], None);
    assert_eq!(node.names().len(), 6);
}
