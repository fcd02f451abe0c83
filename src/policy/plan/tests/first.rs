//! The first deletion on a full disk.

use crate::model::space::BytesAndInodes;
use crate::policy::plan::tests::*;

fn needed(bytes: u64) -> BytesAndInodes {
    BytesAndInodes { bytes, inodes: 0 }
}

/// So many bytes have to be freed first.
fn needs(world: &mut World, filesystem: usize, bytes: u64) {
    needs_of(world, filesystem, needed(bytes));
}

fn needs_of(world: &mut World, filesystem: usize, to_free: BytesAndInodes) {
    world.full = vec![FullFilesystem { store: 0.into(), filesystem: filesystem.into(), to_free }];
}

fn along(step: &Step) -> Vec<&str> {
    step.along.iter().map(|target| target.id.as_str()).collect()
}

/// Where no record file can be written, the first image has to make the room for it.
#[test]
fn on_a_full_disk_an_image_that_makes_room_goes_first() {
    let nodes = || [30, 80, 30, 90].map(|bytes| node(0, bytes, &[])).to_vec();
    let images = || (0..4).map(|at| image(&format!("i{at}"), &[at])).collect();
    let mut world = World::new(nodes(), images(), percent(75, 70));
    needs(&mut world, 0, 60);
    assert_eq!(world.plan(&[space(0)]).0, ["i1", "i0", "i2", "i3"]);
    let named = world.with(|input| plan(input, Task::Named(&[2.into(), 3.into()]), &[space(0)]));
    let named: Vec<_> = named.steps.iter().map(|step| step.target.id.as_str()).collect();
    assert_eq!(named, ["i3", "i2"]);

    needs(&mut world, 0, 100);
    let (deleted, kept, plan) = world.plan(&[space(0)]);
    assert!(deleted.is_empty());
    assert!(kept.iter().all(|(_, rule)| *rule == Rule::OutOfReach), "{kept:?}");
    assert_eq!((plan.outcome, plan.problems.len()), (OutcomeKind::Failed, 1));
    let message = &plan.problems[0].message;
    assert!(message.starts_with("no space left to write: deletions in /store need 100 B"), "{message}");
    assert!(message.ends_with("its layers, frees at most 90 B"), "{message}");
    // Nothing has to be deleted: no problem of anybody's.
    world.policy = Policy::default();
    assert_eq!(world.plan(&[space(0)]).2.outcome, OutcomeKind::NotNeeded);

    // Every layer has some inodes. A full XFS has none free either, and needs the bytes.
    world.policy = percent(75, 70);
    for (bytes, first) in [(0, "i0"), (60, "i1")] {
        needs_of(&mut world, 0, BytesAndInodes { bytes, inodes: 4 });
        assert_eq!(world.plan(&[space(0)]).0[0], first);
    }
}

/// Images that share all their layers, as `podman build` leaves them, make the room together.
#[test]
fn on_a_full_disk_images_with_the_same_top_layer_go_together() {
    let nodes = [30, 80, 5, 5, 200, 5].map(|bytes| node(0, bytes, &[])).to_vec();
    let on = |id: &str, top: &str, holds: &[usize]| Image { layers: vec![top.into()], ..image(id, holds) };
    let images = || {
        let [i0, i1, i2] = [on("i0", "x", &[0]), on("i1", "y", &[1, 2]), on("i2", "y", &[1, 3])];
        vec![i0, i1, i2, on("i3", "z", &[4]), on("i4", "y", &[1, 5])]
    };
    let mut world = World::new(nodes.clone(), images(), percent(75, 70));
    needs(&mut world, 0, 60);
    let (gone, _, full) = world.plan(&[space(0)]);
    assert_eq!(gone, ["i1", "i2", "i4", "i0", "i3"]);
    let steps: Vec<_> = full.steps.iter().map(|step| (along(step), step.predicted_bytes())).collect();
    assert_eq!(steps, [(vec!["i2", "i4"], 95), (vec![], 0), (vec![], 0), (vec![], 30), (vec![], 200)]);
    assert_eq!(full.predicted_bytes(), 325);
    // Where there is room they go one by one.
    world.full.clear();
    let with_room = world.plan(&[space(0)]).2;
    assert!(with_room.steps.iter().all(|step| step.along.is_empty()));
    needs(&mut world, 0, 60);

    // Somebody elsewhere needs what they have in common.
    world.inventory.uses =
        vec![Use { by: "an image in /other".into(), holds: vec![1.into()], ..Use::default() }];
    let (gone, _, needed) = world.plan(&[space(0)]);
    assert_eq!(gone[0], "i3");
    assert!(needed.steps.iter().all(|step| step.along.is_empty()));
    world.inventory.uses.clear();

    // One of them alone does not make it, whatever keeps the other.
    world.inventory.images[2].pinned_by = vec!["somebody".into()];
    assert_eq!(world.plan(&[space(0)]).0, ["i3", "i0", "i1", "i4"]);
    let named = |at: &[usize]| {
        let world = {
            let mut world = World::new(nodes.clone(), images(), percent(75, 70));
            needs(&mut world, 0, 60);
            world
        };
        let named: Vec<ImageIx> = at.iter().map(|at| (*at).into()).collect();
        let plan = world.with(|input| plan(input, Task::Named(&named), &[space(0)]));
        let steps: Vec<_> = plan.steps.iter().map(|step| step.target.id.clone()).collect();
        (steps, plan.problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>())
    };
    let together = "no space left to write: quay.io/team/i1:1 shares its layers with quay.io/team/i2:1, \
                    quay.io/team/i4:1; name them together";
    assert_eq!(named(&[1]), (vec![], vec![together.to_owned()]));
    assert_eq!(named(&[0, 2, 4, 1]).0, ["i2", "i4", "i1", "i0"]);

    // The age pass takes no part of a group; by space all of it goes.
    let max_age = Some(SignedDuration::from_hours(10));
    let mut world = World::new(nodes.clone(), images()[..3].to_vec(), Policy { max_age, ..percent(75, 70) });
    needs(&mut world, 0, 60);
    world.ages[2] = hours_ago(1000, Some(5));
    let (gone, _, aged) = world.plan(&[space(0)]);
    assert_eq!(gone, ["i1", "i2", "i0"]);
    assert_eq!((along(&aged.steps[0]), count(&aged, Reason::Age)), (vec!["i2"], 1));
}

/// Where the first group stays after all another one is chosen, and no part of the first goes alone.
#[test]
fn on_a_full_disk_another_group_makes_room_where_the_first_stays() {
    let on = |id: &str, top: &str, holds: &[usize]| Image { layers: vec![top.into()], ..image(id, holds) };
    let metadata = || Node { kind: NodeKind::ImageMetadata, ..node(0, 90, &[]) };
    let nodes = vec![node(0, 200, &[]), node(0, 200, &[]), metadata(), metadata()];
    let images =
        vec![on("a0", "x", &[0, 2]), on("a1", "x", &[0]), on("b0", "y", &[1, 3]), on("b1", "y", &[1])];
    let mut world = World::new(nodes, images, percent(75, 70));
    needs(&mut world, 0, 60);
    let in_use = || StepOutcome::Kept(Ruling::keeps(Rule::InUse, "mounted"));
    let (asked, plan) = world.run(0, |id| if id == "a0" { in_use() } else { StepOutcome::Removed });
    // What frees nothing now is passed over.
    assert_eq!(asked, ["a0", "b0", "b1"]);
    assert_eq!(along(&plan.steps[0]), ["b1"]);
    let (asked, plan) = world.run(0, |id| match id {
        "a0" => StepOutcome::Failed(failed("interrupted")),
        _ => StepOutcome::Removed,
    });
    assert_eq!(asked, ["a0", "b0", "b1"]);
    let refused: Vec<_> = plan.kept.iter().filter(|kept| kept.rule == Rule::RemovalFailed).collect();
    assert_eq!(refused.len(), 2, "{refused:?}");
}

/// The layers may be on another filesystem than their graphroot, with the records that are written.
#[test]
fn on_a_full_disk_of_an_imagestore_room_counts_there() {
    let nodes = [(1, 30), (1, 80), (0, 500)].map(|(filesystem, bytes)| node(filesystem, bytes, &[])).to_vec();
    let images = (0..2).map(|at| image(&format!("i{at}"), &[at])).collect();
    let mut world = World::new(nodes, images, percent(75, 70));
    needs(&mut world, 1, 60);
    assert_eq!(world.plan(&[space(500), space(0)]).0, ["i1", "i0"]);
    needs(&mut world, 0, 60);
    assert_eq!(world.plan(&[space(0), space(100)]).0, ["i0", "i1"], "the records have room");
}

/// What the editor finds too small is passed over, and has its turn once another has made the room.
#[test]
fn on_a_full_disk_what_makes_no_room_comes_back_when_there_is_some() {
    let nodes = [80, 80, 80].map(|bytes| node(0, bytes, &[])).to_vec();
    let images = (0..3).map(|at| image(&format!("i{at}"), &[at])).collect();
    let mut world = World::new(nodes, images, percent(75, 70));
    needs(&mut world, 0, 60);
    let tries = std::cell::Cell::new(0);
    let (asked, plan) = world.run(0, |id| match id {
        "i0" if tries.replace(tries.get() + 1) == 0 => {
            StepOutcome::MakesNoRoom { to_free: needed(60), why: "it holds too little".into() }
        }
        _ => StepOutcome::Removed,
    });
    assert_eq!(asked, ["i0", "i1", "i0", "i2"]);
    assert_eq!((plan.steps.len(), plan.problems.len()), (3, 0));
    let (asked, plan) =
        world.run(0, |_| StepOutcome::MakesNoRoom { to_free: needed(60), why: "it holds too little".into() });
    assert_eq!(asked, ["i0", "i1", "i2"]);
    assert_eq!((plan.outcome, plan.problems.len()), (OutcomeKind::Failed, 1));
    assert!(plan.problems[0].no_space, "a person is told what to delete by hand");
}

/// While it waited another image went, and it is the last that holds what somebody elsewhere needs.
#[test]
fn what_has_waited_for_room_may_be_needed_by_now() {
    let nodes = [80, 80, 80, 50].map(|bytes| node(0, bytes, &[])).to_vec();
    let images = vec![image("i0", &[0, 3]), image("i1", &[1, 3]), image("i2", &[2])];
    let mut world = World::new(nodes, images, percent(75, 70));
    needs(&mut world, 0, 60);
    world.inventory.uses = vec![Use { by: "a container".into(), holds: vec![3.into()], ..Use::default() }];
    let (asked, plan) = world.run(0, |id| match id {
        "i0" => StepOutcome::MakesNoRoom { to_free: needed(60), why: "it holds too little".into() },
        "i1" => StepOutcome::AlreadyGone,
        _ => StepOutcome::Removed,
    });
    assert_eq!(asked, ["i0", "i1", "i2"]);
    let kept: Vec<_> = plan.kept.iter().map(|kept| (kept.target.id.as_str(), kept.rule)).collect();
    assert_eq!(kept, [("i0", Rule::InUse)]);
}

/// A signal in the middle of the first deletion has begun that of all that go along.
#[test]
fn what_was_begun_was_begun_of_all() {
    let nodes = [5, 5, 90].map(|bytes| node(0, bytes, &[])).to_vec();
    let on = |id: &str, holds: &[usize]| Image { layers: vec!["base".into()], ..image(id, holds) };
    let mut world = World::new(nodes, vec![on("i0", &[0, 2]), on("i1", &[1, 2])], percent(75, 70));
    needs(&mut world, 0, 60);
    let (asked, plan) = world.run(0, |_| StepOutcome::Kept(Ruling::keeps(Rule::RunEnded, "half of it")));
    assert_eq!(asked, ["i0"]);
    let details: Vec<_> = plan.kept.iter().map(|kept| kept.detail.as_str()).collect();
    assert_eq!(details, ["since the run began: half of it"; 2]);
}

/// Nothing was known to be needed (a reserve file that was not enough): what the editor finds is what the store needs
/// from then on, and images go together.
#[test]
fn a_disk_that_is_full_after_all_is_judged_anew() {
    let nodes = [5, 5, 90, 30].map(|bytes| node(0, bytes, &[])).to_vec();
    let on = |id: &str, holds: &[usize]| Image { layers: vec!["base".into()], ..image(id, holds) };
    let images = vec![on("i0", &[0, 2]), on("i1", &[1, 2]), image("i2", &[3])];
    let world = World::new(nodes, images, percent(75, 70));
    let tries = std::cell::Cell::new(0);
    let (asked, plan) = world.run(0, |_| match tries.replace(tries.get() + 1) {
        0 => StepOutcome::MakesNoRoom { to_free: needed(60), why: "it holds too little".into() },
        _ => StepOutcome::Removed,
    });
    assert_eq!(asked, ["i0", "i0", "i1", "i2"]);
    assert_eq!((along(&plan.steps[0]), plan.problems.len()), (vec!["i1"], 0));
    // More than there is: said once, and no other is tried.
    let (asked, plan) = world
        .run(0, |_| StepOutcome::MakesNoRoom { to_free: needed(600), why: "it holds too little".into() });
    assert_eq!(asked, ["i0"]);
    assert_eq!((plan.outcome, plan.problems.len()), (OutcomeKind::Failed, 1));
}

/// What is short of inodes and then of bytes needs both from then on: an image that has too little alone goes with others.
#[test]
fn what_turns_out_to_be_needed_is_added() {
    let nodes = [5, 5, 90].map(|bytes| node(0, bytes, &[])).to_vec();
    let on = |id: &str, holds: &[usize]| Image { layers: vec!["base".into()], ..image(id, holds) };
    let mut world = World::new(nodes, vec![on("i0", &[0, 2]), on("i1", &[1, 2])], percent(75, 70));
    needs_of(&mut world, 0, BytesAndInodes { bytes: 0, inodes: 1 });
    let tries = std::cell::Cell::new(0);
    let (asked, plan) = world.run(0, |_| match tries.replace(tries.get() + 1) {
        0 => StepOutcome::MakesNoRoom { to_free: needed(60), why: "it holds too little".into() },
        _ => StepOutcome::Removed,
    });
    assert_eq!((asked, along(&plan.steps[0])), (["i0", "i0", "i1"].map(str::to_owned).to_vec(), vec!["i1"]));
}

/// A store where nothing can begin waits for one on the same filesystem, whose first image comes later.
#[test]
fn a_store_that_is_barred_goes_on_once_another_has_made_room() {
    let mut world = World::new(
        [30, 400].map(|bytes| node(0, bytes, &[])).to_vec(),
        vec![image("old", &[0]), image("young", &[1])],
        Policy { max_age: Some(SignedDuration::from_hours(10)), ..percent(75, 70) },
    );
    needs(&mut world, 0, 60);
    world.full.push(FullFilesystem { store: 1.into(), ..world.full[0] });
    world.inventory.stores[1].read_only = false;
    world.inventory.images[1].store = 1.into();
    world.inventory.nodes[1].store = 1.into();
    world.ages[1] = hours_ago(5, None);
    let (gone, kept, plan) = world.plan(&[space(0)]);
    assert_eq!(gone, ["young", "old"], "{kept:?}");
    assert_eq!((plan.outcome, plan.problems.len()), (OutcomeKind::Reached, 0));
}

/// A younger image that makes the room does not end the age pass: what is old enough goes by age, before and after it.
#[test]
fn on_a_full_disk_the_age_pass_goes_on_after_a_younger_image() {
    let max_age = Some(SignedDuration::from_hours(10));
    let policy = || Policy { max_age, ..percent(75, 70) };
    // The space that is wanted is there after the young one.
    let nodes = [30, 30, 400].map(|bytes| node(0, bytes, &[])).to_vec();
    let images = ["i0", "i1", "young"].iter().enumerate().map(|(at, id)| image(id, &[at])).collect();
    let mut world = World::new(nodes, images, policy());
    needs(&mut world, 0, 60);
    world.ages[2] = hours_ago(5, None);
    let (gone, _, plan) = world.plan(&[space(0)]);
    assert_eq!(gone, ["young", "i0", "i1"]);
    assert_eq!((plan.outcome, count(&plan, Reason::Age)), (OutcomeKind::Reached, 2));

    // What was chosen and stays is in nobody's way; neither is a store that waits for room in that of another.
    let nodes = [30, 80, 90, 30, 30].map(|bytes| node(0, bytes, &[])).to_vec();
    let on =
        |id: &str, layer: &str, holds: &[usize]| Image { layers: vec![layer.into()], ..image(id, holds) };
    let images = vec![
        on("a0", "x", &[1]),
        on("a1", "x", &[1]),
        on("young", "y", &[2]),
        image("old", &[0]),
        image("elsewhere", &[3]),
    ];
    let mut world = World::new(nodes, images, policy());
    world.inventory.stores[1].read_only = false;
    world.inventory.images[4].store = 1.into();
    world.inventory.nodes[3].store = 1.into();
    world.inventory.nodes[3].filesystem = 1.into();
    needs(&mut world, 0, 60);
    for at in [1, 2] {
        world.ages[at] = hours_ago(5, None);
    }
    let kept = || StepOutcome::Kept(Ruling::keeps(Rule::InUse, "mounted"));
    let (asked, plan) = world.run(0, |id| if id == "a0" { kept() } else { StepOutcome::Removed });
    assert_eq!(asked[..4], ["elsewhere", "a0", "young", "old"], "{plan:?}");
    // Where none makes room after all the other store is not held up either.
    needs(&mut world, 0, 95);
    let (asked, plan) = world.run(0, |_| StepOutcome::Removed);
    assert_eq!((asked, plan.outcome), (vec!["elsewhere".to_owned()], OutcomeKind::Failed));
}

/// All that an image has for itself may be too little: then it goes with those on the layer below.
#[test]
fn on_a_full_disk_images_on_the_same_layer_go_together() {
    let nodes = [5, 5, 90, 5, 200, 40].map(|bytes| node(0, bytes, &[])).to_vec();
    let on = |id: &str, layers: &[&str], holds: &[usize]| {
        let layers = layers.iter().map(|layer| (*layer).into()).collect();
        Image { layers, ..image(id, holds) }
    };
    let images = || {
        vec![
            on("a0", &["s", "base"], &[0, 4]),
            on("b0", &["t", "x", "base"], &[1, 2, 4]),
            on("parent", &["x", "base"], &[2, 4]),
            on("b1", &["u", "x", "base"], &[3, 2, 4]),
            on("c0", &["v"], &[5]),
        ]
    };
    let mut world = World::new(nodes.clone(), images(), percent(75, 70));
    needs(&mut world, 0, 60);
    let (gone, _, full) = world.plan(&[space(0)]);
    assert_eq!(gone, ["b0", "parent", "b1", "a0"]);
    assert_eq!((along(&full.steps[0]), full.steps[0].predicted_bytes()), (vec!["parent", "b1"], 100));
    // The base makes more room, and takes all that are on it.
    needs(&mut world, 0, 120);
    let (gone, _, full) = world.plan(&[space(0)]);
    assert_eq!(gone, ["a0", "b0", "parent", "b1"]);
    assert_eq!(along(&full.steps[0]), ["b0", "parent", "b1"]);
    // One that stays keeps the layers below its own.
    needs(&mut world, 0, 60);
    world.inventory.images[2].pinned_by = vec!["somebody".into()];
    assert_eq!(world.plan(&[space(0)]).2.outcome, OutcomeKind::Failed);
    world.inventory.images[2].pinned_by.clear();
    // What is gone holds nothing.
    let (asked, _) = world.run(0, |id| match id {
        "b1" => StepOutcome::AlreadyGone,
        "b0" => StepOutcome::Kept(Ruling::keeps(Rule::InUse, "mounted")),
        _ => StepOutcome::Removed,
    });
    assert_eq!(asked[0], "b0");
    let named = world.with(|input| plan(input, Task::Named(&[1.into()]), &[space(0)]));
    let message = &named.problems[0].message;
    assert!(
        message
            .ends_with("shares its layers with quay.io/team/parent:1, quay.io/team/b1:1; name them together")
    );

    // A base and what is on it are not one image: a later one that makes room alone goes before them.
    let nodes = [90, 5, 5, 70].map(|bytes| node(0, bytes, &[])).to_vec();
    let images = vec![
        on("base", &["x"], &[0]),
        on("d0", &["s", "x"], &[1, 0]),
        on("d1", &["t", "x"], &[2, 0]),
        on("lone", &["w"], &[3]),
    ];
    let mut world = World::new(nodes, images, percent(75, 70));
    needs(&mut world, 0, 60);
    world.ages[0] = hours_ago(5000, Some(4000));
    let (gone, _, full) = world.plan(&[space(0)]);
    assert_eq!((gone[0].as_str(), along(&full.steps[0])), ("lone", vec![]));

    // By age alone a group does not hold up those that are old enough.
    let nodes = [90, 90].map(|bytes| node(0, bytes, &[])).to_vec();
    let images = vec![on("i0", &["s"], &[0]), on("i1", &["s"], &[0]), on("i2", &["t"], &[1])];
    let max_age = Some(SignedDuration::from_hours(10));
    let mut world = World::new(nodes, images, Policy { max_age, ..Policy::default() });
    needs(&mut world, 0, 60);
    world.ages[1] = hours_ago(1000, Some(5));
    assert_eq!(world.plan(&[space(0)]).0, ["i2", "i0"]);
}
