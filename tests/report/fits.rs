//! `fits`: the predicted bytes of ten images against those that arrive from a real registry, and wrong files.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::cri_server::gc_node::{GcNode, deleted, name};
use crate::support::loopfs::{Fs, LoopFs, MIB};
use crate::support::program::{self, list, number, text, texts};
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
    assert_eq!(images.len(), 10);
    // Its base is in the store; what it shares with an image before it counts there.
    let of = |name: &str| images.iter().find(|image| text(image, "/name") == name).unwrap();
    assert_eq!(number(of("manifest-image-4.json"), "/new_layers"), 1);
    assert_eq!(number(of("manifest-base-b.json"), "/new_layers"), 0, "image-1 has brought it");
}

#[test]
fn announced_command_deletes_the_announced_images() {
    let Some(node) = GcNode::new(Fs::Ext4, 9) else { return };
    let imported = "reg.local/imported:1";
    let (data, tar) = (node.store.scratch().join("data"), node.store.scratch().join("imported.tar"));
    std::fs::write(&data, vec![7; usize::try_from(4 * MIB).unwrap()]).unwrap();
    store::succeed(Command::new("tar").arg("-C").arg(node.store.scratch()).arg("-cf").arg(&tar).arg("data"));
    node.store.podman(["import", "-q", tar.to_str().unwrap(), imported]);
    node.age();
    node.set_first_detected(imported, 60);
    node.set_first_detected(&name(3), 0);
    node.fill(66.0);
    let manifest = node.store.scratch().join("big.json");
    // Layers of random bytes take as much unpacked: more than 9 % of the filesystem.
    let layer = format!(r#"{{"digest":"sha256:{}","size":{}}}"#, "ab".repeat(32), 37 * MIB);
    std::fs::write(&manifest, format!(r#"{{"layers":[{layer}]}}"#)).unwrap();
    let manifest = manifest.to_str().unwrap();
    let id = node.id(&name(1));
    let config = node.config("[protect]\nnot_repullable = \"never\"\n");
    let endpoint = node.server.endpoint();
    let ask = ["fits", &name(0), &id, &name(3), manifest, "--cri-endpoint", &endpoint, "--config", &config];
    let document = node.json(4, &ask);
    // The last one is too young to be deleted now, but not for long.
    let given = [name(0), name(1), name(3)];
    assert_eq!(texts(&document, "/to_pin"), given, "{document:#}");
    let deletes = texts(&document, "/deletes");
    assert!(deletes.len() > 1 && deletes[..2] == [imported.to_owned(), name(2)], "{document:#}");
    assert_eq!(texts(&document, "/never_pulled"), [imported], "{document:#}");
    assert_eq!(document["fits_after_gc"], true, "{document:#}");
    let needed = number(&document, "/deletes_needed");
    assert!((1..=deletes.len() as u64).contains(&needed), "{document:#}");
    let screen = node.run(&ask).expect_code(4).stdout.replace('\n', " ");
    let flags = format!(" pin add {}`, since gc may delete", given.join(" "));
    assert!(screen.contains(&flags), "{screen}");
    assert!(screen.contains(", to be at the low threshold (70%) after the pull: "), "{screen}");
    assert!(screen.contains("1 image was built or loaded here and never pulled: perhaps"), "{screen}");
    node.run(&[&["pin", "add"][..], &given.each_ref().map(String::as_str)].concat()).expect_code(0);
    assert!(node.json(4, &ask)["to_pin"].as_array().unwrap().is_empty());
    // The command of the document is complete.
    let words = text(&document, "/command").split(' ').skip(1);
    let run = program::run(program::command().args(words).args(["--format", "json"])).expect_code(0);
    assert_eq!(deleted(&run.json()), deletes);
    assert_eq!(node.json(0, &ask)["fits"], true);

    // Nothing arrives: they fit on any disk.
    let high = node.config("[images]\nhigh_percent = 10\nmin_age = \"60d\"\n");
    let ask = ["fits", &name(0), "--config", &high];
    let screen = node.run(&ask).expect_code(0).stdout.replace('\n', " ");
    for words in [
        "all images are here already, nothing is to be pulled; ",
        "% used now, above the high threshold 10%.",
        "Nothing can be deleted to make room: ",
        " by min-age until ",
    ] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    let document = node.json(0, &ask);
    assert_eq!((&document["command"], list(&document, "/to_pin").len()), (&Value::Null, 0), "{document:#}");

    // Nothing is pulled, but the disk is above its threshold, and other images can be deleted.
    let toml = "[images]\nhigh_percent = 50\nlow_percent = 40\nmin_age = \"0s\"\n";
    let ask = ["fits", &name(0), "--config", &node.config(toml)];
    let screen = node.run(&ask).expect_code(0).stdout.replace('\n', " ");
    assert!(screen.contains(" would delete ") && screen.contains("% used then"), "{screen}");
    assert!(!screen.contains("after the pull"), "{screen}");

    // Names alone.
    let ask = ["fits", "quay.io/a:1", "manifests.jsn"];
    let screen = node.run(&ask).expect_code(3).stdout;
    let sum = screen.lines().find(|line| line.starts_with("All ")).unwrap();
    assert_eq!(sum.split_whitespace().collect::<Vec<_>>(), ["All", "unknown", "unknown"], "{screen}");
    for words in [
        "; the size of none of the 2 images is known, so whether they fit is unknown.",
        "only the name is known (no file has the name manifests.jsn)",
    ] {
        assert!(screen.replace('\n', " ").contains(words), "{words}: {screen}");
    }
}

#[test]
fn index_is_left_out_with_its_command() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    let digest = format!("sha256:{}", "ab".repeat(32));
    let path = node.store.scratch().join("index.json");
    std::fs::write(&path, format!(r#"{{"manifests":[{{"digest":"{digest}"}}]}}"#)).unwrap();
    let run = node.run(&["fits", path.to_str().unwrap(), &name(0)]).expect_code(3);
    let command = format!("`skopeo inspect --raw docker://REPOSITORY@{digest}`");
    assert!(run.stdout.replace('\n', " ").contains(&command), "{run:?}");
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
        (r#"{"DockerVersion":"","Layers":["sha256:aa"]}"#, "use skopeo inspect --raw"),
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
    refused("src", "it is a directory");
    refused("/dev/null", "it is not a regular file");
    refused("/no/file", "No such file");
    refused("docker://docker://quay.io/a:1", "not an image reference (of all schemes");
}
