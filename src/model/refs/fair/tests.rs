use proptest::prelude::*;

use super::*;
use crate::model::refs::roots_of;
use crate::model::refs::tests::{any_inventory, tree};

fn by_du(inventory: &Inventory) -> (Fair, u64) {
    let refs = Refs::new(inventory);
    let all = inventory.nodes.iter().map(|node| node.size.bytes).sum();
    (fair(inventory, &refs, |at| size_in_store(inventory, at)), all)
}

#[test]
fn each_node_is_divided_among_those_that_reach_it() {
    let inventory = tree();
    let (fair, all) = by_du(&inventory);
    let images: Vec<_> = (0..4).map(|at| fair.of_image(ImageIx::from(at))).collect();
    // base is under all five of them, runtime under three, the shared inodes under four: 1000/5,
    // that + 200/3 + 600/4, that + 30/2, and 1000/5 + 600/4 + 4. Two of three thirds are rounded up.
    assert_eq!(images, [200, 417, 431, 354]);
    assert_eq!(fair.of_container(0.into()), 50_432);
    assert_eq!((fair.leaks, fair.metadata, fair.other), (7, 9, 0));
    assert_eq!(fair.total(), all);
}

#[test]
fn ties_go_by_id() {
    let mut inventory = tree();
    inventory.nodes.truncate(1);
    inventory.containers.clear();
    inventory.leaks.clear();
    inventory.anchored.clear();
    for (image, id) in inventory.images.iter_mut().zip(["d", "b", "c", "a"]) {
        image.id = id.into();
        image.holds = vec![0.into()];
    }
    inventory.nodes[0].size.bytes = 4002;
    let (fair, _) = by_du(&inventory);
    assert_eq!(fair.shares, [1000, 1001, 1000, 1001]);
}

proptest! {
    #[test]
    fn the_column_adds_up_and_is_fair(inventory in any_inventory()) {
        let refs = Refs::new(&inventory);
        let (fair, all) = by_du(&inventory);
        prop_assert_eq!(fair.total(), all);
        let share = |root: Root| match root {
            Root::Image(at) => fair.of_image(at),
            Root::Container(at) => fair.of_container(at),
            Root::Leak(_) => 0,
        };
        let users: Vec<_> =
            roots_of(&inventory, 0.into()).filter(|root| !matches!(root, Root::Leak(_))).collect();
        for root in &users {
            let weight = refs.weight(&inventory, *root);
            // Exactly: the common denominator of at most 18 users.
            let common: u128 = (1..=18_u128).fold(1, |lcm, k| {
                let (mut a, mut b) = (lcm, k);
                while b != 0 { (a, b) = (b, a % b); }
                lcm / a * k
            });
            let exact: u128 = refs.reach(*root).iter().map(|node| {
                u128::from(inventory.nodes[node.get()].size.bytes) * common / u128::from(refs.refcount(*node))
            }).sum();
            let is = u128::from(share(*root));
            prop_assert!(is == exact / common || is == exact.div_ceil(common), "within a byte of its share");
            prop_assert!(share(*root) <= weight.total.bytes);
            for other in &users {
                let same = |root: &Root| { let mut reached = refs.reach(*root).to_vec(); reached.sort_unstable(); reached };
                if same(root) == same(other) {
                    prop_assert!(share(*root).abs_diff(share(*other)) <= 1, "who reaches the same bears the same");
                }
            }
        }
        if let [only] = users.as_slice() {
            prop_assert_eq!(share(*only), refs.weight(&inventory, *only).total.bytes);
        }
    }
}
