//! Choice of the records for a user other than root: the user's own records, or root's if they can be read.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::history::{self, Caller, DATABASE, SYSTEM};
use crate::services::request::Request;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// State directory to use instead of the user's own.
    pub dir: Option<PathBuf>,
    /// Message that names the records and what is unknown.
    pub note: String,
}

/// Chooses the records for a user other than root who does not name a state directory. Returns `None` if there is
/// nothing to choose: the caller is root, the request names a state directory or a sysroot, root has no records, or
/// the user has no home directory and root's records cannot be used. `records` is true if the command writes records:
/// it writes only the user's own.
#[must_use]
pub fn choose(request: &Request, records: bool) -> Option<Choice> {
    let caller = Caller::present();
    if caller.uid == 0 || request.state_dir.is_some() || request.sysroot.is_some() {
        return None;
    }
    let directory = history::state_directory(&request.root(), None, &caller);
    // A user without a home directory cannot have records.
    let user_dir = directory.unresolved.is_none().then_some(directory.dir);
    let user_dir = user_dir.as_deref().map(|dir| (dir, is_readable(dir).is_some()));
    decide(user_dir, is_readable(Path::new(SYSTEM)), records)
}

/// Returns true if the records in a directory can be read; `None` if no records are visible to the caller.
fn is_readable(dir: &Path) -> Option<bool> {
    match access(dir.join(DATABASE), Access::READ_OK) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => None,
        seen => Some(seen.is_ok()),
    }
}

/// Decides between the user's records and root's. `user_dir`: the user's state directory, with true if it contains
/// records. `root`: true if root's records can be read, `None` if root has none.
fn decide(user_dir: Option<(&Path, bool)>, root: Option<bool>, records: bool) -> Option<Choice> {
    let is_readable = root?;
    let has_records = user_dir.is_some_and(|(_, has_records)| has_records);
    let user_dir = user_dir.map(|(dir, _)| dir.display());
    if is_readable && !has_records && !records {
        let none = user_dir.map(|dir| format!(" ({dir} has none)")).unwrap_or_default();
        let note =
            format!("not running as root: records are read from root's state directory {SYSTEM}{none}");
        return Some(Choice { dir: Some(SYSTEM.into()), note });
    }
    // The missing home directory is reported when the records are opened.
    let user_dir = user_dir?;
    let (yet, its) = if has_records { ("", "its ") } else { (", without records yet", "") };
    let roots = if is_readable {
        format!("root's records are not used (--state-dir {SYSTEM} reads them)")
    } else {
        format!(
            "root's in {SYSTEM} cannot be read: {its}pins, and ages and uses of images recorded there, are unknown"
        )
    };
    Some(Choice {
        dir: None,
        note: format!("not running as root: the state directory is {user_dir}{yet}; {roots}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_records_are_read_but_never_written() {
        let (missing, denied, readable) = (None, Some(false), Some(true));
        let user_dir = Path::new("/home/u/.local/state/layersweep");
        for (has_records, root, records, is_roots, expected) in [
            (Some(false), missing, false, false, None),
            (Some(true), missing, false, false, None),
            (Some(false), readable, false, true, Some("are read from root's")),
            (None, readable, false, true, Some("are read from root's")),
            (None, readable, true, false, None),
            (None, denied, false, false, None),
            (Some(false), readable, true, false, Some("are not used")),
            (Some(true), readable, false, false, Some("are not used")),
            (Some(true), denied, false, false, Some("its pins")),
            (Some(false), denied, true, false, Some("without records yet")),
        ] {
            let choice = decide(has_records.map(|has| (user_dir, has)), root, records);
            let case = format!("{has_records:?} {root:?} {records}: {choice:?}");
            assert_eq!(choice.as_ref().is_some_and(|choice| choice.dir.is_some()), is_roots, "{case}");
            assert_eq!(choice.is_some(), expected.is_some(), "{case}");
            if let (Some(choice), Some(expected)) = (choice, expected) {
                assert!(choice.note.contains(expected), "{case}");
                assert_eq!(choice.note.contains("/home/u"), has_records.is_some(), "{case}");
            }
        }
    }
}
