//! What a person is told when a command cannot be carried out: one line that names the
//! object and its cause, and one with the remedy where there is one.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use super::exit::Exit;
use super::surveying;
use crate::config;
use crate::execute::hands::Blind;
use crate::history;
use crate::report::text::safe;
use crate::stores;
use crate::stores::lookup;

/// Why a command ends without a result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Survey(#[from] stores::Error),
    #[error("{message}")]
    BadArgument { message: String, hint: String },
    /// Something that was named does not exist, or cannot be kept.
    #[error("{message}")]
    NotThere { message: String, hint: String },
    #[error("the records in {}", path.display())]
    Records {
        path: PathBuf,
        #[source]
        source: history::Error,
    },
    /// Nothing was done, since it is not proven that it would be safe.
    #[error("{message}")]
    Refused { message: String, hint: String },
    /// Nothing was done, since what is needed to prove a deletion cannot be had.
    #[error("nothing was deleted: {0}")]
    Blind(Blind),
    #[error(transparent)]
    Config(config::Invalid),
    #[error("writing the result")]
    Output(#[source] io::Error),
}

impl Failure {
    /// A reference that leads to nothing has failed; one that may mean several things was not
    /// given in full.
    pub(super) fn of_lookup(error: &lookup::Error) -> Self {
        let message = error.to_string();
        let hint = match error {
            lookup::Error::Unknown(_) => "`layersweep images` and `layersweep layers` list what there is",
            lookup::Error::Ambiguous { .. } => {
                return Self::BadArgument {
                    message,
                    hint: "give more of the id, the whole name, or the store with --graphroot or --containerd-root"
                        .into(),
                };
            }
            lookup::Error::Store { .. } | lookup::Error::Missing { .. } => "",
            lookup::Error::Outside { .. } => "name its store with --graphroot DIR",
        };
        Self::NotThere { message, hint: hint.into() }
    }

    /// The same with more at the end of what is told.
    pub(super) fn with(mut self, more: &str) -> Self {
        if let Self::NotThere { message, .. } | Self::BadArgument { message, .. } = &mut self {
            message.push_str(more);
        }
        self
    }

    /// All stores of the node were looked for, everything could be read, and there is none.
    pub(super) fn proves_no_store(&self) -> bool {
        match self {
            Self::Survey(stores::Error::NoneFound { findings, .. }) => {
                !findings.iter().any(|finding| finding.incomplete)
            }
            _ => false,
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Survey(stores::Error::NotAStore { .. } | stores::Error::NoneFound { .. }) => Exit::NoStore,
            Self::Survey(stores::Error::Unreadable { .. }) | Self::NotThere { .. } | Self::Output(_) => {
                Exit::Failed
            }
            Self::Refused { .. } | Self::Blind(_) => Exit::Refused,
            Self::BadArgument { .. }
            | Self::Config(_)
            | Self::Records { source: history::Error::Newer { .. }, .. } => Exit::Usage,
            Self::Records { .. } => Exit::Failed,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Survey(stores::Error::NotAStore { hint, .. }) => Some((*hint).into()),
            Self::Survey(stores::Error::NoneFound { sysroot: Some(sysroot), .. }) => Some(format!(
                "is the disk's /var another partition? mount it below {}; or name the store with --graphroot DIR, as \
                 the node called it",
                sysroot.display()
            )),
            Self::Survey(stores::Error::NoneFound { sysroot: None, .. }) => {
                Some("name a store with --graphroot DIR, or a mounted disk with --sysroot DIR".into())
            }
            Self::Survey(stores::Error::Unreadable { source, .. }) => (source.kind()
                == io::ErrorKind::PermissionDenied)
                .then(|| "run as root, or with CAP_DAC_READ_SEARCH".into()),
            Self::BadArgument { hint, .. } | Self::NotThere { hint, .. } | Self::Refused { hint, .. } => {
                (!hint.is_empty()).then(|| hint.clone())
            }
            Self::Records { source: history::Error::Degraded(why), .. } => Some(why.remedy()),
            Self::Records { source: history::Error::Newer { .. }, .. } => {
                Some("use the newer layersweep, or name another state directory with --state-dir DIR".into())
            }
            Self::Records { .. } => None,
            // Each problem has its own.
            Self::Config(_) | Self::Output(_) => None,
            Self::Blind(blind) => blind.stale.then(|| {
                "images or containers come and go faster than they can be looked at; try again in a quieter moment".into()
            }),
        }
    }

    /// Prints it, and says how to exit.
    pub(super) fn report(self) -> Exit {
        if let Self::Output(error) = &self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            // Whoever read us has seen enough.
            return Exit::Done;
        }
        if let Self::Survey(stores::Error::NoneFound { findings, .. }) = &self {
            surveying::warn(findings);
        }
        if let Self::Config(config::Invalid(problems)) = &self {
            for problem in problems {
                tell(
                    &format!("error: {problem}"),
                    Some(problem.remedy.clone()).filter(|hint| !hint.is_empty()),
                );
            }
            return self.exit();
        }
        tell(&format!("error: {}", self.line()), self.hint());
        self.exit()
    }

    /// It with its causes. Some errors say theirs themselves; each is told once.
    fn line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !line.ends_with(&text) {
                let _ = write!(line, ": {text}");
            }
            cause = error.source();
        }
        line
    }
}

/// A stderr that is gone cannot be told so.
fn tell(line: &str, hint: Option<String>) {
    let mut stderr = io::stderr();
    let _ = writeln!(stderr, "{}", safe(line));
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "hint: {}", safe(&hint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_told_once() {
        let cause = "parameter 'microsecond' is not in the required range";
        let sqlite =
            rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Integer, cause.into());
        let failure = Failure::Records { path: "/db".into(), source: sqlite.into() };
        let line = failure.line();
        assert!(line.starts_with("the records in /db: Conversion error"), "{line}");
        assert_eq!(line.matches(cause).count(), 1, "{line}");
        let inner = io::Error::other("no space");
        assert_eq!(Failure::Output(inner).line(), "writing the result: no space");
    }
}
