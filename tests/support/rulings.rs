//! Rulings on the images of a scan.

use jiff::SignedDuration;
use layersweep::model::rules::Ruling;
use layersweep::policy::rules::Judge;
use layersweep::policy::{Ages, Facts, Input, Policy};
use layersweep::stores::Scan;

/// Returns the ruling that keeps each image if every image is old and nothing is known but the disk.
pub fn rulings_of_old(scan: &Scan, policy: &Policy) -> Vec<Option<Ruling>> {
    let (inventory, now) = (&scan.inventory, scan.taken_at);
    let ages = Some(Ages::new(now - SignedDuration::from_hours(1000), None, 0));
    let facts = vec![Facts { ages, ..Facts::default() }; inventory.images.len()];
    let judge = Judge::new(Input {
        inventory,
        refs: &scan.refs,
        facts: &facts,
        full_filesystems: &[],
        policy,
        now,
        scanned: now,
    });
    (0..inventory.images.len()).map(|image_ix| judge.kept(image_ix.into())).collect()
}
