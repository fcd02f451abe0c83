//! `fits`: the predicted bytes of twenty images against those that arrive from a real registry, and wrong files.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::loopfs::{Fs, LoopFs};
use crate::support::program::{list, number, text};
use crate::support::{self, store};

#[test]
fn predicted_bytes_arrive() {
    let tools = ["docker-registry", "curl", "jq", "python3"];
    if !store::require_tools()
        || !Fs::Ext4.require()
        || !tools.iter().all(|tool| support::require_program(tool))
    {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 2 << 30);
    let mut rig = Command::new(store::rig("fits.sh"));
    rig.arg(loopfs.path()).arg(env!("CARGO_BIN_EXE_layersweep"));
    let document: Value = serde_json::from_str(&store::succeed(&mut rig)).unwrap();
    let (predicted, arrived) = (number(&document, "/disk_bytes"), number(&document, "/arrived"));
    assert!(predicted.abs_diff(arrived) * 20 <= arrived, "{predicted} {arrived}: {document:#}");
    assert_eq!((number(&document, "/code"), &document["fits"]), (0, &Value::Bool(true)));
    let images = list(&document, "/images");
    assert_eq!(images.len(), 20);
    // Its base is in the store; what it shares with an image before it counts there.
    let of = |name: &str| images.iter().find(|image| text(image, "/name") == name).unwrap();
    assert_eq!(number(of("manifest-image-4.json"), "/new_layers"), 1);
    assert_eq!(number(of("manifest-base-b.json"), "/new_layers"), 0, "image-1 has brought it");
}

fn refused(argument: &str, words: &str) {
    let Output { status, stderr, .. } =
        Command::new(env!("CARGO_BIN_EXE_layersweep")).arg("fits").arg(argument).output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{argument}: {stderr}");
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(lines[0].contains(words) && lines[1].starts_with("hint: "), "{stderr}");
}

#[test]
fn wrong_files_get_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for (content, words) in [
        ("<html><body>Sign in</body></html>", "it is HTML"),
        (r#"{"schemaVersion":2,"manifests":[{"digest":"sha256:aa"}]}"#, "it is an index of 1 manifests"),
        (r#"{"mediaType":"application/x-tar"}"#, "the media type \"application/x-tar\""),
        (r#"{"layers":[{"digest":"sha256:aa"}]}"#, "the layer sha256:aa has no size"),
        ("quay.io/a:1\nquay.io/a:\n", "line 2: not an image reference (its tag is empty)"),
        ("", "it is empty"),
    ] {
        let path = dir.path().join("file");
        std::fs::write(&path, content).unwrap();
        refused(path.to_str().unwrap(), words);
    }
    refused(dir.path().to_str().unwrap(), "it is a directory");
    refused("/dev/null", "it is not a regular file");
    refused("/no/file", "No such file");
    refused("docker://docker://quay.io/a:1", "not an image reference (of all schemes");
}
