//! layersweep's own keep-list: patterns of images that are never deleted.

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, params};
use serde::Serialize;

use super::values::{micros, time};
use crate::model::text::display::shell_word;
use crate::model::{Pattern, PinReason};

/// Parses a pattern of images to keep ([`Pattern::covers`]).
///
/// # Errors
/// The reason why the text is not a pattern.
pub fn parse(text: &str) -> Result<Pattern, String> {
    // A reference cannot contain these characters.
    if let Some(character) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("{text:?}: image names cannot contain {character:?}"));
    }
    Pattern::new(text).map_err(|why| if text.is_empty() { why } else { format!("{text:?}: {why}") })
}

/// An entry of the keep-list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PinDoc"))]
pub struct Pin {
    /// The pattern of images to keep.
    pub pattern: String,
    /// The operator's reason for the pin; may be empty.
    pub note: String,
    /// Time at which the pattern was added.
    pub added_at: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct Pins {
    patterns: Vec<Pattern>,
}

impl Pins {
    /// Creates the list from the entries of the database. An invalid pattern matches nothing; it could not have been
    /// added.
    #[must_use]
    pub fn new(pins: &[Pin]) -> Self {
        Self { patterns: pins.iter().filter_map(|pin| parse(&pin.pattern).ok()).collect() }
    }

    /// Returns a reason for each pattern that keeps an image.
    #[must_use]
    pub fn of(&self, names: &[impl AsRef<str>], digests: &[impl AsRef<str>], id: &str) -> Vec<PinReason> {
        let covering = self.patterns.iter().filter(|pattern| pattern.covers(names, digests, id));
        let reasons = covering.map(|pattern| {
            let text = pattern.text();
            let undo = format!("`layersweep pin remove {}`", shell_word(text));
            PinReason::new(text.to_owned(), undo)
        });
        reasons.collect()
    }
}

/// Adds an entry unchanged.
pub(super) fn put(tx: &Transaction<'_>, pin: &Pin) -> rusqlite::Result<()> {
    tx.execute(
        "INSERT INTO pins (pattern, note, added) VALUES (?1, ?2, ?3)",
        params![pin.pattern, pin.note, micros(pin.added_at)],
    )?;
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    New,
    /// The pattern existed; its note was replaced.
    Noted,
    Already,
}

/// Adds a pattern. An existing entry keeps its time, and its note unless another is given.
pub fn add(
    tx: &Transaction<'_>,
    pattern: &Pattern,
    note: Option<&str>,
    now: Timestamp,
) -> rusqlite::Result<Added> {
    let new = tx.execute(
        "INSERT OR IGNORE INTO pins (pattern, note, added) VALUES (?1, ?2, ?3)",
        params![pattern.text(), note.unwrap_or(""), micros(now)],
    )?;
    if new > 0 {
        return Ok(Added::New);
    }
    let Some(note) = note else { return Ok(Added::Already) };
    let changed = tx.execute(
        "UPDATE pins SET note = ?2 WHERE pattern = ?1 AND note <> ?2",
        params![pattern.text(), note],
    )?;
    Ok(if changed > 0 { Added::Noted } else { Added::Already })
}

/// Removes a pattern, exactly as written; returns whether it existed.
pub fn remove(tx: &Transaction<'_>, pattern: &str) -> rusqlite::Result<bool> {
    Ok(tx.execute("DELETE FROM pins WHERE pattern = ?1", [pattern])? > 0)
}

/// Returns all entries, sorted by pattern.
pub fn list(connection: &Connection) -> rusqlite::Result<Vec<Pin>> {
    connection
        .prepare_cached("SELECT * FROM pins ORDER BY pattern")?
        .query_map([], |row| {
            Ok(Pin { pattern: row.get("pattern")?, note: row.get("note")?, added_at: time(row, "added")? })
        })?
        .collect()
}

/// Returns entries that the user may have meant by `pattern`, which is not an entry: those that contain it or are
/// contained in it, and those that cover it or are covered by it.
#[must_use]
pub fn near<'a>(pins: &'a [Pin], pattern: &str) -> Vec<&'a str> {
    let wanted = parse(pattern).ok();
    let mut near = Vec::new();
    for pin in pins {
        let text = pin.pattern.as_str();
        if text.contains(pattern)
            || pattern.contains(text)
            || wanted.as_ref().is_some_and(|wanted| wanted.covers(&[text], &[""; 0], ""))
            || parse(text).is_ok_and(|pin| pin.covers(&[pattern], &[""; 0], ""))
        {
            near.push(text);
        }
    }
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(pattern: &str, names: &[&str], digests: &[&str], id: &str) -> bool {
        parse(pattern).unwrap().covers(names, digests, id)
    }

    #[test]
    fn patterns_cover_names_digests_and_ids() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let id = "0123456789abcdef".repeat(4);
        let names = ["docker.io/library/nginx:1.27", "reg:5000/team/web:v2"];
        let digests = [digest.as_str()];
        for (pattern, expected) in [
            ("docker.io/library/nginx:1.27", true),
            ("docker.io/library/nginx:1.28", false),
            ("docker.io/library/nginx:*", true),
            ("docker.io/library/nginx", true),
            ("docker.io/library/ngin", false),
            ("docker.io/*", true),
            ("*/nginx", true),
            ("*nginx*", true),
            ("nginx", false),
            ("nginx:1.27", false),
            ("Docker.io/library/nginx", false),
            ("reg:5000/team/web", true),
            ("reg:5000/*", true),
            ("reg", false),
            ("{docker.io,quay.io}/library/*", true),
            ("{gcr.io,quay.io}/library/*", false),
            ("docker.io/library/nginx:1.2[0-9]", true),
            ("docker.io/library/nginx:1.?7", true),
            ("*", true),
            (&digest, true),
            ("sha256:abab*", true),
            (&format!("docker.io/library/nginx@{digest}"), true),
            (&format!("docker.io/library/httpd@{digest}"), false),
            ("docker.io/library/nginx@sha256:*", true),
            (&id, true),
            (&format!("sha256:{id}"), true),
            (&id[..12], true),
            (&format!("sha256:{}", &id[..12]), true),
            // Eleven digits may be part of a name.
            (&id[..11], false),
            ("0123*", true),
        ] {
            assert_eq!(covers(pattern, &names, &digests, &id), expected, "{pattern}");
        }
        assert!(covers(&id[..20], &[], &[], &format!("k8s.io/sha256:{id}")), "a namespace may be in front");
        assert!(!covers("docker.io/*", &[], &[], &id), "a dangling image has no name");
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        for pattern in ["", "a b", "a\n", "[", "{a", "a[z-a]", "\u{1b}[31m"] {
            assert!(parse(pattern).is_err(), "{pattern:?}");
        }
        for pattern in ["a", "[!a]*", "**", "ü", "a\\*"] {
            assert!(parse(pattern).is_ok(), "{pattern:?}");
        }
    }

    #[test]
    fn reasons_name_the_pattern() {
        let pins = ["quay.io/*", "[broken", "*:1", "no"].map(|pattern| Pin {
            pattern: pattern.into(),
            note: String::new(),
            added_at: Timestamp::UNIX_EPOCH,
        });
        let pins = Pins::new(&pins);
        assert_eq!(
            pins.of(&["quay.io/a:1"], &[""; 0], "00").into_iter().map(|pin| pin.text).collect::<Vec<_>>(),
            ["quay.io/*", "*:1"]
        );
    }

    #[test]
    fn similar_entries_are_suggested() {
        let pins: Vec<Pin> = ["docker.io/library/nginx:*", "quay.io/team/app", "k8s.gcr.io/pause:*"]
            .map(|pattern| Pin {
                pattern: pattern.into(),
                note: String::new(),
                added_at: Timestamp::UNIX_EPOCH,
            })
            .into();
        for (pattern, expected) in [
            ("nginx", &["docker.io/library/nginx:*"][..]),
            ("docker.io/library/nginx:1.27", &["docker.io/library/nginx:*"]),
            ("quay.io/team/ap", &["quay.io/team/app"]),
            ("quay.io/*", &["quay.io/team/app"]),
            ("registry.example/other", &[]),
        ] {
            assert_eq!(near(&pins, pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn entries_are_added_and_removed() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../../migrations/0001_history.sql")).unwrap();
        let tx = connection.transaction().unwrap();
        let [first, later] =
            ["2026-11-21T10:00:00Z", "2026-11-22T10:00:00Z"].map(|time| time.parse().unwrap());
        let pattern = parse("quay.io/*").unwrap();
        assert_eq!(add(&tx, &pattern, None, first).unwrap(), Added::New);
        assert_eq!(add(&tx, &pattern, None, later).unwrap(), Added::Already);
        assert_eq!(add(&tx, &pattern, Some("why"), later).unwrap(), Added::Noted);
        assert_eq!(add(&tx, &pattern, Some("why"), later).unwrap(), Added::Already);
        assert_eq!(add(&tx, &pattern, None, later).unwrap(), Added::Already);
        let pin = Pin { pattern: "quay.io/*".into(), note: "why".into(), added_at: first };
        assert_eq!(list(&tx).unwrap(), [pin]);
        assert!(!remove(&tx, "quay.io").unwrap());
        assert!(remove(&tx, "quay.io/*").unwrap());
        assert!(list(&tx).unwrap().is_empty());
    }
}
