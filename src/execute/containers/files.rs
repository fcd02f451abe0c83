//! Pod logs and links to them: selection, proof and removal.
//!
//! Logs are removed through directory descriptors, and only below the kubelet's two log directories.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::execute::containers::look::{CriListing, CriSource};
use crate::model::plan::{Cause, Kept, Phase, Step, Target, TargetKind};
use crate::model::rules::{Rule, Ruling};
use crate::model::{Answer, Plan};
use crate::node::logs as node_logs;
use crate::node::logs::Link;
use crate::policy::containers::logs::{self, LinkTarget, LogDirectoryState};
use crate::sys::beneath::{self, Opener};
use crate::sys::{namespaces::Mounts, removal};

impl CriSource<'_> {
    /// The logs stage: directories of deleted pods, then dangling links.
    pub(super) fn plan_logs(&self, seen: &CriListing, without: &BTreeSet<&str>, plan: &mut Plan) {
        let directories = match &seen.log_directories {
            Ok(directories) => directories,
            // Like the kubelet: if the directories cannot be listed, no link is checked.
            Err(why) => return plan.fail(Phase::List, why.clone()),
        };
        let mut gone = Vec::new();
        for directory in directories {
            let ruling = self.directory_stays(seen, without, directory);
            if ruling.is_none() {
                gone.push(directory.path.clone());
                gone.push(self.collection.places.pod_logs.join(&directory.name));
            }
            decide(plan, &directory.path, Cause::PodGone, directory.size.bytes, ruling);
        }
        let links = match node_logs::links(&self.collection.request.sysroot, self.collection.places) {
            Ok(links) => links,
            Err(error) => return plan.fail(Phase::List, error.to_string()),
        };
        for link in links {
            // In a dry run the directories and files that would be removed before count as removed.
            let dangling = link.dangling
                || gone.iter().any(|path| link.target.starts_with(path))
                || without_path(&link, without);
            let ruling = self.link_stays(seen, without, &Link { dangling, ..link.clone() });
            // Links of running containers are never candidates.
            if ruling.as_ref().is_none_or(|ruling| ruling.rule != Rule::LinkTargetExists) {
                decide(plan, &link.path, Cause::Dangling, node_logs::measure(&link.path).bytes, ruling);
            }
        }
    }

    fn directory_stays(
        &self,
        seen: &CriListing,
        without: &BTreeSet<&str>,
        directory: &node_logs::LogDirectory,
    ) -> Option<Ruling> {
        let name = directory.name.to_str().unwrap_or_default();
        let pod = logs::uid_in_directory(name);
        let open = reader(seen, &directory.path);
        let facts = LogDirectoryState {
            pod,
            occupied: pod.is_some_and(|uid| seen.has_pod(uid, without)),
            newest: directory.size.newest,
            open: open.as_ref().map(Option::as_deref).map_err(String::as_str),
        };
        let now = jiff::Timestamp::now();
        logs::exact_directory(&facts, &seen.listing.pods, self.collection.policy.min_age, now)
    }

    fn link_stays(&self, seen: &CriListing, without: &BTreeSet<&str>, link: &Link) -> Option<Ruling> {
        let id = link.name.to_str().and_then(logs::id_in_link);
        let named = match id {
            None => LinkTarget::NoId,
            Some(id) if without.contains(id) => LinkTarget::Unknown,
            Some(id) => match seen.listing.containers.iter().find(|container| container.id == id) {
                Some(container) => LinkTarget::State(container.state),
                // CRI-O does not list containers that are being created.
                None if link.dangling => match self.collection.client.container(id) {
                    Ok(None) => LinkTarget::Unknown,
                    Ok(Some(details)) => LinkTarget::State(details.state),
                    Err(_) => LinkTarget::Failed,
                },
                None => LinkTarget::Unknown,
            },
        };
        logs::exact_link(link.dangling, self.collection.places.is_pod_log(&link.target), named)
    }

    /// Adds the logs of the deleted containers, each after its container.
    pub(super) fn add_logs(&self, seen: &CriListing, plan: &mut Plan) {
        let containers = std::mem::take(&mut plan.steps);
        for container in containers {
            let id = container.target.id.clone();
            let whole_pod = container.cause == Cause::PodGone;
            plan.steps.push(container);
            // The logs of a deleted pod are deleted with their directory.
            let Some(log) = seen.log_paths.get(&id).map(PathBuf::from).filter(|_| !whole_pod) else {
                continue;
            };
            for path in self.files_of(&log) {
                let ruling = is_read(seen, &path);
                decide(plan, &path, Cause::WithContainer, node_logs::measure(&path).bytes, ruling);
            }
        }
    }

    /// A container's log and its rotated logs: `0.log`, `0.log.20261121-101112`, `0.log.20261121-101112.gz`.
    fn files_of(&self, log: &Path) -> Vec<PathBuf> {
        let places = self.collection.places;
        let inside = places.is_pod_log(log) && log.components().all(|part| part.as_os_str() != "..");
        let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(OsStr::to_str)) else {
            return Vec::new();
        };
        let directory_name = directory.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        if !inside || !name.ends_with(".log") || directory_name.and_then(logs::uid_in_directory).is_none() {
            return Vec::new();
        }
        let Ok(entries) = self.collection.request.sysroot.list(directory) else { return Vec::new() };
        let rotated = format!("{name}.");
        let names = entries.into_iter().filter_map(|entry| entry.name.into_string().ok());
        let names = names.filter(|entry| entry == name || entry.starts_with(&rotated));
        names.map(|entry| directory.join(entry)).collect()
    }

    /// Proves again that a log or a link may be deleted.
    pub(super) fn prove_log(&mut self, step: &Step) -> Result<(), Answer> {
        let path = PathBuf::from(&step.target.id);
        if std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Err(Answer::AlreadyGone);
        }
        let seen = self.recent()?;
        let without = BTreeSet::new();
        let ruling = match step.cause {
            Cause::WithContainer => match seen.log_paths.iter().find(|(_, log)| belongs(&path, log)) {
                Some((id, _)) => {
                    Some(Ruling::keeps(Rule::ContainerExists, format!("its container {id} still exists")))
                }
                None => is_read(&seen, &path),
            },
            Cause::Dangling => {
                let links = node_logs::links(&self.collection.request.sysroot, self.collection.places);
                match links.map(|links| links.into_iter().find(|link| link.path == path)) {
                    Ok(Some(link)) => self.link_stays(&seen, &without, &link),
                    Ok(None) => return Err(Answer::AlreadyGone),
                    Err(error) => Some(Ruling::keeps(Rule::Unreadable, error.to_string())),
                }
            }
            _ => {
                let mut directories = seen.log_directories.as_deref().unwrap_or_default().iter();
                match directories.find(|directory| directory.path == path) {
                    Some(directory) => self.directory_stays(&seen, &without, directory),
                    None => Some(Ruling::keeps(Rule::Unreadable, "no longer listed")),
                }
            }
        };
        let ruling = ruling.or_else(|| mounted(&path).map(|why| Ruling::keeps(Rule::Mounted, why)));
        ruling.map_or(Ok(()), |ruling| Err(Answer::Kept(ruling)))
    }

    /// Removes a directory, a file or a link.
    pub(super) fn remove_log(&self, step: &Step) -> Result<(), String> {
        let path = PathBuf::from(&step.target.id);
        let base = match step.cause {
            Cause::Dangling => &self.collection.places.container_logs,
            _ => &self.collection.places.pod_logs,
        };
        let (root, base) = self.opened(base)?;
        // The path of a container's log is as the runtime wrote it, and may contain symlinks; other paths contain none.
        let inside =
            path.strip_prefix(&base).or_else(|_| path.strip_prefix(&self.collection.places.pod_logs));
        let inside = inside.map_err(|_| format!("{} is not below {}", path.display(), base.display()))?;
        let (Some(parent), Some(name)) = (inside.parent(), inside.file_name()) else {
            return Err(format!("{} is the base directory itself", path.display()));
        };
        let opener = Opener::detect(root.as_fd());
        let directory = opener
            .beneath(root.as_fd(), parent, beneath::DIRECTORY, false)
            .map_err(|error| format!("{}: {error}", base.join(parent).display()))?;
        if step.cause == Cause::Dangling && !node_logs::is_dangling(&path) {
            return Err("its target exists now".into());
        }
        let done = removal::remove(directory.as_fd(), &base.join(parent), name);
        match done.failures.first() {
            None if done.interrupted => Err("ended by a signal".into()),
            None => Ok(()),
            Some(failure) => Err(failure.to_string()),
        }
    }

    fn opened(&self, base: &Path) -> Result<(OwnedFd, PathBuf), String> {
        let base = self
            .collection
            .request
            .sysroot
            .resolve(base)
            .map_err(|error| format!("{}: {error}", base.display()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(&base, flags, Mode::empty());
        root.map(|root| (root, base.clone())).map_err(|error| format!("{}: {error}", base.display()))
    }
}

fn without_path(link: &Link, without: &BTreeSet<&str>) -> bool {
    link.target.to_str().is_some_and(|target| without.contains(target))
}

fn decide(plan: &mut Plan, path: &Path, cause: Cause, bytes: u64, ruling: Option<Ruling>) {
    let id = path.display().to_string();
    let names = vec![path.file_name().unwrap_or_default().to_string_lossy().into_owned()];
    let target = Target { kind: TargetKind::Log, store: None, id, names, leak: None };
    // A name that is not UTF-8 can neither be reported nor found again by its text.
    let ruling = ruling.or_else(|| match path.to_str() {
        Some(_) => None,
        None => Some(Ruling::keeps(Rule::NotAPod, "its name is not valid UTF-8")),
    });
    match ruling {
        Some(ruling) => plan.kept.push(Kept::new(target, ruling)),
        None => plan.steps.push(Step { log_bytes: bytes, ..Step::new(target, cause) }),
    }
}

fn reader(seen: &CriListing, path: &Path) -> Result<Option<String>, String> {
    node_logs::reader(seen.processes.as_ref().map_err(String::clone)?, path)
}

/// The ruling that keeps a file that a process has open, or may have open.
fn is_read(seen: &CriListing, path: &Path) -> Option<Ruling> {
    logs::open(reader(seen, path).as_ref().map(Option::as_deref).map_err(String::as_str))
}

/// Returns true if `path` is the log `log` of a container, or rotated from it.
fn belongs(path: &Path, log: &str) -> bool {
    fn name(path: &Path) -> Option<String> {
        path.file_name().map(|name| name.to_string_lossy().into_owned())
    }
    // Only the last two directories are compared: above them one of the paths may contain a symlink.
    fn parents(path: &Path) -> PathBuf {
        path.components().rev().skip(1).take(2).collect()
    }
    let log = Path::new(log);
    let (Some(file), Some(current)) = (name(path), name(log)) else { return false };
    parents(path) == parents(log) && (file == current || file.starts_with(&format!("{current}.")))
}

/// Reason for which a mount, in any namespace, forbids the removal.
fn mounted(path: &Path) -> Option<String> {
    let area = path.parent().unwrap_or(path).to_path_buf();
    let mounts = match Mounts::read(&[area]) {
        Ok(mounts) => mounts,
        Err(error) => return Some(format!("the mounts of all processes cannot be read: {error}")),
    };
    if let Some(unknown) = mounts.unknown_views().first() {
        return Some(unknown.to_string());
    }
    let user = mounts.user(path, &[])?;
    Some(format!("process {} has it or something in it mounted", user.pid))
}
