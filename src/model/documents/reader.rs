//! Reader of the documents that `scan` and `report` print, for `diff FILE`, `explore FILE` and `report --merge`.
//!
//! Fields that none of them needs are skipped without being stored, so that a later version can add some. Texts are borrowed
//! from the document, unless they contain an escape: a document may have 256 MiB, and several are read at a time.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use crate::model::SCHEMA_VERSION;
use crate::model::documents::urgency::Urgency;

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl Text<'_> {
    pub(crate) fn to_owned(&self) -> String {
        self.0.clone().into_owned()
    }
}

#[derive(Debug)]
pub struct NodeDocument<'a> {
    pub(crate) node: Option<Cow<'a, str>>,
    pub(crate) generated_at: Timestamp,
    /// Everything could be read.
    pub(crate) complete: bool,
    /// Everything in the stores could be read.
    pub(crate) scan_complete: bool,
    /// Mounted root that was read.
    pub(crate) sysroot: Option<Cow<'a, str>>,
    pub(crate) verdict: Option<Verdict<'a>>,
    pub(crate) filesystems: Vec<DocumentFilesystem<'a>>,
    pub(crate) stores: Vec<DocumentStore<'a>>,
    pub(crate) images: Vec<DocumentImage<'a>>,
    pub(crate) layers: Vec<DocumentLayer<'a>>,
    pub(crate) containers: Vec<DocumentContainer<'a>>,
    pub(crate) leaks: Vec<DocumentLeak<'a>>,
    pub(crate) totals: DocumentTotals,
}

#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct Fields<'a> {
    schema_version: Option<u32>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    generated_at: Option<Timestamp>,
    #[serde(borrow)]
    node: Option<Text<'a>>,
    #[serde(borrow)]
    host: Option<Text<'a>>,
    complete: Option<bool>,
    #[serde(borrow)]
    sysroot: Option<Text<'a>>,
    #[serde(borrow)]
    verdict: Option<Verdict<'a>>,
    #[serde(borrow)]
    filesystems: Option<Vec<DocumentFilesystem<'a>>>,
    /// Document of `scan` in a document of `report`. In a document of `scan`, the cost of the scan, which has none of
    /// these fields.
    #[serde(borrow)]
    scan: Option<Box<Self>>,
    #[serde(borrow)]
    stores: Option<Vec<DocumentStore<'a>>>,
    #[serde(borrow)]
    images: Option<Vec<DocumentImage<'a>>>,
    #[serde(borrow)]
    layers: Option<Vec<DocumentLayer<'a>>>,
    #[serde(borrow)]
    containers: Option<Vec<DocumentContainer<'a>>>,
    #[serde(borrow)]
    leaks: Option<Vec<DocumentLeak<'a>>>,
    totals: Option<DocumentTotals>,
}

/// Fields that say which kind of document it is.
#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct Head<'a> {
    schema_version: Option<u32>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct Verdict<'a> {
    pub(crate) urgency: Urgency,
    #[serde(borrow)]
    pub(crate) headline: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentFilesystem<'a> {
    #[serde(borrow)]
    pub(crate) mount: Text<'a>,
    #[serde(borrow)]
    pub(crate) fstype: Text<'a>,
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) available_bytes: u64,
    pub(crate) used_percent: Option<f64>,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
    /// Thresholds; only in a document of `report`.
    #[serde(default)]
    pub(crate) thresholds: Vec<Mark>,
    /// Parts of the used bytes; only in a document of `report`.
    #[serde(default, borrow)]
    pub(crate) parts: Vec<DocumentPart<'a>>,
    /// Forecast; only in a document of `report`.
    #[serde(default)]
    pub(crate) forecast: Option<DocumentForecast>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct Mark {
    pub(crate) name: MarkName,
    pub(crate) percent: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(field_identifier)]
pub(crate) enum MarkName {
    /// `gc` stops to delete.
    #[serde(rename = "gc low")]
    GcLow,
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentPart<'a> {
    pub(crate) kind: DocumentPartKind,
    #[serde(default, borrow)]
    pub(crate) label: Text<'a>,
    #[serde(default, borrow)]
    pub(crate) path: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(crate) store: Option<Text<'a>>,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(field_identifier, rename_all = "kebab-case")]
pub(crate) enum DocumentPartKind {
    /// Volumes of podman.
    Volumes,
    /// Volumes of pods.
    KubeletVolumes,
    /// Stores that the scan has not read: those of users, and old ones.
    OtherStore,
    #[serde(other)]
    Other,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentForecast {
    pub(crate) bytes_per_hour: u64,
    /// Seconds from the time of the document.
    pub(crate) full_in_seconds: i64,
    /// Period of the readings from which the rate was computed.
    #[serde(default)]
    pub(crate) window_seconds: i64,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentStore<'a> {
    #[serde(borrow)]
    pub(crate) kind: Text<'a>,
    #[serde(borrow)]
    pub(crate) root: Text<'a>,
    #[serde(borrow)]
    pub(crate) driver: Text<'a>,
    #[serde(borrow)]
    pub(crate) filesystem: Text<'a>,
    pub(crate) bytes: DocumentBytes,
    pub(crate) reclaimable_bytes: u64,
    #[serde(default)]
    pub(crate) read_only: bool,
    #[serde(default, borrow)]
    pub(crate) consistency: Text<'a>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentBytes {
    pub(crate) images: u64,
    pub(crate) containers: u64,
    pub(crate) build_cache: u64,
    pub(crate) leaks: u64,
    pub(crate) metadata: u64,
    pub(crate) other: u64,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentImage<'a> {
    #[serde(borrow)]
    pub(crate) id: Text<'a>,
    #[serde(borrow)]
    pub(crate) store: Text<'a>,
    #[serde(borrow)]
    pub(crate) names: Vec<Text<'a>>,
    pub(crate) in_use: bool,
    pub(crate) pinned: bool,
    #[serde(default, borrow)]
    pub(crate) used_by: Vec<DocumentUser<'a>>,
    #[serde(default, borrow)]
    pub(crate) pinned_by: Vec<Text<'a>>,
    #[serde(default, borrow)]
    pub(crate) out_of_reach: Option<Text<'a>>,
    #[serde(default)]
    pub(crate) first_detected: Option<Timestamp>,
    #[serde(default)]
    pub(crate) last_used: Option<Timestamp>,
    pub(crate) total_bytes: u64,
    pub(crate) exclusive_bytes: u64,
    #[serde(default)]
    pub(crate) fair_bytes: u64,
    pub(crate) frees_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentUser<'a> {
    /// `external`: a user that is not in the document.
    #[serde(borrow)]
    pub(crate) kind: Text<'a>,
    #[serde(borrow)]
    pub(crate) name: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentLayer<'a> {
    #[serde(borrow)]
    pub(crate) id: Text<'a>,
    #[serde(borrow)]
    pub(crate) store: Text<'a>,
    #[serde(borrow)]
    pub(crate) kind: Text<'a>,
    pub(crate) refcount: u64,
    /// Ids of the images that reach it.
    #[serde(borrow)]
    pub(crate) images: Vec<Text<'a>>,
    /// Ids of the containers that reach it.
    #[serde(default, borrow)]
    pub(crate) containers: Vec<Text<'a>>,
    #[serde(default, borrow)]
    pub(crate) parent: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(crate) path: Text<'a>,
    #[serde(default)]
    pub(crate) read_write: bool,
    #[serde(default)]
    pub(crate) build_cache: bool,
    #[serde(default)]
    pub(crate) unmeasured: bool,
    #[serde(default)]
    pub(crate) inodes: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentContainer<'a> {
    #[serde(borrow)]
    pub(crate) id: Text<'a>,
    #[serde(borrow)]
    pub(crate) store: Text<'a>,
    #[serde(borrow)]
    pub(crate) name: Text<'a>,
    #[serde(default, borrow)]
    pub(crate) image_id: Option<Text<'a>>,
    #[serde(default, borrow)]
    pub(crate) owner: Text<'a>,
    #[serde(default, borrow)]
    pub(crate) state: Text<'a>,
    pub(crate) bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentLeak<'a> {
    #[serde(borrow)]
    pub(crate) id: Text<'a>,
    #[serde(borrow)]
    pub(crate) store: Text<'a>,
    #[serde(borrow)]
    pub(crate) class: Text<'a>,
    #[serde(borrow)]
    pub(crate) verdict: Text<'a>,
    #[serde(default, borrow)]
    pub(crate) path: Text<'a>,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(crate) struct DocumentTotals {
    pub(crate) images: u64,
    pub(crate) images_unused: u64,
    pub(crate) containers: u64,
    pub(crate) leaks: u64,
    pub(crate) bytes: u64,
    pub(crate) reclaimable_bytes: u64,
}

/// Names of a machine before it has one.
const NAMELESS: [&str; 2] = ["localhost", "localhost.localdomain"];

impl<'a> NodeDocument<'a> {
    /// Reads the document of one node.
    ///
    /// # Errors
    /// Describes in words why the text is not a document of `scan` or `report`.
    pub fn read(text: &'a [u8]) -> Result<Self, String> {
        let mut fields = match serde_json::from_slice::<Fields<'a>>(text) {
            Ok(fields) => fields,
            // Another kind, or a later version, may have other data in a field of the same name.
            Err(error) => {
                let head = serde_json::from_slice::<Head<'_>>(text).map_err(|error| {
                    if error.is_data() {
                        "it is not a document of layersweep".to_owned()
                    } else {
                        format!("it is not a JSON document: {error}")
                    }
                })?;
                is_report(&head)?;
                return Err(invalid(&error.to_string()));
            }
        };
        let is_report = is_report(&Head { schema_version: fields.schema_version, kind: fields.kind.take() })?;
        let name = if is_report { fields.host.take() } else { fields.node.take() };
        let complete = required(fields.complete, "complete")?;
        let generated_at = required(fields.generated_at, "generated_at")?;
        let filesystems = required(fields.filesystems.take(), "filesystems")?;
        let (sysroot, verdict) = (fields.sysroot.take(), fields.verdict.take());
        let scan = if is_report { *fields.scan.unwrap_or_default() } else { fields };
        Ok(Self {
            node: name.map(|Text(name)| name).filter(|name| is_node_name(name)),
            generated_at,
            complete,
            sysroot: sysroot.map(|Text(sysroot)| sysroot),
            verdict,
            filesystems,
            stores: required(scan.stores, "stores")?,
            images: required(scan.images, "images")?,
            layers: required(scan.layers, "layers")?,
            containers: required(scan.containers, "containers")?,
            leaks: required(scan.leaks, "leaks")?,
            totals: required(scan.totals, "totals")?,
            scan_complete: required(scan.complete, "complete")?,
        })
    }

    #[must_use]
    pub fn origin(&self) -> (Option<&str>, Timestamp) {
        (self.node.as_deref(), self.generated_at)
    }
}

/// Returns true for a document of `report`, false for one of `scan`.
fn is_report(head: &Head<'_>) -> Result<bool, String> {
    match (head.schema_version, head.kind.as_ref().map(|kind| &*kind.0)) {
        (Some(SCHEMA_VERSION), Some("report")) => Ok(true),
        (Some(SCHEMA_VERSION), Some("scan")) => Ok(false),
        (Some(version), Some("scan" | "report")) => {
            Err(format!("its schema_version is {version}, and only {SCHEMA_VERSION} is known"))
        }
        (_, Some(kind)) => Err(format!("it is a document of kind {kind:?}, not of `scan` or `report`")),
        (_, None) => Err("it is not a document of layersweep".into()),
    }
}

fn required<T>(field: Option<T>, name: &str) -> Result<T, String> {
    field.ok_or_else(|| invalid(&format!("missing field `{name}`")))
}

fn invalid(why: &str) -> String {
    format!("it is not a valid document: {why}")
}

/// Returns true if a text may be the name of a node. Machines without a name share that of `localhost`.
pub fn is_node_name(text: &str) -> bool {
    /// Maximum length of a host name.
    const LONGEST: usize = 253;
    !text.is_empty() && text.len() <= LONGEST && !NAMELESS.contains(&text)
}
