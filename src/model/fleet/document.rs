//! Fields of the documents of `scan` and `report` that the sums over many nodes need.
//!
//! All other fields are skipped without being stored. Texts are borrowed from the document, unless they contain an
//! escape.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use super::super::SCHEMA_VERSION;
use super::super::urgency::Urgency;

/// Text in a document.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Document of one node.
#[derive(Debug)]
pub struct NodeDocument<'a> {
    /// Name of the node, if the document has one.
    pub(super) node: Option<Cow<'a, str>>,
    pub(super) generated_at: Timestamp,
    pub(super) complete: bool,
    pub(super) verdict: Option<Verdict<'a>>,
    pub(super) filesystems: Vec<DocumentFilesystem<'a>>,
    pub(super) stores: Vec<DocumentStore<'a>>,
    pub(super) images: Vec<DocumentImage<'a>>,
    pub(super) leaks: Vec<DocumentLeak<'a>>,
    pub(super) totals: DocumentTotals,
}

/// Fields of a document of any kind.
#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct Fields<'a> {
    schema_version: Option<u32>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    generated_at: Option<Timestamp>,
    /// Name of the node in a document of `scan`.
    #[serde(borrow)]
    node: Option<Text<'a>>,
    /// Name of the node in a document of `report`.
    #[serde(borrow)]
    host: Option<Text<'a>>,
    complete: Option<bool>,
    #[serde(borrow)]
    verdict: Option<Verdict<'a>>,
    #[serde(borrow)]
    filesystems: Option<Vec<DocumentFilesystem<'a>>>,
    /// Content of the stores in a document of `report`. In a document of `scan`, the cost of the scan, which has none
    /// of these fields.
    #[serde(borrow)]
    scan: Content<'a>,
    #[serde(borrow)]
    stores: Option<Vec<DocumentStore<'a>>>,
    #[serde(borrow)]
    images: Option<Vec<DocumentImage<'a>>>,
    #[serde(borrow)]
    leaks: Option<Vec<DocumentLeak<'a>>>,
    totals: Option<DocumentTotals>,
}

/// Content of all stores of a node.
#[derive(Default, Deserialize)]
#[serde(default, expecting = "an object")]
struct Content<'a> {
    #[serde(borrow)]
    stores: Option<Vec<DocumentStore<'a>>>,
    #[serde(borrow)]
    images: Option<Vec<DocumentImage<'a>>>,
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
pub(super) struct Verdict<'a> {
    pub(super) urgency: Urgency,
    #[serde(borrow)]
    pub(super) headline: Text<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DocumentFilesystem<'a> {
    #[serde(borrow)]
    pub(super) mount: Text<'a>,
    pub(super) capacity_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) available_bytes: u64,
    pub(super) used_percent: Option<f64>,
    pub(super) inodes: u64,
    pub(super) inodes_free: u64,
    /// Thresholds; only in a document of `report`.
    #[serde(default, borrow)]
    pub(super) thresholds: Vec<Mark<'a>>,
    /// Forecast; only in a document of `report`.
    #[serde(default)]
    pub(super) forecast: Option<DocumentForecast>,
}

/// Name of the low threshold of `gc` in a document.
pub const GC_LOW: &str = "gc low";

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Mark<'a> {
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    pub(super) percent: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DocumentForecast {
    pub(super) bytes_per_hour: u64,
    /// Seconds from the time of the document.
    pub(super) full_in_seconds: i64,
    /// Period of the readings from which the rate was computed.
    #[serde(default)]
    pub(super) window_seconds: i64,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DocumentStore<'a> {
    #[serde(borrow)]
    pub(super) filesystem: Text<'a>,
    pub(super) reclaimable_bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DocumentImage<'a> {
    #[serde(borrow)]
    pub(super) id: Text<'a>,
    #[serde(borrow)]
    pub(super) names: Vec<Text<'a>>,
    pub(super) in_use: bool,
    pub(super) pinned: bool,
    pub(super) total_bytes: u64,
    pub(super) exclusive_bytes: u64,
    pub(super) frees_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DocumentLeak<'a> {
    #[serde(borrow)]
    pub(super) class: Text<'a>,
    #[serde(borrow)]
    pub(super) verdict: Text<'a>,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DocumentTotals {
    pub(super) images: u64,
    pub(super) images_unused: u64,
    pub(super) containers: u64,
    pub(super) leaks: u64,
    pub(super) bytes: u64,
    pub(super) reclaimable_bytes: u64,
}

/// Names of a machine before it has one.
const NAMELESS: [&str; 2] = ["localhost", "localhost.localdomain"];

impl<'a> NodeDocument<'a> {
    /// Reads the document of one node.
    ///
    /// # Errors
    /// Describes in words why the text is not a document of `scan` or `report`.
    pub fn read(text: &'a [u8]) -> Result<Self, String> {
        let fields = match serde_json::from_slice::<Fields<'a>>(text) {
            Ok(fields) => fields,
            // Another kind, or a later version, may have other data in a field of the same name.
            Err(error) => {
                let head = serde_json::from_slice::<Head<'_>>(text);
                let head = head.map_err(|error| match error.is_data() {
                    true => "it is not a document of layersweep".to_owned(),
                    false => format!("it is not a JSON document: {error}"),
                })?;
                is_report(&head)?;
                return Err(invalid(&error.to_string()));
            }
        };
        let is_report = is_report(&Head { schema_version: fields.schema_version, kind: fields.kind })?;
        let content = match is_report {
            true => fields.scan,
            false => Content {
                stores: fields.stores,
                images: fields.images,
                leaks: fields.leaks,
                totals: fields.totals,
            },
        };
        let name = if is_report { fields.host } else { fields.node };
        Ok(Self {
            node: name.map(|Text(name)| name).filter(|name| is_name(name)),
            generated_at: required(fields.generated_at, "generated_at")?,
            complete: required(fields.complete, "complete")?,
            verdict: fields.verdict,
            filesystems: required(fields.filesystems, "filesystems")?,
            stores: required(content.stores, "stores")?,
            images: required(content.images, "images")?,
            leaks: required(content.leaks, "leaks")?,
            totals: required(content.totals, "totals")?,
        })
    }

    /// Returns the name of the node, if the document has one, and the time of the document.
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
pub fn is_name(text: &str) -> bool {
    /// Maximum length of a host name.
    const LONGEST: usize = 253;
    !text.is_empty() && text.len() <= LONGEST && !NAMELESS.contains(&text)
}
