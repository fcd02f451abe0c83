use jiff::ToSpan;

use crate::model::space::BytesAndInodes;
use crate::model::{Image, Orphan, Store, StoreKind, samples};
use crate::policy::leaks::*;

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// Creates a store whose nodes have these sizes in bytes and need these other nodes.
fn inventory(nodes: &[(u64, &[usize])], leaks: Vec<Leak>) -> Inventory {
    let nodes = nodes.iter().map(|(bytes, needs)| samples::layer(*bytes, needs));
    Inventory { stores: vec![samples::store()], nodes: nodes.collect(), leaks, ..Inventory::default() }
}

fn leak(class: &'static str, verdict: Verdict, hours: Option<i64>, holds: &[usize]) -> Leak {
    Leak {
        path: format!("/store/{class}").into(),
        id: class.to_owned(),
        since: hours.map(|hours| now() - hours.hours()),
        evidence: "seen".into(),
        ..samples::leak(LeakClass::find(class).unwrap(), verdict, holds)
    }
}

fn request(hours: i64) -> LeakRequest {
    LeakRequest { min_age: SignedDuration::from_hours(hours), ..LeakRequest::default() }
}

fn planned(inventory: &Inventory, request: &LeakRequest) -> LeakPlan {
    plan(inventory, &Refs::new(inventory), request, now(), &|_| None)
}

fn decision_of(leak: Leak, request: &LeakRequest) -> Decision {
    let inventory = inventory(&[(1, &[]), (1, &[])], vec![leak]);
    planned(&inventory, request).entries.remove(0).decision
}

#[test]
fn leak_with_a_store_in_it_stays() {
    let mut inventory = inventory(&[(1, &[])], vec![leak("orphan-dir", Verdict::Reclaim, Some(48), &[0])]);
    assert!(matches!(planned(&inventory, &request(24)).entries[0].decision, Decision::Delete(_)));
    let inner = Store { root: "/store/orphan-dir/diff/docker".into(), ..inventory.stores[0].clone() };
    inventory.stores.push(inner);
    let kept = &planned(&inventory, &request(24)).entries[0].decision;
    let needed = "the store /store/orphan-dir/diff/docker in it".to_owned();
    assert_eq!(*kept, Decision::Stay(KeepReason::Needed(needed)));
}

#[test]
fn decisions_by_class_verdict_and_age() {
    use Verdict::{Keep, Reclaim, Repair, Report};
    let orphan = Recipe::Orphan(Orphan::LayerDirectory);
    let repair = LeakRequest { repair: vec![LeakClass::MissingLink], ..request(24) };
    let cases = [
        (leak("orphan-dir", Reclaim, Some(25), &[0]), request(24), Decision::Delete(orphan)),
        (leak("orphan-dir", Reclaim, Some(24), &[0]), request(24), Decision::Delete(orphan)),
        (
            leak("orphan-dir", Reclaim, Some(23), &[0]),
            request(24),
            Decision::Stay(KeepReason::Young(Some(SignedDuration::from_hours(23)))),
        ),
        (leak("orphan-dir", Reclaim, None, &[0]), request(24), Decision::Stay(KeepReason::Young(None))),
        (leak("orphan-dir", Reclaim, None, &[0]), request(0), Decision::Delete(orphan)),
        // The clock was set back.
        (leak("orphan-dir", Reclaim, Some(-1), &[0]), request(0), Decision::Delete(orphan)),
        (leak("orphan-dir", Keep, Some(25), &[0]), request(0), Decision::Stay(KeepReason::Verdict)),
        (leak("orphan-dir", Report, Some(25), &[0]), request(0), Decision::Stay(KeepReason::Verdict)),
        (
            leak("unreferenced", Reclaim, Some(25), &[0]),
            request(0),
            Decision::Delete(Recipe::UnreferencedLayer),
        ),
        (leak("missing-link", Repair, Some(1), &[]), request(24), Decision::Stay(KeepReason::NotRequested)),
        (leak("missing-link", Repair, Some(1), &[]), repair, Decision::Repair),
        (leak("broken-image", Repair, Some(99), &[]), request(0), Decision::Stay(KeepReason::ByHand)),
        (
            leak("graphroot-tmp", Reclaim, Some(99), &[0]),
            request(24),
            Decision::Delete(Recipe::TemporaryFiles),
        ),
    ];
    for (leak, request, expected) in cases {
        let description = format!("{leak:?} {request:?}");
        assert_eq!(decision_of(leak, &request), expected, "{description}");
    }
}

#[test]
fn closed_stores_and_containerd_keep_their_leaks() {
    let mut all = inventory(&[(1, &[])], vec![leak("orphan-dir", Verdict::Reclaim, Some(99), &[0])]);
    let refs = Refs::new(&all);
    let plan = plan(&all, &refs, &request(0), now(), &|_| Some("an additional store".to_owned()));
    assert_eq!(plan.entries[0].decision, Decision::Stay(KeepReason::Store("an additional store".into())));
    all.stores[0].kind = StoreKind::Containerd;
    assert_eq!(planned(&all, &request(0)).entries[0].decision, Decision::Stay(KeepReason::ByHand));
}

/// Three unused layers in a chain, and orphans: the orphans are first, since they can be deleted on a full disk,
/// then each layer before its parent.
#[test]
fn orphans_are_first_then_layers_from_the_top() {
    let leaks = vec![
        leak("unreferenced", Verdict::Reclaim, Some(99), &[0]),
        leak("unreferenced", Verdict::Reclaim, Some(99), &[2]),
        leak("unreferenced", Verdict::Reclaim, Some(99), &[1]),
        leak("orphan-dir", Verdict::Reclaim, Some(99), &[3]),
        leak("tmp-json", Verdict::Reclaim, Some(99), &[4]),
    ];
    let all = inventory(&[(100, &[]), (10, &[0]), (1, &[1]), (7, &[]), (9, &[])], leaks);
    let plan = planned(&all, &request(24));
    assert_eq!(plan.order, [4, 3, 1, 2, 0]);
    let gains: Vec<_> = plan.turns().map(|entry| entry.gain.frees_bytes).collect();
    assert_eq!(gains, [9, 7, 1, 10, 100], "each at its turn");
    assert_eq!(plan.predicted_bytes(), 127);
}

/// Room on another disk does not help: each full disk needs its own.
#[test]
fn room_is_made_on_each_full_disk() {
    let mut leaks = [0, 1, 2, 3].map(|node| leak("orphan-dir", Verdict::Reclaim, Some(99), &[node])).to_vec();
    leaks.push(leak("unreferenced", Verdict::Reclaim, Some(99), &[4]));
    let mut all = inventory(&[(100, &[]), (90, &[]), (8, &[]), (7, &[]), (200, &[])], leaks);
    for node in [0, 3] {
        all.nodes[node].filesystem = 1.into();
    }
    let chosen = |full: &[(usize, u64)]| {
        let full = full.iter().map(|(filesystem, bytes)| FullFilesystem {
            store: 0.into(),
            filesystem: (*filesystem).into(),
            to_free: BytesAndInodes { bytes: *bytes, inodes: 1 },
        });
        let full: Vec<_> = full.collect();
        planned(&all, &request(24)).to_make_room(&all, &full).order
    };
    assert_eq!(chosen(&[(0, 50)]), [1]);
    assert_eq!(chosen(&[(0, 95)]), [1, 2]);
    assert_eq!(chosen(&[(0, 95), (1, 95)]), [0, 1, 2]);
    assert_eq!(chosen(&[]), [0; 0]);
}

/// Only the lower two of the chain are old enough: the young one keeps both.
#[test]
fn kept_layer_keeps_its_parents() {
    let leaks = vec![
        leak("unreferenced", Verdict::Reclaim, Some(99), &[0]),
        leak("unreferenced", Verdict::Reclaim, Some(99), &[1]),
        leak("unreferenced", Verdict::Reclaim, Some(47), &[2]),
    ];
    let mut all = inventory(&[(100, &[]), (10, &[0]), (1, &[1])], leaks);
    let plan = planned(&all, &request(48));
    assert!(plan.order.is_empty(), "{plan:?}");
    assert!(matches!(plan.entries[0].decision, Decision::Stay(KeepReason::Needed(_))));
    let one_class = LeakRequest { classes: vec![LeakClass::Unreferenced], ..request(24) };
    assert_eq!(planned(&all, &one_class).order.len(), 3);
    // An image that uses the chain by now keeps all of it.
    all.images.push(Image { names: vec!["a:1".into()], ..samples::image("i", &[2]) });
    let plan = planned(&all, &one_class);
    assert_eq!(plan.entries[2].decision, Decision::Stay(KeepReason::Needed("image a:1".into())));
    assert!(plan.order.is_empty());
}

#[test]
fn only_requested_classes_are_listed() {
    use LeakClass::{MissingLink, TempRecord};
    let leaks = vec![
        leak("orphan-dir", Verdict::Reclaim, Some(99), &[0]),
        leak("tmp-json", Verdict::Reclaim, Some(99), &[]),
        leak("missing-link", Verdict::Repair, Some(99), &[]),
    ];
    let all = inventory(&[(1, &[])], leaks);
    for (classes, repair, expected) in [
        (vec![], vec![], vec![0, 1, 2]),
        (vec![TempRecord], vec![], vec![1]),
        (vec![TempRecord], vec![MissingLink], vec![1, 2]),
        (vec![], vec![MissingLink], vec![0, 1, 2]),
    ] {
        let plan = planned(&all, &LeakRequest { classes, repair, ..request(24) });
        assert_eq!(plan.entries.iter().map(|entry| entry.leak.get()).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn printed_commands_are_safe_to_paste() {
    for (class, id, expected) in [
        ("lease", "stuck-noexpiry", None),
        ("lease", "default/1-a", None),
        ("lease", "moby/1-a", None),
        ("lease", "buildkit/0a1b", None),
        ("broken-image", "0a1b", Some("layersweep rm 0a1b")),
        ("broken-image", "sha256:0a1b", None),
        ("leaked-mount", "0a1b", Some("umount /store/leaked-mount")),
        ("lease", "a;reboot", None),
        ("lease", "-rf", None),
        ("lease", "a b", None),
        ("orphan-dir", "0a1b", None),
    ] {
        let leak = Leak { id: id.into(), ..leak(class, Verdict::Report, None, &[]) };
        let mut all = inventory(&[(1, &[])], vec![leak.clone()]);
        assert_eq!(command(&all, &leak).as_deref(), expected, "{class} {id}");
        // An image with intact layers that was never pulled exists only here.
        all.nodes[0].layer = Some(Box::default());
        all.images.push(samples::image(id, &[0]));
        let of_image = (class == "broken-image").then_some(()).and(expected);
        assert!(of_image.is_none() || command(&all, &leak).is_none(), "{class} {id}");
    }
}

/// The clause of its class tells what to do about one that is not work in progress.
#[test]
fn kept_leak_has_its_own_reason() {
    for (class, verdict, expected) in [
        ("never-collected", Verdict::Keep, "it is young"),
        ("never-collected", Verdict::Report, "remove it by hand, as the evidence says"),
        ("leaked-mount", Verdict::Keep, "umount it"),
    ] {
        let leak = Leak { evidence: "it is young".into(), ..leak(class, verdict, None, &[]) };
        let all = inventory(&[(1, &[])], vec![leak.clone()]);
        assert_eq!(by_hand(&all, &leak), expected, "{class}");
    }
}

#[test]
fn young_and_used_leaks_need_no_person() {
    fn is_task(class: &'static str, verdict: Verdict, stay: KeepReason) -> bool {
        needs_a_person(&leak(class, verdict, None, &[]), &stay)
    }
    assert!(is_task("lease", Verdict::Report, KeepReason::Verdict));
    assert!(is_task("layer-no-dir", Verdict::Repair, KeepReason::ByHand));
    assert!(is_task("missing-link", Verdict::Repair, KeepReason::NotRequested));
    assert!(is_task("orphan-dir", Verdict::Reclaim, KeepReason::Store("it belongs to another user".into())));
    assert!(!is_task("orphan-dir", Verdict::Reclaim, KeepReason::Young(None)));
    assert!(!is_task("orphan-dir", Verdict::Reclaim, KeepReason::Needed("image a".into())));
    assert!(!is_task("staging", Verdict::Keep, KeepReason::Verdict));
    assert!(!is_task("garbage", Verdict::Report, KeepReason::Verdict), "containerd collects it");
}
