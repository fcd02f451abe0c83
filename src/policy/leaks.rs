//! Plan of the leaks that are deleted, and their order. Pure.
//!
//! Leaks that can be deleted without writing a record file are first, the largest at the top: on a full disk
//! nothing else is possible. Layers with a record follow, each before its parent.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::deletion::plan::{Action, Cause, Gain, Step, Target, freed_on, sum};
use crate::model::refs::{Refs, Root};
use crate::model::text::display::span;
use crate::model::{
    Inventory, Leak, LeakClass, LeakIx, NodeIx, OriginKind, Recipe, Size, StoreIx, Verdict, is_old_enough,
};
use crate::policy::input::FullFilesystem;

#[derive(Clone, Debug, Default)]
pub struct LeakRequest {
    /// Classes to list; empty for all.
    pub classes: Vec<LeakClass>,
    pub min_age: SignedDuration,
    pub repair: Vec<LeakClass>,
}

impl LeakRequest {
    fn lists(&self, class: LeakClass) -> bool {
        self.classes.is_empty() || self.classes.contains(&class) || self.repair.contains(&class)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Delete(Recipe),
    Repair,
    Stay(KeepReason),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// Its verdict: it may be work in progress, or a person has to check it.
    Verdict,
    /// It could be repaired, but that was not requested.
    NotRequested,
    /// layersweep has no repair for it.
    ByHand,
    /// It is too young; its age, if known.
    Young(Option<SignedDuration>),
    Needed(String),
    /// layersweep may not change its store, for this reason.
    Store(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakDecision {
    pub leak: LeakIx,
    pub decision: Decision,
    /// Size that its deletion is expected to free at its turn; 0 if it is kept.
    pub gain: Size,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakPlan {
    /// Leaks of the requested classes, in the order of the inventory.
    pub entries: Vec<LeakDecision>,
    /// Positions in `entries`: the leaks to delete in their order, then those to repair.
    pub order: Vec<usize>,
}

impl LeakDecision {
    fn gain(&self, inventory: &Inventory) -> Gain {
        let leak = &inventory[self.leak];
        let held = leak.holds.first().map(|node| inventory[*node].filesystem);
        let filesystem = held.unwrap_or(inventory[leak.store].filesystem);
        Gain { filesystem, size: self.gain }
    }
}

impl LeakPlan {
    /// Returns the bytes that are expected to be freed.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.gain.frees_bytes))
    }

    /// Limits the plan to deletions that need no free space, on the given full filesystems, until each is expected
    /// to have the free space that it needs. The order of the plan is kept, so that a dry run shows the same
    /// deletions.
    #[must_use]
    pub fn to_make_room(mut self, inventory: &Inventory, full: &[FullFilesystem]) -> Self {
        let mut freed: Vec<Gain> = Vec::new();
        let entries = &self.entries;
        self.order.retain(|position| {
            let entry = &entries[*position];
            let Decision::Delete(recipe) = entry.decision else { return false };
            let gain = entry.gain(inventory);
            let freed_here = freed_on(gain.filesystem, &freed);
            let mut full_here = full.iter().filter(|full| full.filesystem == gain.filesystem);
            let is_deleted = recipe.needs_no_room() && full_here.any(|full| !freed_here.covers(full.to_free));
            freed.extend(is_deleted.then_some(gain));
            is_deleted
        });
        self
    }

    #[must_use]
    pub fn gains(&self, inventory: &Inventory) -> Vec<Gain> {
        sum(self.turns().map(|entry| entry.gain(inventory)))
    }

    #[must_use]
    pub fn steps(&self, inventory: &Inventory) -> Vec<Step> {
        let steps = self.turns().map(|entry| {
            let step = Step::new(Target::leak(inventory, &inventory[entry.leak]), Cause::Leak);
            match entry.decision {
                Decision::Repair => Step { action: Action::Repair, ..step },
                _ => Step { gains: vec![entry.gain(inventory)], ..step },
            }
        });
        steps.collect()
    }

    pub fn turns(&self) -> impl Iterator<Item = &LeakDecision> {
        self.order.iter().map(|position| &self.entries[*position])
    }
}

/// Decides about every leak of `inventory`. `closed` returns the reason why a store may not be changed, if there is
/// one.
#[must_use]
pub fn plan(
    inventory: &Inventory,
    refs: &Refs,
    request: &LeakRequest,
    now: Timestamp,
    closed: &dyn Fn(StoreIx) -> Option<String>,
) -> LeakPlan {
    let leaks = (0..inventory.leaks.len()).map(LeakIx::from);
    let listed = leaks.filter(|leak| request.lists(inventory[*leak].class));
    let mut entries: Vec<LeakDecision> = listed
        .map(|leak| LeakDecision {
            leak,
            decision: decide(inventory, &inventory[leak], request, now, closed),
            gain: Size::default(),
        })
        .collect();
    keep_needed_leaks(inventory, refs, &mut entries);
    let mut order: Vec<usize> = (0..entries.len())
        .filter(|position| matches!(entries[*position].decision, Decision::Delete(_)))
        .collect();
    order.sort_by_cached_key(|position| {
        let entry = &entries[*position];
        let Decision::Delete(recipe) = entry.decision else {
            return (true, usize::MAX, u64::MAX, entry.leak);
        };
        let needs_room = !recipe.needs_no_room();
        let leak = Root::Leak(entry.leak);
        // A layer reaches itself and everything that its parent reaches.
        let height = if needs_room { refs.reach(leak).len() } else { 0 };
        let exclusive_bytes = refs.sizes(inventory, leak).exclusive.frees_bytes;
        (needs_room, usize::MAX - height, u64::MAX - exclusive_bytes, entry.leak)
    });
    let mut live = refs.live();
    for position in &order {
        entries[*position].gain = live.remove(inventory, Root::Leak(entries[*position].leak));
    }
    order.extend((0..entries.len()).filter(|position| entries[*position].decision == Decision::Repair));
    LeakPlan { entries, order }
}

fn decide(
    inventory: &Inventory,
    leak: &Leak,
    request: &LeakRequest,
    now: Timestamp,
    closed: &dyn Fn(StoreIx) -> Option<String>,
) -> Decision {
    let recipe = leak.class.recipe();
    match (leak.verdict, recipe) {
        (Verdict::Keep | Verdict::Report, _) => return Decision::Stay(KeepReason::Verdict),
        (_, None) => return Decision::Stay(KeepReason::ByHand),
        _ => {}
    }
    if !inventory[leak.store].kind.facts().is_editable {
        return Decision::Stay(KeepReason::ByHand);
    }
    let repairs = recipe == Some(Recipe::RepairLink);
    if repairs && !request.repair.contains(&leak.class) {
        return Decision::Stay(KeepReason::NotRequested);
    }
    if let Some(why) = closed(leak.store) {
        return Decision::Stay(KeepReason::Store(why));
    }
    if let Some(store) = inventory.stores.iter().find(|store| store.root.starts_with(&leak.path)) {
        return Decision::Stay(KeepReason::Needed(format!("the store {} in it", store.root.display())));
    }
    // If the clock was set back, nothing is old.
    let age = leak.since.map(|since| now.duration_since(since).max(SignedDuration::ZERO));
    match recipe {
        Some(_) if repairs => Decision::Repair,
        Some(recipe) if is_old_enough(age, request.min_age) => Decision::Delete(recipe),
        _ => Decision::Stay(KeepReason::Young(age)),
    }
}

/// Keeps leaks that a kept object needs. With fewer classes or a minimum age, these may be more than the verdicts
/// consider.
fn keep_needed_leaks(inventory: &Inventory, refs: &Refs, entries: &mut [LeakDecision]) {
    loop {
        let to_delete: HashSet<LeakIx> = entries
            .iter()
            .filter(|entry| matches!(entry.decision, Decision::Delete(_)))
            .map(|entry| entry.leak)
            .collect();
        let mut has_changed = false;
        for entry in entries.iter_mut().filter(|entry| to_delete.contains(&entry.leak)) {
            let held: &[NodeIx] = &inventory[entry.leak].holds;
            let user = held
                .iter()
                .flat_map(|node| refs.reached_by(*node))
                .find(|root| match root {
                    Root::Leak(other) => !to_delete.contains(other),
                    Root::Image(_) | Root::Container(_) => true,
                })
                .map(|root| name_of(inventory, root))
                .or_else(|| {
                    let mut uses = held.iter().filter_map(|node| refs.use_of(inventory, *node));
                    uses.next().map(|user| user.by.clone())
                });
            if let Some(user) = user {
                entry.decision = Decision::Stay(KeepReason::Needed(user));
                has_changed = true;
            }
        }
        if !has_changed {
            return;
        }
    }
}

fn name_of(inventory: &Inventory, root: Root) -> String {
    match root {
        Root::Image(ix) => {
            let image = &inventory[ix];
            format!("image {}", image.title())
        }
        Root::Container(ix) => format!("container {}", inventory[ix].name),
        Root::Leak(ix) => {
            let leak = &inventory[ix];
            format!("{} {}, which stays", leak.class, leak.id)
        }
    }
}

/// Returns what a person can do about a leak that layersweep does not delete, as a clause.
#[must_use]
pub fn by_hand(inventory: &Inventory, leak: &Leak) -> String {
    let kind = inventory[leak.store].kind;
    let is_of_tool = kind.facts().tool.is_some();
    match (leak.verdict, leak.class) {
        // It is kept although others of its class are not: a pull or build may be running, and no clause about the class
        // says that.
        (Verdict::Keep, class) if class.verdict() != Verdict::Keep => leak.evidence.clone(),
        (_, LeakClass::Incomplete | LeakClass::UnfinishedPull) if is_of_tool => {
            format!("nothing, or start {} again: see docs/docker.md", kind.runtime())
        }
        (Verdict::Report, class) if is_of_tool && class.recipe().is_some() => {
            format!("{} has forgotten it: see docs/docker.md", kind.runtime())
        }
        (Verdict::Report, class) if class.by_hand().is_empty() => {
            "only you can judge it, as the evidence says".to_owned()
        }
        (_, class) => class.by_hand().to_owned(),
    }
}

/// Returns the reason why a leak is kept and what to do about it, as a clause for people.
#[must_use]
pub fn reason(inventory: &Inventory, leak: &Leak, stay: &KeepReason, min_age: SignedDuration) -> String {
    match stay {
        KeepReason::Verdict | KeepReason::ByHand => by_hand(inventory, leak),
        KeepReason::NotRequested => format!("--repair {} fixes it", leak.class),
        KeepReason::Young(Some(age)) => {
            format!("too young ({}, minimum {})", span(*age), span(min_age))
        }
        KeepReason::Young(None) => "its age is unknown".to_owned(),
        KeepReason::Needed(user) => format!("{user} needs it"),
        KeepReason::Store(why) => why.clone(),
    }
}

/// Returns whether a person can do something about a kept leak.
#[must_use]
pub fn needs_a_person(leak: &Leak, stay: &KeepReason) -> bool {
    match stay {
        KeepReason::Verdict | KeepReason::ByHand => {
            leak.verdict != Verdict::Keep && !leak.class.is_collected_by_containerd()
        }
        KeepReason::NotRequested | KeepReason::Store(_) => true,
        KeepReason::Young(_) | KeepReason::Needed(_) => false,
    }
}

/// Returns the complete command that removes a broken image or unmounts a leaked mount; `None` for other leaks, and for
/// an image with intact layers that perhaps no registry has: no command is offered for what cannot be made again.
#[must_use]
pub fn command(inventory: &Inventory, leak: &Leak) -> Option<String> {
    let id = leak.id.as_str();
    let path = leak.path.to_string_lossy();
    let (command, object) = match leak.class {
        // An image of containers/storage: other ids have an algorithm or a namespace.
        LeakClass::BrokenImage if !id.contains([':', '/']) && can_be_made_again(inventory, leak) => {
            (format!("layersweep rm {id}"), id)
        }
        LeakClass::LeakedMount => (format!("umount {path}"), &*path),
        _ => return None,
    };
    // Ids come from the disk: the command is not printed if a shell would split the id.
    let is_plain = object.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._:-@".contains(&byte));
    (is_plain && !object.starts_with('-')).then_some(command)
}

/// Returns true if the image was pulled, or has no layer any more.
fn can_be_made_again(inventory: &Inventory, leak: &Leak) -> bool {
    inventory.find_image(leak.store, &leak.id).is_none_or(|image_ix| {
        let image = &inventory[image_ix];
        let has_layer = image.holds.iter().any(|node| inventory[*node].layer.is_some());
        image.origin.kind == OriginKind::Pulled || !has_layer
    })
}

#[cfg(test)]
mod tests;
