//! What a person can free where no deletion of ours can begin.

use super::outside;
use super::request::Request;
use crate::config::Config;
use crate::disk::Progress;
use crate::execute::images::is_no_space;
use crate::model::Plan;
use crate::model::display::bytes;
use crate::stores::Scan;
use crate::stores::other_usage::{OtherUser, OtherUserKind, OtherUsers};

/// What holds less helps nobody.
const LEAST: u64 = 1 << 20;

/// Completes the message of a plan that has ended for want of space with the best thing to delete by hand.
pub(super) fn advise(plan: &mut Plan, request: &Request, config: &Config, scan: &Scan) {
    let Some(problem) = plan.problems.iter_mut().find(|problem| is_no_space(&problem.message)) else {
        return;
    };
    let mut others = outside::measure_quietly(request, config, scan, None, &Progress::default());
    // A store's own directories on a filesystem beside it: no file of a store is deleted by hand.
    others
        .other_users
        .retain(|one| scan.inventory.stores.iter().all(|store| !one.path.starts_with(&store.root)));
    let what = best(&others).unwrap_or_else(|| "nothing beside the stores takes a MiB there".into());
    problem.message = format!("{}; free space by hand and run this again: {what}", problem.message);
}

/// The command for the largest of what can be spared as a rule; else what holds the most.
fn best(others: &OtherUsers) -> Option<String> {
    use OtherUserKind::{CoreDumps, DeletedOpen, Directory, Journal, KubeletVolumes, Logs, PodLogs, VarTmp};
    let largest = |kinds: &[OtherUserKind]| {
        let of_kind = others.other_users.iter().filter(|one| kinds.contains(&one.kind) && one.bytes >= LEAST);
        of_kind.max_by_key(|one| one.bytes)
    };
    let log = others.logs.first().filter(|log| log.bytes >= LEAST);
    let spared = largest(&[CoreDumps, Journal, VarTmp]);
    if let Some(log) = log.filter(|log| spared.is_none_or(|spared| spared.bytes < log.bytes)) {
        return Some(format!("truncate -s 0 {} ({})", log.path.display(), bytes(log.bytes)));
    }
    let found = spared.or_else(|| largest(&[Logs, PodLogs, DeletedOpen, KubeletVolumes, Directory]))?;
    Some(command(found))
}

fn command(user: &OtherUser) -> String {
    let (path, size) = (user.path.display(), bytes(user.bytes));
    match user.kind {
        OtherUserKind::Journal => format!("journalctl --vacuum-size=16M ({path}, {size})"),
        OtherUserKind::DeletedOpen => {
            let holder = user.holder.as_deref().unwrap_or("the process");
            format!("restart {holder}, which holds the deleted file {path} ({size})")
        }
        _ if user.path.is_file() => format!("rm {path} ({size}), if nobody needs it"),
        _ => format!("delete what nobody needs in {path} ({size})"),
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
        assert_eq!(best(&others), None);
        others.other_users.push(user(OtherUserKind::Directory, "/home", 900));
        assert_eq!(best(&others).unwrap(), "delete what nobody needs in /home (900.0 MiB)");
        others.other_users.push(user(OtherUserKind::DeletedOpen, "/srv/undo", 1000));
        assert!(best(&others).unwrap().starts_with("restart mysqld (pid 7)"));
        others.other_users.push(user(OtherUserKind::CoreDumps, "/var/lib/systemd/coredump", 30));
        assert!(best(&others).unwrap().contains("coredump (30.0 MiB)"));
        others.other_users.push(user(OtherUserKind::Journal, "/var/log/journal", 200));
        assert!(best(&others).unwrap().starts_with("journalctl --vacuum-size=16M"));
        others.logs.push(BigFile {
            filesystem: 0.into(),
            path: "/var/log/pods/a/0.log".into(),
            bytes: 300 << 20,
            pod: None,
            container: None,
        });
        assert_eq!(best(&others).unwrap(), "truncate -s 0 /var/log/pods/a/0.log (300.0 MiB)");
    }
}
