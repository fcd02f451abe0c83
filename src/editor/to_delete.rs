//! The layers that are deleted with an image. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::stores::containers_storage::chains::DEEPEST;
use crate::stores::containers_storage::records::{ContainerRecord, ImageRecord, LayerRecord};

#[derive(Clone)]
pub(super) struct LayerToDelete {
    pub(super) id: String,
    /// Index of its record file.
    pub(super) file: usize,
    /// Index of the directory of the store that contains its directory.
    pub(super) dir_index: usize,
    /// Its short names there.
    pub(super) links: BTreeSet<String>,
}

/// The layers that only these images need, each before its parent: of each image the copies of its top layer for other
/// user namespaces, then the chain downwards. The chain ends before the first layer that another image or a container
/// uses, that another layer is built on, or that has no record in this store (a layer of an additional store, for
/// example).
pub(super) fn layers_of(
    gone: &[ImageRecord],
    layers: &[LayerRecord],
    images: &[ImageRecord],
    containers: &[ContainerRecord],
) -> Vec<String> {
    let known: HashMap<&str, &LayerRecord> = layers.iter().map(|layer| (layer.id.as_str(), layer)).collect();
    let mut children: HashMap<&str, Vec<&str>> = HashMap::new();
    for layer in layers {
        if let Some(parent) = &layer.parent {
            children.entry(parent).or_default().push(&layer.id);
        }
    }
    let others = images.iter().filter(|other| gone.iter().all(|image| other.id != image.id));
    let mut kept: HashSet<&str> = others.flat_map(ImageRecord::tops).map(String::as_str).collect();
    kept.extend(containers.iter().filter_map(|container| container.layer.as_deref()));

    let mut to_delete: Vec<String> = Vec::new();
    let is_unused = |id: &str, to_delete: &[String]| {
        let is_deleted = |id: &str| to_delete.iter().any(|to_delete| to_delete == id);
        known.contains_key(id)
            && !kept.contains(id)
            && !is_deleted(id)
            && children.get(id).is_none_or(|children| children.iter().all(|child| is_deleted(child)))
    };
    for image in gone {
        for copy in &image.mapped_layers {
            if image.layer.as_ref() != Some(copy) && is_unused(copy, &to_delete) {
                to_delete.push(copy.clone());
            }
        }
    }
    for image in gone {
        let mut next = image.layer.as_deref();
        while let Some(id) = next.filter(|id| is_unused(id, &to_delete)) {
            to_delete.push(id.to_owned());
            next = known.get(id).and_then(|layer| layer.parent.as_deref());
        }
    }
    to_delete
}

/// Parent of each layer, by id.
pub(super) type Parents<'a> = HashMap<&'a str, Option<&'a str>>;

/// A layer and those below it, as far as their parents are known.
pub(super) fn chain<'a>(parents: &Parents<'a>, top: Option<&'a str>) -> impl Iterator<Item = &'a str> {
    let known = |id: &str| parents.get_key_value(id).map(|(id, parent)| (*id, *parent));
    let below = move |(_, parent): &(&'a str, Option<&'a str>)| known((*parent)?);
    std::iter::successors(top.and_then(known), below).map(|(id, _)| id).take(DEEPEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layer(id: &str, parent: &str) -> LayerRecord {
        let parent = Some(parent.to_owned()).filter(|parent| !parent.is_empty());
        LayerRecord { id: id.into(), parent, ..LayerRecord::default() }
    }

    fn image(id: &str, layer: &str, mapped: &[&str]) -> ImageRecord {
        ImageRecord {
            id: id.into(),
            layer: Some(layer.to_owned()).filter(|layer| !layer.is_empty()),
            mapped_layers: mapped.iter().map(|id| (*id).to_owned()).collect(),
            ..ImageRecord::default()
        }
    }

    fn container(layer: &str) -> ContainerRecord {
        ContainerRecord { id: "c".into(), layer: Some(layer.into()), ..ContainerRecord::default() }
    }

    #[test]
    fn chain_ends_at_first_layer_in_use() {
        let chain = [layer("1", ""), layer("2", "1"), layer("3", "2")];
        type Case<'a> = (&'a str, Vec<LayerRecord>, Vec<ImageRecord>, Vec<ContainerRecord>, &'a [&'a str]);
        let cases: Vec<Case<'_>> = vec![
            ("alone", vec![], vec![], vec![], &["3", "2", "1"]),
            ("same top", vec![], vec![image("y", "3", &[])], vec![], &[]),
            ("another's top", vec![], vec![image("y", "2", &[])], vec![], &["3"]),
            ("another's mapped layer", vec![], vec![image("y", "", &["1"])], vec![], &["3", "2"]),
            ("a branch", vec![layer("4", "1")], vec![], vec![], &["3", "2"]),
            ("on the top", vec![layer("4", "3")], vec![], vec![], &[]),
            ("a container's", vec![], vec![], vec![container("2")], &["3"]),
        ];
        for (what, more, images, containers, expected) in cases {
            let layers: Vec<_> = chain.iter().cloned().chain(more).collect();
            let to_delete = layers_of(&[image("x", "3", &[])], &layers, &images, &containers);
            assert_eq!(to_delete, expected, "{what}");
        }
    }

    #[test]
    fn mapped_layers_are_deleted_with_their_image() {
        let layers = [layer("1", ""), layer("2", "1"), layer("m", "1"), layer("n", "1")];
        let x = [image("x", "2", &["m", "n", "gone", "m"])];
        assert_eq!(layers_of(&x, &layers, &[], &[]), ["m", "n", "2", "1"]);
        // A mapped layer of another image is kept, and so are the layers below it.
        assert_eq!(layers_of(&x, &layers, &[image("y", "m", &[])], &[]), ["n", "2"]);
        // So is a mapped layer below a container's layer.
        let with_container: Vec<_> = layers.iter().cloned().chain([layer("c", "n")]).collect();
        assert_eq!(layers_of(&x, &with_container, &[], &[container("c")]), ["m", "2"]);
        // The top layer as its own mapped layer.
        assert_eq!(layers_of(&[image("x", "2", &["2"])], &layers[..2], &[], &[]), ["2", "1"]);
    }

    #[test]
    fn unknown_and_circular_layers_are_kept() {
        assert_eq!(layers_of(&[image("x", "", &[])], &[layer("1", "")], &[], &[]), [""; 0]);
        assert_eq!(layers_of(&[image("x", "2", &[])], &[layer("2", "additional")], &[], &[]), ["2"]);
        assert_eq!(layers_of(&[image("x", "none", &[])], &[layer("1", "")], &[], &[]), [""; 0]);
        let circle = [layer("1", "2"), layer("2", "1")];
        assert_eq!(layers_of(&[image("x", "2", &[])], &circle, &[], &[]), [""; 0]);
        assert_eq!(layers_of(&[image("x", "1", &[])], &[layer("1", "1")], &[], &[]), [""; 0]);
    }

    proptest! {
        /// In any store, no remaining object loses its layer or the layers below it, and the order never leaves a layer
        /// without its parent.
        #[test]
        fn survivors_lose_nothing(
            parents in proptest::collection::vec(proptest::option::of(0..12_usize), 1..12),
            tops in proptest::collection::vec((0..12_usize, proptest::option::of(0..12_usize)), 1..5),
            used in proptest::collection::vec(0..12_usize, 0..3),
        ) {
            let layers: Vec<_> = parents.iter().enumerate().map(|(layer_ix, parent)| {
                let parent = parent.filter(|parent| *parent < layer_ix);
                layer(&layer_ix.to_string(), &parent.map(|parent| parent.to_string()).unwrap_or_default())
            }).collect();
            let images: Vec<_> = tops.iter().enumerate().map(|(image_ix, (top, mapped))| {
                let mapped = mapped.map(|layer_ix| layer_ix.to_string());
                let mapped: Vec<&str> = mapped.iter().map(String::as_str).collect();
                image(&format!("i{image_ix}"), &top.to_string(), &mapped)
            }).collect();
            let containers: Vec<_> = used.iter().map(|layer_ix| container(&layer_ix.to_string())).collect();
            let to_delete = layers_of(&images[..1], &layers, &images, &containers);
            let survivors: Vec<&LayerRecord> =
                layers.iter().filter(|layer| !to_delete.contains(&layer.id)).collect();
            for layer in &survivors {
                prop_assert!(layer.parent.as_ref().is_none_or(|parent| !to_delete.contains(parent)));
            }
            for other in &images[1..] {
                prop_assert!(!other.tops().any(|id| to_delete.contains(id)));
            }
            for container in &containers {
                prop_assert!(!to_delete.contains(container.layer.as_ref().unwrap()));
            }
            for (position, gone) in to_delete.iter().enumerate() {
                let above = layers.iter().filter(|layer| layer.parent.as_ref() == Some(gone));
                for child in above {
                    prop_assert!(to_delete[..position].contains(&child.id));
                }
            }
        }
    }
}
