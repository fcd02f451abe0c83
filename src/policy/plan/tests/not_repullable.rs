use super::*;
use crate::model::OriginKind;

#[test]
fn named_image_that_was_never_pulled_is_kept() {
    use NotRepullable::{Always, Kubernetes, Never};
    use OriginKind::{Built, Loaded, Preloaded, Pulled, Unknown};
    let (crio, podman) = (true, false);
    for (setting, has_crio, kind, is_named, is_kept) in [
        (Kubernetes, crio, Built, true, true),
        (Kubernetes, crio, Loaded, true, true),
        (Kubernetes, crio, Preloaded, true, true),
        (Kubernetes, crio, Pulled, true, false),
        (Kubernetes, crio, Unknown, true, false),
        (Kubernetes, crio, Built, false, false),
        (Kubernetes, podman, Built, true, false),
        (Always, podman, Built, true, true),
        (Always, podman, Unknown, true, false),
        (Never, crio, Built, true, false),
    ] {
        let mut world = ten_images();
        world.policy.protect.not_repullable = setting;
        world.policy.protect.has_crio = has_crio;
        let image = &mut world.inventory.images[4];
        image.origin = Origin::new(kind, "evidence");
        if !is_named {
            image.names.clear();
        }
        let rulings = world.with(|input| Judge::new(input).rulings(4.into()));
        let ruling = rulings.iter().find(|ruling| ruling.rule == Rule::NotRepullable).unwrap();
        assert_eq!(ruling.stays, is_kept, "{setting} {has_crio} {kind} {is_named}");
    }
    // In containerd only the namespace of CRI counts.
    let mut world = ten_images();
    world.inventory.stores[0].kind = StoreKind::Containerd;
    world.policy.protect.not_repullable = Kubernetes;
    for (id, is_kept) in [("00", true), ("moby/00", false)] {
        world.inventory.images[4].id = id.into();
        world.inventory.images[4].origin = Origin::new(Loaded, "evidence");
        let rulings = world.with(|input| Judge::new(input).rulings(4.into()));
        assert_eq!(rulings.iter().find(|ruling| ruling.stays).is_some(), is_kept, "{id}");
    }
}
