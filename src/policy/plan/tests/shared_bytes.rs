//! Bytes that images share with what stays.

use super::*;
use crate::model::{LayerFacts, Leak, LeakClass, Verdict};

#[test]
fn holder_of_shared_bytes_is_named() {
    // The child, the container and the leak each hold a base.
    let nodes = vec![node(0, 300_000, &[]), node(0, 50, &[]), node(0, 200_000, &[]), node(0, 100_000, &[])];
    let images =
        vec![image("base", &[0]), image("child", &[0, 1]), image("built-on", &[2]), image("snapped", &[3])];
    let mut world = World::new(nodes, images, percent(75, 70));
    world.inventory.images[1].pinned_by = vec!["crio.conf".into()];
    let other = container(1, Owner::Podman);
    world.inventory.containers = vec![Container { image: None, holds: vec![2.into()], ..other }];
    let leak = samples::leak(LeakClass::Unreferenced, Verdict::Report, &[3]);
    world.inventory.leaks = vec![Leak { id: "5n4p".into(), ..leak }];
    let (deleted, kept, plan) = world.plan(&[space(10)]);
    assert_eq!(deleted, Vec::<String>::new(), "{kept:?}");
    for (image, keeper) in [
        ("base", "now: 293.0 KiB of it stays with the image quay.io/team/child:1"),
        (
            "built-on",
            "195.3 KiB of it stays with the podman container web (exited), which has to be removed first",
        ),
        ("snapped", "97.7 KiB of it stays with the leak unreferenced 5n4p, which has to be removed first"),
    ] {
        let kept = plan.kept.iter().find(|kept| kept.target.id.as_str() == image).unwrap();
        assert_eq!(kept.rule, Rule::FreesNothing);
        assert!(kept.detail.ends_with(keeper), "{}", kept.detail);
    }
}

#[test]
fn each_keeper_has_only_its_own_bytes() {
    let nodes = vec![node(0, 300_000, &[]), node(0, 200_000, &[]), node(0, 1, &[])];
    let images = vec![image("base", &[0, 1]), image("first", &[0, 2]), image("second", &[1, 2])];
    let mut world = World::new(nodes, images, percent(75, 70));
    for image in &mut world.inventory.images[1..] {
        image.pinned_by = vec!["crio.conf".into()];
    }
    let (_, _, plan) = world.plan(&[space(10)]);
    let base = plan.kept.iter().find(|kept| kept.target.id.as_str() == "base").unwrap();
    assert!(
        base.detail.ends_with("293.0 KiB of it stays with the image quay.io/team/first:1"),
        "{}",
        base.detail
    );
}

#[test]
fn unmeasured_gain_is_not_zero_bytes() {
    let mut nodes = vec![node(0, 0, &[])];
    nodes[0].layer = Some(Box::new(LayerFacts { is_unmeasured: true, ..LayerFacts::default() }));
    let world = World::new(nodes, vec![image("a", &[0])], percent(75, 70));
    let (_, _, plan) = world.plan(&[space(10)]);
    let expected = "what its deletion would free on /store is unknown: layers of it are not measured";
    assert_eq!((plan.kept[0].rule, plan.kept[0].detail.as_str()), (Rule::FreesNothing, expected));
}

#[test]
fn thousands_of_sharers_are_described_quickly() {
    let nodes = (0..60).map(|_| node(0, 1_000, &[])).collect();
    let shared: Vec<_> = (0..60).collect();
    let images = (0..10_000).map(|ix| image(&format!("i{ix}"), &shared)).collect();
    let mut world = World::new(nodes, images, percent(75, 70));
    world.facts.fill(aged(hours_ago(1000, None)));
    for image in &mut world.inventory.images[5_000..] {
        image.pinned_by = vec!["crio.conf".into()];
    }
    let began = std::time::Instant::now();
    let (_, _, plan) = world.plan(&[space(10)]);
    assert!(plan.kept[0].detail.ends_with("58.6 KiB of it stays with the image quay.io/team/i5000:1"));
    assert!(began.elapsed().as_secs() < 60, "took {:?}", began.elapsed());
}
