//! The user of this process, and the users that it trusts.

use std::sync::OnceLock;

/// Returns the uids whose directories are trusted: root's and the caller's. In a user namespace, directories
/// outside of it (for example `/` and `/home`) belong to the overflow uid.
pub(super) fn trusted_uids() -> &'static [u32] {
    static TRUSTED: OnceLock<Vec<u32>> = OnceLock::new();
    TRUSTED.get_or_init(|| {
        let mut trusted = vec![0, rustix::process::geteuid().as_raw()];
        if !is_first_user_namespace() {
            let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
            trusted.push(overflow.trim().parse().unwrap_or(65534));
        }
        trusted
    })
}

/// Returns the uid of the user whose programs run here. In the user namespace that podman creates for a user
/// (`podman unshare`), every process is root. podman then passes the user's uid in a variable that its library
/// reads too (container-libs, `storage/pkg/unshare`, `GetRootlessUID`).
#[must_use]
pub fn calling_uid() -> u32 {
    let uid = rustix::process::geteuid().as_raw();
    if uid != 0 || is_first_user_namespace() {
        return uid;
    }
    let named = std::env::var("_CONTAINERS_ROOTLESS_UID").ok();
    named.and_then(|uid| uid.parse().ok()).unwrap_or(uid)
}

/// Returns whether uids have the same meaning here as for the kernel.
#[must_use]
pub fn is_first_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the name of a user from `/etc/passwd` alone: a directory service may not answer.
#[must_use]
pub fn name(uid: u32) -> String {
    if !is_first_user_namespace() {
        return "a user outside of this user namespace".to_owned();
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&users, uid)
}

/// Returns the name of a user from the text of `/etc/passwd`; `uid N` if it has none.
pub(super) fn find(users: &str, uid: u32) -> String {
    let mut names = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    names.next().unwrap_or_else(|| format!("uid {uid}"))
}
