use proptest::prelude::*;

use super::*;
use crate::model::samples::{self, image, nodes, store};
use crate::model::{Consistency, Container, ContainerState, Leak, LeakClass, Node, Owner, Verdict};

pub(super) fn node(kind: NodeKind, bytes: u64, needs: &[usize]) -> Node {
    let layer = samples::layer(bytes, needs);
    Node { kind, size: Size { frees_bytes: bytes + 1, ..layer.size }, ..layer }
}

pub(super) fn container(image: Option<usize>, holds: &[usize]) -> Container {
    Container {
        image: image.map(Into::into),
        holds: nodes(holds),
        ..samples::container("c", Owner::Podman, ContainerState::Unknown)
    }
}

fn leak(verdict: Verdict, holds: &[usize]) -> Leak {
    samples::leak(LeakClass::OrphanDir, verdict, holds)
}

/// base(0) <- runtime(1) <- svc(2), tools(3); rw(4) on svc; hard links between runtime and tools (5); orphan (6);
/// store metadata (7).
pub(super) fn tree() -> Inventory {
    use NodeKind::{Layer, Orphan, SharedInodes, StoreMetadata};
    Inventory {
        stores: vec![store()],
        nodes: vec![
            node(Layer, 1000, &[]),
            node(Layer, 200, &[0, 5]),
            node(Layer, 30, &[1]),
            node(Layer, 4, &[0, 5]),
            node(Layer, 50_000, &[2]),
            node(SharedInodes, 600, &[]),
            node(Orphan, 7, &[]),
            node(StoreMetadata, 9, &[]),
        ],
        images: vec![image("base", &[0]), image("runtime", &[1]), image("svc", &[2]), image("tools", &[3])],
        containers: vec![container(Some(2), &[4])],
        leaks: vec![leak(Verdict::Reclaim, &[6])],
        anchored: vec![7.into()],
        ..Inventory::default()
    }
}

fn bytes(sizes: RootSizes) -> (u64, u64, u64, u64) {
    (sizes.total.bytes, sizes.shared.bytes, sizes.exclusive.bytes, sizes.exclusive.frees_bytes)
}

#[test]
fn sizes_of_single_roots() {
    let inventory = tree();
    let refs = Refs::new(&inventory);
    let sizes = |root| bytes(refs.sizes(&inventory, root));
    assert_eq!(sizes(Root::Image(0.into())), (1000, 1000, 0, 0), "base is under everything");
    assert_eq!(sizes(Root::Image(1.into())), (1800, 1800, 0, 0));
    assert_eq!(sizes(Root::Image(2.into())), (1830, 1830, 0, 0), "the container holds svc's layer");
    assert_eq!(sizes(Root::Image(3.into())), (1604, 1600, 4, 5), "the links are runtime's too");
    assert_eq!(sizes(Root::Container(0.into())), (51_830, 1830, 50_000, 50_001));
    assert_eq!(sizes(Root::Leak(0.into())), (7, 0, 7, 8));
    assert_eq!((refs.refcount(0.into()), refs.refcount(5.into()), refs.refcount(6.into())), (5, 4, 0));
    assert_eq!(
        refs.reached_by(3.into()).collect::<Vec<_>>(),
        [Root::Image(3.into())],
        "only tools reaches its layer"
    );
    assert_eq!(Refs::alone(&inventory, 1.into()).bytes, 800);
}

#[test]
fn sets_contain_what_their_members_share() {
    let inventory = tree();
    let refs = Refs::new(&inventory);
    let images: Vec<_> = (0..4).map(|ix| Root::Image(ix.into())).collect();
    assert_eq!(bytes(refs.sizes_of_set(&inventory, &images)).2, 4, "the container holds the rest");
    let all = refs.roots_of(0.into()).to_vec();
    let sizes = refs.sizes_of_set(&inventory, &all);
    assert_eq!(bytes(sizes), (51_841, 0, 51_841, 51_841 + 7));
    let doubled: Vec<_> = all.iter().chain(&all).copied().collect();
    assert_eq!(refs.sizes_of_set(&inventory, &doubled), sizes, "naming a root twice changes nothing");
}

#[test]
fn plan_predicts_what_each_deletion_frees() {
    let inventory = tree();
    let refs = Refs::new(&inventory);
    let mut live = refs.live();
    let order = [
        (Root::Image(1.into()), 0),
        (Root::Image(3.into()), 4),
        (Root::Image(3.into()), 0),
        (Root::Image(2.into()), 0),
        (Root::Container(0.into()), 50_000 + 30 + 200 + 600),
        (Root::Image(0.into()), 1000),
    ];
    for (root, freed) in order {
        assert_eq!(live.next(&inventory, root).bytes, freed, "{root:?}");
        assert_eq!(live.remove(&inventory, root).bytes, freed, "{root:?}");
    }
}

#[test]
fn every_byte_has_one_holder() {
    let inventory = tree();
    let refs = Refs::new(&inventory);
    let sums = breakdown(&inventory, &refs, 0.into());
    assert_eq!(
        (sums.images.bytes, sums.containers.bytes, sums.leaks.bytes, sums.metadata.bytes, sums.other.bytes),
        (1834, 50_000, 7, 9, 0)
    );
    assert_eq!(sums.total().bytes, inventory.nodes.iter().map(|node| node.size.bytes).sum::<u64>());
}

#[test]
fn rows_separate_used_from_unused() {
    let mut inventory = tree();
    inventory.images[0].pinned_by = vec!["crio.conf".into()];
    // An unreferenced layer on top of runtime.
    inventory.nodes.push(node(NodeKind::Layer, 80, &[1]));
    inventory.leaks.push(leak(Verdict::Keep, &[8]));
    let refs = Refs::new(&inventory);
    let rows = rows(&inventory, &refs, 0.into());
    let row = |kind| rows.iter().find(|row| row.kind == kind).map(|row| (row.count, row.sizes.total.bytes));
    assert_eq!(row(RowKind::ImagesInUse), Some((1, 1830)));
    assert_eq!(row(RowKind::ImagesPinned), Some((1, 1000)));
    assert_eq!(row(RowKind::ImagesUnused), Some((2, 1804)));
    assert_eq!(row(RowKind::Containers), Some((1, 50_000)), "image layers are not the containers'");
    assert_eq!(row(RowKind::LeaksReclaimable), Some((1, 7)));
    assert_eq!(row(RowKind::LeaksKept), Some((1, 80)), "the layers below it are the images'");
    assert_eq!(reclaimable(&inventory, &refs, &[0.into()]).bytes, 4 + 7);
    inventory.stores[0].consistency = Consistency::Damaged;
    assert_eq!(reclaimable(&inventory, &refs, &[0.into()]).bytes, 0, "damaged records prove nothing");
}

#[test]
fn kept_leaks_keep_their_parents() {
    let mut inventory = tree();
    // An old unreferenced layer, a young one on top of it, and one that an image reaches.
    inventory.nodes.push(node(NodeKind::Layer, 80, &[]));
    inventory.nodes.push(node(NodeKind::Layer, 8, &[8]));
    inventory.leaks.push(leak(Verdict::Reclaim, &[8]));
    inventory.leaks.push(leak(Verdict::Keep, &[9]));
    inventory.leaks.push(leak(Verdict::Reclaim, &[2]));
    let refs = Refs::new(&inventory);
    keep_reached_leaks(&mut inventory, &refs);
    let verdicts: Vec<_> = inventory.leaks.iter().map(|leak| leak.verdict).collect();
    assert_eq!(verdicts, [Verdict::Reclaim, Verdict::Keep, Verdict::Keep, Verdict::Keep]);
}

#[test]
fn cyclic_chain_is_walked_once() {
    let mut inventory = tree();
    inventory.nodes[0].needs.push(2.into());
    let refs = Refs::new(&inventory);
    assert_eq!(refs.sizes(&inventory, Root::Image(0.into())).total.bytes, 1830);
}

prop_compose! {
    pub(super) fn any_inventory()(
        needs in prop::collection::vec(prop::collection::vec(0..40_usize, 0..3), 1..40),
        images in prop::collection::vec(prop::collection::vec(0..40_usize, 0..3), 0..12),
        containers in prop::collection::vec(prop::collection::vec(0..40_usize, 0..3), 0..6),
        leaks in prop::collection::vec(prop::collection::vec(0..40_usize, 0..3), 0..4),
        anchored in prop::collection::vec(0..40_usize, 0..3),
    ) -> Inventory {
        let count = needs.len();
        let within = |holds: &Vec<usize>| holds.iter().map(|ix| ix % count).collect::<Vec<_>>();
        Inventory {
            stores: vec![store()],
            nodes: needs.iter().enumerate()
                .map(|(ix, needs)| node(NodeKind::Layer, 1 << (ix % 20), &within(needs))).collect(),
            images: images.iter().map(|holds| image("i", &within(holds))).collect(),
            containers: containers.iter().map(|holds| container(None, &within(holds))).collect(),
            leaks: leaks.iter().map(|holds| leak(Verdict::Reclaim, &within(holds))).collect(),
            anchored: anchored.iter().map(|ix| (ix % count).into()).collect(),
            ..Inventory::default()
        }
    }
}

proptest! {
    /// Compares with a definition that visits each node anew.
    #[test]
    fn exclusive_nodes_have_no_other_holder(inventory in any_inventory(), pick in any::<u32>()) {
        let refs = Refs::new(&inventory);
        let all = refs.roots_of(0.into()).to_vec();
        let set: Vec<_> =
            all.iter().enumerate().filter(|(ix, _)| pick >> (ix % 32) & 1 == 1).map(|(_, root)| *root).collect();
        let reached_from = |start: &[NodeIx]| {
            let mut found: std::collections::BTreeSet<NodeIx> = start.iter().copied().collect();
            loop {
                let more: Vec<_> = found.iter().flat_map(|n| inventory[*n].needs.clone()).collect();
                let before = found.len();
                found.extend(more);
                if found.len() == before { return found; }
            }
        };
        fn holds<'a>(inventory: &'a Inventory, root: &Root) -> &'a [NodeIx] {
            match root {
                Root::Image(ix) => &inventory[*ix].holds,
                Root::Container(ix) => &inventory[*ix].holds,
                Root::Leak(ix) => &inventory[*ix].holds,
            }
        }
        let mut outside = reached_from(&inventory.anchored);
        for root in all.iter().filter(|root| !set.contains(root)) {
            outside.extend(reached_from(holds(&inventory, root)));
        }
        let mut inside = std::collections::BTreeSet::new();
        for root in &set { inside.extend(reached_from(holds(&inventory, root))); }
        let sum = |nodes: Vec<NodeIx>| nodes.iter().map(|n| inventory[*n].size.bytes).sum::<u64>();
        let sizes = refs.sizes_of_set(&inventory, &set);
        prop_assert_eq!(sizes.exclusive.bytes, sum(inside.difference(&outside).copied().collect()));
        prop_assert_eq!(sizes.shared.bytes, sum(inside.intersection(&outside).copied().collect()));
        prop_assert_eq!(sizes.total.bytes, sizes.shared.bytes + sizes.exclusive.bytes);

        // Deleting the roots one after the other frees as much as all together, in any order.
        let mut live = refs.live();
        let together = sum(live.last_held_by(&set));
        let freed: u64 = set.iter().rev().map(|root| live.remove(&inventory, *root).bytes).sum();
        prop_assert_eq!([freed, together], [sizes.exclusive.bytes; 2]);
    }

    #[test]
    fn breakdown_adds_up(inventory in any_inventory()) {
        let refs = Refs::new(&inventory);
        let all: u64 = inventory.nodes.iter().map(|node| node.size.bytes).sum();
        prop_assert_eq!(breakdown(&inventory, &refs, 0.into()).total().bytes, all);
    }
}
