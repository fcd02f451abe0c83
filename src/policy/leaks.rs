//! Plans which leaks are deleted, and in what order. Pure.
//!
//! What frees space without writing a record file is deleted first, the largest at the top: on a full
//! disk nothing else is possible. Layers with a record follow, each before the one it lies on.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::display::span;
use crate::model::plan::{Action, Cause, Gain, Step, Target, freed_on, sum};
use crate::model::refs::{Refs, Root};
use crate::model::{
    Inventory, Leak, LeakClass, LeakIx, NodeIx, Recipe, Size, StoreIx, StoreKind, Verdict, is_for_ctr,
    is_old_enough,
};
use crate::policy::input::FullFilesystem;

/// The request.
#[derive(Clone, Debug, Default)]
pub struct LeakRequest {
    /// Classes to look at; none means all.
    pub classes: Vec<LeakClass>,
    /// Minimum age.
    pub min_age: SignedDuration,
    /// Classes to repair.
    pub repair: Vec<LeakClass>,
}

impl LeakRequest {
    fn lists(&self, class: LeakClass) -> bool {
        self.classes.is_empty() || self.classes.contains(&class) || self.repair.contains(&class)
    }
}

/// The decision on a leak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is deleted.
    Delete(Recipe),
    Repair,
    Stay(KeepReason),
}

/// Why a leak stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// Its verdict: it may be work in progress, or a person has to look.
    Verdict,
    /// It could be repaired, but that was not requested.
    NotRequested,
    /// We have no repair for it.
    ByHand,
    /// It is this old, or its age is unknown.
    Young(Option<SignedDuration>),
    /// Something that stays needs it.
    Needed(String),
    /// Nothing in its store is ours to change; why.
    Store(String),
}

/// A leak and the decision on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakDecision {
    pub leak: LeakIx,
    pub decision: Decision,
    /// What its deletion is expected to free at its turn; 0 if it stays.
    pub gain: Size,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakPlan {
    /// Every leak of the classes asked for, in the order of the inventory.
    pub entries: Vec<LeakDecision>,
    /// Positions in `entries` of what is deleted, in the order of deletion; then of what is
    /// repaired.
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
    /// Bytes that are expected to be freed.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.gain.frees_bytes))
    }

    /// What frees space on these filesystems without needing any first, until on each so much is expected to be freed;
    /// nothing else is deleted. In the order of the plan, so that a dry run says the same.
    #[must_use]
    pub fn to_make_room(mut self, inventory: &Inventory, full: &[FullFilesystem]) -> Self {
        let mut freed: Vec<Gain> = Vec::new();
        let entries = &self.entries;
        self.order.retain(|at| {
            let Decision::Delete(recipe) = entries[*at].decision else { return false };
            let gain = entries[*at].gain(inventory);
            let freed_here = freed_on(gain.filesystem, &freed);
            let is_short =
                |one: &FullFilesystem| one.filesystem == gain.filesystem && !freed_here.covers(one.to_free);
            let is_deleted = recipe.needs_no_room() && full.iter().any(is_short);
            freed.extend(is_deleted.then_some(gain));
            is_deleted
        });
        self
    }

    /// What is expected to be freed, by filesystem.
    #[must_use]
    pub fn gains(&self, inventory: &Inventory) -> Vec<Gain> {
        sum(self.turns().map(|entry| entry.gain(inventory)))
    }

    /// What is to be done, in order.
    #[must_use]
    pub fn steps(&self, inventory: &Inventory) -> Vec<Step> {
        let step = |entry: &LeakDecision| {
            let target = Target::leak(inventory, &inventory[entry.leak]);
            let step = Step::new(target, Cause::Leak);
            match entry.decision {
                Decision::Repair => Step { action: Action::Repair, ..step },
                _ => Step { gains: vec![entry.gain(inventory)], ..step },
            }
        };
        self.turns().map(step).collect()
    }

    /// The entries in the order of their turn.
    pub fn turns(&self) -> impl Iterator<Item = &LeakDecision> {
        self.order.iter().map(|at| &self.entries[*at])
    }
}

/// Decides about every leak of `inventory`. `closed` says why nothing in a store may be changed,
/// if so.
#[must_use]
pub fn plan(
    inventory: &Inventory,
    refs: &Refs,
    request: &LeakRequest,
    now: Timestamp,
    closed: &dyn Fn(StoreIx) -> Option<String>,
) -> LeakPlan {
    let leaks = (0..inventory.leaks.len()).map(LeakIx::from);
    let listed = leaks.filter(|at| request.lists(inventory[*at].class));
    let mut entries: Vec<LeakDecision> = listed
        .map(|at| LeakDecision {
            leak: at,
            decision: decide(inventory, &inventory[at], request, now, closed),
            gain: Size::default(),
        })
        .collect();
    spare(inventory, refs, &mut entries);
    let mut order: Vec<usize> =
        (0..entries.len()).filter(|at| matches!(entries[*at].decision, Decision::Delete(_))).collect();
    let alone = |at: usize| refs.sizes(inventory, Root::Leak(entries[at].leak)).exclusive.frees_bytes;
    order.sort_by_cached_key(|at| {
        let entry = &entries[*at];
        let Decision::Delete(recipe) = entry.decision else {
            return (true, usize::MAX, u64::MAX, entry.leak);
        };
        let records = !recipe.needs_no_room();
        // What lies on another layer reaches all that the other one does, and itself.
        let height = if records { refs.reach(Root::Leak(entry.leak)).len() } else { 0 };
        (records, usize::MAX - height, u64::MAX - alone(*at), entry.leak)
    });
    let mut live = refs.live();
    for at in &order {
        entries[*at].gain = live.remove(inventory, Root::Leak(entries[*at].leak));
    }
    order.extend((0..entries.len()).filter(|at| entries[*at].decision == Decision::Repair));
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
    if inventory[leak.store].kind == StoreKind::Containerd {
        return Decision::Stay(KeepReason::ByHand);
    }
    let repairs = recipe == Some(Recipe::RepairLink);
    if repairs && !request.repair.contains(&leak.class) {
        return Decision::Stay(KeepReason::NotRequested);
    }
    if let Some(why) = closed(leak.store) {
        return Decision::Stay(KeepReason::Store(why));
    }
    // A clock that was set back makes nothing old.
    let age = leak.since.map(|since| now.duration_since(since).max(SignedDuration::ZERO));
    match recipe {
        Some(_) if repairs => Decision::Repair,
        Some(recipe) if is_old_enough(age, request.min_age) => Decision::Delete(recipe),
        _ => Decision::Stay(KeepReason::Young(age)),
    }
}

/// What stays keeps what it is built on: with fewer classes, or a minimum age, that may be
/// more than the verdicts know.
fn spare(inventory: &Inventory, refs: &Refs, entries: &mut [LeakDecision]) {
    loop {
        let going: HashSet<LeakIx> = entries
            .iter()
            .filter(|entry| matches!(entry.decision, Decision::Delete(_)))
            .map(|entry| entry.leak)
            .collect();
        let mut spared = false;
        for entry in entries.iter_mut().filter(|entry| going.contains(&entry.leak)) {
            let held: &[NodeIx] = &inventory[entry.leak].holds;
            let user = held.iter().flat_map(|node| refs.reached_by(*node)).find(|root| match root {
                Root::Leak(other) => !going.contains(other),
                Root::Image(_) | Root::Container(_) => true,
            });
            let elsewhere = || held.iter().find_map(|node| refs.use_of(inventory, *node));
            let user = user.map(|root| name_of(inventory, root));
            if let Some(user) = user.or_else(|| elsewhere().map(|user| user.by.clone())) {
                entry.decision = Decision::Stay(KeepReason::Needed(user));
                spared = true;
            }
        }
        if !spared {
            return;
        }
    }
}

fn name_of(inventory: &Inventory, root: Root) -> String {
    match root {
        Root::Image(at) => {
            let image = &inventory[at];
            format!("image {}", image.title())
        }
        Root::Container(at) => format!("container {}", inventory[at].name),
        Root::Leak(at) => {
            let leak = &inventory[at];
            format!("{} {}, which stays", leak.class, leak.id)
        }
    }
}

/// Why it stays, and what to do about it: a clause for people.
#[must_use]
pub fn reason(leak: &Leak, stay: &KeepReason, min_age: SignedDuration) -> String {
    match stay {
        KeepReason::Verdict | KeepReason::ByHand => leak.class.by_hand().to_owned(),
        KeepReason::NotRequested => format!("--repair {} fixes it", leak.class),
        KeepReason::Young(Some(age)) => {
            format!("too young ({}, minimum {})", span(*age), span(min_age))
        }
        KeepReason::Young(None) => "its age is unknown".to_owned(),
        KeepReason::Needed(user) => format!("{user} needs it"),
        KeepReason::Store(why) => why.clone(),
    }
}

/// Whether a person can do something about a leak that stays.
#[must_use]
pub fn is_for_a_person(leak: &Leak, stay: &KeepReason) -> bool {
    match stay {
        KeepReason::Verdict | KeepReason::ByHand => {
            leak.verdict != Verdict::Keep && !leak.class.is_collected_by_containerd()
        }
        KeepReason::NotRequested | KeepReason::Store(_) => true,
        KeepReason::Young(_) | KeepReason::Needed(_) => false,
    }
}

/// The whole command that removes it, for whoever knows that nobody needs it; `None` where no single one does.
#[must_use]
pub fn command(leak: &Leak) -> Option<String> {
    let id = leak.id.as_str();
    let path = leak.path.to_string_lossy();
    // Ids of containerd outside of the namespace of CRI begin with theirs.
    let (namespace, bare) = id.split_once('/').unwrap_or(("k8s.io", id));
    let (command, object) = match leak.class {
        LeakClass::Lease if is_for_ctr(namespace) => (format!("ctr -n {namespace} leases rm {bare}"), id),
        // An image of containers/storage: other ids have an algorithm or a namespace.
        LeakClass::BrokenImage if !id.contains([':', '/']) => (format!("layersweep rm {id}"), id),
        LeakClass::LeakedMount => (format!("umount {path}"), &*path),
        _ => return None,
    };
    // Ids come from the disk: one that a shell would take apart is not printed for it.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._:-@".contains(&byte);
    (object.bytes().all(is_plain) && !bare.starts_with('-')).then_some(command)
}

#[cfg(test)]
mod tests;
