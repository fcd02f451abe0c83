//! Whose records a user other than root gets: the user's own, or root's where those can be read.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::request::Request;
use crate::history::{self, Caller, DATABASE, SYSTEM};

/// Which records are used, where root may have others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Another state directory than the user's own.
    pub dir: Option<PathBuf>,
    /// Says which are used, and what is unknown.
    pub note: String,
}

/// Chooses for a user other than root who names no state directory. `None`: there is nothing to choose
/// from. `records`: the command writes records, and those are always the user's own.
#[must_use]
pub fn choose(request: &Request, records: bool) -> Option<Choice> {
    let caller = Caller::present();
    if caller.uid == 0 || request.state_dir.is_some() || request.sysroot.is_some() {
        return None;
    }
    let directory = history::state_directory(&request.root(), None, &caller);
    // Without a home directory there are no records of their own.
    let own = directory.unresolved.is_none().then_some(directory.dir);
    let own = own.as_deref().map(|dir| (dir, is_readable(dir).is_some()));
    decide(own, is_readable(Path::new(SYSTEM)), records)
}

/// Whether the records in a directory can be read; `None`: there are none, as far as the caller can see.
fn is_readable(dir: &Path) -> Option<bool> {
    match access(dir.join(DATABASE), Access::READ_OK) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => None,
        seen => Some(seen.is_ok()),
    }
}

/// `own`: the user's state directory, and whether it has records. `root`: whether root's records can be read.
fn decide(own: Option<(&Path, bool)>, root: Option<bool>, records: bool) -> Option<Choice> {
    let is_readable = root?;
    let has_records = own.is_some_and(|(_, has_records)| has_records);
    let own = own.map(|(dir, _)| dir.display());
    if is_readable && !has_records && !records {
        let none = own.map(|own| format!(" ({own} has none)")).unwrap_or_default();
        let note =
            format!("not running as root: records are read from root's state directory {SYSTEM}{none}");
        return Some(Choice { dir: Some(SYSTEM.into()), note });
    }
    // What is wrong with having no home is told with the records.
    let own = own?;
    let (yet, its) = if has_records { ("", "its ") } else { (", without records yet", "") };
    let roots = match is_readable {
        true => format!("root's records are not used (--state-dir {SYSTEM} reads them)"),
        false => format!(
            "root's in {SYSTEM} cannot be read: {its}pins, and ages and uses of images recorded there, are unknown"
        ),
    };
    Some(Choice {
        dir: None,
        note: format!("not running as root: the state directory is {own}{yet}; {roots}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_records_are_read_where_there_are_no_others_and_never_written() {
        let (missing, denied, readable) = (None, Some(false), Some(true));
        let own = Path::new("/home/u/.local/state/layersweep");
        for (has_records, root, records, is_roots, said) in [
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
            let choice = decide(has_records.map(|has| (own, has)), root, records);
            let case = format!("{has_records:?} {root:?} {records}: {choice:?}");
            assert_eq!(choice.as_ref().is_some_and(|it| it.dir.is_some()), is_roots, "{case}");
            assert_eq!(choice.is_some(), said.is_some(), "{case}");
            if let (Some(choice), Some(said)) = (choice, said) {
                assert!(choice.note.contains(said), "{case}");
                assert_eq!(choice.note.contains("/home/u"), has_records.is_some(), "{case}");
            }
        }
    }
}
