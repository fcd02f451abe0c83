//! Targets for free bytes and for inodes.

use crate::model::space::BytesAndInodes;
use crate::policy::plan::tests::*;

#[test]
fn free_bytes_and_inodes_are_targets_too() {
    let mut world = ten_images();
    world.policy.targets =
        Targets { free: Some(FreeFloor { start_below: 100, until: 150 }), ..Targets::default() };
    assert_eq!(world.plan(&[space(90)]).0.len(), 2);
    world.policy.targets.inodes = Some(Thresholds { high: 50, low: 49 });
    let (deleted, _, plan) = world.plan(&[space(90)]);
    assert_eq!(deleted.len(), 3, "10 inodes at 4 an image bind");
    assert_eq!(plan.filesystems[0].wanted, BytesAndInodes { bytes: 60, inodes: 10 });
}

#[test]
fn images_are_not_deleted_for_few_inodes() {
    let mut world = ten_images();
    world.policy.targets.inodes = Some(Thresholds { high: 90, low: 85 });
    fn full(available_bytes: u64) -> Measured {
        Ok(Space { inodes: 100_000, inodes_free: 10, ..space(available_bytes).unwrap() })
    }
    // Bytes are missing too: as many images as without the shortage of inodes are deleted.
    let (deleted, kept, plan) = world.plan(&[full(200)]);
    world.policy.targets.inodes = None;
    assert_eq!(deleted, world.plan(&[full(200)]).0);
    world.policy.targets.inodes = Some(Thresholds { high: 90, low: 85 });
    assert_eq!((plan.outcome, plan.filesystems[0].end), (OutcomeKind::NotReached, PassEnd::NotReached));
    assert_eq!(plan.filesystems[0].wanted.inodes, 14_990);
    assert_eq!(world.policy.targets.missing(&plan.filesystems[0]).bytes, 0);
    assert!(kept.iter().all(|(_, rule)| *rule == Rule::FreesNothing), "{kept:?}");
    let (deleted, _, plan) = world.plan(&[full(900)]);
    assert_eq!(
        (deleted.len(), plan.filesystems[0].few_inodes, plan.outcome),
        (0, Some(40), OutcomeKind::NotReached)
    );
    // They hold more than a tenth of what is wanted: all are deleted, although the target is not reached.
    let some = Ok(Space { inodes: 2000, inodes_free: 10, ..space(900).unwrap() });
    let (deleted, _, plan) = world.plan(&[some]);
    assert_eq!((deleted.len(), plan.filesystems[0].few_inodes), (10, None));
    assert_eq!(plan.outcome, OutcomeKind::NotReached);
}
