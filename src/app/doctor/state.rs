//! Our own state: its directory, the database, what the last runs said, the clock.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use super::examination::Examination;
use super::examination::{Check, Status};
use crate::app::database::{self, Database};
use crate::app::error::Error;
use crate::app::reserve;
use crate::app::user_records;
use crate::disk::filesystem;
use crate::history::runs::{self, Command, OutcomeKind, Query, RunRow};
use crate::history::{Access, DATABASE, Degraded, StateDirectory, checkup, clock, known};
use crate::model::display::bytes;
use crate::stores::Scan;

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
    pub(super) fn state(&mut self, scan: Option<&Scan>) {
        let directory = database::state_directory(self.request);
        // What is examined is what scans of this user write.
        if let Some(choice) = user_records::choose(self.request, true) {
            self.checks.push(Check::note(DIRECTORY, self.shown(&directory.dir), choice.note));
        }
        self.directory(&directory, scan);
        let open = self.database(&directory);
        if let Some(open) = &open {
            self.runs(open);
        }
        if self.is_foreign() {
            return;
        }
        self.clock(open.as_ref());
        if let Some(scan) = scan {
            self.reserve_file(&directory, scan);
        }
    }

    fn directory(&mut self, directory: &StateDirectory, scan: Option<&Scan>) {
        let object = self.shown(&directory.dir);
        if let Some((kind, why)) = &directory.unresolved {
            match kind {
                std::io::ErrorKind::NotFound => {
                    self.note(DIRECTORY, object, "it does not exist");
                }
                _ => self.unread(DIRECTORY, object, &std::io::Error::new(*kind, why.clone())),
            }
            return;
        }
        match std::fs::metadata(&directory.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let message = "it does not exist yet; the first scan creates it";
                return self.note(DIRECTORY, object, message);
            }
            Err(error) => return self.unread(DIRECTORY, object, &error),
            Ok(facts) if !facts.is_dir() => {
                let remedy = "move it away, or name another directory with --state-dir or state_dir";
                return self.error(DIRECTORY, object, "not a directory", remedy);
            }
            Ok(_) => {}
        }
        if directory.foreign {
            return self.ok(DIRECTORY, object, "it exists");
        }
        if let Err(error) = rustix::fs::access(&directory.dir, rustix::fs::Access::WRITE_OK) {
            let message = format!("not writable ({}): scans are not recorded", error);
            self.error(
                DIRECTORY,
                object.clone(),
                message,
                "run as root or its owner, or mount it writable; another one (--state-dir) has no pins and no history",
            );
        }
        self.room(&directory.dir, object, scan);
    }

    fn room(&mut self, dir: &Path, object: String, scan: Option<&Scan>) {
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
            let remedy = "free space there, for example with `layersweep gc`; records that cannot be \
                saved wait in /run/layersweep";
            self.checks.push(Check::new(DIRECTORY, status, object.clone(), message, remedy));
        } else {
            let message = format!("{} and {} inodes free", bytes(free), facts.inodes_free);
            self.ok(DIRECTORY, object.clone(), message);
        }
        let beside = scan.is_some_and(|scan| {
            scan.inventory
                .filesystems
                .iter()
                .any(|one| one.mount == facts.mount && one.device == facts.device)
        });
        if beside {
            self.note(
                DIRECTORY,
                object,
                "it is on a filesystem that images can fill; records then wait in /run/layersweep, which \
                    is emptied at reboot",
            );
        }
    }

    fn database(&mut self, directory: &StateDirectory) -> Option<Database> {
        let object = self.shown(&directory.dir.join(DATABASE));
        let open = match Database::open(self.request, Access::Read) {
            Ok(opened) => opened,
            Err(failure) => {
                self.records_failed(object, &failure);
                return None;
            }
        };
        for why in &open.degraded {
            let status = match why {
                Degraded::Corrupt { .. } | Degraded::NotUpgraded { .. } | Degraded::Io { .. } => {
                    Status::Error
                }
                _ => Status::Warning,
            };
            self.unread |= matches!(why, Degraded::NotReadable { .. } | Degraded::NoDirectory { .. });
            self.checks.push(Check::new(RECORDS, status, object.clone(), why.to_string(), why.remedy()));
        }
        if open.found {
            // That it is sound was found when it was opened.
            match open.read(checkup::schema) {
                Ok(schema) => {
                    let length =
                        std::fs::metadata(directory.dir.join(DATABASE)).map_or(0, |facts| facts.len());
                    let message = format!("sound, schema {schema}, {}", bytes(length));
                    self.ok(RECORDS, object.clone(), message);
                }
                Err(failure) => self.records_failed(object.clone(), &failure),
            }
        } else if open.degraded.is_empty() {
            let message = match self.is_foreign() {
                true => "none were kept here: past uses of the images are unknown",
                false => "it does not exist yet: `layersweep scan` creates it",
            };
            self.note(RECORDS, object.clone(), message);
        }
        match checkup::quarantined(&directory.dir) {
            Ok(aside) => {
                for path in aside {
                    let object = self.shown(&path);
                    self.warning(
                        RECORDS,
                        object,
                        "a damaged database was quarantined; its keep-list is in the new one",
                        "check that `layersweep pin list` is complete, then remove it",
                    );
                }
            }
            Err(error) => self.unread(RECORDS, object.clone(), &error),
        }
        if !directory.foreign {
            self.waiting(directory, &object);
        }
        Some(open)
    }

    fn records_failed(&mut self, object: String, failure: &Error) {
        let remedy =
            "use the layersweep version that wrote it, or name another state directory with --state-dir";
        self.error(RECORDS, object, failure.line(), remedy);
    }

    /// It is only counted: whoever reads it sets aside what is no scan.
    fn waiting(&mut self, directory: &StateDirectory, object: &str) {
        match checkup::waiting(directory) {
            Ok((0, _)) => {}
            Ok((count, first)) => self.warning(
                "unsaved",
                first.map(|dir| dir.display().to_string()).unwrap_or_default(),
                format!("{count} scans or runs wait to be saved in the database"),
                "make the state directory writable, with room in it; the next `layersweep scan` saves them",
            ),
            Err(error) => self.unread("unsaved", object, &error),
        }
        match checkup::run_under_way(directory) {
            Ok(None) => {}
            Ok(Some(holder)) => {
                let object = directory.dir.display().to_string();
                self.note("run", object, format!("{holder} is deleting now"));
            }
            Err(error) => self.unread("run", "/proc/locks", &error),
        }
    }

    fn runs(&mut self, open: &Database) {
        let query = Query { limit: RUNS, quiet: true, ..Query::default() };
        let runs = match open.read(|connection| runs::list(connection, &query)) {
            Ok((runs, _)) => runs,
            Err(failure) => {
                let object = self.shown(&open.directory.dir.join(DATABASE));
                return self.records_failed(object, &failure);
            }
        };
        if !open.found && runs.is_empty() {
            return;
        }
        let of = |command| runs.iter().filter(move |run| run.start.command == command);
        self.last_scan(of(Command::Scan).next());
        self.last_gc(&of(Command::Gc).collect::<Vec<_>>());
    }

    fn last_scan(&mut self, last: Option<&RunRow>) {
        const NAME: &str = "last-scan";
        let remedy = "check its timer: systemctl list-timers layersweep-scan.timer (or cron)";
        let Some(last) = last else {
            return self.warning(NAME, "", "no scan is recorded, so image ages and uses are unknown", remedy);
        };
        let at = last.ended.unwrap_or(last.start.started);
        let ago = Timestamp::now().duration_since(at);
        if self.is_foreign() {
            return self.ok(NAME, "", format!("the last scan was at {at:.0}"));
        }
        if ago > LATE {
            let ago = SignedDuration::from_mins(ago.as_mins());
            let message = format!("the last scan was {ago:#} ago: image uses since then are not recorded");
            return self.warning(NAME, "", message, remedy);
        }
        self.ok(NAME, "", format!("{}s ago", ago.as_secs().max(0)));
    }

    /// `runs`: those of `gc`, the newest first.
    fn last_gc(&mut self, runs: &[&RunRow]) {
        const NAME: &str = "last-runs";
        let Some(last) = runs.first() else {
            return self.note(NAME, "", "gc has not run yet");
        };
        let in_a_row = |wrong: &dyn Fn(&RunRow) -> bool| -> u64 {
            runs.iter().take_while(|run| wrong(run)).map(|run| run.runs.max(1)).sum()
        };
        let failed = in_a_row(&|run| {
            run.killed || matches!(run.outcome, Some(OutcomeKind::Failed | OutcomeKind::Refused))
        });
        let short = in_a_row(&|run| run.outcome == Some(OutcomeKind::NotReached));
        let at = last.start.started;
        if failed > 0 {
            let why = match (last.killed, last.errors.last()) {
                (true, _) => "it was killed".to_owned(),
                (false, Some(error)) => error.message.clone(),
                (false, None) => "no reason was recorded".to_owned(),
            };
            let runs = if failed == 1 {
                "the last run of gc".into()
            } else {
                format!("the last {failed} runs of gc")
            };
            let status = if failed >= IN_A_ROW { Status::Error } else { Status::Warning };
            let message = format!("{runs} failed or refused, the last one at {at:.0}: {why}");
            let remedy = "see `layersweep history`, and `layersweep gc --dry-run` for the current state";
            self.checks.push(Check::new(NAME, status, "", message, remedy));
        } else if short >= IN_A_ROW {
            let message = format!("the last {short} runs of gc did not reach the low threshold");
            let remedy = "see `layersweep usage` for what fills the disk, and `layersweep gc --dry-run` for what keeps the images";
            self.warning(NAME, "", message, remedy);
        } else {
            self.ok(NAME, "", format!("gc ran last at {at:.0}"));
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
            let message = "clock is not NTP-synchronised; image ages may be underestimated";
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
                self.warning(NAME, "", message, "no action needed for image ages; find out why it was set");
            }
            if let Some(leap) = clock::advance(Some(&last), &now).correction {
                fine = false;
                let message = format!(
                    "it jumped ahead by {:#} since the last scan: the jump does not count towards image ages",
                    SignedDuration::from_secs(leap.by.as_secs())
                );
                self.note(NAME, "", message);
            }
        }
        if fine {
            self.ok(NAME, "", "synchronised");
        }
    }

    /// Room that a deletion on a full disk can have.
    fn reserve_file(&mut self, directory: &StateDirectory, scan: &Scan) {
        for reserve_file in reserve::of_all(scan, directory) {
            let object = reserve_file.path().display().to_string();
            if reserve_file.is_ready() {
                let message = format!("{} reserved for a full disk", bytes(reserve_file.taken_bytes()));
                self.ok("reserve", object, message);
            } else if reserve_file.fits().unwrap_or(false) {
                let message = "no emergency reserve file yet; `layersweep scan --reserve` creates one";
                self.note("reserve", object, message);
            } else {
                self.warning(
                    "reserve",
                    object,
                    format!(
                        "no emergency reserve file; one is created only while {} and an inode are available",
                        bytes(reserve_file.least_available_bytes())
                    ),
                    "free that much and run `layersweep scan --reserve`; until then, on a full disk, `layersweep gc --via \
                     direct` begins with the layers of an image that it deletes (docs/recovery.md)",
                );
            }
        }
    }
}
