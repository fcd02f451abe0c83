use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::stores::leaks::age;
use crate::sys::clock::Present;

const QUIET: Circumstances = Circumstances {
    consistency: Consistency::Consistent,
    mounted: false,
    lock_held: Some(false),
    has_link: true,
    is_unfinished: false,
    age: Some(SignedDuration::from_hours(100)),
    has_database: true,
    lost_container: None,
    doubt: None,
    presence: UseByProcess::Unknown(std::borrow::Cow::Borrowed("not checked")),
};

fn unused(maker: Option<&str>) -> UseByProcess {
    UseByProcess::Unused { maker: maker.map(str::to_owned) }
}

#[test]
fn verdicts_of_orphans() {
    use Verdict::{Keep, Reclaim, Report};
    let held = Circumstances { lock_held: Some(true), ..QUIET };
    let lockless = Circumstances { lock_held: None, ..QUIET };
    let fresh = Circumstances { lock_held: None, age: Some(SignedDuration::from_hours(1)), ..QUIET };
    let ageless = Circumstances { lock_held: None, age: None, ..QUIET };
    let quiet_owner = Circumstances { presence: unused(None), ..QUIET };
    let mounted = Circumstances { mounted: true, ..QUIET };
    let damaged = Circumstances { consistency: Consistency::Damaged, ..QUIET };
    let busy = Circumstances { consistency: Consistency::WriterActive, ..QUIET };
    let partial = Circumstances { has_link: false, ..QUIET };
    let unfinished = Circumstances { is_unfinished: true, ..partial.clone() };
    let cases = [
        (Orphan::LayerDirectory, QUIET, LeakClass::OrphanDir, Reclaim),
        (Orphan::LayerDirectory, partial, LeakClass::OrphanDir, Reclaim),
        (Orphan::LayerDirectory, unfinished, LeakClass::OrphanDir, Keep),
        (Orphan::LayerDirectory, mounted, LeakClass::OrphanDir, Report),
        (Orphan::LayerDirectory, damaged, LeakClass::OrphanDir, Report),
        (Orphan::LayerDirectory, busy.clone(), LeakClass::OrphanDir, Keep),
        (Orphan::Staging, QUIET, LeakClass::Staging, Reclaim),
        (Orphan::Staging, held.clone(), LeakClass::Staging, Keep),
        (Orphan::Staging, lockless, LeakClass::Staging, Reclaim),
        (Orphan::Staging, fresh, LeakClass::Staging, Keep),
        (Orphan::Staging, ageless, LeakClass::Staging, Keep),
        (Orphan::TempDirectory, QUIET, LeakClass::TempDirectory, Reclaim),
        (Orphan::TempDirectory, held, LeakClass::TempDirectory, Keep),
        (Orphan::TempRecord, busy, LeakClass::TempRecord, Keep),
        (Orphan::Volume, QUIET, LeakClass::VolumeOrphan, Report),
        (Orphan::VarTmp, quiet_owner.clone(), LeakClass::VarTmp, Reclaim),
        (
            Orphan::VarTmp,
            Circumstances { doubt: Some("why".into()), ..quiet_owner },
            LeakClass::VarTmp,
            Report,
        ),
    ];
    for (kind, known, class, verdict) in cases {
        let judged = orphan(kind, &known);
        assert_eq!((judged.class, judged.verdict), (class, verdict), "{kind:?} {known:?}");
    }
}

#[test]
fn orphan_in_use_is_not_reclaimed() {
    use Verdict::{Keep, Reclaim, Report};
    let young = Some(SignedDuration::from_mins(5));
    let in_use = UseByProcess::InUse("conmon (pid 7)".into());
    let unknown = UseByProcess::Unknown("this is another machine's disk".into());
    let cases = [
        (Orphan::ContainerDirectory, unused(None), QUIET.age, Reclaim),
        (Orphan::ContainerDirectory, unused(Some("crio")), young, Reclaim),
        (Orphan::ContainerDirectory, in_use.clone(), QUIET.age, Report),
        (Orphan::ContainerDirectory, unknown.clone(), QUIET.age, Report),
        (Orphan::GraphrootTmp, unused(None), QUIET.age, Reclaim),
        (Orphan::GraphrootTmp, unused(None), young, Reclaim),
        (Orphan::GraphrootTmp, unused(Some("podman")), QUIET.age, Reclaim),
        (Orphan::GraphrootTmp, unused(Some("podman")), young, Keep),
        (Orphan::GraphrootTmp, unused(Some("podman")), None, Keep),
        (Orphan::VarTmp, in_use.clone(), QUIET.age, Keep),
        (Orphan::VarTmp, unknown, QUIET.age, Report),
        (Orphan::LayerDirectory, in_use.clone(), QUIET.age, Keep),
        (Orphan::ImageDirectory, in_use.clone(), QUIET.age, Keep),
        (Orphan::LayerData, in_use.clone(), QUIET.age, Keep),
        (Orphan::TempDirectory, in_use, QUIET.age, Keep),
    ];
    for (kind, presence, age, verdict) in cases {
        let known = Circumstances { presence, age, ..QUIET };
        assert_eq!(orphan(kind, &known).verdict, verdict, "{kind:?} {known:?}");
        let mounted = orphan(kind, &Circumstances { mounted: true, ..known }).verdict;
        assert_ne!(mounted, Reclaim, "something is mounted there");
    }
}

const ALL: [Orphan; 10] = [
    Orphan::LayerDirectory,
    Orphan::ImageDirectory,
    Orphan::ContainerDirectory,
    Orphan::LayerData,
    Orphan::Staging,
    Orphan::TempDirectory,
    Orphan::TempRecord,
    Orphan::GraphrootTmp,
    Orphan::VarTmp,
    Orphan::Volume,
];

fn circumstances() -> impl Strategy<Value = Circumstances> {
    let consistency = prop_oneof![
        Just(Consistency::Consistent),
        Just(Consistency::WriterActive),
        Just(Consistency::Damaged)
    ];
    let presence = prop_oneof![
        Just(UseByProcess::Unknown("why".into())),
        Just(UseByProcess::InUse("process".into())),
        Just(unused(None)),
        Just(unused(Some("podman"))),
    ];
    let age = proptest::option::of((0_i64..100).prop_map(SignedDuration::from_hours));
    let flags = (any::<bool>(), any::<Option<bool>>(), any::<bool>(), any::<bool>());
    (consistency, flags, age, presence).prop_map(
        |(consistency, (mounted, lock_held, has_link, has_database), age, presence)| Circumstances {
            consistency,
            mounted,
            lock_held,
            has_link,
            is_unfinished: false,
            age,
            has_database,
            lost_container: None,
            doubt: None,
            presence,
        },
    )
}

proptest! {
    #[test]
    fn orphan_in_use_is_never_reclaimed(known in circumstances(), position in 0..ALL.len()) {
        let kind = ALL[position];
        let Judgement { verdict, evidence, .. } = orphan(kind, &known);
        prop_assert!(!evidence.is_empty());
        let is_outside = matches!(kind, Orphan::GraphrootTmp | Orphan::VarTmp);
        let depends_on_processes = is_outside || kind == Orphan::ContainerDirectory;
        if verdict == Verdict::Reclaim {
            prop_assert!(!known.mounted);
            prop_assert!(is_outside || known.consistency == Consistency::Consistent);
            let is_unused = matches!(known.presence, UseByProcess::Unused { .. });
            prop_assert!(!depends_on_processes || is_unused);
            prop_assert!(!matches!(known.presence, UseByProcess::InUse(_)));
            let has_lock = matches!(kind, Orphan::Staging | Orphan::TempDirectory);
            prop_assert!(!has_lock || known.lock_held != Some(true));
            prop_assert_ne!(kind, Orphan::Volume);
        }
    }

    #[test]
    fn unreferenced_layer_is_reclaimed_only_when_old(known in circumstances(), volatile: bool) {
        let verdict = unreferenced(volatile, &known).verdict;
        let old = known.age.is_some_and(|age| age >= GRACE);
        let is_held = matches!(known.presence, UseByProcess::InUse(_));
        let quiet = !known.mounted && !is_held && known.consistency == Consistency::Consistent;
        prop_assert_eq!(verdict == Verdict::Reclaim, old && quiet);
    }
}

#[test]
fn unreferenced_layer_is_reclaimed_after_24_hours() {
    for (volatile, hours, verdict) in [
        (false, Some(25), Verdict::Reclaim),
        (false, Some(23), Verdict::Keep),
        (false, None, Verdict::Keep),
        (true, Some(25), Verdict::Reclaim),
        (true, None, Verdict::Keep),
    ] {
        let known = Circumstances { age: hours.map(SignedDuration::from_hours), ..QUIET };
        let judged = unreferenced(volatile, &known);
        assert_eq!(
            (judged.class, judged.verdict),
            (LeakClass::Unreferenced, verdict),
            "{volatile} {hours:?}"
        );
    }
}

#[test]
fn clock_set_back_gives_age_zero() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let later: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    let [at_now, at_later] = [now, later].map(|time| Present::at(time, Vec::new()));
    assert_eq!(age(Some(later), &at_now), Some(SignedDuration::ZERO));
    assert_eq!(age(Some(now), &at_later), Some(SignedDuration::from_hours(365 * 24)));
    assert_eq!(age(None, &at_now), None);
}

#[test]
fn young_volume_is_kept_if_there_is_a_database() {
    let hour = Some(SignedDuration::from_hours(1));
    let moment = Some(SignedDuration::from_secs(3));
    for (age, has_database, verdict) in [
        (moment, true, Verdict::Keep),
        (None, true, Verdict::Keep),
        (hour, true, Verdict::Report),
        (moment, false, Verdict::Report),
    ] {
        assert_eq!(volume(age, has_database).verdict, verdict, "{age:?} {has_database}");
    }
}

#[test]
fn container_that_may_be_in_creation_is_no_leak() {
    let [hour, young, old] = [1, 23, 30].map(|hours| Some(SignedDuration::from_hours(hours)));
    assert!(external_container(old, false, &unused(None)).is_some());
    assert!(external_container(old, true, &unused(None)).is_none());
    assert!(external_container(old, false, &UseByProcess::InUse("buildah".into())).is_none());
    assert!(external_container(young, false, &unused(None)).is_none());
    assert!(external_container(None, false, &unused(None)).is_none());
    assert!(unknown_to_podman(hour).is_some());
    assert!(unknown_to_podman(Some(SignedDuration::from_secs(3))).is_none());
    assert!(unknown_to_podman(None).is_none());
}
