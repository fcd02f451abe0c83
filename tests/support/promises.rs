//! Promises of the reading commands, compared with the plan of `gc`; and of every screen: no printed command destroys what
//! cannot be made again.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::program::{list, number, text};

/// Commands that delete files, volumes and logs, or that delete what is in use.
static DESTROYS: LazyLock<Regex> = LazyLock::new(|| {
    let start = r#"(?:^|[\s`"'(;&|])"#;
    let patterns = [
        r"\btruncate\s+-s",
        r"\s-delete\b",
        r"-exec\s+rm\b",
        r"\bvolumes?\s+(?:rm|remove|prune)\b",
        r"\b(?:system|container|pod)\s+prune\b",
        r"\bprune\b[^`\n]*\s(?:--volumes|--force|--all|-[a-z]*[af])\b",
        &format!(
            r"{start}(?:rm|rmi|rmp|remove)\s+(?:-[a-zA-Z]*[rRfF]\b|--force|--recursive|--storage|--volumes)"
        ),
        &format!(r#"{start}(?:sudo\s+)?(?:rm|unlink|shred|wipefs|mkfs\S*)\s+(?:-\S+\s+)*['"]?[/~.$]"#),
        r"\bleases\s+rm\b",
        r"\bdd\s[^`\n]*\bof=",
    ];
    Regex::new(&patterns.join("|")).expect("a pattern")
});

/// Returns the lines of a screen, document or page with a command that deletes what cannot be made again. Files of
/// layersweep itself are not meant, nor the leases of image volumes, whose content is that of an image.
pub fn destroying_commands(text: &str) -> Vec<String> {
    // JSON has a command in a string.
    let lines = text.lines().flat_map(|line| line.split("\\n"));
    let found = lines.filter(|line| DESTROYS.find_iter(line).any(|found| !is_harmless(line, found)));
    found.map(str::to_owned).collect()
}

/// Returns true if a match is a command of layersweep itself, deletes its own files, or removes the lease of an image
/// volume.
fn is_harmless(line: &str, found: regex::Match<'_>) -> bool {
    let rest = line[found.start()..].split('`').next().unwrap_or_default();
    let mut paths = rest.split_whitespace().filter(|word| word.contains('/')).peekable();
    line[..found.start()].ends_with("layersweep")
        || paths.peek().is_some() && paths.all(|path| path.contains("layersweep"))
        || found.as_str().contains("leases") && line.contains("an image volume of pod")
}

/// Checks that no screen or document of these commands has a destroying command. `run` returns the standard output and
/// error of a command, `references` are objects and paths to explain.
pub fn assert_nothing_destroys(run: impl Fn(&[&str]) -> String, references: &[String]) {
    let mut all = vec![
        vec!["report"],
        vec!["gc", "--dry-run", "--high", "2", "--low", "1"],
        vec!["sweep"],
        vec!["usage"],
        vec!["images"],
        vec!["doctor"],
        vec!["report", "--html", "-"],
    ];
    all.extend(references.iter().map(|reference| vec!["explain", reference]));
    let documents: Vec<_> = all
        .iter()
        .filter(|words| !words.contains(&"--html"))
        .map(|words| [&words[..], &["--format", "json"]].concat())
        .collect();
    for words in all.into_iter().chain(documents) {
        let printed = run(&words);
        assert!(!printed.is_empty(), "{words:?}");
        assert_eq!(destroying_commands(&printed), [] as [String; 0], "{words:?}: {printed}");
    }
}

/// Checks, under a policy that wants every image deleted, that `usage`, `report`, `images` and `explain` promise for
/// each image what the dry run of `gc` plans; returns the plan. `json` runs a command of the node and returns its
/// document.
pub fn assert_kept_by_plan(json: impl Fn(&[&str]) -> Value) -> Value {
    let dry = json(&["gc", "--dry-run"]);
    let planned: u64 =
        list(&dry, "/deleted").iter().map(|deletion| number(deletion, "/predicted_bytes")).sum();
    let goes: BTreeSet<_> = list(&dry, "/deleted").iter().map(|deletion| text(deletion, "/id")).collect();
    let usage = json(&["usage"]);
    let rows: Vec<_> =
        list(&usage, "/filesystems").iter().flat_map(|filesystem| list(filesystem, "/rows")).collect();
    let unused = rows.iter().filter(|row| row["kind"] == "images_unused");
    assert_eq!(unused.map(|row| number(row, "/reclaimable_bytes")).sum::<u64>(), planned, "{usage:#}");
    assert_eq!(usage["gc_refused"], Value::Null);

    let images = json(&["images"]);
    let unused =
        list(&images, "/images").iter().filter(|image| image["in_use"] == false && image["pinned"] == false);
    let out_of_reach =
        unused.filter(|image| !image["out_of_reach"].is_null()).map(|image| text(image, "/id"));
    let out_of_reach: BTreeSet<_> = out_of_reach.collect();
    let kept = list(&dry, "/kept").iter();
    let kept = kept.filter(|image| image["rule"] == "out-of-reach" || image["rule"] == "damaged-store");
    let expected: BTreeSet<_> = kept.map(|image| text(image, "/id")).collect();
    assert_eq!(out_of_reach, expected, "{dry:#}");
    let beyond = rows.iter().filter(|row| row["kind"] == "images_out_of_reach");
    assert_eq!(beyond.map(|row| number(row, "/count")).sum::<u64>(), expected.len() as u64, "{usage:#}");

    let report = json(&["report"]);
    let steps = list(&report, "/verdict/steps").iter();
    let mut steps = steps
        .filter(|step| step["command"]["deletes"].as_str().is_some_and(|command| command.contains(" gc")));
    assert_eq!(number(steps.next().expect("gc is advised"), "/bytes"), planned, "{report:#}");

    for image in list(&images, "/images") {
        let id = text(image, "/id");
        let explained = json(&["explain", id]);
        assert_eq!(explained["decision"]["would_delete"], goes.contains(id), "{explained:#}");
    }
    dry
}
