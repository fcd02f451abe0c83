use proptest::prelude::*;

use super::*;
use crate::model::Size;
use crate::model::refs::tests::{any_inventory, node, tree};
use crate::model::samples::image;

fn shares_and_sum(inventory: &Inventory) -> (Fair, u64) {
    let refs = Refs::new(inventory);
    let all = inventory.nodes.iter().map(|node| node.size.bytes).sum();
    (fair(inventory, &refs, |node| bytes_on_disk(inventory, node)), all)
}

#[test]
fn nodes_are_divided_among_their_users() {
    let inventory = tree();
    let (fair, all) = shares_and_sum(&inventory);
    let images: Vec<_> = (0..4).map(|image| fair.of_image(ImageIx::from(image))).collect();
    // Five roots reach base, three reach runtime, four reach the shared inodes: 1000/5, that + 200/3 + 600/4, that
    // + 30/2, and 1000/5 + 600/4 + 4. Two of three thirds are rounded up.
    assert_eq!(images, [200, 417, 431, 354]);
    assert_eq!(fair.of_container(0.into()), 50_432);
    assert_eq!((fair.leaks, fair.metadata, fair.other), (7, 9, 0));
    assert_eq!(fair.total(), all);
}

#[test]
fn equal_remainders_are_ordered_by_id() {
    let mut inventory = tree();
    inventory.nodes.truncate(1);
    inventory.containers.clear();
    inventory.leaks.clear();
    inventory.anchored.clear();
    for (image, id) in inventory.images.iter_mut().zip(["d", "b", "c", "a"]) {
        image.id = id.into();
        image.holds = vec![0.into()];
    }
    inventory.nodes[0].size = Size { bytes: 4002, frees_bytes: 4002, ..Size::default() };
    let (fair, _) = shares_and_sum(&inventory);
    let shares: Vec<_> = (0..4).map(|image| fair.of_image(image.into())).collect();
    assert_eq!(shares, [1000, 1001, 1000, 1001]);
}

/// Prints the duration: `cargo test --release --lib fair_shares_of_a_big -- --ignored --nocapture`.
#[test]
#[ignore = "prints how long fair shares take; run it with --release"]
#[allow(clippy::print_stdout)]
fn fair_shares_of_a_big_node() {
    // Chains of 20 layers that branch off one another: each image has 10 layers of its own.
    let layers = (0..100_000_usize).map(|layer| {
        let parent = if layer.is_multiple_of(10) { (layer / 20).checked_sub(1) } else { Some(layer - 1) };
        node(NodeKind::Layer, 4096 + layer as u64, &parent.into_iter().collect::<Vec<_>>())
    });
    let images = (0..10_000).map(|ix| image(&ix.to_string(), &[ix * 10 + 9]));
    let inventory = Inventory { nodes: layers.collect(), images: images.collect(), ..tree() };
    let inventory =
        Inventory { containers: Vec::new(), leaks: Vec::new(), anchored: Vec::new(), ..inventory };
    let refs = Refs::new(&inventory);
    let edges: usize = refs.reach.iter().map(|reached| reached.len()).sum();
    let began = std::time::Instant::now();
    let fair = fair(&inventory, &refs, |node| bytes_on_disk(&inventory, node));
    println!("{edges} edges: {:?}", began.elapsed());
    assert_eq!(fair.total(), inventory.nodes.iter().map(|node| node.size.bytes).sum::<u64>());
}

proptest! {
    #[test]
    fn shares_add_up_and_are_fair(inventory in any_inventory()) {
        let refs = Refs::new(&inventory);
        let (fair, all) = shares_and_sum(&inventory);
        prop_assert_eq!(fair.total(), all);
        let share = |root: Root| match root {
            Root::Image(ix) => fair.of_image(ix),
            Root::Container(ix) => fair.of_container(ix),
            Root::Leak(_) => 0,
        };
        let users: Vec<_> =
            refs.roots_of(0.into()).iter().copied().filter(|root| !matches!(root, Root::Leak(_))).collect();
        for root in &users {
            let sizes = refs.sizes(&inventory, *root);
            // Exact value, with the common denominator of at most 18 users.
            let common: u128 = (1..=18_u128).fold(1, |lcm, k| {
                let (mut a, mut b) = (lcm, k);
                while b != 0 { (a, b) = (b, a % b); }
                lcm / a * k
            });
            let exact: u128 = refs.reach(*root).iter().map(|node| {
                u128::from(inventory[*node].size.bytes) * common / u128::from(refs.refcount(*node))
            }).sum();
            let is = u128::from(share(*root));
            prop_assert!(is == exact / common || is == exact.div_ceil(common), "within a byte of its share");
            prop_assert!(share(*root) <= sizes.total.bytes);
            for other in &users {
                let reached = |root: &Root| { let mut reached = refs.reach(*root).to_vec(); reached.sort_unstable(); reached };
                if reached(root) == reached(other) {
                    prop_assert!(share(*root).abs_diff(share(*other)) <= 1, "equal reach, equal share");
                }
            }
        }
        if let [only] = users.as_slice() {
            prop_assert_eq!(share(*only), refs.sizes(&inventory, *only).total.bytes);
        }
    }
}
