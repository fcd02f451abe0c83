//! Limits the length of layer chains. Pure.
//!
//! Other modules walk from each image down to its base layer. With n layers in a single chain and an image on each of
//! them, that takes about n² / 2 steps: 5 billion for a hostile record file with 100,000 layers. This module counts the
//! steps in linear time, before any such walk. It removes the parents of layers in chains that are longer than any
//! driver can mount, and the parents of all layers if the sum of all walks is too large. Real stores reach neither
//! limit.

use rayon::prelude::*;

use super::positions::Positions;
use super::records::{ContainerRecord, ImageRecord, LayerRecord};
use crate::sys::allowance::{self, Allowance};

/// Maximum length of a chain. No driver can mount that many layers: overlay 500, with older libraries 128.
pub(crate) const DEEPEST: usize = 1000;

/// Maximum number of layers that all images, containers and unused layers reach, counted once for each of them. 10,000
/// images of 60 layers reach 600,000.
const MOST_REACHED: usize = 2_000_000;

/// Assumed length of the rest of a chain whose next layer is in another store.
const BORROWED: usize = 100;

/// Removes the parents of layers in chains longer than a working store has.
///
/// Returns a message if it did. Then the records are incomplete, and a missing record does not prove a leak.
pub(super) fn cut(
    layers: &mut [LayerRecord],
    positions: &Positions,
    images: &[ImageRecord],
    containers: &[ContainerRecord],
    allowance: &Allowance,
) -> Option<String> {
    let parents: Vec<_> =
        layers.par_iter().map(|layer| positions.get(layers, layer.parent.as_ref()?.as_bytes())).collect();
    let mut depths = depths(layers, &parents);
    let too_deep: Vec<_> = (0..layers.len()).filter(|layer| depths[*layer] > DEEPEST).collect();
    too_deep.iter().for_each(|layer| depths[*layer] = 1);

    let tops = images
        .iter()
        .flat_map(ImageRecord::tops)
        .chain(containers.iter().filter_map(|container| container.layer.as_ref()));
    let mut is_reached = vec![false; layers.len()];
    let mut reached = 0_usize;
    for top in tops.filter_map(|id| positions.get(layers, id.as_bytes())) {
        reached = reached.saturating_add(depths[top]);
        let mut next = Some(top);
        while let Some(layer) = next.filter(|layer| !std::mem::replace(&mut is_reached[*layer], true)) {
            next = parents[layer];
        }
    }
    let unused = (0..layers.len()).filter(|layer| !is_reached[*layer]);
    reached = unused.fold(reached, |sum, layer| sum.saturating_add(depths[layer]));

    let weight = allowance::REACHED.saturating_mul(reached as u64);
    if reached > MOST_REACHED || allowance.charge(weight).is_err() {
        layers.iter_mut().for_each(|layer| layer.parent = None);
        return Some(format!(
            "images and layers reference more than {MOST_REACHED} layers in total, more than a working \
             store has; parents of layers are ignored"
        ));
    }
    let first = layers[*too_deep.first()?].id.clone();
    let more = match too_deep.len() - 1 {
        0 => String::new(),
        more => format!(", and those of {more} more layers"),
    };
    too_deep.iter().for_each(|layer| layers[*layer].parent = None);
    Some(format!(
        "layer {first} has more than {DEEPEST} parents, more than can be mounted; its parents are \
         ignored{more}"
    ))
}

/// Returns for each layer the length of its chain, including itself.
fn depths(layers: &[LayerRecord], parents: &[Option<usize>]) -> Vec<usize> {
    const UNKNOWN: usize = 0;
    const ENDLESS: usize = usize::MAX;
    let mut depths = vec![UNKNOWN; parents.len()];
    let mut path = Vec::new();
    for first in 0..parents.len() {
        let mut next = Some(first);
        while let Some(layer) = next.filter(|layer| depths[*layer] == UNKNOWN) {
            // Replaced below when the base of the chain is found. In a cycle, there is no base.
            depths[layer] = ENDLESS;
            path.push(layer);
            next = parents[layer];
        }
        let mut depth = match (next, path.last()) {
            (Some(known), _) => depths[known],
            (None, Some(base)) if layers[*base].parent.is_some() => BORROWED,
            (None, _) => 0,
        };
        while let Some(layer) = path.pop() {
            depth = depth.saturating_add(1);
            depths[layer] = depth;
        }
    }
    // A walk along a cycle ends when it meets a layer again, so a short cycle is harmless.
    let endless = depths.iter().filter(|depth| **depth == ENDLESS).count();
    if endless <= DEEPEST {
        depths.iter_mut().filter(|depth| **depth == ENDLESS).for_each(|depth| *depth = endless);
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> String {
        format!("{number:064x}")
    }

    fn layer(number: usize, parent: Option<usize>) -> LayerRecord {
        LayerRecord { id: id(number), parent: parent.map(id), ..LayerRecord::default() }
    }

    fn image(layer: &LayerRecord) -> ImageRecord {
        ImageRecord { id: layer.id.clone(), layer: Some(layer.id.clone()), ..ImageRecord::default() }
    }

    fn chain(length: usize) -> Vec<LayerRecord> {
        (0..length).map(|number| layer(number, number.checked_sub(1))).collect()
    }

    fn cycle(length: usize) -> Vec<LayerRecord> {
        (0..length).map(|number| layer(number, Some((number + 1) % length))).collect()
    }

    /// Cuts, with an image on each layer or without any.
    fn cut_all(layers: &mut [LayerRecord], with_images: bool) -> Option<String> {
        let images: Vec<_> = layers.iter().filter(|_| with_images).map(image).collect();
        cut_with(layers, &images)
    }

    fn cut_with(layers: &mut [LayerRecord], images: &[ImageRecord]) -> Option<String> {
        let positions = Positions::of(layers);
        cut(layers, &positions, images, &[], &Allowance::default())
    }

    fn without_parent(layers: &[LayerRecord]) -> usize {
        layers.iter().filter(|layer| layer.parent.is_none()).count()
    }

    #[test]
    fn possible_chains_are_kept() {
        let mut deepest = chain(DEEPEST);
        assert_eq!(cut_all(&mut deepest, true), None);
        assert_eq!(deepest, chain(DEEPEST));
        // 100,000 layers in chains of 60, with an image on every tenth layer.
        let mut many: Vec<_> = (0..100_000_usize)
            .map(|number| layer(number, number.checked_sub(1).filter(|_| number % 60 > 0)))
            .collect();
        let before = many.clone();
        let images: Vec<_> = many.iter().step_by(10).map(image).collect();
        assert_eq!(cut_with(&mut many, &images), None);
        assert_eq!(many, before);
        // A short cycle is harmless.
        let mut short = cycle(10);
        assert_eq!(cut_all(&mut short, true), None);
        assert_eq!(without_parent(&short), 0);
    }

    #[test]
    fn too_long_chain_is_cut_in_linear_time() {
        for with_images in [false, true] {
            let mut layers = chain(DEEPEST + 3);
            let message = cut_all(&mut layers, with_images).unwrap();
            assert!(message.contains(&layers[DEEPEST].id) && message.contains("2 more"), "{message}");
            assert_eq!(without_parent(&layers), 1 + 3);
            let mut layers = chain(200_000);
            assert!(cut_all(&mut layers, with_images).is_some());
            assert_eq!(without_parent(&layers), 200_000 - DEEPEST + 1);
            let mut layers = cycle(200_000);
            assert!(cut_all(&mut layers, with_images).is_some());
            assert_eq!(without_parent(&layers), 200_000);
        }
    }

    #[test]
    fn too_many_images_on_long_chains_are_cut() {
        let mut layers = chain(DEEPEST);
        let images = vec![image(&layers[DEEPEST - 1]); MOST_REACHED / DEEPEST + 1];
        assert!(cut_with(&mut layers, &images).is_some_and(|message| message.contains("2000000")));
        assert_eq!(without_parent(&layers), DEEPEST);
        // A chain that continues in another store counts as longer.
        let mut layers = vec![layer(0, Some(1))];
        let images = vec![image(&layers[0]); MOST_REACHED / BORROWED];
        assert!(cut_with(&mut layers, &images).is_some());
    }
}
