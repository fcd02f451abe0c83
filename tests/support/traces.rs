//! Made-up traces of nodes, the same every time, for the tests and the bench of `replay`.
//!
//! No trace of image pulls on nodes is public. These have shapes that are: popularity of services with a log-normal weight
//! (`sigma`), a daily rhythm of starts, layers shared by base images, and releases that supersede the one before and share
//! its lower layers. The header says `generated`.

use jiff::{SignedDuration, Timestamp};

use layersweep::model::documents::trace::{
    ArrivalEvent, ArrivedLayer, OthersEvent, TraceEvent, TraceHeader, TraceKind, TraceSource, UseEvent,
};
use layersweep::model::{OriginKind, SCHEMA_VERSION};

const MIB: u64 = 1 << 20;
const DAY: f64 = 86_400.0;

/// Shape of a generated node.
#[derive(Clone, Copy, Debug)]
pub struct TraceShape {
    pub days: u32,
    /// Number of images, all releases together.
    pub images: usize,
    /// Standard deviation of the logarithm of a service's popularity.
    pub sigma: f64,
    pub seed: u64,
}

/// Returns the header and the events of a node.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // made-up numbers
pub fn generated(shape: TraceShape) -> (TraceHeader, Vec<TraceEvent>) {
    let mut random = Random(shape.seed.wrapping_mul(0x9e37_79b9).wrapping_add(7));
    let start = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 20_000);
    let end = f64::from(shape.days) * DAY;
    let services = (shape.images / 4).max(1);
    let bases: Vec<Vec<ArrivedLayer>> = (0..(services / 8).max(2))
        .map(|base| (0..3).map(|number| layer(&mut random, format!("base-{base}-{number}"), 40.0)).collect())
        .collect();
    let mut events = Vec::new();
    let mut all_bytes = 0;
    for service in 0..services {
        let base = &bases[(random.unit() * random.unit() * bases.len() as f64) as usize];
        let runtime = layer(&mut random, format!("runtime-{service}"), 60.0);
        let weight = (shape.sigma * random.normal()).exp();
        // Starts a day: two for a service of the usual popularity.
        let rate = (2.0 * weight).clamp(0.02, 40.0);
        let releases = 1 + (random.unit() * 7.0) as usize;
        let mut begins: Vec<f64> = (1..releases).map(|_| random.unit() * end).collect();
        begins.push(0.0);
        begins.sort_by(f64::total_cmp);
        let images: Vec<ArrivalEvent> = (0..releases)
            .map(|release| {
                let own =
                    (0..2).map(|part| layer(&mut random, format!("own-{service}-{release}-{part}"), 30.0));
                let layers: Vec<_> = base.iter().cloned().chain([runtime.clone()]).chain(own).collect();
                all_bytes += layers[4..].iter().map(|layer| layer.bytes).sum::<u64>();
                ArrivalEvent {
                    time: start,
                    image: format!("{:016x}{service:08x}{release:08x}", shape.seed),
                    names: vec![format!("registry.example/team/service-{service}:{release}")],
                    origin: OriginKind::Pulled,
                    pinned: false,
                    layers,
                }
            })
            .collect();
        all_bytes += runtime.bytes;
        let mut arrived = vec![false; releases];
        let mut second = 0.0;
        loop {
            second += random.exponential(DAY / rate);
            if second >= end {
                break;
            }
            // Fewer starts at night.
            let hour = (second % DAY) / DAY;
            if random.unit() > 0.55 - 0.45 * (hour * std::f64::consts::TAU).cos() {
                continue;
            }
            let newest = begins.iter().filter(|begin| **begin <= second).count() - 1;
            // One start in twenty is of an earlier release: a rollback, or a job that names its version.
            let release =
                if random.unit() < 0.05 { (random.unit() * (newest + 1) as f64) as usize } else { newest };
            let begin = moment(start, second);
            if !std::mem::replace(&mut arrived[release], true) {
                events.push(TraceEvent::Arrival(ArrivalEvent { time: begin, ..images[release].clone() }));
            }
            let length = 3600.0 * (1.2 * random.normal()).exp();
            let until = Some(moment(start, (second + length).min(end)));
            events.push(TraceEvent::Use(UseEvent {
                time: begin,
                until,
                image: images[release].image.clone(),
            }));
        }
    }
    all_bytes += bases.iter().flatten().map(|layer| layer.bytes).sum::<u64>();
    // All images together do not fit.
    let capacity_bytes = all_bytes;
    for day in 0..shape.days {
        for quarter in 0..4 {
            let share = 0.15 + 0.1 * f64::from(day) / f64::from(shape.days) + 0.05 * random.unit();
            let bytes = (capacity_bytes as f64 * share) as u64;
            let time = moment(start, (f64::from(day) + 0.25 * f64::from(quarter)) * DAY);
            events.push(TraceEvent::Others(OthersEvent { time, bytes }));
        }
    }
    events.sort_by_key(TraceEvent::time);
    let node = Some(format!("generated-{}", shape.seed));
    let header = TraceHeader { node, ..header(start, moment(start, end), capacity_bytes) };
    (header, events)
}

/// Returns the header of a generated trace without a name of its node.
#[must_use]
pub fn header(from: Timestamp, to: Timestamp, capacity_bytes: u64) -> TraceHeader {
    TraceHeader {
        kind: TraceKind::Trace,
        schema_version: SCHEMA_VERSION,
        source: TraceSource::Generated,
        node: None,
        from,
        to,
        mount: None,
        capacity_bytes,
        reserved_bytes: 0,
        kubernetes: true,
        names_hashed: false,
        images_without_layers: 0,
    }
}

/// Returns the lines of a trace.
#[must_use]
#[allow(dead_code)] // for the bench
pub fn lines(header: &TraceHeader, events: &[TraceEvent]) -> String {
    let mut text = serde_json::to_string(header).expect("a header is serialized") + "\n";
    for event in events {
        text.push_str(&serde_json::to_string(event).expect("an event is serialized"));
        text.push('\n');
    }
    text
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn layer(random: &mut Random, id: String, median_mib: f64) -> ArrivedLayer {
    let bytes = (median_mib * random.normal().exp() * MIB as f64) as u64;
    ArrivedLayer { id, bytes, compressed_bytes: Some((bytes as f64 * 0.4) as u64) }
}

#[allow(clippy::cast_possible_truncation)]
fn moment(start: Timestamp, seconds: f64) -> Timestamp {
    start + SignedDuration::from_secs(seconds as i64)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// Returns a number from 0 up to, but not including, 1.
    #[allow(clippy::cast_precision_loss)]
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}
