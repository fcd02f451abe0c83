//! The user whose programs we are among, and the users that we trust.

use std::sync::OnceLock;

/// Uids whose directories cannot lead us astray: root's and our own. In a user namespace what lies
/// outside of it, `/` and `/home` for example, belongs to the overflow uid.
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

/// Uid of the user whose programs we are among. In the user namespace that podman makes for a user
/// (`podman unshare`) everybody is root there, and podman says whom it made it for, in the variable
/// that the library goes by (container-libs, `storage/pkg/unshare`, `GetRootlessUID`).
#[must_use]
pub fn calling_uid() -> u32 {
    let uid = rustix::process::geteuid().as_raw();
    if uid != 0 || is_first_user_namespace() {
        return uid;
    }
    let named = std::env::var("_CONTAINERS_ROOTLESS_UID").ok();
    named.and_then(|uid| uid.parse().ok()).unwrap_or(uid)
}

/// Whether uids mean here what they mean to the kernel.
#[must_use]
pub fn is_first_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}
