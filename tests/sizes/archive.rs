//! The archive of the large test store.

use std::collections::HashSet;

use crate::support;
use support::archive;

#[test]
fn forest_is_reproducible_and_shares_layers() {
    let dir = tempfile::tempdir().unwrap();
    let images = archive::forest();
    assert!(images.len() >= 60, "{} images", images.len());
    let layers: HashSet<&str> =
        images.iter().flat_map(|image| &image.layers).map(|layer| layer.name.as_str()).collect();
    let uses: usize = images.iter().map(|image| image.layers.len()).sum();
    assert!(uses > 2 * layers.len(), "{uses} uses of {}", layers.len());
    let paths = ["one.tar", "two.tar"].map(|name| dir.path().join(name));
    for path in &paths {
        archive::write(path, &images[..3]).unwrap();
    }
    let [first, second] = paths.map(|path| std::fs::read(path).unwrap());
    assert!(first == second, "two archives of the same images differ");
}

#[test]
#[ignore = "by hand: writes the archive to the path in ARCHIVE"]
fn write_the_forest() {
    let path = std::env::var_os("ARCHIVE").expect("ARCHIVE names a file");
    archive::write(path.as_ref(), &archive::forest()).unwrap();
}
