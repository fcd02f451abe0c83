//! Stores that the configuration files of a node name: small trees below `fixtures/config`, each used as a root, and
//! trees that are made here because git cannot store them.

mod hostile;
mod reads;
mod rules;
mod users;

use std::fs;
use std::path::{Path, PathBuf};

use layersweep::stores::Environment;
use layersweep::stores::containers_storage::config::{GraphrootDiscovery, StoreConfig};
use layersweep::sys::sysroot::Sysroot;

fn fixture(case: &str) -> Sysroot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/config").join(case);
    assert!(path.is_dir(), "no fixture {case}");
    Sysroot::at(&path)
}

fn root() -> Environment {
    Environment { home: Some("/root".into()), ..Environment::default() }
}

fn user(uid: u32, name: &str) -> Environment {
    Environment { uid, home: Some(Path::new("/home").join(name)), ..Environment::default() }
}

fn path(value: &str) -> Option<PathBuf> {
    Some(value.into())
}

/// Returns a store in one line: graphroot, runroot, then every other setting.
fn line(store: &StoreConfig) -> String {
    let mut line = format!("{} {}", store.graphroot.display(), store.runroot.display());
    let lists = [
        ("run", &store.other_runroots[..]),
        ("images", store.imagestore.as_slice()),
        ("more-images", &store.other_imagestores),
        ("ro", &store.additional_image_stores),
        ("layers", &store.additional_layer_stores),
    ];
    for (name, paths) in lists {
        for path in paths {
            line.push_str(&format!(" {name}={}", path.display()));
        }
    }
    if let Some(driver) = &store.driver {
        line.push_str(&format!(" driver={driver}"));
    }
    if store.transient {
        line.push_str(" transient");
    }
    format!("{line} ({})", store.origin)
}

fn lines(discovery: &GraphrootDiscovery) -> Vec<String> {
    discovery.stores.iter().map(line).collect()
}

/// Makes a new root with these files.
fn made(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Sysroot) {
    let disk = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let file = disk.path().join(name);
        fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
        fs::write(file, text).expect("a file");
    }
    let sysroot = Sysroot::at(disk.path());
    (disk, sysroot)
}
