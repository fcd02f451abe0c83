//! Advice before a start of CRI-O, because a start can wipe its store.
//!
//! In CRI-O 1.36 a start removes `clean_shutdown_file` and creates `<file>.supported` beside it
//! (`cmd/crio/main.go`). The end of a stop creates the file again, which fails on a full disk (`Server.Shutdown` in
//! `server/server.go`). A start that finds only `<file>.supported` (`ShutdownWasUnclean` in
//! `internal/lib/container_server.go`) checks the store if `internal_repair` is on, repairs the damage that it
//! finds, and wipes the whole store if the repair fails (`New` in the same file). After a reboot `crio wipe` wipes
//! it without a check (`internal/criocli/wipe.go`).

use std::path::{Path, PathBuf};

use crate::cri::CriProblem;
use crate::disk::filesystem;
use crate::model::space::lacks_inodes;
use crate::stores::Environment;
use crate::stores::RunningPrograms;
use crate::stores::containers_storage::config::{self, CrioStart};
use crate::sys::sysroot::Sysroot;

/// Directories that CRI-O creates when it runs. Its configuration proves less: a package of podman may install it.
const STATE: [&str; 2] = ["/var/lib/crio", "/run/crio"];

/// `CrioCleanShutdownFile` in `pkg/config/config_unix.go`.
const CLEAN_SHUTDOWN: &str = "/var/lib/crio/clean.shutdown";

/// Minimum number of available bytes for a repair. It rewrites several record files as a whole, and may fail with
/// less.
const LEAST_ROOM: u64 = 32 << 20;

const BEFORE_START: &str = "free space with `layersweep gc --via direct -y` before CRI-O is started: after an \
    unclean stop, as every stop on a full disk is, it wipes its store if it cannot repair it";

const START: &str = "start CRI-O while there is room, as now: after its unclean stop it checks its store, and wipes it \
    if it cannot repair it";

/// Way to free space where CRI-O runs but cannot delete.
pub(crate) const WHILE_IT_RUNS: &str = "run `layersweep gc --via direct --while-runtime-runs -y`, which edits the \
    store itself, under its locks; create no pods meanwhile";

pub(crate) fn has_run(sysroot: &Sysroot) -> bool {
    STATE.iter().any(|path| sysroot.resolve(Path::new(path)).is_ok())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartAdvice {
    /// Space has to be freed first, directly in the store.
    FreeSpaceFirst,
    StartNow,
}

impl StartAdvice {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::FreeSpaceFirst => BEFORE_START,
            Self::StartNow => START,
        }
    }
}

/// Returns advice for a start of CRI-O on this node; `None` if a start is harmless or CRI-O is not installed.
pub(crate) fn before_start() -> Option<StartAdvice> {
    let sysroot = Sysroot::live();
    let has_run = has_run(&sysroot);
    let start = config::crio_start(&sysroot).or_else(|| has_run.then(CrioStart::default))?;
    let was_unclean = was_unclean(&sysroot, &clean_shutdown_file(&start)?);
    match full_store(&sysroot) {
        Some(_) if has_run || was_unclean => Some(StartAdvice::FreeSpaceFirst),
        None if was_unclean => Some(StartAdvice::StartNow),
        _ => None,
    }
}

/// Returns the advice of [`before_start`] if starting the runtime would solve `problem`.
pub(crate) fn before_start_for(problem: &CriProblem) -> Option<StartAdvice> {
    let is_down = matches!(problem, CriProblem::NotRunning(_) | CriProblem::NotListening);
    is_down.then(before_start).flatten()
}

/// Returns the file whose absence makes a start check the store; `None` if CRI-O is configured not to check.
pub(crate) fn clean_shutdown_file(start: &CrioStart) -> Option<PathBuf> {
    let file = start.clean_shutdown_file.as_ref().map_or(Path::new(CLEAN_SHUTDOWN), |(file, _)| file);
    let checks = !file.as_os_str().is_empty() && !matches!(start.repair, Some((false, _)));
    checks.then(|| file.to_path_buf())
}

/// Returns true if the last stop of CRI-O was unclean. Only meaningful while CRI-O does not run.
pub(crate) fn was_unclean(sysroot: &Sysroot, file: &Path) -> bool {
    let mut supported = file.as_os_str().to_owned();
    supported.push(".supported");
    sysroot.resolve(Path::new(&supported)).is_ok()
        && sysroot.resolve(file).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Returns a store of this node whose filesystem has no room for a repair.
pub(crate) fn full_store(sysroot: &Sysroot) -> Option<PathBuf> {
    let stores =
        config::discover(sysroot, &Environment::of_process(sysroot), &RunningPrograms::default()).stores;
    let roots = stores.into_iter().flat_map(|store| [Some(store.graphroot), store.imagestore]);
    roots.flatten().find(|root| is_full(root))
}

fn is_full(root: &Path) -> bool {
    filesystem::facts(root)
        .is_ok_and(|disk| disk.available_bytes < LEAST_ROOM || lacks_inodes(disk.inodes, disk.inodes_free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_without_its_file_is_unclean() {
        let dir = tempfile::tempdir().unwrap();
        let sysroot = Sysroot::at(dir.path());
        let file = clean_shutdown_file(&CrioStart::default()).unwrap();
        let state = dir.path().join("var/lib/crio");
        assert!(!has_run(&sysroot));
        std::fs::create_dir_all(&state).unwrap();
        assert!(has_run(&sysroot) && !was_unclean(&sysroot, &file), "a release without such a file");
        std::fs::write(state.join("clean.shutdown.supported"), "").unwrap();
        assert!(was_unclean(&sysroot, &file));
        std::fs::write(state.join("clean.shutdown"), "").unwrap();
        assert!(!was_unclean(&sysroot, &file));
    }

    #[test]
    fn clean_shutdown_file_is_that_of_the_configuration() {
        let origin = PathBuf::from("/etc/crio/crio.conf");
        let start_with = |file: &str| CrioStart {
            clean_shutdown_file: Some((file.into(), origin.clone())),
            ..CrioStart::default()
        };
        for (start, expected) in [
            (CrioStart::default(), Some(CLEAN_SHUTDOWN)),
            (start_with("/x"), Some("/x")),
            (start_with(""), None),
            (
                CrioStart { repair: Some((true, origin.clone())), ..CrioStart::default() },
                Some(CLEAN_SHUTDOWN),
            ),
            (CrioStart { repair: Some((false, origin.clone())), ..CrioStart::default() }, None),
        ] {
            assert_eq!(clean_shutdown_file(&start).as_deref(), expected.map(Path::new), "{start:?}");
        }
    }
}
