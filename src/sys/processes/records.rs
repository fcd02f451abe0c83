//! Questions about processes, and the records that answer them.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::patience::Unanswered;
use super::super::root::{DirectoryChain, Who};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessFacts {
    /// Mounts that concern the directories of `ways`.
    pub(crate) mounts: bool,
    /// Only users who can reach one of these directories matter; `None`: all users do.
    pub(crate) ways: Option<Vec<DirectoryChain>>,
    pub(crate) files: bool,
    /// Deleted files that are open, with their sizes.
    pub(crate) deleted: bool,
    pub(crate) arguments: bool,
    /// Only the arguments of containerds, and of programs that start one.
    pub(crate) containerds: bool,
    pub(crate) patience: ReadPatience,
}

impl ProcessFacts {
    /// Returns true if `who` may reach the directories. Root always may.
    pub(in crate::sys) fn concerns(&self, who: &Who) -> bool {
        who.is_privileged || self.ways.as_ref().is_none_or(|ways| ways.iter().any(|way| way.admits(who)))
    }
}

/// Limits for processes that do not answer, or slowly. What one question uses is missing for the next: other users
/// cannot use up the time for root's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadPatience {
    /// Processes that did not answer before, and are not asked.
    pub(crate) silent: Vec<u32>,
    /// Time to wait for silent processes of root's.
    pub(crate) for_root: Duration,
    /// Time to wait for silent processes of other users.
    pub(crate) for_users: Duration,
    /// The processes of other users took too long, although they answered.
    pub(crate) is_cut: bool,
    /// Time for the mount tables of other users.
    pub(crate) for_tables: Duration,
}

impl Default for ReadPatience {
    fn default() -> Self {
        let (for_root, for_tables) = (Duration::from_secs(1), Duration::from_millis(1500));
        Self { silent: Vec::new(), for_root, for_users: for_root, is_cut: false, for_tables }
    }
}

/// Record of a fact. Its body, if any, is described in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcRecord {
    /// First record: whether `/proc` contains every process of the machine.
    Begin {
        sees_all: bool,
    },
    /// A process. `hidden`: the reason why its open files are unknown.
    Process {
        id: u32,
        name: String,
        group: String,
        who: Who,
        hidden: Option<Hiding>,
    },
    /// The mounts that some processes see (a mount table). The first one is that of this process.
    View {
        pid: u32,
    },
    /// The same of a user who cannot reach the directories in question.
    ViewOfStranger {
        pid: u32,
    },
    /// The mounts of a process cannot be read.
    Unknown {
        pid: u32,
        name: String,
        why: String,
        is_refused: bool,
    },
    /// Some processes did not answer, or too slowly: the patience that is left.
    Patience(ReadPatience),
    Mounts,
    /// Open files of a process (paths, each followed by a NUL).
    Files {
        id: u32,
        is_complete: bool,
    },
    /// A deleted file (its former name).
    Deleted {
        id: u32,
        name: String,
        device: u64,
        bytes: u64,
        backing: Option<Backing>,
    },
    /// The arguments of a kubelet or containerd (as in `/proc/PID/cmdline`).
    Arguments {
        id: u32,
    },
    /// Last record, if none is missing.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hiding {
    /// The kernel does not show them to this process.
    Refused(String),
    Unanswered(Unanswered),
    TooMany,
}

impl std::fmt::Display for Hiding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Unanswered(why) => why.fmt(f),
            Self::TooMany => f.write_str("there are too many"),
        }
    }
}

/// Filesystem of a file, if its device number does not identify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Upper directory of an overlay, as it was mounted: the path may be relative.
    Upper(OsString),
    /// Source of its mount: `/dev/vda4`.
    Source(String),
}
