use jiff::ToSpan;

use crate::model::space::BytesAndInodes;
use crate::model::{Consistency, FilesystemIx, Image, Node, NodeKind, Orphan, Store};
use crate::policy::leaks::*;

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// A store with nodes of so many bytes, each with the nodes that it needs.
fn inventory(nodes: &[(u64, &[usize])], leaks: Vec<Leak>) -> Inventory {
    let store = Store {
        kind: StoreKind::ContainersStorage,
        root: "/store".into(),
        driver: "overlay".into(),
        filesystem: FilesystemIx::from(0),
        read_only: false,
        origin: "test".into(),
        consistency: Consistency::Consistent,
    };
    let node = |(bytes, needs): &(u64, &[usize])| Node {
        kind: NodeKind::Layer,
        id: String::new(),
        store: 0.into(),
        filesystem: 0.into(),
        path: "/store/x".into(),
        size: Size { bytes: *bytes, apparent_bytes: *bytes, inodes: 1, frees_bytes: *bytes },
        needs: needs.iter().map(|at| (*at).into()).collect(),
        layer: None,
    };
    Inventory { stores: vec![store], nodes: nodes.iter().map(node).collect(), leaks, ..Inventory::default() }
}

fn leak(class: &'static str, verdict: Verdict, hours: Option<i64>, holds: &[usize]) -> Leak {
    Leak {
        class: LeakClass::find(class).unwrap(),
        store: 0.into(),
        path: format!("/store/{class}").into(),
        id: class.to_owned(),
        since: hours.map(|hours| now() - hours.hours()),
        verdict,
        evidence: "seen".into(),
        holds: holds.iter().map(|at| (*at).into()).collect(),
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
fn table_of_fates() {
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
        // A clock that was set back.
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
        let shown = format!("{leak:?} {request:?}");
        assert_eq!(decision_of(leak, &request), expected, "{shown}");
    }
}

#[test]
fn nothing_of_a_closed_store_or_of_containerd_goes() {
    let mut all = inventory(&[(1, &[])], vec![leak("orphan-dir", Verdict::Reclaim, Some(99), &[0])]);
    let refs = Refs::new(&all);
    let plan_of = |all: &Inventory, closed: &dyn Fn(StoreIx) -> Option<String>| {
        plan(all, &refs, &request(0), now(), closed).entries.remove(0).decision
    };
    let closed = |_: StoreIx| Some("an additional store".to_owned());
    assert_eq!(plan_of(&all, &closed), Decision::Stay(KeepReason::Store("an additional store".into())));
    all.stores[0].kind = StoreKind::Containerd;
    assert_eq!(plan_of(&all, &|_| None), Decision::Stay(KeepReason::ByHand));
}

/// A chain of three layers that nothing uses, and an orphan: the orphan first, since it goes on
/// a full disk as well, then each layer before the one it lies on.
#[test]
fn the_order_is_in_place_first_and_then_from_the_top() {
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

/// Room on another disk helps nobody, and each disk that is full needs its own.
#[test]
fn room_is_made_where_it_is_missing() {
    let orphan = |holds| leak("orphan-dir", Verdict::Reclaim, Some(99), &[holds]);
    let leaks = vec![
        orphan(0),
        orphan(1),
        orphan(2),
        orphan(3),
        leak("unreferenced", Verdict::Reclaim, Some(99), &[4]),
    ];
    let mut all = inventory(&[(100, &[]), (90, &[]), (8, &[]), (7, &[]), (200, &[])], leaks);
    for at in [0, 3] {
        all.nodes[at].filesystem = 1.into();
    }
    let chosen = |full: &[(usize, u64)]| {
        let full = full.iter().map(|(at, bytes)| FullFilesystem {
            store: 0.into(),
            filesystem: (*at).into(),
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

/// Of the chain only the lower two are old enough: the young one keeps both.
#[test]
fn what_stays_keeps_what_it_lies_on() {
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
    // An image that came to use the chain keeps all of it.
    all.images.push(Image {
        id: "i".into(),
        store: 0.into(),
        names: vec!["a:1".into()],
        digests: vec![],
        created: None,
        evidence: vec![],
        is_list: false,
        pinned_by: vec![],
        labels: crate::model::Labels::default(),
        layers: vec![],
        listed_bytes: None,
        holds: vec![2.into()],
    });
    let plan = planned(&all, &one_class);
    assert_eq!(plan.entries[2].decision, Decision::Stay(KeepReason::Needed("image a:1".into())));
    assert!(plan.order.is_empty());
}

#[test]
fn only_the_classes_asked_for_are_listed() {
    use LeakClass::{MissingLink, TempRecord};
    let leaks = vec![
        leak("orphan-dir", Verdict::Reclaim, Some(99), &[0]),
        leak("tmp-json", Verdict::Reclaim, Some(99), &[]),
        leak("missing-link", Verdict::Repair, Some(99), &[]),
    ];
    let all = inventory(&[(1, &[])], leaks);
    let classes = |classes: &[LeakClass], repair: &[LeakClass]| {
        let request = LeakRequest { classes: classes.to_vec(), repair: repair.to_vec(), ..request(24) };
        planned(&all, &request).entries.iter().map(|entry| entry.leak.get()).collect::<Vec<_>>()
    };
    assert_eq!(classes(&[], &[]), [0, 1, 2]);
    assert_eq!(classes(&[TempRecord], &[]), [1]);
    assert_eq!(classes(&[TempRecord], &[MissingLink]), [1, 2]);
    assert_eq!(classes(&[], &[MissingLink]), [0, 1, 2]);
}

#[test]
fn commands_for_a_person_are_whole_and_safe_to_paste() {
    let command =
        |class, id: &str| command(&Leak { id: id.into(), ..leak(class, Verdict::Report, None, &[]) });
    for (class, id, expected) in [
        ("lease", "stuck-noexpiry", Some("ctr -n k8s.io leases rm stuck-noexpiry")),
        ("lease", "default/1-a", Some("ctr -n default leases rm 1-a")),
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
        assert_eq!(command(class, id).as_deref(), expected, "{class} {id}");
    }
}

#[test]
fn what_is_too_young_or_in_use_is_no_task() {
    let is_task = |class, verdict, stay| is_for_a_person(&leak(class, verdict, None, &[]), &stay);
    assert!(is_task("lease", Verdict::Report, KeepReason::Verdict));
    assert!(is_task("layer-no-dir", Verdict::Repair, KeepReason::ByHand));
    assert!(is_task("missing-link", Verdict::Repair, KeepReason::NotRequested));
    assert!(is_task("orphan-dir", Verdict::Reclaim, KeepReason::Store("it belongs to another user".into())));
    assert!(!is_task("orphan-dir", Verdict::Reclaim, KeepReason::Young(None)));
    assert!(!is_task("orphan-dir", Verdict::Reclaim, KeepReason::Needed("image a".into())));
    assert!(!is_task("staging", Verdict::Keep, KeepReason::Verdict));
    assert!(!is_task("garbage", Verdict::Report, KeepReason::Verdict), "containerd collects it");
}
