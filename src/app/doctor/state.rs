//! Our own state: its directory, the database, what the last runs said, the clock.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use super::check::{Check, Status};
use super::examination::Examination;
use crate::app::database::{self, Database};
use crate::app::error::Error;
use crate::disk::filesystem;
use crate::history::runs::{self, Act, Command, OutcomeKind, Query};
use crate::history::{Access, DATABASE, Degraded, Place, checkup, clock, known};
use crate::model::StoreKind;
use crate::model::words::bytes;
use crate::stores::Survey;
use crate::stores::containers_storage::edit::Ballast;

const DIRECTORY: &str = "state-directory";
const RECORDS: &str = "database";

/// With less, a run soon has nowhere to write; two years of records take less than 50 MiB.
const LITTLE_BYTES: u64 = 64 << 20;
/// SQLite cannot work with less.
const NO_BYTES: u64 = 4 << 20;
const FEW_INODES: u64 = 100;

/// The timer scans every five minutes.
const LATE: SignedDuration = SignedDuration::from_hours(1);
/// So many runs without success in a row are no accident.
const IN_A_ROW: u64 = 3;
/// Runs that are looked at.
const RUNS: usize = 200;

impl Examination<'_> {
    pub(super) fn state(&mut self, survey: Option<&Survey>) {
        let place = database::place(self.request);
        self.directory(&place, survey);
        let open = self.database(&place);
        if let Some(open) = &open {
            self.runs(open);
        }
        if self.is_foreign() {
            return;
        }
        self.clock(open.as_ref());
        if let Some(survey) = survey {
            self.ballast(&place, survey);
        }
    }

    fn directory(&mut self, place: &Place, survey: Option<&Survey>) {
        let object = self.shown(&place.dir);
        if let Some((kind, why)) = &place.unresolved {
            match kind {
                std::io::ErrorKind::NotFound => {
                    self.note(Check::note(DIRECTORY, object, "there is none"));
                }
                _ => self.unread(DIRECTORY, object, &std::io::Error::new(*kind, why.clone())),
            }
            return;
        }
        match std::fs::metadata(&place.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let message = "there is none yet; the first scan makes it";
                return self.note(Check::note(DIRECTORY, object, message));
            }
            Err(error) => return self.unread(DIRECTORY, object, &error),
            Ok(facts) if !facts.is_dir() => {
                let remedy = "move it away, or name another directory with --state-dir or state_dir";
                return self.error(DIRECTORY, object, "it is no directory", remedy);
            }
            Ok(_) => {}
        }
        if place.foreign {
            return self.note(Check::ok(DIRECTORY, object, "it is there"));
        }
        if let Err(error) = rustix::fs::access(&place.dir, rustix::fs::Access::WRITE_OK) {
            let message = format!("we may not write to it ({}): what is seen is forgotten", error);
            self.error(
                DIRECTORY,
                object.clone(),
                message,
                "run as its owner, mount it writable, or name another with --state-dir",
            );
        }
        self.room(&place.dir, object, survey);
    }

    fn room(&mut self, dir: &Path, object: String, survey: Option<&Survey>) {
        let facts = match filesystem::of(dir) {
            Ok((facts, _)) => facts,
            Err(error) => return self.unread(DIRECTORY, object, &error),
        };
        let free = facts.available_bytes;
        let few_inodes = facts.inodes > 0 && facts.inodes_free < FEW_INODES;
        if free < LITTLE_BYTES || few_inodes {
            let status = if free < NO_BYTES || few_inodes { Status::Error } else { Status::Warning };
            let message = match few_inodes {
                true => format!("only {} inodes are free on {}", facts.inodes_free, facts.mount.display()),
                false => format!("only {} are free on {}", bytes(free), facts.mount.display()),
            };
            let remedy = "make room there, for example by `layersweep gc`; what cannot be saved waits in /run/layersweep";
            self.note(Check::new(DIRECTORY, status, object.clone(), message, remedy));
        } else {
            let message = format!("{} and {} inodes free", bytes(free), facts.inodes_free);
            self.note(Check::ok(DIRECTORY, object.clone(), message));
        }
        let beside = survey.is_some_and(|survey| {
            survey
                .inventory
                .filesystems
                .iter()
                .any(|one| one.mount == facts.mount && one.device == facts.device)
        });
        if beside {
            self.note(Check::note(
                DIRECTORY,
                object,
                "it lies on a filesystem that images can fill; then records wait in /run/layersweep, which a reboot \
                 empties",
            ));
        }
    }

    fn database(&mut self, place: &Place) -> Option<Database> {
        let object = self.shown(&place.dir.join(DATABASE));
        let (open, degraded) = match Database::open_quietly(self.request, Access::Read) {
            Ok(opened) => opened,
            Err(failure) => {
                self.records_failed(object, &failure);
                return None;
            }
        };
        for why in &degraded {
            let status = match why {
                Degraded::Corrupt { .. } | Degraded::NotUpgraded { .. } | Degraded::Io { .. } => {
                    Status::Error
                }
                _ => Status::Warning,
            };
            self.unread |= matches!(why, Degraded::NotReadable { .. } | Degraded::NoDirectory { .. });
            self.note(Check::new(RECORDS, status, object.clone(), why.to_string(), why.remedy()));
        }
        if open.found {
            match open.read(|connection| Ok((checkup::integrity(connection)?, checkup::schema(connection)?))) {
                Ok((damage, schema)) if damage.is_empty() => {
                    let length = std::fs::metadata(place.dir.join(DATABASE)).map_or(0, |facts| facts.len());
                    let message = format!("sound, schema {schema}, {}", bytes(length));
                    self.note(Check::ok(RECORDS, object.clone(), message));
                }
                Ok((damage, _)) => self.error(
                    RECORDS,
                    object.clone(),
                    format!("its structure is damaged: {}", damage.join("; ").replace('\n', " ")),
                    "`layersweep scan` sets it aside and saves what can be read; look at `layersweep pin list` then",
                ),
                Err(failure) => self.records_failed(object.clone(), &failure),
            }
        } else if degraded.is_empty() {
            let message = match self.is_foreign() {
                true => "none were kept here: what the images were used for is not known",
                false => "there is none yet: `layersweep scan` begins to remember",
            };
            self.note(Check::note(RECORDS, object.clone(), message));
        }
        match checkup::set_aside(&place.dir) {
            Ok(aside) => {
                for path in aside {
                    let object = self.shown(&path);
                    self.warning(
                        RECORDS,
                        object,
                        "a damaged database was set aside; what could be read of it is in the new one",
                        "look whether `layersweep pin list` still has all, then remove it",
                    );
                }
            }
            Err(error) => self.unread(RECORDS, object.clone(), &error),
        }
        if !place.foreign {
            self.waiting(place, &object);
        }
        Some(open)
    }

    fn records_failed(&mut self, object: String, failure: &Error) {
        let cause = std::error::Error::source(failure).map(|cause| format!(": {cause}")).unwrap_or_default();
        let remedy = "use the layersweep that made it, or name another state directory with --state-dir";
        self.error(RECORDS, object, format!("{failure}{cause}"), remedy);
    }

    /// It is only counted: whoever reads it sets aside what is no scan.
    fn waiting(&mut self, place: &Place, object: &str) {
        match checkup::waiting(place) {
            Ok((0, _)) => {}
            Ok((count, first)) => self.warning(
                "unsaved",
                first.map(|dir| dir.display().to_string()).unwrap_or_default(),
                format!("{count} scans or runs wait to be saved in the database"),
                "make the state directory writable, with room in it; the next `layersweep scan` saves them",
            ),
            Err(error) => self.unread("unsaved", object, &error),
        }
        match checkup::run_under_way(place) {
            Ok(None) => {}
            Ok(Some(holder)) => {
                let object = place.dir.display().to_string();
                self.note(Check::note("run", object, format!("{holder} is deleting now")));
            }
            Err(error) => self.unread("run", "/proc/locks", &error),
        }
    }

    fn runs(&mut self, open: &Database) {
        let query = Query { limit: RUNS, quiet: true, ..Query::default() };
        let acts = match open.read(|connection| runs::list(connection, &query)) {
            Ok((acts, _)) => acts,
            Err(failure) => {
                let object = self.shown(&open.place.dir.join(DATABASE));
                return self.records_failed(object, &failure);
            }
        };
        if !open.found && acts.is_empty() {
            return;
        }
        let of = |command| acts.iter().filter(move |act| act.command == command && !act.dry_run);
        self.last_scan(of(Command::Scan).next());
        self.last_gc(&of(Command::Gc).collect::<Vec<_>>());
    }

    fn last_scan(&mut self, last: Option<&Act>) {
        const NAME: &str = "last-scan";
        let remedy = "look whether its timer runs: systemctl list-timers layersweep-scan.timer (or cron)";
        let Some(last) = last else {
            return self.warning(
                NAME,
                "",
                "no scan is recorded, so that no age and no use of an image is",
                remedy,
            );
        };
        let at = last.ended.unwrap_or(last.started);
        let ago = Timestamp::now().duration_since(at);
        if self.is_foreign() {
            return self.note(Check::ok(NAME, "", format!("the last scan was at {at:.0}")));
        }
        if ago > LATE {
            let ago = SignedDuration::from_mins(ago.as_mins());
            let message = format!("the last scan was {ago:#} ago: uses of images since then are not seen");
            return self.warning(NAME, "", message, remedy);
        }
        self.note(Check::ok(NAME, "", format!("{}s ago", ago.as_secs().max(0))));
    }

    /// `acts`: collections, the newest first.
    fn last_gc(&mut self, acts: &[&Act]) {
        const NAME: &str = "last-runs";
        let Some(last) = acts.first() else {
            return self.note(Check::note(NAME, "", "gc has not run yet"));
        };
        let in_a_row = |wrong: &dyn Fn(&Act) -> bool| -> u64 {
            acts.iter().take_while(|act| wrong(act)).map(|act| act.runs.max(1)).sum()
        };
        let failed = in_a_row(&|act| {
            act.killed || matches!(act.outcome, Some(OutcomeKind::Failed | OutcomeKind::Refused))
        });
        let short = in_a_row(&|act| act.outcome == Some(OutcomeKind::NotReached));
        let at = last.started;
        if failed > 0 {
            let why = match (last.killed, last.errors.last()) {
                (true, _) => "it was killed".to_owned(),
                (false, Some(error)) => error.message.clone(),
                (false, None) => "it does not say why".to_owned(),
            };
            let runs = if failed == 1 {
                "the last run of gc".into()
            } else {
                format!("the last {failed} runs of gc")
            };
            let status = if failed >= IN_A_ROW { Status::Error } else { Status::Warning };
            let message = format!("{runs} failed or refused, the last one at {at:.0}: {why}");
            let remedy = "see `layersweep history`, and `layersweep gc --dry-run` for how it is now";
            self.note(Check::new(NAME, status, "", message, remedy));
        } else if short >= IN_A_ROW {
            let message = format!("the last {short} runs of gc did not reach the low mark");
            let remedy = "see `layersweep usage` for what fills the disk, and `layersweep gc --dry-run` for what keeps the images";
            self.warning(NAME, "", message, remedy);
        } else {
            self.note(Check::ok(NAME, "", format!("gc ran last at {at:.0}")));
        }
    }

    fn clock(&mut self, open: Option<&Database>) {
        const NAME: &str = "clock";
        let now = match crate::sys::clock::read() {
            Ok(now) => now,
            Err(error) => return self.unread(NAME, "", &error),
        };
        let last = open.and_then(|open| open.read(known::clock).ok()).flatten();
        let mut fine = true;
        if !now.synchronised {
            fine = false;
            let message = "no time service vouches for the clock: ages of images are counted by what is proven, and \
                           may come out too young";
            self.warning(
                NAME,
                "",
                message,
                "run a time service: chronyd (with rtcsync), ntpd or systemd-timesyncd",
            );
        }
        if let Some(last) = last {
            let back = last.wall.duration_since(now.wall);
            if back > SignedDuration::from_mins(1) {
                fine = false;
                let message = format!(
                    "it was set back by {:#} since the last scan",
                    SignedDuration::from_secs(back.as_secs())
                );
                self.warning(
                    NAME,
                    "",
                    message,
                    "nothing for us: no image gets older by it; look why it was set",
                );
            }
            if let Some(leap) = clock::advance(Some(&last), &now).correction {
                fine = false;
                let message = format!(
                    "it leapt ahead by {:#} since the last scan: what was seen while it was wrong does not age by that",
                    SignedDuration::from_secs(leap.by.as_secs())
                );
                self.note(Check::note(NAME, "", message));
            }
        }
        if fine {
            self.note(Check::ok(NAME, "", "synchronised"));
        }
    }

    /// Room that a deletion on a full disk can have.
    fn ballast(&mut self, place: &Place, survey: &Survey) {
        let mut all: Vec<Ballast> = Vec::new();
        for (store, places) in survey.inventory.stores.iter().zip(&survey.places) {
            if store.read_only {
                continue;
            }
            let found = match (store.kind, places) {
                (StoreKind::Containerd, _) => {
                    Ballast::in_state_dir(&place.dir, &store.root).map(|one| one.into_iter().collect())
                }
                (StoreKind::ContainersStorage, Some(places)) => Ballast::of_store(places, &place.dir),
                (StoreKind::ContainersStorage, None) => continue,
            };
            // Without a state directory there is none yet.
            all.extend(found.unwrap_or_default());
        }
        all.sort_by(|a, b| a.path().cmp(b.path()));
        all.dedup_by(|a, b| a.path() == b.path());
        for ballast in all {
            let object = ballast.path().display().to_string();
            if ballast.is_ready() {
                let message = format!("{} lie by for a full disk", bytes(ballast.taken_bytes()));
                self.note(Check::ok("ballast", object, message));
            } else if ballast.has_room_beside() {
                let message = "nothing lies by yet for a full disk: `gc --via direct` and `sweep --delete` lay it by, \
                               and any gc on containerd";
                self.note(Check::note("ballast", object, message));
            } else {
                self.warning(
                    "ballast",
                    object,
                    format!(
                        "nothing lies by for a full disk, and {} are no longer free",
                        bytes(ballast.bytes())
                    ),
                    "see docs/recovery.md",
                );
            }
        }
    }
}
