//! The document about one object.

use std::collections::BTreeMap;

use super::build::{container, fair, image, layer, leak, path, user};
use super::usage;
use super::{
    BelowDoc, CopiesDoc, DifferenceDoc, ExplainDoc, GcDecisionDoc, Header, LayerDoc, RememberedDoc, RuleDoc,
    ShareRowDoc,
};
use crate::app::path_usage::{Owned, Owner, Row};
use crate::app::reach::Reach;
use crate::history::ages::ImageAge;
use crate::history::known::Life;
use crate::model::Plan;
use crate::model::plan::Target;
use crate::model::refs::{self, Refs, Root};
use crate::model::rules::Ruling;
use crate::model::{ImageIx, LeakIx, NodeIx, NodeKind};
use crate::stores::Scan;
use crate::stores::lookup::Subject;

/// Tells everything about `subject`, and who holds what is at the path that was asked for.
pub fn explain(scan: &Scan, subject: Option<Subject>, owned: Option<&Owned>) -> ExplainDoc {
    let inventory = &scan.inventory;
    let mut document = ExplainDoc {
        header: Header::new("explain", scan.taken_at),
        complete: scan.is_complete(),
        subject: "other",
        id: String::new(),
        path: String::new(),
        image: None,
        remembered: None,
        chain: Vec::new(),
        container: None,
        below: owned.map(|owned| below(scan, owned)),
        leaks: Vec::new(),
        held_by: Vec::new(),
        bytes: 0,
        frees_bytes: 0,
        frees_differs: Vec::new(),
        copies: Vec::new(),
        rules: Vec::new(),
        fate: None,
        warnings: scan.inventory.findings.clone(),
    };
    let Some(subject) = subject else {
        if let Some(owned) = owned {
            document.subject = if owned.is_directory { "directory" } else { "file" };
            (document.id, document.path) = (owned.path.clone(), owned.path.clone());
            document.bytes = owned.bytes;
        }
        return document;
    };
    match subject {
        Subject::Image(at) => of_image(scan, at, &mut document),
        Subject::Container(at) => {
            let root = Root::Container(at);
            let holds = &inventory.containers[at.get()].holds;
            of_holder(scan, root, holds, &mut document);
            document.subject = "container";
            document.container = Some(container(scan, &fair(scan), at));
            document.id = inventory.containers[at.get()].id.to_string();
            let layer = holds.iter().find(|node| inventory.nodes[node.get()].layer.is_some());
            document.chain = layer.map_or_else(Vec::new, |layer| chain(scan, *layer));
        }
        Subject::Leak(at) => of_leak(scan, at, &mut document),
        Subject::Node(at) => of_node(scan, at, &mut document),
    }
    document.leaks = leaks_about(scan, &document.id, subject);
    document
}

fn below(scan: &Scan, owned: &Owned) -> BelowDoc {
    let row = |row: &Row| match &row.owner {
        Owner::Image(at) => {
            let image = &scan.inventory[*at];
            let kind = if scan.inventory.is_artifact(*at) { "artifact" } else { "image" };
            let label = image.names.first().map_or("<none>", String::as_str);
            ShareRowDoc {
                id: Some(image.id.to_string()),
                store: Some(path(&scan.inventory[image.store].root)),
                in_store: true,
                ..ShareRowDoc::new(kind, label, row.bytes)
            }
        }
        Owner::Store(kind, count) => {
            let doc = ShareRowDoc::new(kind.as_str(), usage::label(*kind), row.bytes);
            ShareRowDoc { in_store: true, count: *count, ..doc }
        }
        Owner::Outside(part) => ShareRowDoc::outside(part),
        Owner::Rest => ShareRowDoc::new("rest", "everything else", row.bytes),
    };
    BelowDoc {
        path: owned.path.clone(),
        bytes: owned.bytes,
        rows: owned.rows.iter().map(row).collect(),
        other_filesystems: owned.other_filesystems.clone(),
    }
}

fn of_image(scan: &Scan, at: ImageIx, document: &mut ExplainDoc) {
    let inventory = &scan.inventory;
    let record = &inventory.images[at.get()];
    of_holder(scan, Root::Image(at), &record.holds, document);
    document.subject = "image";
    document.id = record.id.to_string();
    let top = record.holds.iter().find(|node| inventory.nodes[node.get()].layer.is_some());
    let described = image(scan, &fair(scan), at);
    document.chain = top.map_or_else(Vec::new, |top| chain(scan, *top));
    document.chain.retain(|one| record.layers.iter().any(|layer| *layer == one.id));
    // What it holds beside its chain: blobs (an artifact's have no parents), a second snapshotter's copies,
    // mapped layers.
    let reached = scan.refs.reach(Root::Image(at)).iter().filter_map(|node| layer(scan, *node));
    let beside: Vec<_> =
        reached.filter(|one| document.chain.iter().all(|shown| shown.id != one.id)).collect();
    document.chain.extend(beside);
    document.held_by.clone_from(&described.used_by);
    document.copies = copies(scan, at);
    document.image = Some(described);
}

/// Path and bytes of a root: what it holds directly, and what goes with it.
fn of_holder(scan: &Scan, root: Root, holds: &[NodeIx], document: &mut ExplainDoc) {
    let inventory = &scan.inventory;
    if let Some(first) = holds.first() {
        document.path = inventory.nodes[first.get()].path.to_string_lossy().into_owned();
    }
    let sizes = scan.refs.sizes(inventory, root);
    document.bytes = sizes.exclusive.bytes;
    document.frees_bytes = sizes.exclusive.frees_bytes;
    document.frees_differs = differences(scan, root);
}

/// Why what leaves the disk with `root` is not what `du` says of it.
fn differences(scan: &Scan, root: Root) -> Vec<DifferenceDoc> {
    let nodes = &scan.inventory.nodes;
    let (mut extents, mut metadata) = (0, 0);
    let live = scan.refs.live();
    for node in live.last_held(root).map(|at| &nodes[at.get()]) {
        let size = node.size;
        let more = i128::from(size.frees_bytes) - i128::from(size.bytes);
        let mut needs = node.needs.iter().map(|needed| nodes[needed.get()].kind);
        let shares =
            node.kind == NodeKind::SharedExtents || needs.any(|kind| kind == NodeKind::SharedExtents);
        *(if shares { &mut extents } else { &mut metadata }) += more;
    }
    let parts = [("shared_extents", extents), ("filesystem_metadata", metadata)];
    let parts = parts.into_iter().filter(|(_, bytes)| *bytes != 0);
    parts.filter_map(|(cause, bytes)| Some(DifferenceDoc { cause, bytes: bytes.try_into().ok()? })).collect()
}

/// What an image has in snapshotters beside the usual one.
fn copies(scan: &Scan, image: ImageIx) -> Vec<CopiesDoc> {
    let inventory = &scan.inventory;
    let mut found: BTreeMap<&str, CopiesDoc> = BTreeMap::new();
    for at in scan.refs.reach(Root::Image(image)) {
        let node = &inventory.nodes[at.get()];
        let Some(name) = refs::second_snapshotter(inventory, node) else { continue };
        let sum = found.entry(name).or_insert_with(|| CopiesDoc {
            snapshotter: name.to_owned(),
            snapshots: 0,
            bytes: 0,
            exclusive_bytes: 0,
            frees_bytes: 0,
        });
        sum.snapshots += 1;
        sum.bytes += node.size.bytes;
    }
    for at in scan.refs.live().last_held(Root::Image(image)) {
        let node = &inventory.nodes[at.get()];
        if let Some(sum) = refs::second_snapshotter(inventory, node).and_then(|name| found.get_mut(name)) {
            sum.exclusive_bytes += node.size.bytes;
            sum.frees_bytes += node.size.frees_bytes;
        }
    }
    found.into_values().collect()
}

fn of_leak(scan: &Scan, at: LeakIx, document: &mut ExplainDoc) {
    let record = &scan.inventory.leaks[at.get()];
    of_holder(scan, Root::Leak(at), &record.holds, document);
    document.subject = "leak";
    document.id.clone_from(&record.id);
    let layer = record.holds.iter().find(|node| scan.inventory.nodes[node.get()].layer.is_some());
    document.chain = layer.map_or_else(Vec::new, |layer| chain(scan, *layer));
    document.path = record.path.to_string_lossy().into_owned();
}

fn of_node(scan: &Scan, at: NodeIx, document: &mut ExplainDoc) {
    let node = &scan.inventory.nodes[at.get()];
    document.subject = match node.kind {
        NodeKind::Layer | NodeKind::Snapshot | NodeKind::Blob => "layer",
        NodeKind::StoreMetadata | NodeKind::StoreRecords => "metadata",
        _ => "other",
    };
    document.id.clone_from(&node.id);
    document.path = node.path.to_string_lossy().into_owned();
    document.bytes = Refs::alone(&scan.inventory, at).bytes;
    document.held_by = scan.refs.reached_by(at).map(|root| user(scan, root)).collect();
    document.held_by.extend(scan.refs.is_cached(at).then(|| super::UserDoc {
        kind: "build-cache",
        id: String::new(),
        name: "a build cache".into(),
        owner: None,
    }));
    document.chain = chain(scan, at);
    // A layer goes with its last holder, not by itself.
    document.frees_bytes = if scan.refs.is_held(at) { 0 } else { node.size.frees_bytes };
}

/// The layer and its parents, down to the base.
fn chain(scan: &Scan, top: NodeIx) -> Vec<LayerDoc> {
    let nodes = &scan.inventory.nodes;
    let mut seen = std::collections::HashSet::new();
    let mut chain = Vec::new();
    let mut next = Some(top);
    while let Some(at) = next.filter(|at| seen.insert(*at)) {
        chain.extend(layer(scan, at));
        next = nodes[at.get()].needs.iter().copied().find(|needed| nodes[needed.get()].layer.is_some());
    }
    chain
}

/// Leaks that name the object, or are the object.
fn leaks_about(scan: &Scan, id: &str, subject: Subject) -> Vec<super::LeakDoc> {
    let about = scan.inventory.leaks.iter().enumerate().filter(|(at, leak)| {
        subject == Subject::Leak(LeakIx::from(*at)) || (leak.id == id && !matches!(subject, Subject::Leak(_)))
    });
    about.map(|(at, _)| leak(scan, LeakIx::from(at))).collect()
}

/// What a plan does with the object that `is_it` knows.
fn fate(plan: &Plan, is_it: impl Fn(&Target) -> bool) -> Option<GcDecisionDoc> {
    if let Some(place) = plan.steps.iter().position(|step| is_it(&step.target)) {
        let step = &plan.steps[place];
        return Some(GcDecisionDoc {
            goes: true,
            rule: step.cause.reason().as_str(),
            detail: None,
            place: Some(place + 1),
            predicted_bytes: Some(step.predicted_bytes()),
            command: None,
            refused: None,
        });
    }
    let kept = plan.kept.iter().find(|kept| is_it(&kept.target))?;
    Some(GcDecisionDoc {
        goes: false,
        rule: kept.rule.as_str(),
        detail: Some(kept.detail.clone()),
        place: None,
        predicted_bytes: None,
        command: None,
        refused: None,
    })
}

impl ExplainDoc {
    /// Fills in what the rules say of the image, and what the plan would do with it.
    pub fn judge(&mut self, target: &Target, rulings: Vec<Ruling>, plan: &Plan, reach: &Reach) {
        let rules = rulings.into_iter().map(|ruling| RuleDoc {
            rule: ruling.rule.as_str(),
            verdict: if ruling.stays { "stay" } else { "pass" },
            detail: ruling.detail,
        });
        self.rules = rules.collect();
        self.fate = fate(plan, |one| one == target).map(|fate| GcDecisionDoc {
            goes: fate.goes && reach.refusal.is_none(),
            command: Some(reach.command.to_owned()),
            refused: reach.refused(),
            ..fate
        });
    }

    /// Fills in what a collection of containers would do with this one.
    pub fn judge_container(&mut self, plan: &Plan) {
        self.fate = fate(plan, |one| one.id == self.id);
        let step = plan.steps.iter().find(|step| step.target.id == self.id);
        if let (Some(fate), Some(step)) = (&mut self.fate, step) {
            fate.detail = Some(step.cause.describe().into());
        }
    }

    /// Fills in what is known of the image's age and its lives.
    pub fn remember(&mut self, age: &ImageAge, lives: &[Life]) {
        if let Some(image) = &mut self.image {
            image.remember(age);
            self.remembered = Some(RememberedDoc::new(age, lives));
        }
    }
}
