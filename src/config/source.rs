//! The files and flags in order of precedence, and the effective value of each key.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::fragment::{Fragment, Rule, Value};
use super::problem::{ConfigOrigin, ConfigProblem};

/// A flag that sets a key, as in `Flag { key: "images.high_percent", flag: "--high", text }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    pub key: &'static str,
    pub flag: &'static str,
    pub text: String,
}

/// Message about a key that does not exist.
pub(super) const UNKNOWN_KEY: &str = "unknown key";
/// Lists to which each source adds.
const ADDED_UP: [&str; 3] = ["protect.names", "protect.labels", RULES];
/// Rules for images: an array of tables. Each of its tables has an origin of its own.
pub(super) const RULES: &str = "images.rule";
const RULE_PATTERN: &str = "images.rule.match";

#[derive(Debug, Default)]
pub(super) struct Sources {
    read: Vec<ConfigSource>,
    pub(super) problems: Vec<ConfigProblem>,
}

#[derive(Debug)]
struct ConfigSource {
    fragment: Fragment,
    /// The keys that the source sets, by full name.
    keys: Vec<(String, ConfigOrigin)>,
}

impl Sources {
    /// Adds a file. Each wrong key is reported and removed, and the rest of the file is read again, so that one
    /// mistake does not hide the next.
    pub(super) fn file(&mut self, file: &Path, text: &str) {
        let mut table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let start = error.span().map_or(0, |span| span.start);
                return self.problem(position(file, text, start), "", &error);
            }
        };
        let first = self.problems.len();
        loop {
            let mut keys = Vec::new();
            list(table.get_ref(), "", &mut keys);
            let error = match Fragment::deserialize(Deserializer::from(table.clone())) {
                Ok(fragment) => {
                    let origins = keys.into_iter().map(|key| (key.name, position(file, text, key.offset)));
                    let keys = origins.collect();
                    self.read.push(ConfigSource { fragment, keys });
                    break;
                }
                Err(error) => error,
            };
            let span = error.span().unwrap_or_default();
            // Inner keys come after the table that contains them, so the last match is the innermost.
            let mut outward =
                keys.iter().rev().skip_while(|key| span.start < key.start || key.end < span.end);
            let key = outward.next();
            let name = key.map_or("", |key| key.name.as_str());
            self.problem(position(file, text, span.start), name, &error);
            // An unknown array of tables is one mistake, although `keys` has each of its tables.
            let is_unknown = self.problems.last().is_some_and(|problem| problem.message == UNKNOWN_KEY);
            if is_unknown && remove(table.get_mut(), span.start) {
                continue;
            }
            // A rule without its pattern is wrong too: it is removed as a whole.
            let removed = if name == RULE_PATTERN { outward.find(|key| key.name == RULES) } else { key };
            if !removed.is_some_and(|key| remove(table.get_mut(), key.offset)) {
                break;
            }
        }
        self.problems[first..].sort_by_key(|problem| problem.origin.line());
    }

    pub(super) fn flag(&mut self, flag: &Flag) {
        let value = flag.text.parse().map_or_else(|_| flag.text.as_str().into(), toml::Value::Integer);
        let table = flag
            .key
            .rsplit('.')
            .fold(value, |value, name| toml::Table::from_iter([(name.to_owned(), value)]).into());
        let origin = ConfigOrigin::Flag(flag.flag);
        match Fragment::deserialize(table) {
            Ok(fragment) => {
                self.read.push(ConfigSource { fragment, keys: vec![(flag.key.to_owned(), origin)] })
            }
            Err(error) => self.problem(origin, "", &error),
        }
    }

    /// Returns the effective value, which is that of the last source that sets it.
    pub(super) fn last<T>(&self, pick: impl Fn(&Fragment) -> Option<Value<T>>) -> Option<T> {
        self.last_list(pick).map(|value| value.0)
    }

    pub(super) fn last_list<T>(&self, pick: impl Fn(&Fragment) -> Option<T>) -> Option<T> {
        self.read.iter().rev().find_map(|source| pick(&source.fragment))
    }

    /// Returns the values of all sources, for lists that add up.
    pub(super) fn all<T: Clone>(&self, pick: impl Fn(&Fragment) -> &[Value<T>]) -> Vec<T> {
        self.read.iter().flat_map(|source| pick(&source.fragment)).map(|value| value.0.clone()).collect()
    }

    /// Returns the rules for images with their origins: those of the last source first, each source's in its order.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&Rule, &ConfigOrigin)> {
        self.read.iter().rev().flat_map(|source| {
            let origins = source.keys.iter().filter(|(name, _)| name == RULES).map(|(_, origin)| origin);
            source.fragment.images.rule.iter().zip(origins)
        })
    }

    pub(super) fn wrong(&mut self, key: &str, message: String, remedy: String) {
        let origin = self.origin(key).unwrap_or(ConfigOrigin::Default);
        self.problems.push(ConfigProblem { origin, field: key.to_owned(), message, remedy });
    }

    pub(super) fn origin(&self, key: &str) -> Option<ConfigOrigin> {
        let keys = self.read.iter().rev().flat_map(|source| &source.keys);
        keys.clone().find(|(name, _)| name == key).map(|(_, origin)| origin.clone())
    }

    /// Returns the origins of each key that is set: the last source, or all sources of a list that adds up.
    pub(super) fn origins(&self) -> BTreeMap<String, Vec<ConfigOrigin>> {
        let mut origins: BTreeMap<String, Vec<ConfigOrigin>> = BTreeMap::new();
        for (key, origin) in self.read.iter().flat_map(|source| &source.keys) {
            let of_key = origins.entry(key.clone()).or_default();
            if !ADDED_UP.contains(&key.as_str()) {
                of_key.clear();
            }
            of_key.push(origin.clone());
        }
        // In the order in which they are asked.
        if let Some(of_rules) = origins.get_mut(RULES) {
            *of_rules = self.rules().map(|(_, origin)| origin.clone()).collect();
        }
        origins
    }

    fn problem(&mut self, origin: ConfigOrigin, key: &str, error: &toml::de::Error) {
        let message = error.message().trim().replace('\n', ", ");
        // Text of serde's error for an unknown key.
        let (message, remedy) = match message.split_once(", expected ") {
            Some((unknown, keys)) if unknown.starts_with("unknown field") => {
                let keys = keys.trim_start_matches("one of ").replace('`', "").replace(" or ", ", ");
                let remedy = if keys.contains(',') { "the keys here are" } else { "the only key here is" };
                (UNKNOWN_KEY.to_owned(), format!("{remedy} {keys}"))
            }
            _ if message.contains("missing field `match`") => {
                ("a rule needs `match`, the pattern of its images".to_owned(), String::new())
            }
            _ if message.contains("is not a runtime endpoint") => {
                (message, "give a socket like \"unix:///run/crio/crio.sock\"".to_owned())
            }
            // serde says "sequence" and "map"; TOML calls them list and table.
            _ => (message.replace("a sequence", "a list").replace("type: map", "type: table"), String::new()),
        };
        self.problems.push(ConfigProblem { origin, field: key.to_owned(), message, remedy });
    }
}

/// Returns the line and column of the byte `offset` in `text`.
fn position(file: &Path, text: &str, offset: usize) -> ConfigOrigin {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    ConfigOrigin::Place {
        file: file.to_path_buf(),
        line: 1 + before.matches('\n').count(),
        column: 1 + line.chars().count(),
    }
}

/// A key of a file, or a table in an array: its offset, and the range of bytes that it and its value occupy.
struct KeySpan {
    name: String,
    offset: usize,
    start: usize,
    end: usize,
}

/// Lists all keys of `table`, each table before its contents. An array of tables is listed once for each table.
fn list(table: &DeTable<'_>, prefix: &str, keys: &mut Vec<KeySpan>) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        let inside = format!("{name}.");
        let (key, span) = (key.span(), value.span());
        let tables: Vec<_> = tables(value).collect();
        if tables.is_empty() {
            // The span of a table may be its header, which starts before the key.
            let (start, end) = (key.start.min(span.start), key.end.max(span.end));
            keys.push(KeySpan { name: name.clone(), offset: key.start, start, end });
        }
        for (span, inner) in tables {
            let (offset, start) = (span.start, span.start);
            keys.push(KeySpan { name: name.clone(), offset, start, end: span.end });
            list(inner, &inside, keys);
        }
        if let DeValue::Table(inner) = value.get_ref() {
            list(inner, &inside, keys);
        }
    }
}

fn tables<'a, 'i>(
    value: &'a Spanned<DeValue<'i>>,
) -> impl Iterator<Item = (Range<usize>, &'a DeTable<'i>)> + use<'a, 'i> {
    let items = if let DeValue::Array(items) = value.get_ref() { &items[..] } else { &[] };
    items.iter().filter_map(|item| match item.get_ref() {
        DeValue::Table(table) => Some((item.span(), table)),
        _ => None,
    })
}

/// Removes the key, or the table in an array, at this offset; returns `false` without one.
fn remove(table: &mut DeTable<'_>, offset: usize) -> bool {
    if let Some(key) = table.keys().find(|key| key.span().start == offset).cloned() {
        return table.remove(&key).is_some();
    }
    table.iter_mut().any(|(_, value)| match value.get_mut() {
        DeValue::Table(inner) => remove(inner, offset),
        DeValue::Array(items) => {
            let before = items.len();
            let rest: DeArray<'_> =
                items.iter().filter(|item| item.span().start != offset).cloned().collect();
            let is_removed = rest.len() < before;
            *items = rest;
            is_removed
                || items.iter_mut().any(|item| match item.get_mut() {
                    DeValue::Table(inner) => remove(inner, offset),
                    _ => false,
                })
        }
        _ => false,
    })
}
