//! Location of the records.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::sys::sysroot::Sysroot;

/// Location of a node's records, and the permitted access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDirectory {
    /// Path of the state directory on this system.
    pub dir: PathBuf,
    /// Directory of the queued runs ([`super::pending`]); `None` on the disk of another system.
    pub pending: Option<PathBuf>,
    /// The directory is on the disk of another system: nothing is ever written there, or queued for it.
    pub foreign: bool,
    /// Reason why `dir` cannot be resolved inside the mounted root. `dir` is then only a name for messages.
    pub unresolved: Option<(io::ErrorKind, String)>,
}

impl StateDirectory {
    /// Returns the state directory `dir` of the running system, with the queue inside it.
    #[must_use]
    pub fn local(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), pending: Some(dir.join(PENDING)), foreign: false, unresolved: None }
    }
}

/// The calling user, as far as that decides locations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub home: Option<OsString>,
    pub xdg_state_home: Option<OsString>,
    pub xdg_runtime_dir: Option<OsString>,
}

impl Caller {
    /// Reads the environment of this process.
    #[must_use]
    pub fn present() -> Self {
        Self {
            uid: crate::sys::users::calling_uid(),
            home: std::env::var_os("HOME"),
            xdg_state_home: std::env::var_os("XDG_STATE_HOME"),
            xdg_runtime_dir: std::env::var_os("XDG_RUNTIME_DIR"),
        }
    }
}

/// Returns the location of the records: `state_dir`, or the caller's default. With a mounted root, both are resolved
/// inside `sysroot`, where nothing is ever written.
///
/// The queue is `/run/layersweep/pending/<hash>`, because the disk of the state directory may be full or read-only. A
/// user without such a runtime directory has the queue in `pending` in the state directory.
#[must_use]
pub fn state_directory(sysroot: &Sysroot, state_dir: Option<&Path>, caller: &Caller) -> StateDirectory {
    let Some(dir) = state_dir.map(Path::to_path_buf).or_else(|| default_dir(caller)) else {
        let cause = "this user has no home directory; name one with --state-dir DIR".to_owned();
        let unresolved = Some((io::ErrorKind::PermissionDenied, cause));
        return StateDirectory {
            dir: SYSTEM.into(),
            pending: None,
            foreign: sysroot.is_foreign(),
            unresolved,
        };
    };
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    if sysroot.is_foreign() {
        let (dir, unresolved) = match sysroot.resolve(&dir) {
            Ok(resolved) => (resolved, None),
            Err(error) => (dir, Some((error.kind(), error.to_string()))),
        };
        return StateDirectory { dir, pending: None, foreign: true, unresolved };
    }
    let mut directory = StateDirectory::local(&dir);
    let hash = Sha256::digest(dir.as_os_str().as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // Not in /tmp, where another user may have created the directory first.
    let runtime = match absolute(caller.xdg_runtime_dir.as_ref()) {
        _ if caller.uid == 0 => Some(PathBuf::from("/run/layersweep")),
        runtime => runtime.map(|runtime| runtime.join("layersweep")),
    };
    if let Some(runtime) = runtime {
        directory.pending = Some(runtime.join(PENDING).join(hash));
    }
    directory
}

const PENDING: &str = "pending";

/// Default state directory of root.
pub const SYSTEM: &str = "/var/lib/layersweep";

/// Returns the default state directory; `None` for a user without a home directory.
fn default_dir(caller: &Caller) -> Option<PathBuf> {
    if caller.uid == 0 {
        return Some(SYSTEM.into());
    }
    let state = absolute(caller.xdg_state_home.as_ref())
        .or_else(|| absolute(caller.home.as_ref()).map(|home| home.join(".local/state")));
    state.map(|state| state.join("layersweep"))
}

/// Ignores a relative path, as the XDG specification demands.
fn absolute(variable: Option<&OsString>) -> Option<PathBuf> {
    variable.map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Creates `dir` if it does not exist, accessible only to this user.
pub(super) fn make_private(dir: &Path) -> io::Result<()> {
    let mut created = DirBuilder::new().mode(0o700).create(dir);
    if let Err(error) = &created
        && error.kind() == io::ErrorKind::NotFound
    {
        if let Some(parent) = dir.parent() {
            // Other users must not be able to write to it, whatever the umask.
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        created = DirBuilder::new().mode(0o700).create(dir);
    }
    match created {
        // The directory exists, whatever the error: a read-only or full disk may return its own error first.
        Err(_) if dir.is_dir() => Ok(()),
        created => created,
    }
}

/// Reasons for which the records in a directory are not used.
pub(super) const OTHER_OWNER: &str = "it belongs to another user";
pub(super) const WRITABLE_BY_OTHERS: &str = "others may write to it";

/// Rejects a directory in which another user could change the records: it must belong to this user or root, and not be
/// writable by other users. A path that does not exist or is not a directory is accepted, and fails when it is opened.
pub(super) fn trusted(dir: &Path) -> io::Result<()> {
    let Ok(facts) = rustix::fs::stat(dir) else { return Ok(()) };
    if !rustix::fs::FileType::from_raw_mode(facts.st_mode).is_dir() {
        return Ok(());
    }
    let denied = |reason: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    if facts.st_uid != 0 && facts.st_uid != rustix::process::geteuid().as_raw() {
        return denied(OTHER_OWNER);
    }
    if facts.st_mode & 0o022 != 0 {
        return denied(WRITABLE_BY_OTHERS);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn location_follows_user_and_flags() {
        let live = Sysroot::live();
        let root =
            Caller { home: Some("/root".into()), xdg_state_home: Some("/x".into()), ..Caller::default() };
        let user = Caller { uid: 1000, home: Some("/home/u".into()), ..Caller::default() };
        let home = Path::new("/home/u/.local/state/layersweep");
        let xdg = Caller { xdg_state_home: Some("/state".into()), ..user.clone() };
        let relative = Caller { xdg_state_home: Some("state".into()), ..user.clone() };
        for (caller, expected) in [
            (&root, Path::new("/var/lib/layersweep")),
            (&user, home),
            (&xdg, Path::new("/state/layersweep")),
            (&relative, home),
        ] {
            assert_eq!(state_directory(&live, None, caller).dir, expected, "{caller:?}");
        }
        let named = state_directory(&live, Some(Path::new("/srv/state")), &root);
        assert_eq!(named.dir, Path::new("/srv/state"));
        assert!(named.pending.as_ref().unwrap().starts_with("/run/layersweep/pending"), "{named:?}");
        let other = state_directory(&live, Some(Path::new("/srv/other")), &root);
        assert_ne!(named.pending, other.pending, "each state directory has its own queue");
        let alone = state_directory(&live, Some(Path::new("/srv/state")), &user);
        assert_eq!(alone.pending.unwrap(), Path::new("/srv/state/pending"), "not below /tmp");
        let runtime = Caller { xdg_runtime_dir: Some("/run/user/1000".into()), ..user };
        let pending = state_directory(&live, None, &runtime).pending.unwrap();
        assert!(pending.starts_with("/run/user/1000/layersweep/pending"), "{pending:?}");
    }

    #[test]
    fn mounted_root_is_never_left() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("var/lib/layersweep")).unwrap();
        let sysroot = Sysroot::at(dir.path());
        let found = state_directory(&sysroot, None, &Caller::default());
        let inside = dir.path().canonicalize().unwrap().join("var/lib/layersweep");
        assert_eq!(found, StateDirectory { dir: inside, pending: None, foreign: true, unresolved: None });
        std::fs::remove_dir(dir.path().join("var/lib/layersweep")).unwrap();
        let missing = state_directory(&sysroot, None, &Caller::default());
        assert!(matches!(missing.unresolved, Some((io::ErrorKind::NotFound, _))), "{missing:?}");
    }

    #[test]
    fn new_state_directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        make_private(&state).unwrap();
        make_private(&state).unwrap();
        assert_eq!(std::fs::metadata(&state).unwrap().mode() & 0o7777, 0o700);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(make_private(&dir.path().join("file")).is_err());
    }
}
