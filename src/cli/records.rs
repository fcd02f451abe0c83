//! The records that the flags name.

use std::path::{Path, PathBuf};

use super::args::Global;
use super::failure::Failure;
use crate::records::{Access, DATABASE, Records};

/// Where the records are unless `--state-dir` says otherwise.
const STATE_DIR: &str = "/var/lib/layersweep";

/// The state directory, inside the sysroot if there is one.
pub(super) fn state_dir(global: &Global) -> Result<PathBuf, Failure> {
    let named = global.state_dir.as_deref().unwrap_or(Path::new(STATE_DIR));
    let absolute = std::path::absolute(named).map_err(|error| Failure::BadArgument {
        message: format!("--state-dir {}: {error}", named.display()),
        hint: String::new(),
    })?;
    let Some(sysroot) = &global.sysroot else { return Ok(absolute) };
    let below = match std::path::absolute(sysroot)
        .ok()
        .and_then(|top| absolute.strip_prefix(top).ok().map(Path::to_path_buf))
    {
        // Given with the sysroot in front, it means the same.
        Some(below) => below,
        None => absolute.strip_prefix("/").map_or_else(|_| absolute.clone(), Path::to_path_buf),
    };
    Ok(sysroot.join(below))
}

/// Opens the records; `None` if they are only to be read and there are none yet.
pub(super) fn open(global: &Global, access: Access) -> Result<Option<Records>, Failure> {
    let dir = state_dir(global)?;
    if access == Access::Read {
        match dir.join(DATABASE).try_exists() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(source) => return Err(Failure::StateDir { path: dir, source }),
        }
    } else {
        std::fs::create_dir_all(&dir).map_err(|source| Failure::StateDir { path: dir.clone(), source })?;
    }
    Records::open(&dir, access)
        .map(Some)
        .map_err(|source| Failure::Records { path: dir.join(DATABASE), source })
}

/// Reads from the records that `open` found; the default where there are none.
pub(super) fn read<T: Default>(
    global: &Global,
    records: Option<&Records>,
    work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
) -> Result<T, Failure> {
    let Some(records) = records else { return Ok(T::default()) };
    records.read(work).or_else(|source| Err(broken(global, source)?))
}

/// What SQLite said of the database.
pub(super) fn broken(global: &Global, source: crate::records::Error) -> Result<Failure, Failure> {
    Ok(Failure::Records { path: state_dir(global)?.join(DATABASE), source })
}

/// The database's path, for the documents.
pub(super) fn database(global: &Global, records: Option<&Records>) -> Result<Option<String>, Failure> {
    let path = state_dir(global)?.join(DATABASE);
    Ok(records.map(|_| path.to_string_lossy().into_owned()))
}
