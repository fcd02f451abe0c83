//! Stores that are created once below `target/`: each test gets a copy whose times look as if its tools had just
//! created it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use nix::fcntl::{Flock, FlockArg};
use regex::{Captures, Regex};
use sha2::{Digest, Sha256};

use super::store::succeed;

/// Copies a graphroot to `root`, which must be empty. `make` makes it the first time, in its own directory. `key`
/// names everything that the store depends on.
pub fn copy(key: &str, driver: &str, root: &Path, make: impl FnOnce(&Path)) {
    let kept = kept(&format!("{driver} {key}"), make);
    std::fs::create_dir_all(root).expect("making a graphroot");
    succeed(Command::new("cp").args(["-a", "--reflink=auto"]).arg(kept.join(".")).arg(root));
    if driver == "overlay" {
        rename_links(root);
    }
    date(root, driver);
}

/// Gives each layer another short name in `l/`, as in a new store: mounts name layers by their short names, relative
/// to a store, so two copies with the same names would be taken for each other.
fn rename_links(root: &Path) {
    let driver = root.join("overlay");
    let layers = std::fs::read_dir(&driver).expect("the driver's directory");
    let layers: Vec<_> = layers.map(|entry| entry.expect("an entry").path()).collect();
    let mut names = Vec::new();
    for link in layers.iter().map(|layer| layer.join("link")).filter(|link| link.exists()) {
        let old = std::fs::read_to_string(&link).expect("a short name");
        let digest = Sha256::digest(format!("{} {old}", root.display()));
        let new: String = digest.iter().take(26).map(|byte| char::from(b'A' + byte % 26)).collect();
        std::fs::rename(driver.join("l").join(&old), driver.join("l").join(&new)).expect("renaming a link");
        std::fs::write(&link, &new).expect("writing a short name");
        names.push((old, new));
    }
    for lower in layers.iter().map(|layer| layer.join("lower")).filter(|lower| lower.exists()) {
        let text = std::fs::read_to_string(&lower).expect("the names of the layers below");
        let text = names.iter().fold(text, |text, (old, new)| text.replace(old, new));
        std::fs::write(&lower, text).expect("writing the names of the layers below");
    }
}

fn kept(what: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let tools = ["/usr/bin/podman", "/usr/bin/buildah"]
        .map(|path| Path::new(path).metadata().map(|facts| facts.modified().ok()).ok());
    let digest = Sha256::digest(format!("{tools:?} {what}"));
    let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stores");
    std::fs::create_dir_all(&all).expect("a directory for stores");
    let lock = File::create(all.join(format!("{name}.lock"))).expect("making a lock file");
    let _alone = Flock::lock(OwnedFd::from(lock), FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .expect("a lock");
    let place = all.join(name);
    if !place.exists() {
        let work = tempfile::Builder::new().prefix("making-").tempdir_in(&all).expect("a directory");
        let root = work.path().join("root");
        make(&root);
        // Podman's own database contains the paths of the store; podman creates it anew in the copy.
        succeed(Command::new("rm").args(["-rf", "--one-file-system"]).arg(root.join("libpod")));
        std::fs::rename(&root, &place).expect("keeping a store");
    }
    place
}

/// Moves the creation times of layers, and the times of all files that the tools made, to now. Files from an archive
/// keep their times, which are old.
fn date(root: &Path, driver: &str) {
    fn time(found: &Captures<'_>) -> Timestamp {
        found[1].parse().expect("a time")
    }
    let records = root.join(format!("{driver}-layers/layers.json"));
    let text = std::fs::read_to_string(&records).expect("records of layers");
    let created = Regex::new(r#""created":"([^"]+)""#).expect("an expression");
    let newest = created.captures_iter(&text).map(|found| time(&found)).max().expect("layers");
    let since: SignedDuration = Timestamp::now().duration_since(newest);
    let text = created.replace_all(&text, |found: &Captures<'_>| {
        format!(r#""created":"{}""#, time(found).checked_add(since).expect("a time"))
    });
    std::fs::write(&records, text.as_bytes()).expect("writing records");
    let mut touch = Command::new("find");
    succeed(touch.arg(root).args([
        "-newermt",
        "2024-01-01",
        "-exec",
        "touch",
        "--no-dereference",
        "{}",
        "+",
    ]));
}
