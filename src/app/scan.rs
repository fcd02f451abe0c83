//! Scanning: what the stores hold, with what the database knows of it.

use std::sync::Arc;

use super::error::{Error, Exit};
use super::observer::{Audience, Observer};
use super::protect::labels_for;
use super::request::Request;
use super::scan_recording::ScanRecording;
use super::state::{Purpose, State, read_clocks};
use crate::config::Config;
use crate::disk::Progress;
use crate::history::ages::InventoryAges;
use crate::model::LabelsOf;
use crate::stores::{self, Scan};

/// A scan, and what is known of what it found.
#[derive(Debug)]
pub struct ScanResult {
    /// What the stores hold.
    pub scan: Scan,
    /// The ages of its images.
    pub ages: InventoryAges,
    /// The database that they come from.
    pub state: State,
}

impl ScanResult {
    /// Done, or done with lower bounds.
    pub fn exit(&self) -> Exit {
        if self.scan.is_complete() { Exit::Done } else { Exit::Incomplete }
    }
}

/// Scans, and records nothing.
///
/// # Errors
/// When there is no store, or one cannot be read at all.
pub fn scan(request: &Request, observer: &dyn Observer) -> Result<ScanResult, Error> {
    scan_with(request, observer, Purpose::Look, false, Also::default())
}

/// Scans, and records what was seen (never with a sysroot).
///
/// # Errors
/// As [`scan`].
pub fn scan_and_record(request: &Request, observer: &dyn Observer) -> Result<ScanResult, Error> {
    scan_with(request, observer, Purpose::Look, request.sysroot.is_none(), Also::default())
}

/// What to read besides.
#[derive(Default)]
pub(super) struct Also {
    /// Labels of images.
    pub(super) labels: LabelsOf,
    /// What a directory can be divided by.
    pub(super) trees: bool,
}

impl Also {
    /// The labels that the policy needs.
    pub(super) fn labels(config: &Config) -> Self {
        Self { labels: labels_for(&config.images.protect), trees: false }
    }
}

/// Scans for a purpose. `record`: also records it, unless a deletion follows and there is a database that
/// cannot be read: the deletion is refused then.
///
/// # Errors
/// As [`scan`].
pub(super) fn scan_with(
    request: &Request,
    observer: &dyn Observer,
    purpose: Purpose,
    record: bool,
    also: Also,
) -> Result<ScanResult, Error> {
    let began = read_clocks()?;
    if let Err(error) = request.io_priority.apply() {
        tracing::warn!("setting the I/O priority: {error}; continuing at normal priority");
    }
    let Also { labels, trees: keep_trees } = also;
    let asked = stores::ScanRequest { labels, keep_trees, ..request.stores()? };
    let progress = Arc::<Progress>::default();
    let shown = observer.measuring(&progress);
    // Neither needs the other, and of a large store both take long.
    let (opened, records) = rayon::join(|| State::open(request, purpose, began), || stores::read(&asked));
    let (mut state, findings) = opened?;
    let record = record && state.may_record();
    let asked = stores::ScanRequest { leaps: state.leaps.clone(), ..asked };
    let sizes = Some(std::mem::take(&mut state.sizes));
    let measured = records.and_then(|records| stores::measure(&asked, records, sizes, &progress));
    drop(shown);
    if let Err(stores::Error::NoneFound { findings, .. }) = &measured {
        observer.findings(Audience::Always, findings);
    }
    let measured = measured.map_err(Error::from);
    state.scan_ended()?;
    if let Err(error) = &measured
        && error.proves_no_store()
        && record
        && !request.names_stores
    {
        ScanRecording { request, state: &mut state }.save_none(observer);
    }
    let mut scan = measured?;
    scan.inventory.findings.extend(findings);
    stores::note_pulls(&mut scan, request.kubelet_root.as_deref());
    state.pin(&mut scan);
    if record {
        ScanRecording { request, state: &mut state }.save(&mut scan)?;
    }
    state.add_findings(&mut scan);
    // A scan from a timer is quiet, but not about what is wrong.
    let audience = if record { Audience::Always } else { Audience::Usual };
    observer.findings(audience, &scan.inventory.findings);
    let ages = state.ages(&scan);
    Ok(ScanResult { scan, ages, state })
}
