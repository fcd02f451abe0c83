//! What CRI-O does to its store when it starts, and what has to come before that.
//!
//! By CRI-O 1.36: a start removes `clean_shutdown_file` and makes `<file>.supported` beside it
//! (`cmd/crio/main.go`); the end of a stop creates the file, which fails on a full disk (`Server.Shutdown` in
//! `server/server.go`). A start that finds `<file>.supported` alone (`ShutdownWasUnclean` in
//! `internal/lib/container_server.go`) checks the store, where `internal_repair` is on, repairs what it finds,
//! and wipes the whole store if that fails (`New`, there). After a reboot `crio wipe` does so without a check
//! (`internal/criocli/wipe.go`).

use std::path::{Path, PathBuf};

use crate::cri::CriProblem;
use crate::disk::filesystem;
use crate::model::space::lacks_inodes;
use crate::stores::RunningPrograms;
use crate::stores::containers_storage::config::{self, CrioStart, Environment};
use crate::sys::sysroot::Sysroot;

/// What CRI-O makes when it runs; its configuration may come with a package of podman.
const STATE: [&str; 2] = ["/var/lib/crio", "/run/crio"];

/// `CrioCleanShutdownFile` in `pkg/config/config_unix.go`.
const CLEAN_SHUTDOWN: &str = "/var/lib/crio/clean.shutdown";

/// Record files are written anew as a whole, and a repair writes several: where less is available, it may fail.
const LEAST_ROOM: u64 = 32 << 20;

/// For whoever is about to start CRI-O.
const BEFORE_START: &str = "free space with `layersweep gc --via direct -y` before CRI-O is started: after an \
    unclean stop, as every stop on a full disk is, it wipes its store if it cannot repair it";

/// The same, once there is room.
const START: &str = "start CRI-O while there is room, as now: after its unclean stop it checks its store, and wipes it \
    if it cannot repair it";

/// What frees space where CRI-O runs and cannot.
pub(super) const WHILE_IT_RUNS: &str = "run `layersweep gc --via direct --while-runtime-runs -y`, which edits the \
    store itself, under its locks; create no pods meanwhile";

/// Whether CRI-O has run here.
pub(super) fn has_run(sysroot: &Sysroot) -> bool {
    STATE.iter().any(|path| sysroot.resolve(Path::new(path)).is_ok())
}

/// What a start of CRI-O on this node takes; `None` where it takes nothing, or CRI-O is not here.
pub(super) fn before_start() -> Option<&'static str> {
    let sysroot = Sysroot::live();
    let has_run = has_run(&sysroot);
    let start = config::crio_start(&sysroot).or_else(|| has_run.then(CrioStart::default))?;
    let was_unclean = was_unclean(&sysroot, &clean_shutdown_file(&start)?);
    match full_store(&sysroot) {
        Some(_) if has_run || was_unclean => Some(BEFORE_START),
        None if was_unclean => Some(START),
        _ => None,
    }
}

/// The same, where starting the runtime is what helps.
pub(super) fn before_start_for(problem: &CriProblem) -> Option<&'static str> {
    let is_down = matches!(problem, CriProblem::NotRunning(_) | CriProblem::NotListening);
    is_down.then(before_start).flatten()
}

/// The file whose absence makes a start check the store; `None` where no start does that.
pub(super) fn clean_shutdown_file(start: &CrioStart) -> Option<PathBuf> {
    let file = start.clean_shutdown_file.as_ref().map_or(Path::new(CLEAN_SHUTDOWN), |(file, _)| file);
    let checks = !file.as_os_str().is_empty() && !matches!(start.repair, Some((false, _)));
    checks.then(|| file.to_path_buf())
}

/// Whether CRI-O's last stop was unclean, where it does not run.
pub(super) fn was_unclean(sysroot: &Sysroot, file: &Path) -> bool {
    let mut supported = file.as_os_str().to_owned();
    supported.push(".supported");
    let is_missing =
        |path: &Path| sysroot.resolve(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    sysroot.resolve(Path::new(&supported)).is_ok() && is_missing(file)
}

/// A store of this node whose filesystem has no room for a repair.
pub(super) fn full_store(sysroot: &Sysroot) -> Option<PathBuf> {
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
    fn a_stop_is_unclean_where_its_file_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let sysroot = Sysroot::at(dir.path());
        let file = clean_shutdown_file(&CrioStart::default()).unwrap();
        let make = |name: &str| std::fs::write(dir.path().join("var/lib/crio").join(name), "").unwrap();
        assert!(!has_run(&sysroot));
        std::fs::create_dir_all(dir.path().join("var/lib/crio")).unwrap();
        assert!(has_run(&sysroot) && !was_unclean(&sysroot, &file), "a release without such a file");
        make("clean.shutdown.supported");
        assert!(was_unclean(&sysroot, &file));
        make("clean.shutdown");
        assert!(!was_unclean(&sysroot, &file));
    }

    #[test]
    fn a_start_without_a_check_is_no_danger() {
        let origin = PathBuf::from("/etc/crio/crio.conf");
        let at = |file: &str| Some((file.into(), origin.clone()));
        for (start, expected) in [
            (CrioStart::default(), Some(CLEAN_SHUTDOWN)),
            (CrioStart { clean_shutdown_file: at("/x"), ..CrioStart::default() }, Some("/x")),
            (CrioStart { clean_shutdown_file: at(""), ..CrioStart::default() }, None),
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
