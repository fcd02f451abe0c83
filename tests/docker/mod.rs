//! Docker's own store (driver overlay2).

mod forgotten;
mod own_store;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The container of the fixture.
const STOPPED: &str = "c3e6300103bb072598ac5e073a5fe118eef35f53d2344616324fcc61964c0049";

/// Unpacks the data root of the fixture as `place`.
fn unpack(place: &Path) {
    let around = place.parent().expect("a directory");
    std::fs::create_dir_all(around).expect("making a directory");
    let archive = fixtures().join("overlay2-store.tar.gz");
    let unpacked = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(around).status();
    assert!(unpacked.expect("running tar").success());
    if place != around.join("docker") {
        std::fs::rename(around.join("docker"), place).expect("renaming the data root");
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/docker")
}
