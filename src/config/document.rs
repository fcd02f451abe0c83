//! One file of ours.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{self, KEYS, Key, Raw, Settings};
use super::{Origin, Problem};

/// Takes over what a file sets; everything wrong in it is noted.
pub(super) fn read(path: &Path, text: &str, settings: &mut Settings, problems: &mut Vec<Problem>) {
    let mut document = Document { path, text, settings, problems };
    match DeTable::parse(text) {
        Ok(table) => document.table("", table.get_ref()),
        Err(error) => {
            let origin = document.origin(error.span().map_or(0, |span| span.start));
            document.problem(origin, "", error.message().trim().replace('\n', ", "), String::new());
        }
    }
}

struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    settings: &'a mut Settings,
    problems: &'a mut Vec<Problem>,
}

impl Document<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let full = match prefix {
                "" => name.get_ref().to_string(),
                prefix => format!("{prefix}.{}", name.get_ref()),
            };
            let origin = self.origin(name.span().start);
            let inner = format!("{full}.");
            if let Some(key) = keys::find(&full) {
                self.key(key, value, origin);
            } else if !KEYS.iter().any(|key| key.name.starts_with(&inner)) {
                self.problem(origin, &full, "there is no such key".into(), suggestion(prefix, &full));
            } else if let Some(table) = value.get_ref().as_table() {
                self.table(&full, table);
            } else {
                let message = format!("is to be a table, not {}", value.get_ref().type_str());
                self.problem(origin, &full, message, format!("write [{full}] and its keys below it"));
            }
        }
    }

    fn key(&mut self, key: &'static Key, value: &Spanned<DeValue<'_>>, origin: Origin) {
        let elements: Vec<_> = match value.get_ref().as_array() {
            Some(array) if key.kind.is_list() => array.iter().collect(),
            None if !key.kind.is_list() => vec![value],
            _ => {
                let message = format!("is to be {}, not {}", key.kind.wanted(), value.get_ref().type_str());
                return self.problem(origin, key.name, message, String::new());
            }
        };
        // What a file says of a list is one list; it may be empty.
        let mut merged = key.kind.no_elements();
        for element in elements {
            let at = self.origin(element.span().start);
            let parsed = match element.get_ref() {
                DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(number) => key.kind.value(Raw::Integer(number)),
                    Err(error) => Err(error.to_string()),
                },
                DeValue::Boolean(truth) => key.kind.value(Raw::Truth(*truth)),
                DeValue::String(text) => key.kind.value(Raw::Text(text)),
                other => Err(format!("is to be {}, not {}", key.kind.wanted(), other.type_str())),
            };
            match parsed {
                Ok(value) => merged = Some(joined(merged.take(), value)),
                Err(message) => {
                    self.problem(at, key.name, message, format!("write {}", key.kind.wanted()));
                }
            }
        }
        if let Some(value) = merged {
            self.settings.set(key, value, origin);
        }
    }

    fn origin(&self, offset: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(offset);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        Origin::File { file: self.path.to_path_buf(), line }
    }

    fn problem(&mut self, origin: Origin, field: &str, message: String, remedy: String) {
        self.problems.push(Problem { origin, field: field.to_owned(), message, remedy });
    }
}

fn joined(list: Option<keys::Value>, value: keys::Value) -> keys::Value {
    use keys::Value;
    match (list, value) {
        (Some(Value::Paths(mut all)), Value::Paths(more)) => {
            all.extend(more);
            Value::Paths(all)
        }
        (Some(Value::Patterns(mut all)), Value::Patterns(more)) => {
            all.extend(more);
            Value::Patterns(all)
        }
        (Some(Value::Labels(mut all)), Value::Labels(more)) => {
            all.extend(more);
            Value::Labels(all)
        }
        (_, value) => value,
    }
}

/// The key that was probably meant, or those that there are.
fn suggestion(prefix: &str, unknown: &str) -> String {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    // A key in the wrong table is as likely as a slip of the finger.
    let near = KEYS.iter().map(|key| {
        let by_name = distance(key.name, unknown).min(distance(&last(key.name), &last(unknown)));
        (by_name, key.name)
    });
    if let Some((0..=2, name)) = near.min() {
        return format!("did you mean {name}?");
    }
    let dotted = format!("{prefix}.");
    let inside = KEYS.iter().filter_map(|key| match prefix {
        "" => key.name.split('.').next(),
        _ => key.name.strip_prefix(&dotted),
    });
    let mut inside: Vec<_> = inside.collect();
    inside.dedup();
    match prefix {
        "" => format!("at the top there are {}", inside.join(", ")),
        _ => format!("the keys of [{prefix}] are {}", inside.join(", ")),
    }
}

/// How many characters must be changed, added or left out.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
