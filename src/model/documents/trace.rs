//! Trace of a node: the past of one filesystem with image stores, as events in time.
//!
//! A trace is a header and one event a line, each a JSON object ([`TraceHeader`], [`TraceEvent`]). `history export`
//! writes it from the records of a node, and `replay` runs policies on it. A file may contain several traces: each
//! begins with its header.
//!
//! [`Trace`] is the parsed form. Images and layers are numbered in the order of their first mention, and a layer is
//! shared by all images that name its id. What the bytes of a layer mean is what a deletion plan means by them: the
//! bytes that the filesystem gives back when its last image is deleted.

use std::borrow::Cow;

use hashbrown::HashMap;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::SCHEMA_VERSION;
use crate::model::deletion::plan::Reason;
use crate::model::origin::OriginKind;
use crate::model::text::names::names;

/// Maximum time that a trace covers: a replay plans for each period of it.
const MOST_TIME: SignedDuration = SignedDuration::from_hours(10 * 366 * 24);

/// Start of the first line of a trace, without blanks.
const BEGINNING: &[u8] = b"{\"kind\":\"trace\"";

names! {
    TraceKind {
        Trace = "trace",
    }
}

names! {
    /// Way in which a trace was made.
    TraceSource {
        /// From the records of a node.
        Recorded = "recorded",
        /// By a program, with chosen distributions: no node has this past.
        Generated = "generated",
    }
}

names! {
    /// Program that deleted an image.
    DepartedBy {
        Layersweep = "layersweep",
        /// A user, the kubelet, or any other program.
        Other = "other",
    }
}

/// First line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TraceHeader {
    /// `trace`; the first field of the line.
    pub kind: TraceKind,
    /// Version of the format.
    pub schema_version: u32,
    /// `recorded` or `generated`.
    pub source: TraceSource,
    /// Name of the node; null if it has none, and with hashed names.
    pub node: Option<String>,
    /// Start of the time that the trace covers. Earlier events say what was there then, and since when.
    pub from: Timestamp,
    /// End of the time that the trace covers.
    pub to: Timestamp,
    /// Mount point of the filesystem; null with hashed names.
    pub mount: Option<String>,
    /// Size of the filesystem at the end of the trace. A filesystem that was resized counts as if it
    /// had always had it.
    pub capacity_bytes: u64,
    /// Bytes that are neither used nor available, usually the reserve of root.
    pub reserved_bytes: u64,
    /// A Kubernetes runtime pulls into the stores, so that `protect.not_repullable` keeps images that were never pulled.
    pub kubernetes: bool,
    /// Names and ids are replaced by hashes. The same name has the same hash on every node.
    pub names_hashed: bool,
    /// Number of images whose layers are unknown: only what they held alone is known, as one layer.
    #[serde(default)]
    pub images_without_layers: u64,
}

/// Line of a trace after the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum TraceEvent {
    /// An image is there from this time on.
    Arrival(ArrivalEvent),
    /// A container uses an image.
    Use(UseEvent),
    /// An image is deleted.
    Departure(DepartureEvent),
    /// Bytes used by everything except the images change.
    Others(OthersEvent),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArrivalEvent {
    /// Time of its first detection.
    #[serde(rename = "at")]
    pub time: Timestamp,
    /// Id of the image.
    pub image: String,
    /// Names of the image.
    #[serde(default)]
    pub names: Vec<String>,
    /// `pulled`, `built`, `loaded`, `preloaded` or `unknown`.
    #[serde(default)]
    pub origin: OriginKind,
    /// The runtime, the keep-list or the configuration kept it when it was last seen.
    #[serde(default)]
    pub pinned: bool,
    /// Layers, the base first, then what else a deletion of the image frees: its own files, and inodes or extents
    /// that it shares with others.
    pub layers: Vec<ArrivedLayer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArrivedLayer {
    /// Id of the layer, the same in all images that share it.
    pub id: String,
    /// Bytes on the disk that the filesystem gives back when the last image that has the layer is deleted; not
    /// apparent bytes.
    pub bytes: u64,
    /// Bytes that a pull of it transfers, as in the manifest; null if unknown. 0 for what is made of other layers, as a
    /// snapshot is.
    #[serde(default)]
    pub compressed_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UseEvent {
    /// Start of the use.
    #[serde(rename = "at")]
    pub time: Timestamp,
    /// End of the use: the container is gone, not only exited. Null if it had not ended at the end of
    /// the trace.
    pub until: Option<Timestamp>,
    /// Id of the image.
    pub image: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DepartureEvent {
    /// Time of the deletion.
    #[serde(rename = "at")]
    pub time: Timestamp,
    /// Id of the image.
    pub image: String,
    /// `layersweep` or `other`.
    pub by: DepartedBy,
    /// Reason of a deletion by layersweep.
    #[serde(default)]
    pub reason: Option<Reason>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OthersEvent {
    /// Time of the reading.
    #[serde(rename = "at")]
    pub time: Timestamp,
    /// Bytes used by everything except the images: containers, logs, volumes, and all other files on
    /// the filesystem.
    pub bytes: u64,
}

impl TraceEvent {
    #[must_use]
    pub fn time(&self) -> Timestamp {
        match self {
            Self::Arrival(event) => event.time,
            Self::Use(event) => event.time,
            Self::Departure(event) => event.time,
            Self::Others(event) => event.time,
        }
    }
}

/// Returns true if a line is the first of a trace.
#[must_use]
pub fn begins_trace(line: &[u8]) -> bool {
    let mut text = line.iter().filter(|byte| !byte.is_ascii_whitespace());
    BEGINNING.iter().all(|byte| text.next() == Some(byte))
}

/// Image of a trace. Its layers are positions in [`Trace::layers`].
#[derive(Clone, Debug, PartialEq)]
pub struct TracedImage {
    pub id: String,
    pub names: Vec<String>,
    pub origin: OriginKind,
    pub pinned: bool,
    pub layers: Vec<usize>,
}

/// Change at one time; an image is a position in [`Trace::images`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedChange {
    Others(u64),
    Arrives(usize),
    UseBegins(usize),
    UseEnds(usize),
    Departs(usize, DepartedBy),
}

impl TracedChange {
    /// Returns the order of changes at one time: an image that is used when it arrives is there, and one that is deleted
    /// when its use ends is not used.
    fn rank(self) -> u8 {
        match self {
            Self::Others(_) => 0,
            Self::Arrives(_) => 1,
            Self::UseBegins(_) => 2,
            Self::UseEnds(_) => 3,
            Self::Departs(..) => 4,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub header: TraceHeader,
    pub images: Vec<TracedImage>,
    pub layers: Vec<ArrivedLayer>,
    /// Changes in the order of time.
    pub changes: Vec<(Timestamp, TracedChange)>,
}

impl Trace {
    /// Creates a trace from its lines. The events may be in any order. Those before its start say what is there at the
    /// start, and since when; those after its end count at the end.
    #[must_use]
    pub fn new(header: TraceHeader, events: impl IntoIterator<Item = TraceEvent>) -> Self {
        let mut trace = Self { header, images: Vec::new(), layers: Vec::new(), changes: Vec::new() };
        let mut numbers = Numbers::default();
        for event in events {
            trace.add(event, &mut numbers);
        }
        trace.sort();
        trace
    }

    /// Parses a trace.
    ///
    /// # Errors
    /// The reason in words, with the line within the trace.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let mut lines = (1..).zip(text.split(|byte| *byte == b'\n'));
        let mut lines = lines.by_ref().filter(|(_, line)| !line.trim_ascii().is_empty());
        let (_, first) = lines.next().ok_or("it holds no trace")?;
        if !begins_trace(first) {
            return Err(r#"it does not begin with a line {"kind": "trace", …}"#.to_owned());
        }
        let header: TraceHeader = serde_json::from_slice(first).map_err(|error| error.to_string())?;
        if header.schema_version != SCHEMA_VERSION {
            return Err(format!("version {} of the format is not known", header.schema_version));
        }
        if header.to < header.from || header.capacity_bytes == 0 {
            return Err("its header covers no time, or has no capacity".to_owned());
        }
        if header.to.duration_since(header.from) > MOST_TIME {
            return Err("its header covers more than ten years".to_owned());
        }
        let mut trace = Self { header, images: Vec::new(), layers: Vec::new(), changes: Vec::new() };
        let mut numbers = Numbers::default();
        for (number, line) in lines {
            let event = serde_json::from_slice(line);
            trace.add(event.map_err(|error| format!("line {number} of the trace: {error}"))?, &mut numbers);
        }
        trace.sort();
        Ok(trace)
    }

    /// Sorts the changes. Of those at one time, deletions keep their order.
    fn sort(&mut self) {
        self.changes.sort_by_key(|(time, change)| (*time, change.rank()));
    }

    fn add(&mut self, event: TraceEvent, numbers: &mut Numbers) {
        let time = self.until_end(event.time());
        let change = match event {
            TraceEvent::Arrival(arrival) => TracedChange::Arrives(self.arrive(arrival, numbers)),
            TraceEvent::Use(used) => {
                let image = self.image(&used.image, numbers);
                let end = self.until_end(used.until.unwrap_or(self.header.to)).max(time);
                self.changes.push((end, TracedChange::UseEnds(image)));
                TracedChange::UseBegins(image)
            }
            TraceEvent::Departure(departure) => {
                TracedChange::Departs(self.image(&departure.image, numbers), departure.by)
            }
            TraceEvent::Others(others) => TracedChange::Others(others.bytes),
        };
        self.changes.push((time, change));
    }

    fn until_end(&self, time: Timestamp) -> Timestamp {
        time.min(self.header.to)
    }

    fn arrive(&mut self, arrival: ArrivalEvent, numbers: &mut Numbers) -> usize {
        let position = self.image(&arrival.image, numbers);
        let layers: Vec<_> = arrival.layers.into_iter().map(|layer| self.layer(layer, numbers)).collect();
        let image = &mut self.images[position];
        // The last known layers count: an image that came back has the same.
        if !layers.is_empty() {
            image.layers = layers;
        }
        image.names = arrival.names;
        image.origin = arrival.origin;
        image.pinned |= arrival.pinned;
        position
    }

    fn image(&mut self, id: &str, numbers: &mut Numbers) -> usize {
        *numbers.images.entry_ref(id).or_insert_with(|| {
            self.images.push(TracedImage {
                id: id.to_owned(),
                names: Vec::new(),
                origin: OriginKind::Unknown,
                pinned: false,
                layers: Vec::new(),
            });
            self.images.len() - 1
        })
    }

    fn layer(&mut self, layer: ArrivedLayer, numbers: &mut Numbers) -> usize {
        let position = *numbers.layers.entry_ref(layer.id.as_str()).or_insert_with(|| {
            self.layers.push(layer.clone());
            self.layers.len() - 1
        });
        let known = &mut self.layers[position].compressed_bytes;
        *known = known.or(layer.compressed_bytes);
        position
    }
}

#[derive(Default)]
struct Numbers {
    images: HashMap<String, usize>,
    layers: HashMap<String, usize>,
}

/// Replaces names and ids by hashes, so that a trace can be given away. Equal names have equal hashes: who has a guess can
/// check it. The repository and the tag are hashed apart, so that `keep_newest` still finds the repository.
pub fn hash_names(header: &mut TraceHeader, events: &mut [TraceEvent]) {
    header.names_hashed = true;
    header.node = None;
    header.mount = None;
    for event in events {
        match event {
            TraceEvent::Arrival(arrival) => {
                arrival.image = hashed(&arrival.image);
                arrival.names.iter_mut().for_each(|name| *name = hashed_name(name));
                arrival.layers.iter_mut().for_each(|layer| layer.id = hashed(&layer.id));
            }
            TraceEvent::Use(used) => used.image = hashed(&used.image),
            TraceEvent::Departure(departure) => departure.image = hashed(&departure.image),
            TraceEvent::Others(_) => {}
        }
    }
}

fn hashed_name(name: &str) -> String {
    use crate::model::text::reference::{normalized, repository};
    let full = normalized(name);
    let repository = repository(&full);
    let rest: Cow<'_, str> = full.strip_prefix(repository).unwrap_or_default().into();
    format!("hashed.invalid/{}:{}", hashed(repository), hashed(&rest))
}

/// Returns the first 16 digits of the SHA-256 of a text.
fn hashed(text: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"kind": "trace", "schema_version": 1, "source": "generated", "node": "n1",
 "from": "2026-11-01T00:00:00Z", "to": "2026-11-02T00:00:00Z", "mount": "/", "capacity_bytes": 1000, "reserved_bytes": 0,
 "kubernetes": true, "names_hashed": false}
{"event": "use", "at": "2026-11-01T01:00:00Z", "until": null, "image": "a"}
{"event": "arrival", "at": "2026-11-01T01:00:00Z", "image": "a", "names": ["q.io/a:1"], "layers": [{"id": "l", "bytes": 5}]}
{"event": "departure", "at": "2026-11-03T01:00:00Z", "image": "b", "by": "layersweep", "reason": "space"}
"#;

    fn text() -> String {
        // The header is one line.
        TEXT.replace(",\n \"", ", \"")
    }

    #[test]
    fn events_are_sorted_and_numbered() {
        let trace = Trace::read(text().as_bytes()).unwrap();
        let changes: Vec<_> = trace.changes.iter().map(|(_, change)| *change).collect();
        let left = TracedChange::Departs(1, DepartedBy::Layersweep);
        assert_eq!(
            changes,
            [TracedChange::Arrives(0), TracedChange::UseBegins(0), TracedChange::UseEnds(0), left]
        );
        assert_eq!(trace.changes[3].0, trace.header.to, "an event after the end counts at the end");
        assert_eq!((trace.images[0].layers.as_slice(), trace.layers[0].bytes), (&[0][..], 5));
    }

    #[test]
    fn broken_trace_names_its_line() {
        for (text, expected) in [
            ("", "it holds no trace"),
            ("{}", "does not begin with"),
            (&text().replace("\"use\"", "\"abuse\""), "line 2 of the trace: unknown variant"),
            (&text().replace("schema_version\": 1", "schema_version\": 2"), "version 2"),
            (&text().replace("\": 1000", "\": 0"), "no capacity"),
        ] {
            let error = Trace::read(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn hashed_names_keep_their_repository() {
        let (one, other) = (hashed_name("q.io/team/app:1"), hashed_name("q.io/team/app:2"));
        assert_ne!(one, other);
        let repository = crate::model::text::reference::repository;
        assert_eq!(repository(&one), repository(&other));
        assert!(!one.contains("app"));
    }
}
