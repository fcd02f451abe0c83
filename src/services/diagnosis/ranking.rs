//! Ranks the causes of each filesystem: one list of deletions, with the usage after each of them.

use crate::model::space::BytesAndInodes;
use crate::model::text::display::two_decimals;
use crate::policy::thresholds::Counted;
use crate::services::diagnosis::summary::most_used;
use crate::services::diagnosis::{Cause, CauseGroup, Disk};

/// Sorts the causes by filesystem, the fullest first. On each filesystem, the group of least risk comes first
/// ([`CauseGroup`]); in each group, the largest.
/// Calculates the usage after each deletion and all before it, until the low threshold is reached.
pub fn rank(causes: &mut [Cause], disks: &[Disk]) {
    let fullness = |cause: &Cause| disks.get(cause.filesystem_ix.get()).map_or(-1.0, most_used);
    let counted = |cause: &Cause| disks.get(cause.filesystem_ix.get()).map_or(Counted::Bytes, Disk::scarce);
    causes.sort_by(|a, b| {
        let by_disk = fullness(b).total_cmp(&fullness(a)).then(a.filesystem_ix.cmp(&b.filesystem_ix));
        let gain = |cause: &Cause| cause.gain(counted(cause)).saturating_add(cause.keeps_bytes);
        let by_gain = gain(b).cmp(&gain(a)).then(b.bytes.cmp(&a.bytes));
        let by_name = a.kind.cmp(&b.kind).then_with(|| a.text.cmp(&b.text));
        let by_group = a.listed_group(counted(a)).cmp(&b.listed_group(counted(b)));
        by_disk.then(by_group).then(by_gain).then(by_name)
    });
    causes.iter_mut().for_each(|cause| cause.used_after_percent = None);
    for causes in causes.chunk_by_mut(|a, b| a.filesystem_ix == b.filesystem_ix) {
        if let Some(disk) = disks.get(causes[0].filesystem_ix.get()) {
            calculate(disk, causes);
        }
    }
}

/// Calculates the usage after the deletions, which are in order.
fn calculate(disk: &Disk, causes: &mut [Cause]) {
    let counted = disk.scarce();
    let Some(used) = disk.percent_of(counted) else { return };
    let low = disk.low(counted).filter(|low| *low < used);
    let mut freed = BytesAndInodes::default();
    for cause in causes.iter_mut().filter(|cause| cause.listed_group(counted) != CauseGroup::Kept) {
        let alone = BytesAndInodes { bytes: cause.frees_bytes, inodes: cause.frees_inodes };
        cause.reaches_low = is_reached(disk, counted, low, alone);
        if is_reached(disk, counted, low, freed) {
            continue;
        }
        freed.bytes = freed.bytes.saturating_add(alone.bytes);
        freed.inodes = freed.inodes.saturating_add(alone.inodes);
        cause.used_after_percent = disk.percent_after(counted, freed).map(two_decimals);
    }
}

/// Returns true if freeing this much reaches the low threshold; false if there is none.
fn is_reached(disk: &Disk, counted: Counted, low: Option<f64>, freed: BytesAndInodes) -> bool {
    low.zip(disk.percent_after(counted, freed)).is_some_and(|(low, used)| used <= low)
}
