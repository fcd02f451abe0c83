//! Screens on a terminal of 80 columns, of a real store with long names.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::process::Command;

use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program;
use support::store::{self, Store};

/// Width of the terminal.
const COLUMNS: usize = 80;

/// Reference of a long image name.
fn name(image: &str) -> String {
    format!(
        "registry.example:5000/platform/observability/service-with-a-long-name-{image}:2026.11.26-candidate"
    )
}

/// Creates three images with long names, a container of the first, and a leak.
fn store_with_long_names(root: &std::path::Path) -> Store {
    let images = ["a", "b", "c"].map(|image| ImageSpec {
        names: vec![name(image)],
        layers: ["base", image].map(|layer| LayerSpec { small_files: 6, ..LayerSpec::new(layer) }).into(),
        label: image.into(),
    });
    let store = Store::of(root, "overlay", &images);
    let container = "a-container-with-a-name-that-is-much-longer-than-usual-1";
    store.podman(["create", "--name", container, "--network", "none", &name("a"), "/x"]);
    std::fs::create_dir_all(root.join("overlay").join("ab".repeat(32)).join("diff")).unwrap();
    store
}

/// Runs the program on a terminal; returns its lines without escapes.
fn lines_on_terminal(words: &str, flags: &str) -> Vec<String> {
    let mut command = Command::new("script");
    program::hermetic(&mut command);
    command.env("COLUMNS", COLUMNS.to_string()).env("TERM", "xterm").env("NO_COLOR", "1");
    let line = format!("{} {words} --no-progress {flags}", env!("CARGO_BIN_EXE_layersweep"));
    let run = program::run(command.args(["-qec", &line, "/dev/null"])).expect_no_crash();
    run.stdout.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

/// Returns true if a line fits, or consists of one path, name or command, which stays whole so that it can be copied.
fn fits(line: &str) -> bool {
    let commands = regex::Regex::new("`[^`]*`").unwrap();
    let text = commands.replace_all(line, "COMMAND");
    let words = text.split_whitespace().filter(|word| !["→", "hint:", "path", "also"].contains(word));
    line.chars().count() <= COLUMNS || words.count() == 1
}

#[test]
fn screens_fit_80_columns() {
    if !store::require_tools() || !support::require_program("script") || !Fs::Ext4.require() {
        return;
    }
    // Files of other tests would be on the screen of `report`.
    let dir = LoopFs::new(Fs::Ext4, 128 * MIB);
    let store = store_with_long_names(&dir.path().join("a-directory-with-a-long-name/containers/storage"));
    let (root, runroot) = (store.root().display(), store.runroot());
    let state = dir.path().join("state");
    let flags = format!("--graphroot {root} --runroot {} --state-dir {}", runroot.display(), state.display());
    let (first, second) = (name("a"), name("b"));
    let image_lines = lines_on_terminal("scan", &flags);
    assert!(
        image_lines.iter().any(|line| line.starts_with('…') && line.contains("candidate")),
        "{image_lines:#?}"
    );
    for words in [
        "scan",
        "usage",
        "usage --by registry",
        "images",
        "layers",
        "layers --tree",
        &format!("explain {first}"),
        &format!("explain {root}"),
        "sweep",
        "sweep --min-age 0s",
        "gc --dry-run --high 1 --low 0 --min-age 0s --via direct",
        &format!("rm --dry-run --min-age 0s --via direct {first}"),
        &format!("rm -y --min-age 0s --via direct {second}"),
        "history --all",
        "history --scans",
        "history usage",
        "diff",
        "report",
        "pin add 'registry.example:5000/platform/observability/*'",
        "pin list",
        "doctor",
        "config show",
        "config check",
        "explain no-such-image",
    ] {
        let lines = lines_on_terminal(words, &flags);
        let long: Vec<_> = lines.iter().filter(|line| !fits(line)).collect();
        assert!(long.is_empty(), "{words}: {long:#?}");
        assert!(!lines.is_empty(), "{words}");
    }
    assert_eq!(lines_on_terminal("config check -q", &flags), [""; 0]);
}

/// An image with several names has all of them in its row.
#[test]
fn no_trunc_lists_all_names() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = store_with_long_names(&dir.path().join("storage"));
    store.podman(["tag", &name("b"), "localhost/also:1"]);
    let root = store.root().to_str().unwrap();
    let row = |words: &[&str]| {
        let run = program::layersweep([words, &["--graphroot", root]].concat()).expect_code(0);
        let line = run.stdout.lines().find(|line| line.contains("localhost/also:1") || line.contains(" +1"));
        line.unwrap_or_else(|| panic!("{run:?}")).to_owned()
    };
    assert!(row(&["images"]).contains(" +1"));
    let whole = row(&["images", "--no-trunc"]);
    assert!(whole.contains(&name("b")) && whole.contains("localhost/also:1"), "{whole}");
}

/// `-q` prints the rows alone.
#[test]
fn quiet_screens_have_no_footers() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    // Files of other tests would be rows that come and go.
    let dir = LoopFs::new(Fs::Ext4, 128 * MIB);
    let store = store_with_long_names(&dir.path().join("storage"));
    let root = store.root().to_str().unwrap();
    let run = |words: &[&str]| {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
        command.arg("--state-dir").arg(dir.path().join("state"));
        program::run(&mut command).expect_no_crash()
    };
    run(&["scan", "-q"]).expect_code(0);
    for (words, footer) in [
        (&["usage"][..], "RECLAIMABLE: bytes"),
        (&["usage", "--by", "registry"], "FAIR divides"),
        (&["explain", root], "Layers are divided"),
        (&["images"], "FAIR divides"),
    ] {
        let (usual, quiet) = (run(words), run(&[words, &["-q"]].concat()));
        assert_eq!(quiet.code, usual.code, "{words:?}");
        assert!(quiet.stdout.lines().count() < usual.stdout.lines().count(), "{words:?}: {}", quiet.stdout);
        assert!(usual.stdout.contains(footer), "{words:?}: {}", usual.stdout);
        assert!(!quiet.stdout.contains(footer), "{words:?}: {}", quiet.stdout);
        assert!(!quiet.stderr.contains("note: "), "{words:?}: {}", quiet.stderr);
    }
}
