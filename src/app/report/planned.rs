//! Bytes that `gc` and `sweep --delete` would free now under the configured policy. Nothing is deleted here.

use crate::config::Config;
use crate::model::Plan;
use crate::model::deletion::plan::{Cause, PassEnd, freed_on};
use crate::model::rules::Rule;
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, Inventory, StoreIx};
use crate::policy::leaks::{self, LeakRequest};
use crate::services::diagnosis::Planned;
use crate::services::error::Error;
use crate::services::observer::Observer;
use crate::services::policy_context;
use crate::services::reach::Reach;
use crate::services::request::Request;
use crate::services::scan::ScanResult;
use crate::services::store_editing;

#[derive(Debug)]
pub(super) struct Plans {
    images: Plan,
    pub(super) leaks: leaks::LeakPlan,
    /// Reason why a run could not begin now.
    refused: Option<String>,
    command: &'static str,
}

pub(super) fn plans(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scanned: &mut ScanResult,
) -> Result<Plans, Error> {
    let reach = Reach::find(request, config, scanned);
    let scan = &scanned.scan;
    let images = policy_context::plan(request, observer, config, (scanned, &reach.facts))?;
    let editors = store_editing::editors(request, scan);
    let leaks = LeakRequest { min_age: config.leaks.min_age, ..LeakRequest::default() };
    let leaks = leaks::plan(&scan.inventory, &scan.refs, &leaks, scan.taken_at, &|store: StoreIx| {
        let store = &scan.inventory[store];
        if scan.sysroot.is_foreign() {
            // The plan is for the node when it runs again: its stores can be edited then.
            store.read_only.then(|| "it is read only".to_owned())
        } else {
            editors.store(store).err().map(str::to_owned)
        }
    });
    let refused = if scanned.state.is_unreadable {
        Some("its records cannot be read".to_owned())
    } else {
        reach.refused()
    };
    Ok(Plans { images, leaks, refused, command: reach.command() })
}

impl Plans {
    /// Returns the bytes that both plans free on a filesystem.
    pub(super) fn on(&self, scanned: &ScanResult, filesystem_ix: FilesystemIx) -> Planned {
        let gc = match self.refused {
            Some(_) => BytesAndInodes::default(),
            None => freed_on(filesystem_ix, self.images.steps.iter().flat_map(|step| &step.gains)),
        };
        let sweep = freed_on(filesystem_ix, &self.leaks.gains(&scanned.scan.inventory));
        let judged = self.images.filesystems.iter().find(|plan| plan.filesystem == filesystem_ix);
        let no_space = self.images.problems.iter().find(|problem| problem.no_space);
        let none = match judged.map(|plan| plan.end) {
            _ if self.refused.is_some() => self.refused.clone().unwrap_or_default(),
            Some(PassEnd::NotNeeded) | None => "the disk is below its thresholds".to_owned(),
            Some(PassEnd::Invalid) => "the disk's figures or its thresholds are invalid".to_owned(),
            Some(PassEnd::Open | PassEnd::Reached | PassEnd::NotReached) => {
                let no_space = no_space.map(|problem| problem.message.as_str());
                let explain = |rule| self.explain_kept(&scanned.scan.inventory, filesystem_ix, rule);
                why_nothing(explain(Some(Rule::MinAge)), no_space, explain(None))
            }
        };
        let steps = self.images.steps.iter();
        let here: Vec<_> =
            steps.filter(|step| step.gains.iter().any(|gain| gain.filesystem == filesystem_ix)).collect();
        let is_by_age = !here.is_empty() && here.iter().all(|step| step.cause == Cause::Age);
        let before = judged.and_then(|plan| plan.before.as_ref()?.as_ref().ok());
        let owed_bytes = before.map_or(0, |space| space.owed_bytes);
        Planned {
            command: self.command,
            gc,
            none,
            by_age: is_by_age.then_some(here.len()),
            sweep,
            owed_bytes,
        }
    }

    /// Returns the command that explains the first image of a filesystem that is kept; if `rule` is given, that is kept by
    /// this rule.
    fn explain_kept(
        &self,
        inventory: &Inventory,
        filesystem_ix: FilesystemIx,
        rule: Option<Rule>,
    ) -> Option<String> {
        let mut kept = self.images.kept.iter().filter(|kept| {
            let store = kept.target.store.as_ref().and_then(|store| inventory.find_store(store));
            store.is_some_and(|store_ix| inventory[store_ix].filesystem == filesystem_ix)
                && rule.is_none_or(|rule| kept.rule == rule)
        });
        kept.next().map(|kept| format!("`{}`", self.images.explain_command(&kept.target)))
    }
}

/// Returns the reason why nothing can be deleted, although space is short. `young`, `kept`: the commands that explain an
/// image that is too young, and any image that is kept. `no_space`: no image has enough bytes of its own to begin.
fn why_nothing(young: Option<String>, no_space: Option<&str>, kept: Option<String>) -> String {
    match (young, no_space, kept) {
        // An image that is old enough later may have enough.
        (Some(command), ..) => format!("images are too young (min-age); {command} says for how long"),
        (None, Some(message), _) => format!("{message}; free that by hand first"),
        (None, None, Some(command)) => format!("all images are protected, as {command} shows"),
        (None, None, None) => "there is no image".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::deletion::plan::{Kept, Target, TargetKind};
    use crate::model::rules::Ruling;
    use crate::model::{Store, StoreId, StoreKind, samples};

    #[test]
    fn kept_image_of_this_disk_is_explained() {
        let store = |kind, root: &str, filesystem: usize| Store {
            kind,
            root: root.into(),
            filesystem: filesystem.into(),
            ..samples::store()
        };
        let stores = vec![
            store(StoreKind::ContainersStorage, "/graph", 0),
            store(StoreKind::Containerd, "/containerd", 1),
        ];
        let kept = stores.iter().map(|store| {
            let (kind, store) = (TargetKind::Image, Some(StoreId::of(store)));
            let target = Target { kind, store, id: "aa".into(), names: vec![], leak: None };
            Kept::new(target, Ruling::keeps(Rule::MinAge, ""))
        });
        let images = Plan { kept: kept.collect(), ..Plan::default() };
        let plans = Plans { images, leaks: leaks::LeakPlan::default(), refused: None, command: "" };
        let inventory = Inventory { stores, ..Inventory::default() };
        for (filesystem, flag) in [(0, "--graphroot /graph"), (1, "--containerd-root /containerd")] {
            let shown = plans.explain_kept(&inventory, FilesystemIx::from(filesystem), Some(Rule::MinAge));
            assert_eq!(shown, Some(format!("`layersweep explain aa {flag}`")));
        }
    }

    #[test]
    fn young_images_are_named_before_missing_room() {
        let explain = || Some("`layersweep explain aa`".to_owned());
        let no_space = Some("no single image frees 171.1 KiB");
        for (young, no_space, kept, expected) in [
            (explain(), no_space, explain(), "too young (min-age); `layersweep explain aa` says"),
            (None, no_space, explain(), "frees 171.1 KiB; free that by hand first"),
            (None, None, explain(), "all images are protected"),
            (None, None, None, "there is no image"),
        ] {
            assert!(why_nothing(young, no_space, kept).contains(expected), "{expected}");
        }
    }
}
