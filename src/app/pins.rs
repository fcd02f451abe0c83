//! `pin`: the keep-list in the database.

use std::os::unix::fs::MetadataExt;

use serde::Serialize;

use crate::config::Config;
use crate::disk::Progress;
use crate::history::known::{self, KnownImages};
use crate::history::pins::{self, Added, Pin};
use crate::history::{Access, StateDirectory};
use crate::model::Pattern;
use crate::model::text::display::shell_word;
use crate::services::database::Database;
use crate::services::error::{Error, Exit};
use crate::services::observer::{Audience, Observer};
use crate::services::request::Request;
use crate::stores::{self, Measure};
use crate::sys::users;

/// The keep-list, and what changed on it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinList {
    /// Path of the database; null if nothing was ever recorded.
    pub database: Option<String>,
    /// The database could be read or does not exist. If false, the list is unknown.
    pub complete: bool,
    /// User other than root to whom the list belongs. A run of another user, for example root's timer, does not
    /// read it; null: root's list.
    pub user: Option<String>,
    /// The keep-list after this run.
    pub pins: Vec<Pin>,
    /// Patterns that this run added.
    pub added: Vec<String>,
    /// Patterns that this run removed.
    pub removed: Vec<String>,
    /// Error about patterns that should be removed and are not on the list.
    #[serde(skip)]
    pub missing: Option<Error>,
}

impl PinList {
    fn of(database: &Database, added: Vec<String>, removed: Vec<String>) -> Result<Self, Error> {
        Ok(Self {
            database: database.path(),
            complete: !database.unreadable,
            user: owner(&database.directory),
            pins: database.read(pins::list)?,
            added,
            removed,
            missing: None,
        })
    }

    pub fn exit(&self) -> Exit {
        if self.complete { Exit::Done } else { Exit::Incomplete }
    }
}

/// Returns the name of the user who owns the records, unless that is root.
fn owner(directory: &StateDirectory) -> Option<String> {
    let uid = std::fs::metadata(&directory.dir).ok()?.uid();
    (uid != 0 && !directory.foreign).then(|| users::name(uid))
}

/// Returns the keep-list.
///
/// # Errors
/// When the database cannot be used.
pub fn list(request: &Request, observer: &dyn Observer) -> Result<PinList, Error> {
    let database = Database::open(request, Access::Read)?.warn(observer);
    PinList::of(&database, Vec::new(), Vec::new())
}

/// Adds patterns to the keep-list.
///
/// # Errors
/// When a pattern is invalid or the change cannot be saved: no pattern is added then.
pub fn add(
    request: &Request,
    observer: &dyn Observer,
    patterns: &[String],
    note: Option<&str>,
) -> Result<PinList, Error> {
    let patterns = patterns.iter().map(|text| pins::parse(text)).collect::<Result<Vec<_>, _>>()
        .map_err(|error| {
        Error::usage(error).hint(
            "a pattern is a glob like docker.io/library/nginx:*, a digest or an image id: see `layersweep pin add \
             --help`",
        )
    })?;
    let mut database = writable(request, observer)?;
    let now = jiff::Timestamp::now();
    let done = database.write(|tx| {
        patterns.iter().map(|pattern| pins::add(tx, pattern, note, now)).collect::<rusqlite::Result<Vec<_>>>()
    })?;
    let present = match present(request) {
        Some(present) => present,
        None => PresentImages::of_records(&database.read(known::images)?),
    };
    let mut added = Vec::new();
    for (pattern, done) in patterns.iter().zip(done) {
        let text = pattern.text();
        match done {
            Added::New => added.push(text.to_owned()),
            Added::Noted => observer.note(&format!("{text:?} was already pinned; its note was changed")),
            Added::Already => observer.note(&format!("{text:?} was already pinned")),
        }
        if done == Added::New && !text.contains(['/', '*', '?', '{', '[']) && !is_id(text) {
            observer.note(&format!(
                "{text:?} is not a full reference like docker.io/library/nginx:1.27; `*/{text}` matches them"
            ));
        }
    }
    patterns.iter().for_each(|pattern| present.note_reach(observer, pattern));
    let list = PinList::of(&database, added, Vec::new())?;
    if let Some(user) = &list.user {
        let words: Vec<_> = patterns.iter().map(|pattern| shell_word(pattern.text())).collect();
        observer.warn(
            Audience::Always,
            &format!("root's gc does not see the pins of user {user}, and deletes these images nevertheless"),
            &format!("to keep them on this node: `sudo layersweep pin add {}`", words.join(" ")),
        );
    }
    Ok(list)
}

struct PresentImages {
    images: Vec<(Vec<String>, Vec<String>, String)>,
    place: &'static str,
}

/// Returns the images in the stores now; `None` if the stores cannot be read.
fn present(request: &Request) -> Option<PresentImages> {
    let request = stores::ScanRequest { measure: Measure::Records, ..request.stores().ok()? };
    let scan = stores::run(&request, &Progress::default()).ok().filter(stores::Scan::is_complete)?;
    let images =
        scan.inventory.images.into_iter().map(|image| (image.names, image.digests, image.id.to_string()));
    Some(PresentImages { images: images.collect(), place: "here" })
}

impl PresentImages {
    /// Returns the images of the last scan. The records do not contain digests.
    fn of_records(known: &KnownImages) -> Self {
        let images = known.all().map(|life| (life.names.clone(), Vec::new(), life.image_id.clone()));
        Self { images: images.collect(), place: "of the last scan" }
    }

    fn note_reach(&self, observer: &dyn Observer, pattern: &Pattern) {
        let (all, place, text) = (self.images.len(), self.place, pattern.text());
        let covered = self.images.iter().filter(|(names, digests, id)| pattern.covers(names, digests, id));
        match covered.count() {
            _ if all == 0 => {}
            0 if text.contains("sha256:") => {}
            0 => observer.warn(
                Audience::Usual,
                &format!("{text:?} matches none of the {all} images {place}"),
                "it applies to future images that match; `layersweep images` shows full names",
            ),
            count => observer.note(&format!("{text:?} matches {count} of the {all} images {place}")),
        }
    }
}

type KeyAndPattern = (&'static str, String);

/// Returns the patterns of `protect.names` and of rules that match none of the images of the last scan, each with its
/// key, and the number of these images; no patterns without a scan. The records do not contain digests, so patterns for them are left out.
///
/// # Errors
/// When SQLite fails.
pub fn unmatched(config: &Config, database: &Database) -> Result<(Vec<KeyAndPattern>, usize), Error> {
    let known = database.read(known::images)?;
    let all = known.all().count();
    let named = config.images.protect.names.iter().map(|pattern| ("protect.names", pattern));
    let of_rules = config.images.rules.iter().map(|rule| ("images.rule", &rule.pattern));
    let patterns = named.chain(of_rules).filter(|(_, pattern)| {
        let mut images = known.all();
        let is_digest = pattern.text().contains("sha256:");
        all > 0
            && !is_digest
            && !images.any(|life| pattern.covers(&life.names, &[] as &[&str], &life.image_id))
    });
    Ok((patterns.map(|(key, pattern)| (key, pattern.text().to_owned())).collect(), all))
}

/// Warns of patterns of the configuration that match no image now.
pub fn warn_unmatched(request: &Request, observer: &dyn Observer, config: &Config) {
    let found = Database::open(request, Access::Read).and_then(|database| unmatched(config, &database));
    // The run itself reports records that cannot be read.
    let Ok((patterns, all)) = found else { return };
    for (key, pattern) in patterns {
        let message = format!("{key}: {pattern:?} matches none of the {all} images of the last scan");
        observer.warn(Audience::Usual, &message, "`layersweep images` shows full names; correct the pattern");
    }
}

/// Removes patterns from the keep-list. If some were removed, [`PinList::missing`] is the error about those that are
/// not on the list.
///
/// # Errors
/// When none of the patterns is on the list, or the change cannot be saved.
pub fn remove(request: &Request, observer: &dyn Observer, patterns: &[String]) -> Result<PinList, Error> {
    refuse_sysroot(request)?;
    // A missing database contains nothing to remove, and is not created.
    let known = Database::open(request, Access::Read)?.warn(observer).read(pins::list)?;
    let (removed, missing): (Vec<_>, Vec<_>) =
        patterns.iter().cloned().partition(|pattern| known.iter().any(|pin| pin.pattern == *pattern));
    if removed.is_empty() {
        return Err(not_pinned(&missing, &known));
    }
    let mut database = writable(request, observer)?;
    database.write(|tx| {
        removed.iter().map(|pattern| pins::remove(tx, pattern)).collect::<rusqlite::Result<Vec<_>>>()
    })?;
    let missing = (!missing.is_empty()).then(|| not_pinned(&missing, &known));
    Ok(PinList { missing, ..PinList::of(&database, Vec::new(), removed)? })
}

/// Error about patterns that are not on the list, with similar pins as its hint.
fn not_pinned(missing: &[String], known: &[Pin]) -> Error {
    let mut near: Vec<_> = missing.iter().flat_map(|pattern| pins::near(known, pattern)).collect();
    near.sort_unstable();
    near.dedup();
    let quoted: Vec<_> = missing.iter().map(|pattern| format!("{pattern:?}")).collect();
    Error::failed(format!("not pinned: {}", quoted.join(", "))).hint(match near.as_slice() {
        [] => "`layersweep pin list` shows the keep-list".into(),
        near => format!("similar pinned patterns: {}", near.join(", ")),
    })
}

fn is_id(text: &str) -> bool {
    text.starts_with("sha256:") || text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn writable(request: &Request, observer: &dyn Observer) -> Result<Database, Error> {
    refuse_sysroot(request)?;
    Database::open_to_keep(request, observer)
}

fn refuse_sysroot(request: &Request) -> Result<(), Error> {
    match request.sysroot {
        None => Ok(()),
        Some(_) => Err(Error::usage("--sysroot: the keep-list of a mounted disk cannot be changed")
            .hint("leave out --sysroot to change the keep-list of this machine")),
    }
}
