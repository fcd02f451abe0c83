//! Image rows against layersweep's planner: the images become an inventory, and the disk frees the bytes of the nodes
//! that are really deleted.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use layersweep::model::deletion::plan::Reason;
use layersweep::model::refs::Refs;
use layersweep::model::space::{InvalidStats, Measured, Space};
use layersweep::model::{
    self, Consistency, Container, ContainerState, Filesystem, Inventory, Labels, Node, NodeIx, NodeKind,
    Owner, Plan, Size, Store, StoreKind,
};
use layersweep::model::{Aftermath, Answer};
use layersweep::policy::Ages;
use layersweep::policy::Facts;
use layersweep::policy::Input;
use layersweep::policy::Planner;
use layersweep::policy::Policy;
use layersweep::policy::Task;
use layersweep::policy::space::{Targets, Thresholds};

use super::kubelet::{lists, time};
use super::rows::{Container as RowContainer, Counters, Expect, Fs, Image, ImagesRow, Operation};
use super::same;

/// Ages by image id, kept from step to step as the record database keeps them.
type Memory = BTreeMap<String, Ages>;

pub fn run(row: &ImagesRow) -> Result<(), String> {
    let policy = policy(row)?;
    let mut memory: Memory = Memory::new();
    for record in &row.initial_records {
        let first = record.first_detected_ms.ok_or("the ages need a first detection")?;
        let last_used = record.last_used_ms.map(time);
        memory.insert(record.key.clone(), Ages::new(time(first), last_used, 0));
    }
    let (mut images, mut containers, mut fs) = (Vec::new(), Vec::new(), None);
    for (number, step) in row.steps.iter().enumerate() {
        images = step.images.clone().unwrap_or(images);
        containers = step.containers.clone().unwrap_or(containers);
        fs = step.fs.or(fs);
        let now = time(step.at_ms);
        remember(&mut memory, &images, &containers, now);
        match step.operation {
            Operation::Detect => continue,
            Operation::GarbageCollect => {}
            other => return Err(format!("policy exact has no {other:?}")),
        }
        let inventory = inventory(row, &images, &containers);
        let refs = Refs::new(&inventory);
        let facts: Vec<_> = images.iter().map(|image| facts(image, memory[&image.id], &containers)).collect();
        let input = Input {
            inventory: &inventory,
            refs: &refs,
            facts: &facts,
            full_filesystems: &[],
            policy: &policy,
            now,
            scanned: now,
        };
        let (plan, attempted) = drive(input, &images, measure(fs));
        images.retain(|image| !plan.steps.iter().any(|step| image.id == step.target.id));
        check(&step.expect, &plan, &attempted, &images)
            .map_err(|error| format!("step {}: {error}", number + 1))?;
    }
    Ok(())
}

fn policy(row: &ImagesRow) -> Result<Policy, String> {
    let high = u8::try_from(row.policy.high_percent).map_err(|error| error.to_string())?;
    let low = u8::try_from(row.policy.low_percent).map_err(|error| error.to_string())?;
    let marks = Thresholds { high, low };
    let max_age = SignedDuration::from_millis(row.policy.max_age_ms);
    Ok(Policy {
        targets: Targets { used: Some(marks), ..Targets::default() },
        min_age: SignedDuration::from_millis(row.policy.min_age_ms),
        max_age: (!max_age.is_zero()).then_some(max_age),
        ..Policy::default()
    })
}

fn remember(memory: &mut Memory, images: &[Image], containers: &[RowContainer], now: jiff::Timestamp) {
    memory.retain(|id, _| images.iter().any(|image| image.id == *id));
    for image in images {
        let fresh = Ages::new(now, None, 0);
        let ages = memory.entry(image.id.clone()).or_insert(fresh);
        if containers.iter().any(|container| container.image_id == image.id) {
            *ages = Ages::new(ages.first_detected, Some(now), 0);
        }
    }
}

fn node(id: &str, bytes: u64) -> Node {
    Node {
        kind: NodeKind::Layer,
        id: id.into(),
        store: 0.into(),
        filesystem: 0.into(),
        path: format!("/store/{id}").into(),
        size: Size { bytes, apparent_bytes: bytes, inodes: 1, frees_bytes: bytes },
        needs: vec![],
        layer: None,
    }
}

/// Returns an inventory with one node for the bytes of each image alone, and one for each shared layer.
fn inventory(row: &ImagesRow, images: &[Image], containers: &[RowContainer]) -> Inventory {
    let layers: Vec<_> = row.layers.iter().collect();
    let mut nodes: Vec<_> = layers.iter().map(|(id, bytes)| node(id, **bytes)).collect();
    let mut listed = Vec::new();
    for image in images {
        let mut holds: Vec<NodeIx> = Vec::new();
        for name in &image.layers {
            let position = layers.iter().position(|(id, _)| *id == name).expect("a layer of the row");
            holds.push(position.into());
        }
        holds.push(nodes.len().into());
        nodes.push(node(&image.id, image.size));
        listed.push(model::Image {
            id: image.id.as_str().into(),
            store: 0.into(),
            names: vec![format!("registry.example/{}:1", image.id)],
            digests: vec![],
            created: None,
            evidence: vec![],
            origin: model::Origin::default(),
            blobs: vec![],
            is_list: false,
            pinned_by: if image.pinned { vec!["the row".into()] } else { vec![] },
            labels: Labels::default(),
            layers: vec![],
            listed_bytes: None,
            holds,
        });
    }
    let containers = containers.iter().map(|container| Container {
        id: "c".into(),
        store: 0.into(),
        name: "c".into(),
        owner: Owner::CriO,
        image_id: Some(container.image_id.as_str().into()),
        image: images.iter().position(|image| image.id == container.image_id).map(Into::into),
        created: None,
        state: ContainerState::Unknown,
        sandbox: false,
        sandbox_id: None,
        namespace: None,
        volumes: Vec::new(),
        listed_bytes: None,
        log: None,
        holds: vec![],
    });
    let store = Store {
        kind: StoreKind::ContainersStorage,
        root: "/store".into(),
        driver: "overlay".into(),
        filesystem: 0.into(),
        read_only: false,
        origin: "the row".into(),
        consistency: Consistency::Consistent,
    };
    let filesystem = Filesystem {
        mount: "/store".into(),
        device: "/dev/row".into(),
        fstype: "ext4".into(),
        capacity_bytes: 0,
        used_bytes: 0,
        available_bytes: 0,
        inodes: 0,
        inodes_free: 0,
    };
    let containers = containers.collect();
    Inventory {
        filesystems: vec![filesystem],
        stores: vec![store],
        nodes,
        images: listed,
        containers,
        ..Inventory::default()
    }
}

fn facts(image: &Image, ages: Ages, containers: &[RowContainer]) -> Facts {
    let mounts = containers.iter().flat_map(|container| &container.image_mounts);
    let used_by = mounts.filter(|mounted| **mounted == image.id).map(|_| "a volume of cri-o c".to_owned());
    Facts { ages: Some(ages), used_by: used_by.collect(), ..Facts::default() }
}

fn measure(fs: Option<Fs>) -> Measured {
    match fs {
        Some(fs) if !fs.error => Space::checked(fs.capacity_bytes, fs.available_bytes, None),
        _ => Err(InvalidStats::Failed("the row says so".into())),
    }
}

/// Runs the planner on a disk that frees the bytes of deleted nodes.
fn drive(input: Input<'_>, images: &[Image], mut measured: Measured) -> (Plan, Vec<String>) {
    let mut planner = Planner::new(input, Task::Policy);
    let mut attempted = Vec::new();
    while let Some(step) = planner.next(std::slice::from_ref(&measured)) {
        let image = images.iter().find(|image| image.id == step.target.id).unwrap();
        attempted.push(image.id.clone());
        if image.remove_error {
            planner.answer(Answer::failed(&step, "the row says so", Aftermath::Untouched));
        } else {
            measured = measured.map(|space| space.gained(step.predicted_bytes(), 0));
            planner.answer(Answer::Removed);
        }
    }
    (planner.finish(&[measured]), attempted)
}

fn check(expect: &Expect, plan: &Plan, attempted: &[String], images: &[Image]) -> Result<(), String> {
    let unknown = [
        expect.error.is_some(),
        expect.usage_percent.is_some(),
        expect.events.is_some(),
        expect.records.is_some(),
    ];
    if unknown.contains(&true) {
        return Err("policy exact has only outcome, kept and attempted".into());
    }
    let deleted: Vec<_> = plan.steps.iter().map(|step| step.target.id.clone()).collect();
    let remaining: Vec<_> = images.iter().map(|image| image.id.clone()).collect();
    lists(expect, &deleted, &remaining)?;
    if let Some(expected) = &expect.attempted {
        same("attempted", expected, &attempted.to_vec())?;
    }
    if let Some(freed) = expect.freed_bytes {
        same("freed_bytes", &freed, &plan.predicted_bytes())?;
    }
    if let Some(wanted) = expect.amount_to_free {
        same("amount_to_free", &wanted, &i64::try_from(plan.wanted_bytes()).unwrap())?;
    }
    if let Some(outcome) = &expect.outcome {
        same("outcome", outcome, &plan.outcome.as_str().to_owned())?;
    }
    if let Some(counters) = &expect.counters {
        let count = |reason| plan.steps.iter().filter(|step| step.cause.reason() == reason).count();
        let found = Counters { age: count(Reason::Age), space: count(Reason::Space) };
        same("counters", counters, &found)?;
    }
    if let Some(kept) = &expect.kept {
        let found = plan.kept.iter().map(|kept| (kept.target.id.clone(), kept.rule.as_str().to_owned()));
        same("kept", kept, &found.collect())?;
    }
    Ok(())
}
