use super::*;
use crate::model::OriginKind;

#[test]
fn named_image_that_was_never_pulled_is_kept() {
    use NotRepullable::{Always, Kubernetes, Never};
    use OriginKind::{Built, Loaded, Preloaded, Pulled, Unknown};
    let (crio, podman) = (true, false);
    let doubtful = Origin::doubtful("evidence");
    for (setting, has_crio, origin, is_named, is_kept) in [
        (Kubernetes, crio, &doubtful, true, true),
        (Kubernetes, podman, &doubtful, true, false),
        (Always, podman, &doubtful, true, true),
        (Always, podman, &doubtful, false, false),
        (Never, crio, &doubtful, true, false),
        (Kubernetes, crio, &Origin::new(Built, "evidence"), true, true),
        (Kubernetes, crio, &Origin::new(Loaded, "evidence"), true, true),
        (Kubernetes, crio, &Origin::new(Preloaded, "evidence"), true, true),
        (Kubernetes, crio, &Origin::new(Pulled, "evidence"), true, false),
        (Kubernetes, crio, &Origin::new(Unknown, "evidence"), true, false),
        (Kubernetes, crio, &Origin::new(Built, "evidence"), false, false),
        (Kubernetes, podman, &Origin::new(Built, "evidence"), true, false),
        (Always, podman, &Origin::new(Built, "evidence"), true, true),
        (Always, podman, &Origin::new(Unknown, "evidence"), true, false),
        (Never, crio, &Origin::new(Built, "evidence"), true, false),
    ] {
        let mut world = ten_images();
        world.policy.protect.not_repullable = setting;
        let store = world.inventory.stores[0].root.clone();
        world.policy.protect.crio_stores = if has_crio { vec![store] } else { vec!["/elsewhere".into()] };
        let image = &mut world.inventory.images[4];
        image.origin = origin.clone();
        if !is_named {
            image.names.clear();
        }
        let rulings = world.with(|input| Judge::new(input).rulings(4.into()));
        let ruling = rulings.iter().find(|ruling| ruling.rule == Rule::NotRepullable).unwrap();
        assert_eq!(ruling.keeps, is_kept, "{setting} {has_crio} {origin:?} {is_named}");
    }
    // In containerd only the namespace of CRI counts.
    let mut world = ten_images();
    world.inventory.stores[0].kind = StoreKind::Containerd;
    world.policy.protect.not_repullable = Kubernetes;
    for (id, is_kept) in [("00", true), ("moby/00", false)] {
        world.inventory.images[4].id = id.into();
        world.inventory.images[4].origin = Origin::new(Loaded, "evidence");
        let rulings = world.with(|input| Judge::new(input).rulings(4.into()));
        assert_eq!(rulings.iter().find(|ruling| ruling.keeps).is_some(), is_kept, "{id}");
    }
}

#[test]
fn image_that_was_never_pulled_is_deleted_last() {
    let mut world = ten_images();
    world.policy.protect.not_repullable = NotRepullable::Never;
    world.inventory.images[0].origin = Origin::new(OriginKind::Built, "evidence");
    let (deleted, ..) = world.plan(&[space(200)]);
    assert_eq!(deleted, ["i1", "i2", "i3", "i4"], "although it is the oldest");
    let (deleted, ..) = world.plan(&[space(0)]);
    assert_eq!(deleted.last().unwrap(), "i0");
}
