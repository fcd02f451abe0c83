//! Rules for images by name, and the declared set of images, from the configuration to the run.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, deleted, kept, name};
use serde_json::Value;
use support::loopfs::Fs;
use support::program::{Run, list, text};

fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(name).collect()
}

#[test]
fn rules_set_ages_of_images() {
    let Some(node) = GcNode::new(Fs::Ext4, 9) else { return };
    node.age(); // image 0 was detected 30 days ago, 1 was detected 29 days ago, ...
    let config = node.config(
        "[images]\nmax_age = \"26d12h\"\n\
         [[images.rule]]\nmatch = \"reg.local/old-0\"\nmax_age = \"off\"\n\
         [[images.rule]]\nmatch = \"reg.local/old-1:*\"\nmin_age = \"60d\"\nmax_age = \"60d\"\n\
         [[images.rule]]\nmatch = \"*/old-[178]:*\"\nmax_age = \"23d12h\"\nkeep_newest = 1\n\
         [[images.rule]]\nmatch = \"*/old-8:*\"\nmax_age = \"1d\"\n",
    );
    let rule = |image: usize, number: usize| -> Value {
        let document = node.json(0, &["explain", &name(image), "--config", &config]);
        let rule = list(&document, "/rules").iter().find(|rule| rule["rule"] == "min-age").unwrap();
        assert_eq!(rule["keeps"] == true, number == 5, "{document:#}");
        document
    };
    let by_rule = |document: &Value, key: &str, line: usize| {
        let place = text(document, key);
        assert!(place.ends_with(&format!(" ({config}:{line})")), "{place}");
    };
    let document = rule(1, 5);
    assert_eq!(document["age_limits"]["min_age_seconds"], 60 * 24 * 3600);
    by_rule(&document, "/age_limits/min_age_rule", 6);
    by_rule(&document, "/age_limits/max_age_rule", 6);
    assert_eq!(document["decision"]["rule"], "min-age");
    assert!(
        text(&document, "/decision/detail").contains(&format!("by the rule reg.local/old-1:* ({config}:6)"))
    );
    let document = rule(0, 0);
    assert_eq!(document["age_limits"]["max_age_seconds"], Value::Null);
    by_rule(&document, "/age_limits/max_age_rule", 3);
    let screen = node.run(&["explain", &name(7), "--config", &config]).expect_code(0).stdout;
    let ages = format!("max_age 23d12h by the rule */old-[178]:* ({config}:10)\n");
    assert!(screen.contains(&ages) && screen.contains("among the newest 1 of reg.local/old-7"), "{screen}");
    // Image 7 is the newest of its repository, and image 8 too young for the rule that matches it first.
    let dry = node.json(0, &["gc", "--config", &config, "--dry-run"]);
    assert_eq!(deleted(&dry), names([2, 3]));
    // A flag overrides the ages of the rules.
    let dry =
        node.json(0, &["gc", "--config", &config, "--dry-run", "--max-age", "28d12h", "--min-age", "0s"]);
    assert_eq!(deleted(&dry), names([0, 1]));
    let real = node.json(0, &["gc", "--config", &config]);
    assert_eq!(deleted(&real), names([2, 3]));
    assert_eq!(kept(&real, &name(1))["rule"], "min-age");
    // A rule that is wrong stops the run.
    let config = node.config("[[images.rule]]\nmatch = \"[\"\n");
    let run = node.run(&["gc", "--config", &config, "-y"]).expect_code(2);
    assert!(
        run.stderr.starts_with(&format!("error: {config}, line 2, column 9: images.rule.match: \"[\"")),
        "{run:?}"
    );
}

#[test]
fn declared_set_is_kept_or_stops_the_run() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    node.age();
    let file = node.store.scratch().join("expected.txt");
    let config = node.config(&format!("[protect]\nreferences_file = {file:?}\n"));
    let run = |words: &[&str]| -> Run { node.run(&[words, &["--config", &config]].concat()) };
    let all = ["gc", "-y", "--high", "1", "--low", "0"];
    fn refused(run: &Run, file: &Path, why: &str) {
        let start = format!("error: {}{why}", file.display());
        assert!(
            run.stderr.contains(&start) && run.stderr.contains("; nothing is deleted "),
            "{why}: {run:?}"
        );
    }
    for (content, why) in [
        (None, ": No such file"),
        (
            Some("reg.local/old-0:1\n\nreg.local/old-*\n"),
            ":3: not an image reference or digest: \"reg.local/old-*\"; nothing is deleted until it is correct",
        ),
        (Some("a:1\ncontainers-storage:reg.local/old-0:1\n"), ":2: not an image of a registry"),
        (Some("https://reg.local/old-0:1\n"), ":1: not an image reference (of all schemes"),
        (Some("reg.local//old-0:1\n"), ":1: not an image reference (a part of its name is empty)"),
        (Some("reg.local/old-0:\n"), ":1: not an image reference (its tag is empty)"),
        (Some("# nothing\n"), ": it names no image"),
    ] {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        refused(&run(&all).expect_code(5), &file, why);
        refused(&run(&["rm", "-y", &name(0)]).expect_code(5), &file, why);
        let checks = run(&["doctor", "--format", "json"]).json();
        let of_name = |name| list(&checks, "/checks").iter().filter(move |check| check["name"] == name);
        let check = of_name("references-file").next().unwrap();
        assert!(check["status"] == "warning" && text(check, "/message").contains(why), "{check:#}");
        assert!(of_name("gc").all(|check| check["status"] == "warning"), "{checks:#}");
        let explained = run(&["explain", &name(1), "--format", "json"]).expect_code(0).json();
        assert_eq!(explained["decision"]["rule"], "pinned", "{explained:#}");
        let sentence = format!("{}{why}", file.display());
        assert!(
            text(&explained, "/decision/detail").starts_with(&format!("pinned: {sentence}")),
            "{explained:#}"
        );
    }
    let check = run(&["config", "check"]).expect_code(0).stdout;
    let warning =
        format!("warning: {config}:2: protect.references_file: {}: it names no image; ", file.display());
    assert!(check.starts_with(&warning) && check.contains("The configuration is valid"), "{check}");
    let full = node.config(&format!("[images]\nhigh_percent = 1\n[protect]\nreferences_file = {file:?}\n"));
    let report = node.run(&["report", "--config", &full]);
    let unwrapped = report.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = format!("kept for now: {}: it names no image; nothing is deleted", file.display());
    assert!(unwrapped.contains(&sentence), "{report:?}");
    node.config(&format!("[protect]\nreferences_file = {file:?}\n"));
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &file,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    refused(&run(&all).expect_code(5), &file, ": not a regular file");
    assert_eq!(node.names(), names(0..8));

    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "old-0:1\nreg.local/old-3\nquay.io/not/here:1\nold-4:9\n").unwrap();
    let warning = format!(
        "warning: {}, line 2, reg.local/old-3, means :latest and names no image, although reg.local/old-3:1 is here: gc may \
         delete it; 1 more line is like it\n",
        file.display()
    );
    let dry = run(&[&all[..], &["--dry-run"]].concat());
    assert_eq!(dry.stderr.matches(&warning).count(), 1, "{dry:?}");
    let checks = run(&["doctor", "--format", "json"]).json();
    let check = list(&checks, "/checks").iter().find(|check| check["name"] == "references-file").unwrap();
    let start = "4 references, 1 names an image here; line 2, reg.local/old-3, means :latest and names no image, although";
    assert!(check["status"] == "warning" && text(check, "/message").starts_with(start), "{check:#}");
    std::fs::write(&file, "old-0:1\nquay.io/not/here:1\n").unwrap();
    let checks = run(&["doctor", "--format", "json"]).json();
    let check = list(&checks, "/checks").iter().find(|check| check["name"] == "references-file").unwrap();
    let found = (text(check, "/status"), text(check, "/message"));
    assert_eq!(
        found,
        ("note", "2 references, 1 names an image here; line 2, quay.io/not/here:1, names no image")
    );
    assert!(!run(&["gc", "--dry-run"]).stderr.contains("names no image"));

    let lines = format!(
        "# expected\ndocker://{}   # the first\nold-1:1\nquay.io/not/here:1\n{}\n",
        name(0),
        node.id(&name(2))
    );
    std::fs::write(&file, lines).unwrap();
    let real = run(&[&all[..], &["--format", "json"]].concat()).expect_code(4).json();
    for (image, line) in [(0, 2), (1, 3), (2, 5)] {
        let kept = kept(&real, &name(image));
        let detail = format!("named in {}, line {line}", file.display());
        assert_eq!((text(kept, "/rule"), text(kept, "/detail")), ("protected-name", detail.as_str()));
    }
    assert_eq!(node.names(), names([0, 1, 2, 5]));
}
