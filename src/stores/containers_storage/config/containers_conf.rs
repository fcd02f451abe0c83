//! Directories from `containers.conf` (`pkg/config/config.go` of containers/common, table `engine`): podman's database,
//! and the temporary files of pulls.

use std::path::{Path, PathBuf};

use super::files::{Files, with_file};
use super::storage_conf::{config_home, is_conf};
use super::types::{Environment, Problems};
use crate::sys::quiet::{DirectoryEntry, FileKind, is_absent};

/// Key of the directory of podman's database.
pub(super) const STATIC_DIR: &str = "static_dir";

/// Key of the directory of the temporary files of pulls; "storage" means the graphroot's own `tmp`.
pub(super) const IMAGE_COPY_TMP_DIR: &str = "image_copy_tmp_dir";

/// The directories that any of the files names with `key`. Podman takes the last one; what an earlier one names may
/// hold what podman left before.
pub(super) fn directories(
    files: &Files<'_>,
    environment: &Environment,
    key: &str,
    problems: &mut Problems,
) -> Vec<PathBuf> {
    let system = ["/usr/share/containers", "/etc/containers"].map(PathBuf::from);
    let own = config_home(environment).filter(|_| environment.uid != 0);
    let mut named = Vec::new();
    for directory in system.into_iter().chain(own) {
        named.push(directory.join("containers.conf"));
        let drop_ins = directory.join("containers.conf.d");
        let entries = files.list(&drop_ins);
        if let Err(error) = &*entries
            && !is_absent(error)
        {
            problems.note(&drop_ins, format!("listing it: {error}"));
        }
        let is_read = |entry: &&DirectoryEntry| entry.kind != FileKind::Directory && is_conf(entry);
        let mut names: Vec<_> =
            entries.iter().flatten().filter(is_read).map(|entry| entry.name.clone()).collect();
        names.sort();
        named.extend(names.into_iter().map(|name| drop_ins.join(name)));
    }
    named.extend(
        [&environment.containers_conf, &environment.containers_conf_override].into_iter().flatten().cloned(),
    );
    let mut dirs = Vec::new();
    for file in named.iter().filter(|file| files.exists(file)) {
        with_file(files, file, problems, |table, problems| {
            let engine = table.table("engine", problems);
            let dir = engine.and_then(|engine| engine.string(key, problems));
            dirs.extend(dir.map(PathBuf::from).filter(|dir: &PathBuf| Path::is_absolute(dir)));
        });
    }
    dirs.dedup();
    dirs
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sys::sysroot::Sysroot;

    #[test]
    fn only_configuration_files_count_and_all_that_they_name() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc/containers");
        let drop_ins = etc.join("containers.conf.d");
        fs::create_dir_all(drop_ins.join("directory.conf")).unwrap();
        let says =
            |dir: &str| format!("[engine]\nstatic_dir = \"{dir}\"\nimage_copy_tmp_dir = \"{dir}/tmp\"\n");
        fs::write(etc.join("containers.conf"), says("/main")).unwrap();
        fs::write(drop_ins.join("20-relative.conf"), says("relative")).unwrap();
        fs::write(drop_ins.join("README"), "This is not TOML.").unwrap();
        fs::write(root.path().join("etc/linked"), says("/linked")).unwrap();
        std::os::unix::fs::symlink("/etc/linked", drop_ins.join("10-link.conf")).unwrap();
        fs::write(drop_ins.join("30-last.conf"), says("/last")).unwrap();
        let sysroot = Sysroot::at(root.path());
        let mut problems = Problems::default();
        for (key, expected) in [
            (STATIC_DIR, ["/main", "/linked", "/last"]),
            (IMAGE_COPY_TMP_DIR, ["/main/tmp", "/linked/tmp", "/last/tmp"]),
        ] {
            let dirs = directories(&Files::new(&sysroot), &Environment::default(), key, &mut problems);
            assert_eq!(dirs, expected.map(PathBuf::from));
        }
        assert!(problems.found.is_empty(), "{problems:?}");
    }
}
