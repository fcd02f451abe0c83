//! Bytes that images share with what stays.

use super::*;
use crate::model::{Leak, LeakClass, Verdict};

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
    world.inventory.leaks = vec![Leak {
        class: LeakClass::Unreferenced,
        store: 0.into(),
        path: "/store/snapshot".into(),
        id: "5n4p".into(),
        since: None,
        verdict: Verdict::Report,
        evidence: String::new(),
        holds: vec![3.into()],
    }];
    let (deleted, kept, plan) = world.plan(&[space(10)]);
    assert_eq!(deleted, Vec::<String>::new(), "{kept:?}");
    for (image, keeper) in [
        ("base", "293.0 KiB of it stays with the image quay.io/team/child:1, which has to be removed first"),
        ("built-on", "195.3 KiB of it stays with the podman container web (exited), which"),
        ("snapped", "97.7 KiB of it stays with the leak unreferenced 5n4p, which"),
    ] {
        let kept = plan.kept.iter().find(|kept| kept.target.id.as_str() == image).unwrap();
        assert_eq!(kept.rule, Rule::FreesNothing);
        assert!(kept.detail.contains(keeper), "{}", kept.detail);
    }
}
