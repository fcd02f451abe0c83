//! `fits`: the predicted bytes of ten images against those that arrive from a real registry, and wrong files.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::cri_server::gc_node::{GcNode, deleted, name};
use crate::support::loopfs::{Fs, LoopFs, MIB};
use crate::support::program::{self, list, number, text, texts};
use crate::support::{self, store};

#[test]
fn what_arrives_is_within_the_spread() {
    let tools = ["docker-registry", "curl", "jq", "python3", "skopeo"];
    if !store::require_tools()
        || !Fs::Ext4.require()
        || !tools.iter().all(|tool| support::require_program(tool))
    {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 2 << 30);
    let mut rig = Command::new(store::rig("fits.sh"));
    rig.arg(loopfs.path()).arg(env!("CARGO_BIN_EXE_layersweep")).args(["4", "2", "2", "1024"]);
    let document: Value = serde_json::from_str(&store::succeed(&mut rig)).unwrap();
    let (predicted, arrived) = (number(&document, "/disk_bytes"), number(&document, "/arrived"));
    assert!(predicted.abs_diff(arrived) * 10 <= arrived, "{predicted} {arrived}: {document:#}");
    assert_eq!((number(&document, "/code"), text(&document, "/fits")), (0, "yes"));
    assert_within(&document, arrived);
    assert_within(&document["unnamed"], arrived);
    let images = list(&document, "/images");
    let arrivals = list(&document, "/arrivals");
    assert_eq!((images.len(), arrivals.len()), (10, 10));
    images.iter().zip(arrivals).for_each(|(image, arrived)| assert_within(image, arrived.as_u64().unwrap()));
    // The first version's base is here; the second version has a new one.
    for (version, new_layers) in [("repository-0:1", 1), ("repository-0:2", 2)] {
        let image = images.iter().find(|image| text(image, "/name").ends_with(version)).unwrap();
        assert_eq!(number(image, "/new_layers"), new_layers, "{version}");
    }
    let sources: Vec<_> =
        list(&document, "/estimated_from").iter().map(|from| text(from, "/source")).collect();
    assert_eq!(sources, ["repository", "node"], "{document:#}");
    no_command_is_for_another_machine(&loopfs);
}

/// Asks for the disk of another node, with pulled images that can make room.
fn no_command_is_for_another_machine(disk: &LoopFs) {
    let facts = nix::sys::statvfs::statvfs(disk.path()).unwrap();
    let [capacity, available] =
        [facts.blocks(), facts.blocks_available()].map(|blocks| blocks * facts.fragment_size());
    let used = capacity - available;
    let high = used * 100 / capacity + 2;
    let toml = format!("[images]\nhigh_percent = {high}\nlow_percent = {}\nmin_age = \"0s\"\n", high - 1);
    std::fs::write(disk.path().join("node.toml"), toml).unwrap();
    // The estimate is 1.05 bytes for each byte of a tar: a bit more than there is room for.
    let layer = json!({
        "digest": format!("sha256:{}", "a".repeat(64)),
        "size": (capacity * high / 100 - used + MIB) * 100 / 105,
        "mediaType": "application/vnd.oci.image.layer.v1.tar",
    });
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("manifest.json");
    std::fs::write(&manifest, json!({ "layers": [layer] }).to_string()).unwrap();
    let mut command = program::command();
    command.env_remove("LAYERSWEEP_STATE_DIR").arg("fits").arg(&manifest).args(["--graphroot", "/root"]);
    command.args(["--config", "/node.toml", "--sysroot"]).arg(disk.path());
    let screen = program::run(&mut command).expect_no_crash().expect_code(4).stdout;
    assert!(screen.contains("Once the node runs again, its gc can make room "), "{screen}");
    assert!(!screen.contains("layersweep gc") && !screen.contains("pin add"), "{screen}");
}

fn assert_within(estimate: &Value, arrived: u64) {
    let spread = number(estimate, "/disk_bytes_low")..=number(estimate, "/disk_bytes_high");
    assert!(spread.contains(&arrived), "{arrived}: {estimate:#}");
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
    // Layers like those of the repository's other image: more than 9 % of the filesystem.
    let layers = (0..6).map(|number| {
        let digest = format!("sha256:{number}{}", "a".repeat(63));
        json!({ "digest": digest, "size": 37 * MIB / 6, "mediaType": "application/vnd.oci.image.layer.v1.tar" })
    });
    let content = json!({ "name": "reg.local/old-0:2", "layers": layers.collect::<Vec<_>>() });
    std::fs::write(&manifest, content.to_string()).unwrap();
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
    // An image that no registry has is deleted last, however long it is unused: the others suffice.
    assert!(deletes.len() > 1 && deletes[0] == name(2), "{document:#}");
    assert!(!deletes.contains(&imported.to_owned()), "{document:#}");
    assert_eq!(texts(&document, "/never_pulled"), [] as [String; 0], "{document:#}");
    assert_eq!(text(&document, "/fits_after_gc"), "yes", "{document:#}");
    let needed = number(&document, "/deletes_needed");
    assert!((1..=deletes.len() as u64).contains(&needed), "{document:#}");
    let screen = node.run(&ask).expect_code(4).stdout;
    let flags = format!(" pin add {}`: gc may delete", given.join(" "));
    assert!(screen.contains(&flags), "{screen}");
    assert!(screen.contains("% used after the pull, which fits.\n"), "{screen}");
    node.run(&[&["pin", "add"][..], &given.each_ref().map(String::as_str)].concat()).expect_code(0);
    assert!(node.json(4, &ask)["to_pin"].as_array().unwrap().is_empty());
    // The command of the document is complete.
    let words = text(&document, "/command").split(' ').skip(1);
    let run = program::run(program::command().args(words).args(["--format", "json"])).expect_code(0);
    assert_eq!(deleted(&run.json()), deletes);
    assert_eq!(text(&node.json(0, &ask), "/fits"), "yes");
    // Without the name of its repository the upper end is too much.
    let unnamed = node.store.scratch().join("unnamed.json");
    std::fs::write(&unnamed, json!({ "layers": content["layers"] }).to_string()).unwrap();
    let ask_unnamed = ["fits", unnamed.to_str().unwrap(), "--cri-endpoint", &endpoint, "--config", &config];
    assert_eq!(text(&node.json(4, &ask_unnamed), "/fits"), "probably");
    let screen = node.run(&ask_unnamed).expect_code(4).stdout;
    assert!(screen.contains(": they probably fit.\n"), "{screen}");

    // Nothing arrives: they fit on any disk.
    let high = node.config("[images]\nhigh_percent = 10\nmin_age = \"60d\"\n");
    let ask = ["fits", &name(0), "--config", &high];
    let screen = node.run(&ask).expect_code(0).stdout.replace('\n', " ");
    for words in [
        "all images are here already, nothing is to be pulled; ",
        "% used now, above the high threshold 10%.",
        " report` lists what holds the disk):",
        " by not-repullable (loaded here and never pulled",
    ] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    let document = node.json(0, &ask);
    assert_eq!((&document["command"], list(&document, "/to_pin").len()), (&Value::Null, 0), "{document:#}");

    // Nothing is pulled, but the disk is above its threshold, and no deletion is enough: no command is printed.
    let toml = "[images]\nhigh_percent = 50\nlow_percent = 40\nmin_age = \"0s\"\n[protect]\nnot_repullable = \"never\"\n";
    let ask = ["fits", &name(0), "--config", &node.config(toml)];
    let screen = node.run(&ask).expect_code(0).stdout.replace('\n', " ");
    assert!(screen.contains(" report` lists what holds the disk):"), "{screen}");
    assert!(!screen.contains("gc --high"), "{screen}");
    assert!(!screen.contains("after the pull"), "{screen}");

    // Names alone.
    let ask = ["fits", "quay.io/a:1", "manifests.jsn"];
    let screen = node.run(&ask).expect_code(3).stdout;
    let sum = screen.lines().find(|line| line.starts_with("All ")).unwrap();
    assert_eq!(
        sum.split_whitespace().collect::<Vec<_>>(),
        ["All", "unknown", "unknown", "unknown", "unknown"],
        "{screen}"
    );
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
