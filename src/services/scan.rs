//! Scans: the content of the stores, with the ages that the database knows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Config;
use crate::disk::Progress;
use crate::history::ages::InventoryAges;
use crate::model::documents::reader::is_node_name;
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::policy::DeletionOrder;
use crate::services::database;
use crate::services::error::{Error, Exit};
use crate::services::observer::{Audience, Observer};
use crate::services::request::Request;
use crate::services::scan_recording::ScanRecording;
use crate::services::state::{Purpose, State, read_clocks};
use crate::stores::{self, Measure, Scan};
use crate::sys::sysroot::Sysroot;
use crate::sys::users::calling_uid;

#[derive(Debug)]
pub struct ScanResult {
    pub scan: Scan,
    pub node: Option<String>,
    pub ages: InventoryAges,
    pub state: State,
}

impl ScanResult {
    /// Returns the exit code of a command that only shows the scan.
    pub fn exit(&self) -> Exit {
        if self.scan.is_complete() { Exit::Done } else { Exit::Incomplete }
    }
}

/// Scans without recording.
///
/// # Errors
/// When there is no store, or one cannot be read at all.
pub fn scan(request: &Request, observer: &dyn Observer) -> Result<ScanResult, Error> {
    scan_with(request, observer, Purpose::Look, false, ScanOptions::default())
}

/// Scans and records the result, except with a sysroot.
///
/// # Errors
/// As [`scan`].
pub fn scan_and_record(request: &Request, observer: &dyn Observer) -> Result<ScanResult, Error> {
    scan_with(request, observer, Purpose::Look, request.sysroot.is_none(), ScanOptions::default())
}

/// Records which images containers use now, except with a sysroot. Nothing is measured, so this takes milliseconds, and
/// the history of runs does not grow.
///
/// # Errors
/// As [`scan`].
pub fn record_uses(request: &Request, observer: &dyn Observer) -> Result<Exit, Error> {
    let options = ScanOptions { measure: Measure::RecordsAndMounts, ..ScanOptions::default() };
    scan_with(request, observer, Purpose::Look, request.sysroot.is_none(), options)
        .map(|result| result.exit())
}

#[derive(Default)]
pub(crate) struct ScanOptions {
    pub(crate) labels: bool,
    /// Trees of the measured directories, to divide the bytes of a directory by owner.
    pub(crate) trees: bool,
    pub(crate) blobs: bool,
    pub(crate) measure: Measure,
}

impl ScanOptions {
    /// Returns the options of a scan that a plan is made of: labels and manifests are read if the policy needs them.
    pub(crate) fn for_policy(config: &Config) -> Self {
        let policy = &config.images;
        Self {
            labels: !policy.protect.labels.is_empty(),
            blobs: policy.order == DeletionOrder::Cheapest,
            ..Self::default()
        }
    }

    /// Also reads the manifests, if `blobs` is true.
    pub(crate) fn with_blobs(self, blobs: bool) -> Self {
        Self { blobs: self.blobs || blobs, ..self }
    }
}

/// Scans for a purpose. `record`: also records the scan, unless a deletion follows and the database cannot be read:
/// that deletion is refused.
///
/// # Errors
/// As [`scan`].
pub(crate) fn scan_with(
    request: &Request,
    observer: &dyn Observer,
    purpose: Purpose,
    record: bool,
    options: ScanOptions,
) -> Result<ScanResult, Error> {
    let began = read_clocks()?;
    if let Err(error) = request.io_priority.apply() {
        tracing::warn!("setting the I/O priority: {error}; continuing at normal priority");
    }
    let ScanOptions { labels, trees: keep_trees, blobs, measure } = options;
    let measures = measure == Measure::Everything;
    let places = if measures { other_places(request) } else { Vec::new() };
    let scan_request =
        stores::ScanRequest { labels, keep_trees, blobs, measure, places, ..request.stores()? };
    let progress = Arc::<Progress>::default();
    let shown = observer.measuring(&progress);
    // Both take long for a large store, and they are independent.
    let (opened, records) =
        rayon::join(|| State::open(request, purpose, began), || stores::read(&scan_request));
    let (mut state, findings) = opened?;
    let record = record && state.may_record();
    let scan_request = stores::ScanRequest { leaps: state.leaps.clone(), ..scan_request };
    let sizes = measures.then(|| std::mem::take(&mut state.sizes));
    let measured = records.and_then(|records| stores::measure(&scan_request, records, sizes, &progress));
    drop(shown);
    if let Err(stores::ScanError::NoneFound { findings, .. }) = &measured {
        observer.findings(Audience::Always, findings);
    }
    let measured = measured.map_err(Error::from);
    state.scan_ended()?;
    if let Err(error) = &measured
        && error.proves_no_store()
        && record
        && measures
        && !request.names_stores
    {
        ScanRecording { request, state: &mut state }.save_none(observer);
    }
    let mut scan = measured?;
    scan.inventory.findings.extend(findings);
    state.add_missing_stores(&mut scan);
    stores::note_pulls(&mut scan, request.kubelet.root_dir.as_deref());
    state.pin(&mut scan);
    if record {
        ScanRecording { request, state: &mut state }.save(&mut scan)?;
    }
    state.add_findings(&mut scan);
    // A scan from a timer runs with --quiet, but problems are reported.
    let audience = if record && measures { Audience::Always } else { Audience::Usual };
    observer.findings(audience, &scan.inventory.findings);
    let ages = state.ages(&scan);
    Ok(ScanResult { node: node_name(&scan.sysroot), scan, ages, state })
}

/// Returns the directories besides the stores whose filesystems matter to a node: those of the kubelet, the pods' logs,
/// and layersweep's records in their usual place. None if the user names stores, and for users who cannot read these directories.
fn other_places(request: &Request) -> Vec<PathBuf> {
    let sysroot = request.root();
    if request.names_stores || !(sysroot.is_foreign() || calling_uid() == 0) {
        return Vec::new();
    }
    let places = KubeletPlaces::find(&request.kubelet, &Kubelet::read_now(&sysroot));
    let kubelet = places.data_directories().chain(places.log_directories());
    let records = request.state_dir.is_none().then(|| database::state_directory(request).dir);
    let records = records.map(|directory| sysroot.display(&directory));
    kubelet.map(Path::to_path_buf).chain(records).collect()
}

/// Environment variable with the name of the node, for a process that cannot know it: that in a pod.
const NODE_NAME: &str = "LAYERSWEEP_NODE_NAME";

/// Returns the name of a node: from the environment, or of the kernel, as the kubelet takes it, or else from
/// `/etc/hostname`. A disk that is mounted elsewhere has only the file.
fn node_name(sysroot: &Sysroot) -> Option<String> {
    /// Maximum size of the file.
    const FILE_BYTES: u64 = 4096;
    let named = std::env::var(NODE_NAME).ok().filter(|name| !sysroot.is_foreign() && is_node_name(name));
    if named.is_some() {
        return named;
    }
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    files.into_iter().skip(usize::from(sysroot.is_foreign())).find_map(|file| {
        let text = sysroot.read(Path::new(file), FILE_BYTES).ok()?;
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
        is_node_name(line).then(|| line.to_owned())
    })
}
