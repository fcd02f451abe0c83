//! What a person can free where no deletion of ours can begin.

use std::path::{Path, PathBuf};

use super::crio;
use super::outside;
use super::request::Request;
use crate::config::{Config, Via};
use crate::disk::Progress;
use crate::model::display::{bytes, shell_word};
use crate::model::space::lacks_inodes;
use crate::model::{Filesystem, FilesystemIx, Finding, Plan, StoreKind};
use crate::stores::Scan;
use crate::stores::other_usage::{OtherUser, OtherUserKind, OtherUsers};
use crate::sys::root::Root;

/// What holds less helps nobody.
const LEAST: u64 = 1 << 20;

/// Adds the best thing to delete by hand to the problem of a plan that has ended for want of space, and what works
/// without that, where a runtime (`via`) could not write to a store that we can edit.
pub(super) fn advise(plan: &mut Plan, request: &Request, config: &Config, scan: &Scan, via: Via) {
    let Some(problem) = plan.problems.iter_mut().find(|problem| problem.no_space) else {
        return;
    };
    let inventory = &scan.inventory;
    let filesystems = (0..inventory.filesystems.len()).map(FilesystemIx::from);
    let fullest = filesystems.min_by_key(|at| match &inventory[*at] {
        full if is_out_of_inodes(full) => 0,
        other => other.available_bytes,
    });
    let Some(fullest) = problem.filesystem.or(fullest) else { return };
    let what = if is_out_of_inodes(&inventory[fullest]) {
        format!("delete some files on {}, where too few inodes are free", inventory[fullest].mount.display())
    } else {
        let mut others = outside::measure_quietly(request, config, scan, None, &Progress::default());
        others.logs.retain(|log| log.filesystem == fullest);
        others.other_users.retain(|one| one.filesystem == fullest);
        // A store's own directories on a filesystem beside it: no file of a store is deleted by hand.
        others
            .other_users
            .retain(|one| inventory.stores.iter().all(|store| !one.path.starts_with(&store.root)));
        let mut kept: Vec<_> = inventory.stores.iter().map(|store| store.root.clone()).collect();
        kept.extend(scan.areas.iter().flatten().cloned());
        let places = outside::known(request, config, scan, None).places;
        kept.extend(places.data_directories().map(Path::to_path_buf));
        best(&others, &is_of_root, &kept)
            .unwrap_or_else(|| "no file or directory outside of the stores takes 1 MiB or more".into())
    };
    let by_hand = format!("free space by hand and run this again: {what}");
    let can_be_edited = inventory.stores.iter().any(|store| {
        store.kind == StoreKind::ContainersStorage && !store.read_only && store.filesystem == fullest
    });
    problem.hint = Some(match via == Via::Cri && can_be_edited {
        true => format!("{}; or {by_hand}", crio::WHILE_IT_RUNS),
        false => by_hand,
    });
}

/// Whether there is a filesystem whose images have to go by inodes, since bytes are free: warnings for a run
/// without such a target, which would only say that nothing has to be deleted.
pub(super) fn out_of_inodes(scan: &Scan) -> Vec<Finding> {
    let inventory = &scan.inventory;
    let all = (0..inventory.filesystems.len()).map(FilesystemIx::from);
    let all = all.filter(|at| is_out_of_inodes(&inventory[*at]));
    all.map(|at| {
        let one = &inventory[at];
        let here = inventory.nodes.iter().filter(|node| node.filesystem == at);
        let in_stores: u64 = here.map(|node| node.size.inodes).sum();
        let then = match in_stores < one.inodes / 10 {
            true => format!(
                "deleting images frees hardly any; `du -x --inodes {} | sort -n | tail` shows what holds them",
                shell_word(&one.mount.to_string_lossy())
            ),
            false => "and no target for inodes is set: `layersweep gc --inodes-high 90` deletes images until 85% are \
                      used"
                .to_owned(),
        };
        let message = format!(
            "too few inodes are free ({} of {}; {in_stores} are used by the stores), {then}",
            one.inodes_free, one.inodes
        );
        Finding::new(&one.mount, message)
    })
    .collect()
}

/// An XFS without a free byte cannot make inodes either, and lacks bytes alone.
pub(super) fn is_out_of_inodes(one: &Filesystem) -> bool {
    lacks_inodes(one.inodes, one.inodes_free) && one.available_bytes >= LEAST
}

/// Whether nobody but root can put something else where the file is before the command is typed.
fn is_of_root(file: &Path) -> bool {
    file.parent().is_some_and(|parent| Root::open(parent).is_ok_and(|root| root.way().is_trusted()))
}

/// The command for the largest of what can be spared as a rule, however large something else is: a deletion
/// needs little to begin. Else what holds the most. `kept`: the directories of stores and of the kubelet.
fn best(others: &OtherUsers, is_of_root: &dyn Fn(&Path) -> bool, kept: &[PathBuf]) -> Option<String> {
    use OtherUserKind::{CoreDumps, DeletedOpen, Directory, Journal, KubeletVolumes, Logs, PodLogs, VarTmp};
    let largest = |kinds: &[OtherUserKind]| {
        let of_kind = others.other_users.iter().filter(|one| kinds.contains(&one.kind) && one.bytes >= LEAST);
        of_kind.max_by_key(|one| one.bytes)
    };
    if let Some(spared) = largest(&[CoreDumps, Journal, VarTmp]) {
        return Some(command(spared, is_of_root, kept));
    }
    if let Some(log) = others.logs.first().filter(|log| log.bytes >= LEAST) {
        let path = shell_word(&log.path.to_string_lossy());
        let size = bytes(log.bytes);
        return Some(match is_of_root(&log.path) {
            true => format!("truncate -s 0 {path} ({size}), if nobody needs it"),
            false => format!("look at {path} ({size}), in a directory that others can change"),
        });
    }
    let largest = largest(&[Logs, PodLogs, DeletedOpen, KubeletVolumes, Directory]);
    largest.map(|user| command(user, is_of_root, kept))
}

fn command(user: &OtherUser, is_of_root: &dyn Fn(&Path) -> bool, kept: &[PathBuf]) -> String {
    let is_kept = || kept.iter().any(|kept| kept.starts_with(&user.path) || user.path.starts_with(kept));
    let (path, size) = (shell_word(&user.path.to_string_lossy()), bytes(user.bytes));
    match user.kind {
        OtherUserKind::Journal => format!("journalctl --vacuum-size=16M ({path}, {size})"),
        OtherUserKind::DeletedOpen => {
            let holder = user.holder.as_deref().unwrap_or("the process");
            format!("restart {holder}, which holds the deleted file {path} ({size})")
        }
        // Some of it is not for a person to delete.
        OtherUserKind::Directory | OtherUserKind::KubeletVolumes if is_kept() => {
            format!("`layersweep explain {path}` shows what takes {size} there")
        }
        _ if is_of_root(&user.path) && user.path.symlink_metadata().is_ok_and(|facts| facts.is_file()) => {
            format!("rm {path} ({size}), if nobody needs it")
        }
        _ => format!("delete what is not needed in {path} ({size})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::other_usage::BigFile;

    #[test]
    fn the_largest_of_what_can_be_spared() {
        let user = |kind, path: &str, mebibytes: u64| OtherUser {
            kind,
            filesystem: 0.into(),
            path: path.into(),
            bytes: mebibytes << 20,
            holder: Some("mysqld (pid 7)".into()),
        };
        let mut others = OtherUsers::default();
        let kept = ["/var/lib/containers/storage".into(), "/var/lib/kubelet".into()];
        let best = |others: &OtherUsers| super::best(others, &|path| !path.starts_with("/home"), &kept);
        assert_eq!(best(&others), None);
        for (kind, path) in [
            (OtherUserKind::Directory, "/var/lib"),
            (OtherUserKind::KubeletVolumes, "/var/lib/kubelet/pods"),
            (OtherUserKind::Directory, "/var/lib/kubelet/plugins"),
        ] {
            others.other_users = vec![user(kind, path, 800)];
            assert_eq!(
                best(&others).unwrap(),
                format!("`layersweep explain {path}` shows what takes 800.0 MiB there")
            );
        }
        others.other_users = vec![user(OtherUserKind::Directory, "/home", 900)];
        assert_eq!(best(&others).unwrap(), "delete what is not needed in /home (900.0 MiB)");
        others.other_users.push(user(OtherUserKind::DeletedOpen, "/srv/undo", 1000));
        assert!(best(&others).unwrap().starts_with("restart mysqld (pid 7)"));
        others.logs.push(BigFile {
            filesystem: 0.into(),
            path: "/var/log/pods/a b/0.log".into(),
            bytes: 300 << 20,
            pod: None,
            container: None,
        });
        let log = "truncate -s 0 '/var/log/pods/a b/0.log' (300.0 MiB), if nobody needs it";
        assert_eq!(best(&others).unwrap(), log);
        others.logs[0].path = "/home/alice/0.log".into();
        assert!(best(&others).unwrap().starts_with("look at /home/alice/0.log (300.0 MiB)"));
        others.other_users.push(user(OtherUserKind::CoreDumps, "/var/lib/systemd/coredump", 30));
        assert!(best(&others).unwrap().contains("coredump (30.0 MiB)"));
        others.other_users.push(user(OtherUserKind::Journal, "/var/log/journal", 200));
        assert!(best(&others).unwrap().starts_with("journalctl --vacuum-size=16M"));
    }
}
