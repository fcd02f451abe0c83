//! Checks, repairs and wipes of the store by CRI-O at its start.

use std::path::{Path, PathBuf};

use super::check::{Check, Status};
use super::node::Node;
use crate::services::crio::{self, StartAdvice};
use crate::stores::containers_storage::config::{CrioStart, crio_start};

/// Paths of CRI-O in packages and in the installations of clusters.
const CRIO: [&str; 3] = ["/usr/bin/crio", "/usr/local/bin/crio", "/opt/bin/crio"];

pub(super) fn start(node: &Node<'_>) -> Vec<Check> {
    let sysroot = &node.stores.sysroot;
    let runs = node.processes().is_some_and(|processes| processes.running(&["crio"]).is_some());
    let has_run = runs || crio::has_run(sysroot);
    // A configuration alone is not enough: it may be left over, or come with a package of podman.
    let start = match crio_start(sysroot) {
        Some(start) if has_run || node.is_foreign() || CRIO.iter().any(|path| Path::new(path).exists()) => {
            start
        }
        None if has_run => CrioStart::default(),
        _ => return Vec::new(),
    };
    let mut checks = Vec::new();
    if let Some(file) = crio::clean_shutdown_file(&start).filter(|_| !node.is_foreign()) {
        // In another PID namespace only an answer from the socket shows that CRI-O runs.
        let answers = node.runtime.sockets.iter().any(|socket| socket.status == Status::Ok);
        let is_down = node.processes().is_some() && !runs && !answers;
        if is_down && crio::was_unclean(sysroot, &file) {
            let message = "CRI-O's last stop was unclean (this file is missing): its next start checks the store, \
                and wipes it if the repair fails (as on a full disk)";
            checks.push(Check::error(&file, message, crio::before_start().map_or("", StartAdvice::text)));
        }
        if let Some(root) = crio::full_store(sysroot).filter(|_| runs) {
            let message = "CRI-O runs, and its disk is full: a stop counts as unclean, and the next start wipes \
                the store if it cannot repair it";
            let remedy = format!("do not restart CRI-O before space is freed: {}", crio::WHILE_IT_RUNS);
            checks.push(Check::error(node.shown(&root), message, remedy));
        }
    }
    checks.push(repair(&start));
    if matches!(start.wipe, Some((false, _))) {
        let message = "internal_wipe is off: containers and images from before a reboot or upgrade are kept";
        checks.push(Check::note(source(&start.wipe), message));
    }
    checks
}

fn repair(start: &CrioStart) -> Check {
    let setting = match (&start.repair, &start.clean_shutdown_file) {
        (Some((false, file)), _) => {
            return Check::ok(file, "internal_repair is off: a damaged store is left as it is");
        }
        (_, Some((named, file))) if named.as_os_str().is_empty() => {
            let message = "clean_shutdown_file is empty: CRI-O never checks its store after a shutdown";
            return Check::ok(file, message);
        }
        (Some(_), _) => "is on",
        (None, _) => "is on by default from CRI-O 1.31 on",
    };
    let message = format!(
        "internal_repair {setting}: after an unclean shutdown CRI-O checks its store, and if the repair fails (as on a \
         full disk) it wipes the store with all images; free space before CRI-O is started again (docs/recovery.md)"
    );
    Check::note(source(&start.repair), message)
}

fn source(set: &Option<(bool, PathBuf)>) -> &Path {
    set.as_ref().map_or(Path::new("CRI-O's default"), |(_, file)| file)
}
