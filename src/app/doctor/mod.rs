//! `doctor`: checks the node, and changes nothing.

mod containers;
mod examination;
mod fullness;
mod kubelet;
mod runtime;
mod state;
mod thresholds;
mod timers;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::crio;
use super::error::Error;
use super::protect;
use super::request::Request;
use crate::config::{Config, ConfigProblem};
use crate::disk::Progress;
use crate::model::Consistency;
use crate::model::display::shell_word;
use crate::node::kubelet::Kubelet;
use crate::node::static_pods;
use crate::stores::containers_storage::config::{CrioStart, crio_start};
use crate::stores::{self, Measure, Scan};
use crate::sys::processes::Processes;

use examination::{AS_ROOT, Examination};
pub use examination::{Check, Status};

/// Of the findings in the stores' records so many are shown; `scan` has them all.
const MOST_FINDINGS: usize = 5;

/// Where packages and the cluster's own installations put CRI-O.
const CRIO: [&str; 3] = ["/usr/bin/crio", "/usr/local/bin/crio", "/opt/bin/crio"];

/// What an examination found.
#[derive(Debug)]
pub struct Findings {
    /// In the order in which things were looked at.
    pub checks: Vec<Check>,
    /// Everything could be read.
    pub complete: bool,
}

/// Examines the node. `problems`: what is wrong with the configuration.
///
/// # Errors
/// When the request itself cannot be used.
pub fn doctor(request: &Request, config: &Config, problems: &[ConfigProblem]) -> Result<Findings, Error> {
    let stores = stores::ScanRequest { measure: Measure::RecordsAndMounts, ..request.stores()? };
    let mut examination = Examination { request, config, stores: &stores, checks: Vec::new(), unread: false };
    examination.run(problems);
    Ok(Findings { checks: examination.checks, complete: !examination.unread })
}

impl Examination<'_> {
    fn run(&mut self, problems: &[ConfigProblem]) {
        self.configuration(problems);
        let processes = self.processes();
        let scan = self.stores();
        let kubelet = match &processes {
            Some(processes) => Kubelet::read_running(&self.stores.sysroot, processes),
            None => Kubelet::read(&self.stores.sysroot),
        };
        let own = self.runtime(&kubelet, scan.as_ref());
        self.kubelet(&kubelet, processes.as_ref(), scan.as_ref(), own);
        if let Some(scan) = &scan {
            self.fullness(scan);
        }
        self.crio(processes.as_ref());
        self.static_pods();
        self.state(scan.as_ref());
        self.timers();
    }

    fn configuration(&mut self, problems: &[ConfigProblem]) {
        const NAME: &str = "configuration";
        for problem in problems {
            let message = match problem.field.is_empty() {
                true => problem.message.clone(),
                false => format!("{}: {}", problem.field, problem.message),
            };
            let remedy = match problem.remedy.is_empty() {
                true => "correct it: until then every other command refuses to run".to_owned(),
                false => problem.remedy.clone(),
            };
            self.error(NAME, problem.origin.to_string(), message, remedy);
        }
        if problems.is_empty() {
            let files: Vec<_> = self.config.files.iter().map(|file| file.display().to_string()).collect();
            let message = match files.is_empty() {
                true => "no file: the built-in defaults apply".to_owned(),
                false => format!("read from {}", files.join(", ")),
            };
            self.ok(NAME, "", message);
        }
        for file in &self.config.files {
            self.config_mode(NAME, file);
        }
    }

    /// Whoever may write to a file of ours decides what root deletes.
    fn config_mode(&mut self, name: &'static str, file: &Path) {
        let facts = self.stores.sysroot.resolve(file).and_then(std::fs::metadata);
        let Ok(facts) = facts else { return };
        let (owner, mode) = (facts.uid(), facts.mode());
        let why = match (owner == 0 || owner == rustix::process::geteuid().as_raw(), mode & 0o022 == 0) {
            (true, true) => return,
            (false, _) => format!("it belongs to user {owner}, who thereby decides what is deleted"),
            (true, false) => {
                format!(
                    "others may write to it (mode {:o}), and thereby decide what is deleted",
                    mode & 0o7777
                )
            }
        };
        let object = file.display().to_string();
        let word = shell_word(&object);
        self.warning(name, object.clone(), why, format!("chown root:root {word} && chmod 0644 {word}"));
    }

    /// What runs, and what we may see.
    fn processes(&mut self) -> Option<Processes> {
        const NAME: &str = "permissions";
        if self.is_foreign() {
            return None;
        }
        let may_read = reads_everything();
        match may_read {
            Ok(true) => self.ok(NAME, "", "every file can be read"),
            Ok(false) => self.warning(
                NAME,
                "",
                "files of other users cannot be read: root's stores and most of the node's settings are \
                    not accessible",
                AS_ROOT,
            ),
            Err(error) => self.unread(NAME, "/proc/self/status", &error),
        }
        match Processes::read_with_kubelet() {
            Ok(processes) => {
                if !processes.sees_all() {
                    self.note(
                        NAME,
                        "/proc",
                        "not all processes are visible (another namespace, or hidepid): what one of them \
                            may hold open is not counted as a leak",
                    );
                }
                Some(processes)
            }
            Err(error) => {
                self.unread(NAME, "/proc", &error);
                None
            }
        }
    }

    fn stores(&mut self) -> Option<Scan> {
        const NAME: &str = "store";
        let scan = match stores::run(self.stores, &Progress::default()) {
            Ok(scan) => scan,
            Err(stores::Error::Unreadable { path, source }) => {
                self.unread(NAME, path.display().to_string(), &source);
                return None;
            }
            Err(error) => {
                let (object, remedy) = match &error {
                    stores::Error::NotAStore { path, hint, .. } => (path.display().to_string(), *hint),
                    _ => (String::new(), "name a store with --graphroot DIR or --containerd-root DIR"),
                };
                self.error(NAME, object, error.to_string(), remedy);
                return None;
            }
        };
        let inventory = &scan.inventory;
        for (at, store) in inventory.stores.iter().enumerate() {
            let images = inventory.images.iter().filter(|image| image.store.get() == at).count();
            let read_only = if store.read_only { ", read-only" } else { "" };
            let what = format!(
                "{}, {}{read_only}, {images} images, named by {}",
                store.kind, store.driver, store.origin
            );
            let object = self.shown(&store.root);
            match store.consistency {
                Consistency::Consistent => self.ok(NAME, object, what),
                Consistency::WriterActive => {
                    self.note(NAME, object, format!("{what}; other programs kept writing to it"));
                }
                Consistency::Damaged => self.error(
                    NAME,
                    object,
                    format!("{what}; a record file cannot be read in full: nothing is deleted from it"),
                    "see `layersweep scan` and docs/recovery.md",
                ),
            }
        }
        let findings = &inventory.findings;
        for finding in findings.iter().take(MOST_FINDINGS) {
            self.unread |= finding.incomplete;
            let object = self.shown(&finding.path);
            self.warning(
                "store-finding",
                object,
                finding.message.clone(),
                "fix it, or run as a user who may read it",
            );
        }
        if let Some(more @ 1..) = findings.len().checked_sub(MOST_FINDINGS) {
            self.unread |= findings.iter().any(|finding| finding.incomplete);
            self.warning("store-finding", "", format!("and {more} more"), "see `layersweep scan`");
        }
        Some(scan)
    }

    /// What CRI-O does to its store when it starts.
    fn crio(&mut self, processes: Option<&Processes>) {
        const NAME: &str = "crio-start";
        let sysroot = &self.stores.sysroot;
        // Its configuration may be left over, or come with a package of podman.
        let is_installed = || CRIO.iter().any(|path| Path::new(path).exists());
        let runs = processes.is_some_and(|processes| processes.running(&["crio"]).is_some());
        let has_run = runs || crio::has_run(sysroot);
        let start = match crio_start(sysroot) {
            Some(start) if has_run || self.is_foreign() || is_installed() => start,
            None if has_run => CrioStart::default(),
            _ => return,
        };
        if let Some(file) = crio::clean_shutdown_file(&start).filter(|_| !self.is_foreign()) {
            // In a namespace of processes the socket alone shows that it runs.
            let answers = self.checks.iter().any(|one| one.name == "socket" && one.status == Status::Ok);
            let is_down = processes.is_some() && !runs && !answers;
            if is_down && crio::was_unclean(sysroot, &file) {
                let message = "CRI-O's last stop was unclean (this file is missing): its next start checks the \
                     store, and wipes it if the repair fails (as on a full disk)";
                self.error(
                    NAME,
                    file.display().to_string(),
                    message,
                    crio::before_start().unwrap_or_default(),
                );
            }
            if let Some(root) = crio::full_store(sysroot).filter(|_| runs) {
                let message = "CRI-O runs, and its disk is full: a stop counts as unclean, and the next start \
                     wipes the store if it cannot repair it";
                self.error(
                    NAME,
                    self.shown(&root),
                    message,
                    format!("do not restart CRI-O before space is freed: {}", crio::WHILE_IT_RUNS),
                );
            }
        }
        let source = |set: &Option<(bool, PathBuf)>| {
            set.as_ref().map_or_else(|| "CRI-O's default".to_owned(), |(_, file)| file.display().to_string())
        };
        let set = |set: &Option<(bool, PathBuf)>| set.as_ref().map(|(value, _)| *value);
        match (set(&start.repair), &start.clean_shutdown_file) {
            (Some(false), _) => {
                let message = "internal_repair is off: a damaged store is left as it is";
                self.ok(NAME, source(&start.repair), message);
            }
            (_, Some((named, file))) if named.as_os_str().is_empty() => {
                let message = "clean_shutdown_file is empty: CRI-O never checks its store after a shutdown";
                self.ok(NAME, file.display().to_string(), message);
            }
            (repair, _) => {
                let how = match repair {
                    Some(_) => "is on",
                    None => "is on by default from CRI-O 1.31 on",
                };
                self.note(
                    NAME,
                    source(&start.repair),
                    format!(
                        "internal_repair {how}: after an unclean shutdown CRI-O checks its store, and if \
                            the repair fails (as on a full disk) it wipes the store with all images; free \
                            space before CRI-O is started again (docs/recovery.md)"
                    ),
                );
            }
        }
        if set(&start.wipe) == Some(false) {
            let message = "internal_wipe is off: containers and images from before a reboot or upgrade stay";
            self.note(NAME, source(&start.wipe), message);
        }
    }

    fn static_pods(&mut self) {
        const NAME: &str = "static-pods";
        let Some(place) = self.config.static_pods.as_deref() else {
            let message = "protect.static_pods is off: images of static pods are not protected";
            self.note(NAME, "", message);
            return;
        };
        let sysroot = &self.stores.sysroot;
        match static_pods::read(sysroot, &protect::kubelet_settings(self.stores), place) {
            Ok(found) => {
                for finding in &found.findings {
                    let object = finding.path.display().to_string();
                    self.warning(NAME, object, finding.message.clone(), "fix the manifest");
                }
                let message = format!("{} images are named by static pods and protected", found.images.len());
                self.ok(NAME, place.display().to_string(), message);
            }
            Err(unreadable) => {
                self.unread = true;
                let object = unreadable.path.display().to_string();
                let message = format!(
                    "it cannot be read ({}): images of static pods are unknown, and gc refuses to delete \
                        any image",
                    unreadable.source
                );
                let remedy = match unreadable.source.kind() {
                    std::io::ErrorKind::PermissionDenied => AS_ROOT.to_owned(),
                    _ => "fix it, or set protect.static_pods = \"off\" if static pods protect nothing"
                        .to_owned(),
                };
                self.warning(NAME, object, message, remedy);
            }
        }
    }
}

/// Whether permissions of files do not stop us: `CAP_DAC_OVERRIDE` or `CAP_DAC_READ_SEARCH`.
fn reads_everything() -> std::io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(may_read(&status))
}

/// Bits of `capabilities(7)` in the effective set of `proc_pid_status(5)`.
fn may_read(status: &str) -> bool {
    const OVERRIDE_OR_SEARCH: u64 = 1 << 1 | 1 << 2;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .is_some_and(|set| set & OVERRIDE_OR_SEARCH != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_that_read_everything() {
        for (status, expected) in [
            ("Name:\tx\nCapInh:\t0000000000000004\nCapEff:\t0000000000000000\n", false),
            ("CapEff:\t0000000000000004\n", true),
            ("CapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000000008\n", false),
            ("", false),
        ] {
            assert_eq!(may_read(status), expected, "{status}");
        }
    }
}
