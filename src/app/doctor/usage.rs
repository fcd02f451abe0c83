//! How full the filesystems of the stores are, and what fills them that no deletion of images frees.

use super::examination::Examination;
use crate::app::outside;
use crate::disk::Progress;
use crate::model::display::bytes;
use crate::stores::Scan;

/// From this share on a filesystem without thresholds of ours counts as full: there the kubelet begins to
/// delete images.
const FULL_PERCENT: f64 = 85.0;

impl Examination<'_> {
    pub(super) fn usage(&mut self, scan: &Scan) {
        const NAME: &str = "disk-usage";
        if outside::part_of_a_filesystem(self.request, scan).is_some() {
            return; // the figures are those of the disk that the directory is on
        }
        let high = self.config.images.targets.used.map_or(FULL_PERCENT, |used| f64::from(used.high));
        // Nothing of the stores was measured, and neither is a whole disk.
        let other_users =
            outside::measure_quietly(self.request, self.config, scan, Some(0), &Progress::default());
        for (at, filesystem) in scan.inventory.filesystems.iter().enumerate() {
            let object = self.shown(&filesystem.mount);
            let Some(percent) = filesystem.used_percent() else {
                self.note(NAME, object, "the filesystem's numbers contradict each other");
                continue;
            };
            let parts = outside::parts(scan, &other_users, at.into());
            let found: u64 = parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add);
            let largest = match outside::largest(&parts) {
                largest if largest.is_empty() => String::new(),
                largest => format!(
                    "; at least {} is not in any store (largest: {largest}), and no deletion of images frees it",
                    bytes(found)
                ),
            };
            let message =
                format!("{percent:.1}% used, {} available{largest}", bytes(filesystem.available_bytes));
            match percent >= high {
                true => self.warning(
                    NAME,
                    object,
                    message,
                    "see `layersweep usage` for all that uses it, and `layersweep gc --dry-run` for what can be \
                     deleted; what is in no store is deleted by hand",
                ),
                false => self.ok(NAME, object, message),
            }
        }
    }
}
