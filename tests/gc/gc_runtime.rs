//! `gc` while the runtime or the program itself fails: deletions so far are reported, measured and recorded, and the
//! next run continues.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, assert_exact, assert_recorded, deleted, events, kept, name, rule};
use cri_server::{Behaviour, Broken, Listing, Removal};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::loopfs::Fs;
use support::node;
use support::program::{self, list, number, text};
use support::running::Running;

/// Deletes every unprotected image; the low threshold is still not reached.
const ALL: [&str; 5] = ["gc", "--high", "1", "--low", "0"];
const GC: [&str; 5] = ["gc", "--high", "75", "--low", "74"];

fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(name).collect()
}

fn of_rule(document: &Value, rule: &str) -> Vec<String> {
    let kept = list(document, "/kept").iter().filter(|kept| kept["rule"] == rule);
    let mut names: Vec<_> = kept.map(|kept| text(kept, "/names/0").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn run_after_dead_runtime_continues() {
    for dies in [Removal::DieAfter, Removal::DieBefore] {
        let Some(mut node) = GcNode::new(Fs::Ext4, 8) else { return };
        node.age();
        node.server.behave(|behaviour| behaviour.removals = vec![(name(2), dies.clone())]);
        let broken = node.json(1, &ALL);
        assert_eq!(broken["outcome"], "failed");
        // Removals before its death are on the disk, and the disk decides.
        let done = if dies == Removal::DieAfter { 3 } else { 2 };
        assert_eq!(deleted(&broken), names(0..done), "{broken:#}");
        assert_exact(&broken);
        let unproven = list(&broken, "/errors").iter().find(|error| error["step"] == "prove");
        let hint = unproven.map_or("", |error| text(error, "/hint"));
        assert!(hint.contains("when the runtime answers"), "{broken:#}");
        assert!(events(&broken).is_empty(), "the first consecutive failure: {broken:#}");
        assert_eq!(node.names(), names(done..8));
        assert_recorded(&node.history()[0], &broken);

        // While the runtime is dead, nothing more can be deleted, and that is recorded.
        node.server.wait_for_death();
        let dead = node.run(&ALL).expect_code(5);
        assert!(dead.stderr.contains("cri.sock"), "{dead:?}");
        node.server.restart();
        node.server.behave(|behaviour| *behaviour = Behaviour::default());
        let next = node.json(4, &ALL);
        assert_eq!(deleted(&next), names([3, 4, 6, 7]), "{next:#}");
        if dies == Removal::DieBefore {
            // Its removal may have killed the runtime.
            assert_eq!(rule(&next, &name(2)), "backing-off");
        }
        assert_eq!(events(&next), ["FreeDiskSpaceFailed", "ImageGCFailed"], "one more consecutive failure");
        let history = node.history();
        assert_eq!(history.len(), 3, "{history:#?}");
        assert_eq!(history[1]["outcome"], "refused");
        assert_recorded(&history[0], &next);
        assert_eq!(events(&history[0]), events(&next));
    }
}

#[test]
fn events_report_consecutive_failures_only() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    node.fill(80.0);
    fn gc(node: &GcNode, code: i32, low: &str) -> Value {
        let run = node.run(&["gc", "--high", "75", "--low", low, "--format", "json"]).expect_code(code);
        let words = ["FreeDiskSpaceFailed", "ImageGCFailed"].into_iter();
        let logged: Vec<_> = words.filter(|word| run.stderr.contains(word)).collect();
        let document = node::document(run);
        assert_eq!(events(&document), logged, "in the log as in the document");
        assert_eq!(events(&node.history()[0]), logged, "in the history, too");
        document
    }
    node.server.behave(|behaviour| behaviour.remove_all(Removal::Refuse));
    let first = gc(&node, 4, "74");
    assert_eq!(events(&first), ["FreeDiskSpaceFailed"]);
    let message = text(&first, "/events/0/message");
    let wanted = layersweep::model::text::display::bytes(number(&first, "/wanted_bytes"));
    assert!(message.contains(&format!("{wanted} of the wanted {wanted} are still not free")), "{message}");
    assert_eq!(events(&gc(&node, 4, "74")), ["FreeDiskSpaceFailed", "ImageGCFailed"]);
    assert_eq!(events(&gc(&node, 4, "74")), ["FreeDiskSpaceFailed", "ImageGCFailed"]);
    // A dry run reports no events, and does not count. It cannot know that the runtime reports an image as in use.
    assert!(events(&node.json(0, &[&GC[..], &["--dry-run"]].concat())).is_empty());
    // A successful run ends the series.
    node.server.behave(|behaviour| *behaviour = Behaviour::default());
    node.database().execute("UPDATE attempts SET next_try = 0", []).unwrap();
    assert!(events(&gc(&node, 0, "74")).is_empty());
    node.fill(80.0);
    node.server.behave(|behaviour| behaviour.remove_all(Removal::Refuse));
    assert_eq!(events(&gc(&node, 4, "74")), ["FreeDiskSpaceFailed"]);
}

/// Result of each deletion of a run in the history: name, outcome, and whether a later scan confirmed it.
fn outcomes(run: &Value) -> Vec<(String, String, bool)> {
    let deleted = list(run, "/deleted").iter();
    let outcomes = deleted.map(|row| {
        (text(row, "/names/0").to_owned(), text(row, "/outcome").to_owned(), row["confirmed"] == true)
    });
    outcomes.collect()
}

#[test]
fn signal_leaves_deletion_to_next_run() {
    let Some(node) = GcNode::new(Fs::Ext4, 10) else { return };
    node.age();
    let mut left: Vec<_> = [0, 1, 2, 3, 4, 6, 7, 8, 9].into();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let first = left.remove(0);
        let second = left[0];
        node.server.behave(|behaviour| {
            behaviour.removals = vec![(name(second), Removal::Slow(Duration::from_secs(60)))];
        });
        let running = node.start(&ALL);
        node.wait_for_a_removal();
        node.wait_for_a_removal();
        let signalled = Instant::now();
        running.signal(signal);
        let run = running.end().expect_no_crash().expect_code(1);
        assert!(signalled.elapsed() < Duration::from_secs(2), "{signal}: {:?}", signalled.elapsed());
        let document = node::document(run);
        assert_eq!(document["outcome"], "failed");
        assert_eq!(deleted(&document), names([first]), "{signal}: {document:#}");
        assert!(list(&document, "/errors").iter().any(|error| error["step"] == "stop"), "{document:#}");
        let expected = [(first, "deleted"), (second, "unknown")]
            .map(|(number, outcome)| (name(number), outcome.to_owned(), false));
        assert_eq!(outcomes(&node.history()[0]), expected, "{signal}");
    }
    node.server.behave(|behaviour| *behaviour = Behaviour::default());
    assert_eq!(deleted(&node.json(4, &ALL)), names(left));
    let before = &node.history()[1];
    assert!(
        outcomes(before).iter().any(|(_, outcome, confirmed)| outcome == "failed" && *confirmed),
        "{before:#}"
    );
}

#[test]
fn signal_does_not_wait_for_hanging_runtime() {
    let Some(node) = GcNode::new(Fs::Ext4, 7) else { return };
    node.age();
    node.server.behave(|behaviour| {
        behaviour.removals = vec![(name(0), Removal::Slow(Duration::from_secs(2)))];
    });
    let running = node.start(&ALL);
    node.wait_for_a_removal();
    node.server.behave(|behaviour| behaviour.images = Listing::Hang);
    // The deletion ends; the proof for the next one hangs.
    std::thread::sleep(Duration::from_secs(6));
    running.signal(Signal::SIGTERM);
    let signalled = Instant::now();
    let run = running.end().expect_no_crash().expect_code(1);
    assert!(signalled.elapsed() < Duration::from_secs(2), "{:?}", signalled.elapsed());
    let document = node::document(run);
    assert_eq!(document["outcome"], "failed");
    assert_eq!(deleted(&document), names([0]));
    assert_recorded(&node.history()[0], &document);
}

/// The runtime hangs before any request.
#[test]
fn signal_does_not_wait_for_connection() {
    let Some(node) = GcNode::new(Fs::Ext4, 7) else { return };
    let silent = Broken::silent();
    for (number, words) in [&ALL[..], &["rm", &name(0)]].into_iter().enumerate() {
        let mut command = program::command();
        command.args(words).args(["--cri-endpoint", &format!("unix://{}", silent.socket().display())]);
        command.arg("--graphroot").arg(node.store.root()).arg("--runroot").arg(node.store.runroot());
        command.arg("--state-dir").arg(&node.state);
        let running = Running::start(&mut command);
        std::thread::sleep(Duration::from_secs(1));
        running.signal(Signal::SIGTERM);
        let signalled = Instant::now();
        let run = running.end().expect_no_crash().expect_code(1);
        assert!(signalled.elapsed() < Duration::from_secs(2), "{:?}", signalled.elapsed());
        assert!(run.stderr.contains("stopped by a signal before anything was deleted"), "{run:?}");
        let history = node.history();
        assert_eq!(history.len(), number + 1, "{history:#?}");
        assert!(text(&history[0], "/errors/0/message").contains("stopped by a signal"), "{history:#?}");
    }
    assert_eq!(node.names(), names(0..7));
}

#[test]
fn killed_run_has_recorded_its_deletions() {
    let Some(node) = GcNode::new(Fs::Ext4, 9) else { return };
    node.age();
    node.server.behave(|behaviour| {
        behaviour.removals = vec![(name(2), Removal::Slow(Duration::from_secs(60)))];
    });
    let running = node.start(&ALL);
    for _ in 0..3 {
        node.wait_for_a_removal();
    }
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end().code, -1);
    let there = node.names();
    let run = node.history().remove(0);
    assert_eq!((&run["ended_at"], &run["outcome"]), (&Value::Null, &Value::Null), "{run:#}");
    let done = list(&run, "/deleted");
    assert_eq!(done.iter().map(|row| text(row, "/names/0")).collect::<Vec<_>>(), [name(0), name(1), name(2)]);
    assert_eq!(done[2]["outcome"], "unknown");
    let freed: u64 = done[..2].iter().map(|row| number(row, "/measured_bytes")).sum();
    assert_eq!(number(&run, "/measured_bytes"), freed);
    assert!(freed > 10 << 20, "{run:#}");
    assert!(there.contains(&name(2)) && !there.contains(&name(1)));
    // Nothing of the killed run blocks the next one.
    node.server.behave(|behaviour| *behaviour = Behaviour::default());
    let next = node.json(4, &ALL);
    assert_eq!(deleted(&next), names([2, 3, 4, 6, 7, 8]));
    let history = node.history();
    assert_eq!(history.len(), 2);
    assert_eq!((&history[0]["killed"], &history[1]["killed"]), (&Value::Bool(false), &Value::Bool(true)));
    assert!(node.run(&["history"]).expect_code(0).stdout.contains("killed"));
}

#[test]
fn failed_images_back_off_longer_each_time() {
    let Some(node) = GcNode::new(Fs::Ext4, 12) else { return };
    node.age();
    const SECOND: &str = "reg.local/second-name:1";
    node.store.podman(["tag", &name(2), SECOND]);
    node.server.behave(|behaviour| {
        behaviour.removals = vec![
            (name(0), Removal::Fail),
            (name(1), Removal::Lie),
            (name(2), Removal::HalfFail),
            (name(3), Removal::Late(Duration::from_secs(2))),
        ];
    });
    node.fill(80.0);
    let first = node.json(0, &GC);
    assert_eq!(first["outcome"], "reached", "{first:#}");
    assert_eq!(deleted(&first)[..2], names([3, 4]), "the late removal has happened: {first:#}");
    assert_eq!(of_rule(&first, "removal-failed").len(), 3, "{first:#}");
    for (number, words) in [(0, "input/output error"), (1, "still exists"), (2, "device or resource busy")] {
        // One name of the third is gone: half of the removal failed.
        let there = node.names();
        let second = number == 2 && there.iter().any(|other| other == SECOND);
        let id = node.id(&if second { SECOND.to_owned() } else { name(number) });
        let kept = list(&first, "/kept").iter().find(|kept| kept["id"] == id.as_str()).unwrap();
        assert_eq!(kept["rule"], "removal-failed");
        assert!(text(kept, "/detail").contains(words), "{kept:#}");
        let error = list(&first, "/errors").iter().find(|error| error["id"] == id.as_str()).unwrap();
        assert!(text(error, "/message").contains(words), "{error:#}");
    }
    node.server.finish_late();
    let recorded = node.history().remove(0);
    let failed = list(&recorded, "/deleted").iter().filter(|row| !row["error"].is_null()).count();
    assert_eq!(failed, 3, "the failures are in the history: {recorded:#}");

    // The back-off grows: five minutes, ten, twenty.
    for (round, minutes) in [(1, 5), (2, 10), (3, 20)] {
        let waits: Vec<(i64, i64)> = {
            let database = node.database();
            let mut select = database.prepare("SELECT failures, next_try - tried FROM attempts").unwrap();
            let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.map(Result::unwrap).collect()
        };
        assert_eq!(waits.len(), 3, "{waits:?}");
        for (failures, wait) in waits {
            let off = (wait - minutes * 60 * 1_000_000).abs();
            assert!(failures == round && off < 1_000_000, "round {round}: {failures} {wait}");
        }
        node.removals();
        node.make_room();
        let before = node.names().len();
        // Every other image is kept: an image that backs off is not even tried.
        let words = [&ALL[..], &["--dry-run"]].concat();
        let dry = node.json(4, &words);
        assert_eq!(of_rule(&dry, "backing-off").len(), 3, "{dry:#}");
        let detail = text(kept(&dry, &name(0)), "/detail").to_owned();
        assert!(detail.contains("input/output error") && detail.contains("not again before"), "{detail}");
        assert_eq!(node.removals(), 0);
        assert_eq!(node.names().len(), before);
        node.database().execute("UPDATE attempts SET next_try = 0", []).unwrap();
        if round < 3 {
            node.server.behave(|behaviour| {
                behaviour.removals = vec![("*".into(), Removal::Fail)];
            });
            let config =
                node.config("[protect]\nnames = [\"reg.local/old-[4-9]*\", \"reg.local/old-1[01]*\"]\n");
            let again = node.json(4, &[&ALL[..], &["--config", &config]].concat());
            assert_eq!(of_rule(&again, "removal-failed").len(), 3, "{again:#}");
            assert_eq!(list(&again, "/deleted").len(), 0);
        }
    }
    // Removals work again, and the back-off is forgotten.
    node.server.behave(|behaviour| *behaviour = Behaviour::default());
    let last = node.json(4, &ALL);
    assert_eq!(of_rule(&last, "in-use"), [name(cri_server::gc_node::IN_USE)]);
    assert_eq!(list(&last, "/kept").len(), 1, "{last:#}");
    let left: i64 = node.database().query_row("SELECT count(*) FROM attempts", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn undeletable_old_image_does_not_block_space_pass() {
    let Some(node) = GcNode::new(Fs::Ext4, 10) else { return };
    node.age();
    node.fill(80.0);
    node.server.behave(|behaviour| behaviour.removals = vec![(name(0), Removal::Refuse)]);
    let words = [&GC[..], &["--max-age", "684h"]].concat(); // 28 days and a half: 0 and 1
    let real = node.json(0, &words);
    assert_eq!(real["outcome"], "reached");
    assert_eq!(real["trigger"], serde_json::json!({"space": true, "age": true}));
    let reasons: Vec<_> = list(&real, "/deleted").iter().map(|row| text(row, "/reason")).collect();
    assert_eq!((reasons[0], reasons[1]), ("age", "space"), "{real:#}");
    assert_eq!(deleted(&real)[..2], names([1, 2]));
    // An image that is in use by now has not failed: it does not back off.
    assert_eq!(rule(&real, &name(0)), "in-use");
    assert!(text(kept(&real, &name(0)), "/detail").contains("in use by a container"), "{real:#}");
    assert_eq!(list(&real, "/errors").len(), 0, "{real:#}");
    assert!(node.used_percent() <= 74.0);
    node.server.behave(|behaviour| behaviour.removals = vec![(name(0), Removal::Fail)]);
    node.make_room();
    let failed = node.run(&[&words[..], &["--format", "json"]].concat()).json();
    assert_eq!(rule(&failed, &name(0)), "removal-failed", "{failed:#}");
    // By age alone: the image that is left backs off, and that is not a failure of the run.
    let again = node.json(0, &words);
    assert_eq!(rule(&again, &name(0)), "backing-off");
    assert_eq!(again["outcome"], "not_needed", "{again:#}");
}

/// A runtime that is down for weeks causes a series of failures that an operator should see.
#[test]
fn refused_runs_are_recorded() {
    let Some(mut node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    node.server.stop();
    let first = node.run(&ALL).expect_code(5);
    assert!(!first.stderr.contains("ImageGCFailed"), "{first:?}");
    let second = node.run(&ALL).expect_code(5);
    assert!(second.stderr.contains("ImageGCFailed"), "{second:?}");
    node.run(&[&ALL[..], &["--dry-run"]].concat()).expect_code(5);
    let history = node.history();
    assert_eq!(history.len(), 2, "a dry run is not recorded: {history:#?}");
    assert!(history.iter().all(|run| run["outcome"] == "refused"), "{history:#?}");
    assert!(text(&history[0], "/errors/0/message").contains("no runtime"), "{history:#?}");
    assert_eq!(history[0]["events"][0]["reason"], "ImageGCFailed");
    assert_eq!(list(&history[1], "/events").len(), 0);
}

#[test]
fn nohup_ignores_hangup() {
    let Some(node) = GcNode::new(Fs::Ext4, 7) else { return };
    node.age();
    node.server.behave(|behaviour| {
        behaviour.removals = vec![(name(0), Removal::Slow(Duration::from_secs(2)))];
    });
    let line = node.command(&[&ALL[..], &["--format", "json"]].concat());
    let mut command = std::process::Command::new("sh");
    support::program::hermetic(&mut command);
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(line.get_program()).args(line.get_args());
    let running = support::running::Running::start(&mut command);
    node.wait_for_a_removal();
    running.signal(Signal::SIGHUP);
    let document = node::document(running.end().expect_code(4));
    assert_eq!(deleted(&document).len(), 6, "{document:#}");
}
