//! Origins of images that came in every way, by the real tools and a real registry.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{self, program, store};
use program::{list, text, texts};

/// Origins in the document of `images`, by the last part of each repository; "" for images without a name.
pub fn origins(document: &Value) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for image in list(document, "/images") {
        let mut names = texts(image, "/names");
        if names.is_empty() {
            names.push(String::new());
        }
        for name in names {
            let short = name.rsplit('/').next().unwrap().trim_end_matches(":1");
            found.insert(short.to_owned(), text(image, "/origin/kind").to_owned());
        }
    }
    found
}

#[test]
fn every_way_into_a_graphroot_is_recognised() {
    let tools = ["skopeo", "docker-registry", "curl", "python3", "busybox"];
    if !store::require_tools() || !tools.iter().all(|tool| support::require_program(tool)) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Command::new(store::rig("origins.sh"));
    rig.arg(dir.path()).arg(env!("CARGO_BIN_EXE_layersweep"));
    let document: Value = serde_json::from_str(&store::succeed(&mut rig)).unwrap();
    let expected = [
        ("pull", "pulled"),
        ("skopeo", "pulled"),
        ("pushed-archive", "pulled"),
        ("docker-archive", "loaded"),
        ("oci-archive", "loaded"),
        ("import", "loaded"),
        ("build", "built"),
        ("build-on-pulled", "built"),
        ("label-on-pulled", "built"),
        ("build-and-push", "built"),
        ("commit", "built"),
        // A layer that a build left behind.
        ("", "built"),
    ];
    let expected = expected.map(|(name, origin)| (name.to_owned(), origin.to_owned()));
    assert_eq!(origins(&document), BTreeMap::from(expected), "{document:#}");
    let pulled = list(&document, "/images")
        .iter()
        .find(|image| texts(image, "/names").iter().any(|name| name.ends_with("/pull:1")));
    let registry = text(pulled.unwrap(), "/origin/registry");
    assert!(registry.starts_with("127.0.0.1:") && registry.ends_with("/by/pull"), "{registry}");
    kept_by_setting(dir.path());
    if support::require_program("jq") {
        pulled_again(dir.path());
    }
}

/// An archive of a pulled base with another configuration: a registry has its layers, and not the image.
#[test]
fn other_configuration_of_pulled_layers_is_kept() {
    let tools = ["skopeo", "docker-registry", "curl", "python3"];
    if !store::require_tools() || !tools.iter().all(|tool| support::require_program(tool)) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Command::new(store::rig("origin-of-configuration.sh"));
    rig.arg(dir.path()).arg(env!("CARGO_BIN_EXE_layersweep"));
    let document: Value = serde_json::from_str(&store::succeed(&mut rig)).unwrap();
    let origins_of = |key: &str| origins(&document[key]);
    let all = |expected: [(&str, &str); 4]| {
        BTreeMap::from(expected.map(|(name, origin)| (name.to_owned(), origin.to_owned())))
    };
    let at_once =
        all([("base", "pulled"), ("child", "pulled"), ("other", "unknown"), ("base:custom", "unknown")]);
    assert_eq!(origins_of("at_once"), at_once, "{document:#}");
    // Former names count.
    let untagged =
        all([("", "pulled"), ("moved", "pulled"), ("other", "unknown"), ("base:custom", "unknown")]);
    assert_eq!(origins_of("untagged"), untagged, "{document:#}");
    assert!(origins_of("without_cache").values().all(|origin| origin == "unknown"), "{document:#}");
    // Now the cache is missing: the origin of all is unknown, and they are kept.
    let config = dir.path().join("layersweep.toml");
    std::fs::write(&config, "[protect]\nnot_repullable = \"always\"\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
    command.arg("--config").arg(&config).arg("--graphroot").arg(dir.path().join("root"));
    command.arg("--state-dir").arg(dir.path().join("state")).args(["explain", "quay.io/by/other:1"]);
    let explained = support::program::run(&mut command).stdout;
    assert!(
        explained.contains("Kept by rule not-repullable: origin unknown (the blob-info cache"),
        "{explained}"
    );
}

/// A run deletes all of them by a list; what was pulled can be pulled again, and the others are named.
fn pulled_again(work: &Path) {
    let mut rig = Command::new(store::rig("repull.sh"));
    rig.arg(work).arg(env!("CARGO_BIN_EXE_layersweep"));
    let document: Value = serde_json::from_str(&store::succeed(&mut rig)).unwrap();
    assert_eq!(document["code"], 3);
    assert_eq!(list(&document, "/rm/deleted").len(), 12);
    assert_eq!(texts(&document, "/rm/absent"), ["quay.io/by/elsewhere:1"]);
    let back: Vec<_> = origins(&document).into_values().collect();
    assert_eq!(back, ["pulled", "pulled"], "{document:#}");
    let references: Vec<_> = text(&document, "/references").lines().collect();
    assert_eq!(references.len(), 3, "{document:#}");
    for image in list(&document, "/images") {
        let digest = format!("@{}", text(image, "/digests/0"));
        assert!(references.iter().any(|reference| reference.ends_with(&digest)), "{document:#}");
    }
    let notes = text(&document, "/notes");
    for (name, why) in [
        ("quay.io/by/build:1", "built here"),
        ("localhost/by/commit:1", "built here"),
        ("/by/build-and-push:1", "built here"),
        ("localhost/docker-archive:1", "loaded here from an archive"),
        ("quay.io/by/oci-archive:1", "loaded here from an archive"),
        ("quay.io/by/import:1", "loaded here from an archive"),
    ] {
        assert!(notes.contains(&format!("{name} ({why})")), "{name}: {notes}");
    }
    assert_eq!(notes.matches("# not pullable: ").count(), 9, "{notes}");
}

/// By default podman's images are not kept; with `always` those that were never pulled are.
fn kept_by_setting(work: &Path) {
    for (setting, is_kept) in [("kubernetes", false), ("always", true)] {
        let config = work.join("layersweep.toml");
        std::fs::write(&config, format!("[protect]\nnot_repullable = \"{setting}\"\n")).unwrap();
        let run = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
            command.arg("--config").arg(&config).arg("--graphroot").arg(work.join("root"));
            command.arg("--state-dir").arg(work.join("state")).args(words).args(["--format", "json"]);
            support::program::run(&mut command).json()
        };
        let document = run(&["explain", "quay.io/by/build:1"]);
        let rule = list(&document, "/rules").iter().find(|rule| rule["rule"] == "not-repullable").unwrap();
        assert_eq!(rule["keeps"] == true, is_kept, "{setting}: {rule:#}");
        let doctor = run(&["doctor"]);
        let named = list(&doctor, "/checks").iter().find(|check| check["name"] == "not-repullable");
        // The cache of the pulls was another one: what was pulled cannot be told from what was loaded.
        let named = named.map(|check| {
            text(check, "/message").starts_with("gc keeps 11 of 12 images, which no container uses,")
        });
        assert_eq!(named, is_kept.then_some(true), "{setting}: {doctor:#}");
    }
}
