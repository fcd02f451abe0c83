//! Checks the form of commands, and their output.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

use super::blocks::Block;
use crate::support::program;

/// Returns the errors in the form of a block's commands.
pub fn form(block: &Block) -> Vec<String> {
    let script = block.commands();
    let mut wrong = Vec::new();
    let read = program::run(Command::new("sh").args(["-n", "-c", &plain(&script)]));
    if read.code != 0 {
        wrong.push(format!("{}: the shell does not understand it: {}", block.place(), read.stderr.trim()));
    }
    for words in our_commands(&script) {
        wrong.extend(understood(&words).err().map(|why| format!("{}: {why}", block.place())));
    }
    for target in script.lines().filter_map(|line| line.trim().strip_prefix("make ")) {
        let target = target.split_whitespace().find(|word| !word.contains('=')).unwrap_or_default();
        let makefile = include_str!("../../../Makefile");
        if !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))) {
            wrong.push(format!("{}: the Makefile has no {target:?}", block.place()));
        }
    }
    wrong
}

/// Replaces placeholders that have a meaning for a shell.
fn plain(script: &str) -> String {
    static ANGLES: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"<([A-Za-z][\w -]*)>").expect("a pattern"));
    ANGLES.replace_all(script, "placeholder").into_owned()
}

/// Checks that the command line of layersweep accepts these words. It runs with `--help`, so that all words are read
/// and nothing is done.
pub fn understood(words: &[String]) -> Result<(), String> {
    let line = words.join(" ");
    let mut all = words.to_vec();
    // These words mean "and so on".
    all.retain(|word| word != "…" && word != "..." && !word.starts_with('['));
    all.push("--help".into());
    let run = program::layersweep(all);
    match run.code {
        0 => Ok(()),
        _ => Err(format!("`layersweep {line}`: {}", run.stderr.lines().next().unwrap_or_default())),
    }
}

/// Returns the arguments of every `layersweep` in a script.
pub fn our_commands(script: &str) -> Vec<Vec<String>> {
    let joined = script.replace("\\\n", " ");
    joined.lines().flat_map(commands_of_line).collect()
}

fn commands_of_line(line: &str) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut ours = false;
    for word in words(line) {
        match word {
            Word::Ends => ours = false,
            Word::Text(text) if !ours => {
                if text == "layersweep"
                    || text.ends_with("/bin/layersweep")
                    || text.ends_with("release/layersweep")
                {
                    ours = true;
                    found.push(Vec::new());
                }
            }
            Word::Text(text) => found.last_mut().expect("one is open").push(text),
        }
    }
    found
}

#[derive(Debug, PartialEq)]
enum Word {
    Text(String),
    /// A comment, a pipe or a redirection, which ends the arguments.
    Ends,
}

/// Splits a line into words as a shell does, as far as the pages need it.
fn words(line: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | ';' | '&' | '>' | '<' | '(' | ')' | '`') => {
                words.extend(word.take().map(Word::Text));
                words.push(Word::Ends);
            }
            (None, _) if character.is_whitespace() => words.extend(word.take().map(Word::Text)),
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word.map(Word::Text));
    words
}

/// Returns the headlines of tables: lines of capitals.
fn headlines<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Vec<&'a str>> {
    let heads = lines.filter(|line| {
        line.trim().len() > 8
            && line.trim().contains(' ')
            && line.chars().all(|c| c.is_ascii_uppercase() || c.is_whitespace())
    });
    heads.map(|line| line.split_whitespace().collect()).collect()
}

/// Returns the differences between the output in a page and the program's output.
pub fn differences(shown: &[String], printed: &str, exact: bool) -> Vec<String> {
    if exact {
        fn shapes(lines: &mut dyn Iterator<Item = &str>) -> Vec<String> {
            lines.map(shape).filter(|line| !line.is_empty()).collect()
        }
        let shown = shapes(&mut shown.iter().map(String::as_str));
        let printed = shapes(&mut printed.lines());
        return if shown == printed {
            Vec::new()
        } else {
            vec![format!("shown:\n  {}\nprinted:\n  {}", shown.join("\n  "), printed.join("\n  "))]
        };
    }
    let printed = headlines(printed.lines());
    let missing =
        headlines(shown.iter().map(String::as_str)).into_iter().filter(|head| !printed.contains(head));
    missing.map(|head| format!("no table is printed with the headline {}", head.join(" "))).collect()
}

/// Returns a line without figures, ids and times.
fn shape(line: &str) -> String {
    static FIGURES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        [
            (r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", "RUN"),
            (r"\b\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d)?)?", "TIME"),
            (r"\b\d\d:\d\d:\d\d\b", "TIME"),
            (r"\b[0-9a-f]{12,64}\b", "ID"),
            (r"/dev/loop\d+", "DEVICE"),
            (r"\.json\d+", ".jsonN"),
            (r"\breserve-[0-9a-f]+", "RESERVE"),
            (r"\b\d+(\.\d+)? ?(B|KiB|MiB|GiB|TiB)\b", "BYTES"),
            (r"\b\d+(\.\d+)? ?(ms|s|m|h|d|w)\b", "TIME"),
            (r"\b\d+(\.\d+)? ?%", "PERCENT"),
            (r"\b\d+(\.\d+)?\b", "N"),
            (r"\s+", " "),
            // Two readings may be in one minute.
            (r"Used (at TIME: PERCENT|from TIME to TIME), now", "Used, now"),
        ]
        .map(|(pattern, by)| (Regex::new(pattern).expect("a pattern"), by))
        .into()
    });
    let mut line = line.trim().to_owned();
    for (pattern, by) in FIGURES.iter() {
        line = pattern.replace_all(&line, *by).into_owned();
    }
    line
}

/// Returns the error in a configuration of layersweep.
pub fn toml(block: &Block) -> Option<String> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("layersweep.toml");
    std::fs::write(&file, &block.text).expect("a file");
    let state = dir.path().join("state");
    let words = ["history", "--config", &file.to_string_lossy(), "--state-dir", &state.to_string_lossy()];
    let run = program::layersweep(words);
    (run.code != 0).then(|| format!("{}: the program says {}", block.place(), run.stderr.trim()))
}

/// Returns the error in other data. A document of layersweep must fit its schema.
pub fn data(block: &Block) -> Option<String> {
    fn wrong(block: &Block, why: String) -> Option<String> {
        Some(format!("{}: it is no {}: {why}", block.place(), block.language))
    }
    if block.language == "yaml" {
        let documents = serde_saphyr::from_multiple::<serde_json::Value>(&block.text);
        return documents.err().and_then(|error| wrong(block, error.to_string()));
    }
    let document: serde_json::Value = match serde_json::from_str(&block.text) {
        Ok(document) => document,
        Err(error) => return wrong(block, error.to_string()),
    };
    let kind = document["kind"].as_str().filter(|_| document.get("schema_version").is_some())?;
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/schema/{kind}.json"));
    let schema = match std::fs::read(&schema) {
        Ok(schema) => serde_json::from_slice(&schema).expect("a schema in JSON"),
        Err(error) => return wrong(block, format!("{}: {error}", schema.display())),
    };
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let mut errors = validator.iter_errors(&document);
    errors.next().and_then(|error| wrong(block, format!("{}: {error}", error.instance_path())))
}

/// Returns code in running text with its line: `like this`.
pub fn spans(text: &str) -> Vec<(usize, String)> {
    static SPAN: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"`([^`\n]+(?:\n[^`\n]+)?)`").expect("a pattern"));
    let prose = without_blocks(text);
    let spans = SPAN.captures_iter(&prose).map(|span| {
        let start = span.get(0).expect("a match").start();
        (prose[..start].matches('\n').count() + 1, span[1].replace('\n', " "))
    });
    spans.collect()
}

/// Returns the lines of commands that are code only by their indentation.
pub fn indented(text: &str) -> impl Iterator<Item = usize> {
    let prose = without_blocks(text);
    let lines = prose.lines().enumerate().filter(|(_, line)| {
        let command = line.trim_start();
        line.starts_with("    ") && (command.starts_with("layersweep ") || command.starts_with("$ "))
    });
    lines.map(|(line_ix, _)| line_ix + 1).collect::<Vec<_>>().into_iter()
}

/// Returns a page whose code blocks are empty.
pub fn without_blocks(text: &str) -> String {
    let mut inside = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.push_str(line);
        }
        prose.push('\n');
    }
    prose
}

/// Returns the text of everything that may define a name with an underscore: schemas, configuration and sources.
pub fn known_words() -> String {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = String::new();
    for place in ["docs/schema", "src", "tests", "migrations", "benches", "packaging"] {
        for entry in walkdir::WalkDir::new(top.join(place)).into_iter().filter(|_| top.join(place).exists()) {
            let entry = entry.expect("an entry");
            // Not this test itself.
            if entry.file_type().is_file() && !entry.path().to_string_lossy().contains("docs_commands") {
                all.push_str(&String::from_utf8_lossy(&std::fs::read(entry.path()).expect("a file")));
            }
        }
    }
    all
}
