use super::*;
use proptest::prelude::*;

const QUIET: Circumstances = Circumstances {
    consistency: Consistency::Consistent,
    mounted: false,
    lock_held: Some(false),
    has_link: true,
    age: Some(SignedDuration::from_hours(100)),
    has_database: true,
    lost_container: None,
    doubt: None,
    presence: Presence::Unknown("nobody was asked"),
};

fn nobody(maker: Option<&str>) -> Presence {
    Presence::Nobody { maker: maker.map(str::to_owned) }
}

#[test]
fn debris_by_circumstance() {
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
    let cases = [
        (Debris::LayerDirectory, QUIET, "orphan-dir", Reclaim),
        (Debris::LayerDirectory, partial, "orphan-dir-partial", Reclaim),
        (Debris::LayerDirectory, mounted, "orphan-dir", Report),
        (Debris::LayerDirectory, damaged, "orphan-dir", Report),
        (Debris::LayerDirectory, busy.clone(), "orphan-dir", Keep),
        (Debris::Staging, QUIET, "staging-dead", Reclaim),
        (Debris::Staging, held.clone(), "staging-live", Keep),
        (Debris::Staging, lockless, "staging-dead", Reclaim),
        (Debris::Staging, fresh, "staging-live", Keep),
        (Debris::Staging, ageless, "staging-live", Keep),
        (Debris::TempDirectory, QUIET, "tempdirs-dead", Reclaim),
        (Debris::TempDirectory, held, "tempdirs-live", Keep),
        (Debris::TempRecord, busy, "tmp-json", Keep),
        (Debris::Volume, QUIET, "volume-orphan", Report),
        (Debris::Leftover, quiet_owner.clone(), "vartmp", Reclaim),
        (Debris::Leftover, Circumstances { doubt: Some("why".into()), ..quiet_owner }, "vartmp", Report),
    ];
    for (what, known, class, verdict) in cases {
        let judged = debris(what, &known);
        assert_eq!((judged.0, judged.1), (class, verdict), "{what:?} {known:?}");
    }
}

#[test]
fn what_processes_use_stays() {
    use Verdict::{Keep, Reclaim, Report};
    let young = Some(SignedDuration::from_mins(5));
    let somebody = || Presence::Somebody("conmon (pid 7)".into());
    let unknown = || Presence::Unknown("it is another machine's disk");
    let cases = [
        (Debris::ContainerDirectory, nobody(None), QUIET.age, Reclaim),
        (Debris::ContainerDirectory, nobody(Some("crio")), young, Reclaim),
        (Debris::ContainerDirectory, somebody(), QUIET.age, Report),
        (Debris::ContainerDirectory, unknown(), QUIET.age, Report),
        (Debris::Temporary, nobody(None), QUIET.age, Reclaim),
        (Debris::Temporary, nobody(None), young, Reclaim),
        (Debris::Temporary, nobody(Some("podman")), QUIET.age, Reclaim),
        (Debris::Temporary, nobody(Some("podman")), young, Keep),
        (Debris::Temporary, nobody(Some("podman")), None, Keep),
        (Debris::Leftover, somebody(), QUIET.age, Keep),
        (Debris::Leftover, unknown(), QUIET.age, Report),
    ];
    for (what, presence, age, verdict) in cases {
        let known = Circumstances { presence, age, ..QUIET };
        assert_eq!(debris(what, &known).1, verdict, "{what:?} {known:?}");
        let mounted = debris(what, &Circumstances { mounted: true, ..known }).1;
        assert_ne!(mounted, Reclaim, "something is mounted there");
    }
}

const ALL: [Debris; 12] = [
    Debris::LayerDirectory,
    Debris::ImageDirectory,
    Debris::ContainerDirectory,
    Debris::TarSplit,
    Debris::LayerData,
    Debris::Staging,
    Debris::TempDirectory,
    Debris::TempRecord,
    Debris::FeatureTest,
    Debris::Temporary,
    Debris::Leftover,
    Debris::Volume,
];

fn circumstances() -> impl Strategy<Value = Circumstances> {
    let consistency = prop_oneof![
        Just(Consistency::Consistent),
        Just(Consistency::WriterActive),
        Just(Consistency::Damaged)
    ];
    let presence = prop_oneof![
        Just(Presence::Unknown("why")),
        Just(Presence::Somebody("who".into())),
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
        let (class, verdict, evidence) = debris(what, &known);
        prop_assert!(!class.is_empty() && !evidence.is_empty());
        let outside = matches!(what, Debris::Temporary | Debris::Leftover);
        let by_process = outside || what == Debris::ContainerDirectory;
        if verdict == Verdict::Reclaim {
            prop_assert!(!known.mounted);
            prop_assert!(outside || known.consistency == Consistency::Consistent);
            let nobody = matches!(known.presence, Presence::Nobody { .. });
            prop_assert!(!by_process || nobody);
            let guarded = matches!(what, Debris::Staging | Debris::TempDirectory);
            prop_assert!(!guarded || known.lock_held != Some(true));
            prop_assert_ne!(what, Debris::Volume);
        }
    }

    #[test]
    fn only_age_makes_a_layer_garbage(known in circumstances(), volatile: bool) {
        let (_, verdict, _) = unreferenced(volatile, &known);
        let old = known.age.is_some_and(|age| age >= GRACE);
        let quiet = !known.mounted && known.consistency == Consistency::Consistent;
        prop_assert_eq!(verdict == Verdict::Reclaim, old && quiet);
    }
}

#[test]
fn only_old_unreferenced_layers_go() {
    for (volatile, hours, class, verdict) in [
        (false, Some(25), "unref-old", Verdict::Reclaim),
        (false, Some(23), "unref-young", Verdict::Keep),
        (false, None, "unref-young", Verdict::Keep),
        (true, Some(25), "volatile-ghost", Verdict::Reclaim),
        (true, None, "volatile-ghost", Verdict::Keep),
    ] {
        let known = Circumstances { age: hours.map(SignedDuration::from_hours), ..QUIET };
        let judged = unreferenced(volatile, &known);
        assert_eq!((judged.0, judged.1), (class, verdict), "{volatile} {hours:?}");
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
