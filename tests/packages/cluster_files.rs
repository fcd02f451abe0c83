//! The files for OpenShift: their forms agree. In all files of the packaging, the program knows each command line.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::{Path, PathBuf};

use crate::support;
use base64::Engine;
use layersweep::config::Config;
use layersweep::sys::sysroot::Sysroot;
use serde_json::Value;
use support::program::{layersweep, list, text};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn butane_and_machine_config_agree() {
    let butane = yaml(&read("packaging/openshift/worker.bu"));
    let machine = yaml(&read("packaging/openshift/worker.machineconfig.yaml"));
    assert_eq!(text(&butane, "/variant"), "openshift");
    assert_eq!(text(&machine, "/kind"), "MachineConfig");
    assert_eq!(butane["metadata"], machine["metadata"]);
    let ignition = &machine["spec"]["config"];
    assert!(text(ignition, "/ignition/version").starts_with("3."));
    let (sources, files) = (list(&butane, "/storage/files"), list(ignition, "/storage/files"));
    assert_eq!((sources.len(), files.len()), (1, 1));
    for (source, file) in sources.iter().zip(files) {
        assert_eq!(text(source, "/path"), text(file, "/path"));
        assert_eq!(source["overwrite"], file["overwrite"]);
        // In octal for readers (YAML 1.1, which Butane reads), in decimal for Ignition.
        let mode = u64::from_str_radix(&format!("{:.0}", source["mode"].as_f64().unwrap()), 8).unwrap();
        assert_eq!((mode, file["mode"].as_u64()), (0o644, Some(0o644)));
        let inline = text(source, "/contents/inline");
        let encoded = text(file, "/contents/source").strip_prefix("data:;base64,").unwrap();
        let decoded = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
        assert_eq!(String::from_utf8(decoded).unwrap(), inline);
        assert_eq!(read("packaging/openshift/50-cluster.toml"), inline);
        // The program accepts it at that path.
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join(text(file, "/path").trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, inline).unwrap();
        let config = Config::load(&Sysroot::at(root.path()), None, &[]).unwrap();
        assert_eq!(config.files.len(), 1, "{}", place.display());
        assert!(!config.images.protect.names.is_empty());
    }
    // The units of the package exist only after the boot into the layered system.
    assert!(butane["systemd"].is_null() && ignition["systemd"].is_null());
}

#[test]
fn kubelet_settings_for_openshift_agree() {
    for name in ["only", "first"] {
        let drop_in = yaml(&read(&format!("packaging/kubelet/50-layersweep-{name}.conf")));
        let openshift = yaml(&read(&format!("packaging/openshift/kubelet-layersweep-{name}.yaml")));
        for (key, value) in drop_in.as_object().unwrap() {
            if !["apiVersion", "kind"].contains(&key.as_str()) {
                assert_eq!(&openshift["spec"]["kubeletConfig"][key], value, "{name}: {key}");
            }
        }
        assert_eq!(text(&openshift, "/kind"), "KubeletConfig");
    }
}

/// All files in which a command line may occur.
fn sources() -> Vec<PathBuf> {
    let files = walkdir::WalkDir::new(file("packaging"))
        .into_iter()
        .chain(walkdir::WalkDir::new(file("docs/installing.md")));
    let files = files.map(|entry| entry.unwrap()).filter(|entry| entry.file_type().is_file());
    files.map(walkdir::DirEntry::into_path).collect()
}

/// Returns the command lines in a text: the text after `layersweep ` and a known command, up to the characters that end
/// words in a shell, YAML or Markdown.
fn command_lines(text: &str, commands: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for line in text.lines() {
        // A list of YAML or JSON, as for containers.
        let line = match line.split_once("[\"layersweep\"") {
            Some((_, rest)) => &format!("layersweep {}", rest.replace(['"', ',', ']'], " ")),
            None => line,
        };
        for rest in line.split("layersweep ").skip(1) {
            let mut words = Vec::new();
            for word in rest.split_whitespace() {
                let end = word.find(['`', '&', ';', '|', ')', '>', '(', '\\', '*', '"', '\'']);
                let kept = &word[..end.unwrap_or(word.len())];
                let kept = kept.trim_end_matches(['.', ',', ':']);
                if !kept.is_empty() && !kept.starts_with('#') {
                    words.push(kept.to_owned());
                }
                if end.is_some() || kept.len() < word.len() || word.starts_with('#') {
                    break;
                }
            }
            if words.first().is_some_and(|first| commands.contains(first)) {
                found.push(words);
            }
        }
    }
    found
}

#[test]
fn every_command_line_is_valid() {
    let help = layersweep(["--help"]).expect_code(0).stdout;
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<String> =
        listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    let mut seen = std::collections::BTreeSet::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).unwrap();
        for words in command_lines(&text, &commands) {
            // A command line in a sentence ends with its flags.
            fn is_flag(word: &&String) -> bool {
                word.starts_with('-')
            }
            let flags: Vec<&String> = words[1..].iter().collect();
            let prose = flags.iter().position(|word| !is_flag(word) && !is_value(&words, word));
            let line: Vec<&str> = match prose {
                Some(end) => words[..=end].iter().map(String::as_str).collect(),
                None => words.iter().map(String::as_str).collect(),
            };
            // With --help at the end, everything before it is parsed, and nothing is executed.
            let run = layersweep(line.iter().copied().chain(["--help"]));
            assert_eq!(run.code, 0, "{}: {line:?}: {run:?}", path.display());
            let bare: Vec<&str> = line.iter().copied().filter(|word| word.starts_with("--")).collect();
            let help = layersweep([line[0], "--help"]).expect_code(0).stdout;
            for flag in bare {
                assert!(help.contains(flag.split('=').next().unwrap()), "{}: {line:?}", path.display());
            }
            seen.insert(line.join(" "));
        }
    }
    for wanted in ["scan --quiet", "gc --yes --quiet", "gc --dry-run"] {
        assert!(seen.contains(wanted), "{wanted} was to be found in {seen:#?}");
    }
}

/// True if the word is the value of the flag before it.
fn is_value(words: &[String], word: &str) -> bool {
    let position = words.iter().position(|known| known == word).unwrap_or_default();
    let flags = ["--via", "--listen", "--only", "--high", "--low", "--format", "--limit", "--since"];
    position > 0 && flags.contains(&words[position - 1].as_str())
}
