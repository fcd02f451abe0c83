//! What fills the disks, each with its bytes: what a person would look for first.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use crate::app::diagnosis::parts::kind_of_large;
use crate::app::diagnosis::{Action, Cause, CauseKind, Divided, Part, PartKind, Planned};
use crate::history::ages::InventoryAges;
use crate::model::display::{self, shell_word, short_id, span};
use crate::model::refs::{self, Live, Root, Standing};
use crate::model::{
    Consistency, ContainerState, FilesystemIx, ImageIx, Inventory, Leak, LeakClass, LeakIx, NodeKind, Owner,
    PinReason, StoreKind, Verdict, removal_command,
};
use crate::policy::leaks::{self, Decision, KeepReason, LeakPlan};
use crate::stores::Scan;
use crate::stores::other_usage::{OtherUserKind, OtherUsers};

/// Causes that hold less than this share of what is used are not worth a sentence, leaks and
/// pins excepted.
const SMALL: u64 = 200;
/// And these nowhere.
const LEAST: u64 = 1 << 20;
/// Maximum number of causes of one kind.
const MOST: usize = 10;
/// Maximum number of leaks of one class that are listed by name.
const MOST_LEAKS_BY_NAME: usize = 3;

/// What was read.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The stores.
    pub scan: &'a Scan,
    /// The other users.
    pub other_users: &'a OtherUsers,
    /// What is remembered of the images.
    pub ages: &'a InventoryAges,
    /// Each filesystem's parts.
    pub divided: &'a [Divided],
    /// What becomes of the leaks.
    pub leaks: &'a LeakPlan,
    /// Nothing younger goes.
    pub min_age: SignedDuration,
    /// What goes now, by filesystem.
    pub planned: &'a [Planned],
}

/// What fills the filesystems, the largest first.
pub fn causes(context: &Context<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for at in 0..context.scan.inventory.filesystems.len() {
        let at = FilesystemIx::from(at);
        causes.extend(unused_images(context, at));
        most(&mut causes, out_of_reach(context, at));
        most(&mut causes, pinned_images(context, at));
        most(&mut causes, containers(context, at));
        most(&mut causes, build_caches(context, at));
        most(&mut causes, leaks(context, at));
        most(&mut causes, logs(context, at));
        most(&mut causes, volumes(context, at));
        most(&mut causes, other_users(context, at));
        most(&mut causes, large(context, at));
        let others = others(context, at, &causes);
        most(&mut causes, others);
    }
    causes.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.kind.cmp(&b.kind)).then_with(|| a.text.cmp(&b.text)));
    causes
}

fn most(all: &mut Vec<Cause>, mut some: Vec<Cause>) {
    some.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.text.cmp(&b.text)));
    some.truncate(MOST);
    all.extend(some);
}

impl Context<'_> {
    /// What is worth a word on a filesystem.
    fn least(&self, at: FilesystemIx) -> u64 {
        (self.scan.inventory.filesystems[at.get()].used_bytes / SMALL).max(LEAST)
    }

    fn inside(&self, path: &Path) -> String {
        self.scan.sysroot.shown(path)
    }

    /// Something that is called by its text, and that the operator has to deal with.
    fn cause(&self, at: FilesystemIx, kind: CauseKind, bytes: u64, text: String) -> Cause {
        Cause {
            kind,
            title: text.clone(),
            text,
            remedy: String::new(),
            bytes,
            filesystem: self.scan.inventory.filesystems[at.get()].mount.to_string_lossy().into_owned(),
            id: None,
            path: None,
            taken_by: Action::Operator,
            at,
        }
    }

    /// Bytes that one root frees on one filesystem when it alone goes.
    fn alone(&self, live: &Live<'_>, at: FilesystemIx, root: Root) -> u64 {
        let nodes = live.last_held(root).map(|node| &self.scan.inventory.nodes[node.get()]);
        nodes.filter(|node| node.filesystem == at).map(|node| node.size.frees_bytes).sum()
    }

    /// Bytes that a set frees on one filesystem when it goes.
    fn frees(&self, at: FilesystemIx, roots: &[Root]) -> u64 {
        let inventory = &self.scan.inventory;
        let mut live = self.scan.refs.live();
        let mut sum = 0_u64;
        for root in roots {
            let gone = live.last_held(*root).map(|node| &inventory.nodes[node.get()]);
            sum += gone.filter(|node| node.filesystem == at).map(|node| node.size.frees_bytes).sum::<u64>();
            live.remove(inventory, *root);
        }
        sum
    }
}

fn images_of(context: &Context<'_>, standing: Standing) -> Vec<ImageIx> {
    let inventory = &context.scan.inventory;
    let images = (0..inventory.images.len()).map(ImageIx::from);
    images
        .filter(|at| {
            // In a store with damaged records what looks unused may be in use.
            inventory.obstacle(*at).is_none()
                && refs::standing(inventory, &context.scan.refs, *at) == standing
        })
        .collect()
}

/// Unused images that layersweep cannot delete here, by reason.
fn out_of_reach(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let mut by_reason: BTreeMap<String, Vec<ImageIx>> = BTreeMap::new();
    for image in (0..inventory.images.len()).map(ImageIx::from) {
        if refs::standing(inventory, &context.scan.refs, image) == Standing::Unused
            && let Some(obstacle) = inventory.obstacle(image)
        {
            by_reason.entry(obstacle).or_default().push(image);
        }
    }
    let causes = by_reason.into_iter().filter_map(|(obstacle, images)| {
        let roots: Vec<_> = images.iter().map(|image| Root::Image(*image)).collect();
        let bytes = context.frees(at, &roots);
        let count = display::count(images.len(), "unused image", "unused images");
        (bytes >= LEAST).then(|| Cause {
            title: "images out of reach".into(),
            remedy: remedy_out_of_reach(inventory, images[0]),
            ..context.cause(
                at,
                CauseKind::ImagesOutOfReach,
                bytes,
                format!("{count} out of reach: {obstacle}"),
            )
        })
    });
    causes.collect()
}

/// Remedy for images that are out of reach for the same reason as `image`.
fn remedy_out_of_reach(inventory: &Inventory, image: ImageIx) -> String {
    let image = &inventory[image];
    let store = &inventory[image.store];
    match (store.kind, image.id.namespace()) {
        _ if store.consistency == Consistency::Damaged => "see the warnings".into(),
        (StoreKind::Containerd, Some("moby")) => "delete them with `docker image rm`".into(),
        (StoreKind::Containerd, Some(namespace)) => {
            format!("delete them with the program that uses the namespace {namespace}")
        }
        (StoreKind::Containerd, None) => String::new(),
        (StoreKind::ContainersStorage, _) if inventory.closed_stores.contains(&image.store) => String::new(),
        (StoreKind::ContainersStorage, _) => {
            let root = shell_word(&store.root.to_string_lossy());
            format!("`layersweep gc --via direct --graphroot {root}` deletes them by policy")
        }
    }
}

fn unused_images(context: &Context<'_>, at: FilesystemIx) -> Option<Cause> {
    let unused = images_of(context, Standing::Unused);
    let roots: Vec<_> = unused.iter().map(|image| Root::Image(*image)).collect();
    let bytes = context.frees(at, &roots);
    let inventory = &context.scan.inventory;
    let is_here = |root: &&Root| refs::has_bytes_on(inventory, &context.scan.refs, **root, at);
    let count = roots.iter().filter(is_here).count();
    let text = format!("{} that no container uses", display::count(count, "image", "images"));
    let Planned { command, gc, none, .. } = &context.planned[at.get()];
    let remedy = match gc.is_nothing() {
        true => format!("`{command}` deletes none of them now: {none}"),
        false => format!("`{command}` deletes them by policy, least recently used first"),
    };
    (bytes >= LEAST).then(|| Cause {
        title: "images not in use".into(),
        remedy,
        taken_by: Action::Layersweep,
        ..context.cause(at, CauseKind::UnusedImages, bytes, text)
    })
}

fn pinned_images(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let now = context.scan.taken_at;
    let live = context.scan.refs.live();
    let cause = |image: ImageIx| {
        let bytes = context.alone(&live, at, Root::Image(image));
        let facts = &inventory.images[image.get()];
        let name = facts.names.first().map_or_else(|| short_id(&facts.id), Clone::clone);
        let used = match context.ages.of(image).last_used {
            Some(last) => format!("last seen in use {}", ago(last, now)),
            None => "never seen in use".into(),
        };
        // Every pod needs it, whether one is there just now or not.
        let pause = facts.pinned_by.iter().any(|pin| pin.text.contains("pause_image"));
        let kept = match inventory.protected.get(&image) {
            Some(rule) if facts.pinned_by.is_empty() => format!("kept: {rule}"),
            _ => format!("pinned by {}", facts.pin_texts().join(", ")),
        };
        let text = format!("unused image {name} ({used}), {kept}");
        (bytes >= context.least(at) && !pause).then(|| Cause {
            title: format!("pinned image {name}"),
            remedy: unpin(&facts.pinned_by, context.planned[at.get()].command),
            id: Some(facts.id.to_string()),
            ..context.cause(at, CauseKind::PinnedImage, bytes, text)
        })
    };
    images_of(context, Standing::Pinned).into_iter().filter_map(cause).collect()
}

/// What takes pins away, each where it was set.
fn unpin(pinned_by: &[PinReason], command: &str) -> String {
    let mut how: Vec<&str> = Vec::new();
    for undo in pinned_by.iter().filter_map(|pin| pin.undo.as_deref()) {
        if !how.contains(&undo) {
            how.push(undo);
        }
    }
    match how.is_empty() {
        true => format!("if nothing needs it, remove the pin; then `{command}` can delete it"),
        false => format!("if nothing needs it: {}; then `{command}` can delete it", how.join(", ")),
    }
}

/// Containers by what their own writable layers hold.
fn containers(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let foreign = context.scan.sysroot.is_foreign();
    let live = context.scan.refs.live();
    let mut found = Vec::new();
    for (position, container) in inventory.containers.iter().enumerate() {
        let bytes = context.alone(&live, at, Root::Container(position.into()));
        if bytes < context.least(at) {
            continue;
        }
        let (kind, state) = match (container.state, foreign) {
            (ContainerState::Exited, _) => (CauseKind::DeadContainer, "exited"),
            // The kubelet is about to start it, or just has.
            (ContainerState::Created, false) if container.owner == Owner::CriO => {
                (CauseKind::Container, "created")
            }
            (ContainerState::Created, _) => (CauseKind::DeadContainer, "created, never started"),
            (ContainerState::Running, false) => (CauseKind::Container, "running"),
            (ContainerState::Unknown, false) => (CauseKind::Container, "state unknown, may be running"),
            // On a disk that is mounted elsewhere nothing runs any more.
            (ContainerState::Running, true) => {
                (CauseKind::DeadContainer, "running when the disk was last in use")
            }
            (ContainerState::Unknown, true) => (CauseKind::DeadContainer, "last state unknown"),
        };
        let dead = kind == CauseKind::DeadContainer;
        let mut held = container.holds.iter().map(|node| &inventory.nodes[node.get()]);
        let layer = held.find(|node| matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot));
        let (name, owner) = (&container.name, container.owner.as_str());
        let text = format!("writable layer of {name} container {owner} ({state})");
        found.push(Cause {
            title: format!("container {name}"),
            remedy: match dead {
                true => {
                    let graphroot = context.inside(&inventory[container.store].root);
                    let graphroot = Path::new(&graphroot);
                    let command =
                        removal_command(container.owner, &container.id, container.sandbox, graphroot);
                    removal(container.owner, &container.id, command, foreign)
                }
                false => "find out what it writes to its root filesystem; use a volume for that".into(),
            },
            id: Some(container.id.to_string()),
            path: layer.map(|node| context.inside(&node.path)),
            taken_by: if dead { Action::Operator } else { Action::Nobody },
            ..context.cause(at, kind, bytes, text)
        });
    }
    found
}

/// Remedy for a container that has ended. `foreign`: on a disk where no runtime runs.
fn removal(owner: Owner, id: &str, command: Option<String>, foreign: bool) -> String {
    let how = match (owner, command, id.rsplit_once('/')) {
        (Owner::CriO, Some(command), _) | (Owner::Containerd, Some(command), None) => {
            format!("`{command}` removes it, or `layersweep gc` with [containers] enabled")
        }
        (_, Some(command), _) => format!("`{command}` removes it"),
        (Owner::Containerd, None, Some((namespace, _))) => {
            format!("remove it with the program that made it, in the namespace {namespace} of containerd")
        }
        (_, None, _) => "remove it with the tool that created it".into(),
    };
    if foreign { format!("once the node runs: {how}") } else { how }
}

/// Data that builders keep, without the layers that images and containers reach.
fn build_caches(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let Scan { inventory, refs, .. } = context.scan;
    let mut found = Vec::new();
    for cache in &inventory.build_caches {
        let nodes = cache.holds.iter().filter(|node| refs.refcount(**node) == 0);
        let nodes = nodes.map(|node| &inventory[*node]).filter(|node| node.filesystem == at);
        let bytes = nodes.map(|node| node.size.frees_bytes).fold(0, u64::saturating_add);
        if bytes < LEAST {
            continue;
        }
        let records = display::count(cache.records, "record", "records");
        found.push(Cause {
            title: format!("build cache of {}", cache.owner()),
            remedy: cache.remedy().into(),
            path: Some(context.inside(&inventory[cache.store].root)),
            ..context.cause(
                at,
                CauseKind::BuildCache,
                bytes,
                format!(
                    "build cache of {} (namespace {} of containerd): {records}",
                    cache.owner(),
                    cache.namespace
                ),
            )
        });
    }
    found
}

/// Leaks, each by itself; more than a few of one class for which the same has to be done are one cause.
fn leaks(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let live = context.scan.refs.live();
    let decisions: BTreeMap<_, _> =
        context.leaks.entries.iter().map(|entry| (entry.leak.get(), &entry.decision)).collect();
    let mut groups: BTreeMap<_, Vec<(usize, u64)>> = BTreeMap::new();
    for (position, leak) in inventory.leaks.iter().enumerate() {
        let bytes = context.alone(&live, at, Root::Leak(LeakIx::from(position)));
        if bytes > 0 {
            let (_, remedy) = remedy_of_leak(context, leak, decisions.get(&position), true);
            groups.entry((leak.class, remedy)).or_default().push((position, bytes));
        }
    }
    let mut found = Vec::new();
    for ((class, _), members) in groups {
        if members.len() > MOST_LEAKS_BY_NAME {
            let roots: Vec<_> =
                members.iter().map(|(position, _)| Root::Leak(LeakIx::from(*position))).collect();
            let bytes = context.frees(at, &roots);
            let Some((first, _)) = members.iter().max_by_key(|(_, bytes)| *bytes) else { continue };
            if bytes >= LEAST {
                let leak = &inventory.leaks[*first];
                let (taken_by, remedy) = remedy_of_leak(context, leak, decisions.get(first), true);
                let title = format!("{} leaks of class {class}", members.len());
                let text = format!("{title}; the largest: {}", leak.evidence);
                let cause = context.cause(at, CauseKind::Leak, bytes, text);
                found.push(Cause { title, remedy, taken_by, ..cause });
            }
            continue;
        }
        for (position, bytes) in members.into_iter().filter(|(_, bytes)| *bytes >= LEAST) {
            let leak = &inventory.leaks[position];
            let (taken_by, remedy) = remedy_of_leak(context, leak, decisions.get(&position), false);
            let name = match class {
                // It is in no store, and its name alone does not tell where.
                LeakClass::VarTmp => format!("{class} {}", context.inside(&leak.path)),
                _ => format!("{class} {}", short_id(&leak.id)),
            };
            found.push(Cause {
                title: format!("leak {name}"),
                remedy,
                id: Some(leak.id.clone()),
                path: Some(context.inside(&leak.path)),
                taken_by,
                ..context.cause(at, CauseKind::Leak, bytes, format!("{name}: {}", leak.evidence))
            });
        }
    }
    found
}

/// Remedy for a leak, or for `many` of its class, and the program or person that applies it.
fn remedy_of_leak(
    context: &Context<'_>,
    leak: &Leak,
    decision: Option<&&Decision>,
    many: bool,
) -> (Action, String) {
    let it = if many { "them" } else { "it" };
    let by_containerd = context.scan.inventory.stores[leak.store.get()].kind == StoreKind::Containerd;
    let stays = decision.and_then(|decision| match decision {
        Decision::Stay(stay) => Some(stay),
        Decision::Delete(_) | Decision::Repair => None,
    });
    let class = leak.class;
    match (leak.verdict, stays) {
        (Verdict::Reclaim, _) if by_containerd => {
            (Action::Operator, format!("containerd removes {it} automatically; see docs/leaks.md"))
        }
        (Verdict::Reclaim, None) => {
            (Action::Layersweep, format!("`layersweep sweep --delete --class {class}` removes {it}"))
        }
        (Verdict::Reclaim, Some(KeepReason::Young(_))) => {
            let min_age = span(context.min_age);
            let when = if many { "once they are" } else { "once it is" };
            (
                Action::Layersweep,
                format!("`layersweep sweep --delete --class {class}` removes {it} {when} {min_age} old"),
            )
        }
        (Verdict::Reclaim, Some(stay)) => {
            let why = leaks::reason(leak, stay, context.min_age);
            (Action::Operator, format!("not deletable: {why}"))
        }
        (Verdict::Repair, _) if class.recipe().is_some() => {
            (Action::Operator, format!("`layersweep sweep --repair {class}` fixes {it}"))
        }
        // It looks like a leak and is not.
        (Verdict::Keep, _) => (Action::Nobody, String::new()),
        (Verdict::Repair | Verdict::Report, _) => {
            let advice = match (class.by_hand(), leaks::command(leak)) {
                ("", _) => "needs manual inspection".to_owned(),
                (clause, Some(command)) if !many => format!("{clause}: `{command}`"),
                (clause, _) => clause.to_owned(),
            };
            (Action::Operator, format!("{advice}; see docs/leaks.md"))
        }
    }
}

fn logs(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let big = context.other_users.logs.iter().filter(|log| log.filesystem == at);
    let big = big.filter(|log| log.bytes >= context.least(at));
    big.map(|log| {
        let path = context.inside(&log.path);
        let whose = match (&log.pod, &log.container) {
            (Some(pod), Some(container)) => format!(" of container {container} in pod {pod}"),
            (Some(pod), None) => format!(" of pod {pod}"),
            (None, _) => String::new(),
        };
        Cause {
            title: match &log.pod {
                Some(pod) => format!("log of pod {pod}"),
                None => format!("log {path}"),
            },
            remedy: format!(
                "{}`truncate -s 0 {}` empties it at once, if nobody needs it; {} limits it",
                if context.scan.sysroot.is_foreign() { "once the node runs: " } else { "" },
                shell_word(&path),
                if log.pod.is_some() { "the kubelet's containerLogMaxSize" } else { "logrotate" }
            ),
            id: log.pod.clone(),
            path: Some(path.clone()),
            ..context.cause(at, CauseKind::Log, log.bytes, format!("log {path}{whose}"))
        }
    })
    .collect()
}

fn volumes(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let pods = context.other_users.pods.iter();
    let pods = pods.filter(|pod| pod.filesystem == at && pod.kind == OtherUserKind::KubeletVolumes);
    pods.filter(|pod| pod.bytes >= context.least(at))
        .map(|pod| Cause {
            title: format!("volumes of pod {}", pod.pod),
            remedy: "they are deleted with the pod; an emptyDir can have a sizeLimit".into(),
            id: Some(pod.pod.clone()),
            path: Some(context.inside(&pod.path)),
            ..context.cause(
                at,
                CauseKind::KubeletVolume,
                pod.bytes,
                format!("volumes of pod {} on this disk", pod.pod),
            )
        })
        .collect()
}

fn other_users(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let here = context.other_users.other_users.iter().filter(|user| user.filesystem == at);
    here.filter_map(|user| {
        // Files that tools of the stores have left there are reported as leaks.
        let nodes = context.scan.inventory.nodes.iter().filter(|node| node.kind == NodeKind::TemporaryFile);
        let leaks = nodes.filter(|node| node.path.starts_with(&user.path)).map(|node| node.size.bytes);
        let bytes = user.bytes.saturating_sub(leaks.sum());
        if bytes < context.least(at) {
            return None;
        }
        let path = context.inside(&user.path);
        let (kind, text, remedy) = match user.kind {
            OtherUserKind::Journal => (
                CauseKind::Journal,
                format!("the journal in {path}"),
                "`journalctl --vacuum-size=500M` shrinks it; SystemMaxUse in journald.conf limits it",
            ),
            OtherUserKind::VarTmp => (
                CauseKind::VarTmp,
                format!("temporary files in {path}"),
                "find out what left them; systemd-tmpfiles removes those older than 30 days",
            ),
            OtherUserKind::CoreDumps => {
                (CauseKind::CoreDumps, format!("core dumps in {path}"), "inspect them, then delete them")
            }
            OtherUserKind::DeletedOpen => (
                CauseKind::DeletedOpen,
                format!(
                    "{path}, deleted, but held open by {}",
                    user.holder.as_deref().unwrap_or("a process")
                ),
                "it is freed when that process closes it or exits",
            ),
            // Those have causes of their own, or are among the others.
            _ => return None,
        };
        let cause = context.cause(at, kind, bytes, text);
        Some(Cause { remedy: remedy.into(), path: Some(path), ..cause })
    })
    .collect()
}

/// Large directories in the stores that belong to no image or container.
fn large(context: &Context<'_>, at: FilesystemIx) -> Vec<Cause> {
    let here = context.other_users.large.iter().filter(|directory| directory.filesystem == at);
    let here = here.filter(|directory| directory.bytes >= context.least(at));
    here.map(|directory| {
        let path = context.inside(&directory.path);
        let root = context.inside(&context.scan.inventory[directory.store].root);
        let kind = kind_of_large(directory);
        let largest = directory.largest.as_ref().map_or_else(String::new, |(path, bytes)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            format!(", the largest: {name} {}", display::bytes(*bytes))
        });
        let podman = match root.as_str() {
            "/var/lib/containers/storage" => "podman".to_owned(),
            root => format!("podman --root {}", shell_word(root)),
        };
        let remedy = match kind {
            "volumes" => format!(
                "`{podman} volume ls` lists them; `{podman} volume prune` deletes those that no container uses, with their \
                 data"
            ),
            "another store" => {
                format!("`layersweep --graphroot {} usage` shows what is in it", shell_word(&path))
            }
            _ => "no image or container needs it by the store's records; inspect it before deleting it".into(),
        };
        let once = if context.scan.sysroot.is_foreign() { "once the node runs: " } else { "" };
        let text = format!("{kind}, {path}{largest}");
        Cause {
            title: format!("{kind} in {root}"),
            remedy: format!("{once}{remedy}"),
            path: Some(path),
            ..context.cause(at, CauseKind::Other, directory.bytes, text)
        }
    })
    .collect()
}

/// What is no container's: named where it is much, apart from the logs that are `named` already.
fn others(context: &Context<'_>, at: FilesystemIx, named: &[Cause]) -> Vec<Cause> {
    let used = context.scan.inventory.filesystems[at.get()].used_bytes;
    let parts = context.divided.get(at.get()).map_or(&[][..], |divided| &divided.parts);
    let logs = named.iter().filter(|cause| cause.at == at && cause.kind == CauseKind::Log);
    // Files that tools of the stores have left there are reported as leaks.
    let nodes = context.scan.inventory.nodes.iter();
    let nodes = nodes.filter(|node| node.kind == NodeKind::TemporaryFile && node.filesystem == at);
    let leaks: Vec<_> = nodes.map(|node| (context.inside(&node.path), node.size.bytes)).collect();
    let of_leaks = leaks.iter().map(|(path, bytes)| (path.as_str(), *bytes));
    let named = logs.filter_map(|cause| Some((cause.path.as_deref()?, cause.bytes))).chain(of_leaks);
    let left = besides(parts, named);
    let is_leak = |part: &Part| {
        let path = part.path.as_ref().map(Path::new);
        path.is_some_and(|path| leaks.iter().any(|(leak, _)| path.starts_with(leak)))
    };
    let hidden = hidden(context.scan, context.other_users, at);
    let kinds = [PartKind::Directory, PartKind::Swap, PartKind::Other];
    let others = parts.iter().zip(left).filter(|(part, _)| kinds.contains(&part.kind) && !is_leak(part));
    others
        .filter(|(_, bytes)| *bytes >= (used / 20).max(LEAST))
        .map(|(part, bytes)| {
            let path = part.path.as_ref();
            let hidden = hidden.as_ref().filter(|_| part.kind == PartKind::Other);
            let label = || hidden.map_or_else(|| part.label.clone(), |(text, _)| text.clone());
            let text = path.map_or_else(label, |path| format!("other data in {path}"));
            let drill = |path: &String| {
                let is_directory =
                    context.scan.sysroot.open(Path::new(path)).is_ok_and(|root| root.directory().is_ok());
                let then = format!("; `layersweep explain {}` shows what is in it", shell_word(path));
                format!("layersweep never deletes this{}", if is_directory { &then } else { "" })
            };
            let looking = || hidden.map(|(_, remedy)| remedy.clone()).unwrap_or_default();
            let remedy = path.map_or_else(looking, drill);
            let cause = context.cause(at, CauseKind::Other, bytes, text);
            Cause { remedy, path: part.path.clone(), taken_by: Action::Nobody, ..cause }
        })
        .collect()
}

/// Bytes of a filesystem that are in no visible file, in words, and how to look for them. Every visible file was
/// measured; what a filesystem keeps for itself is less than this share of it.
pub fn hidden(scan: &Scan, other_users: &OtherUsers, at: FilesystemIx) -> Option<(String, String)> {
    /// More are for the mount table.
    const NAMED: usize = 3;
    let seen = other_users.seen_whole.iter().find(|seen| seen.filesystem == at)?;
    let filesystem = &scan.inventory[at];
    let outside = other_users.other_users.iter().filter(|user| user.filesystem == at).map(|user| user.bytes);
    let visible = refs::size_on_disk(&scan.inventory, at).into_iter().chain(outside);
    let unseen = filesystem.used_bytes.saturating_sub(visible.fold(0, u64::saturating_add));
    let least = (filesystem.used_bytes / 20).max(filesystem.capacity_bytes / 50).max(LEAST);
    let first = seen.mount_points.first().filter(|_| unseen >= least)?;
    let mut points: Vec<_> =
        seen.mount_points.iter().take(NAMED).map(|path| scan.sysroot.shown(path)).collect();
    let more = seen.mount_points.len().saturating_sub(NAMED);
    points.extend((more > 0).then(|| format!("and {more} more")));
    let text = format!(
        "{} are in no visible file, probably hidden below a mount point of this filesystem: {}",
        display::bytes(unseen),
        points.join(", ")
    );
    let below = Path::new("/mnt").join(first.strip_prefix(&seen.top).unwrap_or(first));
    let remedy = format!(
        "look with `mount --bind {} /mnt`, then for example `du -shx {}`; `umount /mnt` ends it",
        shell_word(&seen.top.to_string_lossy()),
        shell_word(&below.to_string_lossy())
    );
    Some((text, remedy))
}

/// The bytes of each part without those of `files`, which are in the part whose path is the longest above
/// theirs.
fn besides<'a>(parts: &[Part], files: impl Iterator<Item = (&'a str, u64)>) -> Vec<u64> {
    let mut left: Vec<_> = parts.iter().map(|part| part.bytes).collect();
    for (path, bytes) in files {
        let above = parts.iter().enumerate().filter_map(|(at, part)| Some((at, part.path.as_deref()?)));
        let above = above.filter(|(_, above)| Path::new(path).starts_with(above));
        if let Some((at, _)) = above.max_by_key(|(_, above)| above.len()) {
            left[at] = left[at].saturating_sub(bytes);
        }
    }
    left
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    match now.duration_since(at).as_hours().max(0) {
        hours @ 0..48 => format!("{hours} h ago"),
        hours => format!("{} days ago", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_the_part_nearest_above_it() {
        let part =
            |path: &str, bytes| Part { path: Some(path.into()), ..Part::new(PartKind::Directory, bytes) };
        let parts = [part("/var/log", 100), part("/var/log/pods", 50), part("/var/lo", 7)];
        let left = |files: &[(&str, u64)]| besides(&parts, files.iter().copied());
        assert_eq!(left(&[]), [100, 50, 7]);
        assert_eq!(left(&[("/var/log/a", 60), ("/var/log/pods/b/0.log", 20), ("/srv/c", 5)]), [40, 30, 7]);
        assert_eq!(left(&[("/var/log/a", 160)]), [0, 50, 7], "measured at another moment");
    }

    #[test]
    fn a_pin_is_removed_where_it_was_set() {
        let pin = |undo: Option<&str>| PinReason { undo: undo.map(Into::into), ..PinReason::from("x") };
        for (pinned_by, said) in [
            (
                vec![pin(Some("a")), pin(None), pin(Some("b")), pin(Some("a"))],
                "if nothing needs it: a, b; then",
            ),
            (vec![pin(None)], "if nothing needs it, remove the pin; then `layersweep gc` can delete it"),
        ] {
            let remedy = unpin(&pinned_by, "layersweep gc");
            assert!(remedy.starts_with(said), "{said}: {remedy}");
        }
    }

    #[test]
    fn a_container_is_removed_by_who_made_it() {
        let id = "0123456789abcdef";
        for (owner, id, sandbox, foreign, said) in [
            (
                Owner::CriO,
                id.to_owned(),
                false,
                false,
                "`crictl rm 0123456789ab` removes it, or `layersweep gc`",
            ),
            (Owner::CriO, id.to_owned(), true, false, "`crictl rmp 0123456789ab`"),
            (Owner::Containerd, id.to_owned(), false, true, "once the node runs: `crictl rm 0123456789ab`"),
            (Owner::Docker, format!("moby/{id}"), false, false, "`docker rm 0123456789ab`"),
            (
                Owner::Containerd,
                format!("default/{id}"),
                false,
                false,
                "`ctr -n default containers rm 0123456789abcdef`",
            ),
            (Owner::Containerd, format!("ci/{id}"), false, false, "remove it with the program that made it"),
            (
                Owner::Podman,
                id.to_owned(),
                false,
                true,
                "once the node runs: `podman rm 0123456789ab` removes it",
            ),
            (Owner::Unknown, id.to_owned(), false, false, "remove it with the tool"),
        ] {
            let graphroot = Path::new("/var/lib/containers/storage");
            let remedy = removal(owner, &id, removal_command(owner, &id, sandbox, graphroot), foreign);
            assert!(remedy.starts_with(said), "{said}: {remedy}");
        }
    }
}
