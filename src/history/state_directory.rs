//! Location of the records.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::sys::sysroot::Sysroot;

/// Location of a node's records and the permitted access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDirectory {
    /// The state directory, as we reach it.
    pub dir: PathBuf,
    /// Directory of runs that could not be saved ([`super::pending`]); `None` on the disk of another system.
    pub pending: Option<PathBuf>,
    /// It is on the disk of another system: nothing is ever written there, or for it.
    pub foreign: bool,
    /// Why `dir` has no place inside the mounted root; then it is only a name.
    pub unresolved: Option<(io::ErrorKind, String)>,
}

impl StateDirectory {
    /// The state directory `dir` of the running system, with the queue in it.
    #[must_use]
    pub fn local(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), pending: Some(dir.join(PENDING)), foreign: false, unresolved: None }
    }
}

/// Who calls, as far as that decides where things lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Effective user id.
    pub uid: u32,
    pub home: Option<OsString>,
    pub xdg_state_home: Option<OsString>,
    pub xdg_runtime_dir: Option<OsString>,
}

impl Caller {
    /// From the process's own environment.
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

/// The directory of the records: `state_dir`, or the caller's default. Both are taken inside
/// `sysroot`, where nothing is ever written.
///
/// Runs that cannot be saved go to `/run/layersweep/pending/<hash>`: the disk of the state directory may be full
/// or read-only. For a user without a directory of that kind they go to `pending` in the state directory.
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
    let hash: String =
        Sha256::digest(dir.as_os_str().as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // In /tmp anybody may have made a directory before us.
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

/// Root's state directory by default.
pub const SYSTEM: &str = "/var/lib/layersweep";

/// `None` for a user without a home.
fn default_dir(caller: &Caller) -> Option<PathBuf> {
    if caller.uid == 0 {
        return Some(SYSTEM.into());
    }
    let state = absolute(caller.xdg_state_home.as_ref())
        .or_else(|| absolute(caller.home.as_ref()).map(|home| home.join(".local/state")));
    state.map(|state| state.join("layersweep"))
}

/// The XDG specification: a relative path is to be ignored.
fn absolute(variable: Option<&OsString>) -> Option<PathBuf> {
    variable.map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Makes `dir` where there is none, for us alone.
pub(super) fn make_private(dir: &Path) -> io::Result<()> {
    let make = || DirBuilder::new().mode(0o700).create(dir);
    let made = match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = dir.parent() {
                // Not for others to write to, whatever the umask.
                DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            make()
        }
        made => made,
    };
    match made {
        // Whatever it says (a read-only or a full disk may say so first), it is there.
        Err(_) if dir.is_dir() => Ok(()),
        made => made,
    }
}

/// Refuses a directory that somebody else could change what we believe in: it must be ours or
/// root's, and nobody else may write to it. What is not there, or is no directory, is for the
/// opening to say.
pub(super) fn trusted(dir: &Path) -> io::Result<()> {
    let Ok(facts) = rustix::fs::stat(dir) else { return Ok(()) };
    if !rustix::fs::FileType::from_raw_mode(facts.st_mode).is_dir() {
        return Ok(());
    }
    let denied = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if facts.st_uid != 0 && facts.st_uid != rustix::process::geteuid().as_raw() {
        return denied("it belongs to another user");
    }
    if facts.st_mode & 0o022 != 0 {
        return denied("others may write to it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn root_users_and_flags() {
        let live = Sysroot::live();
        let root =
            Caller { home: Some("/root".into()), xdg_state_home: Some("/x".into()), ..Caller::default() };
        let user = Caller { uid: 1000, home: Some("/home/u".into()), ..Caller::default() };
        let dir = |caller: &Caller| state_directory(&live, None, caller).dir;
        assert_eq!(dir(&root), Path::new("/var/lib/layersweep"));
        assert_eq!(dir(&user), Path::new("/home/u/.local/state/layersweep"));
        let xdg = Caller { xdg_state_home: Some("/state".into()), ..user.clone() };
        assert_eq!(dir(&xdg), Path::new("/state/layersweep"));
        let relative = Caller { xdg_state_home: Some("state".into()), ..user.clone() };
        assert_eq!(dir(&relative), Path::new("/home/u/.local/state/layersweep"));
        let named = state_directory(&live, Some(Path::new("/srv/state")), &root);
        assert_eq!(named.dir, Path::new("/srv/state"));
        let pending = |directory: &StateDirectory| directory.pending.clone().unwrap();
        assert!(pending(&named).starts_with("/run/layersweep/pending"), "{named:?}");
        let other = state_directory(&live, Some(Path::new("/srv/other")), &root);
        assert_ne!(named.pending, other.pending, "two state directories do not share one");
        let alone = state_directory(&live, Some(Path::new("/srv/state")), &user);
        assert_eq!(pending(&alone), Path::new("/srv/state/pending"), "nothing below /tmp");
        let runtime = Caller { xdg_runtime_dir: Some("/run/user/1000".into()), ..user };
        let own = state_directory(&live, None, &runtime);
        assert!(pending(&own).starts_with("/run/user/1000/layersweep/pending"), "{own:?}");
    }

    #[test]
    fn inside_a_mounted_root_nothing_leads_outside() {
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
    fn a_new_state_directory_is_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        make_private(&state).unwrap();
        make_private(&state).unwrap();
        assert_eq!(std::fs::metadata(&state).unwrap().mode() & 0o7777, 0o700);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(make_private(&dir.path().join("file")).is_err());
    }
}
