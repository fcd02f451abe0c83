use std::collections::BTreeMap;

use hashbrown::HashSet;
use proptest::prelude::*;

use super::*;
use crate::model::waste::layer_files::PathSeed;

fn file(bytes: u64) -> Content {
    Content::File(FileFacts { apparent_bytes: bytes, bytes, checksum: Some(bytes * 31) })
}

fn layer(seed: &PathSeed, paths: &[(&str, Content)]) -> LayerFiles {
    let mut layer = LayerFiles::new(seed, HashSet::new());
    for (path, content) in paths {
        layer.add(path.as_bytes(), *content);
    }
    layer
}

const DIRECTORY: Content = Content::Directory { is_opaque: false };

#[test]
fn upper_layers_hide_by_overlay_rules() {
    let seed = PathSeed::default();
    let base = layer(
        &seed,
        &[
            ("a/", DIRECTORY),
            ("./a/one", file(1)),
            ("a/two", file(2)),
            ("b/c/three", file(4)),
            ("/d", file(8)),
            ("e", Content::Other),
            ("f", file(16)),
        ],
    );
    let hides = |paths: &[(&str, Content)]| {
        let mut view = LayerView::default();
        view.enter(&base, 1);
        let hides = view.enter(&layer(&seed, paths), 1);
        assert_eq!(view.hidden().map(|file| file.bytes).sum::<u64>(), hides.bytes);
        view.leave();
        // The layer is gone, and the base is whole again.
        assert_eq!(view.hidden().count(), 0);
        let again = view.enter(&layer(&seed, paths), 1);
        assert_eq!(again, hides);
        (hides.bytes, hides.deleted_bytes, hides.copied_bytes)
    };
    assert_eq!(hides(&[("a/.wh.one", Content::Other)]), (1, 1, 0));
    assert_eq!(hides(&[("a/one", file(3))]), (1, 0, 0));
    assert_eq!(hides(&[("a/one", file(1))]), (1, 0, 1));
    assert_eq!(hides(&[("a/one/below", file(3))]), (1, 0, 0), "a directory in place of a file");
    assert_eq!(hides(&[("a", Content::Other)]), (3, 0, 0), "a file in place of a directory");
    assert_eq!(hides(&[("a/", DIRECTORY), ("b", DIRECTORY)]), (0, 0, 0), "directories are merged");
    assert_eq!(hides(&[("a/.wh..wh..opq", Content::Other), ("a/one", file(1))]), (3, 2, 1));
    assert_eq!(hides(&[(".wh..wh..opq", Content::Other)]), (31, 31, 0));
    assert_eq!(hides(&[(".wh..wh.plnk", Content::Other), ("b/.wh.none", Content::Other)]), (0, 0, 0));
    assert_eq!(hides(&[(".wh.b", Content::Other), ("b/c/three", file(4))]), (4, 0, 4));
}

#[test]
fn file_is_hidden_with_its_last_link() {
    let seed = PathSeed::default();
    let mut base = layer(&seed, &[("x", file(7)), ("z", file(1))]);
    base.add_link(b"y", b"x");
    base.add_link(b"missing", b"none");
    assert_eq!(base.files().count(), 2);
    let mut view = LayerView::default();
    view.enter(&base, 3);
    let first = layer(&seed, &[(".wh.x", Content::Other)]);
    let second = layer(&seed, &[(".wh.y", Content::Other)]);
    assert_eq!(view.enter(&first, 2).bytes, 0);
    assert_eq!(view.enter(&second, 1).bytes, 7);
    view.leave();
    view.leave();
    assert_eq!(view.enter(&second, 1).bytes, 0);
    view.leave();
    assert_eq!(view.leave().bytes, 0, "two of three viewers show it");
}

#[test]
fn store_counts_what_no_viewer_shows() {
    let seed = PathSeed::default();
    let base = layer(&seed, &[("x", file(7)), ("y", file(1))]);
    let deletes = layer(&seed, &[(".wh.x", Content::Other)]);
    for (viewers, unseen) in [(2, 7), (3, 0)] {
        let mut view = LayerView::default();
        view.enter(&base, viewers);
        for _ in 0..2 {
            assert_eq!(view.enter(&deletes, 1).bytes, 7);
            assert_eq!(view.leave().bytes, 0);
        }
        assert_eq!(view.leave().bytes, unseen);
    }
}

/// Names of random layers: `a` to `c`, three deep.
fn path() -> impl Strategy<Value = String> {
    prop::collection::vec("[abc]", 1..4).prop_map(|names| names.join("/"))
}

proptest! {
    /// The same rules on a map of paths, layer by layer.
    #[test]
    fn view_agrees_with_a_map(
        layers in prop::collection::vec(prop::collection::vec((path(), 0..4_u8), 0..12), 1..6)
    ) {
        let seed = PathSeed::default();
        let mut view = LayerView::default();
        let mut shown: BTreeMap<String, (bool, u64)> = BTreeMap::new();
        let (mut all, mut hidden) = (0, 0);
        for (number, paths) in layers.iter().enumerate() {
            // Without conflicts in a layer: the first kind of a path holds, and nothing is below a file.
            let mut kinds: BTreeMap<String, u8> = BTreeMap::new();
            for (path, kind) in paths {
                let is_below = |above: &String| path.starts_with(&format!("{above}/"));
                let conflicts = kinds.iter().any(|(other, of_other)| {
                    other == path || is_below(other) && *of_other != 2 || other.starts_with(&format!("{path}/"))
                });
                if !conflicts {
                    kinds.insert(path.clone(), *kind);
                }
            }
            let mut upper = LayerFiles::new(&seed, HashSet::new());
            let mut below = shown.clone();
            for (path, kind) in &kinds {
                let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
                match kind {
                    0 => upper.add(path.as_bytes(), file(number as u64 + 1)),
                    1 => upper.add(format!("{directory}/.wh.{name}").as_bytes(), Content::Other),
                    2 => upper.add(path.as_bytes(), DIRECTORY),
                    _ => upper.add(format!("{path}/.wh..wh..opq").as_bytes(), Content::Other),
                }
                let is_file = below.get(path).is_some_and(|(is_file, _)| *is_file);
                below.retain(|lower, (lower_is_file, _)| {
                    let under = lower.starts_with(&format!("{path}/"));
                    let above = *lower_is_file && path.starts_with(&format!("{lower}/"));
                    let same = lower == path && (*kind < 2 || is_file);
                    !(same || above || under && *kind != 2)
                });
            }
            view.enter(&upper, 1);
            for (path, kind) in kinds {
                let (is_file, bytes) = (kind == 0, if kind == 0 { number as u64 + 1 } else { 0 });
                all += bytes;
                for (position, _) in path.match_indices('/') {
                    below.entry(path[..position].to_owned()).or_insert((false, 0));
                }
                if kind != 1 {
                    let content = below.entry(path).or_insert((is_file, bytes));
                    *content = if is_file { (is_file, bytes) } else { *content };
                }
            }
            shown = below;
            hidden = all - shown.values().map(|(_, bytes)| bytes).sum::<u64>();
            prop_assert_eq!(view.hidden().map(|file| file.bytes).sum::<u64>(), hidden);
        }
        while view.depth() > 1 {
            view.leave();
            prop_assert!(!view.is_exhausted());
        }
        prop_assert_eq!(view.hidden().count(), 0);
        let _ = hidden;
    }
}
