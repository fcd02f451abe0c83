//! Causes of the usage outside the stores: logs, files, the journal, core dumps, and data that is not examined.

use std::path::Path;

use jiff::tz::TimeZone;

use crate::model::refs;
use crate::model::text::display::{self, shell_word};
use crate::model::text::volume::{self, NerdctlVolume};
use crate::model::{FilesystemIx, NodeKind, PrintedCommand};
use crate::services::diagnosis::context::Context;
use crate::services::diagnosis::{Cause, CauseGroup, CauseKind, LEAST, Part, PartKind};
use crate::stores::Scan;
use crate::stores::other_usage::{BigFile, OtherUserKind, OtherUsers};

/// Size to which `journalctl` is told to shrink the journal, if the journal is at least twice as large.
const JOURNAL_BYTES: u64 = 512 << 20;
/// Size to which it is told to shrink a smaller one.
const LEAST_JOURNAL_BYTES: u64 = 16 << 20;

/// Describes a file: its owner, the time of its last modification, and its other names.
fn facts_of(context: &Context<'_>, file: &BigFile) -> String {
    let owner = context.scan.sysroot.user_name(file.owner);
    let written = file.modified.map_or_else(String::new, |time| {
        let time = time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M");
        format!(", written {time}")
    });
    let names = if file.links > 1 { format!(", has {} names", file.links) } else { String::new() };
    format!("of {owner}{written}{names}")
}

pub(super) fn logs(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let logs = context.other_users.logs.iter();
    let large = logs.filter(|log| log.filesystem == ix && log.bytes >= context.least(ix));
    large
        .map(|log| {
            let path = context.inside(&log.path);
            let writer = match (&log.pod, &log.container) {
                (Some(pod), Some(container)) => format!(" of container {container} in pod {pod}"),
                (Some(pod), None) => format!(" of pod {pod}"),
                (None, _) => String::new(),
            };
            let limit = if log.pod.is_some() { "the kubelet's containerLogMaxSize" } else { "logrotate" };
            let text = format!("log {path}{writer} (file {})", facts_of(context, log));
            Cause {
                title: match &log.pod {
                    Some(pod) => format!("log of pod {pod}"),
                    None => format!("log {path}"),
                },
                remedy: format!("{limit} limits it"),
                command: Some(context.shows_file(&path)),
                frees_bytes: log.bytes,
                id: log.pod.clone(),
                path: Some(path),
                ..context.cause(ix, CauseKind::Log, log.bytes, text)
            }
        })
        .collect()
}

/// Returns the packages that package managers keep: they can be downloaded again.
pub(super) fn package_caches(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let caches = context.other_users.package_caches.iter();
    let large = caches.filter(|cache| cache.filesystem == ix && cache.bytes >= context.least(ix));
    large
        .map(|cache| {
            let path = context.inside(&cache.path);
            // The command would delete packages of this machine.
            let (remedy, command) = if context.scan.sysroot.is_foreign() {
                (format!("`{}` deletes them once the node runs again", cache.command), None)
            } else {
                (String::new(), Some(PrintedCommand::Deletes(cache.command.into())))
            };
            Cause {
                title: format!("package cache {path}"),
                remedy,
                command,
                frees_bytes: cache.bytes,
                frees_inodes: cache.inodes,
                group: CauseGroup::CanBeMadeAgain,
                path: Some(path.clone()),
                ..context.cause(
                    ix,
                    CauseKind::Other,
                    cache.bytes,
                    format!("installed packages kept in {path}"),
                )
            }
        })
        .collect()
}

pub(super) fn large_files(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let nodes = context.scan.inventory.nodes.iter().filter(|node| node.kind == NodeKind::TemporaryFile);
    let leaks: Vec<_> = nodes.map(|node| &node.path).collect();
    let files = context.other_users.files.iter().filter(|file| {
        let is_leak = leaks.iter().any(|leak| file.path.starts_with(leak));
        let mut caches = context.other_users.package_caches.iter();
        let is_package = caches.any(|cache| file.path.starts_with(&cache.path));
        file.filesystem == ix && file.bytes >= context.least(ix) && !is_leak && !is_package
    });
    files
        .map(|file| {
            let path = context.inside(&file.path);
            let text = format!("{path} (file {})", facts_of(context, file));
            Cause {
                title: path.clone(),
                command: Some(context.shows_file(&path)),
                frees_bytes: file.bytes,
                frees_inodes: 1,
                path: Some(path),
                ..context.cause(ix, CauseKind::File, file.bytes, text)
            }
        })
        .collect()
}

pub(super) fn unread_stores(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let stores = context.other_users.other_users.iter().filter_map(|user| match user.kind {
        OtherUserKind::Store(kind) if user.filesystem == ix && user.bytes >= context.least(ix) => {
            Some((user, kind))
        }
        _ => None,
    });
    stores
        .map(|(store, kind)| {
            let path = context.inside(&store.path);
            let (title, remedy, command) = match &store.holder {
                Some(title) => (
                    title.as_str(),
                    "images need its layers",
                    format!("layersweep explain {}", shell_word(&path)),
                ),
                None => ("another store", "", usage_of_store(kind.facts().flag, &path)),
            };
            Cause {
                remedy: remedy.into(),
                command: Some(PrintedCommand::Shows(command)),
                path: Some(path.clone()),
                frees_bytes: if store.holder.is_some() { 0 } else { store.bytes },
                group: if store.holder.is_some() { CauseGroup::Kept } else { CauseGroup::OnlyYouCanJudge },
                ..context.cause(ix, CauseKind::Other, store.bytes, format!("{title}, {path}"))
            }
        })
        .collect()
}

/// Returns the volumes of nerdctl, whose containers are unknown.
pub(super) fn nerdctl_volumes(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let users = context.other_users.other_users.iter().filter(|user| user.kind == OtherUserKind::Volume);
    let here = users.filter(|user| user.filesystem == ix && user.bytes >= context.least(ix));
    here.filter_map(|user| {
        let path = context.inside(&user.path);
        let NerdctlVolume { namespace, name, .. } = NerdctlVolume::at(Path::new(&path))?;
        let [namespace, name] = [namespace, name].map(|word| shell_word(&word));
        let title = volume::title(&path);
        Some(Cause {
            command: Some(PrintedCommand::Shows(format!(
                "nerdctl --namespace {namespace} volume inspect --size {name}"
            ))),
            path: Some(path),
            group: CauseGroup::Kept,
            title: title.clone(),
            ..context.cause(ix, CauseKind::Volume, user.bytes, format!("{title}: its containers are unknown"))
        })
    })
    .collect()
}

/// Formats the command that shows what is in a store that was not read. `flag` names stores of its kind.
pub(super) fn usage_of_store(flag: &str, path: &str) -> String {
    format!("layersweep {flag} {} usage", shell_word(path))
}

pub(super) fn volumes(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let pods = context
        .other_users
        .pods
        .iter()
        .filter(|pod| pod.filesystem == ix && pod.kind == OtherUserKind::KubeletVolumes);
    pods.filter(|pod| pod.bytes >= context.least(ix))
        .map(|pod| Cause {
            title: format!("volumes of pod {}", pod.pod),
            remedy: match pod.is_gone {
                Some(true) => "no sandbox of this pod exists and nothing is mounted there: an orphaned pod, as the kubelet's \
                               log calls it, and nothing deletes it. A CSI volume that is not mounted has its data \
                               elsewhere"
                    .into(),
                Some(false) => "deleted with the pod; an emptyDir can have a sizeLimit".into(),
                None => "deleted with the pod; whether the pod still exists is unknown, since no runtime answers".into(),
            },
            command: Some(PrintedCommand::Shows(format!(
                "layersweep explain {}",
                shell_word(&context.inside(&pod.path))
            ))),
            frees_bytes: pod.bytes,
            id: Some(pod.pod.clone()),
            path: Some(context.inside(&pod.path)),
            ..context.cause(
                ix,
                CauseKind::KubeletVolume,
                pod.bytes,
                format!("volumes of pod {} on this disk", pod.pod),
            )
        })
        .collect()
}

/// Returns the journal, directories of temporary files and core dumps, and deleted files that are open. Files in `named`
/// are subtracted.
pub(super) fn other_users(context: &Context<'_>, ix: FilesystemIx, named: &[Cause]) -> Vec<Cause> {
    let here = context.other_users.other_users.iter().filter(|user| user.filesystem == ix);
    let mount = context.scan.inventory[ix].mount.to_string_lossy();
    // Files that tools of the stores left behind are reported as leaks.
    let nodes = context.scan.inventory.nodes.iter();
    let temporary: Vec<_> = nodes.filter(|node| node.kind == NodeKind::TemporaryFile).collect();
    here.filter_map(|user| {
        let leaks =
            temporary.iter().filter(|node| node.path.starts_with(&user.path)).map(|node| node.size.bytes);
        let path = context.inside(&user.path);
        let files = named.iter().filter(|cause| {
            cause.kind == CauseKind::File
                && cause.path.as_ref().is_some_and(|file| Path::new(file).starts_with(&path))
        });
        let named = leaks.chain(files.map(|cause| cause.bytes)).fold(0, u64::saturating_add);
        let bytes = match user.kind {
            OtherUserKind::DeletedOpen => user.bytes,
            _ => user.bytes.saturating_sub(named),
        };
        if bytes < context.least(ix) {
            return None;
        }
        let quoted = shell_word(&path);
        let cause = |kind, text| Cause { path: Some(path.clone()), ..context.cause(ix, kind, bytes, text) };
        match user.kind {
            OtherUserKind::Journal => {
                Some(journal(context, ix, cause(CauseKind::Journal, format!("the journal in {path}"))))
            }
            OtherUserKind::VarTmp => Some(Cause {
                remedy: "find out what left them; systemd-tmpfiles deletes those older than 30 days".into(),
                command: Some(PrintedCommand::Shows(format!("layersweep explain {quoted}"))),
                ..cause(CauseKind::VarTmp, format!("temporary files in {path}"))
            }),
            OtherUserKind::CoreDumps => Some(Cause {
                command: Some(PrintedCommand::Shows(if user.path.ends_with("systemd/coredump") {
                    "coredumpctl list".to_owned()
                } else {
                    format!("ls -l {quoted}")
                })),
                frees_bytes: bytes,
                ..cause(CauseKind::CoreDumps, format!("core dumps in {path}"))
            }),
            OtherUserKind::DeletedOpen => {
                let holder = user.holder.as_deref().unwrap_or("a process");
                Some(Cause {
                    remedy: format!("it is freed when {holder} closes it or exits"),
                    command: Some(PrintedCommand::Shows(format!("lsof +L1 {}", shell_word(&mount)))),
                    frees_bytes: bytes,
                    ..cause(CauseKind::DeletedOpen, format!("{path}, deleted, but held open by {holder}"))
                })
            }
            // The other kinds have their own causes, or are in `others`.
            _ => None,
        }
    })
    .collect()
}

/// Adds the command that shrinks the journal, unless it would free almost nothing: the active files are kept.
fn journal(context: &Context<'_>, ix: FilesystemIx, journal: Cause) -> Cause {
    let files = context.other_users.archived_journal.iter().filter(|file| file.filesystem == ix);
    let archived: Vec<_> = files.map(|file| file.bytes).collect();
    let kept = if journal.bytes >= 2 * JOURNAL_BYTES { JOURNAL_BYTES } else { LEAST_JOURNAL_BYTES };
    let active = context.other_users.active_journal_bytes;
    let all = archived.iter().fold(active, |sum: u64, bytes| sum.saturating_add(*bytes));
    let frees_bytes = vacuumed(all, &archived, kept);
    let remedy = "SystemMaxUse in journald.conf limits it".to_owned();
    if frees_bytes < LEAST {
        let command = Some(PrintedCommand::Shows("journalctl --disk-usage".into()));
        return Cause { remedy, command, group: CauseGroup::Kept, ..journal };
    }
    Cause {
        remedy,
        command: Some(PrintedCommand::Deletes(format!("journalctl --vacuum-size={}M", kept >> 20))),
        frees_bytes,
        group: CauseGroup::CanBeMadeAgain,
        ..journal
    }
}

/// Returns the bytes that `journalctl --vacuum-size` deletes of a journal of `all` bytes: archived files, the oldest
/// first, as long as more than `kept` bytes are left.
fn vacuumed(all: u64, archived: &[u64], kept: u64) -> u64 {
    let mut freed: u64 = 0;
    for bytes in archived {
        if all.saturating_sub(freed) <= kept {
            break;
        }
        freed = freed.saturating_add(*bytes);
    }
    freed
}

/// Returns large data outside the stores: at least 5 % of the used bytes. Files that are causes in `named` and
/// temporary files that are leaks are subtracted.
pub(super) fn others(context: &Context<'_>, ix: FilesystemIx, named: &[Cause]) -> Vec<Cause> {
    let used = context.scan.inventory.filesystems[ix.get()].used_bytes;
    let parts = context.divided.get(ix.get()).map_or(&[][..], |divided| &divided.parts);
    let is_file = |kind| matches!(kind, CauseKind::Log | CauseKind::File | CauseKind::Other);
    let logs = named.iter().filter(|cause| cause.filesystem_ix == ix && is_file(cause.kind));
    // Files that tools of the stores left behind are reported as leaks.
    let nodes = context
        .scan
        .inventory
        .nodes
        .iter()
        .filter(|node| node.kind == NodeKind::TemporaryFile && node.filesystem == ix);
    let leaks: Vec<_> = nodes.map(|node| (context.inside(&node.path), node.size.bytes)).collect();
    let of_leaks = leaks.iter().map(|(path, bytes)| (path.as_str(), *bytes));
    let named = logs.filter_map(|cause| Some((cause.path.as_deref()?, cause.bytes))).chain(of_leaks);
    let left = without_files(parts, named);
    let hidden = hidden(context.scan, context.other_users, ix);
    let users = context.other_users.other_users.iter();
    let stores: Vec<_> = users
        .filter(|user| matches!(user.kind, OtherUserKind::Store(_) | OtherUserKind::Volume))
        .map(|user| context.inside(&user.path))
        .collect();
    let kinds = [PartKind::Directory, PartKind::Swap, PartKind::Other];
    let others = parts.iter().zip(left).filter(|(part, _)| {
        let path = part.path.as_ref().map(Path::new);
        let is_leak = path.is_some_and(|path| leaks.iter().any(|(leak, _)| path.starts_with(leak)));
        let is_store = part.path.as_ref().is_some_and(|path| stores.contains(path));
        kinds.contains(&part.kind) && !is_leak && !is_store
    });
    others
        .filter(|(part, bytes)| *bytes >= (used / 20).max(LEAST) || context.has_many_inodes(ix, part.inodes))
        .map(|(part, bytes)| {
            let (text, remedy) = match (&part.path, &hidden) {
                (Some(path), _) => (format!("other data in {path}"), String::new()),
                (None, Some(hidden)) if part.kind == PartKind::Other => hidden.clone(),
                (None, _) => (part.label.clone(), String::new()),
            };
            let command = part.path.as_ref().map(|path| format!("layersweep explain {}", shell_word(path)));
            let cause = Cause {
                remedy,
                command: command.map(PrintedCommand::Shows),
                path: part.path.clone(),
                group: CauseGroup::Kept,
                ..context.cause(ix, CauseKind::Other, bytes, text)
            };
            match &part.path {
                Some(path) if context.has_many_inodes(ix, part.inodes) => {
                    of_many_files(path, part.inodes, cause)
                }
                _ => cause,
            }
        })
        .collect()
}

/// Returns the cause for a directory of so many files that it matters if inodes are short.
pub(super) fn of_many_files(path: &str, inodes: u64, cause: Cause) -> Cause {
    Cause {
        title: path.to_owned(),
        text: format!("{path}: {} files", display::thousands(inodes)),
        frees_inodes: inodes,
        group: CauseGroup::OnlyYouCanJudge,
        ..cause
    }
}

/// Returns a description of the used bytes that no visible file accounts for, and a remedy. Only for a filesystem
/// whose visible files were all measured. Less than 5 % of the used bytes or 2 % of the capacity may be the
/// filesystem's own metadata, and is not reported; nor what XFS keeps for its trees on small disks (up to 46 MiB on 0.3
/// to 2 GB, xfsprogs 6.1).
pub fn hidden(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Option<(String, String)> {
    /// Maximum number of mount points that are named.
    const NAMED: usize = 3;
    if other_users.unknown_files(&[]).is_some() {
        return None;
    }
    let seen = other_users.seen_whole.iter().find(|seen| seen.filesystem == ix)?;
    let filesystem = &scan.inventory[ix];
    let outside = other_users.other_users.iter().filter(|user| user.filesystem == ix).map(|user| user.bytes);
    let visible = refs::size_on_disk(&scan.inventory, ix).into_iter().chain(outside);
    let unseen = filesystem.used_bytes.saturating_sub(visible.fold(0, u64::saturating_add));
    let own = if filesystem.fstype == "xfs" { 64 << 20 } else { LEAST };
    let least = (filesystem.used_bytes / 20).max(filesystem.capacity_bytes / 50).max(own);
    let first = seen.mount_points.first().filter(|_| unseen >= least)?;
    let mut points: Vec<_> =
        seen.mount_points.iter().take(NAMED).map(|path| scan.sysroot.shown(path)).collect();
    let more = seen.mount_points.len().saturating_sub(NAMED);
    points.extend((more > 0).then(|| format!("and {more} more")));
    let text = format!(
        "{} are in no visible file, probably hidden below a mount point of this filesystem: {}",
        display::bytes(unseen),
        points.join(", ")
    );
    let below = Path::new("/mnt").join(first.strip_prefix(&seen.top).unwrap_or(first));
    let remedy = format!(
        "look with `mount --bind {} /mnt`, then for example `du -shx {}`; `umount /mnt` ends it",
        shell_word(&seen.top.to_string_lossy()),
        shell_word(&below.to_string_lossy())
    );
    Some((text, remedy))
}

/// Returns the bytes of each part without those of `files`. A file belongs to the part with the longest path above
/// it.
fn without_files<'a>(parts: &[Part], files: impl Iterator<Item = (&'a str, u64)>) -> Vec<u64> {
    let mut left: Vec<_> = parts.iter().map(|part| part.bytes).collect();
    for (path, bytes) in files {
        let above = parts
            .iter()
            .enumerate()
            .filter_map(|(position, part)| Some((position, part.path.as_deref()?)))
            .filter(|(_, above)| Path::new(path).starts_with(above));
        if let Some((position, _)) = above.max_by_key(|(_, above)| above.len()) {
            left[position] = left[position].saturating_sub(bytes);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_belongs_to_the_nearest_part_above() {
        let parts = [("/var/log", 100), ("/var/log/pods", 50), ("/var/lo", 7)]
            .map(|(path, bytes)| Part { path: Some(path.into()), ..Part::new(PartKind::Directory, bytes) });
        for (files, expected) in [
            (&[][..], [100, 50, 7]),
            (&[("/var/log/a", 60), ("/var/log/pods/b/0.log", 20), ("/srv/c", 5)], [40, 30, 7]),
            // The file has grown since the part was measured.
            (&[("/var/log/a", 160)], [0, 50, 7]),
        ] {
            assert_eq!(without_files(&parts, files.iter().copied()), expected, "{files:?}");
        }
    }

    #[test]
    fn journal_is_vacuumed_by_whole_files() {
        // The active files count, but are not deleted.
        for (all, archived, kept, freed) in [
            (8, &[][..], 16, 0),
            (24, &[8, 8], 16, 8),
            (32, &[8, 8, 8], 16, 16),
            (54, &[30, 8, 8], 16, 38),
            (16, &[8], 16, 0),
        ] {
            assert_eq!(vacuumed(all, archived, kept), freed, "{archived:?}");
        }
    }
}
