//! Order `cheapest`, compared with the order `idle` and with all sets of images.

use crate::model::{NodeIx, OriginKind};
use crate::policy::cheapest::costs::PullCosts;
use crate::policy::input::DeletionOrder;
use crate::policy::plan::tests::*;

/// Capacity of the filesystem. All sizes are large, so that no gain is too small to be worth an image.
const CAPACITY: u64 = 10_000_000;

fn available(bytes: u64) -> [Measured; 2] {
    let space =
        Space { capacity_bytes: CAPACITY, available_bytes: bytes, owed_bytes: 0, inodes: 0, inodes_free: 0 };
    [Ok(space), Ok(Space { available_bytes: CAPACITY, ..space })]
}

fn any_past() -> impl Strategy<Value = (i64, Option<i64>, u64, u32)> {
    (1..2400_i64, prop::option::of(0..2400_i64), 0..40_u64, 0..3_u32)
}

fn facts((first, last, use_count, returns): (i64, Option<i64>, u64, u32)) -> Facts {
    let last = last.map(|last| now() - SignedDuration::from_hours(last.min(first)));
    let ages = Ages::new(now() - SignedDuration::from_hours(first), last, use_count);
    aged(Ages { returns, ..ages })
}

prop_compose! {
    /// Layers with one parent at most, and images on them.
    fn any_forest(most_images: usize)(
        layers in prop::collection::vec((20_000..400_000_u64, prop::option::weighted(0.8, 0..40_usize)), 1..40),
        images in prop::collection::vec((0..40_usize, any_past(), 20_000..50_000_u64), 1..most_images),
        used in prop::option::of(0..40_usize),
    ) -> World {
        let count = layers.len();
        let mut nodes: Vec<_> = layers
            .iter()
            .enumerate()
            .map(|(ix, (bytes, parent))| {
                let parent = parent.filter(|_| ix > 0).map(|parent| parent % ix);
                node(0, *bytes, parent.as_slice())
            })
            .collect();
        let mut world = World::new(vec![], vec![], percent(50, 50));
        for (ix, (top, past, own_bytes)) in images.iter().enumerate() {
            // Some images have a layer of their own, others share all of them.
            let top = if ix % 3 == 0 {
                top % count
            } else {
                nodes.push(node(0, *own_bytes, &[top % count]));
                nodes.len() - 1
            };
            world.inventory.images.push(image(&format!("i{ix:02}"), &[top]));
            world.facts.push(facts(*past));
        }
        world.inventory.nodes = nodes;
        let used = used.filter(|image| *image < images.len());
        world.inventory.containers.extend(used.map(|image| {
            let holds = world.inventory.images[image].holds.clone();
            Container { holds, ..container(image, Owner::CriO) }
        }));
        world
    }
}

/// Cost of a plan, by what its images free together; the bytes that they free; and the bound.
#[derive(Debug)]
struct Priced {
    plan: Plan,
    units: u128,
    at_least_bytes: Option<u64>,
}

fn priced(world: &mut World, order: DeletionOrder, measured: &[Measured]) -> Priced {
    world.policy.order = order;
    let plan = world.plan(measured).2;
    let images: Vec<_> = plan.steps.iter().map(|step| world.image_ix(&step.target)).collect();
    let units = world.with(|input| PullCosts::of(&input).of_images(&input, &images).units);
    let at_least_bytes = plan.filesystems[0].pulls.and_then(|pulls| pulls.at_least_bytes);
    Priced { plan, units, at_least_bytes }
}

/// Returns the cost of the cheapest set that frees the wanted bytes, of all sets of candidates.
fn optimum(world: &World, wanted: u64) -> Option<u128> {
    world.with(|input| {
        let costs = PullCosts::of(&input);
        let judge = Judge::new(input);
        let images = (0..input.inventory.images.len()).map(ImageIx::from);
        let candidates: Vec<_> =
            images.filter(|image| judge.kept(*image).is_none() && costs.can_return(*image)).collect();
        let live = input.refs.live();
        let mut nodes: Vec<(u32, u64, u128)> = Vec::new();
        for node in (0..input.inventory.nodes.len()).map(NodeIx::from) {
            let holders = candidates
                .iter()
                .enumerate()
                .filter(|(_, image)| input.refs.reach(Root::Image(**image)).contains(&node));
            let mask = holders.fold(0_u32, |mask, (position, _)| mask | 1 << position);
            if mask != 0 && mask.count_ones() == live.holders(node) {
                let node_ref = &input.inventory[node];
                let frees = if node_ref.filesystem.get() == 0 { node_ref.size.frees_bytes } else { 0 };
                nodes.push((mask, frees, costs.of_nodes(std::iter::once(node)).units));
            }
        }
        let sets = (0..1_u32 << candidates.len()).filter_map(|set| {
            let freed = nodes.iter().filter(|(mask, ..)| mask & set == *mask);
            let (frees, cost) = freed.fold((0, 0), |(frees, cost), node| (frees + node.1, cost + node.2));
            (frees >= wanted).then_some(cost)
        });
        sets.min()
    })
}

fn missing(plan: &Plan) -> u64 {
    let after = plan.filesystems[0].after.clone().unwrap().unwrap();
    (CAPACITY / 2).saturating_sub(after.available_bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// In forests of up to 13 images the choice is the best one.
    #[test]
    fn small_forest_is_solved_exactly(mut world in any_forest(14), wanted in 1..3_000_000_u64) {
        let measured = available(CAPACITY / 2 - wanted);
        let cheapest = priced(&mut world, DeletionOrder::Cheapest, &measured);
        let Some(optimum) = optimum(&world, wanted) else {
            prop_assert_eq!(cheapest.at_least_bytes, None);
            prop_assert!(missing(&cheapest.plan) > 0);
            return Ok(());
        };
        prop_assert_eq!(missing(&cheapest.plan), 0);
        prop_assert_eq!(cheapest.units, optimum);
        prop_assert!(u128::from(cheapest.at_least_bytes.unwrap()) * 1024 <= optimum);
    }

    /// In larger forests it is never worse than the order `idle`, and not below the bound.
    #[test]
    fn large_forest_costs_no_more_than_idle(mut world in any_forest(90), wanted in 1..6_000_000_u64.min(CAPACITY / 2)) {
        let measured = available(CAPACITY / 2 - wanted.min(CAPACITY / 2));
        let idle = priced(&mut world, DeletionOrder::Idle, &measured);
        let cheapest = priced(&mut world, DeletionOrder::Cheapest, &measured);
        prop_assert!(missing(&cheapest.plan) <= missing(&idle.plan));
        if missing(&idle.plan) == 0 {
            prop_assert!(cheapest.units <= idle.units, "{} {}", cheapest.units, idle.units);
            prop_assert!(u128::from(cheapest.at_least_bytes.unwrap()) * 1024 <= cheapest.units);
        }
        let again = priced(&mut world, DeletionOrder::Cheapest, &measured);
        prop_assert_eq!(&again.plan, &cheapest.plan);
    }

    /// With nodes that any images share, it is never worse than the order `idle`, and not below the bound.
    #[test]
    fn bound_holds_for_shared_nodes(
        mut world in any_forest(12),
        shared in prop::collection::vec((1..200_000_u64, prop::collection::vec(0..60_usize, 2..5)), 1..8),
        wanted in 1..3_000_000_u64,
    ) {
        for (bytes, holders) in shared {
            let ix = world.inventory.nodes.len();
            let count = ix.min(60);
            world.inventory.nodes.push(node(0, bytes, &[]));
            for holder in holders {
                world.inventory.nodes[holder % count].needs.push(ix.into());
            }
        }
        let measured = available(CAPACITY / 2 - wanted);
        let idle = priced(&mut world, DeletionOrder::Idle, &measured);
        let cheapest = priced(&mut world, DeletionOrder::Cheapest, &measured);
        if let Some(optimum) = optimum(&world, wanted) {
            prop_assert!(u128::from(cheapest.at_least_bytes.unwrap()) * 1024 <= optimum);
        }
        if missing(&idle.plan) == 0 {
            prop_assert_eq!(missing(&cheapest.plan), 0);
            prop_assert!(cheapest.units <= idle.units);
        }
    }
}

/// Two versions share a large base and were used long ago; a small one that is used every day is idle for longer.
#[test]
fn image_in_regular_use_stays() {
    let nodes =
        vec![node(0, 500_000, &[]), node(0, 30_000, &[0]), node(0, 30_000, &[0]), node(0, 520_000, &[])];
    let images = vec![image("web-1", &[1]), image("web-2", &[2]), image("job", &[3])];
    let mut world = World::new(nodes, images, percent(50, 50));
    // The job runs every other day, and last ran four days ago; web ran three days ago, once each.
    for (position, past) in
        [(24 * 3, Some(24 * 3), 1, 0), (24 * 3, Some(24 * 3), 1, 0), (24 * 60, Some(24 * 4), 28, 0)]
            .into_iter()
            .enumerate()
    {
        world.facts[position] = facts(past);
    }
    let measured = available(CAPACITY / 2 - 500_000);
    fn deleted(world: &mut World, order: DeletionOrder, measured: &[Measured]) -> Vec<String> {
        let plan = priced(world, order, measured).plan;
        plan.steps.iter().map(|step| step.target.id.clone()).collect()
    }
    use DeletionOrder::{Cheapest, Idle};
    assert_eq!(deleted(&mut world, Idle, &measured), ["job"]);
    assert_eq!(
        deleted(&mut world, Cheapest, &measured),
        ["job"],
        "web is wanted with a chance of almost a half"
    );
    world.facts[0] = facts((24 * 30, Some(24 * 30), 1, 0));
    world.facts[1] = facts((24 * 30, Some(24 * 30), 1, 0));
    world.facts[2] = facts((24 * 120, Some(24 * 31), 80, 5));
    assert_eq!(deleted(&mut world, Idle, &measured), ["job"]);
    assert_eq!(deleted(&mut world, Cheapest, &measured), ["web-1", "web-2"], "the job came back five times");
    // An image that no registry may have is last, whatever the others cost.
    world.inventory.images[0].origin = Origin::new(OriginKind::Built, "built here");
    assert_eq!(deleted(&mut world, Cheapest, &measured)[0], "job");
}

/// Plans for a big and a usual node that use none of their images, with uneven numbers of uses.
#[test]
#[ignore = "prints how long planning takes; run it with --release"]
fn planning_an_unused_node() {
    for (images, layers) in [(10_000, 100_000), (150, 1_500)] {
        let mut made = Scenario::big(images, layers);
        made.containers.clear();
        for (position, image) in made.images.iter_mut().enumerate() {
            image.ages.use_count = [1, 1, 1, 3, 9, 40][position % 6];
        }
        let inventory = made.inventory();
        let (refs, facts) = (Refs::new(&inventory), made.facts());
        for order in DeletionOrder::ALL {
            let policy = Policy { order: *order, ..percent(75, 60) };
            let input = Input {
                inventory: &inventory,
                refs: &refs,
                facts: &facts,
                full_filesystems: &[],
                policy: &policy,
                now: made.now,
                scanned: made.now,
            };
            let begin = std::time::Instant::now();
            let plan = plan(input, Task::Policy, &[Ok(made.space())]);
            let elapsed = begin.elapsed();
            let deleted: HashSet<_> = plan.steps.iter().map(|step| step.target.id.as_str()).collect();
            let images = inventory.images.iter().enumerate();
            let images = images.filter(|(_, image)| deleted.contains(image.id.as_str()));
            let images: Vec<_> = images.map(|(position, _)| position.into()).collect();
            let cost = PullCosts::of(&input).of_images(&input, &images).bytes();
            let pulls = plan.filesystems[0].pulls;
            println!("{order}: {} steps in {elapsed:?}, {cost} bytes, {pulls:?}", images.len());
        }
    }
}
