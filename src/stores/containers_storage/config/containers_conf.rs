//! Directories named in `containers.conf`: podman's database, and the temporary files of pulls.
//!
//! Format: table `engine` in `pkg/config/config.go` of containers/common.

use std::path::{Path, PathBuf};

use super::files::{Files, with_file};
use super::storage_conf::{config_home, is_conf};
use super::types::Problems;
use crate::stores::environment::Environment;
use crate::sys::quiet::{FileKind, is_absent};

/// Key for the directory of podman's database.
pub(super) const STATIC_DIR: &str = "static_dir";

/// Key for the directory of the temporary files of pulls. The value "storage" means `tmp` in the graphroot.
pub(super) const IMAGE_COPY_TMP_DIR: &str = "image_copy_tmp_dir";

/// Returns the absolute directories that any of the files sets with `key`.
///
/// Podman uses the value of the last file. The values of earlier files are returned as well, because podman may have
/// left data there before the later file existed.
pub(super) fn directories(
    files: &Files<'_>,
    environment: &Environment,
    key: &str,
    problems: &mut Problems,
) -> Vec<PathBuf> {
    let system = ["/usr/share/containers", "/etc/containers"].map(PathBuf::from);
    let user = config_home(environment).filter(|_| environment.uid != 0);
    let mut candidates = Vec::new();
    for directory in system.into_iter().chain(user) {
        candidates.push(directory.join("containers.conf"));
        let drop_ins = directory.join("containers.conf.d");
        let entries = files.list(&drop_ins);
        if let Err(error) = &*entries
            && !is_absent(error)
        {
            problems.note(&drop_ins, format!("listing it: {error}"));
        }
        let files =
            entries.iter().flatten().filter(|entry| entry.kind != FileKind::Directory && is_conf(entry));
        let mut names: Vec<_> = files.map(|entry| entry.name.clone()).collect();
        names.sort();
        candidates.extend(names.into_iter().map(|name| drop_ins.join(name)));
    }
    candidates.extend(
        [&environment.containers_conf, &environment.containers_conf_override].into_iter().flatten().cloned(),
    );
    let mut dirs = Vec::new();
    for file in candidates.iter().filter(|file| files.exists(file)) {
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
    fn directories_of_all_conf_files_are_returned() {
        fn content(dir: &str) -> String {
            format!("[engine]\nstatic_dir = \"{dir}\"\nimage_copy_tmp_dir = \"{dir}/tmp\"\n")
        }
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc/containers");
        let drop_ins = etc.join("containers.conf.d");
        fs::create_dir_all(drop_ins.join("directory.conf")).unwrap();
        fs::write(etc.join("containers.conf"), content("/main")).unwrap();
        fs::write(drop_ins.join("20-relative.conf"), content("relative")).unwrap();
        fs::write(drop_ins.join("README"), "This is not TOML.").unwrap();
        fs::write(root.path().join("etc/linked"), content("/linked")).unwrap();
        std::os::unix::fs::symlink("/etc/linked", drop_ins.join("10-link.conf")).unwrap();
        fs::write(drop_ins.join("30-last.conf"), content("/last")).unwrap();
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
