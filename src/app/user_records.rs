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

/// Whether there are records in a directory, as far as the caller can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordsAccess {
    Missing,
    Denied,
    Readable,
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
    let seen = own.as_deref().map_or(RecordsAccess::Missing, see);
    decide(own.as_deref().zip(Some(seen)), see(Path::new(SYSTEM)), records)
}

fn see(dir: &Path) -> RecordsAccess {
    match access(dir.join(DATABASE), Access::READ_OK) {
        Ok(()) => RecordsAccess::Readable,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => RecordsAccess::Missing,
        Err(_) => RecordsAccess::Denied,
    }
}

fn decide(own: Option<(&Path, RecordsAccess)>, root: RecordsAccess, records: bool) -> Option<Choice> {
    let is_there = own.is_some_and(|(_, seen)| seen != RecordsAccess::Missing);
    let own = own.map(|(dir, _)| dir.display());
    let (dir, rest) = match (root, own) {
        (RecordsAccess::Missing, _) => return None,
        (RecordsAccess::Readable, own) if !is_there && !records => {
            let none = own.map(|own| format!(" ({own} has none)")).unwrap_or_default();
            (Some(SYSTEM.into()), format!("records are read from root's state directory {SYSTEM}{none}"))
        }
        // What is wrong with having no home is told with the records.
        (_, None) => return None,
        (RecordsAccess::Readable, Some(own)) => (
            None,
            format!(
                "the state directory is {own}; root's records are not used (--state-dir {SYSTEM} reads them)"
            ),
        ),
        (RecordsAccess::Denied, Some(own)) if is_there => (
            None,
            format!(
                "the state directory is {own}; root's in {SYSTEM} cannot be read: its pins, and ages and uses \
                 of images recorded there, are unknown"
            ),
        ),
        (RecordsAccess::Denied, Some(own)) => (
            None,
            format!(
                "the state directory is {own}, without records yet; root's in {SYSTEM} cannot be read: pins, \
                 and recorded ages and uses of images, are unknown"
            ),
        ),
    };
    Some(Choice { dir, note: format!("not running as root: {rest}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_records_are_read_where_there_are_no_others_and_never_written() {
        use RecordsAccess::{Denied, Missing, Readable};
        let own = Path::new("/home/u/.local/state/layersweep");
        for (seen, root, records, is_roots, said) in [
            (Some(Missing), Missing, false, false, None),
            (Some(Readable), Missing, false, false, None),
            (Some(Missing), Readable, false, true, Some("are read from root's")),
            (None, Readable, false, true, Some("are read from root's")),
            (None, Readable, true, false, None),
            (None, Denied, false, false, None),
            (Some(Missing), Readable, true, false, Some("are not used")),
            (Some(Readable), Readable, false, false, Some("are not used")),
            (Some(Denied), Readable, false, false, Some("are not used")),
            (Some(Readable), Denied, false, false, Some("its pins")),
            (Some(Missing), Denied, true, false, Some("without records yet")),
        ] {
            let choice = decide(seen.map(|seen| (own, seen)), root, records);
            let case = format!("{seen:?} {root:?} {records}: {choice:?}");
            assert_eq!(choice.as_ref().is_some_and(|it| it.dir.is_some()), is_roots, "{case}");
            assert_eq!(choice.is_some(), said.is_some(), "{case}");
            if let (Some(choice), Some(said)) = (choice, said) {
                assert!(choice.note.contains(said), "{case}");
                assert_eq!(choice.note.contains("/home/u"), seen.is_some(), "{case}");
            }
        }
    }
}
