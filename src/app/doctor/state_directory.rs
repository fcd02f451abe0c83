//! Checks of the state directory, the clock, and the emergency reserve files.

use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::SignedDuration;

use super::check::{Check, Status};
use super::node::Node;
use crate::disk::filesystem;
use crate::editor::ReserveFile;
use crate::history::{clock as known_clock, known};
use crate::model::text::display::{bytes, shell_word};
use crate::services::{reserve, user_records};
use crate::sys::users;

/// Available bytes below which a warning is given. Two years of records take less than 50 MiB.
const LITTLE_BYTES: u64 = 64 << 20;
/// Minimum number of available bytes with which SQLite can work.
const NO_BYTES: u64 = 4 << 20;
const FEW_INODES: u64 = 100;

pub(super) fn directory(node: &Node<'_>) -> Vec<Check> {
    let object = node.shown(&node.directory.dir);
    // The check examines the records to which the scans of this user write.
    let choice = user_records::choose(node.request, true);
    let mut checks: Vec<_> = choice.map(|choice| Check::note(&object, choice.note)).into_iter().collect();
    let dir = &node.directory.dir;
    let facts = match &node.directory.unresolved {
        Some((kind, why)) => Err((Error::new(*kind, why.clone()), "it does not exist")),
        None => std::fs::metadata(dir)
            .map_err(|error| (error, "it does not exist yet; the first scan creates it")),
    };
    match facts {
        Err((error, absent)) if error.kind() == ErrorKind::NotFound => {
            checks.push(Check::note(object, absent))
        }
        Err((error, _)) => checks.push(Check::unread(object, &error)),
        Ok(facts) if !facts.is_dir() => {
            let remedy = "move it away, or name another directory with --state-dir or state_dir";
            checks.push(Check::error(object, "not a directory", remedy));
        }
        Ok(_) if node.directory.foreign => checks.push(Check::ok(object, "it exists")),
        Ok(facts) => {
            if let Err(error) = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK) {
                let message = format!("not writable ({error}): scans are not recorded");
                let remedy = "run as root or its owner, or mount it writable; another one (--state-dir) has no pins \
                    and no history";
                checks.push(Check::error(&object, message, remedy));
            }
            checks.extend(untrusted(dir, facts.uid(), facts.mode()));
            checks.extend(room(node, &object));
        }
    }
    checks
}

/// Returns an error if another user could change the records: they are then not used.
fn untrusted(dir: &Path, owner: u32, mode: u32) -> Option<Check> {
    let word = shell_word(&dir.to_string_lossy());
    let (why, remedy) = if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        (format!("it belongs to user {}", users::name(owner)), format!("chown root {word}"))
    } else if mode & 0o022 != 0 {
        (format!("others may write to it (mode {:o})", mode & 0o7777), format!("chmod go-w {word}"))
    } else {
        return None;
    };
    Some(Check::error(dir, format!("{why}: its records are not used, and gc is refused"), remedy))
}

fn room(node: &Node<'_>, object: &str) -> Vec<Check> {
    let facts = match filesystem::of(&node.directory.dir) {
        Ok((facts, _)) => facts,
        Err(error) => return vec![Check::unread(object, &error)],
    };
    let (free, inodes, mount) = (facts.available_bytes, facts.inodes_free, facts.mount.display());
    let few_inodes = facts.inodes > 0 && inodes < FEW_INODES;
    let status = if few_inodes || free < NO_BYTES {
        Status::Error
    } else if free < LITTLE_BYTES {
        Status::Warning
    } else {
        Status::Ok
    };
    let mut checks = vec![if status == Status::Ok {
        Check::ok(object, format!("{} and {inodes} inodes free", bytes(free)))
    } else {
        let message = if few_inodes {
            format!("only {inodes} inodes are free on {mount}")
        } else {
            format!("only {} are free on {mount}", bytes(free))
        };
        let remedy = "free space there, for example with `layersweep gc` (`layersweep gc --via direct` where the runtime \
            is down); records that cannot be saved wait in /run/layersweep";
        Check::new(status, object, message, remedy)
    }];
    let filesystems = node.scan().map_or(&[][..], |scan| &scan.inventory.filesystems);
    let is_shared = filesystems
        .iter()
        .any(|filesystem| filesystem.mount == facts.mount && filesystem.device == facts.device);
    if is_shared {
        let message = "it is on a filesystem that images can fill; records then wait in /run/layersweep, which is \
            emptied at reboot";
        checks.push(Check::note(object, message));
    }
    checks
}

pub(super) fn clock(node: &Node<'_>) -> Vec<Check> {
    let now = match crate::sys::clock::read() {
        _ if node.is_foreign() => return Vec::new(),
        Ok(now) => now,
        Err(error) => return vec![Check::unread("", &error)],
    };
    let open = node.database.as_ref().ok();
    let last = open.and_then(|open| open.read(known::clock).ok()).flatten();
    let mut checks = Vec::new();
    if !now.synchronised {
        let message = "clock is not NTP-synchronised; image ages may be underestimated";
        let remedy = "run a time service: chronyd (with rtcsync), ntpd or systemd-timesyncd";
        checks.push(Check::warning("", message, remedy));
    }
    if let Some(last) = last {
        let back = last.wall.duration_since(now.wall);
        if back > SignedDuration::from_mins(1) {
            let back = SignedDuration::from_secs(back.as_secs());
            let message = format!("it was set back by {back:#} since the last scan");
            let remedy = "no action needed for image ages; find out why it was set";
            checks.push(Check::warning("", message, remedy));
        }
        if let Some(leap) = known_clock::advance(Some(&last), &now).correction {
            let ahead = SignedDuration::from_secs(leap.by.as_secs());
            let message = format!(
                "it jumped ahead by {ahead:#} since the last scan: the jump does not count towards image ages"
            );
            checks.push(Check::note("", message));
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok("", "synchronised"));
    }
    checks
}

/// Checks the files that reserve space for a deletion on a full disk.
pub(super) fn reserve_files(node: &Node<'_>) -> Vec<Check> {
    let scan = node.scan().filter(|_| !node.is_foreign());
    let files = scan.map(|scan| reserve::of_all(scan, &node.directory)).unwrap_or_default();
    files.iter().map(reserve_file).collect()
}

fn reserve_file(file: &ReserveFile) -> Check {
    if file.is_ready() {
        return Check::ok(file.path(), format!("{} reserved for a full disk", bytes(file.taken_bytes())));
    }
    if file.fits().unwrap_or(false) {
        let message = "no emergency reserve file yet; `layersweep scan --reserve` creates one";
        return Check::note(file.path(), message);
    }
    let message = format!(
        "no emergency reserve file; one is created only while {} and an inode are available",
        bytes(file.least_available_bytes())
    );
    let remedy = "free that much and run `layersweep scan --reserve`; until then, on a full disk, `layersweep gc \
        --via direct` gets its first bytes by deleting an image's layers (docs/recovery.md)";
    Check::warning(file.path(), message, remedy)
}
