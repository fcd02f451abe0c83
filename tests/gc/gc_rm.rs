//! `rm` by name, and the confirmation on a terminal.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::support;
use crate::support::cri_server;
use cri_server::Removal;
use cri_server::gc_node::{GcNode, IN_USE, assert_exact, assert_recorded, deleted, kept, name, rule};
use support::loopfs::Fs;
use support::node;
use support::program::{self, Run, list, text};
use support::running::Running;

fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(name).collect()
}

#[test]
fn images_are_removed_by_every_kind_of_name() {
    let Some(node) = GcNode::new(Fs::Ext4, 9) else { return };
    node.age();
    node.store.podman(["tag", &name(3), "reg.local/also-3:1"]);
    let images = node.json(0, &["images"]);
    let digest = text(node::image(&images, &name(2)), "/digests/0").to_owned();
    let id = node.id(&name(1));
    let before = node.names().len();

    // A dry run reports what the run then does, in the given order.
    let by_many = ["rm", &name(8), &id[..12], &digest, &name(3), "reg.local/also-3:1"];
    let dry = node.json(0, &[&by_many[..], &["--dry-run"]].concat());
    assert_eq!(node.names().len(), before);
    let real = node.json(0, &by_many);
    for document in [&dry, &real] {
        let first: Vec<_> = list(document, "/deleted").iter().map(|row| text(row, "/names/0")).collect();
        assert_eq!(first[..3], names([8, 1, 2]), "{document:#}");
        assert!(list(document, "/deleted").iter().all(|row| row["reason"] == "request"));
        assert_eq!(document["kind"], "rm");
        assert_eq!(document["outcome"], "reached");
    }
    assert_exact(&real);
    let mut both = support::program::texts(&real, "/deleted/3/names");
    both.sort();
    assert_eq!(both, ["reg.local/also-3:1".to_owned(), name(3)], "an image is deleted with all its names");
    assert_eq!(node.names(), names([0, 4, 5, 6, 7]));
    assert_recorded(&node.history()[0], &real);
    assert_eq!(node.history()[0]["command"], "rm");

    // The same image twice, by two names.
    let id = node.id(&name(4));
    let real = node.json(0, &["rm", &name(4), &id]);
    assert_eq!(deleted(&real), names([4]));
}

/// Pulling by digest after pulling by tag adds a name to the image.
#[test]
fn removing_tag_removes_digest_names() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    let file = node.store.record("images.json");
    fn add(file: &std::path::Path, image: &str, repository: &str) {
        let mut records: Vec<serde_json::Value> =
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let record = records.iter_mut().find(|record| record["names"][0] == image).unwrap();
        let name = format!("{repository}@{}", text(record, "/digest"));
        record["names"].as_array_mut().unwrap().insert(0, name.into());
        std::fs::write(file, serde_json::to_vec(&records).unwrap()).unwrap();
    }
    add(&file, &name(0), name(0).split(':').next().unwrap());
    add(&file, &name(1), "reg.local/another");
    // The tag is shown.
    let images = node.json(0, &["images"]);
    assert!(list(&images, "/images").iter().any(|image| image["names"][0] == name(0).as_str()), "{images:#}");
    let refused = node.run(&["rm", &name(1)]).expect_code(2);
    assert!(refused.stderr.contains("it is also tagged reg.local/another@"), "{refused:?}");
    let done = node.json(0, &["rm", &name(0)]);
    assert_eq!(list(&done, "/deleted/0/names").len(), 2, "{done:#}");
    assert_exact(&done);
    assert!(!node.names().contains(&name(0)));
}

#[test]
fn unknown_or_kept_images_are_reported() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    node.age();
    node.store.podman(["create", "--name", "waiting", "--network", "none", &name(1), "/x"]);
    // One name is unknown: none of the others is deleted.
    let run = node.run(&["rm", &name(0), "reg.local/none:1", "--format", "json"]).expect_code(1);
    assert!(run.stderr.contains("reg.local/none:1"), "{run:?}");
    assert!(run.stderr.contains("hint: "), "{run:?}");
    assert_eq!(node.names().len(), 8);
    assert_eq!(node.removals(), 0);
    // A container is not an image.
    let run = node.run(&["rm", "waiting"]).expect_code(1);
    assert!(run.stderr.contains("is not an image"), "{run:?}");

    // An image in use is kept, and its user is named; the others are deleted.
    let real = node.json(5, &["rm", &name(0), &name(1), &name(IN_USE)]);
    assert_eq!(deleted(&real), names([0]));
    assert_eq!((rule(&real, &name(1)), rule(&real, &name(IN_USE))), ("in-use", "in-use"));
    assert!(text(kept(&real, &name(1)), "/detail").contains("podman container waiting"));
    assert!(text(kept(&real, &name(IN_USE)), "/detail").contains("cri-o container"));
    let table = node.run(&["rm", &name(1)]).expect_code(5);
    assert!(table.stdout.contains("podman container waiting"), "{table:?}");
    let root = node.store.root().display().to_string();
    assert!(table.stdout.contains(&format!("hint: `podman --root {root} rm ")), "{table:?}");
    assert!(support::program::texts(&real, "/hints").iter().any(|hint| hint.contains(" rm ")), "{real:#}");
    let dry = node.json(5, &["rm", &name(1), "--dry-run"]);
    assert_eq!(rule(&dry, &name(1)), "in-use");

    // The runtime reports it as in use: kept, as if the disk had shown it.
    node.server.behave(|behaviour| behaviour.removals = vec![(name(2), Removal::Refuse)]);
    let kept = node.json(5, &["rm", &name(2)]);
    assert_eq!(rule(&kept, &name(2)), "in-use");
    // The removal fails: reported, backed off for gc, and tried again by name.
    node.server.behave(|behaviour| behaviour.removals = vec![(name(2), Removal::Fail)]);
    let refused = node.json(1, &["rm", &name(2)]);
    assert_eq!(rule(&refused, &name(2)), "removal-failed");
    let gc = node.json(4, &["gc", "--dry-run", "--high", "1", "--low", "0"]);
    assert_eq!(rule(&gc, &name(2)), "backing-off");
    node.server.behave(|behaviour| behaviour.removals.clear());
    let real = node.json(0, &["rm", &name(2)]);
    assert_eq!(deleted(&real), names([2]));
    node.store.remove_containers();
}

/// A list of a whole fleet: references, digests and ids, most of which another node has.
#[test]
fn list_is_deleted_with_all_protections() {
    let Some(node) = GcNode::new(Fs::Ext4, 9) else { return };
    node.age();
    node.store.podman(["tag", &name(3), "reg.local/also-3:1"]);
    let images = node.json(0, &["images"]);
    let digest = |number: usize| text(node::image(&images, &name(number)), "/digests/0").to_owned();
    let repository = name(2).split(':').next().unwrap().to_owned();
    let file = node.store.scratch().join("list");
    let path = file.to_str().unwrap();
    let lines = [
        "# CVE-2026-1, from a scanner".to_owned(),
        format!("{}  # high", digest(1)),
        format!("docker-pullable://{repository}@{}\r", digest(2)),
        name(0),
        name(0),
        node.id(&name(4)),
        // Not on this node: the end of a name, the same content in another repository, and others.
        "old-6:1".to_owned(),
        format!("quay.io/elsewhere@{}", digest(6)),
        format!("sha256:{}", "0".repeat(64)),
        "nginx".to_owned(),
        "nginx".to_owned(),
        name(IN_USE),
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let by_list = ["rm", &name(8), "--file", path];
    let dry = node.json(5, &[&by_list[..], &["--dry-run"]].concat());
    assert_eq!(node.names().len(), 10);
    let real = node.json(5, &by_list);
    for document in [&dry, &real] {
        assert_eq!(deleted(document), names([8, 1, 2, 0, 4]), "{document:#}");
        assert_eq!(rule(document, &name(IN_USE)), "in-use");
        let absent = support::program::texts(document, "/absent");
        assert_eq!(absent, lines[6..10], "{document:#}");
    }
    assert_recorded(&node.history()[0], &real);
    // The next run of the same list, without what is in use: nothing to do is no error.
    std::fs::write(&file, lines[..11].join("\n")).unwrap();
    let again = node.run(&["rm", "--file", path]).expect_code(0);
    assert!(again.stdout.contains("8 lines of the list name no image of this node: "), "{again:?}");
    assert_eq!(node.json(0, &["rm", "--file", path])["outcome"], "not_needed");

    // The digest is here under another name.
    assert!(again.stdout.contains(&format!("list:8: {} is here as {}: ", digest(6), name(6))), "{again:?}");

    // Another tag keeps the image, unless the list names both. All such images are named at once.
    node.store.podman(["tag", &name(6), "reg.local/also-6:1"]);
    let by_digest = format!("{}@{}", name(3).split(':').next().unwrap(), digest(3));
    std::fs::write(&file, format!("# two\n{}\n{by_digest}\n{}\n", name(3), name(6))).unwrap();
    let refused = node.run(&["rm", "--file", path]).expect_code(2);
    for (line, number) in [(2, 3), (4, 6)] {
        let message = format!(
            "list:{line}: {}: it is also tagged reg.local/also-{number}:1; list {} or all its names or add --all-tags; \
             nothing was deleted\n",
            name(number),
            digest(number)
        );
        assert!(refused.stderr.contains(&message), "{message}: {refused:?}");
    }
    node.store.podman(["untag", &name(6), "reg.local/also-6:1"]);
    std::fs::write(&file, format!("{}\nreg.local/also-3:1\n", name(3))).unwrap();
    assert_eq!(list(&node.json(0, &["rm", "--file", path]), "/deleted").len(), 1);
    assert_eq!(node.names(), names([IN_USE, 6, 7]));

    // From standard input, nothing can be asked.
    let mut command = node.command(&["rm", "--file", "-"]);
    let refused = command.stdin(Stdio::from(std::fs::File::open(&file).unwrap())).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("nothing can be asked"), "{refused:?}");
    std::fs::write(&file, name(7)).unwrap();
    let mut command = node.command(&["rm", "-y", "--file", "-"]);
    let done = command.stdin(Stdio::from(std::fs::File::open(&file).unwrap())).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(node.names(), names([IN_USE, 6]));
}

#[test]
fn wrong_lists_delete_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("list");
    let refused = |words: &str| {
        let mut command = program::command();
        let run = program::run(command.args(["rm", "-y", "quay.io/a:1", "--file"]).arg(&file)).expect_code(2);
        assert!(
            run.stderr.contains(words) && run.stderr.contains("; nothing was deleted"),
            "{words}: {run:?}"
        );
        assert_eq!(run.stderr.lines().count(), 2, "{run:?}");
        assert!(!run.stderr.contains(['\u{1b}', '\0']), "{run:?}");
    };
    refused("No such file");
    for (content, words) in [
        (&b"quay.io/a:1\n<html>\n"[..], "list:2: not an image reference"),
        (b"abc\noci-archive:/tmp/x.tar\n", "list:2: not an image of a registry"),
        (b"abc\n0123456789ab\n", "list:2: the start of an id"),
        (b"a\x1b[31m\n", "list:1: not an image reference"),
        (b"\x7fELF\0\0\n", "list:1: not an image reference"),
        (b"a\n\xff\xfe\n", "not valid UTF-8"),
    ] {
        std::fs::write(&file, content).unwrap();
        refused(words);
    }
    std::fs::File::create(&file).unwrap().set_len(17 << 20).unwrap();
    refused("longer than the limit");
    let mut command = program::command();
    let run = program::run(command.args(["rm", "-y", "--file", "/dev/stdin"]).stdin(Stdio::piped()));
    let words = "/dev/stdin: it is not a regular file; `-` reads from standard input; nothing was deleted";
    assert!(run.clone().expect_code(2).stderr.contains(words), "{run:?}");
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("not a regular file");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    refused("a directory, not a file");
}

/// Runs the program on a terminal on which `answer` is typed.
fn on_terminal(node: &GcNode, words: &[&str], answer: &str) -> Run {
    typed(node, words, answer, "")
}

/// Like [`on_terminal`], with further shell words after the command.
fn typed(node: &GcNode, words: &[&str], answer: &str, behind: &str) -> Run {
    let input = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(input.path(), answer).unwrap();
    let mut command = terminal(node, words, behind);
    // The answer is typed ahead, as a person may do.
    command.stdin(Stdio::from(std::fs::File::open(input.path()).unwrap()));
    Running::start(&mut command).end().expect_no_crash()
}

/// Returns the command of the program on a terminal.
fn terminal(node: &GcNode, words: &[&str], behind: &str) -> Command {
    let line = node.command(words);
    fn quote(word: &std::ffi::OsStr) -> String {
        format!("'{}'", word.to_string_lossy())
    }
    let mut all = vec![quote(line.get_program())];
    all.extend(line.get_args().map(quote));
    let mut command = Command::new("script");
    program::hermetic(&mut command);
    let inner = format!("stty cols 120; {} {behind}", all.join(" "));
    command.args(["-qec", &inner, "/dev/null"]);
    command
}

#[test]
fn name_added_during_prompt_keeps_image() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    if !support::require_program("script") {
        return;
    }
    node.age();
    let words = ["rm", &name(0), "--no-progress", "--color", "never"];
    let mut child = terminal(&node, &words, "").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut screen, mut from) = (Vec::new(), child.stdout.take().unwrap());
    let mut chunk = [0; 1024];
    while !String::from_utf8_lossy(&screen).contains("[y/N]") {
        let length = from.read(&mut chunk).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&screen));
        screen.extend_from_slice(&chunk[..length]);
    }
    node.store.podman(["tag", &name(0), "reg.local/later:1"]);
    child.stdin.take().unwrap().write_all(b"y\n").unwrap();
    from.read_to_end(&mut screen).unwrap();
    let screen = String::from_utf8_lossy(&screen);
    assert_eq!(child.wait().unwrap().code(), Some(5), "{screen}");
    assert!(screen.contains("reg.local/later:1"), "{screen}");
    assert_eq!(node.removals(), 0, "{screen}");
    // Requested with the new name, it is deleted, and the history contains both.
    let both = node.json(0, &["rm", &name(0), "reg.local/later:1"]);
    assert_eq!(list(&both, "/deleted/0/names").len(), 2, "{both:#}");
    assert_recorded(&node.history()[0], &both);
}

#[test]
fn plan_is_shown_and_confirmed_on_terminal() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    if !support::require_program("script") {
        return;
    }
    node.age();
    let gc = ["gc", "--high", "1", "--low", "0", "--no-progress", "--color", "never"];
    for answer in ["n\n", "\n", "nonsense\n"] {
        let run = on_terminal(&node, &gc, answer).expect_code(0);
        assert!(run.stdout.contains("Delete 7 images? [y/N]"), "{run:?}");
        assert!(run.stdout.contains(&name(0)), "the plan: {run:?}");
        assert_eq!(node.names().len(), 8, "{answer:?}");
    }
    assert_eq!(node.removals(), 0);
    assert!(node.history().is_empty(), "what was not begun is no run");
    let rm = ["rm", &name(0), "--no-progress", "--color", "never"];
    let run = on_terminal(&node, &rm, "n\n").expect_code(0);
    assert!(run.stdout.contains("Delete 1 image? [y/N]"), "{run:?}");
    let run = on_terminal(&node, &rm, "y\n").expect_code(0);
    assert!(run.stdout.contains("[y/N]") && run.stdout.contains("Done: 1 image"), "{run:?}");
    assert_eq!(node.names(), names(1..8));
    // No confirmation with -y, or without anything to delete.
    let run = on_terminal(&node, &["rm", "-y", &name(1), "--no-progress"], "").expect_code(0);
    assert!(!run.stdout.contains("[y/N]"), "{run:?}");
    let run = on_terminal(&node, &["gc", "--dry-run", "--high", "1", "--low", "0"], "").expect_code(4);
    assert!(!run.stdout.contains("[y/N]"), "{run:?}");
    let run = on_terminal(&node, &["gc", "--no-progress"], "").expect_code(0);
    assert!(!run.stdout.contains("[y/N]") && run.stdout.contains("Nothing was deleted"), "{run:?}");
    assert_eq!(node.names(), names(2..8));
    // Without a terminal, deletion needs -y.
    let refused = node.command(&["rm", &name(2)]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert_eq!(node.names(), names(2..8));
    node.json(0, &["rm", "-y", &name(2)]);
    node.json(0, &["rm", "-y", &name(3)]);
    let run = on_terminal(&node, &gc, "yes\n").expect_code(4);
    assert!(run.stdout.contains("Low threshold NOT reached"), "{run:?}");
    // Table and log are on one screen: an event is printed once.
    assert_eq!(run.stdout.matches("FreeDiskSpaceFailed").count(), 1, "{run:?}");
    let elsewhere = node.run(&gc).expect_code(4);
    assert_eq!(elsewhere.stderr.matches("FreeDiskSpaceFailed").count(), 1, "the log has it: {elsewhere:?}");
    assert_eq!(node.names(), names([IN_USE]));
}

#[test]
fn foreign_names_are_escaped_on_terminal() {
    let Some(node) = GcNode::new(Fs::Ext4, 7) else { return };
    node.age();
    let hostile = "\u{1b}[31mred\u{7}\u{9b}2J\u{202e}gpj.use";
    // Podman behind the runtime lists no image with such a name, so it is the name of a container.
    node.store.storage(["create-container", "--name", hostile, &name(0)]);
    fn shown(run: &Run) -> String {
        let shown = format!("{}{}", run.stdout, run.stderr).replace('\r', "");
        for character in ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}'] {
            assert!(!shown.contains(character), "{character:?}: {run:?}");
        }
        shown
    }
    let plain = ["--no-progress", "--color", "never"];
    let kept = node.run(&["rm", &name(0)]).expect_code(5);
    assert!(shown(&kept).contains("gpj.use"), "{kept:?}");
    let kept = on_terminal(&node, &[&["rm", &name(0)][..], &plain].concat(), "y\n").expect_code(5);
    assert!(shown(&kept).contains("gpj.use"), "{kept:?}");
    let unknown = node.run(&["rm", hostile]);
    assert!(shown(&unknown).contains("gpj.use"), "{unknown:?}");
    // A message of the runtime is printed in one line.
    node.server.behave(|behaviour| {
        behaviour.images = cri_server::Listing::Error("\u{1b}[31mno\u{7}\nerror: forged\u{202e}");
    });
    let refused = node.run(&["gc", "--high", "1", "--low", "0"]).expect_code(5);
    let shown = shown(&refused);
    assert!(
        shown.contains("forged") && !shown.lines().any(|line| line.starts_with("error: forged")),
        "{shown}"
    );
}

#[test]
fn json_on_terminal_is_one_document() {
    let Some(node) = GcNode::new(Fs::Ext4, 7) else { return };
    node.age();
    let file = node.store.scratch().join("document.json");
    let gc = ["gc", "--high", "1", "--low", "0", "--format", "json", "--no-progress"];
    for (answer, code, left, dry_run) in [("n\n", 0, 7, true), ("y\n", 4, 1, false)] {
        let run = typed(&node, &gc, answer, &format!("> {}", file.display())).expect_code(code);
        assert!(run.stdout.contains("[y/N]") && run.stdout.contains(&name(0)), "the plan is shown: {run:?}");
        let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        node::assert_fits(&document);
        assert_eq!(document["dry_run"], dry_run);
        assert_eq!(list(&document, "/deleted").len(), 6);
        assert_eq!(node.names().len(), left);
    }
}
