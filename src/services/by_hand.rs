//! Advice for a filesystem that is too full for a deletion to begin: the journal, which can be shrunk, or the data to look
//! at. No other deletion is suggested: only a person can judge whether a file is needed.

use crate::config::Config;
use crate::disk::Progress;
use crate::model::space::lacks_inodes;
use crate::model::text::display::{bytes, shell_word};
use crate::model::{Filesystem, FilesystemIx, Finding, Plan, StoreId};
use crate::services::crio;
use crate::services::outside::{self, InodeUse};
use crate::services::request::Request;
use crate::stores::Scan;
use crate::stores::other_usage::{BigFile, OtherUser, OtherUserKind, OtherUsers};

/// Minimum size of a suggested file or directory. A filesystem with less available space counts as full.
pub(crate) const LEAST: u64 = 1 << 20;

/// Adds a hint to a plan that ended for lack of space: the file or directory to look at first. If a runtime should have
/// deleted (in the stores `of_runtime`) and the store can be edited directly, the hint names that way too.
pub(crate) fn advise(
    plan: &mut Plan,
    request: &Request,
    config: &Config,
    scan: &Scan,
    of_runtime: &[StoreId],
) {
    let Some(problem) = plan.problems.iter_mut().find(|problem| problem.no_space) else {
        return;
    };
    let inventory = &scan.inventory;
    let filesystems = (0..inventory.filesystems.len()).map(FilesystemIx::from);
    let fullest = filesystems.filter(|ix| inventory.has_store(*ix)).min_by_key(|ix| match &inventory[*ix] {
        full if is_out_of_inodes(full) => 0,
        other => other.available_bytes,
    });
    let Some(fullest) = problem.filesystem.or(fullest) else { return };
    let suggestion = if is_out_of_inodes(&inventory[fullest]) {
        let most = outside::most_inodes(scan, 0);
        let others = outside::measure_quietly(request, config, scan, most, &Progress::default());
        let places = InodeUse::of(scan, &others, fullest, 0).largest;
        let mount = inventory[fullest].mount.display();
        match outside::with_most_inodes(&places).as_str() {
            "" => format!("too few inodes are free on {mount}"),
            places => format!("too few inodes are free on {mount} ({places})"),
        }
    } else {
        let mut others = outside::measure_quietly(request, config, scan, None, &Progress::default());
        others.logs.retain(|log| log.filesystem == fullest);
        // Directories of a store are left out, also if they are on another filesystem.
        others.other_users.retain(|user| {
            user.filesystem == fullest
                && inventory.stores.iter().all(|store| !user.path.starts_with(&store.root))
        });
        best(&others).unwrap_or_else(|| "no file or directory outside the stores uses 1 MiB or more".into())
    };
    let by_hand = format!("free space by hand and run this again: {suggestion}");
    let can_be_edited = inventory.stores.iter().any(|store| {
        let is_editable = store.kind.facts().is_editable;
        is_editable && store.filesystem == fullest && of_runtime.contains(&StoreId::of(store))
    });
    problem.hint =
        Some(if can_be_edited { format!("{}; or {by_hand}", crio::WHILE_IT_RUNS) } else { by_hand });
}

/// Returns a warning for each filesystem that has free bytes but too few free inodes. A run without a target for
/// inodes would only report that nothing has to be deleted.
pub(crate) fn out_of_inodes(scan: &Scan) -> Vec<Finding> {
    let inventory = &scan.inventory;
    let filesystems = (0..inventory.filesystems.len()).map(FilesystemIx::from);
    let without_inodes = filesystems.filter(|ix| is_out_of_inodes(&inventory[*ix]));
    without_inodes
    .map(|ix| {
        let filesystem = &inventory[ix];
        let nodes = inventory.nodes.iter().filter(|node| node.filesystem == ix);
        let in_stores: u64 = nodes.map(|node| node.size.inodes).sum();
        let mount = shell_word(&filesystem.mount.to_string_lossy());
        let advice = if in_stores < filesystem.inodes / 10 {
            format!("deleting images frees hardly any; `du -x --inodes {mount} | sort -n | tail` shows what uses them")
        } else {
            "and no target for inodes is set: `layersweep gc --inodes-high 90` deletes images until 85% are used"
                .to_owned()
        };
        let message = format!(
            "too few inodes are free ({} of {}; {in_stores} are used by the stores), {advice}",
            filesystem.inodes_free, filesystem.inodes
        );
        Finding::new(&filesystem.mount, message)
    })
    .collect()
}

/// Returns true if inodes are the only shortage. An XFS without free bytes cannot create inodes either: that is a
/// shortage of bytes.
pub(crate) fn is_out_of_inodes(filesystem: &Filesystem) -> bool {
    lacks_inodes(filesystem.inodes, filesystem.inodes_free) && filesystem.available_bytes >= LEAST
}

/// Returns a suggestion for what frees space. A deletion needs little space to begin, so the largest of the data that is
/// usually not needed is preferred to larger data; without such data the largest user is named.
fn best(others: &OtherUsers) -> Option<String> {
    use OtherUserKind::{CoreDumps, DeletedOpen, Directory, Journal, KubeletVolumes, Logs, PodLogs, VarTmp};
    fn largest<'a>(others: &'a OtherUsers, kinds: &[OtherUserKind]) -> Option<&'a OtherUser> {
        let of_kind =
            others.other_users.iter().filter(|user| kinds.contains(&user.kind) && user.bytes >= LEAST);
        of_kind.max_by_key(|user| user.bytes)
    }
    if let Some(journal) = largest(others, &[Journal]) {
        return Some(suggestion(journal));
    }
    let dumps = largest(others, &[CoreDumps, VarTmp]).map(suggestion);
    dumps
        .or_else(|| others.logs.first().filter(|log| log.bytes >= LEAST).map(suggestion_for_log))
        .or_else(|| largest(others, &[Logs, PodLogs, DeletedOpen, KubeletVolumes, Directory]).map(suggestion))
}

fn suggestion_for_log(log: &BigFile) -> String {
    let path = shell_word(&log.path.to_string_lossy());
    format!("look at {path} ({}): `ls -l {path}`", bytes(log.bytes))
}

fn suggestion(user: &OtherUser) -> String {
    let (path, size) = (shell_word(&user.path.to_string_lossy()), bytes(user.bytes));
    match user.kind {
        OtherUserKind::Journal => format!("journalctl --vacuum-size=16M ({path}, {size})"),
        OtherUserKind::DeletedOpen => {
            let holder = user.holder.as_deref().unwrap_or("a process");
            format!("{holder} has the deleted file {path} ({size}) open")
        }
        _ => format!("`layersweep explain {path}` shows what uses {size} there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(kind: OtherUserKind, path: &str, mebibytes: u64) -> OtherUser {
        OtherUser {
            kind,
            filesystem: 0.into(),
            path: path.into(),
            bytes: mebibytes << 20,
            inodes: 1,
            holder: Some("mysqld (pid 7)".into()),
        }
    }

    #[test]
    fn unneeded_data_is_suggested_before_larger_data() {
        let mut others = OtherUsers::default();
        assert_eq!(best(&others), None);
        for (kind, path) in [
            (OtherUserKind::Directory, "/var/lib"),
            (OtherUserKind::KubeletVolumes, "/var/lib/kubelet/pods"),
            (OtherUserKind::Directory, "/home"),
        ] {
            others.other_users = vec![user(kind, path, 800)];
            assert_eq!(
                best(&others).unwrap(),
                format!("`layersweep explain {path}` shows what uses 800.0 MiB there")
            );
        }
        others.other_users = vec![user(OtherUserKind::Directory, "/home", 900)];
        others.other_users.push(user(OtherUserKind::DeletedOpen, "/srv/undo", 1000));
        assert!(best(&others).unwrap().starts_with("mysqld (pid 7) has the deleted file"));
        others.logs.push(BigFile {
            filesystem: 0.into(),
            path: "/var/log/pods/a b/0.log".into(),
            bytes: 300 << 20,
            pod: None,
            container: None,
            modified: None,
            owner: 0,
            links: 1,
        });
        let log = "look at '/var/log/pods/a b/0.log' (300.0 MiB): `ls -l '/var/log/pods/a b/0.log'`";
        assert_eq!(best(&others).unwrap(), log);
        others.other_users.push(user(OtherUserKind::CoreDumps, "/var/lib/systemd/coredump", 30));
        assert!(best(&others).unwrap().contains("coredump` shows what uses 30.0 MiB there"));
        others.other_users.push(user(OtherUserKind::Journal, "/var/log/journal", 200));
        assert!(best(&others).unwrap().starts_with("journalctl --vacuum-size=16M"));
    }
}
