//! Manifest lists and their members.

use crate::model::ManifestList;
use crate::policy::plan::tests::*;

/// A rule that keeps a manifest list because of the list itself keeps its members too.
#[test]
fn members_are_kept_with_their_list() {
    fn named() -> Vec<NamedImage> {
        vec![NamedImage { reference: "quay.io/team/i9:1".into(), source: "a file".into() }]
    }
    let hour = SignedDuration::from_hours(1);
    fn list_of(image: usize, members: &[usize]) -> ManifestList {
        ManifestList { image: image.into(), members: members.iter().map(|ix| (*ix).into()).collect() }
    }
    type Change<'a> = &'a dyn Fn(&mut World);
    let keeps: [(Rule, Change<'_>); 13] = [
        (Rule::InUse, &|world| world.inventory.containers = vec![container(9, Owner::CriO)]),
        (Rule::InUse, &|world| {
            world.inventory.uses = vec![Use { images: vec![9.into()], ..Use::default() }];
        }),
        (Rule::InUse, &|world| world.facts[9].used_by = vec!["cri-o pod/app".into()]),
        (Rule::Pinned, &|world| world.inventory.images[9].pinned_by = vec!["crio.conf".into()]),
        (Rule::Pinned, &|world| world.facts[9].runtime_pins = true),
        (Rule::SandboxImage, &|world| world.policy.protect.sandboxes = named()),
        (Rule::StaticPod, &|world| world.policy.protect.static_pods = named()),
        (Rule::PullInProgress, &|world| world.policy.protect.pulling = named()),
        (Rule::ProtectedName, &|world| {
            world.policy.protect.names = vec![Pattern::new("*/i9:*").unwrap()];
        }),
        (Rule::NewestOfRepository, &|world| world.policy.protect.keep_newest = 1),
        (Rule::AgeUnknown, &|world| world.facts[9].ages = None),
        (Rule::MinAge, &|world| {
            world.policy.min_age = hour;
            world.facts[9].ages = Some(hours_ago(0, None));
        }),
        (Rule::UsedJustNow, &|world| world.last_used(9, Some(now()))),
    ];
    fn world(change: Change<'_>) -> World {
        let mut world = ten_images();
        // 3 is also in another list, which nothing keeps.
        world.inventory.lists = vec![list_of(8, &[3]), list_of(9, &[2, 3])];
        for ix in [2, 3] {
            world.inventory.images[ix].names.clear();
        }
        change(&mut world);
        world
    }
    fn rules(world: &World) -> Vec<Option<Rule>> {
        world.with(|input| {
            let judge = Judge::new(input);
            [2, 3, 9_usize].map(|ix| judge.kept(ix.into()).map(|ruling| ruling.rule)).to_vec()
        })
    }
    for (rule, change) in keeps {
        let world = world(change);
        assert_eq!(rules(&world), [Some(rule); 3]);
        let detail = world.with(|input| Judge::new(input).kept(2.into()).unwrap().detail);
        let words = "a member of the manifest list quay.io/team/i9:1, which stays: ";
        assert!(detail.starts_with(words), "{detail}");
    }
    // A list that only cannot be deleted here or now does not need its members, and a list has no labels.
    let keeps_none: [(Rule, Change<'_>); 3] = [
        (Rule::OutOfReach, &|world| world.facts[9].out_of_reach = Some("not listed".into())),
        (Rule::BackingOff, &|world| world.facts[9].back_off = Some(BackOff::after(None, now(), "busy"))),
        (Rule::ProtectedLabel, &|world| {
            world.policy.protect.labels = vec![("keep".into(), None)];
            world.inventory.images.iter_mut().for_each(|image| image.labels = Labels::Known(vec![]));
            world.inventory.images[9].labels = Labels::NotRead;
        }),
    ];
    for (rule, change) in keeps_none {
        assert_eq!(rules(&world(change)), [None, None, Some(rule)]);
    }
    // Without a rule that keeps it, one run reaches its target.
    let world = world(&|_| ());
    assert_eq!(world.plan(&[space(0)]).0.len(), 10);
}
