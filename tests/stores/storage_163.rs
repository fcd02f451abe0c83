//! Stores as containers/storage 1.63 (Podman 6) leaves them: each layer with a parent has the file `lower-layers`,
//! and a missing name in `l/` is no longer created anew. The library on the test machine is older, so the new files
//! are made by hand, and mounting is done as the new library does it.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support;
use support::program::{self, list, text};
use support::store::{self, Store};
use support::{edit, small, tree};

/// Parents of each layer that has any, the nearest first.
fn chains(store: &Store) -> Vec<(String, Vec<String>)> {
    let records: Vec<Value> =
        serde_json::from_slice(&std::fs::read(store.record("layers.json")).unwrap()).unwrap();
    fn parent(records: &[Value], id: &str) -> Option<String> {
        let record = records.iter().find(|record| record["id"] == id)?;
        record["parent"].as_str().map(str::to_owned)
    }
    let chain =
        |id: &str| std::iter::successors(parent(&records, id), |id| parent(&records, id)).collect::<Vec<_>>();
    let all = records.iter().map(|record| text(record, "/id").to_owned());
    all.map(|id| (id.clone(), chain(&id))).filter(|(_, chain)| !chain.is_empty()).collect()
}

fn layer(store: &Store, id: &str) -> PathBuf {
    store.root().join("overlay").join(id)
}

/// Mounts a layer as 1.63 does (`getLowerLayerIDs` in `storage/drivers/overlay`): by `lower-layers`, else by the
/// names in
/// `lower`. Returns an error if that fails.
fn mounts(store: &Store, id: &str) -> Result<(), String> {
    let overlay = store.root().join("overlay");
    fn read(id: &str, store: &Store, name: &str) -> Result<String, std::io::Error> {
        std::fs::read_to_string(layer(store, id).join(name))
    }
    let lowers: Vec<PathBuf> = match (read(id, store, "lower-layers"), read(id, store, "lower")) {
        (Ok(ids), _) => ids.split(':').map(|id| overlay.join(id).join("diff")).collect(),
        (Err(_), Ok(names)) => {
            let names = names.split(':').map(|name| std::fs::read_link(overlay.join(name)));
            let targets = names.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
            targets.iter().map(|target| overlay.join("l").join(target)).collect()
        }
        _ => Vec::new(),
    };
    let upper = layer(store, id).join("diff");
    let all: Vec<_> = std::iter::once(&upper).chain(&lowers).map(|path| path.display().to_string()).collect();
    let target = store.scratch().join("mounted");
    std::fs::create_dir_all(&target).unwrap();
    let options = format!("lowerdir={}", all.join(":"));
    let mounted =
        Command::new("mount").args(["-t", "overlay", "x", "-o", &options]).arg(&target).output().unwrap();
    if !mounted.status.success() {
        return Err(String::from_utf8_lossy(&mounted.stderr).into_owned());
    }
    let entries = std::fs::read_dir(&target).unwrap().count();
    store::succeed(Command::new("umount").arg(&target));
    if entries > 0 { Ok(()) } else { Err("nothing is in it".into()) }
}

fn sweep(store: &Store, more: &[&str]) -> Value {
    let mut args = vec!["sweep", "--format", "json", "--min-age", "0s", "-y"];
    args.extend(more);
    let state = store.scratch().join("state");
    let mut command = program::command();
    command.args(args).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
    let run = program::run(command.arg("--state-dir").arg(state));
    assert_eq!(run.code, 0, "{run:?}");
    run.json()
}

fn missing_names(sweep: &Value) -> Vec<&str> {
    let found = list(sweep, "/leaks").iter().filter(|leak| leak["class"] == "missing-link");
    found.map(|leak| text(leak, "/id")).collect()
}

#[test]
fn missing_lower_layers_and_names_are_reported() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::store(&dir.path().join("root"));
    store.unmount();
    let chains = chains(&store);
    assert!(chains.len() > 2, "{chains:?}");
    for (id, parents) in &chains {
        std::fs::write(layer(&store, id).join("lower-layers"), parents.join(":")).unwrap();
    }
    let run = program::store_run("scan", store.root(), &store.runroot()).expect_code(0);
    let bytes = &run.json()["stores"][0]["bytes"];
    assert_eq!(program::number(bytes, "/total"), tree::du(store.root()));
    assert_eq!(missing_names(&sweep(&store, &[])), [""; 0]);

    // The name of a base is gone: a layer with `lower-layers` can still be mounted.
    let (old, parents) = &chains[0];
    let base = parents.last().unwrap();
    let name = std::fs::read_to_string(layer(&store, base).join("link")).unwrap();
    let link = store.root().join("overlay/l").join(&name);
    std::fs::remove_file(&link).unwrap();
    mounts(&store, old).unwrap();
    assert_eq!(missing_names(&sweep(&store, &[])), [base]);

    // A layer of an older library cannot be mounted.
    std::fs::remove_file(layer(&store, old).join("lower-layers")).unwrap();
    assert!(mounts(&store, old).is_err());
    sweep(&store, &["--repair", "missing-link"]);
    assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("..").join(base).join("diff"));
    mounts(&store, old).unwrap();
    assert_eq!(missing_names(&sweep(&store, &[])), [""; 0]);
    edit::whole(&store);
}
