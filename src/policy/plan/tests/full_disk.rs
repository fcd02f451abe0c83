//! The first deletion on a full disk.

use crate::model::space::BytesAndInodes;
use crate::policy::plan::tests::*;

/// Sets the room that must be made in the first store before any record can be written there.
fn needs(world: &mut World, bytes: u64, inodes: u64) {
    let to_free = BytesAndInodes { bytes, inodes };
    world.full = vec![FullFilesystem { store: 0.into(), filesystem: 0.into(), to_free }];
}

fn world(policy: Policy) -> World {
    let nodes = [30, 80, 30, 90].map(|bytes| node(0, bytes, &[])).to_vec();
    World::new(nodes, (0..4).map(|ix| image(&format!("i{ix}"), &[ix])).collect(), policy)
}

#[test]
fn image_that_makes_room_is_first() {
    let mut world = world(percent(75, 70));
    needs(&mut world, 60, 0);
    assert_eq!(world.plan(&[space(0)]).0, ["i1", "i0", "i2", "i3"]);
    let named = world.with(|input| plan(input, Task::Named(&[2.into(), 3.into()]), &[space(0)]));
    let named: Vec<_> = named.steps.iter().map(|step| step.target.id.as_str()).collect();
    assert_eq!(named, ["i3", "i2"]);
    // Every layer has some inodes. A full XFS has none free, and needs the bytes.
    for (bytes, first) in [(0, "i0"), (60, "i1")] {
        needs(&mut world, bytes, 4);
        assert_eq!(world.plan(&[space(0)]).0[0], first);
    }
}

#[test]
fn store_is_kept_if_no_image_makes_room() {
    let mut world = world(percent(75, 70));
    needs(&mut world, 100, 0);
    for (task, which) in
        [(Task::Policy, "no single image"), (Task::Named(&[1.into()]), "none of the named images")]
    {
        let plan = world.with(|input| plan(input, task, &[space(0)]));
        assert!(plan.steps.is_empty());
        assert!(plan.kept.iter().all(|kept| kept.rule == Rule::OutOfReach), "{:?}", plan.kept);
        assert_eq!((plan.outcome, plan.problems.len()), (OutcomeKind::Failed, 1));
        let expected = format!(
            "no space left to write: {which} frees the 100 B that a deletion needs on this full disk"
        );
        assert_eq!(plan.problems[0].message, expected);
    }
    // Nothing has to be deleted: this is not a problem.
    world.policy = Policy::default();
    assert_eq!(world.plan(&[space(0)]).2.outcome, OutcomeKind::NotNeeded);
}

#[test]
fn shared_layers_do_not_make_room() {
    let nodes = [200, 5, 5].map(|bytes| node(0, bytes, &[])).to_vec();
    let images = vec![image("i0", &[0, 1]), image("i1", &[0, 2])];
    let mut world = World::new(nodes, images, percent(75, 70));
    needs(&mut world, 60, 0);
    let (deleted, _, plan) = world.plan(&[space(0)]);
    assert_eq!((deleted.len(), plan.outcome), (0, OutcomeKind::Failed));
    // Layers that another store needs do not make room either.
    let mut world = self::world(percent(75, 70));
    needs(&mut world, 60, 0);
    world.inventory.uses =
        vec![Use { by: "an image in /other".into(), holds: vec![1.into()], ..Use::default() }];
    assert_eq!(world.plan(&[space(0)]).0[0], "i3");
}

#[test]
fn old_images_wait_for_an_image_with_room() {
    let max_age = Some(SignedDuration::from_hours(10));
    let mut world = world(Policy { max_age, ..percent(75, 70) });
    needs(&mut world, 60, 0);
    for young in [1, 3] {
        world.facts[young].ages = Some(hours_ago(1000, Some(5)));
    }
    let (deleted, _, plan) = world.plan(&[space(0)]);
    // The larger one of two that were used at the same time.
    assert_eq!(deleted[..3], ["i3", "i0", "i2"]);
    assert_eq!(count(&plan, Reason::Age), 2);
}

/// The editor measured less than the plan: after one refusal the store is kept.
#[test]
fn store_is_skipped_if_first_is_too_small() {
    let mut world = world(percent(75, 70));
    needs(&mut world, 60, 0);
    let (tried, plan) = world.run(0, |_| Answer::StoreSkipped("too little".into()));
    assert_eq!(tried, ["i1"]);
    assert!(plan.steps.is_empty());
}
