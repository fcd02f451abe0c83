//! JSON document of `explain`: all facts about one object.
//!
//! An object that holds others directly (image, container or leak) is a root of the reference graph; `bytes`
//! and `frees_bytes` of a root come from what only it reaches. Other nodes, for example layers, are freed
//! with the last root that reaches them, so they free nothing by themselves while one does.

use std::collections::BTreeMap;
use std::path::Path;

use super::build::{container, fair, image, layer, leak, path, user};
use super::usage;
use super::{
    BelowDoc, CopiesDoc, DifferenceCause, DifferenceDoc, DocumentKind, ExplainDoc, GcDecisionDoc, Header,
    IndexedManifestDoc, LayerDoc, LostContainerDoc, RememberedDoc, ShareKind, ShareRowDoc, StoryDoc,
    SubjectKind, UserKind,
};
use crate::app::explain::AbsentImage;
use crate::app::path_usage::{Owned, Owner, OwnerRow};
use crate::history::ages::ImageAge;
use crate::history::story::Story;
use crate::model::deletion::plan::{Target, TargetKind};
use crate::model::refs::{self, Refs, Root};
use crate::model::rules::Ruling;
use crate::model::{self, Plan};
use crate::model::{
    ContainerState, ImageIx, Inventory, LeakIx, LostContainer, NodeIx, NodeKind, PrintedCommand,
    removal_command,
};
use crate::services::diagnosis::StoppedHolders;
use crate::services::paths::owners_store;
use crate::services::reach::Reach;
use crate::stores::Scan;
use crate::stores::lookup::Subject;

/// Builds the document about `subject`, with the usage below a path in `owned` if the reference is a path.
pub fn explain(scan: &Scan, subject: Option<Subject>, owned: Option<&Owned>) -> ExplainDoc {
    let inventory = &scan.inventory;
    let mut document = ExplainDoc {
        header: Header::new(DocumentKind::Explain, scan.taken_at),
        complete: scan.is_complete(),
        subject: SubjectKind::Other,
        id: String::new(),
        path: String::new(),
        image: None,
        records: None,
        age_limits: None,
        earlier_images: Vec::new(),
        chain: Vec::new(),
        container: None,
        lost_container: None,
        volume: None,
        command: None,
        stopped: StoppedHolders::default(),
        below: owned.map(|owned| below(scan, owned)),
        leaks: Vec::new(),
        used_by: Vec::new(),
        bytes: 0,
        frees_bytes: Some(0),
        frees_differs: Vec::new(),
        kept_by_cache: None,
        copies: Vec::new(),
        manifests: Vec::new(),
        other_platforms_bytes: None,
        rules: Vec::new(),
        decision: None,
        warnings: scan.inventory.findings.clone(),
    };
    let Some(subject) = subject else {
        if let Some(owned) = owned {
            document.subject = if owned.is_directory { SubjectKind::Directory } else { SubjectKind::File };
            (document.id, document.path) = (owned.path.clone(), owned.path.clone());
            document.bytes = owned.bytes;
        }
        return document;
    };
    match subject {
        Subject::Image(image_ix) => of_image(scan, image_ix, &mut document),
        Subject::Container(container_ix) => {
            let root = Root::Container(container_ix);
            let holds = &inventory[container_ix].holds;
            of_holder(scan, root, holds, &mut document);
            document.subject = SubjectKind::Container;
            document.container = Some(container(scan, &fair(scan), container_ix));
            document.id = inventory[container_ix].id.to_string();
            let layer = holds.iter().find(|node| inventory.nodes[node.get()].layer.is_some());
            document.chain = layer.map_or_else(Vec::new, |layer| chain(scan, *layer));
        }
        Subject::Leak(leak_ix) => of_leak(scan, leak_ix, &mut document),
        Subject::Node(node_ix) => of_node(scan, node_ix, &mut document),
    }
    if owned.is_some_and(|owned| contains_unmeasured(scan, &owned.path)) {
        document.frees_bytes = None;
    }
    document.leaks = leaks_about(scan, &document.id, subject);
    document
}

fn below(scan: &Scan, owned: &Owned) -> BelowDoc {
    BelowDoc {
        path: owned.path.clone(),
        bytes: owned.bytes,
        inodes: owned.inodes,
        rows: owned.rows.iter().map(|row| row_below(scan, row)).collect(),
        other_filesystems: owned.other_filesystems.clone(),
    }
}

fn row_below(scan: &Scan, row: &OwnerRow) -> ShareRowDoc {
    let document = match &row.owner {
        Owner::Image(image_ix) => {
            let image = &scan.inventory[*image_ix];
            let kind = ShareKind::Object(TargetKind::of_image(&scan.inventory, *image_ix));
            let label = image.names.first().map_or("<none>", String::as_str);
            ShareRowDoc {
                id: Some(image.id.to_string()),
                store: Some(path(&scan.inventory[image.store].root)),
                in_store: true,
                ..ShareRowDoc::new(kind, label, row.bytes)
            }
        }
        Owner::Store(kind, count) => {
            let doc = ShareRowDoc::new(ShareKind::InStore(*kind), usage::label(*kind), row.bytes);
            ShareRowDoc { in_store: true, count: *count, ..doc }
        }
        Owner::Outside(part) => ShareRowDoc::outside(part),
        Owner::Rest => ShareRowDoc::new(ShareKind::Rest, "everything else", row.bytes),
    };
    ShareRowDoc { inodes: Some(row.inodes), ..document }
}

fn of_image(scan: &Scan, image_ix: ImageIx, document: &mut ExplainDoc) {
    let inventory = &scan.inventory;
    let record = &inventory[image_ix];
    of_holder(scan, Root::Image(image_ix), &record.holds, document);
    document.subject = SubjectKind::Image;
    document.id = record.id.to_string();
    let top = record.holds.iter().find(|node| inventory.nodes[node.get()].layer.is_some());
    let described = image(scan, &fair(scan), image_ix);
    document.chain = top.map_or_else(Vec::new, |top| chain(scan, *top));
    document.chain.retain(|in_chain| record.layers.iter().any(|layer| *layer == in_chain.id));
    // Add the content outside the chain: blobs (those of an artifact have no parents), copies in a second
    // snapshotter, mapped layers.
    let reachable = scan.refs.reach(Root::Image(image_ix)).iter().filter_map(|node| layer(scan, *node));
    let others: Vec<_> =
        reachable.filter(|reached| document.chain.iter().all(|in_chain| in_chain.id != reached.id)).collect();
    document.chain.extend(others);
    document.used_by.clone_from(&described.used_by);
    let kept = document.chain.iter().filter(|layer| layer.build_cache && layer.refcount == 1);
    let kept_bytes = kept.fold(0, |sum: u64, layer| sum.saturating_add(layer.bytes));
    let cache = inventory.build_caches.iter().find(|cache| cache.store == record.store);
    document.kept_by_cache = cache.filter(|_| kept_bytes > 0).map(|cache| (kept_bytes, cache.command()));
    document.copies = copies(scan, image_ix);
    if let Some(manifests) = inventory.manifests.get(&image_ix) {
        let manifests = manifests.iter().map(|manifest| IndexedManifestDoc {
            digest: manifest.digest.clone(),
            platform: manifest.platform.clone(),
            used: manifest.is_used,
            bytes: bytes_of(inventory, manifest.holds.iter().copied()),
        });
        document.manifests = manifests.collect();
        document.other_platforms_bytes = Some(bytes_of(inventory, inventory.of_other_platforms(image_ix)));
    }
    document.image = Some(described);
}

fn bytes_of(inventory: &Inventory, nodes: impl IntoIterator<Item = NodeIx>) -> u64 {
    nodes.into_iter().fold(0, |sum: u64, node| sum.saturating_add(inventory[node].size.bytes))
}

/// Fills in the path of the root's first node, and the bytes that only the root reaches.
fn of_holder(scan: &Scan, root: Root, holds: &[NodeIx], document: &mut ExplainDoc) {
    let inventory = &scan.inventory;
    if let Some(first) = holds.first() {
        document.path = inventory.nodes[first.get()].path.to_string_lossy().into_owned();
    }
    let sizes = scan.refs.sizes(inventory, root);
    document.bytes = sizes.exclusive.bytes;
    document.frees_bytes = scan.refs.is_measured(inventory, root).then_some(sizes.exclusive.frees_bytes);
    if document.frees_bytes.is_some() {
        document.frees_differs = differences(scan, root);
    }
}

/// Explains the difference between the bytes freed with `root` and the bytes that `du` prints.
fn differences(scan: &Scan, root: Root) -> Vec<DifferenceDoc> {
    let nodes = &scan.inventory.nodes;
    let (mut extents, mut compression, mut metadata) = (0, 0, 0);
    let live = scan.refs.live();
    for node in live.last_held(root).map(|node_ix| &nodes[node_ix.get()]) {
        let size = node.size;
        let more = i128::from(size.frees_bytes) - i128::from(size.bytes);
        let mut needs = node.needs.iter().map(|needed| nodes[needed.get()].kind);
        let shares =
            node.kind == NodeKind::SharedExtents || needs.any(|kind| kind == NodeKind::SharedExtents);
        let sum = match more {
            _ if shares => &mut extents,
            ..0 => &mut compression,
            _ => &mut metadata,
        };
        *sum += more;
    }
    let parts = [
        (DifferenceCause::SharedExtents, extents),
        (DifferenceCause::Compression, compression),
        (DifferenceCause::FilesystemMetadata, metadata),
    ]
    .into_iter()
    .filter(|(_, bytes)| *bytes != 0);
    parts.filter_map(|(cause, bytes)| Some(DifferenceDoc { cause, bytes: bytes.try_into().ok()? })).collect()
}

/// Returns the snapshots of an image in snapshotters that are not the usual one.
fn copies(scan: &Scan, image: ImageIx) -> Vec<CopiesDoc> {
    let inventory = &scan.inventory;
    let mut found: BTreeMap<&str, CopiesDoc> = BTreeMap::new();
    for node_ix in scan.refs.reach(Root::Image(image)) {
        let node = &inventory[*node_ix];
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
    for node_ix in scan.refs.live().last_held(Root::Image(image)) {
        let node = &inventory[node_ix];
        if let Some(sum) = refs::second_snapshotter(inventory, node).and_then(|name| found.get_mut(name)) {
            sum.exclusive_bytes += node.size.bytes;
            sum.frees_bytes += node.size.frees_bytes;
        }
    }
    found.into_values().collect()
}

fn of_leak(scan: &Scan, leak_ix: LeakIx, document: &mut ExplainDoc) {
    let record = &scan.inventory[leak_ix];
    of_holder(scan, Root::Leak(leak_ix), &record.holds, document);
    document.subject = SubjectKind::Leak;
    document.id.clone_from(&record.id);
    let layer = record.holds.iter().find(|node| scan.inventory.nodes[node.get()].layer.is_some());
    document.chain = layer.map_or_else(Vec::new, |layer| chain(scan, *layer));
    document.path = record.path.to_string_lossy().into_owned();
}

fn of_node(scan: &Scan, node_ix: NodeIx, document: &mut ExplainDoc) {
    let node = &scan.inventory[node_ix];
    document.subject = match node.kind {
        NodeKind::Layer | NodeKind::Snapshot | NodeKind::Blob => SubjectKind::Layer,
        NodeKind::StoreMetadata | NodeKind::StoreRecords => SubjectKind::Metadata,
        _ => SubjectKind::Other,
    };
    document.id.clone_from(&node.id);
    document.path = node.path.to_string_lossy().into_owned();
    document.bytes = Refs::alone(&scan.inventory, node_ix).bytes;
    document.used_by = scan.refs.reached_by(node_ix).map(|root| user(scan, root)).collect();
    document.used_by.extend(scan.refs.is_cached(node_ix).then(|| super::UserDoc {
        kind: UserKind::BuildCache,
        id: String::new(),
        name: "a build cache".into(),
        owner: None,
    }));
    document.chain = chain(scan, node_ix);
    // A layer is freed with its last root, not by itself.
    let frees_bytes = if scan.refs.is_held(node_ix) { 0 } else { node.size.frees_bytes };
    document.frees_bytes = (node.kind != NodeKind::Unknown).then_some(frees_bytes);
}

/// Returns whether a directory contains layers that are not measured.
fn contains_unmeasured(scan: &Scan, directory: &str) -> bool {
    let mut layers = scan
        .inventory
        .nodes
        .iter()
        .filter(|node| node.layer.as_ref().is_some_and(|layer| layer.is_unmeasured));
    layers.any(|node| Path::new(&scan.sysroot.shown(&node.path)).starts_with(directory))
}

/// Returns the layer and its parents, down to the base.
fn chain(scan: &Scan, top: NodeIx) -> Vec<LayerDoc> {
    let nodes = &scan.inventory.nodes;
    let mut seen = std::collections::HashSet::new();
    let mut chain = Vec::new();
    let mut next = Some(top);
    while let Some(node_ix) = next.filter(|node_ix| seen.insert(*node_ix)) {
        chain.extend(layer(scan, node_ix));
        next = nodes[node_ix.get()].needs.iter().copied().find(|needed| nodes[needed.get()].layer.is_some());
    }
    chain
}

/// Returns the leak itself, or the leaks that name the object.
fn leaks_about(scan: &Scan, id: &str, subject: Subject) -> Vec<super::LeakDoc> {
    let all = (0..scan.inventory.leaks.len()).map(LeakIx::from);
    let about = all.filter(|leak_ix| match subject {
        Subject::Leak(subject) => subject == *leak_ix,
        _ => scan.inventory[*leak_ix].id == id,
    });
    about.map(|leak_ix| leak(scan, leak_ix)).collect()
}

/// Returns the decision of a plan about the object that `is_subject` accepts.
fn decision(plan: &Plan, is_subject: impl Fn(&Target) -> bool) -> Option<GcDecisionDoc> {
    let empty = GcDecisionDoc {
        would_delete: false,
        reason: None,
        rule: None,
        detail: None,
        position: None,
        predicted_bytes: None,
        command: None,
        refused: None,
    };
    if let Some(position) = plan.steps.iter().position(|step| is_subject(&step.target)) {
        let step = &plan.steps[position];
        return Some(GcDecisionDoc {
            would_delete: true,
            reason: Some(step.cause.reason()),
            position: Some(position + 1),
            predicted_bytes: Some(step.predicted_bytes()),
            ..empty
        });
    }
    let kept = plan.kept.iter().find(|kept| is_subject(&kept.target))?;
    Some(GcDecisionDoc { rule: Some(kept.rule), detail: Some(kept.detail.clone()), ..empty })
}

impl ExplainDoc {
    /// Fills in the rulings of the rules on the image, and the plan's decision.
    pub fn judge(&mut self, target: &Target, rulings: Vec<Ruling>, plan: &Plan, reach: &Reach) {
        self.rules = rulings;
        self.decision = decision(plan, |candidate| candidate == target).map(|decision| GcDecisionDoc {
            would_delete: decision.would_delete && reach.refusal.is_none(),
            command: Some(reach.command().to_owned()),
            refused: reach.refused(),
            ..decision
        });
    }

    /// Fills in the decision of a garbage collection of containers about this one.
    pub fn judge_container(&mut self, plan: &Plan) {
        self.decision = decision(plan, |target| target.id == self.id);
        let step = plan.steps.iter().find(|step| step.target.id == self.id);
        if let (Some(decision), Some(step)) = (&mut self.decision, step) {
            decision.detail = Some(step.cause.describe().into());
        }
    }

    /// Fills in the images that the reference named earlier. They are the answer if it names nothing now.
    pub fn recall(&mut self, absent: &[AbsentImage], is_answer: bool) {
        self.earlier_images = absent.iter().map(StoryDoc::absent).collect();
        if let Some(first) = self.earlier_images.first().filter(|_| is_answer) {
            self.subject = SubjectKind::AbsentImage;
            self.id.clone_from(&first.id);
        }
    }

    /// Fills in a container that only podman's database knows.
    pub fn lose(&mut self, scan: &Scan, lost: &LostContainer) {
        let inventory = &scan.inventory;
        let graphroot = &inventory[lost.store].root;
        self.subject = SubjectKind::Container;
        self.id = lost.id.to_string();
        self.path = path(graphroot);
        let image = lost.image_id.as_ref().map(|id| {
            let image = inventory.find_image(lost.store, id).map(|image_ix| &inventory[image_ix]);
            image.map_or_else(|| id.to_string(), |image| image.title().to_owned())
        });
        let may_run = matches!(lost.state, ContainerState::Unknown | ContainerState::Running);
        let is_id = lost.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let store = owners_store(scan, lost.store);
        let command = removal_command(model::Owner::Podman, &lost.id, false, &store);
        self.command = command.filter(|_| is_id && !may_run).map(PrintedCommand::Deletes);
        self.lost_container = Some(LostContainerDoc { name: lost.name.clone(), state: lost.state, image });
    }

    /// Fills in the age of the image and its lives, from the records.
    pub fn remember(&mut self, age: &ImageAge, story: &Story) {
        if let Some(image) = &mut self.image {
            image.remember(age);
            self.records = Some(RememberedDoc::new(age, story));
        }
    }
}
