//! Ranks the causes of each filesystem: one list of deletions, with the usage after each of them.

use crate::app::diagnosis::summary::most_used;
use crate::app::diagnosis::{Action, Cause, Disk};
use crate::model::display::two_decimals;
use crate::model::space::BytesAndInodes;
use crate::policy::thresholds::Counted;

/// Sorts the causes by filesystem, the fullest first. On each filesystem, deletions of layersweep come first, then
/// those that only a person can make, then data that is not deleted now; in each group, the largest comes first.
/// Calculates the usage after each deletion and all before it, until the low threshold is reached.
pub fn rank(causes: &mut [Cause], disks: &[Disk]) {
    let fullness = |cause: &Cause| disks.get(cause.filesystem_ix.get()).map_or(-1.0, most_used);
    let counted = |cause: &Cause| disks.get(cause.filesystem_ix.get()).map_or(Counted::Bytes, Disk::scarce);
    causes.sort_by(|a, b| {
        let by_disk = fullness(b).total_cmp(&fullness(a)).then(a.filesystem_ix.cmp(&b.filesystem_ix));
        let by_gain = b.gain(counted(b)).cmp(&a.gain(counted(a))).then(b.bytes.cmp(&a.bytes));
        let by_name = a.kind.cmp(&b.kind).then_with(|| a.text.cmp(&b.text));
        by_disk.then(group(a, counted(a)).cmp(&group(b, counted(b)))).then(by_gain).then(by_name)
    });
    causes.iter_mut().for_each(|cause| cause.used_after_percent = None);
    for causes in causes.chunk_by_mut(|a, b| a.filesystem_ix == b.filesystem_ix) {
        if let Some(disk) = disks.get(causes[0].filesystem_ix.get()) {
            calculate(disk, causes);
        }
    }
}

fn group(cause: &Cause, counted: Counted) -> u8 {
    match cause.taken_by {
        _ if cause.gain(counted) == 0 => 2,
        Action::Layersweep => 0,
        Action::Operator => 1,
        Action::Nobody => 2,
    }
}

/// Calculates the usage after the deletions, which are in order.
fn calculate(disk: &Disk, causes: &mut [Cause]) {
    let counted = disk.scarce();
    let Some(used) = disk.percent_of(counted) else { return };
    let low = disk.low(counted).filter(|low| *low < used);
    let mut freed = BytesAndInodes::default();
    for cause in causes.iter_mut().filter(|cause| group(cause, counted) < 2) {
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
