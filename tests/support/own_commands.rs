//! layersweep's own commands on its screens, in its documents and in its pages: they have to work as printed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::program::{self, Run};
use super::report_document;

/// Commands of layersweep that printed texts name.
const COMMANDS: [&str; 20] = [
    "completions",
    "config",
    "diff",
    "doctor",
    "explain",
    "fits",
    "gc",
    "history",
    "images",
    "layers",
    "man",
    "metrics",
    "pin",
    "replay",
    "report",
    "rm",
    "scan",
    "sweep",
    "usage",
    "waste",
];

/// Returns the commands of layersweep in a text: in backquotes, or on an indented line of its own.
pub fn in_text(text: &str) -> BTreeSet<String> {
    fn is_own(command: &str) -> bool {
        let mut words = command.split_whitespace().skip_while(|word| *word != "layersweep").skip(1);
        words.any(|word| COMMANDS.contains(&word))
    }
    let quoted = text.split('`').skip(1).step_by(2).map(|command| {
        let words: Vec<_> = command.split_whitespace().collect();
        words.join(" ")
    });
    let lines = text.lines().filter(|line| line.starts_with([' ', '-']));
    let lines = lines.map(|line| line.trim_start_matches([' ', '-']).to_owned());
    let lines = lines.filter(|line| {
        let mut words = line.split_whitespace();
        let starts_command = |word: &str| word.starts_with("--") || COMMANDS.contains(&word);
        words.next() == Some("layersweep") && words.next().is_some_and(starts_command)
    });
    quoted.chain(lines).filter(|command| is_own(command)).collect()
}

/// Returns the commands of layersweep in a document.
pub fn in_document(document: &Value) -> BTreeSet<String> {
    match document {
        Value::String(text) => in_text(text),
        Value::Array(items) => items.iter().flat_map(in_document).collect(),
        Value::Object(fields) => {
            // The same document says why it would be refused.
            let is_refused = fields.get("refused").is_some_and(|why| !why.is_null());
            let commands = fields.iter().filter(|(name, _)| *name == "command" && !is_refused);
            // A command for an object says if it deletes.
            let commands = commands.filter_map(|(_, command)| {
                command.as_str().or(command["deletes"].as_str()).or(command["shows"].as_str())
            });
            let commands = commands.flat_map(|command| in_text(&format!("`{command}`")));
            commands.chain(fields.values().flat_map(in_document)).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Returns the commands of layersweep that a run prints: on its screen or in its document, and in its messages.
pub fn in_run(run: &Run) -> BTreeSet<String> {
    let document = serde_json::from_str(&run.stdout).map(|document| in_document(&document));
    let printed = document.unwrap_or_else(|_| in_text(&run.stdout));
    printed.into_iter().chain(run.stderr.lines().flat_map(in_text)).collect()
}

/// Returns the commands of layersweep in a page.
pub fn in_page(page: &str) -> BTreeSet<String> {
    let plain = page.split_once("<pre").and_then(|(_, rest)| rest.split_once('>')).unwrap_or_default().1;
    let plain =
        plain.split_once("</pre>").unwrap_or_default().0.replace("&#39;", "'").replace("&quot;", "\"");
    in_document(&report_document::in_page(page)).into_iter().chain(in_text(&plain)).collect()
}

/// Fails unless a printed command works as printed. Nothing is deleted: a command that deletes is a dry run, and one that
/// pins, or is for another node, another user or a pipe, is only parsed.
pub fn assert_works(command: &str, is_foreign: bool) {
    let is_placeholder = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    if command.split_whitespace().any(is_placeholder) {
        return;
    }
    let (before, own) = command.split_once("layersweep").expect("a command of layersweep");
    let own = format!("layersweep{own}");
    let words: Vec<_> = own.split_whitespace().collect();
    let has = |names: &[&str]| words.iter().any(|word| names.contains(word));
    let deletes = has(&["gc", "rm"]) || has(&["--delete", "--repair"]);
    let own = match deletes {
        _ if !before.is_empty() || has(&["pin", "--reserve", "-"]) || deletes && is_foreign => {
            format!("{own} --help")
        }
        true if !has(&["--dry-run"]) => format!("{own} --dry-run"),
        _ => own,
    };
    let program = Path::new(env!("CARGO_BIN_EXE_layersweep"));
    let path = std::env::var("PATH").unwrap_or_default();
    let directory = program.parent().expect("a directory").display();
    let mut shell = Command::new("sh");
    program::hermetic(&mut shell);
    shell.env("PATH", format!("{directory}:{path}")).args(["-c", &own]);
    let run = program::run(&mut shell).expect_no_crash();
    assert!([0, 3, 4, 5].contains(&run.code), "`{command}` does not work as printed: {run:?}");
}
