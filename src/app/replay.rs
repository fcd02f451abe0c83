//! `replay`: what policies would have done to the past of this node, or to the traces of a fleet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use rayon::iter::{IntoParallelRefIterator as _, ParallelBridge as _, ParallelIterator as _};
use serde::Serialize;

use crate::config::Config;
use crate::model::documents::trace::{Trace, TraceSource, hash_names};
use crate::model::text::display::thousands;
use crate::model::text::names::names;
use crate::policy::Policy;
use crate::policy::compare::kubelet_policy;
use crate::policy::replay::{Collector, ReplaySums, Replayed, ReplayedSums, replay};
use crate::services::documents::{DocumentStart, Documents, Position, Source, UnreadDocument, place};
use crate::services::error::{Error, Exit};
use crate::services::observer::Observer;
use crate::services::recorded_trace::{self, RecordedTrace};
use crate::services::request::Request;

/// Days of the past from which a choice can be judged: in a shorter past every age looks safe.
pub const NEEDED_DAYS: i64 = 14;

const LISTED_PROBLEMS: usize = 100;

names! {
    ReplayedPolicy {
        /// The deletions of layersweep that the trace contains.
        Recorded = "recorded",
        Kubelet = "kubelet",
        Exact = "exact",
        /// Policy `exact` with knowledge of the future: the floor.
        Clairvoyant = "clairvoyant",
    }
}

/// Settings of one row. `value`: the varied value; `None` without a variation.
#[derive(Clone, Debug)]
pub struct Variant {
    pub value: Option<String>,
    pub policy: Policy,
}

#[derive(Clone, Debug)]
pub struct ReplayRequest<'a> {
    pub request: &'a Request,
    pub config: &'a Config,
    /// Trace files; none for the records of this node.
    pub files: &'a [PathBuf],
    pub since: Timestamp,
    pub period: SignedDuration,
    /// At least one.
    pub variants: Vec<Variant>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayRow {
    /// `exact`; `kubelet`, `recorded` or `clairvoyant` for comparison.
    pub policy: ReplayedPolicy,
    /// Value of the varied setting; null without a variation.
    pub value: Option<String>,
    /// High threshold in percent used; null if it is not set.
    pub high_percent: Option<u8>,
    /// Low threshold in percent used; null if it is not set.
    pub low_percent: Option<u8>,
    /// Maximum idle time in seconds; null if it is off.
    pub max_age_seconds: Option<i64>,
    #[serde(flatten)]
    pub sums: ReplayedSums,
}

#[derive(Debug)]
pub struct ReplayResult {
    pub rows: Vec<ReplayRow>,
    /// Number of traces, and of those that say that they were generated.
    pub traces: u64,
    pub generated: u64,
    /// Images in the traces whose layers are unknown.
    pub images_without_layers: u64,
    pub unread: u64,
    pub problems: Vec<UnreadDocument>,
    /// Deletions of the first policy, if there is one trace.
    pub deleted: Vec<ReplayedImage>,
}

/// Image that a policy would have deleted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayedImage {
    /// Time of the deletion.
    #[serde(rename = "at")]
    pub time: Timestamp,
    /// Id of the image.
    pub id: String,
    /// Names of the image.
    pub names: Vec<String>,
}

impl ReplayResult {
    pub fn exit(&self) -> Exit {
        if self.unread == 0 { Exit::Done } else { Exit::Incomplete }
    }
}

/// Plays the traces to all policies, as many traces at a time as there are processors.
///
/// # Errors
/// If no trace could be read.
pub fn run(replay_request: &ReplayRequest<'_>, observer: &dyn Observer) -> Result<ReplayResult, Error> {
    let ReplayRequest { request, config, files, since, .. } = replay_request;
    let sums = Mutex::new(RowSums::new(replay_request));
    let locked = || sums.lock().unwrap_or_else(PoisonError::into_inner);
    if files.is_empty() {
        let recorded = recorded_trace::recorded(request, observer, config, *since)?;
        let traces: Vec<_> = recorded.iter().map(RecordedTrace::trace).collect();
        traces.par_iter().for_each(|trace| {
            let nodes = play(trace, replay_request);
            locked().add(trace, &nodes);
        });
    } else {
        let sources: Vec<_> =
            files.iter().map(|path| Source::new(path).map_err(|error| error.to_string())).collect();
        let done = Arc::new(AtomicU64::new(0));
        let shown = {
            let done = Arc::clone(&done);
            observer.working(Box::new(move || {
                format!("replaying: {} traces", thousands(done.load(Ordering::Relaxed)))
            }))
        };
        Documents::new(&sources, DocumentStart::TraceHeader).par_bridge().for_each(|(position, text)| {
            match text.and_then(|text| Trace::read(&text)) {
                Ok(trace) => {
                    let nodes = play(&trace, replay_request);
                    locked().add(&trace, &nodes);
                }
                Err(reason) => locked().skip(position, reason),
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        drop(shown);
    }
    sums.into_inner().unwrap_or_else(PoisonError::into_inner).finish(files)
}

/// Writes the past of this node as traces, one line after the other, to `write`.
///
/// # Errors
/// As [`recorded_trace::recorded`], and when writing fails.
pub fn export(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    (since, hashes_names): (Timestamp, bool),
    write: &mut dyn std::io::Write,
) -> Result<(), Error> {
    for mut trace in recorded_trace::recorded(request, observer, config, since)? {
        if hashes_names {
            hash_names(&mut trace.header, &mut trace.events);
        }
        write_line(write, &trace.header)?;
        trace.events.iter().try_for_each(|event| write_line(write, event))?;
    }
    Ok(())
}

fn write_line(write: &mut dyn std::io::Write, line: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(line).map_err(std::io::Error::from).map_err(Error::output)?;
    writeln!(write, "{text}").map_err(Error::output)
}

/// Returns the collectors of a variant: its policy; without a variation also those for comparison.
fn collectors(variant: &Variant) -> Vec<(ReplayedPolicy, Collector<'_>)> {
    let policy = &variant.policy;
    let mut collectors = vec![(ReplayedPolicy::Exact, Collector::Exact(policy))];
    if variant.value.is_none() {
        collectors.push((ReplayedPolicy::Recorded, Collector::Recorded));
        let kubelet = kubelet_policy(policy);
        collectors.extend(kubelet.map(|kubelet| (ReplayedPolicy::Kubelet, Collector::Kubelet(kubelet))));
        collectors.push((ReplayedPolicy::Clairvoyant, Collector::Clairvoyant(policy)));
    }
    collectors
}

/// Plays a trace to all collectors, in the order of the rows.
fn play(trace: &Trace, replay_request: &ReplayRequest<'_>) -> Vec<Replayed> {
    let mut nodes = Vec::new();
    for variant in &replay_request.variants {
        let marks = variant.policy.targets.used;
        let played = collectors(variant).into_iter();
        nodes.extend(played.map(|(_, collector)| replay(trace, collector, replay_request.period, marks)));
    }
    nodes
}

#[derive(Debug)]
struct RowSums {
    rows: Vec<(ReplayRow, ReplaySums)>,
    traces: u64,
    generated: u64,
    images_without_layers: u64,
    unread: u64,
    problems: BTreeMap<Position, String>,
    deleted: Vec<ReplayedImage>,
}

impl RowSums {
    fn new(replay_request: &ReplayRequest<'_>) -> Self {
        let rows = replay_request.variants.iter().flat_map(|variant| {
            let policy = &variant.policy;
            collectors(variant).into_iter().map(move |(kind, _)| ReplayRow {
                policy: kind,
                value: variant.value.clone(),
                high_percent: policy.targets.used.map(|used| used.high),
                low_percent: policy.targets.used.map(|used| used.low),
                max_age_seconds: policy.max_age.map(|age| age.as_secs()),
                sums: ReplayedSums::default(),
            })
        });
        Self {
            rows: rows.map(|row| (row, ReplaySums::default())).collect(),
            traces: 0,
            generated: 0,
            images_without_layers: 0,
            unread: 0,
            problems: BTreeMap::new(),
            deleted: Vec::new(),
        }
    }

    fn add(&mut self, trace: &Trace, nodes: &[Replayed]) {
        self.traces += 1;
        self.generated += u64::from(trace.header.source == TraceSource::Generated);
        self.images_without_layers += trace.header.images_without_layers;
        self.deleted.clear();
        if self.traces == 1
            && let Some(first) = nodes.first()
        {
            self.deleted.extend(first.deletions.iter().map(|deletion| {
                let image = &trace.images[deletion.image];
                ReplayedImage { time: deletion.time, id: image.id.clone(), names: image.names.clone() }
            }));
        }
        for ((_, sums), node) in self.rows.iter_mut().zip(nodes) {
            sums.add(node.deletions.len() as u64, &node.figures);
        }
    }

    fn skip(&mut self, position: Position, reason: String) {
        self.unread += 1;
        self.problems.insert(position, reason);
        if self.problems.len() > LISTED_PROBLEMS {
            self.problems.pop_last();
        }
    }

    fn finish(self, files: &[PathBuf]) -> Result<ReplayResult, Error> {
        let problems: Vec<_> = self
            .problems
            .into_iter()
            .map(|(position, reason)| UnreadDocument { place: place(files, position), reason })
            .collect();
        if self.traces == 0 {
            let first = problems.first().map(|problem| format!(": {}: {}", problem.place, problem.reason));
            return Err(Error::failed(format!("no trace could be read{}", first.unwrap_or_default()))
                .hint("name files that `layersweep history export` wrote"));
        }
        let rows = self.rows.into_iter().map(|(row, sums)| ReplayRow { sums: sums.finish(), ..row });
        Ok(ReplayResult {
            rows: rows.collect(),
            traces: self.traces,
            generated: self.generated,
            images_without_layers: self.images_without_layers,
            unread: self.unread,
            problems,
            deleted: self.deleted,
        })
    }
}
