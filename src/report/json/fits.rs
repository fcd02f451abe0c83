//! JSON document of `fits`.

use jiff::Timestamp;
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::app::fits::{Coming, Fit, Fits};
use crate::model::arrival::{Arrival, SizeSource};
use crate::model::rules::Rule;
use crate::model::text::display::two_decimals;
use crate::model::text::names::names;
use crate::model::{Finding, Plan};
use crate::policy::Thresholds;

/// Document of `layersweep fits`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FitsDoc {
    /// Common fields of all documents; the kind is `fits`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read, and the layers of all images are known.
    pub complete: bool,
    /// Answer without a deletion: `yes` if the upper end of the estimate fits below the thresholds, or if nothing
    /// arrives; `probably` if the estimate does, but not its upper end; `no` if the estimate does not. If `complete` is
    /// false, images of unknown size may not fit.
    pub fits: Fit,
    /// Store that the images would be pulled into.
    pub store: String,
    /// Mount point of its filesystem.
    pub filesystem: String,
    pub images: Vec<ComingDoc>,
    /// Compressed bytes to download, of all images together.
    pub download_bytes: u64,
    /// Estimate of the bytes on the disk, of all images together.
    pub disk_bytes: u64,
    /// Lower end of its spread.
    pub disk_bytes_low: u64,
    /// Upper end of its spread.
    pub disk_bytes_high: u64,
    /// Sources of the estimate, the most certain first; those of no layer are left out.
    pub estimated_from: Vec<EstimatedFromDoc>,
    /// Percentage of the filesystem that is used now.
    pub used_percent: f64,
    /// Percentage that is used with the images; above 100 if there is no room at all.
    pub used_with_images_percent: f64,
    /// The same with the lower end of the estimate.
    pub used_with_images_percent_low: f64,
    /// The same with the upper end of the estimate.
    pub used_with_images_percent_high: f64,
    /// Percentage at which `gc` starts; null if that target is off.
    pub high_percent: Option<u8>,
    /// Percentage at which `gc` ends, and to which the command makes room; null if that target is off.
    pub low_percent: Option<u8>,
    /// Command that makes room on this filesystem; null if they surely fit, if it cannot make enough, if it would
    /// delete images that were never pulled, or if it would have to run on another node (`--sysroot`).
    pub command: Option<String>,
    /// Images of the request that are here, and that this command deletes unless they are pinned first: now, or once
    /// they are older than the minimum age.
    pub to_pin: Vec<String>,
    /// Images that can be pulled again and that it deletes then, in this order; without a command, those whose deletion
    /// would be safe.
    pub deletes: Vec<String>,
    /// Number of the first of these deletions after which the answer is `fits_after_gc`; null if that is `no`, or if none
    /// are needed.
    pub deletes_needed: Option<usize>,
    /// Images that were built or loaded here and never pulled, and that a run which makes room would delete: then there
    /// is no command.
    pub never_pulled: Vec<String>,
    /// Bytes that these deletions free on the filesystem.
    pub freed_bytes: u64,
    /// Percentage that is used with the images after these deletions; null if none are needed.
    pub used_after_gc_percent: Option<f64>,
    /// Answer after these deletions, as in `fits`; null if none are needed.
    pub fits_after_gc: Option<Fit>,
    /// Images that are kept, by rule, most first.
    pub kept: Vec<KeptByRuleDoc>,
    /// Reason why `layersweep gc` would be refused now; null if it would not.
    pub gc_refused: Option<String>,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

names! {
    /// State of an image that may come.
    ComingState {
        /// The store has all of its layers.
        Present = "present",
        Arrives = "arrives",
        /// Its layers are unknown.
        Unknown = "unknown",
    }
}

/// Image that may come.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComingDoc {
    /// Reference, or the file of its manifest.
    pub name: String,
    /// `present`, `arrives` or `unknown`.
    pub state: ComingState,
    /// Number of layers; null if unknown.
    pub layers: Option<usize>,
    /// Layers that neither the store nor an image before it has; null if unknown.
    pub new_layers: Option<usize>,
    /// Compressed bytes to download; null if unknown.
    pub download_bytes: Option<u64>,
    /// Estimate of the bytes on the disk; null if unknown.
    pub disk_bytes: Option<u64>,
    /// Lower end of its spread.
    pub disk_bytes_low: Option<u64>,
    /// Upper end of its spread.
    pub disk_bytes_high: Option<u64>,
    /// It is an index of manifests, which has no sizes.
    pub is_index: bool,
    /// Digest of the index's manifest for this node's platform; null without one.
    pub platform_digest: Option<String>,
    /// An argument without a registry and of unknown size, and no file has this name: perhaps it is misspelt.
    pub no_such_file: bool,
}

/// Layers whose sizes on the disk are estimated from one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EstimatedFromDoc {
    /// `layer` (the same layer is on this node), `repository` (layers of its repository on this node), `manifest` (it
    /// has the length of the tar), `node` (the mean of this node's layers) or `usual` (the usual ratio).
    pub source: SizeSource,
    /// Compressed bytes of these layers.
    pub compressed_bytes: u64,
}

/// Images that a rule keeps.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptByRuleDoc {
    pub rule: Rule,
    /// Number of images.
    pub images: usize,
    /// Reason for the first of them; for `in-use`, the reason for all of them.
    pub detail: String,
    /// Time at which the rule keeps none of them any more; null if that does not depend on time.
    pub until: Option<Timestamp>,
}

pub fn fits(found: &Fits, thresholds: Option<Thresholds>) -> FitsDoc {
    let scan = &found.result.scan;
    let room = found.room.as_ref();
    let steps = room.iter().flat_map(|room| &room.plan.steps);
    FitsDoc {
        header: Header::new(DocumentKind::Fits, scan.taken_at),
        complete: scan.is_complete() && found.unknown() == 0,
        fits: found.fit,
        store: super::build::path(&scan.inventory[found.store].root),
        filesystem: super::build::path(&scan.inventory[found.filesystem()].mount),
        images: found.images.iter().map(|(name, coming)| coming_doc(name, coming)).collect(),
        download_bytes: found.total.download_bytes,
        disk_bytes: found.total.disk.middle,
        disk_bytes_low: found.total.disk.low,
        disk_bytes_high: found.total.disk.high,
        estimated_from: estimated_from(&found.total),
        used_percent: two_decimals(found.now.used_percent()),
        used_with_images_percent: two_decimals(found.then.middle.needed_percent()),
        used_with_images_percent_low: two_decimals(found.then.low.needed_percent()),
        used_with_images_percent_high: two_decimals(found.then.high.needed_percent()),
        high_percent: thresholds.map(|used| used.high),
        low_percent: thresholds.map(|used| used.low),
        command: room.and_then(|room| room.command.clone()),
        to_pin: room.map(|room| room.to_pin.clone()).unwrap_or_default(),
        deletes: steps.map(|step| step.target.title().to_owned()).collect(),
        deletes_needed: room.and_then(|room| room.enough),
        never_pulled: room.map(|room| room.never_pulled.clone()).unwrap_or_default(),
        freed_bytes: room.map_or(0, |room| room.freed_bytes),
        used_after_gc_percent: room.map(|room| two_decimals(room.then.middle.needed_percent())),
        fits_after_gc: room.map(|room| room.fit),
        kept: room.map(|room| kept_by_rule(&room.plan)).unwrap_or_default(),
        gc_refused: found.gc_refused.clone(),
        warnings: scan.inventory.findings.clone(),
    }
}

fn estimated_from(total: &Arrival) -> Vec<EstimatedFromDoc> {
    let sources = SizeSource::ALL.iter().zip(total.sources);
    let sources = sources.filter(|(_, compressed_bytes)| *compressed_bytes > 0);
    sources.map(|(source, compressed_bytes)| EstimatedFromDoc { source: *source, compressed_bytes }).collect()
}

fn kept_by_rule(plan: &Plan) -> Vec<KeptByRuleDoc> {
    let mut rules: Vec<KeptByRuleDoc> = Vec::new();
    for kept in plan.kept.iter().filter(|kept| kept.target.is_image()) {
        let is_same = |known: &KeptByRuleDoc| {
            known.rule == kept.rule && (kept.rule != Rule::InUse || known.detail == kept.detail)
        };
        match rules.iter_mut().find(|known| is_same(known)) {
            Some(known) => {
                known.images += 1;
                known.until = known.until.max(kept.until);
            }
            None => rules.push(KeptByRuleDoc {
                rule: kept.rule,
                images: 1,
                detail: kept.detail.clone(),
                until: kept.until,
            }),
        }
    }
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.images));
    rules
}

fn coming_doc(name: &str, coming: &Coming) -> ComingDoc {
    let empty = ComingDoc {
        name: name.to_owned(),
        state: ComingState::Unknown,
        layers: None,
        new_layers: None,
        download_bytes: None,
        disk_bytes: None,
        disk_bytes_low: None,
        disk_bytes_high: None,
        is_index: false,
        platform_digest: None,
        no_such_file: false,
    };
    match coming {
        Coming::Unknown { no_such_file } => ComingDoc { no_such_file: *no_such_file, ..empty },
        Coming::Index(digest) => ComingDoc { is_index: true, platform_digest: digest.clone(), ..empty },
        Coming::Here => ComingDoc {
            state: ComingState::Present,
            download_bytes: Some(0),
            disk_bytes: Some(0),
            disk_bytes_low: Some(0),
            disk_bytes_high: Some(0),
            ..empty
        },
        Coming::Arrives(arrival) => ComingDoc {
            state: if arrival.new_layers == 0 { ComingState::Present } else { ComingState::Arrives },
            layers: Some(arrival.layers),
            new_layers: Some(arrival.new_layers),
            download_bytes: Some(arrival.download_bytes),
            disk_bytes: Some(arrival.disk.middle),
            disk_bytes_low: Some(arrival.disk.low),
            disk_bytes_high: Some(arrival.disk.high),
            ..empty
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::deletion::plan::{Kept, Target, TargetKind};
    use crate::model::rules::Ruling;

    /// Images that different containers use have a reason of their own; ages are summed up.
    #[test]
    fn each_reason_is_of_its_own_images() {
        let target =
            || Target { kind: TargetKind::Image, store: None, id: "aa".into(), names: vec![], leak: None };
        let kept = |rule, detail: &str| Kept::new(target(), Ruling::keeps(rule, detail));
        let young = |second, detail| Kept {
            until: Timestamp::from_second(second).ok(),
            ..kept(Rule::MinAge, detail)
        };
        let kept = vec![
            kept(Rule::InUse, "used by migrate"),
            kept(Rule::InUse, "used by db"),
            kept(Rule::InUse, "used by db"),
            young(60, "1 minute old"),
            young(120, "2 minutes old"),
        ];
        let found = kept_by_rule(&Plan { kept, ..Plan::default() });
        let found: Vec<_> = found
            .iter()
            .map(|rule| (rule.images, rule.detail.as_str(), rule.until.map(Timestamp::as_second)))
            .collect();
        assert_eq!(
            found,
            [(2, "used by db", None), (2, "1 minute old", Some(120)), (1, "used by migrate", None)]
        );
    }
}
