//! The configuration files in the packages.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeMap;
use std::path::Path;

use layersweep::config::Config;
use layersweep::sys::sysroot::Sysroot;

/// Keys without a default that could be written down; the file has an example of each.
const EXAMPLES: [&str; 9] = [
    "images.rule",
    "kubelet.container_logs_dir",
    "kubelet.pod_logs_dir",
    "kubelet.root_dir",
    "stores.containerd_root",
    "stores.cri_endpoint",
    "stores.docker_root",
    "stores.graphroot",
    "stores.runroot",
];

fn shipped(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/etc").join(name)).unwrap()
}

/// Returns every key of the file with its line, by its full name; each key occurs once.
fn keys(text: &str) -> BTreeMap<String, String> {
    let mut table = String::new();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = format!("{name}.");
        } else if let Some(line) = line.strip_prefix('#').filter(|line| !line.starts_with(' ')) {
            let (key, _) = line.split_once(" = ").unwrap_or_else(|| panic!("no key: {line}"));
            let twice = found.insert(format!("{table}{key}"), line.to_owned());
            assert_eq!(twice, None, "{line}");
        } else {
            assert!(line.is_empty() || line.starts_with("# "), "something is set: {line}");
        }
    }
    found
}

/// Returns the configuration of a file with these keys.
fn configuration(lines: &BTreeMap<String, String>) -> Config {
    // Dotted keys at the top need no order of tables.
    let text: String = lines
        .iter()
        .map(|(name, line)| {
            let (_, value) = line.split_once(" = ").unwrap();
            format!("{name} = {value}\n")
        })
        .collect();
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("etc/layersweep/layersweep.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, &text).unwrap();
    let config = Config::load(&Sysroot::at(root.path()), None, &[]);
    Config {
        files: vec![],
        origins: BTreeMap::new(),
        ..config.unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}

#[test]
fn configuration_file_has_every_default() {
    let keys = keys(&shipped("layersweep.toml"));
    // This page has every key and no other one; a unit test checks that.
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let known: Vec<&str> = rows.map(|(name, _)| name).collect();
    for name in &known {
        assert!(keys.contains_key(*name), "packaging/etc/layersweep.toml lacks {name}");
    }
    for name in keys.keys() {
        assert!(known.contains(&name.as_str()), "there is no key {name}");
    }
    let mut defaults = keys.clone();
    defaults.retain(|name, _| !EXAMPLES.contains(&name.as_str()));
    assert_eq!(defaults.len() + EXAMPLES.len(), keys.len(), "an example is no key any more");
    assert_eq!(configuration(&defaults), Config::defaults(&[]).unwrap());
    // The examples are valid without changes.
    assert_ne!(configuration(&keys), Config::defaults(&[]).unwrap());
}

#[test]
fn shipped_configuration_sets_nothing() {
    for name in ["layersweep.toml", "vendor.toml"] {
        let text = shipped(name);
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("etc/layersweep/layersweep.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&Sysroot::at(root.path()), None, &[]).unwrap();
        assert_eq!(config.files.len(), 1);
        assert_eq!(
            Config { files: vec![], origins: BTreeMap::new(), ..config },
            Config::defaults(&[]).unwrap()
        );
    }
}
