//! The contract with scripts: exit codes, flags, errors, and documents that fit their schemas.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::ffi::OsStr;
use std::io::Read;
use std::process::Stdio;

use layersweep::history::usage;
use layersweep::model::Filesystem;
use serde_json::Value;

use crate::support;
use support::loopfs::{Fs, LoopFs};
use support::program::{self, Run, layersweep, list, text, timeless};
use support::schema;
use support::store::{self, Store};
use support::{alice, node, scan_records, small, tree};

const READING: [&str; 5] = ["scan", "usage", "images", "layers", "waste"];

/// Checks that an error is one line that starts with `error: `, which hints may follow.
fn assert_one_error(run: &Run) {
    let mut lines = run.stderr.lines();
    let first = lines.next().unwrap_or_default();
    assert!(first.starts_with("error: "), "{run:?}");
    for line in lines {
        assert!(line.starts_with("hint: ") || line.starts_with("  "), "{run:?}");
    }
}

#[test]
fn bad_usage_exits_2() {
    for args in [
        &["no-such-command"][..],
        &[],
        &["scan", "--no-such-flag"],
        &["images", "--format", "xml"],
        &["images", "--color", "sometimes"],
        &["explain"],
        &["waste", "--files"],
        &["scan", "--threads", "many"],
        &["history", "--since", "yesterday"],
        &["history", "--limit", "-1"],
        &["history", "--kind", "layer"],
        &["history", "one", "two"],
        &["history", "--scans", "--limit", "1"],
        &["report", "--since", "yesterday"],
        &["diff", "yesterday"],
        &["diff", "last~", "last"],
        &["diff", "last", "last", "last"],
        &["history", "usage", "--filesystem"],
        &["pin"],
        &["pin", "add"],
        &["pin", "remove"],
        &["pin", "list", "pattern"],
        &["gc", "image"],
        &["gc", "--high", "101"],
        &["gc", "--high", "60", "--low", "65"],
        &["gc", "--min-age", "soon"],
        &["gc", "--policy", "none"],
        &["gc", "--via", "magic"],
        &["gc", "--via", "direct", "--only", "logs"],
        &["gc", "--via", "direct", "--only", "containers,logs", "--dry-run"],
        &["gc", "--config", "/no/such/file"],
        &["gc", "--cri-endpoint", "tcp://127.0.0.1:1"],
        &["gc", "--sysroot", "/"],
        &["rm"],
        &["metrics", "--top", "101"],
        &["metrics", "--listen", "localhost:1"],
        &["report", "--html"],
        &["report", "--html", "/dev/null"],
        &["report", "--html", "-", "--format", "json"],
        &["completions", "cobol"],
        &["man"],
    ] {
        let run = layersweep(args).expect_code(2);
        assert!(run.stdout.is_empty(), "{run:?}");
        assert!(!run.stderr.is_empty(), "{run:?}");
    }
}

#[test]
fn help_and_version_exit_0_on_stdout() {
    for flag in ["--help", "--version", "-h", "-V"] {
        let run = layersweep([flag]).expect_code(0);
        assert!(run.stdout.contains("layersweep") || run.stdout.contains("Usage"), "{run:?}");
        assert!(run.stderr.is_empty(), "{run:?}");
    }
    for command in READING.iter().chain(&[
        "explain",
        "gc",
        "rm",
        "history",
        "report",
        "diff",
        "pin",
        "metrics",
        "doctor",
        "completions",
        "man",
    ]) {
        layersweep([command, "--help"]).expect_code(0);
    }
}

/// `-h` of a command shows only its own options; `--help` shows all.
#[test]
fn short_help_has_the_options_of_its_command() {
    for words in [&["gc"][..], &["images"], &["pin", "add"], &["history", "usage"], &["doctor"]] {
        let [short, long] =
            ["-h", "--help"].map(|flag| layersweep([words, &[flag]].concat()).expect_code(0).stdout);
        assert!(!short.contains("--graphroot") && long.contains("--graphroot"), "{words:?}: {short}\n{long}");
        assert_eq!(short.matches("options of all commands").count(), 1, "{words:?}: {short}");
        assert!(!long.contains("options of all commands"), "{words:?}: {long}");
        let page = format!("`man layersweep-{}`", words.join("-"));
        assert!(short.contains(&page) && long.contains(&page), "{words:?}: {short}\n{long}");
    }
    assert!(layersweep(["gc", "-h"]).stdout.contains("--max-age"));
    let program = layersweep(["-h"]).stdout;
    assert!(program.contains("--graphroot") && program.contains("Exit codes:"), "{program}");
    // The alias that podman and git have.
    assert!(layersweep(["pin", "-h"]).stdout.contains("rm"));
}

/// A real bash completes the names of the last scan, the keep-list and the classes, without a scan.
#[test]
fn bash_completes_images_pins_and_classes() {
    let Some(bed) = bed() else { return };
    if !support::require_program("bash") {
        return;
    }
    let state = bed.dir.path().join("state");
    for words in [
        &["scan", "-q", "--graphroot", bed.store.root().to_str().unwrap()][..],
        &["pin", "add", "quay.io/team/*"],
    ] {
        let mut command = program::command();
        command.args(words).arg("--state-dir").arg(&state);
        program::run(&mut command).expect_code(0);
    }
    fn complete(state: &std::path::Path, line: &str) -> Vec<String> {
        let script = format!(
            "source <(\"$PROGRAM\" completions bash)\nlayersweep() {{ \"$PROGRAM\" \"$@\"; }}\n\
             COMP_LINE={line:?} COMP_POINT=${{#COMP_LINE}}\n\
             IFS=$' \\t' read -ra COMP_WORDS <<<\"${{COMP_LINE//:/ : }}\"\n\
             [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _layersweep_names layersweep \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = std::process::Command::new("bash");
        program::hermetic(&mut bash);
        bash.env("PROGRAM", env!("CARGO_BIN_EXE_layersweep")).env("LAYERSWEEP_STATE_DIR", state);
        let run = program::run(bash.args(["-c", &script])).expect_code(0);
        assert_eq!(run.stderr, "", "{line}");
        run.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    }
    let a2 = small::name("a2");
    assert!(complete(&state, "layersweep rm ").contains(&a2));
    assert!(complete(&state, "layersweep explain --state-dir /x localhost/small/a").contains(&a2));
    assert!(complete(&state, "layersweep pin add localhost/").contains(&a2));
    assert!(complete(&state, "layersweep history ").contains(&a2));
    assert_eq!(complete(&state, "layersweep history us"), ["usage"]);
    // bash splits words at colons.
    let (name, tag) = a2.rsplit_once(':').unwrap();
    assert_eq!(complete(&state, &format!("layersweep rm {name}:")), [tag]);
    assert_eq!(complete(&state, "layersweep pin rm "), ["quay.io/team/\\*"]);
    assert_eq!(complete(&state, "layersweep pin remove nothing"), [""]);
    assert!(complete(&state, "layersweep sweep --class orphan-d").contains(&"orphan-dir".to_owned()));
    assert!(complete(&state, "layersweep rm --").contains(&"--dry-run".to_owned()));
    // Errors are never printed.
    for words in [&["__candidates"][..], &["__candidates", "x"], &["__candidates", "images"]] {
        let mut command = program::command();
        command.args(words).env("LAYERSWEEP_STATE_DIR", bed.store.root());
        let run = program::run(&mut command).expect_code(0);
        assert_eq!((&*run.stdout, &*run.stderr), ("", ""), "{words:?}");
    }
}

/// Real zsh and fish complete image names too, and quickly: a shell waits for them.
#[test]
fn zsh_and_fish_complete_image_names() {
    let Some(bed) = bed() else { return };
    if !support::require_program("zsh") || !support::require_program("fish") {
        return;
    }
    let state = bed.dir.path().join("state");
    let mut scan = program::command();
    scan.args(["scan", "-q", "--graphroot"]).arg(bed.store.root()).arg("--state-dir").arg(&state);
    program::run(&mut scan).expect_code(0);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_layersweep"), bed.dir.path().join("layersweep")).unwrap();
    for (shell, script) in [("zsh", "_layersweep"), ("fish", "layersweep.fish")] {
        let text = layersweep(["completions", shell]).expect_code(0).stdout;
        std::fs::write(bed.dir.path().join(script), text).unwrap();
    }
    let completed = |shell: &str, script: &str| {
        let mut command = std::process::Command::new(shell);
        program::hermetic(&mut command);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", bed.dir.path().display())).env("HOME", bed.dir.path());
        command.env("LAYERSWEEP_STATE_DIR", &state).current_dir(bed.dir.path());
        program::run(command.args(["-c", script])).expect_code(0)
    };
    let a2 = small::name("a2");
    let fish = completed("fish", "source layersweep.fish; complete -C 'layersweep rm localhost/small/a2'");
    assert_eq!(fish.stdout.trim_end(), a2);
    assert!(fish.took < std::time::Duration::from_secs(10), "{fish:?}");
    // A shell on a terminal of its own: a tab completes the line, and return prints it.
    let zsh = completed(
        "zsh",
        r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d zcompdump; print RE""ADY'
zpty -r -m shell line '*READY*'
zpty -w -n shell $'layersweep rm localhost/small/a2\t\x01print -r -- LINE \n'
zpty -r -m shell line $'*\nLINE layersweep rm *\n*'
print -r -- "$line"
zpty -d shell
"#,
    );
    assert!(zsh.stdout.contains(&format!("LINE layersweep rm {a2}")), "{zsh:?}");
}

/// Logs of cron and consoles of machines do not support UTF-8.
#[test]
fn without_utf_8_output_is_ascii() {
    let Some(bed) = bed() else { return };
    let root = bed.store.root().to_str().unwrap();
    for words in [&["layers", "--tree"][..], &["images"], &["report"], &["usage"], &["doctor"]] {
        let mut command = program::command();
        command.args(words).args(["--graphroot", root]).env("LANG", "C");
        let run = program::run(&mut command).expect_no_crash();
        assert!(run.stdout.is_ascii() && run.stderr.is_ascii(), "{words:?}: {run:?}");
    }
}

#[test]
fn completions_and_man_pages() {
    for (shell, sign) in
        [("bash", "complete -F"), ("zsh", "#compdef layersweep"), ("fish", "complete -c layersweep")]
    {
        // An unreadable configuration does not matter.
        let run = layersweep(["completions", shell, "--config", "/no/such/file"]).expect_code(0);
        assert!(run.stdout.contains(sign), "{shell}: {run:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    layersweep([OsStr::new("man"), pages.as_os_str()]).expect_code(0);
    for page in ["layersweep", "layersweep-gc", "layersweep-history-usage", "layersweep-pin-add"] {
        let text = std::fs::read_to_string(pages.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".TH") && text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
    let diff = std::fs::read_to_string(pages.join("layersweep-diff.1")).unwrap();
    for part in ["\\fBlayersweep diff [OPTIONS] [BEFORE] [AFTER]\\fR", ".TP\n\\fBnow\\fR\n"] {
        assert!(diff.contains(part), "{part}: {diff}");
    }
    let main = std::fs::read_to_string(pages.join("layersweep.1")).unwrap();
    let gc = std::fs::read_to_string(pages.join("layersweep-gc.1")).unwrap();
    for page in [&main, &gc] {
        for section in ["EXAMPLES", "\"EXIT STATUS\"", "FILES", "ENVIRONMENT", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {section}\n")), "{section}: {page}");
        }
        assert!(page.contains("a listing was partial"), "every exit code: {page}");
    }
    let keys = std::fs::read_to_string(pages.join("layersweep.toml.5")).unwrap();
    for part in [
        ".TH layersweep.toml 5",
        "\\fBimages.high_percent\\fR",
        "Start deleting at this usage (percent of bytes)",
    ] {
        assert!(keys.contains(part), "{part}: {keys}");
    }
    assert!(gc.contains("never deletes an image that a container uses"), "{gc}");
    assert!(main.contains("\\-\\-graphroot") && !gc.contains("\\-\\-graphroot"), "global options stand once");
    assert!(main.contains("layersweep\\-pin\\-add(1)"), "{main}");
    let run = layersweep(["man", "/proc/none"]).expect_code(1);
    assert_one_error(&run);
}

/// Without a terminal no question can be answered, and a script must not delete by accident.
#[test]
fn deletion_without_terminal_needs_yes() {
    let Some(bed) = bed() else { return };
    let state = bed.dir.path().join("state");
    let (root, runroot) = (bed.store.root().to_owned(), bed.store.runroot());
    let command = |words: &[&str]| {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(&root).arg("--runroot").arg(&runroot);
        command.arg("--state-dir").arg(&state);
        command
    };
    let before = tree::listing(bed.dir.path());
    let other = small::name("other");
    let rm = ["rm", "--via", "direct", "--min-age", "0s", &other];
    for words in [
        &["gc", "--via", "direct", "--max-age", "1s", "--min-age", "0s", "--high", "99", "--low", "98"][..],
        &rm,
        &["sweep", "--delete"],
        &["sweep", "--repair", "missing-link"],
    ] {
        // Not with `program::run`, which adds the flag.
        let refused = command(words).output().unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), &*refused.stdout), (Some(2), &b""[..]), "{words:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains("hint: add -y"), "{words:?}: {stderr}");
        program::run(&mut command(&[words, &["--dry-run"]].concat())).expect_code(0);
    }
    assert!(tree::differences(&before, &tree::listing(bed.dir.path())).is_empty());
    let done = command(&[&rm[..], &["-y"]].concat()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
}

/// Root's keep-list and ages give another result, so the output always says whose records were read.
#[test]
fn owner_of_used_records_is_reported() {
    if !alice::require() {
        return;
    }
    let run = alice::run(
        r#"
mount -t tmpfs lib /var/lib
list() { echo "$1:"; as_alice "$program" pin list -v 2>&1; }
list none
"$program" pin add quay.io/of-root >/dev/null
list denied
chmod 755 /var/lib/layersweep
chmod 644 /var/lib/layersweep/layersweep.db
list readable
echo added:
as_alice "$program" pin add -q quay.io/of-alice 2>&1
echo "exit $?"
list both
as_alice "$program" pin list -q --state-dir /var/lib/layersweep 2>&1
as_alice "$program" pin list -q 2>&1
"#,
    );
    fn printed(run: &Run, begin: &str, end: &str) -> String {
        let rest = run.stdout.split_once(&format!("{begin}:\n")).unwrap_or_else(|| panic!("{run:?}")).1;
        rest.split_once(&format!("{end}:\n")).map_or(rest, |(printed, _)| printed).to_owned()
    }
    let none = printed(&run, "none", "denied");
    assert!(!none.contains("root"), "{none}");
    let denied = printed(&run, "denied", "readable");
    assert!(denied.contains("note: not running as root: the state directory is /home/alice/"), "{denied}");
    assert!(denied.contains("/var/lib/layersweep cannot be read: pins"), "{denied}");
    let readable = printed(&run, "readable", "added");
    assert!(
        readable.contains("read from root's state directory") && readable.contains("of-root"),
        "{readable}"
    );
    let added = printed(&run, "added", "both");
    let expected = [
        "warning: root's gc does not see the pins of user alice, and deletes these images nevertheless",
        "hint: to keep them on this node: `sudo layersweep --config /home/bin/trust.toml pin add quay.io/of-alice`",
        "pinned quay.io/of-alice for user alice only; root's gc does not see it",
        "exit 0",
    ];
    assert!(added.lines().eq(expected), "{added}");
    let both = printed(&run, "both", "end");
    assert!(both.contains("These pins are of user alice only; root's gc does not see them.\n"), "{both}");
    assert!(both.contains("root's records are not used") && both.contains("of-alice"), "{both}");
    assert!(both.ends_with("quay.io/of-root\nquay.io/of-alice\n"), "{both}");
}

#[test]
fn missing_store_exits_10() {
    let empty = tempfile::tempdir().unwrap();
    let sysroot = empty.path().to_str().unwrap();
    for command in READING.into_iter().chain(["report"]) {
        let run = layersweep([command, "--sysroot", sysroot]).expect_code(10);
        assert!(run.stdout.is_empty(), "{run:?}");
        assert_one_error(&run);
        assert!(run.stderr.contains("hint: "), "{run:?}");
        let run = layersweep([command, "--graphroot", sysroot]).expect_code(10);
        assert_one_error(&run);
        assert!(run.stderr.contains(sysroot), "the error names the object: {run:?}");
        let missing = format!("{sysroot}/missing");
        let run = layersweep([command, "--graphroot", &missing]);
        assert!(matches!(run.code, 2 | 10), "{run:?}");
        assert_one_error(&run);
        assert!(run.stderr.contains(&missing), "{run:?}");
    }
}

/// A store for the other tests.
struct Bed {
    dir: tempfile::TempDir,
    store: Store,
}

fn bed() -> Option<Bed> {
    if !store::require_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("var/lib/containers/storage"));
    Some(Bed { dir, store })
}

#[test]
fn flags_work_before_and_after_command() {
    let Some(bed) = bed() else { return };
    let root = bed.store.root().to_str().unwrap();
    let before = layersweep(["--graphroot", root, "--format", "json", "images"]).expect_code(0);
    let after = layersweep(["images", "--format", "json", "--graphroot", root]).expect_code(0);
    let both = layersweep(["--format=json", "images", "--graphroot", root]).expect_code(0);
    let [before, after, both] = [before, after, both].map(|run| timeless(list(&run.json(), "/images")));
    assert_eq!(before, after);
    assert_eq!(before, both);
}

#[test]
fn every_document_fits_its_schema() {
    let Some(bed) = bed() else { return };
    let image = small::name("a2");
    let layer = bed.store.images()[0]["layers"][0].as_str().unwrap().to_owned();
    let inside = bed.store.root().join("overlay").join(&layer).join("diff");
    let explained: Vec<String> = vec![image, layer, inside.to_str().unwrap().to_owned()];
    let mut documents: Vec<(&str, Value)> = READING.map(|command| (command, bed.store.json(command))).into();
    for subject in &explained {
        let mut args = program::store_args("explain", bed.store.root(), &bed.store.runroot());
        args.push(subject.into());
        documents.push(("explain", layersweep(args).expect_code(0).json()));
    }
    for (command, document) in documents {
        assert_eq!(document["schema_version"], 1, "{command}");
        assert_eq!(document["kind"], *command);
        let generated: jiff::Timestamp = text(&document, "/generated_at").parse().expect("RFC 3339");
        let age = jiff::Timestamp::now().duration_since(generated).as_secs().abs();
        assert!(age < 120, "{command}: made {age} s ago");
        schema::assert_fits(command, &document);
    }
}

#[test]
fn figures_of_image_add_up() {
    let Some(bed) = bed() else { return };
    for image in list(&bed.store.json("images"), "/images") {
        let [total, shared, exclusive] =
            ["total", "shared", "exclusive"].map(|name| program::number(image, &format!("/{name}_bytes")));
        assert_eq!(total, shared + exclusive, "{image:#}");
        for field in [
            "first_detected",
            "first_detected_from",
            "last_used",
            "use_count",
            "lives",
            "pinned_by",
            "used_by",
        ] {
            assert!(image.get(field).is_some(), "no {field} in {image:#}");
        }
        for field in ["in_use", "pinned"] {
            assert!(image[field].is_boolean(), "{field} in {image:#}");
        }
    }
    let used: Vec<_> = bed.store.images().into_iter().filter(|image| image["in_use"] == true).collect();
    assert_eq!(used.len(), 1, "{used:#?}");
    assert_eq!(text(&used[0], "/used_by/0/name"), "web");
    assert_eq!(text(&used[0], "/used_by/0/owner"), "podman");
}

/// Readings of six hours, in each of which a tenth of the free bytes was written.
#[test]
fn filling_filesystem_has_forecast() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 400 << 20);
    let store = small::still(&loopfs.path().join("root"));
    std::fs::write(loopfs.path().join("fill"), vec![1; 250 << 20]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (root, state) = (store.root().to_str().unwrap(), dir.path().join("state"));
    fn run(state: &std::path::Path, words: &[&str]) -> program::Run {
        let mut command = program::command();
        command.args(words).arg("--state-dir").arg(state);
        program::run(&mut command).expect_no_crash()
    }
    let usage =
        || node::document(run(&state, &["usage", "--graphroot", root, "--format", "json"]).expect_code(0));
    run(&state, &["scan", "-q", "--graphroot", root]).expect_code(0);
    assert!(usage()["filesystems"][0]["forecast"].is_null(), "one reading is not enough");
    let (filesystem, _) = layersweep::disk::filesystem::of(store.root()).unwrap();
    let mut records = scan_records::open(&state);
    records
        .write(|tx| {
            let now = jiff::Timestamp::now();
            (1..=72_u32).rev().try_for_each(|step| {
                let time = now - jiff::SignedDuration::from_mins(i64::from(step) * 5);
                let left = filesystem.available_bytes;
                let available_bytes = left + left / 120 * u64::from(step);
                usage::record(tx, time, &[Filesystem { available_bytes, ..filesystem.clone() }])
            })
        })
        .unwrap();
    drop(records);
    let document = usage();
    let forecast = &document["filesystems"][0]["forecast"];
    fn hours(forecast: &Value, field: &str) -> f64 {
        forecast[field].as_f64().unwrap() / 3600.0
    }
    assert!((8.0..12.0).contains(&hours(forecast, "full_in_seconds")), "{document:#}");
    assert!(hours(forecast, "earliest_in_seconds") <= hours(forecast, "full_in_seconds"), "{document:#}");
    assert!(hours(forecast, "full_in_seconds") <= hours(forecast, "latest_in_seconds"), "{document:#}");
    assert_eq!(forecast["window_seconds"], 6 * 3600, "{document:#}");
    let table = run(&state, &["usage", "--graphroot", root]).expect_code(0).stdout;
    assert!(table.contains("\n  full in ") && table.contains("at the rate of the last 6h ("), "{table}");
    let report = node::document(run(&state, &["report", "--graphroot", root, "--format", "json"]));
    assert_eq!(
        text(&report, "/filesystems/0/forecast/filesystem"),
        text(forecast, "/filesystem"),
        "{report:#}"
    );
    assert!(run(&state, &["report", "--graphroot", root]).stdout.contains("full in "));
    let metrics = run(&state, &["metrics"]).expect_code(0).stdout;
    assert!(metrics.contains("layersweep_filesystem_full_seconds{mountpoint="), "{metrics}");
    let doctor = run(&state, &["doctor", "--graphroot", root, "--format", "json"]).json();
    let mut checks = list(&doctor, "/checks").iter().filter(|check| check["name"] == "disk-usage");
    let fullness = checks.next().unwrap();
    assert!(text(fullness, "/message").contains("full in ") && fullness["status"] != "ok", "{fullness:#}");
}

#[test]
fn closed_pipe_exits_0() {
    let Some(bed) = bed() else { return };
    for format in ["json", "table"] {
        let mut child = program::command()
            .args(["scan", "--no-record", "--format", format, "--graphroot"])
            .arg(bed.store.root())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take()); // closed before the first byte
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{format}: {stderr}");
        assert_eq!(stderr, "", "{format}");
    }
}

#[test]
fn colour_is_used_only_on_request() {
    let Some(bed) = bed() else { return };
    let root = bed.store.root().to_str().unwrap();
    let args = ["usage", "--graphroot", root];
    let piped = layersweep(args).expect_code(0);
    assert!(!piped.stdout.contains('\u{1b}'), "colour in a pipe: {piped:?}");
    let always = layersweep([&args[..], &["--color", "always"]].concat()).expect_code(0);
    assert!(always.stdout.contains("\u{1b}["), "{always:?}");
    let mut command = program::command();
    command.args(args).env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1");
    let no_color = program::run(&mut command).expect_code(0);
    assert!(!no_color.stdout.contains('\u{1b}'), "{no_color:?}");
}

#[test]
fn store_in_sysroot_is_found_and_unchanged() {
    let Some(bed) = bed() else { return };
    let before = tree::listing(bed.dir.path());
    let sysroot = bed.dir.path().to_str().unwrap();
    let found = layersweep(["images", "--format", "json", "--sysroot", sysroot]).expect_code(0);
    let named = bed.store.images();
    let found = found.json();
    let found = program::list(&found, "/images");
    assert_eq!(found.len(), named.len());
    for (found, named) in found.iter().zip(&named) {
        assert_eq!(found["id"], named["id"]);
        assert_eq!(found["total_bytes"], named["total_bytes"]);
    }
    let changes = tree::differences(&before, &tree::listing(bed.dir.path()));
    assert!(changes.is_empty(), "{changes:#?}");
}

#[test]
fn quiet_images_prints_only_ids() {
    let Some(bed) = bed() else { return };
    let root = bed.store.root().to_str().unwrap();
    let quiet = layersweep(["images", "-q", "--graphroot", root]).expect_code(0);
    let ids: Vec<String> = quiet.stdout.lines().map(str::to_owned).collect();
    let mut expected: Vec<String> =
        bed.store.images().iter().map(|image| text(image, "/id").to_owned()).collect();
    let mut sorted = ids.clone();
    sorted.sort();
    expected.sort();
    assert_eq!(sorted, expected);
}

#[test]
fn explain_knows_names_ids_prefixes_and_paths() {
    let Some(bed) = bed() else { return };
    let images = bed.store.images();
    let image = images
        .iter()
        .find(|image| program::texts(image, "/names") == [small::name("a2")])
        .expect("the image a2");
    let id = text(image, "/id");
    fn explain(bed: &Bed, subject: &str) -> program::Run {
        let mut args = program::store_args("explain", bed.store.root(), &bed.store.runroot());
        args.push(subject.into());
        layersweep(args)
    }
    for subject in [id, &id[..12], &small::name("a2"), text(image, "/digests/0")] {
        let said = explain(&bed, subject).expect_code(0).json();
        assert_eq!(said["subject"], "image", "{subject}");
        assert_eq!(said["id"], id, "{subject}");
        assert_eq!(said["frees_bytes"], image["frees_bytes"], "{subject}");
        assert_eq!(program::list(&said, "/chain").len(), 3, "{subject}");
    }
    let top = text(image, "/layers/0");
    let directory = bed.store.root().join("overlay").join(top);
    for subject in [top, directory.join("diff/a2/d0/f1").to_str().unwrap()] {
        let said = explain(&bed, subject).expect_code(0).json();
        assert_eq!(said["subject"], "layer", "{subject}");
        assert_eq!(said["id"], top, "{subject}");
        assert_eq!(text(&said, "/used_by/0/id"), id, "{subject}");
    }
    // An unknown name is not a usage error, as for `rm` and `pin remove`.
    let missing = bed.store.root().join("overlay/none");
    for unknown in ["no/such/image:1", "0123456789abcdef", "/no/such/file", missing.to_str().unwrap()] {
        let run = explain(&bed, unknown).expect_code(1);
        assert_one_error(&run);
        assert!(run.stderr.contains(unknown), "{run:?}");
    }
    // The command in the hint works on the same store.
    let root = bed.store.root().to_str().unwrap();
    let run = layersweep(["explain", "no/such/image:1", "--graphroot", root]).expect_code(1);
    assert!(run.stderr.contains(&format!("`layersweep --graphroot {root} images`")), "{run:?}");
    // A file outside every store has no owner, and that is the answer.
    let outside = bed.dir.path().join("outside");
    std::fs::write(&outside, vec![1; 5000]).unwrap();
    let allocated = std::os::unix::fs::MetadataExt::blocks(&outside.metadata().unwrap()) * 512;
    let said = explain(&bed, outside.to_str().unwrap()).expect_code(0).json();
    assert_eq!((&said["subject"], &said["below"]["bytes"]), (&"file".into(), &allocated.into()), "{said:#}");
    let rows: Vec<_> = program::list(&said, "/below/rows").iter().map(|row| &row["in_store"]).collect();
    assert_eq!(rows, [false], "{said:#}");
    // A name that matches several images is ambiguous.
    for image in ["base", "a"] {
        bed.store.podman(["tag", &small::name(image), &format!("localhost/{image}/same:1")]);
    }
    let run = explain(&bed, "same:1").expect_code(2);
    assert_one_error(&run);
}

#[test]
fn empty_result_is_reported() {
    let Some(bed) = bed() else { return };
    let root = bed.store.root().to_str().unwrap();
    fn images(root: &str, words: &[&str]) -> program::Run {
        layersweep([&["images", "--graphroot", root], words].concat())
    }
    let none = images(root, &["--filter", "name=quay.io/*"]).expect_code(0);
    assert_eq!((&*none.stdout, &*none.stderr), ("", "note: none of the 5 images matches --filter\n"));
    for quiet in [&["-q"][..], &["--format", "json"]] {
        let run = images(root, &[quiet, &["--filter", "name=quay.io/*"]].concat()).expect_code(0);
        assert_eq!(run.stderr, "", "{run:?}");
    }
    let some = images(root, &["--filter", "name=*/small/a:*"]).expect_code(0);
    assert!(some.stdout.contains("localhost/small/a:1") && some.stderr.is_empty(), "{some:?}");
    let empty = bed.dir.path().join("empty");
    let empty = Store::at(&empty, "overlay");
    empty.podman(["images"]);
    let run = layersweep(["images", "--graphroot", empty.root().to_str().unwrap()]).expect_code(0);
    assert_eq!((&*run.stdout, &*run.stderr), ("", "note: there are no images\n"));
}

#[test]
fn pin_lists_covered_images() {
    let Some(bed) = bed() else { return };
    let state = bed.dir.path().join("state");
    fn run(state: &std::path::Path, words: &[&str]) -> program::Run {
        let mut command = program::command();
        program::run(command.args(words).arg("--state-dir").arg(state)).expect_no_crash().expect_code(0)
    }
    // Before the first scan the matches are unknown.
    assert_eq!(run(&state, &["pin", "add", "localhost/*"]).stderr, "");
    // A store that can be read has the present images.
    let root = bed.store.root().to_str().unwrap();
    let added = run(&state, &["pin", "add", "localhost/small/a:*", "--graphroot", root]);
    assert_eq!(added.stderr, "note: \"localhost/small/a:*\" matches 1 of the 5 images here\n");
    run(&state, &["scan", "-q", "--graphroot", root]);
    let added = run(&state, &["pin", "add", "localhost/small/a*"]);
    assert_eq!(added.stdout, "pinned localhost/small/a*\n");
    assert_eq!(added.stderr, "note: \"localhost/small/a*\" matches 2 of the 5 images of the last scan\n");
    let none = run(&state, &["pin", "add", "quay.io/*"]);
    assert_eq!(none.stdout, "pinned quay.io/*\n", "it is pinned anyway");
    let warning = "warning: \"quay.io/*\" matches none of the 5 images of the last scan\nhint: ";
    assert!(none.stderr.starts_with(warning), "{none:?}");
    assert_eq!(run(&state, &["pin", "add", "quay.io/*", "-q"]).stderr, "");
    // The records do not contain every digest, so no warning is printed that may be wrong.
    let digest = format!("sha256:{}", "ab".repeat(32));
    assert_eq!(run(&state, &["pin", "add", &digest]).stderr, "");
}

#[test]
fn invalid_state_directory_is_reported_once() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    // Files that other tests write meanwhile would be a warning of `usage`.
    let disk = LoopFs::new(Fs::Ext4, 64 << 20);
    let store = small::still(&disk.path().join("var/lib/containers/storage"));
    let file = disk.path().join("file");
    std::fs::write(&file, "in its place").unwrap();
    let root = store.root().to_str().unwrap();
    for (words, code) in [
        (&["usage"][..], 0),
        (&["images"], 0),
        (&["explain", "localhost/small/a:1"], 0),
        (&["history"], 3),
        (&["pin", "list"], 3),
    ] {
        for state in [&file, &file.join("deeper/still")] {
            let mut command = program::command();
            command.args(words).args(["--graphroot", root, "--state-dir"]).arg(state);
            let run = program::run(&mut command).expect_no_crash().expect_code(code);
            let told = run.stderr.lines().filter(|line| line.starts_with("warning: "));
            assert_eq!(told.count(), 1, "{run:?}");
            assert!(run.stderr.contains("is not a directory"), "{run:?}");
            assert!(run.stderr.contains("--state-dir"), "with a remedy: {run:?}");
        }
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"in its place");
}
