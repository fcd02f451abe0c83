//! Without measuring, a scan reports the same uses and reasons to keep.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::path::Path;

use crate::support;
use layersweep::disk::Progress;
use layersweep::model::refs::standing;
use layersweep::stores::containers_storage::config::Environment;
use layersweep::stores::{self, Measure, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use support::store::{self, Store};

fn scan(graphroot: &Path, runroot: &Path, measure: Measure) -> Scan {
    let sysroot = Sysroot::live();
    let request = ScanRequest {
        environment: Environment::of_process(&sysroot),
        graphroots: vec![graphroot.to_path_buf()],
        runroot: Some(runroot.to_path_buf()),
        measure,
        ..ScanRequest::of(sysroot)
    };
    stores::run(&request, &Progress::default()).unwrap()
}

/// Returns all values that decide if an image may be deleted.
fn decisive(scan: &Scan) -> Vec<String> {
    let inventory = &scan.inventory;
    let images = inventory.images.iter().enumerate().map(|(image_ix, image)| {
        let standing = standing(inventory, &scan.refs, image_ix.into());
        format!("{} {:?} {:?} {:?} {standing:?}", image.id, image.names, image.layers, image.pinned_by)
    });
    let containers = inventory.containers.iter().map(|container| {
        let image = container.image.map(|image_ix| inventory.images[image_ix.get()].id.clone());
        format!("{} {:?} {:?} {image:?}", container.id, container.owner, container.state)
    });
    images.chain(containers).collect()
}

#[test]
fn same_images_containers_and_standings() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::rig(dir.path(), "overlay");
    // A layer without a record.
    std::fs::create_dir_all(store.root().join("overlay").join("ab".repeat(32)).join("diff")).unwrap();
    let measured = scan(store.root(), &store.runroot(), Measure::Everything);
    let listed = scan(store.root(), &store.runroot(), Measure::RecordsAndMounts);
    assert!(measured.inventory.containers.len() >= 3, "the rig has containers");
    assert_eq!(decisive(&listed), decisive(&measured));
    assert_eq!(listed.effort.inodes, 0, "nothing was walked");
    assert_eq!((measured.inventory.leaks.len(), listed.inventory.leaks.len()), (1, 0));
    assert!(measured.effort.inodes > 100);
}
