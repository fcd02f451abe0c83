//! A store of a few hundred kilobytes, for tests that want many of them.

use std::path::Path;

use super::archive::{ImageSpec, LayerSpec};
use super::slot;
use super::store::Store;

/// Creates five images in a small tree and two containers of `a`, with podman: `web` was never started, `at-work`
/// runs.
pub fn store(root: &Path) -> Store {
    let store = still(root);
    store.start(&name("a"), "at-work");
    store
}

/// Creates the same store without the running container, for tests that copy the store, unmount its filesystem or
/// need a store that does not change.
pub fn still(root: &Path) -> Store {
    let store = Store::unopened(root, "overlay", &images());
    store.podman(["create", "--name", "web", "--network", "none", &name("a"), "/x"]);
    store
}

/// Returns the reference of one of the images `base`, `a`, `a2`, `b`, `other`.
pub fn name(image: &str) -> String {
    format!("localhost/small/{image}:1")
}

/// Returns one of the images, to load it again.
pub fn image(image: &str) -> ImageSpec {
    let found = images().into_iter().find(|spec| spec.label == image);
    found.expect("an image of that name")
}

/// Returns a layer that no test has that runs at the same time: what is mounted or open in one store keeps a layer of
/// the same id in every other store.
fn layer(name: &str) -> LayerSpec {
    LayerSpec { small_files: 6, younger: slot(), ..LayerSpec::new(name) }
}

/// Returns one more image, `tall`, with sixteen layers of its own.
pub fn tall() -> ImageSpec {
    let layers = (0..16).map(|number| layer(&format!("tall-{number}"))).collect();
    ImageSpec { names: vec![name("tall")], layers, label: "tall".into() }
}

fn images() -> Vec<ImageSpec> {
    [
        ("base", vec!["base"]),
        ("a", vec!["base", "a"]),
        ("a2", vec!["base", "a", "a2"]),
        ("b", vec!["base", "b"]),
        ("other", vec!["other"]),
    ]
    .map(|(image, layers)| ImageSpec {
        names: vec![name(image)],
        layers: layers.into_iter().map(layer).collect(),
        label: image.into(),
    })
    .into()
}

/// Returns one more image, `deep`, with two layers of its own on top of `a`.
pub fn deep() -> Vec<ImageSpec> {
    let layers = ["base", "a", "deep-1", "deep-2"].map(layer).to_vec();
    vec![ImageSpec { names: vec![name("deep")], layers, label: "deep".into() }]
}
