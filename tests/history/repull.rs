//! References of deleted images, as `history --repull` prints them.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;

use layersweep::history::runs::{
    self, BEGUN, Certainty, Command, DeletionRow, OutcomeKind, Reason, RunEnd, Start, TargetKind,
};
use layersweep::model::{Image, Origin, OriginKind, StoreId, StoreKind};

use crate::support::program::{self, Run, list, text, texts};
use crate::support::scan_records::{at, id, image, open, record_fresh, scan_at, store_key};
use crate::support::{past, schema};

/// Returns image `number` as a scan finds it after its directory was made.
fn pulled(number: u64, made: i64, names: &[&str], digest: char) -> Image {
    Image {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        digests: vec![format!("sha256:{}", digest.to_string().repeat(64))],
        origin: Origin { registry: Some("mirror.example/x".into()), ..Origin::new(OriginKind::Pulled, "") },
        ..image(number, made)
    }
}

fn deletion(seconds: i64, number: u64, names: &[&str]) -> DeletionRow {
    DeletionRow {
        at: at(seconds),
        kind: TargetKind::Image,
        store: Some(store_key()),
        id: id(number),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        layers: Vec::new(),
        reason: Reason::Space,
        predicted_bytes: 0,
        measured_bytes: None,
        byproduct_bytes: 0,
        others_wrote: false,
        usage_after_percent: None,
        error: None,
        certainty: Certainty::Seen,
    }
}

/// Records a run with these deletions; returns its id.
fn run(state: &Path, seconds: i64, deletions: &[DeletionRow]) -> String {
    let start = Start::of(Command::Gc, at(seconds));
    let written = open(state).write(|tx| {
        let run = runs::begin(tx, &start)?;
        for (position, deletion) in deletions.iter().enumerate() {
            runs::deleted(tx, run, position, deletion)?;
        }
        runs::end(tx, run, &RunEnd::of(at(seconds + 30), OutcomeKind::Reached))
    });
    written.unwrap();
    start.run_id
}

fn repull(state: &Path, words: &[&str]) -> Run {
    let mut command = program::command();
    command.args(["history", "--repull"]).args(words).arg("--state-dir").arg(state);
    program::run(&mut command)
}

#[test]
fn each_deletion_leads_to_its_life() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    let see = |seconds: i64, images: Vec<Image>| {
        let mut seen = scan_at(seconds);
        seen.images = images;
        record_fresh(&mut open(state), seen);
    };
    let app = ["quay.io/app:1", "quay.io/app:stable", "localhost/mirror/app:2"];
    let other = ["docker.io/library/other:1"];
    let none = run(state, -60, &[]);
    assert_eq!(repull(state, &["last"]).expect_code(0).stderr, "# no recorded run has deleted an image\n");
    see(
        0,
        vec![
            pulled(1, -3600, &app, 'a'),
            pulled(2, -3600, &other, 'c'),
            pulled(3, -3600, &["q.io/x:1"], 'd'),
        ],
    );
    // Its tag is moved to another image, and its evidence is lost.
    let moved = Image {
        names: Vec::new(),
        origin: Origin::new(OriginKind::Loaded, ""),
        ..pulled(3, -3600, &[], 'd')
    };
    see(30, vec![pulled(1, -3600, &app, 'a'), pulled(2, -3600, &other, 'c'), moved]);
    let failed = DeletionRow { error: Some("busy".into()), ..deletion(62, 2, &other) };
    let begun =
        DeletionRow { error: Some(BEGUN.into()), certainty: Certainty::Unknown, ..deletion(63, 3, &[]) };
    let first = run(state, 60, &[deletion(61, 1, &app), failed, begun]);
    // It came back with another manifest, and is deleted again, before a scan has seen either deletion.
    see(120, vec![pulled(1, 100, &app, 'b'), pulled(2, -3600, &other, 'c')]);
    let container = DeletionRow { kind: TargetKind::Container, ..deletion(183, 4, &["web"]) };
    let second = run(state, 180, &[deletion(181, 1, &app), deletion(182, 2, &other), container]);

    let [a, b, c, d] = ["a", "b", "c", "d"].map(|digit| digit.repeat(64));
    let printed = repull(state, &[&first]).expect_code(0);
    assert_eq!(printed.stdout, format!("quay.io/app@sha256:{a}\nq.io/x@sha256:{d}\n"), "{printed:?}");
    let tags = app.map(|tag| format!("# tag: quay.io/app@sha256:{a} {tag}\n")).concat();
    let untagged = "# pins, rules and pods that refer to a tag will not match these images until they are tagged again\n";
    assert_eq!(printed.stderr, format!("# run {first} (gc) deleted 2 images\n{tags}{untagged}"));
    for words in [&[second.as_str()][..], &["last"]] {
        let printed = repull(state, words).expect_code(0);
        let expected = format!("quay.io/app@sha256:{b}\ndocker.io/library/other@sha256:{c}\n");
        assert_eq!(printed.stdout, expected, "{printed:?}");
    }
    let printed = repull(state, &[&none]).expect_code(0);
    assert_eq!(
        (printed.stdout.as_str(), printed.stderr),
        ("", format!("# run {none} (gc) deleted no image\n"))
    );
    for unknown in ["42", "", &first[..8]] {
        let printed = repull(state, &[unknown]).expect_code(2);
        assert!(printed.stdout.is_empty() && printed.stderr.contains("do not know a run"), "{printed:?}");
        assert!(printed.stderr.contains("hint: `layersweep "), "{printed:?}");
    }
    let document = repull(state, &[&first, "--format", "json"]).expect_code(0).json();
    schema::assert_fits("history-repull", &document);
    assert_eq!(texts(&document, "/images/0/references"), [format!("quay.io/app@sha256:{a}")]);
}

/// Another tool would pull the images of one store into the other.
#[test]
fn list_is_of_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    fn of(kind: StoreKind, root: &str, number: u64, name: &str) -> DeletionRow {
        let store = Some(StoreId::new(kind, root.into(), "overlay".into()));
        DeletionRow { store, ..deletion(61, number, &[name]) }
    }
    let (podman, containerd) = ("/var/lib/containers/storage", "/var/lib/containerd");
    let deletions = [
        of(StoreKind::ContainersStorage, podman, 1, "quay.io/a:1"),
        of(StoreKind::Containerd, containerd, 2, "quay.io/b:1"),
        of(StoreKind::Docker, "/var/lib/docker", 3, "localhost/c:1"),
    ];
    let run_id = run(state, 60, &deletions);
    let printed = repull(state, &["last"]).expect_code(2);
    assert!(printed.stdout.is_empty(), "{printed:?}");
    // The image of the other store has nothing to pull, so the list is of one store.
    assert!(printed.stderr.contains(" deleted images in 2 stores, "), "{printed:?}");
    for (flag, root, expected) in
        [("--graphroot", podman, "quay.io/a:1\n"), ("--containerd-root", containerd, "quay.io/b:1\n")]
    {
        let command = format!("history --repull {run_id} {flag} {root}`");
        assert!(printed.stderr.contains(&command), "{printed:?}");
        assert_eq!(repull(state, &[&run_id, flag, root]).expect_code(0).stdout, expected);
    }
    let other = repull(state, &["last", "--graphroot", "/other"]).expect_code(2);
    assert!(other.stderr.contains("deleted no image in the named store"), "{other:?}");
    let document = repull(state, &["last", "--format", "json"]).expect_code(3).json();
    assert_eq!(list(&document, "/images").len(), 3, "each has its store");
}

/// Old records have deletions without digests, and foreign names.
#[test]
fn deletions_alone_give_tags_and_notes() {
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), jiff::Timestamp::now());
    let printed = repull(dir.path(), &["last"]).expect_code(3);
    let digest = "0123456789abcdef".repeat(4);
    let by_digest = format!("registry.example:5000/some/longer/path/service@sha256:{digest}");
    assert_eq!(printed.stdout, format!("quay.io/team/app:1.4.2\n{by_digest}\n"), "{printed:?}");
    for line in
        ["# by tag, since no digest is known: quay.io/team/app:1.4.2", "# not pullable: evil.example/"]
    {
        assert!(printed.stderr.contains(line), "{printed:?}");
    }
    assert!(!printed.stderr.contains(['\u{1b}', '\u{202e}']), "{printed:?}");
    assert!(printed.stderr.lines().all(|line| line.starts_with("# ")), "{printed:?}");
    assert_eq!(repull(dir.path(), &["last", "-q"]).expect_code(3).stderr, "");
    let document = repull(dir.path(), &["last", "--format", "json"]).expect_code(3).json();
    schema::assert_fits("history-repull", &document);
    let images = list(&document, "/images");
    assert_eq!(images.iter().map(|image| &image["by_digest"]).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(text(&images[2], "/not_pullable"), "no name of it can be pulled");
}
