//! Against definitions that ask everything anew.

use std::collections::BTreeSet;

use crate::model::NodeIx;
use crate::model::space::BytesAndInodes;
use crate::policy::plan::tests::*;

/// A thousand times a test's space, so that some gains are too small to be worth an image.
fn space(available: u64) -> Measured {
    let bytes = |thousand: u64| thousand * 1000;
    Ok(Space {
        capacity_bytes: bytes(1000),
        available_bytes: bytes(available),
        owed_bytes: 0,
        inodes: 0,
        inodes_free: 0,
    })
}

fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..400_u64, (0..200_u64).prop_map(|thousand| thousand * 1000)]
}

prop_compose! {
    fn any_world()(
        nodes in prop::collection::vec((0..2_usize, any_bytes(), prop::collection::vec(0..40_usize, 0..2)), 1..40),
        images in prop::collection::vec(
            (prop::collection::vec(0..40_usize, 1..4), 0..100_i64, prop::option::of(0..100_i64), 0..12_u8),
            1..24,
        ),
        containers in prop::collection::vec((0..24_usize, prop::collection::vec(0..40_usize, 0..2)), 0..3),
        anchored in prop::collection::vec(0..40_usize, 0..2),
        max_age in prop::option::of(20..100_i64),
        (high, below) in (1..100_u8, 0..30_u8),
    ) -> World {
        let count = nodes.len();
        // A layer needs earlier ones only.
        let built = nodes.iter().enumerate().map(|(at, (filesystem, bytes, needs))| {
            let needs: Vec<_> = if at == 0 { vec![] } else { needs.iter().map(|need| need % at).collect() };
            node(*filesystem, *bytes, &needs)
        });
        let mut world = World::new(built.collect(), vec![], percent(high, high.saturating_sub(below)));
        world.policy.min_age = SignedDuration::from_hours(5);
        world.policy.max_age = max_age.map(SignedDuration::from_hours);
        for (at, (holds, first, last, kind)) in images.iter().enumerate() {
            let holds: Vec<_> = holds.iter().map(|at| at % count).collect();
            let mut image = image(&format!("i{at:02}"), &holds);
            match kind {
                0 => image.pinned_by = vec!["test".into()],
                1 => image.store = 1.into(),
                _ => {}
            }
            world.inventory.images.push(image);
            let last = last.map(|last| last.min(*first));
            world.ages.push(hours_ago(*first, last));
        }
        for (image, holds) in containers {
            let mut container = container(image % images.len(), Owner::Podman);
            container.holds = holds.iter().map(|at| (at % count).into()).collect();
            world.inventory.containers.push(container);
        }
        world.inventory.anchored = anchored.iter().map(|at| (at % count).into()).collect();
        world
    }
}

/// What a filesystem gives back when a set of images has gone.
fn freed(inventory: &Inventory, gone: &[ImageIx], filesystem: usize) -> (u64, u64) {
    let mut alive: BTreeSet<NodeIx> = inventory.anchored.iter().copied().collect();
    let stay = (0..inventory.images.len()).map(ImageIx::from).filter(|at| !gone.contains(at));
    alive.extend(stay.flat_map(|at| inventory[at].holds.clone()));
    alive.extend(inventory.containers.iter().flat_map(|container| container.holds.clone()));
    let mut before: BTreeSet<NodeIx> = alive.clone();
    before.extend(gone.iter().flat_map(|at| inventory[*at].holds.clone()));
    let close = |mut set: BTreeSet<NodeIx>| loop {
        let more: Vec<_> = set.iter().flat_map(|node| inventory[*node].needs.clone()).collect();
        let count = set.len();
        set.extend(more);
        if set.len() == count {
            return set;
        }
    };
    let (alive, before) = (close(alive), close(before));
    let gone = before.difference(&alive).map(|node| &inventory[*node]);
    let gone = gone.filter(|node| node.filesystem.get() == filesystem);
    gone.fold((0, 0), |(bytes, inodes), node| (bytes + node.size.frees_bytes, inodes + node.size.inodes))
}

fn gained(world: &World, start: &[Measured], gone: &[ImageIx]) -> Vec<Measured> {
    let spaces = start.iter().enumerate().map(|(at, space)| {
        let (bytes, inodes) = freed(&world.inventory, gone, at);
        space.clone().map(|space| space.gained(bytes, inodes))
    });
    spaces.collect()
}

/// What must not go, by a reading of the rules of its own.
fn must_stay(world: &World, at: ImageIx) -> bool {
    let image = &world.inventory[at];
    !image.pinned_by.is_empty()
        || image.store.get() == 1
        || world.inventory.containers.iter().any(|container| container.image == Some(at))
        || now().duration_since(world.ages[at.get()].first_detected) < world.policy.min_age
        || world.ages[at.get()].last_used.is_some_and(|used| used >= now())
}

fn all_images(world: &World) -> impl Iterator<Item = ImageIx> {
    (0..world.inventory.images.len()).map(ImageIx::from)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_keeps_the_invariants(world in any_world(), available in (0..1000_u64, 0..1000_u64)) {
        let start = [space(available.0), space(available.1)];
        let plan = world.with(|input| plan(input, Task::Policy, &start));
        let gone: Vec<_> = plan.steps.iter().map(|step| world.at(&step.target)).collect();

        // Nothing that must stay goes, and each image has one fate.
        for at in &gone { prop_assert!(!must_stay(&world, *at), "{at:?}"); }
        let mut fates: Vec<_> = gone.iter().copied().chain(plan.kept.iter().map(|kept| world.at(&kept.target))).collect();
        fates.sort_unstable();
        prop_assert_eq!(fates, all_images(&world).collect::<Vec<_>>());

        // What is predicted one by one is what the set frees.
        world.with(|input| {
            let set: Vec<_> = gone.iter().map(|at| Root::Image(*at)).collect();
            let sizes = input.refs.sizes_of_set(input.inventory, &set);
            prop_assert_eq!(plan.predicted_bytes(), sizes.exclusive.frees_bytes);
            Ok(())
        })?;

        // A real run on a disk that keeps its promises is the same plan.
        let run = world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let mut gone = Vec::new();
            while let Some(step) = planner.next(&gained(&world, &start, &gone)) {
                gone.push(world.at(&step.target));
                planner.answer(Answer::Removed);
            }
            planner.finish(&gained(&world, &start, &gone))
        });
        prop_assert_eq!(&run, &plan);

        // Nothing went by space after its filesystem had come to its low threshold, and each started
        // one came there if that could be.
        let marks = world.policy.targets.used.unwrap();
        let candidates: Vec<_> = all_images(&world).filter(|at| !must_stay(&world, *at)).collect();
        for (number, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.cause == Cause::Space) {
            let before = gained(&world, &start, &gone[..number]);
            let space = before[step.filesystem.unwrap().get()].clone().unwrap();
            prop_assert!(space.used_percent() > f64::from(marks.low), "{number}");
        }
        for part in &plan.filesystems {
            let at = part.filesystem.get();
            let begin = start[at].clone().unwrap();
            let possible = gained(&world, &start, &candidates)[at].clone().unwrap();
            let after = part.after.clone().unwrap().unwrap();
            if begin.used_percent() < f64::from(marks.high) {
                prop_assert_eq!(part.end, PassEnd::NotNeeded);
            } else if possible.used_percent() <= f64::from(marks.low) {
                prop_assert!(after.used_percent() <= f64::from(marks.low) || part.end == PassEnd::NotNeeded);
            }
            prop_assert_eq!(part.end == PassEnd::NotReached, part.started.any() && after.used_percent() > f64::from(marks.low));
        }
    }

    /// The order of the records says nothing.
    #[test]
    fn the_same_whatever_the_order(mut world in any_world(), available in 0..1000_u64) {
        let start = [space(available), space(available)];
        let (deleted, mut kept, _) = world.plan(&start);
        let last = world.inventory.images.len() - 1;
        world.inventory.images.reverse();
        world.ages.reverse();
        for container in &mut world.inventory.containers {
            container.image = container.image.map(|at| (last - at.get()).into());
        }
        let (again, kept_again, _) = world.plan(&start);
        prop_assert_eq!(deleted, again);
        kept.reverse();
        prop_assert_eq!(kept, kept_again);
    }

    /// Whatever comes in between: no image is asked for twice, nothing that must stay is asked
    /// for, and it ends.
    #[test]
    fn refusals_and_noise_do_no_harm(
        world in any_world(),
        noise in prop::collection::vec((0..6_u8, 0..1000_u64), 1..60),
    ) {
        world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let mut asked = BTreeSet::new();
            let mut noise = noise.iter().cycle();
            loop {
                let (kind, available) = noise.next().unwrap();
                let measured = [space(*available), if *kind == 5 { Err(InvalidStats::NoCapacity) } else { space(1000 - *available) }];
                let Some(step) = planner.next(&measured) else { break };
                prop_assert!(asked.insert(world.at(&step.target)), "twice");
                prop_assert!(!must_stay(&world, world.at(&step.target)));
                planner.answer(match kind {
                    0 => Answer::Failed(failed("no"), Aftermath::Untouched),
                    1 => Answer::Kept(came_into_use("a pod")),
                    2 => Answer::AlreadyGone,
                    _ => Answer::Removed,
                });
            }
            let plan = planner.finish(&[space(0), space(0)]);
            prop_assert!(plan.steps.len() <= asked.len());
            Ok(())
        })?;
    }

    /// On a full disk, whatever comes in between: nothing that must stay is asked for, it ends, and nothing that is old
    /// enough is forgotten.
    #[test]
    fn a_full_disk_forgets_nothing(
        mut world in any_world(),
        tops in prop::collection::vec(0..8_usize, 24),
        (filesystem, bytes, available) in (0..2_usize, 0..300_000_u64, 0..400_u64),
        is_known in any::<bool>(),
        noise in prop::collection::vec(0..12_u8, 1..60),
    ) {
        for (image, top) in world.inventory.images.iter_mut().zip(&tops) {
            image.layers = vec![format!("layer {top}").as_str().into()];
        }
        let to_free = BytesAndInodes { bytes, inodes: 0 };
        let full = FullFilesystem { store: 0.into(), filesystem: filesystem.into(), to_free };
        world.full.extend(is_known.then_some(full));
        let start = [space(available), space(available)];
        let images = world.inventory.images.len();
        let (asked, plan) = world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let (mut asked, mut gone) = (Vec::new(), Vec::new());
            let mut noise = noise.iter().cycle();
            while asked.len() <= images * (images + 2)
                && let Some(step) = planner.next(&gained(&world, &start, &gone))
            {
                asked.push(world.at(&step.target));
                planner.answer(match noise.next().unwrap() {
                    0 => Answer::Failed(failed("no"), Aftermath::Untouched),
                    1 => Answer::Kept(came_into_use("a pod")),
                    2 => Answer::StoreSkipped("too little".into()),
                    answer => {
                        gone.push(world.at(&step.target));
                        if *answer == 5 { Answer::AlreadyGone } else { Answer::Removed }
                    }
                });
            }
            (asked, planner.finish(&gained(&world, &start, &gone)))
        });
        prop_assert!(asked.iter().all(|at| !must_stay(&world, *at)));
        prop_assert!(asked.len() <= images * (images + 2), "it does not end");
        let idle = |at: ImageIx| now().duration_since(world.ages[at.get()].idle_since());
        let spared = [Rule::NotNeeded, Rule::FreesNothing, Rule::RunEnded];
        for kept in plan.kept.iter().filter(|kept| spared.contains(&kept.rule)) {
            prop_assert!(world.policy.max_age.is_none_or(|limit| idle(world.at(&kept.target)) <= limit), "{kept:?}");
        }
    }
}
