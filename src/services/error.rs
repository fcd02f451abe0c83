//! Errors of the use cases: message, hint and exit code.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config;
use crate::execute::PreconditionError;
use crate::history;
use crate::model::text::display::{alternatives, with_causes};
use crate::stores;
use crate::stores::lookup;

/// Exit code of a command. The man page and `--help` list the same codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// Something failed; the deletions that were done are still reported.
    Failed = 1,
    Usage = 2,
    /// Done, but something could not be read: figures are lower bounds.
    Incomplete = 3,
    /// The target was not reached, although no step failed.
    NotReached = 4,
    /// Nothing was done: another run holds the lock, a listing was partial, or a precondition is not proven.
    Refused = 5,
    NoStore = 10,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[derive(Debug)]
pub struct Error {
    pub exit: Exit,
    /// One line that names the object and what happened to it.
    pub message: String,
    /// The message without the words that nothing was deleted, if it begins with them.
    reason: Option<String>,
    pub hint: Option<String>,
    /// Further errors of the same kind, each with its own hint: a configuration may have several.
    pub others: Vec<Error>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), reason: None, hint: None, others: Vec::new(), source: None }
    }

    /// Error for bad arguments, or for a configuration that cannot be used.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Error for a failure, or for a named object that does not exist.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// Error of a run that did nothing because it is not proven to be safe.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// Error of a run that deleted nothing for this reason.
    pub fn nothing_deleted(reason: impl fmt::Display) -> Self {
        let reason = reason.to_string();
        Self { reason: Some(reason.clone()), ..Self::refused(format!("nothing was deleted: {reason}")) }
    }

    pub fn database(path: PathBuf, source: history::Error) -> Self {
        let (exit, hint) = match &source {
            history::Error::Newer { .. } => (
                Exit::Usage,
                "use the newer layersweep, or name another state directory with --state-dir DIR".into(),
            ),
            history::Error::Degraded(why) => (Exit::Failed, why.remedy()),
            history::Error::Sqlite(_) => (Exit::Failed, String::new()),
        };
        Self::new(exit, format!("the records in {}", path.display())).hint(hint).caused_by(source)
    }

    /// Error for a result that could not be written. A pipe that its reader has closed is not a failure.
    pub fn output(source: io::Error) -> Self {
        let exit = match source.kind() {
            io::ErrorKind::BrokenPipe => Exit::Done,
            _ => Exit::Failed,
        };
        Self::new(exit, "writing the result").caused_by(OutputError(source))
    }

    /// Adds a hint; an empty one is ignored.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into()).filter(|hint| !hint.is_empty());
        self
    }

    #[must_use]
    pub fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    #[must_use]
    pub fn with(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    /// Returns the reason of a refusal, for a sentence about a run that did not begin.
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or(&self.message)
    }

    fn cause<T: StdError + 'static>(&self) -> Option<&T> {
        self.source.as_ref()?.downcast_ref()
    }

    /// Returns true if the search covered the whole node, everything could be read, and no store was found.
    pub fn proves_no_store(&self) -> bool {
        match self.cause() {
            Some(stores::ScanError::NoneFound { findings, .. }) => {
                !findings.iter().any(|finding| finding.incomplete)
            }
            _ => false,
        }
    }

    /// Returns true if everything was done and only the result could not be written.
    pub fn is_output(&self) -> bool {
        self.cause::<OutputError>().is_some()
    }

    /// Returns true if another attempt may succeed, because disk and runtime described different moments.
    pub fn is_stale(&self) -> bool {
        self.cause::<PreconditionError>().is_some_and(|error| error.is_stale)
    }

    /// Returns the message followed by its causes. A cause that is already part of the message is not repeated.
    pub fn line(&self) -> String {
        with_causes(self)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct OutputError(io::Error);

impl From<stores::ScanError> for Error {
    fn from(source: stores::ScanError) -> Self {
        let (exit, hint) = match &source {
            stores::ScanError::NotAStore { hint, .. } => (Exit::NoStore, (*hint).to_owned()),
            stores::ScanError::NoneFound { sysroot: Some(sysroot), .. } => (
                Exit::NoStore,
                format!(
                    "is the disk's /var another partition? mount it below {}; or name the store with --graphroot \
                     DIR, as the node called it",
                    sysroot.display()
                ),
            ),
            stores::ScanError::NoneFound { sysroot: None, .. } => (
                Exit::NoStore,
                "name a store with --graphroot DIR, or a mounted disk with --sysroot DIR".to_owned(),
            ),
            stores::ScanError::Unreadable { source, .. } => (
                Exit::Failed,
                match source.kind() {
                    io::ErrorKind::PermissionDenied => "run as root, or with CAP_DAC_READ_SEARCH".to_owned(),
                    _ => String::new(),
                },
            ),
        };
        Self::new(exit, source.to_string()).hint(hint).caused_by(source)
    }
}

/// The facts that would prove the deletion safe are not available: nothing was deleted.
impl From<PreconditionError> for Error {
    fn from(error: PreconditionError) -> Self {
        let hint = if error.is_stale {
            "images or containers change faster than they can be read; try again later"
        } else {
            ""
        };
        Self::nothing_deleted(&error).hint(hint).caused_by(error)
    }
}

impl From<lookup::LookupError> for Error {
    fn from(error: lookup::LookupError) -> Self {
        let message = error.to_string();
        match error {
            lookup::LookupError::Ambiguous { words, .. } => {
                let words: Vec<_> = words.iter().map(|words| format!("`{words}`")).collect();
                Self::usage(message).hint(format!("give {}", alternatives(&words)))
            }
            lookup::LookupError::Unknown { .. } => Self::failed(message).hint(
                "`layersweep images` and `layersweep layers` list what exists; a path begins with / or ./",
            ),
            lookup::LookupError::Missing { .. } | lookup::LookupError::Unreadable { .. } => {
                Self::failed(message)
            }
        }
    }
}

impl From<config::Invalid> for Error {
    fn from(config::Invalid(problems): config::Invalid) -> Self {
        let mut all =
            problems.into_iter().map(|problem| Self::usage(problem.to_string()).hint(problem.remedy));
        let first = all.next().unwrap_or_else(|| Self::usage("the configuration cannot be used"));
        Self { others: all.collect(), ..first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_appears_once() {
        let cause = "parameter 'microsecond' is not in the required range";
        let sqlite =
            rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Integer, cause.into());
        let line = Error::database("/db".into(), sqlite.into()).line();
        assert!(line.starts_with("the records in /db: Conversion error"), "{line}");
        assert_eq!(line.matches(cause).count(), 1, "{line}");
        let inner = io::Error::other("no space");
        assert_eq!(Error::output(inner).line(), "writing the result: no space");
    }
}
