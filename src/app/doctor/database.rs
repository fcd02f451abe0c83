//! Checks of layersweep's database, and of the runs that wait to be saved in it.

use super::check::{Check, Status};
use super::node::Node;
use crate::history::{DATABASE, Degraded, checkup};
use crate::model::text::display::{bytes, count};
use crate::services::error::Error;

pub(super) fn file(node: &Node<'_>) -> Vec<Check> {
    let path = node.directory.dir.join(DATABASE);
    let object = node.shown(&path);
    let open = match &node.database {
        Ok(open) => open,
        Err(failure) => return vec![failed(&object, failure)],
    };
    let mut checks: Vec<_> = open.degraded.iter().map(|why| degraded(&object, why)).collect();
    if open.found {
        // Opening the database has checked that it is not damaged.
        checks.push(match open.read(checkup::schema) {
            Ok(schema) => {
                let length = bytes(std::fs::metadata(path).map_or(0, |facts| facts.len()));
                Check::ok(&object, format!("sound, schema {schema}, {length}"))
            }
            Err(failure) => failed(&object, &failure),
        });
    } else if open.degraded.is_empty() {
        let message = if node.is_foreign() {
            "none were kept here: past uses of the images are unknown"
        } else {
            "it does not exist yet: `layersweep scan` creates it"
        };
        checks.push(Check::note(&object, message));
    }
    match checkup::quarantined(&node.directory.dir) {
        Ok(quarantined) => checks.extend(quarantined.iter().map(|path| {
            let message = "a damaged database was quarantined; its keep-list is in the new one";
            let remedy = "check that `layersweep pin list` is complete, then remove it";
            Check::warning(node.shown(path), message, remedy)
        })),
        Err(error) => checks.push(Check::unread(&object, &error)),
    }
    if let Some(Err(failure)) = node.runs() {
        checks.push(failed(&object, failure));
    }
    checks
}

fn degraded(object: &str, why: &Degraded) -> Check {
    let status = match why {
        Degraded::Corrupt { .. } | Degraded::NotUpgraded { .. } | Degraded::Io { .. } => Status::Error,
        _ => Status::Warning,
    };
    let is_unread = matches!(why, Degraded::NotReadable { .. } | Degraded::NoDirectory { .. });
    Check { is_unread, ..Check::new(status, object, why.to_string(), why.remedy()) }
}

fn failed(object: &str, failure: &Error) -> Check {
    let remedy = "use the layersweep version that wrote it, or name another state directory with --state-dir";
    Check::error(object, failure.line(), remedy)
}

/// Counts the runs that wait. They are not read, because reading renames files that are not runs.
pub(super) fn unsaved(node: &Node<'_>) -> Vec<Check> {
    if node.directory.foreign || node.database.is_err() {
        return Vec::new();
    }
    match checkup::waiting(&node.directory) {
        Ok(0) => Vec::new(),
        Ok(runs) => vec![Check::warning(
            node.directory.pending.clone().unwrap_or_default(),
            format!("{} to be saved in the database", count(runs, "run waits", "runs wait")),
            "make the state directory writable, with room in it; the next `layersweep scan` saves them",
        )],
        Err(error) => vec![Check::unread(node.shown(&node.directory.dir.join(DATABASE)), &error)],
    }
}
