//! Properties, compared with definitions that compute everything anew.

use std::collections::BTreeSet;

use crate::model::space::BytesAndInodes;
use crate::model::{NodeIx, OriginKind};
use crate::policy::input::DeletionOrder;
use crate::policy::plan::tests::*;

/// Returns a thousand times a test's space, so that some gains are too small to be worth an image.
fn space(available: u64) -> Measured {
    Ok(Space {
        capacity_bytes: 1_000_000,
        available_bytes: available * 1000,
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
        order in prop::sample::select(DeletionOrder::ALL),
    ) -> World {
        let count = nodes.len();
        // A layer only needs earlier ones.
        let built = nodes.iter().enumerate().map(|(ix, (filesystem, bytes, needs))| {
            let needs: Vec<_> = if ix == 0 { vec![] } else { needs.iter().map(|need| need % ix).collect() };
            node(*filesystem, *bytes, &needs)
        });
        let mut world = World::new(built.collect(), vec![], percent(high, high.saturating_sub(below)));
        world.policy.min_age = SignedDuration::from_hours(5);
        world.policy.max_age = max_age.map(SignedDuration::from_hours);
        world.policy.order = order;
        for (ix, (holds, first, last, kind)) in images.iter().enumerate() {
            let holds: Vec<_> = holds.iter().map(|ix| ix % count).collect();
            let mut image = image(&format!("i{ix:02}"), &holds);
            match kind {
                0 => image.pinned_by = vec!["test".into()],
                1 => image.store = 1.into(),
                2 => image.origin = Origin::new(OriginKind::Built, "test"),
                _ => {}
            }
            world.inventory.images.push(image);
            let last = last.map(|last| last.min(*first));
            world.facts.push(aged(hours_ago(*first, last)));
        }
        for (image, holds) in containers {
            let mut container = container(image % images.len(), Owner::Podman);
            container.holds = holds.iter().map(|node| (node % count).into()).collect();
            world.inventory.containers.push(container);
        }
        world.inventory.anchored = anchored.iter().map(|node| (node % count).into()).collect();
        world
    }
}

/// Returns the bytes and inodes that a filesystem frees when a set of images is deleted.
fn freed(inventory: &Inventory, deleted: &[ImageIx], filesystem: usize) -> (u64, u64) {
    let mut alive: BTreeSet<NodeIx> = inventory.anchored.iter().copied().collect();
    let kept = (0..inventory.images.len()).map(ImageIx::from).filter(|image| !deleted.contains(image));
    alive.extend(kept.flat_map(|image| inventory[image].holds.clone()));
    alive.extend(inventory.containers.iter().flat_map(|container| container.holds.clone()));
    let mut before: BTreeSet<NodeIx> = alive.clone();
    before.extend(deleted.iter().flat_map(|image| inventory[*image].holds.clone()));
    fn with_needs(inventory: &Inventory, mut set: BTreeSet<NodeIx>) -> BTreeSet<NodeIx> {
        loop {
            let more: Vec<_> = set.iter().flat_map(|node| inventory[*node].needs.clone()).collect();
            let count = set.len();
            set.extend(more);
            if set.len() == count {
                return set;
            }
        }
    }
    let (alive, before) = (with_needs(inventory, alive), with_needs(inventory, before));
    let freed = before.difference(&alive).map(|node| &inventory[*node]);
    let freed = freed.filter(|node| node.filesystem.get() == filesystem);
    freed.fold((0, 0), |(bytes, inodes), node| (bytes + node.size.frees_bytes, inodes + node.size.inodes))
}

fn gained(world: &World, start: &[Measured], deleted: &[ImageIx]) -> Vec<Measured> {
    let spaces = start.iter().enumerate().map(|(filesystem, space)| {
        let (bytes, inodes) = freed(&world.inventory, deleted, filesystem);
        space.clone().map(|space| space.gained(bytes, inodes))
    });
    spaces.collect()
}

/// Returns whether an image must be kept, by an independent reading of the rules.
fn must_stay(world: &World, image: ImageIx) -> bool {
    let record = &world.inventory[image];
    !record.pinned_by.is_empty()
        || record.store.get() == 1
        || world.inventory.containers.iter().any(|container| container.image == Some(image))
        || now().duration_since(world.ages(image).first_detected) < world.policy.min_age
        || world.ages(image).last_used.is_some_and(|used| used >= now())
}

fn all_images(world: &World) -> impl Iterator<Item = ImageIx> {
    (0..world.inventory.images.len()).map(ImageIx::from)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn plan_satisfies_its_invariants(world in any_world(), available in (0..1000_u64, 0..1000_u64)) {
        let start = [space(available.0), space(available.1)];
        let plan = world.with(|input| plan(input, Task::Policy, &start));
        let deleted: Vec<_> = plan.steps.iter().map(|step| world.image_ix(&step.target)).collect();

        // No image that must be kept is deleted, and each image is in the plan once.
        for image in &deleted { prop_assert!(!must_stay(&world, *image), "{image:?}"); }
        let mut all: Vec<_> = deleted.iter().copied().chain(plan.kept.iter().map(|kept| world.image_ix(&kept.target))).collect();
        all.sort_unstable();
        prop_assert_eq!(all, all_images(&world).collect::<Vec<_>>());

        // The predictions of the steps add up to what the set frees.
        world.with(|input| {
            let set: Vec<_> = deleted.iter().map(|image| Root::Image(*image)).collect();
            let sizes = input.refs.sizes_of_set(input.inventory, &set);
            prop_assert_eq!(plan.predicted_bytes(), sizes.exclusive.frees_bytes);
            Ok(())
        })?;

        // A run on a disk that behaves as predicted is the same plan.
        let run = world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let mut deleted = Vec::new();
            while let Some(step) = planner.next(&gained(&world, &start, &deleted)) {
                deleted.push(world.image_ix(&step.target));
                planner.answer(Answer::Removed);
            }
            planner.finish(&gained(&world, &start, &deleted))
        });
        prop_assert_eq!(&run, &plan);

        // No image was deleted for space after its filesystem had reached its low threshold, and each filesystem
        // that started reached it if possible.
        let marks = world.policy.targets.used.unwrap();
        let candidates: Vec<_> = all_images(&world).filter(|image| !must_stay(&world, *image)).collect();
        for (number, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.cause == Cause::Space) {
            let before = gained(&world, &start, &deleted[..number]);
            let space = before[step.filesystem.unwrap().get()].clone().unwrap();
            prop_assert!(space.used_percent() > f64::from(marks.low), "{number}");
        }
        for part in &plan.filesystems {
            let filesystem = part.filesystem.get();
            let begin = start[filesystem].clone().unwrap();
            let possible = gained(&world, &start, &candidates)[filesystem].clone().unwrap();
            let after = part.after.clone().unwrap().unwrap();
            if begin.used_percent() < f64::from(marks.high) {
                prop_assert_eq!(part.end, PassEnd::NotNeeded);
            } else if possible.used_percent() <= f64::from(marks.low) {
                prop_assert!(after.used_percent() <= f64::from(marks.low) || part.end == PassEnd::NotNeeded);
            }
            prop_assert_eq!(part.end == PassEnd::NotReached, part.started.any() && after.used_percent() > f64::from(marks.low));
        }
    }

    /// The order of the records has no effect.
    #[test]
    fn plan_does_not_depend_on_record_order(mut world in any_world(), available in 0..1000_u64) {
        let start = [space(available), space(available)];
        let (deleted, mut kept, _) = world.plan(&start);
        let last = world.inventory.images.len() - 1;
        world.inventory.images.reverse();
        world.facts.reverse();
        for container in &mut world.inventory.containers {
            container.image = container.image.map(|image| (last - image.get()).into());
        }
        let (again, kept_again, _) = world.plan(&start);
        prop_assert_eq!(deleted, again);
        kept.reverse();
        prop_assert_eq!(kept, kept_again);
    }

    /// With any outcomes and measurements, no image is handed out twice, no image that must be kept is handed out,
    /// and the planning ends.
    #[test]
    fn refusals_and_noise_are_harmless(
        world in any_world(),
        noise in prop::collection::vec((0..6_u8, 0..1000_u64), 1..60),
    ) {
        world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let mut tried = BTreeSet::new();
            let mut noise = noise.iter().cycle();
            loop {
                let (kind, available) = noise.next().unwrap();
                let measured = [space(*available), if *kind == 5 { Err(InvalidStats::NoCapacity) } else { space(1000 - *available) }];
                let Some(step) = planner.next(&measured) else { break };
                prop_assert!(tried.insert(world.image_ix(&step.target)), "twice");
                prop_assert!(!must_stay(&world, world.image_ix(&step.target)));
                planner.answer(match kind {
                    0 => Answer::Failed(failed("no"), Aftermath::Untouched),
                    1 => Answer::Kept(now_in_use("a pod")),
                    2 => Answer::AlreadyGone,
                    _ => Answer::Removed,
                });
            }
            let plan = planner.finish(&[space(0), space(0)]);
            prop_assert!(plan.steps.len() <= tried.len());
            Ok(())
        })?;
    }

    /// On a full disk with any outcomes, no image that must be kept is handed out, the planning ends, and no image
    /// that is old enough is forgotten.
    #[test]
    fn full_disk_forgets_no_image(
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
        let (tried, plan) = world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let (mut tried, mut deleted) = (Vec::new(), Vec::new());
            let mut noise = noise.iter().cycle();
            while tried.len() <= images * (images + 2)
                && let Some(step) = planner.next(&gained(&world, &start, &deleted))
            {
                tried.push(world.image_ix(&step.target));
                planner.answer(match noise.next().unwrap() {
                    0 => Answer::Failed(failed("no"), Aftermath::Untouched),
                    1 => Answer::Kept(now_in_use("a pod")),
                    2 => Answer::StoreSkipped("too little".into()),
                    answer => {
                        deleted.push(world.image_ix(&step.target));
                        if *answer == 5 { Answer::AlreadyGone } else { Answer::Removed }
                    }
                });
            }
            (tried, planner.finish(&gained(&world, &start, &deleted)))
        });
        prop_assert!(tried.iter().all(|image| !must_stay(&world, *image)));
        prop_assert!(tried.len() <= images * (images + 2), "it does not end");
        let untouched = [Rule::NotNeeded, Rule::FreesNothing, Rule::RunEnded];
        for kept in plan.kept.iter().filter(|kept| untouched.contains(&kept.rule)) {
            let idle = now().duration_since(world.ages(world.image_ix(&kept.target)).idle_since());
            prop_assert!(world.policy.max_age.is_none_or(|limit| idle <= limit), "{kept:?}");
        }
    }
}
