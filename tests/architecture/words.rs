//! Counts the marks of an unclear voice in Rust sources: comments that begin with a relative clause, vague pronouns,
//! variables that do not name their thing, closures that have a name, and docs that repeat the name of their item; and
//! habits that cost a reader time: captions, second bindings of a name, and type names with several meanings.

use std::collections::{BTreeMap, BTreeSet};

/// Vague words, which comments and messages must not contain.
const BANNED: [&str; 10] =
    ["nobody", "somebody", "whoever", "ours", "theirs", "is none", "so many", "is told", "stands", "lies"];

/// Beginnings of a relative clause.
const RELATIVE: [&str; 6] = ["What", "Who", "Whose", "Where", "Whether", "How"];

/// Identifiers that do not name their thing. As fields and methods (`.at`, `at()`) they are not counted.
const VAGUE: [&str; 4] = ["at", "one", "own", "asked"];

/// Words of a doc comment that say nothing beside the name of the item.
const FILLERS: [&str; 10] = ["the", "a", "an", "of", "it", "in", "return", "whether", "is", "and"];

/// Counts over a set of files.
#[derive(Debug, Default)]
pub struct Voice {
    pub lines: usize,
    pub comments: usize,
    pub words: usize,
    pub relative: Vec<String>,
    pub banned: BTreeMap<&'static str, Vec<String>>,
    pub vague: BTreeMap<&'static str, Vec<String>>,
    pub closures: Vec<String>,
    pub repeated: Vec<String>,
}

/// Habits of sources that cost their reader time, counted without tests.
#[derive(Debug, Default)]
pub struct Habits {
    pub lines: usize,
    pub blocks: usize,
    /// Comments of one line.
    pub captions: Vec<String>,
    /// `let` statements that make a value of the variable whose name they bind again: `let x = x.f();`
    pub rebound: Vec<String>,
    /// Places that define a type, by its name.
    pub types: BTreeMap<String, Vec<String>>,
}

impl Habits {
    /// Adds the file `name` with the contents `source`.
    pub fn add(&mut self, name: &str, source: &str) {
        let code = source.split("\n#[cfg(test)]\nmod ").next().unwrap_or(source);
        let mut bound = BTreeSet::new();
        let mut length = 0;
        for (position, line) in code.lines().chain([""]).enumerate() {
            let line = line.trim();
            let place = format!("{name}:{}", position + 1);
            if line.starts_with("//") {
                length += 1;
                continue;
            }
            self.blocks += usize::from(length > 0);
            if length == 1 {
                self.captions.push(format!("{name}:{position}"));
            }
            length = 0;
            self.lines += usize::from(!line.is_empty());
            let words: Vec<_> = tokens(line).into_iter().map(|(_, token)| token).collect();
            let item = words.iter().position(|word| ["fn", "struct", "enum", "trait", "type"].contains(word));
            let is_item = item.is_some_and(|item| words[..item].iter().all(|word| is_modifier(word)));
            if let Some(item) = item.filter(|_| is_item) {
                if words[item] == "fn" {
                    bound.clear();
                } else if let Some(defined) = words.get(item + 1) {
                    self.types.entry((*defined).to_owned()).or_default().push(place.clone());
                }
            }
            let Some(rest) = words.strip_prefix(&["let"]) else { continue };
            let rest = rest.strip_prefix(&["mut"]).unwrap_or(rest);
            let Some(variable) = rest.first().filter(|variable| **variable != "(") else { continue };
            let equals = rest.iter().position(|word| *word == "=").unwrap_or(rest.len());
            let of_itself =
                rest[equals..].iter().skip(1).find(|word| !["&", "mut"].contains(word)) == Some(variable);
            if !bound.insert((*variable).to_owned()) && of_itself {
                self.rebound.push(place);
            }
        }
    }
}

fn is_modifier(word: &str) -> bool {
    ["pub", "(", ")", "crate", "super", "self", "in", ":", "async", "const", "unsafe"].contains(&word)
}

/// A part of a source file, with the number of its first line.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    Code(usize, &'a str),
    Comment(usize, &'a str),
    Text(usize, &'a str),
}

impl Voice {
    /// Adds the file `name` with the contents `source`.
    pub fn add(&mut self, name: &str, source: &str) {
        let lines: Vec<&str> = source.lines().collect();
        self.lines +=
            lines.iter().filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//")).count();
        // Line and marker of the comment before.
        let mut before: Option<(usize, &str)> = None;
        for part in parts(source) {
            match part {
                Part::Comment(line, text) => {
                    let marker = &text[..text.len().min(3)];
                    let is_alone = lines[line - 1].trim().starts_with("//");
                    let continues = is_alone && before == Some((line - 1, marker));
                    before = is_alone.then_some((line, marker));
                    let body = text.trim_start_matches(['/', '!']).trim();
                    self.comment(&format!("{name}:{line}"), body, continues);
                    if marker == "///" && !continues && repeats_name(body, &lines[line..]) {
                        self.repeated.push(format!("{name}:{line}: {body}"));
                    }
                }
                Part::Text(line, text) => self.find_banned(&format!("{name}:{line}"), text),
                Part::Code(line, text) => self.code(name, line, text),
            }
        }
    }

    fn comment(&mut self, place: &str, body: &str, continues: bool) {
        self.words += body.split_whitespace().count();
        self.find_banned(place, body);
        if continues {
            return;
        }
        self.comments += 1;
        let first = body.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if RELATIVE.contains(&first) {
            self.relative.push(format!("{place}: {body}"));
        }
    }

    fn find_banned(&mut self, place: &str, text: &str) {
        let lower = text.to_lowercase();
        for banned in BANNED {
            if has_words(&lower, banned) {
                self.banned.entry(banned).or_default().push(format!("{place}: {text}"));
            }
        }
    }

    fn code(&mut self, name: &str, first_line: usize, code: &str) {
        let tokens = tokens(code);
        for (position, (offset, token)) in tokens.iter().enumerate() {
            let line = first_line + code[..*offset].matches('\n').count();
            let token_at = |distance: usize| tokens.get(position + distance).map_or("", |(_, token)| *token);
            let is_member = position > 0 && tokens[position - 1].1 == ".";
            if let Some(vague) = VAGUE.iter().find(|vague| *vague == token)
                && !is_member
                && token_at(1) != "("
            {
                self.vague.entry(vague).or_default().push(format!("{name}:{line}"));
            }
            if *token == "let" {
                let skipped = usize::from(token_at(1) == "mut");
                let value = token_at(skipped + 3);
                let value = if value == "move" { token_at(skipped + 4) } else { value };
                if token_at(skipped + 2) == "=" && value == "|" {
                    self.closures.push(format!("{name}:{line}"));
                }
            }
        }
    }
}

fn has_words(text: &str, wanted: &str) -> bool {
    text.match_indices(wanted).any(|(start, _)| {
        let is_border = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        is_border(text[..start].chars().next_back()) && is_border(text[start + wanted.len()..].chars().next())
    })
}

/// Returns true if the one-line doc `body` has no word beside the name of the item in `lines`.
fn repeats_name(body: &str, lines: &[&str]) -> bool {
    let item = lines.iter().map(|line| line.trim()).find(|line| !line.starts_with("#["));
    let Some(item) = item.filter(|item| !item.starts_with("//")) else { return false };
    let mut words = item.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(' && c != ')');
    let is_keyword = |word: &&str| {
        ["pub", "const", "fn", "struct", "enum", "trait", "type", "static", "mod", "async", "unsafe", ""]
            .contains(word)
            || word.starts_with("pub(")
    };
    let Some(name) = words.find(|word| !is_keyword(word)) else { return false };
    let name = name.split('(').next().unwrap_or_default();
    let of_name = split_words(name);
    let of_body = split_words(body);
    let says_more = |word: &String| !FILLERS.contains(&word.as_str()) && !of_name.contains(word);
    !of_body.is_empty() && !of_body.iter().any(says_more)
}

/// Splits at spaces, underscores and capitals; in lower case and without the `s` of plurals.
fn split_words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut was_lower = false;
    for c in text.chars() {
        if c.is_uppercase() && was_lower {
            spaced.push(' ');
        }
        was_lower = c.is_lowercase();
        spaced.push(if c.is_alphabetic() { c.to_ascii_lowercase() } else { ' ' });
    }
    spaced.split_whitespace().map(|word| word.trim_end_matches('s').to_owned()).collect()
}

/// Words and single signs of code, with their offsets.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.char_indices().peekable();
    while let Some((start, c)) = rest.next() {
        if c.is_whitespace() {
            continue;
        }
        let mut end = start + c.len_utf8();
        while is_word(c)
            && let Some((next, _)) = rest.next_if(|(_, next)| is_word(*next))
        {
            end = next + code[next..].chars().next().map_or(1, char::len_utf8);
        }
        tokens.push((start, &code[start..end]));
    }
    tokens
}

/// Splits a source into code, line comments and string literals.
fn parts(source: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut position, mut code_start) = (0, 0);
    let line_of = |offset: usize| source[..offset].matches('\n').count() + 1;
    while position < source.len() {
        let rest = &source[position..];
        let previous = source[..position].chars().next_back();
        let is_part_of_word = previous.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let end = if rest.starts_with("//") {
            rest.find('\n').map(|end| (end, true))
        } else if rest.starts_with('"') {
            Some((end_of_string(rest), false))
        } else if (rest.starts_with("r\"") || rest.starts_with("r#")) && !is_part_of_word {
            end_of_raw_string(rest).map(|end| (end, false))
        } else if rest.starts_with('\'') {
            position += end_of_char(rest);
            continue;
        } else {
            position += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        let Some((length, is_comment)) = end else {
            position += if rest.starts_with("//") { rest.len() } else { 1 };
            continue;
        };
        if code_start < position {
            parts.push(Part::Code(line_of(code_start), &source[code_start..position]));
        }
        let text = &rest[..length];
        parts.push(if is_comment {
            Part::Comment(line_of(position), text)
        } else {
            Part::Text(line_of(position), text)
        });
        position += length;
        code_start = position;
    }
    if code_start < source.len() {
        parts.push(Part::Code(line_of(code_start), &source[code_start..]));
    }
    parts
}

fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (offset, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return offset + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns `None` for a raw identifier.
fn end_of_raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    let opening = 1 + hashes;
    text[opening..].starts_with('"').then_some(())?;
    let closing = format!("\"{}", "#".repeat(hashes));
    let end = text[opening + 1..].find(&closing)?;
    Some(opening + 1 + end + closing.len())
}

/// Returns the length of a character literal, or of the quote of a lifetime.
fn end_of_char(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[2..].find('\'').map_or(1, |end| end + 3),
        Some((_, first)) if text[1 + first.len_utf8()..].starts_with('\'') => first.len_utf8() + 2,
        _ => 1,
    }
}
