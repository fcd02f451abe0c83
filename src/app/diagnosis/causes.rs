//! Causes of the usage: the objects that fill the filesystems, each with its bytes and its remedy.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use crate::app::diagnosis::parts::kind_of_large;
use crate::app::diagnosis::{Action, Cause, CauseKind, Divided, Part, PartKind, Planned};
use crate::history::ages::InventoryAges;
use crate::model::display::{self, shell_word, short_id, span};
use crate::model::refs::{self, Live, Root, Standing};
use crate::model::{
    Consistency, Container, ContainerState, FilesystemIx, ImageIx, Inventory, Leak, LeakClass, LeakIx,
    NodeKind, Owner, PinReason, StoreKind, Verdict, removal_command,
};
use crate::policy::leaks::{self, Decision, KeepReason, LeakPlan};
use crate::stores::Scan;
use crate::stores::other_usage::{OtherUserKind, OtherUsers};

/// Inverse of the minimum share of the used bytes: a cause below 1/200 of them is left out. For leaks, build caches
/// and unused images that are not pinned, only [`LEAST`] applies.
const SMALL: u64 = 200;
/// Minimum bytes of any cause.
const LEAST: u64 = 1 << 20;
/// Maximum number of causes of one kind.
const MOST: usize = 10;
/// Maximum number of leaks of one class that are listed by name.
const MOST_LEAKS_BY_NAME: usize = 3;

/// Facts from which the causes are determined.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub scan: &'a Scan,
    /// Users of the filesystems outside the stores.
    pub other_users: &'a OtherUsers,
    pub ages: &'a InventoryAges,
    /// Parts of each filesystem.
    pub divided: &'a [Divided],
    /// Plan of `sweep --delete`.
    pub leaks: &'a LeakPlan,
    /// Minimum age of a leak that is deleted.
    pub min_age: SignedDuration,
    /// Bytes that would be freed now, by filesystem.
    pub planned: &'a [Planned],
}

/// Returns the causes of the usage of all filesystems, the largest first.
pub fn causes(context: &Context<'_>) -> Vec<Cause> {
    let mut causes = Vec::new();
    for ix in (0..context.scan.inventory.filesystems.len()).map(FilesystemIx::from) {
        causes.extend(unused_images(context, ix));
        extend_with_largest(&mut causes, out_of_reach(context, ix));
        extend_with_largest(&mut causes, pinned_images(context, ix));
        extend_with_largest(&mut causes, containers(context, ix));
        extend_with_largest(&mut causes, container_logs(context, ix));
        extend_with_largest(&mut causes, build_caches(context, ix));
        extend_with_largest(&mut causes, leaks(context, ix));
        extend_with_largest(&mut causes, logs(context, ix));
        extend_with_largest(&mut causes, volumes(context, ix));
        extend_with_largest(&mut causes, other_users(context, ix));
        extend_with_largest(&mut causes, large(context, ix));
        let others = others(context, ix, &causes);
        extend_with_largest(&mut causes, others);
    }
    causes.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.kind.cmp(&b.kind)).then_with(|| a.text.cmp(&b.text)));
    causes
}

/// Adds the largest causes of one kind, at most [`MOST`].
fn extend_with_largest(causes: &mut Vec<Cause>, mut of_kind: Vec<Cause>) {
    of_kind.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.text.cmp(&b.text)));
    of_kind.truncate(MOST);
    causes.extend(of_kind);
}

impl Context<'_> {
    /// Returns the minimum bytes of a cause on a filesystem.
    fn least(&self, ix: FilesystemIx) -> u64 {
        (self.scan.inventory.filesystems[ix.get()].used_bytes / SMALL).max(LEAST)
    }

    /// Returns a path as the node itself names it.
    fn inside(&self, path: &Path) -> String {
        self.scan.sysroot.shown(path)
    }

    /// Returns a cause whose title is its text, and that the operator has to remove.
    fn cause(&self, ix: FilesystemIx, kind: CauseKind, bytes: u64, text: String) -> Cause {
        Cause {
            kind,
            title: text.clone(),
            text,
            remedy: String::new(),
            bytes,
            filesystem: self.scan.inventory.filesystems[ix.get()].mount.to_string_lossy().into_owned(),
            id: None,
            path: None,
            taken_by: Action::Operator,
            filesystem_ix: ix,
        }
    }

    /// Returns the bytes that are freed on a filesystem if only this root is deleted.
    fn alone(&self, live: &Live<'_>, ix: FilesystemIx, root: Root) -> u64 {
        let nodes = live.last_held(root).map(|node| &self.scan.inventory.nodes[node.get()]);
        nodes.filter(|node| node.filesystem == ix).map(|node| node.size.frees_bytes).sum()
    }

    /// Returns the bytes that are freed on a filesystem if all these roots are deleted.
    fn frees(&self, ix: FilesystemIx, roots: &[Root]) -> u64 {
        let inventory = &self.scan.inventory;
        let mut live = self.scan.refs.live();
        let mut sum = 0_u64;
        for root in roots {
            let freed = live.last_held(*root).map(|node| &inventory.nodes[node.get()]);
            sum += freed.filter(|node| node.filesystem == ix).map(|node| node.size.frees_bytes).sum::<u64>();
            live.remove(inventory, *root);
        }
        sum
    }
}

fn images_of(context: &Context<'_>, standing: Standing) -> Vec<ImageIx> {
    let inventory = &context.scan.inventory;
    let images = (0..inventory.images.len()).map(ImageIx::from);
    images
        .filter(|ix| {
            // An image that looks unused in a store with damaged records may be in use.
            inventory.obstacle(*ix).is_none()
                && refs::standing(inventory, &context.scan.refs, *ix) == standing
        })
        .collect()
}

/// Returns a cause for each reason why layersweep cannot delete unused images on this node.
fn out_of_reach(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
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
        let bytes = context.frees(ix, &roots);
        let count = display::count(images.len(), "unused image", "unused images");
        (bytes >= LEAST).then(|| Cause {
            title: "images out of reach".into(),
            remedy: remedy_out_of_reach(inventory, images[0]),
            ..context.cause(
                ix,
                CauseKind::ImagesOutOfReach,
                bytes,
                format!("{count} out of reach: {obstacle}"),
            )
        })
    });
    causes.collect()
}

/// Returns the remedy for images that are out of reach for the same reason as `image`.
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

fn unused_images(context: &Context<'_>, ix: FilesystemIx) -> Option<Cause> {
    let unused = images_of(context, Standing::Unused);
    let roots: Vec<_> = unused.iter().map(|image| Root::Image(*image)).collect();
    let bytes = context.frees(ix, &roots);
    let inventory = &context.scan.inventory;
    let count =
        roots.iter().filter(|root| refs::has_bytes_on(inventory, &context.scan.refs, **root, ix)).count();
    let text = format!("{} that no container uses", display::count(count, "image", "images"));
    let Planned { command, gc, none, .. } = &context.planned[ix.get()];
    let remedy = match gc.is_nothing() {
        true => format!("`{command}` deletes none of them now: {none}"),
        false => format!("`{command}` deletes them by policy, least recently used first"),
    };
    (bytes >= LEAST).then(|| Cause {
        title: "images not in use".into(),
        remedy,
        taken_by: Action::Layersweep,
        ..context.cause(ix, CauseKind::UnusedImages, bytes, text)
    })
}

fn pinned_images(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let now = context.scan.taken_at;
    let live = context.scan.refs.live();
    let causes = images_of(context, Standing::Pinned).into_iter().filter_map(|image| {
        let bytes = context.alone(&live, ix, Root::Image(image));
        let facts = &inventory.images[image.get()];
        let name = facts.names.first().map_or_else(|| short_id(&facts.id), Clone::clone);
        let used = match context.ages.of(image).last_used {
            Some(last) => format!("last seen in use {}", ago(last, now)),
            None => "never seen in use".into(),
        };
        // The pause image is not unused: the next pod needs it.
        let pause = facts.pinned_by.iter().any(|pin| pin.text.contains("pause_image"));
        let kept = match inventory.protected.get(&image) {
            Some(rule) if facts.pinned_by.is_empty() => format!("kept: {rule}"),
            _ => format!("pinned by {}", facts.pin_texts().join(", ")),
        };
        let text = format!("unused image {name} ({used}), {kept}");
        (bytes >= context.least(ix) && !pause).then(|| Cause {
            title: format!("pinned image {name}"),
            remedy: unpin(&facts.pinned_by, context.planned[ix.get()].command),
            id: Some(facts.id.to_string()),
            ..context.cause(ix, CauseKind::PinnedImage, bytes, text)
        })
    });
    causes.collect()
}

/// Returns the remedy that removes the pins of an image, each where it was set.
fn unpin(pinned_by: &[PinReason], command: &str) -> String {
    let mut steps: Vec<&str> = Vec::new();
    for undo in pinned_by.iter().filter_map(|pin| pin.undo.as_deref()) {
        if !steps.contains(&undo) {
            steps.push(undo);
        }
    }
    match steps.is_empty() {
        true => format!("if nothing needs it, remove the pin; then `{command}` can delete it"),
        false => format!("if nothing needs it: {}; then `{command}` can delete it", steps.join(", ")),
    }
}

/// Returns the containers with large writable layers.
fn containers(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let foreign = context.scan.sysroot.is_foreign();
    let live = context.scan.refs.live();
    let mut causes = Vec::new();
    for (position, container) in inventory.containers.iter().enumerate() {
        let bytes = context.alone(&live, ix, Root::Container(position.into()));
        let (kind, state) = match (container.state, foreign) {
            (ContainerState::Exited, _) => (CauseKind::DeadContainer, "exited"),
            // The kubelet is about to start the container, or has just started it.
            (ContainerState::Created, false) if container.owner == Owner::CriO => {
                (CauseKind::Container, "created")
            }
            (ContainerState::Created, _) => (CauseKind::DeadContainer, "created, never started"),
            (ContainerState::Running, false) => (CauseKind::Container, "running"),
            (ContainerState::Unknown, false) => (CauseKind::Container, "state unknown, may be running"),
            // No container runs on a disk that is mounted on another machine.
            (ContainerState::Running, true) => {
                (CauseKind::DeadContainer, "running when the disk was last in use")
            }
            (ContainerState::Unknown, true) => (CauseKind::DeadContainer, "last state unknown"),
        };
        let dead = kind == CauseKind::DeadContainer;
        let log_bytes = log_bytes(context, ix, container);
        // The log of a container that stays is a cause of its own.
        let bytes = if dead { bytes } else { bytes.saturating_sub(log_bytes) };
        if bytes < context.least(ix) {
            continue;
        }
        let mut held = container.holds.iter().map(|node| &inventory.nodes[node.get()]);
        let layer = held.find(|node| matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot));
        let (name, owner) = (&container.name, container.owner.as_str());
        let part = if dead && log_bytes > bytes / 2 { "log and writable layer" } else { "writable layer" };
        let text = format!("{part} of {name} container {owner} ({state})");
        causes.push(Cause {
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
            ..context.cause(ix, kind, bytes, text)
        });
    }
    causes
}

/// Returns the bytes of the log among a container's own files on a filesystem.
fn log_bytes(context: &Context<'_>, ix: FilesystemIx, container: &Container) -> u64 {
    let inventory = &context.scan.inventory;
    let metadata = container.holds.iter().map(|node| &inventory.nodes[node.get()]);
    let metadata = metadata.filter(|node| node.kind == NodeKind::ContainerMetadata && node.filesystem == ix);
    let most = metadata.map(|node| node.size.frees_bytes).sum();
    container.log.as_ref().map_or(0, |log| log.bytes.min(most))
}

/// Returns the logs that running containers have among their own files.
fn container_logs(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let foreign = context.scan.sysroot.is_foreign();
    let mut causes = Vec::new();
    for container in &context.scan.inventory.containers {
        let (Some(log), bytes) = (&container.log, log_bytes(context, ix, container)) else { continue };
        let stays = !foreign && matches!(container.state, ContainerState::Running | ContainerState::Unknown);
        if !stays || bytes < context.least(ix) {
            continue;
        }
        let path = context.inside(&log.path);
        let (name, owner) = (&container.name, container.owner.as_str());
        causes.push(Cause {
            title: format!("log of container {name}"),
            remedy: format!(
                "`truncate -s 0 {}` empties it at once, if it is not needed; `--log-opt max-size=10mb` when the \
                 container is made limits it",
                shell_word(&path)
            ),
            id: Some(container.id.to_string()),
            path: Some(path),
            ..context.cause(ix, CauseKind::Log, bytes, format!("log of {name} container {owner}"))
        });
    }
    causes
}

/// Returns the remedy for a container that does not run. `foreign`: the container is on another machine's disk, where
/// no runtime runs.
fn removal(owner: Owner, id: &str, command: Option<String>, foreign: bool) -> String {
    let remedy = match (owner, command, id.rsplit_once('/')) {
        (Owner::CriO, Some(command), _) | (Owner::Containerd, Some(command), None) => {
            format!("`{command}` removes it, or `layersweep gc` with [containers] enabled")
        }
        (_, Some(command), _) => format!("`{command}` removes it"),
        (Owner::Containerd, None, Some((namespace, _))) => {
            format!("remove it with the program that made it, in the namespace {namespace} of containerd")
        }
        (_, None, _) => "remove it with the tool that created it".into(),
    };
    if foreign { format!("once the node runs: {remedy}") } else { remedy }
}

/// Returns the build caches. Layers that images or containers reach are not counted.
fn build_caches(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let Scan { inventory, refs, .. } = context.scan;
    let mut causes = Vec::new();
    for cache in &inventory.build_caches {
        let nodes = cache.holds.iter().filter(|node| refs.refcount(**node) == 0);
        let nodes = nodes.map(|node| &inventory[*node]).filter(|node| node.filesystem == ix);
        let bytes = nodes.map(|node| node.size.frees_bytes).fold(0, u64::saturating_add);
        if bytes < LEAST {
            continue;
        }
        let records = display::count(cache.records, "record", "records");
        causes.push(Cause {
            title: format!("build cache of {}", cache.owner()),
            remedy: cache.remedy().into(),
            path: Some(context.inside(&inventory[cache.store].root)),
            ..context.cause(
                ix,
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
    causes
}

/// Returns the leaks. More than [`MOST_LEAKS_BY_NAME`] leaks of one class with the same remedy are one cause.
fn leaks(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let live = context.scan.refs.live();
    let decisions: BTreeMap<_, _> =
        context.leaks.entries.iter().map(|entry| (entry.leak.get(), &entry.decision)).collect();
    let mut groups: BTreeMap<_, Vec<(usize, u64)>> = BTreeMap::new();
    for (position, leak) in inventory.leaks.iter().enumerate() {
        let bytes = context.alone(&live, ix, Root::Leak(LeakIx::from(position)));
        if bytes > 0 {
            let (_, remedy) = remedy_of_leak(context, leak, decisions.get(&position), true);
            groups.entry((leak.class, remedy)).or_default().push((position, bytes));
        }
    }
    let mut causes = Vec::new();
    for ((class, _), members) in groups {
        if members.len() > MOST_LEAKS_BY_NAME {
            let roots: Vec<_> =
                members.iter().map(|(position, _)| Root::Leak(LeakIx::from(*position))).collect();
            let bytes = context.frees(ix, &roots);
            let Some((first, _)) = members.iter().max_by_key(|(_, bytes)| *bytes) else { continue };
            if bytes >= LEAST {
                let leak = &inventory.leaks[*first];
                let (taken_by, remedy) = remedy_of_leak(context, leak, decisions.get(first), true);
                let title = format!("{} leaks of class {class}", members.len());
                let text = format!("{title}; the largest: {}", leak.evidence);
                let cause = context.cause(ix, CauseKind::Leak, bytes, text);
                causes.push(Cause { title, remedy, taken_by, ..cause });
            }
            continue;
        }
        for (position, bytes) in members.into_iter().filter(|(_, bytes)| *bytes >= LEAST) {
            let leak = &inventory.leaks[position];
            let (taken_by, remedy) = remedy_of_leak(context, leak, decisions.get(&position), false);
            let name = match class {
                // These files are outside the stores: the name is not enough to find them.
                LeakClass::VarTmp => format!("{class} {}", context.inside(&leak.path)),
                _ => format!("{class} {}", short_id(&leak.id)),
            };
            causes.push(Cause {
                title: format!("leak {name}"),
                remedy,
                id: Some(leak.id.clone()),
                path: Some(context.inside(&leak.path)),
                taken_by,
                ..context.cause(ix, CauseKind::Leak, bytes, format!("{name}: {}", leak.evidence))
            });
        }
    }
    causes
}

/// Returns the remedy for a leak, or for `many` of its class, and the program or person that applies it.
fn remedy_of_leak(
    context: &Context<'_>,
    leak: &Leak,
    decision: Option<&&Decision>,
    many: bool,
) -> (Action, String) {
    let pronoun = if many { "them" } else { "it" };
    let by_containerd = context.scan.inventory.stores[leak.store.get()].kind == StoreKind::Containerd;
    let kept = decision.and_then(|decision| match decision {
        Decision::Stay(stay) => Some(stay),
        Decision::Delete(_) | Decision::Repair => None,
    });
    let class = leak.class;
    match (leak.verdict, kept) {
        (Verdict::Reclaim, _) if by_containerd => {
            (Action::Operator, format!("containerd removes {pronoun} automatically; see docs/leaks.md"))
        }
        (Verdict::Reclaim, None) => {
            (Action::Layersweep, format!("`layersweep sweep --delete --class {class}` removes {pronoun}"))
        }
        (Verdict::Reclaim, Some(KeepReason::Young(_))) => {
            let min_age = span(context.min_age);
            let when = if many { "once they are" } else { "once it is" };
            (
                Action::Layersweep,
                format!("`layersweep sweep --delete --class {class}` removes {pronoun} {when} {min_age} old"),
            )
        }
        (Verdict::Reclaim, Some(kept)) => {
            let reason = leaks::reason(leak, kept, context.min_age);
            (Action::Operator, format!("not deletable: {reason}"))
        }
        (Verdict::Repair, _) if class.recipe().is_some() => {
            (Action::Operator, format!("`layersweep sweep --repair {class}` fixes {pronoun}"))
        }
        // The object looks like a leak, but is not.
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

fn logs(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let logs = context.other_users.logs.iter();
    let large = logs.filter(|log| log.filesystem == ix && log.bytes >= context.least(ix));
    large
        .map(|log| {
            let path = context.inside(&log.path);
            let owner = match (&log.pod, &log.container) {
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
                    "{}`truncate -s 0 {}` empties it at once, if it is not needed; {} limits it",
                    if context.scan.sysroot.is_foreign() { "once the node runs: " } else { "" },
                    shell_word(&path),
                    if log.pod.is_some() { "the kubelet's containerLogMaxSize" } else { "logrotate" }
                ),
                id: log.pod.clone(),
                path: Some(path.clone()),
                ..context.cause(ix, CauseKind::Log, log.bytes, format!("log {path}{owner}"))
            }
        })
        .collect()
}

fn volumes(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let pods = context.other_users.pods.iter();
    let pods = pods.filter(|pod| pod.filesystem == ix && pod.kind == OtherUserKind::KubeletVolumes);
    pods.filter(|pod| pod.bytes >= context.least(ix))
        .map(|pod| Cause {
            title: format!("volumes of pod {}", pod.pod),
            remedy: "they are deleted with the pod; an emptyDir can have a sizeLimit".into(),
            id: Some(pod.pod.clone()),
            path: Some(context.inside(&pod.path)),
            ..context.cause(
                ix,
                CauseKind::KubeletVolume,
                pod.bytes,
                format!("volumes of pod {} on this disk", pod.pod),
            )
        })
        .collect()
}

fn other_users(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let here = context.other_users.other_users.iter().filter(|user| user.filesystem == ix);
    here.filter_map(|user| {
        // Files that tools of the stores left behind are reported as leaks.
        let nodes = context.scan.inventory.nodes.iter().filter(|node| node.kind == NodeKind::TemporaryFile);
        let leaks = nodes.filter(|node| node.path.starts_with(&user.path)).map(|node| node.size.bytes);
        let bytes = user.bytes.saturating_sub(leaks.sum());
        if bytes < context.least(ix) {
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
            // The other kinds have their own causes, or are in `others`.
            _ => return None,
        };
        let cause = context.cause(ix, kind, bytes, text);
        Some(Cause { remedy: remedy.into(), path: Some(path), ..cause })
    })
    .collect()
}

/// Returns the large directories in the stores that do not belong to an image or container.
fn large(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let here = context.other_users.large.iter().filter(|directory| directory.filesystem == ix);
    let here = here.filter(|directory| directory.bytes >= context.least(ix));
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
        let when = if context.scan.sysroot.is_foreign() { "once the node runs: " } else { "" };
        let text = format!("{kind}, {path}{largest}");
        Cause {
            title: format!("{kind} in {root}"),
            remedy: format!("{when}{remedy}"),
            path: Some(path),
            ..context.cause(ix, CauseKind::Other, directory.bytes, text)
        }
    })
    .collect()
}

/// Returns large data outside the stores: at least 5 % of the used bytes. Logs that are causes in `named` and
/// temporary files that are leaks are subtracted.
fn others(context: &Context<'_>, ix: FilesystemIx, named: &[Cause]) -> Vec<Cause> {
    let used = context.scan.inventory.filesystems[ix.get()].used_bytes;
    let parts = context.divided.get(ix.get()).map_or(&[][..], |divided| &divided.parts);
    let logs = named.iter().filter(|cause| cause.filesystem_ix == ix && cause.kind == CauseKind::Log);
    // Files that tools of the stores left behind are reported as leaks.
    let nodes = context.scan.inventory.nodes.iter();
    let nodes = nodes.filter(|node| node.kind == NodeKind::TemporaryFile && node.filesystem == ix);
    let leaks: Vec<_> = nodes.map(|node| (context.inside(&node.path), node.size.bytes)).collect();
    let of_leaks = leaks.iter().map(|(path, bytes)| (path.as_str(), *bytes));
    let named = logs.filter_map(|cause| Some((cause.path.as_deref()?, cause.bytes))).chain(of_leaks);
    let left = without_files(parts, named);
    let hidden = hidden(context.scan, context.other_users, ix);
    let kinds = [PartKind::Directory, PartKind::Swap, PartKind::Other];
    let others = parts.iter().zip(left).filter(|(part, _)| {
        let path = part.path.as_ref().map(Path::new);
        let is_leak = path.is_some_and(|path| leaks.iter().any(|(leak, _)| path.starts_with(leak)));
        kinds.contains(&part.kind) && !is_leak
    });
    others
        .filter(|(_, bytes)| *bytes >= (used / 20).max(LEAST))
        .map(|(part, bytes)| {
            let (text, remedy) = match (&part.path, &hidden) {
                (Some(path), _) => {
                    let opened = context.scan.sysroot.open(Path::new(path));
                    let explain = match opened.is_ok_and(|root| root.directory().is_ok()) {
                        true => format!("; `layersweep explain {}` shows what is in it", shell_word(path)),
                        false => String::new(),
                    };
                    (format!("other data in {path}"), format!("layersweep never deletes this{explain}"))
                }
                (None, Some(hidden)) if part.kind == PartKind::Other => hidden.clone(),
                (None, _) => (part.label.clone(), String::new()),
            };
            let cause = context.cause(ix, CauseKind::Other, bytes, text);
            Cause { remedy, path: part.path.clone(), taken_by: Action::Nobody, ..cause }
        })
        .collect()
}

/// Returns a description of the used bytes that no visible file accounts for, and a remedy. Only for a filesystem
/// whose visible files were all measured. Less than 5 % of the used bytes or 2 % of the capacity may be the
/// filesystem's own metadata, and is not reported.
pub fn hidden(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Option<(String, String)> {
    /// Maximum number of mount points that are named.
    const NAMED: usize = 3;
    let seen = other_users.seen_whole.iter().find(|seen| seen.filesystem == ix)?;
    let filesystem = &scan.inventory[ix];
    let outside = other_users.other_users.iter().filter(|user| user.filesystem == ix).map(|user| user.bytes);
    let visible = refs::size_on_disk(&scan.inventory, ix).into_iter().chain(outside);
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

/// Returns the bytes of each part without those of `files`. A file belongs to the part with the longest path above
/// it.
fn without_files<'a>(parts: &[Part], files: impl Iterator<Item = (&'a str, u64)>) -> Vec<u64> {
    let mut left: Vec<_> = parts.iter().map(|part| part.bytes).collect();
    for (path, bytes) in files {
        let above =
            parts.iter().enumerate().filter_map(|(position, part)| Some((position, part.path.as_deref()?)));
        let above = above.filter(|(_, above)| Path::new(path).starts_with(above));
        if let Some((position, _)) = above.max_by_key(|(_, above)| above.len()) {
            left[position] = left[position].saturating_sub(bytes);
        }
    }
    left
}

fn ago(time: Timestamp, now: Timestamp) -> String {
    match now.duration_since(time).as_hours().max(0) {
        hours @ 0..48 => format!("{hours} h ago"),
        hours => format!("{} days ago", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_belongs_to_the_nearest_part_above() {
        let parts = [("/var/log", 100), ("/var/log/pods", 50), ("/var/lo", 7)]
            .map(|(path, bytes)| Part { path: Some(path.into()), ..Part::new(PartKind::Directory, bytes) });
        for (files, expected) in [
            (&[][..], [100, 50, 7]),
            (&[("/var/log/a", 60), ("/var/log/pods/b/0.log", 20), ("/srv/c", 5)], [40, 30, 7]),
            // The file has grown since the part was measured.
            (&[("/var/log/a", 160)], [0, 50, 7]),
        ] {
            assert_eq!(without_files(&parts, files.iter().copied()), expected, "{files:?}");
        }
    }

    fn pin(undo: Option<&str>) -> PinReason {
        PinReason { undo: undo.map(Into::into), ..PinReason::from("x") }
    }

    #[test]
    fn pin_is_removed_where_it_was_set() {
        for (pinned_by, expected) in [
            (
                vec![pin(Some("a")), pin(None), pin(Some("b")), pin(Some("a"))],
                "if nothing needs it: a, b; then",
            ),
            (vec![pin(None)], "if nothing needs it, remove the pin; then `layersweep gc` can delete it"),
        ] {
            let remedy = unpin(&pinned_by, "layersweep gc");
            assert!(remedy.starts_with(expected), "{expected}: {remedy}");
        }
    }

    #[test]
    fn container_is_removed_with_the_tool_of_its_owner() {
        let id = "0123456789abcdef";
        for (owner, id, sandbox, foreign, expected) in [
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
            assert!(remedy.starts_with(expected), "{expected}: {remedy}");
        }
    }
}
