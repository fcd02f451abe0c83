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
    presence: UseByProcess::Unknown("not checked"),
};

fn nobody(maker: Option<&str>) -> UseByProcess {
    UseByProcess::Nobody { maker: maker.map(str::to_owned) }
}

#[test]
fn orphans_by_circumstance() {
    use Verdict::{Keep, Reclaim, Report};
    let held = Circumstances { lock_held: Some(true), ..QUIET };
    let lockless = Circumstances { lock_held: None, ..QUIET };
    let fresh = Circumstances { lock_held: None, age: Some(SignedDuration::from_hours(1)), ..QUIET };
    let ageless = Circumstances { lock_held: None, age: None, ..QUIET };
    let quiet_owner = Circumstances { presence: nobody(None), ..QUIET };
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
    for (what, known, class, verdict) in cases {
        let judged = orphan(what, &known);
        assert_eq!((judged.class, judged.verdict), (class, verdict), "{what:?} {known:?}");
    }
}

#[test]
fn what_processes_use_stays() {
    use Verdict::{Keep, Reclaim, Report};
    let young = Some(SignedDuration::from_mins(5));
    let somebody = || UseByProcess::Somebody("conmon (pid 7)".into());
    let unknown = || UseByProcess::Unknown("this is another machine's disk");
    let cases = [
        (Orphan::ContainerDirectory, nobody(None), QUIET.age, Reclaim),
        (Orphan::ContainerDirectory, nobody(Some("crio")), young, Reclaim),
        (Orphan::ContainerDirectory, somebody(), QUIET.age, Report),
        (Orphan::ContainerDirectory, unknown(), QUIET.age, Report),
        (Orphan::GraphrootTmp, nobody(None), QUIET.age, Reclaim),
        (Orphan::GraphrootTmp, nobody(None), young, Reclaim),
        (Orphan::GraphrootTmp, nobody(Some("podman")), QUIET.age, Reclaim),
        (Orphan::GraphrootTmp, nobody(Some("podman")), young, Keep),
        (Orphan::GraphrootTmp, nobody(Some("podman")), None, Keep),
        (Orphan::VarTmp, somebody(), QUIET.age, Keep),
        (Orphan::VarTmp, unknown(), QUIET.age, Report),
    ];
    for (what, presence, age, verdict) in cases {
        let known = Circumstances { presence, age, ..QUIET };
        assert_eq!(orphan(what, &known).verdict, verdict, "{what:?} {known:?}");
        let mounted = orphan(what, &Circumstances { mounted: true, ..known }).verdict;
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
        Just(UseByProcess::Unknown("why")),
        Just(UseByProcess::Somebody("who".into())),
        Just(nobody(None)),
        Just(nobody(Some("podman"))),
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
    fn nothing_in_use_is_ever_reclaimed(known in circumstances(), what in 0..ALL.len()) {
        let what = ALL[what];
        let Judgement { verdict, evidence, .. } = orphan(what, &known);
        prop_assert!(!evidence.is_empty());
        let outside = matches!(what, Orphan::GraphrootTmp | Orphan::VarTmp);
        let by_process = outside || what == Orphan::ContainerDirectory;
        if verdict == Verdict::Reclaim {
            prop_assert!(!known.mounted);
            prop_assert!(outside || known.consistency == Consistency::Consistent);
            let nobody = matches!(known.presence, UseByProcess::Nobody { .. });
            prop_assert!(!by_process || nobody);
            let guarded = matches!(what, Orphan::Staging | Orphan::TempDirectory);
            prop_assert!(!guarded || known.lock_held != Some(true));
            prop_assert_ne!(what, Orphan::Volume);
        }
    }

    #[test]
    fn only_age_makes_a_layer_garbage(known in circumstances(), volatile: bool) {
        let verdict = unreferenced(volatile, &known).verdict;
        let old = known.age.is_some_and(|age| age >= GRACE);
        let quiet = !known.mounted && known.consistency == Consistency::Consistent;
        prop_assert_eq!(verdict == Verdict::Reclaim, old && quiet);
    }
}

#[test]
fn only_old_unreferenced_layers_go() {
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
fn a_clock_set_back_makes_nothing_old() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let later: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    let [now, later] = [now, later].map(|at| (at, Present::at(at, Vec::new())));
    assert_eq!(age(Some(later.0), &now.1), Some(SignedDuration::ZERO));
    assert_eq!(age(Some(now.0), &later.1), Some(SignedDuration::from_hours(365 * 24)));
    assert_eq!(age(None, &now.1), None);
}

#[test]
fn volumes() {
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
fn containers_in_the_making_are_left_alone() {
    let nobody = || UseByProcess::Nobody { maker: None };
    let hours = |hours| Some(SignedDuration::from_hours(hours));
    assert!(external_container("id", hours(30), false, &nobody()).is_some());
    assert!(external_container("id", hours(30), true, &nobody()).is_none());
    assert!(external_container("id", hours(30), false, &UseByProcess::Somebody("buildah".into())).is_none());
    assert!(external_container("id", hours(23), false, &nobody()).is_none());
    assert!(external_container("id", None, false, &nobody()).is_none());
    assert!(unknown_to_podman("id", hours(1)).is_some());
    assert!(unknown_to_podman("id", Some(SignedDuration::from_secs(3))).is_none());
    assert!(unknown_to_podman("id", None).is_none());
}
