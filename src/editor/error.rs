//! Reasons for which an edit failed or was refused, as types that callers decide by.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use rustix::io::Errno;

use super::deleted::Deleted;
use crate::model::deletion::plan::{Failure, Step, TargetKind};
use crate::model::rules::Rule;
use crate::model::space::BytesAndInodes;
use crate::model::text::display::span;
use crate::model::{Aftermath, Answer, Owner};
use crate::sys::users;

/// Reason for which an edit was not done, or was not completed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A precondition is not proven. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Another process held a lock until the deadline. Nothing was changed.
    #[error("{path} was locked by {} for {:.1} s", holder.as_ref().map_or_else(|| "another process".into(), ToString::to_string), waited.as_secs_f64())]
    Locked {
        path: PathBuf,
        /// The process that holds it, if the kernel reports it.
        holder: Option<StoreLockHolder>,
        waited: Duration,
    },
    /// The filesystem has no room (or inode, or quota) for the record file's new version, and none could be made.
    #[error("no space left to write: {0}")]
    NoSpace(Fault),
    #[error(transparent)]
    Failed(Fault),
    /// A signal arrived before anything was changed.
    #[error("ended by a signal")]
    Interrupted,
    /// The edit failed after its first change. The store is consistent, and [`super::Editor::resume`] or the next sweep
    /// finishes the deletion.
    #[error("{}", halfway(cause))]
    Stopped {
        /// Changes made before the failure.
        done: Box<Deleted>,
        cause: Box<Error>,
    },
}

/// Message of an edit that was stopped halfway. The next run does not finish the deletion of a lost image that is kept.
fn halfway(cause: &Error) -> String {
    match cause.refusal() {
        Some(lost @ Refusal::Lost { .. }) => lost.to_string(),
        _ => format!("deletion stopped halfway: {}; the next run finishes it", cause.cause()),
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        if fault.is_no_space() { Self::NoSpace(fault) } else { Self::Failed(fault) }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self { message: error.to_string(), no_space: error.is_no_space(), ..Self::default() }
    }
}

impl Deleted {
    /// Result of an edit that ended with `result`. An error after a change becomes [`Error::Stopped`], with the
    /// changes.
    pub(super) fn ended(self, result: Result<(), Error>) -> Result<Self, Error> {
        let result = if self.interrupted { result.and(Err(Error::Interrupted)) } else { result };
        match result {
            Ok(()) => Ok(self),
            Err(error) if !self.has_changed => Err(error),
            Err(error) => Err(Error::Stopped { done: Box::new(self), cause: Box::new(error) }),
        }
    }
}

impl Error {
    /// The error itself, without [`Error::Stopped`] around it.
    fn cause(&self) -> &Self {
        match self {
            Self::Stopped { cause, .. } => cause.cause(),
            other => other,
        }
    }

    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(
            self.cause(),
            Self::NoSpace(_) | Self::Refused(Refusal::MakesNoRoom { .. } | Refusal::CannotBegin(_))
        )
    }

    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self.cause(), Self::Interrupted)
    }

    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self.cause() {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The operation: "opening", "renaming".
    pub doing: &'static str,
    pub path: PathBuf,
    pub error: Errno,
}

impl Fault {
    pub(super) fn new(doing: &'static str, path: impl Into<PathBuf>, error: Errno) -> Self {
        Self { doing, path: path.into(), error }
    }

    /// Returns true if the filesystem has no blocks, no inodes, or no quota left.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        is_no_space(self.error)
    }

    /// Returns true if the path leads to another filesystem, which is never entered.
    pub(super) fn is_other_filesystem(&self) -> bool {
        self.error == Errno::XDEV
    }
}

pub(super) fn is_no_space(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.doing, self.path.display())?;
        if self.is_other_filesystem() {
            f.write_str("it is a mount point or on another filesystem, which is not entered")
        } else {
            self.error.fmt(f)
        }
    }
}

impl std::error::Error for Fault {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLockHolder {
    /// Its process id in this PID namespace; `None` if the lock belongs to an open file (of another layersweep) or to a
    /// process in another namespace.
    pub pid: Option<u32>,
    pub command: Option<String>,
    /// Time since the process was started: it has held the lock no longer. A deduplication holds it for minutes.
    pub runs_for: Option<SignedDuration>,
}

impl fmt::Display for StoreLockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.command, self.runs_for) {
            (Some(pid), Some(command), Some(time)) => {
                write!(f, "{command} (pid {pid}, started {} ago)", span(time))
            }
            (Some(pid), Some(command), None) => write!(f, "{command} (pid {pid})"),
            (Some(pid), None, _) => write!(f, "pid {pid}"),
            _ => f.write_str("an unknown process"),
        }
    }
}

/// A precondition of an edit that is not proven. Most variants describe the object that was to be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store is below a mounted root.
    #[error("the store belongs to another system and is not changed")]
    Foreign,
    /// It is an additional store, which other stores read from.
    #[error("{0} is an additional image store; other stores may need its contents")]
    ReadOnly(PathBuf),
    #[error("{0} is mounted read-only here (for a unit of systemd, `layersweep doctor` has the drop-in)")]
    MountedReadOnly(PathBuf),
    /// It belongs to another user, who could redirect root's changes to another place.
    #[error("{} belongs to {}; run as that user: podman unshare layersweep", path.display(), users::name(*owner))]
    OtherOwner { path: PathBuf, owner: u32 },
    /// Its user may not delete files that containers created there under other ids.
    #[error("it can only be removed completely in podman's user namespace: podman unshare layersweep")]
    OutsideNamespace,
    /// Other users than root can replace it.
    #[error("{0} is below a directory that other users can write to; they could replace it")]
    Exchangeable(PathBuf),
    /// The layout of the driver's layers is unknown.
    #[error("deletion is not supported for the driver {0}: `podman rmi` deletes its images")]
    Driver(String),
    /// Without a lock file other processes cannot be kept out, and only the library creates one.
    #[error("there is no lock file {0}")]
    NoLockFile(PathBuf),
    /// A record file cannot be parsed completely.
    #[error("{path} {message}")]
    Damaged { path: PathBuf, message: String },
    #[error("container {name} ({id}) of {} uses it", owner_name(*owner))]
    UsedByContainer {
        id: String,
        name: String,
        /// The runtime or tool that created the container.
        owner: Owner,
    },
    #[error("layer {layer} is used by image {image}")]
    UsedByImage { layer: String, image: String },
    /// A user outside the store needs it.
    #[error("{by} needs {id}")]
    UsedElsewhere { id: String, by: String },
    /// Another store may need it: that store, or the configuration that may name one, could not be read completely.
    #[error("whether another store needs it is unknown: {} could not be read completely", .0.display())]
    BorrowerUnknown(PathBuf),
    /// Stores that use images of this one kept changing.
    #[error("other stores that use images of this one kept changing")]
    BorrowersBusy,
    #[error("layer {layer} is the parent of layer {child}")]
    HasChild { layer: String, child: String },
    /// Something is mounted on, from or below it.
    #[error("{path} is in use by the mount at {mount_point} in the mount namespace of process {pid}", path = path.display(), mount_point = mount_point.display())]
    Mounted {
        /// The path that was to be deleted.
        path: PathBuf,
        /// The mount point, as that process sees it.
        mount_point: PathBuf,
        pid: u32,
    },
    /// The mounts or the open files of some process cannot be read.
    #[error("{0}: nothing more of this store is deleted")]
    MountsUnknown(String),
    /// Some processes are invisible, and any of them may use the store.
    #[error("not all processes are visible from this PID namespace")]
    ProcessesHidden,
    /// Other processes kept the locks or kept mounting layers, so that no check was as recent as the locks.
    #[error("other processes kept locking the store or mounting layers during the check for mounts")]
    Unsettled,
    #[error("process {pid} ({command}) belongs to {id}")]
    Process { pid: u32, command: String, id: String },
    /// It does not exist (any more).
    #[error("there is no {kind} {id}")]
    Unknown {
        /// The kind of object: "image", "layer".
        kind: &'static str,
        id: String,
    },
    /// It changed after it was planned.
    #[error("{id} changed after it was planned: {change}")]
    Changed { id: String, change: String },
    /// A process uses it, or may use it.
    #[error("{path}: {why}", path = path.display())]
    Busy { path: PathBuf, why: String },
    /// The disk is full, and the image's own layers contain too little to begin its deletion.
    #[error(
        "its own layers hold less than {to_free}, which must be freed before any record can be written on this full disk"
    )]
    MakesNoRoom { to_free: BytesAndInodes },
    /// The disk is full, and there is no room even to rename its layer.
    #[error("its deletion cannot begin on this full disk: {0}")]
    CannotBegin(Fault),
    /// A killed run began to delete the image, and now it is kept.
    #[error(
        "image {id} is unusable since an interrupted deletion removed a layer, and is kept: {why}; remove it and pull it \
         again"
    )]
    Lost {
        /// Its id; several ids are separated by commas.
        id: String,
        why: String,
    },
    /// It has a record (again).
    #[error("{id} has a record now")]
    Recorded { id: String },
    /// It may be work in progress.
    #[error("{path} is too young ({}, minimum {})", age.map_or_else(|| "of unknown age".into(), |age| format!("{} old", span(age))), span(*wanted), path = path.display())]
    Young {
        path: PathBuf,
        /// `None`: unknown.
        age: Option<SignedDuration>,
        wanted: SignedDuration,
    },
    /// Its lock is held: a process is working in it.
    #[error("a process holds {0}: work in progress")]
    Held(PathBuf),
    /// It is immutable or append-only, so it cannot be removed.
    #[error("{0} is immutable or append-only (see lsattr)")]
    Immutable(PathBuf),
}

impl Refusal {
    /// Returns true if nothing in the store can be deleted for now.
    pub(super) fn is_of_store(&self) -> bool {
        matches!(
            self,
            Self::Foreign
                | Self::ReadOnly(_)
                | Self::MountedReadOnly(_)
                | Self::OtherOwner { .. }
                | Self::OutsideNamespace
                | Self::Exchangeable(_)
                | Self::Driver(_)
                | Self::NoLockFile(_)
                | Self::Damaged { .. }
                | Self::BorrowersBusy
                | Self::MountsUnknown(_)
                | Self::ProcessesHidden
                | Self::Unsettled
                | Self::MakesNoRoom { .. }
                | Self::CannotBegin(_)
        )
    }

    /// Returns true if a container, an image or a process uses the target.
    fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::UsedByContainer { .. }
                | Self::UsedByImage { .. }
                | Self::UsedElsewhere { .. }
                | Self::HasChild { .. }
        ) || self.is_running()
    }

    /// Returns true while a process works in the target, or a filesystem is mounted there.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Mounted { .. } | Self::Process { .. } | Self::Busy { .. } | Self::Held(_))
    }

    /// Returns true if the reason may pass by itself, so that a later run tries again.
    pub(super) fn passes(&self) -> bool {
        self.is_running() || self.is_of_store()
    }
}

impl Error {
    /// Translates the error into the result for the target of `step` and for the run.
    ///
    /// A leak has no record from which one could see afterwards whether it was deleted: only the editor knows, under
    /// the locks. Most leaks can still be deleted without room for a new record file.
    #[must_use]
    pub fn answer(&self, step: &Step) -> Answer {
        let is_leak = step.target.kind == TargetKind::Leak;
        let failure = Failure::from(self);
        match self {
            Self::Interrupted => Answer::StopRun(failure),
            Self::Stopped { done, cause } => {
                done.log(&step.target.id);
                if cause.is_interrupted() {
                    Answer::failed(step, failure, Aftermath::Unseen)
                } else {
                    Answer::failed(step, &**cause, Aftermath::LeftOver)
                }
            }
            Self::Locked { .. } => Answer::StoreSkipped(failure),
            Self::NoSpace(_) if !is_leak => Answer::StoreSkipped(failure),
            Self::Refused(refusal) if refusal.is_of_store() => Answer::StoreSkipped(failure),
            Self::Refused(Refusal::Immutable(_)) | Self::Failed(_) | Self::NoSpace(_) => {
                Answer::failed(step, failure, Aftermath::Untouched)
            }
            Self::Refused(Refusal::Unknown { .. }) => Answer::AlreadyGone,
            Self::Refused(refusal) if refusal.is_in_use() && !is_leak => {
                Answer::kept(Rule::InUse, failure.message)
            }
            Self::Refused(_) => Answer::kept(Rule::NotProven, failure.message),
        }
    }
}

fn owner_name(owner: Owner) -> &'static str {
    match owner {
        Owner::CriO => "CRI-O",
        Owner::Podman => "podman",
        Owner::Buildah => "buildah",
        Owner::Containerd => "containerd",
        Owner::Docker => "Docker",
        Owner::Unknown => "an unknown owner",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_without_changes_is_not_halfway() {
        // Half-written record files of dead processes were removed.
        let done = Deleted { removed: 3, ..Deleted::default() };
        assert!(matches!(done.ended(Err(Error::Interrupted)).unwrap_err(), Error::Interrupted));
        // A layer was renamed, and no file of it is deleted yet.
        let done = Deleted { has_changed: true, ..Deleted::default() };
        let stopped = done.ended(Err(Error::Interrupted)).unwrap_err();
        assert!(matches!(stopped, Error::Stopped { .. }));
        assert_eq!(
            stopped.to_string(),
            "deletion stopped halfway: ended by a signal; the next run finishes it"
        );
    }
}
