//! The files and flags in order of precedence, and the effective value of each key.

use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::fragment::{Fragment, Value};
use super::problem::{ConfigOrigin, ConfigProblem};

/// A flag that sets a key: `Flag { key: "images.high_percent", flag: "--high", text }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    pub key: &'static str,
    /// The flag as the user writes it.
    pub flag: &'static str,
    /// What the user wrote after it.
    pub text: String,
}

/// What has been read so far, and its problems.
#[derive(Debug, Default)]
pub(super) struct Sources {
    read: Vec<ConfigSource>,
    pub(super) problems: Vec<ConfigProblem>,
}

#[derive(Debug)]
struct ConfigSource {
    fragment: Fragment,
    /// Its keys by their full names, each with its place.
    keys: Vec<(String, ConfigOrigin)>,
}

impl Sources {
    /// Adds a file. Every key that is wrong is noted, and the file is read without it.
    pub(super) fn file(&mut self, file: &Path, text: &str) {
        let origin = |offset: usize| {
            let before = text.get(..offset).unwrap_or(text);
            let line = before.rsplit('\n').next().unwrap_or_default();
            ConfigOrigin::Place {
                file: file.to_path_buf(),
                line: 1 + before.matches('\n').count(),
                column: 1 + line.chars().count(),
            }
        };
        let mut table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let start = error.span().map_or(0, |span| span.start);
                return self.problem(origin(start), "", &error);
            }
        };
        let first = self.problems.len();
        loop {
            let mut keys = Vec::new();
            list(table.get_ref(), "", &mut keys);
            let error = match Fragment::deserialize(Deserializer::from(table.clone())) {
                Ok(fragment) => {
                    let keys = keys.into_iter().map(|key| (key.name, origin(key.at))).collect();
                    self.read.push(ConfigSource { fragment, keys });
                    break;
                }
                Err(error) => error,
            };
            let span = error.span().unwrap_or_default();
            // The innermost key comes last.
            let key = keys.iter().rev().find(|key| key.start <= span.start && span.end <= key.end);
            let name = key.map_or("", |key| key.name.as_str());
            self.problem(origin(span.start), name, &error);
            if name.is_empty() || !remove(table.get_mut(), name) {
                break;
            }
        }
        self.problems[first..].sort_by_key(|problem| problem.origin.line());
    }

    /// Adds a flag.
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

    /// The effective value: the last one.
    pub(super) fn last<T>(&self, pick: impl Fn(&Fragment) -> Option<Value<T>>) -> Option<T> {
        self.last_list(pick).map(|value| value.0)
    }

    pub(super) fn last_list<T>(&self, pick: impl Fn(&Fragment) -> Option<T>) -> Option<T> {
        self.read.iter().rev().find_map(|source| pick(&source.fragment))
    }

    /// The values of all files, for what adds up.
    pub(super) fn all<T: Clone>(&self, pick: impl Fn(&Fragment) -> &[Value<T>]) -> Vec<T> {
        self.read.iter().flat_map(|source| pick(&source.fragment)).map(|value| value.0.clone()).collect()
    }

    /// Notes a problem with the value of a key.
    pub(super) fn wrong(&mut self, key: &str, message: String, remedy: String) {
        let origin = self.origin(key).unwrap_or(ConfigOrigin::Default);
        self.problems.push(ConfigProblem { origin, field: key.to_owned(), message, remedy });
    }

    /// Where a key was last set.
    pub(super) fn origin(&self, key: &str) -> Option<ConfigOrigin> {
        let keys = self.read.iter().rev().flat_map(|source| &source.keys);
        keys.clone().find(|(name, _)| name == key).map(|(_, origin)| origin.clone())
    }

    fn problem(&mut self, origin: ConfigOrigin, key: &str, error: &toml::de::Error) {
        let message = error.message().trim().replace('\n', ", ");
        // serde's words for a key that does not exist.
        let (message, remedy) = match message.split_once(", expected ") {
            Some((unknown, keys)) if unknown.starts_with("unknown field") => {
                let keys = keys.trim_start_matches("one of ").replace('`', "").replace(" or ", ", ");
                let remedy = if keys.contains(',') { "the keys here are" } else { "the only key here is" };
                ("unknown key".to_owned(), format!("{remedy} {keys}"))
            }
            _ if message.contains("is not a runtime endpoint") => {
                (message, "give a socket like \"unix:///run/crio/crio.sock\"".to_owned())
            }
            // serde's words for a list and a table.
            _ => (message.replace("a sequence", "a list").replace("type: map", "type: table"), String::new()),
        };
        self.problems.push(ConfigProblem { origin, field: key.to_owned(), message, remedy });
    }
}

/// A key of a file with its offset, and the bytes that it and its value take.
struct Key {
    name: String,
    at: usize,
    start: usize,
    end: usize,
}

/// All keys of `table`, tables before what is in them.
fn list(table: &DeTable<'_>, prefix: &str, keys: &mut Vec<Key>) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        let inside = format!("{name}.");
        let (key, span) = (key.span(), value.span());
        // The span of a table may be its header, which starts before the key.
        keys.push(Key { name, at: key.start, start: key.start.min(span.start), end: key.end.max(span.end) });
        if let DeValue::Table(inner) = value.get_ref() {
            list(inner, &inside, keys);
        }
    }
}

/// Removes a key by its full name; `false` if it is not there.
fn remove(table: &mut DeTable<'_>, name: &str) -> bool {
    let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
    let Some(key) = table.keys().find(|key| key.get_ref() == first).cloned() else {
        return false;
    };
    match (rest, table.get_mut(&key).map(Spanned::get_mut)) {
        (Some(rest), Some(DeValue::Table(inner))) => remove(inner, rest),
        (None, _) => table.remove(&key).is_some(),
        _ => false,
    }
}
