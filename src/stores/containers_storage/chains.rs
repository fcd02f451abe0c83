//! Limits the length of layer chains. Pure.
//!
//! Each image reaches all layers below its own, so n layers in one chain with an image on each are
//! n² steps. The limit protects against records that are made to be expensive.

use rayon::prelude::*;

use super::positions::Positions;
use super::records::{ContainerRecord, ImageRecord, LayerRecord};
use crate::sys::allowance::{self, Allowance};

/// No driver mounts so many layers on each other: overlay 500, with older libraries 128.
pub(crate) const DEEPEST: usize = 1000;

/// Layers that images, containers and unused layers reach, counted once for each of them. 10,000
/// images of 60 layers reach 600,000.
const MOST_REACHED: usize = 2_000_000;

/// What a layer counts for whose parent is in another store.
const BORROWED: usize = 100;

/// Removes the parent of layers in chains longer than a working store has. The result says so; then
/// a missing record proves nothing.
pub(super) fn cut(
    layers: &mut [LayerRecord],
    positions: &Positions,
    images: &[ImageRecord],
    containers: &[ContainerRecord],
    allowance: &Allowance,
) -> Option<String> {
    let position = |id: &String| positions.get(layers, id.as_bytes());
    let parents: Vec<_> = layers.par_iter().map(|layer| position(layer.parent.as_ref()?)).collect();
    let mut depths = depths(layers, &parents);
    let too_deep: Vec<_> = (0..layers.len()).filter(|at| depths[*at] > DEEPEST).collect();
    too_deep.iter().for_each(|at| depths[*at] = 1);

    let tops = images.iter().flat_map(ImageRecord::tops);
    let tops = tops.chain(containers.iter().filter_map(|container| container.layer.as_ref()));
    let mut is_reached = vec![false; layers.len()];
    let mut reached = 0_usize;
    for top in tops.filter_map(position) {
        reached = reached.saturating_add(depths[top]);
        let mut next = Some(top);
        while let Some(at) = next.filter(|at| !std::mem::replace(&mut is_reached[*at], true)) {
            next = parents[at];
        }
    }
    let unused = (0..layers.len()).filter(|at| !is_reached[*at]);
    reached = unused.fold(reached, |sum, at| sum.saturating_add(depths[at]));

    let weight = allowance::REACHED.saturating_mul(reached as u64);
    if reached > MOST_REACHED || allowance.charge(weight).is_err() {
        layers.iter_mut().for_each(|layer| layer.parent = None);
        return Some(format!(
            "images and layers reference more than {MOST_REACHED} layers in total, more than a working \
             store has; parents of layers are ignored"
        ));
    }
    let first = too_deep.first().map(|at| layers[*at].id.clone())?;
    let more = match too_deep.len() - 1 {
        0 => String::new(),
        more => format!(", and those of {more} more layers"),
    };
    too_deep.iter().for_each(|at| layers[*at].parent = None);
    Some(format!(
        "layer {first} has more than {DEEPEST} parents, more than can be mounted; its parents are \
         ignored{more}"
    ))
}

/// How many layers each reaches, itself included.
fn depths(layers: &[LayerRecord], parents: &[Option<usize>]) -> Vec<usize> {
    const UNKNOWN: usize = 0;
    const ENDLESS: usize = usize::MAX;
    let mut depths = vec![UNKNOWN; parents.len()];
    let mut path = Vec::new();
    for first in 0..parents.len() {
        let mut next = Some(first);
        while let Some(at) = next.filter(|at| depths[*at] == UNKNOWN) {
            // Who meets it again before it is known goes in a circle.
            depths[at] = ENDLESS;
            path.push(at);
            next = parents[at];
        }
        let mut below = match (next, path.last()) {
            (Some(known), _) => depths[known],
            (None, Some(base)) if layers[*base].parent.is_some() => BORROWED,
            (None, _) => 0,
        };
        while let Some(at) = path.pop() {
            below = below.saturating_add(1);
            depths[at] = below;
        }
    }
    // Circles end where they bite their tail.
    let endless = depths.iter().filter(|depth| **depth == ENDLESS).count();
    if endless <= DEEPEST {
        depths.iter_mut().filter(|depth| **depth == ENDLESS).for_each(|depth| *depth = endless);
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(at: usize, parent: Option<usize>) -> LayerRecord {
        let id = |at: usize| format!("{at:064x}");
        LayerRecord { id: id(at), parent: parent.map(id), ..LayerRecord::default() }
    }

    fn image(layer: &LayerRecord) -> ImageRecord {
        ImageRecord { id: layer.id.clone(), layer: Some(layer.id.clone()), ..ImageRecord::default() }
    }

    fn chain(length: usize) -> Vec<LayerRecord> {
        (0..length).map(|at| layer(at, at.checked_sub(1))).collect()
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
    fn what_works_stays() {
        let mut deepest = chain(DEEPEST);
        assert_eq!(cut_all(&mut deepest, true), None);
        assert_eq!(deepest, chain(DEEPEST));
        // 100,000 layers, 60 on each other, an image on every tenth.
        let mut many: Vec<_> =
            (0..100_000).map(|at| layer(at, at.checked_sub(1).filter(|_| at % 60 > 0))).collect();
        let before = many.clone();
        let images: Vec<_> = many.iter().step_by(10).map(image).collect();
        assert_eq!(cut_with(&mut many, &images), None);
        assert_eq!(many, before);
        // A small circle ends where it bites its tail.
        let mut circle: Vec<_> = (0..10).map(|at| layer(at, Some((at + 1) % 10))).collect();
        assert_eq!(cut_all(&mut circle, true), None);
        assert_eq!(without_parent(&circle), 0);
    }

    #[test]
    fn a_chain_that_cannot_be_mounted_is_cut_in_linear_time() {
        for with_images in [false, true] {
            let mut layers = chain(DEEPEST + 3);
            let said = cut_all(&mut layers, with_images).unwrap();
            assert!(said.contains(&layers[DEEPEST].id) && said.contains("2 more"), "{said}");
            assert_eq!(without_parent(&layers), 1 + 3);
            let mut layers = chain(200_000);
            assert!(cut_all(&mut layers, with_images).is_some());
            assert_eq!(without_parent(&layers), 200_000 - DEEPEST + 1);
            let mut circle: Vec<_> = (0..200_000).map(|at| layer(at, Some((at + 1) % 200_000))).collect();
            assert!(cut_all(&mut circle, with_images).is_some());
            assert_eq!(without_parent(&circle), 200_000);
        }
    }

    #[test]
    fn many_images_on_long_chains_are_too_much_in_all() {
        let mut layers = chain(DEEPEST);
        let images = vec![image(&layers[DEEPEST - 1]); MOST_REACHED / DEEPEST + 1];
        assert!(cut_with(&mut layers, &images).is_some_and(|said| said.contains("2000000")));
        assert_eq!(without_parent(&layers), DEEPEST);
        // What stands on another store's layers is deeper than it looks.
        let mut layers = vec![layer(0, Some(1))];
        let images = vec![image(&layers[0]); MOST_REACHED / BORROWED];
        assert!(cut_with(&mut layers, &images).is_some());
    }
}
