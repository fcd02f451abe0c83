//! `containers.conf`, as far as it says where podman keeps its database (`pkg/config/config.go` of
//! containers/common: `[engine] static_dir`).

use std::path::{Path, PathBuf};

use super::Environment;
use super::files::Files;
use super::storage_conf::config_home;
use super::toml_file::{Problems, with_file};

/// The directories that any of the files names. Podman takes the last one; what an earlier one names may
/// hold what podman knew before.
pub(super) fn static_dirs(
    files: &Files<'_>,
    environment: &Environment,
    problems: &mut Problems,
) -> Vec<PathBuf> {
    let system = ["/usr/share/containers", "/etc/containers"].map(PathBuf::from);
    let own = config_home(environment).filter(|_| environment.uid != 0);
    let mut named = Vec::new();
    for directory in system.into_iter().chain(own) {
        named.push(directory.join("containers.conf"));
        let drop_ins = directory.join("containers.conf.d");
        let entries = files.list(&drop_ins);
        let mut names: Vec<_> = entries.iter().flatten().map(|entry| entry.name.clone()).collect();
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
            let dir = engine.and_then(|engine| engine.string("static_dir", problems));
            dirs.extend(dir.map(PathBuf::from).filter(|dir: &PathBuf| Path::is_absolute(dir)));
        });
    }
    dirs.dedup();
    dirs
}
