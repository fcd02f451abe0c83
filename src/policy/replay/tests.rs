use jiff::SignedDuration;
use serde::Deserialize;

use super::*;
use crate::model::documents::trace::{
    ArrivalEvent, ArrivedLayer, DepartureEvent, OthersEvent, TraceEvent, TraceHeader, UseEvent,
};
use crate::model::origin::OriginKind;
use crate::policy::kubelet::IMAGE_GC_PERIOD;
use crate::policy::space::{FreeFloor, Targets};
use crate::policy::traces::{self, TraceShape, generated};

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000_000 + seconds).unwrap()
}

fn header(capacity_bytes: u64, seconds: i64) -> TraceHeader {
    traces::header(time(0), time(seconds), capacity_bytes)
}

fn arrival(seconds: i64, image: &str, layers: &[(&str, u64)]) -> TraceEvent {
    let layers = layers.iter().map(|(id, bytes)| ArrivedLayer {
        id: (*id).into(),
        bytes: *bytes,
        compressed_bytes: None,
    });
    TraceEvent::Arrival(ArrivalEvent {
        time: time(seconds),
        image: image.into(),
        names: vec![format!("q.io/{image}")],
        origin: OriginKind::Pulled,
        pinned: false,
        layers: layers.collect(),
    })
}

fn used(seconds: i64, until: i64, image: &str) -> TraceEvent {
    TraceEvent::Use(UseEvent { time: time(seconds), until: Some(time(until)), image: image.into() })
}

/// A policy that deletes exactly the bytes that a pull needs.
fn exact_bytes() -> Policy {
    let free = Some(FreeFloor { start_below: 1, until: 1 });
    Policy { targets: Targets { free, ..Targets::default() }, ..Policy::default() }
}

fn marks(high: u8, low: u8) -> Policy {
    Policy {
        targets: Targets { used: Some(Thresholds { high, low }), ..Targets::default() },
        ..Policy::default()
    }
}

fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

/// Row of `fixtures/replay/cachesim.json`.
#[derive(Debug, Deserialize)]
struct Cachesim {
    seed: u64,
    equal: bool,
    objects: u64,
    requests: u64,
    capacity: u64,
    /// Missed bytes of libcachesim's caches.
    lru: u64,
    belady: u64,
}

/// SplitMix64, as in `fixtures/replay/oracle.py`.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

impl Cachesim {
    fn trace(&self) -> Trace {
        let mut random = Random(self.seed);
        let sizes: Vec<u64> =
            (0..self.objects).map(|_| if self.equal { 100 } else { 10 + random.below(991) }).collect();
        let mut arrived = vec![false; sizes.len()];
        let mut events = Vec::new();
        for second in 1..=i64::try_from(self.requests).unwrap() {
            let draws = [(); 3].map(|()| random.below(self.objects));
            let object = usize::try_from(draws.into_iter().min().unwrap()).unwrap();
            let id = format!("{object:04}");
            if !std::mem::replace(&mut arrived[object], true) {
                events.push(arrival(second, &id, &[(&id, sizes[object])]));
            }
            events.push(used(second, second, &id));
        }
        let seconds = i64::try_from(self.requests).unwrap();
        // The policy keeps a byte free.
        Trace::new(header(self.capacity + 1, seconds + 1), events)
    }
}

/// Independent oracle: without shared layers, a node is a cache.
#[test]
fn replay_misses_what_libcachesim_misses() {
    let rows: Vec<Cachesim> =
        serde_json::from_str(include_str!("../../../fixtures/replay/cachesim.json")).unwrap();
    let policy = exact_bytes();
    for row in rows {
        let trace = row.trace();
        let idle = replay(&trace, Collector::Exact(&policy), days(1), None);
        assert_eq!(idle.figures.pulled_bytes, row.lru, "idle is not LRU: {row:?}");
        let best = replay(&trace, Collector::Clairvoyant(&policy), days(1), None);
        if row.equal {
            assert_eq!(best.figures.pulled_bytes, row.belady, "clairvoyant is not Belady: {row:?}");
        } else {
            // They differ in the order of what is never wanted again.
            assert!(best.figures.pulled_bytes < row.lru, "{row:?}");
        }
    }
}

#[test]
fn only_missing_layers_are_pulled_again() {
    let trace = Trace::new(
        header(1000, 90 * 86_400),
        [
            arrival(0, "a", &[("base", 100), ("a", 20)]),
            arrival(0, "b", &[("base", 100), ("b", 30)]),
            used(0, 90 * 86_400, "b"),
            used(10 * 86_400, 10 * 86_400, "a"),
        ],
    );
    for (max_age, deletions, again) in [(7, 2, 20), (11, 1, 0), (81, 0, 0)] {
        let policy = Policy { max_age: Some(days(max_age)), ..Policy::default() };
        let found = replay(&trace, Collector::Exact(&policy), IMAGE_GC_PERIOD, None);
        assert_eq!(
            (found.deletions.len(), found.figures.pulled_again_bytes, found.figures.pulled_bytes),
            (deletions, again, 150 + again),
            "{max_age}"
        );
    }
    // The image that was wanted again was no longer needed for space.
    let policy = Policy { max_age: Some(days(7)), ..Policy::default() };
    assert_eq!(replay(&trace, Collector::Clairvoyant(&policy), IMAGE_GC_PERIOD, None).deletions, []);
}

#[test]
fn pull_without_room_waits() {
    let trace = Trace::new(
        header(100, 7200),
        [
            arrival(0, "a", &[("a", 60)]),
            used(0, 3000, "a"),
            arrival(1000, "b", &[("b", 60)]),
            used(1000, 7200, "b"),
        ],
    );
    let policy = marks(80, 50);
    let found =
        replay(&trace, Collector::Exact(&policy), SignedDuration::from_secs(600), policy.targets.used);
    // The container of a ends at 3000, which is a period of the timer: its image may be used until then.
    assert_eq!(
        (found.figures.waited, found.figures.waited_seconds, found.figures.pulled_bytes),
        (1, 2600, 120)
    );
    assert_eq!(found.deletions, [ReplayedDeletion { time: time(3600), image: 0 }]);
    assert_eq!(
        (found.figures.above_high_seconds, found.figures.above_low_seconds, found.figures.seconds),
        (0, 7200, 7200)
    );
    // The deletions of the records.
    let recorded = replay(&trace, Collector::Recorded, IMAGE_GC_PERIOD, policy.targets.used);
    assert_eq!((recorded.figures.waited, recorded.figures.peak_percent), (0, 100.0));
}

#[test]
fn pinned_image_is_never_collected() {
    let mut events =
        [arrival(0, "a", &[("a", 90)]), TraceEvent::Others(OthersEvent { time: time(10), bytes: 10 })];
    for pinned in [false, true] {
        if let TraceEvent::Arrival(arrival) = &mut events[0] {
            arrival.pinned = pinned;
        }
        let trace = Trace::new(header(100, 86_400), events.clone());
        for collector in [Collector::Exact(&marks(50, 40)), Collector::Kubelet(KubeletPolicy::default())] {
            let found = replay(&trace, collector, IMAGE_GC_PERIOD, None);
            assert_eq!(found.deletions.is_empty(), pinned, "{collector:?}");
        }
    }
}

/// The deletions of a run, written down as those of a record, are those of the same policy.
#[test]
fn replay_of_recorded_run_deletes_the_same() {
    let (header, events) = generated(TraceShape { days: 20, images: 60, sigma: 1.0, seed: 3 });
    let policy = Policy { max_age: Some(days(9)), min_age: SignedDuration::from_mins(2), ..marks(75, 70) };
    let trace = Trace::new(header.clone(), events.clone());
    let run = replay(&trace, Collector::Exact(&policy), IMAGE_GC_PERIOD, policy.targets.used);
    assert!(run.deletions.len() > 20 && run.figures.pulled_again > 0, "{} deletions", run.deletions.len());
    let departures = run.deletions.iter().map(|deletion| {
        TraceEvent::Departure(DepartureEvent {
            time: deletion.time,
            image: trace.images[deletion.image].id.clone(),
            by: DepartedBy::Layersweep,
            reason: None,
        })
    });
    let recorded = Trace::new(header, events.into_iter().chain(departures));
    fn ids(found: &Replayed, trace: &Trace) -> Vec<(Timestamp, String)> {
        found
            .deletions
            .iter()
            .map(|deletion| (deletion.time, trace.images[deletion.image].id.clone()))
            .collect()
    }
    let again = replay(&recorded, Collector::Exact(&policy), IMAGE_GC_PERIOD, policy.targets.used);
    assert_eq!(ids(&again, &recorded), ids(&run, &trace));
    let as_it_was = replay(&recorded, Collector::Recorded, IMAGE_GC_PERIOD, policy.targets.used);
    assert_eq!(ids(&as_it_was, &recorded), ids(&run, &trace));
    assert_eq!(as_it_was.figures.pulled_again_bytes, run.figures.pulled_again_bytes);
}

#[test]
fn clairvoyant_is_the_floor_on_generated_nodes() {
    for seed in 0..6 {
        let (header, events) = generated(TraceShape { days: 15, images: 60, sigma: 1.0, seed });
        let trace = Trace::new(header, events);
        let policy = Policy { min_age: SignedDuration::from_mins(2), ..marks(75, 70) };
        let exact = replay(&trace, Collector::Exact(&policy), IMAGE_GC_PERIOD, None);
        let best = replay(&trace, Collector::Clairvoyant(&policy), IMAGE_GC_PERIOD, None);
        assert!(best.figures.pulled_again_bytes <= exact.figures.pulled_again_bytes, "seed {seed}");
        assert!(
            exact.figures.pulled_again > 0 && exact.figures.peak_percent < 100.0,
            "seed {seed}: {exact:?}"
        );
    }
}
