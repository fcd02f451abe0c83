//! Causes of the usage: the objects that fill the filesystems, each with its bytes and its remedy.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::app::diagnosis::parts::kind_of_large;
use crate::app::diagnosis::{Action, Cause, CauseKind, Disk, Divided, Part, PartKind, Planned};
use crate::history::ages::InventoryAges;
use crate::model::display::{self, shell_word, short_id, span};
use crate::model::refs::{self, Live, Root, Standing};
use crate::model::{
    Consistency, Container, ContainerState, FilesystemIx, ImageIx, Inventory, Leak, LeakClass, LeakIx,
    NodeKind, Owner, PinReason, Size, StoreKind, Verdict, removal_command,
};
use crate::policy::leaks::{self, Decision, KeepReason, LeakPlan};
use crate::stores::Scan;
use crate::stores::other_usage::{OtherUserKind, OtherUsers};

/// Inverse of the minimum share of the used bytes: a cause below 1/200 of them is left out. For leaks, build caches
/// and unused images that are not pinned, only [`LEAST`] applies.
const SMALL: u64 = 200;
/// Minimum bytes of any cause.
const LEAST: u64 = 1 << 20;
/// Minimum number of files of a directory that is named for them.
const LEAST_INODES: u64 = 1000;
/// Size to which `journalctl` is told to shrink the journal, if the journal is at least twice as large.
const JOURNAL_BYTES: u64 = 512 << 20;
/// Size to which it is told to shrink a smaller one.
const LEAST_JOURNAL_BYTES: u64 = 16 << 20;

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

/// Returns the causes of the usage of all filesystems, ranked as in [`super::rank`].
pub fn causes(context: &Context<'_>, disks: &[Disk]) -> Vec<Cause> {
    let mut causes = Vec::new();
    for ix in (0..context.scan.inventory.filesystems.len()).map(FilesystemIx::from) {
        causes.extend(unused_images(context, ix));
        causes.extend(out_of_reach(context, ix));
        causes.extend(pinned_images(context, ix));
        causes.extend(containers(context, ix));
        causes.extend(container_logs(context, ix));
        causes.extend(build_caches(context, ix));
        causes.extend(leaks(context, ix));
        causes.extend(logs(context, ix));
        causes.extend(volumes(context, ix));
        causes.extend(large_files(context, ix));
        causes.extend(unread_stores(context, ix));
        causes.extend(other_users(context, ix, &causes));
        causes.extend(large(context, ix));
        let others = others(context, ix, &causes);
        causes.extend(others);
    }
    super::rank(&mut causes, disks);
    causes
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
            command: None,
            frees_bytes: 0,
            frees_inodes: 0,
            used_after_percent: None,
            reaches_low: false,
            bytes,
            filesystem: self.scan.inventory.filesystems[ix.get()].mount.to_string_lossy().into_owned(),
            id: None,
            path: None,
            taken_by: Action::Operator,
            filesystem_ix: ix,
        }
    }

    /// Returns the size that is freed on a filesystem if only this root is deleted.
    fn alone(&self, live: &Live<'_>, ix: FilesystemIx, root: Root) -> Size {
        let nodes = live.last_held(root).map(|node| &self.scan.inventory.nodes[node.get()]);
        nodes.filter(|node| node.filesystem == ix).map(|node| node.size).sum()
    }

    /// Returns the size that is freed on a filesystem if all these roots are deleted.
    fn frees(&self, ix: FilesystemIx, roots: &[Root]) -> Size {
        let inventory = &self.scan.inventory;
        let mut live = self.scan.refs.live();
        let mut sum = Size::default();
        for root in roots {
            let freed = live.last_held(*root).map(|node| &inventory.nodes[node.get()]);
            sum += freed.filter(|node| node.filesystem == ix).map(|node| node.size).sum();
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
        let size = context.frees(ix, &roots);
        let count = display::count(images.len(), "unused image", "unused images");
        (size.frees_bytes >= LEAST).then(|| Cause {
            title: "images out of reach".into(),
            remedy: remedy_out_of_reach(inventory, images[0]),
            ..context.cause(
                ix,
                CauseKind::ImagesOutOfReach,
                size.frees_bytes,
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
    let bytes = context.frees(ix, &roots).frees_bytes;
    let inventory = &context.scan.inventory;
    let count =
        roots.iter().filter(|root| refs::has_bytes_on(inventory, &context.scan.refs, **root, ix)).count();
    let text = format!("{} that no container uses", display::count(count, "image", "images"));
    let Planned { command, gc, none, .. } = &context.planned[ix.get()];
    let remedy = match gc.is_nothing() {
        true => format!("kept for now: {none}"),
        false if gc.bytes < bytes => {
            "the least recently used of them, until the low threshold is reached".into()
        }
        false => String::new(),
    };
    (bytes >= LEAST).then(|| Cause {
        title: "images not in use".into(),
        remedy,
        command: (!gc.is_nothing()).then(|| (*command).to_owned()),
        frees_bytes: gc.bytes,
        frees_inodes: gc.inodes,
        taken_by: Action::Layersweep,
        ..context.cause(ix, CauseKind::UnusedImages, bytes, text)
    })
}

fn pinned_images(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let now = context.scan.taken_at;
    let live = context.scan.refs.live();
    let causes = images_of(context, Standing::Pinned).into_iter().filter_map(|image| {
        let bytes = context.alone(&live, ix, Root::Image(image)).frees_bytes;
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
        let size = context.alone(&live, ix, Root::Container(position.into()));
        let (kind, state) = match (container.state, foreign) {
            (ContainerState::Exited, _) => (CauseKind::DeadContainer, "exited"),
            // The kubelet is about to start the container, or has just started it.
            (ContainerState::Created, false) if container.owner == Owner::CriO => {
                (CauseKind::Container, "created")
            }
            (ContainerState::Created, _) => (CauseKind::DeadContainer, "created, never started"),
            (ContainerState::Running, false) => (CauseKind::Container, "running"),
            // A build that runs has its container mounted, which counts as running.
            (ContainerState::Unknown, _) if container.owner == Owner::Buildah => {
                (CauseKind::DeadContainer, "build container")
            }
            (ContainerState::Unknown, false) => (CauseKind::Container, "state unknown, may be running"),
            // No container runs on a disk that is mounted on another machine.
            (ContainerState::Running, true) => {
                (CauseKind::DeadContainer, "running when the disk was last in use")
            }
            (ContainerState::Unknown, true) => (CauseKind::DeadContainer, "last state unknown"),
        };
        let dead = kind == CauseKind::DeadContainer;
        let log_bytes = log_bytes(context, ix, container);
        // The log of a container that is kept is a cause of its own.
        let bytes = if dead { size.frees_bytes } else { size.frees_bytes.saturating_sub(log_bytes) };
        if bytes < context.least(ix) {
            continue;
        }
        let mut held = container.holds.iter().map(|node| &inventory.nodes[node.get()]);
        let layer = held.find(|node| matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot));
        let (name, owner) = (&container.name, container.owner.as_str());
        let part = match dead && log_bytes >= LEAST {
            true => format!("its writable layer, and its log of {}", display::bytes(log_bytes)),
            false => "its writable layer".to_owned(),
        };
        let graphroot = context.inside(&inventory[container.store].root);
        let command =
            removal_command(container.owner, &container.id, container.sandbox, Path::new(&graphroot));
        let cause = context.cause(ix, kind, bytes, format!("container {name} ({owner}, {state}): {part}"));
        causes.push(Cause {
            title: format!("container {name}"),
            id: Some(container.id.to_string()),
            path: layer.map(|node| context.inside(&node.path)),
            ..match dead {
                true => Cause {
                    remedy: removal(container.owner, &container.id, command.is_some()),
                    command,
                    frees_bytes: bytes,
                    frees_inodes: size.inodes,
                    taken_by: Action::Operator,
                    ..cause
                },
                false => Cause {
                    remedy: "find out what it writes to its root filesystem; use a volume for that".into(),
                    taken_by: Action::Nobody,
                    ..cause
                },
            }
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
            path: Some(path.clone()),
            remedy: "`--log-opt max-size=10mb` limits the log of the next container".into(),
            command: Some(format!("truncate -s 0 {}", shell_word(&path))),
            frees_bytes: bytes,
            id: Some(container.id.to_string()),
            ..context.cause(ix, CauseKind::Log, bytes, format!("log of container {name} ({owner}): {path}"))
        });
    }
    causes
}

/// Returns what a person has to know about the removal of a container that does not run.
fn removal(owner: Owner, id: &str, has_command: bool) -> String {
    match (owner, has_command, id.rsplit_once('/')) {
        (Owner::CriO, true, _) | (Owner::Containerd, true, None) => {
            "`layersweep gc` deletes it too, with [containers] enabled".into()
        }
        (Owner::Buildah, true, _) => "if no build uses it".into(),
        (_, true, _) => String::new(),
        (Owner::Containerd, false, Some((namespace, _))) => {
            format!("remove it with the program that made it, in the namespace {namespace} of containerd")
        }
        (_, false, _) => "remove it with the tool that created it".into(),
    }
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
            frees_bytes: bytes,
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

/// Returns the leaks. Leaks of one class with the same remedy are one cause: one command deletes them together.
fn leaks(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let live = context.scan.refs.live();
    let decisions: BTreeMap<_, _> =
        context.leaks.entries.iter().map(|entry| (entry.leak.get(), &entry.decision)).collect();
    let mut groups: BTreeMap<_, Vec<(usize, u64)>> = BTreeMap::new();
    for (position, leak) in inventory.leaks.iter().enumerate() {
        let bytes = context.alone(&live, ix, Root::Leak(LeakIx::from(position))).frees_bytes;
        if bytes > 0 {
            let (_, remedy, command) = remedy_of_leak(context, leak, decisions.get(&position), true);
            groups.entry((leak.class, remedy, command)).or_default().push((position, bytes));
        }
    }
    let mut causes = Vec::new();
    for ((class, ..), members) in groups {
        let roots: Vec<_> = members.iter().map(|(position, _)| Root::Leak(LeakIx::from(*position))).collect();
        let size = context.frees(ix, &roots);
        let Some((first, largest)) = members.iter().max_by_key(|(_, bytes)| *bytes) else { continue };
        if size.frees_bytes < LEAST {
            continue;
        }
        let (leak, many) = (&inventory.leaks[*first], members.len() > 1);
        let (taken_by, remedy, command) = remedy_of_leak(context, leak, decisions.get(first), many);
        let name = match class {
            // These files are outside the stores: the name is not enough to find them.
            LeakClass::VarTmp => context.inside(&leak.path),
            _ => short_id(&leak.id),
        };
        let title = match many {
            true => format!("{} leaks of class {class}", members.len()),
            false => format!("leak {class} {name}"),
        };
        let text = match many {
            true => format!("{title}; the largest: {name}, {}: {}", display::bytes(*largest), leak.evidence),
            false => format!("{title}: {}", leak.evidence),
        };
        let (frees_bytes, frees_inodes) = match command.is_some() {
            true => (size.frees_bytes, size.inodes),
            false => (0, 0),
        };
        causes.push(Cause {
            title,
            remedy,
            command,
            frees_bytes,
            frees_inodes,
            id: (!many).then(|| leak.id.clone()),
            path: (!many).then(|| context.inside(&leak.path)),
            taken_by,
            ..context.cause(ix, CauseKind::Leak, size.frees_bytes, text)
        });
    }
    causes
}

/// Returns the remedy for a leak, or for `many` of its class: the program or person that applies it, a description, and
/// the command if the leak can be deleted now.
fn remedy_of_leak(
    context: &Context<'_>,
    leak: &Leak,
    decision: Option<&&Decision>,
    many: bool,
) -> (Action, String, Option<String>) {
    let pronoun = if many { "them" } else { "it" };
    let by_containerd = context.scan.inventory.stores[leak.store.get()].kind == StoreKind::Containerd;
    let kept = decision.and_then(|decision| match decision {
        Decision::Stay(stay) => Some(stay),
        Decision::Delete(_) | Decision::Repair => None,
    });
    let class = leak.class;
    let command = format!("layersweep sweep --delete --class {class}");
    match (leak.verdict, kept) {
        (Verdict::Reclaim, _) if by_containerd => {
            (Action::Operator, format!("containerd removes {pronoun} automatically; see docs/leaks.md"), None)
        }
        (Verdict::Reclaim, None) => (Action::Layersweep, String::new(), Some(command)),
        (Verdict::Reclaim, Some(KeepReason::Young(_))) => {
            let min_age = span(context.min_age);
            let when = if many { "once they are" } else { "once it is" };
            (Action::Layersweep, format!("`{command}` removes {pronoun} {when} {min_age} old"), None)
        }
        (Verdict::Reclaim, Some(kept)) => {
            let reason = leaks::reason(leak, kept, context.min_age);
            (Action::Operator, format!("not deletable: {reason}"), None)
        }
        (Verdict::Repair, _) if class.recipe().is_some() => {
            (Action::Operator, format!("`layersweep sweep --repair {class}` fixes {pronoun}"), None)
        }
        // The object looks like a leak, but is not.
        (Verdict::Keep, _) => (Action::Nobody, String::new(), None),
        (Verdict::Repair | Verdict::Report, _) => {
            let advice = match class.by_hand() {
                "" => "needs manual inspection".to_owned(),
                clause => clause.to_owned(),
            };
            let command = if many { None } else { leaks::command(leak) };
            (Action::Operator, format!("{advice}; see docs/leaks.md"), command)
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
            let limit = if log.pod.is_some() { "the kubelet's containerLogMaxSize" } else { "logrotate" };
            Cause {
                title: match &log.pod {
                    Some(pod) => format!("log of pod {pod}"),
                    None => format!("log {path}"),
                },
                remedy: format!("{limit} limits it"),
                // Truncating works also for a program that has the file open.
                command: Some(format!("truncate -s 0 {}", shell_word(&path))),
                frees_bytes: log.bytes,
                id: log.pod.clone(),
                path: Some(path.clone()),
                ..context.cause(ix, CauseKind::Log, log.bytes, format!("log {path}{owner}"))
            }
        })
        .collect()
}

/// Returns the large files outside the stores. A command is given only for a file that belongs to a person, not to a
/// program, and that no process has open.
fn large_files(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let nodes = context.scan.inventory.nodes.iter().filter(|node| node.kind == NodeKind::TemporaryFile);
    let leaks: Vec<_> = nodes.map(|node| &node.path).collect();
    let files = context.other_users.files.iter().filter(|file| {
        let is_leak = leaks.iter().any(|leak| file.path.starts_with(leak));
        file.filesystem == ix && file.bytes >= context.least(ix) && !is_leak && file.unread_store.is_none()
    });
    files
        .map(|file| {
            let path = context.inside(&file.path);
            let written = file.modified.map_or_else(String::new, |time| {
                let time = time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M");
                format!(", written {time}")
            });
            let cause = context.cause(ix, CauseKind::File, file.bytes, format!("{path} (file{written})"));
            let cause = Cause { title: path.clone(), path: Some(path.clone()), ..cause };
            if file.may_be_open {
                return Cause { remedy: "a program has it open".into(), taken_by: Action::Nobody, ..cause };
            }
            match belongs_to_a_program(Path::new(&path)) {
                true => Cause {
                    remedy: "it belongs to a program; layersweep never deletes it".into(),
                    taken_by: Action::Nobody,
                    ..cause
                },
                false => Cause {
                    remedy: "if it is not needed; layersweep never deletes it".into(),
                    command: Some(format!("rm {}", shell_word(&path))),
                    frees_bytes: file.bytes,
                    frees_inodes: 1,
                    ..cause
                },
            }
        })
        .collect()
}

/// Returns the stores that were not read, with the bytes of their large files.
fn unread_stores(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let mut stores: BTreeMap<&Path, u64> = BTreeMap::new();
    for file in context.other_users.files.iter().filter(|file| file.filesystem == ix) {
        if let Some(store) = &file.unread_store {
            *stores.entry(store).or_default() += file.bytes;
        }
    }
    let causes = stores.into_iter().filter(|(_, bytes)| *bytes >= context.least(ix));
    causes
        .map(|(store, bytes)| {
            let path = context.inside(store);
            Cause {
                remedy: format!("`layersweep --graphroot {} usage` shows what is in it", shell_word(&path)),
                path: Some(path.clone()),
                taken_by: Action::Nobody,
                ..context.cause(ix, CauseKind::Other, bytes, format!("another store, {path}"))
            }
        })
        .collect()
}

/// Returns true for paths where packages and services keep their files.
fn belongs_to_a_program(path: &Path) -> bool {
    const OF_PROGRAMS: [&str; 14] = [
        "/bin", "/boot", "/etc", "/lib", "/lib64", "/nix", "/opt", "/ostree", "/run", "/sbin", "/snap",
        "/sysroot", "/usr", "/var/lib",
    ];
    OF_PROGRAMS.iter().any(|directory| path.starts_with(directory))
}

fn volumes(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let pods = context.other_users.pods.iter();
    let pods = pods.filter(|pod| pod.filesystem == ix && pod.kind == OtherUserKind::KubeletVolumes);
    pods.filter(|pod| pod.bytes >= context.least(ix))
        .map(|pod| Cause {
            title: format!("volumes of pod {}", pod.pod),
            remedy: "deleted with the pod; an emptyDir can have a sizeLimit".into(),
            frees_bytes: pod.bytes,
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

/// Returns the journal, directories of temporary files and core dumps, and deleted files that are open. Files in `named`
/// are subtracted.
fn other_users(context: &Context<'_>, ix: FilesystemIx, named: &[Cause]) -> Vec<Cause> {
    let here = context.other_users.other_users.iter().filter(|user| user.filesystem == ix);
    here.filter_map(|user| {
        // Files that tools of the stores left behind are reported as leaks.
        let nodes = context.scan.inventory.nodes.iter().filter(|node| node.kind == NodeKind::TemporaryFile);
        let leaks = nodes.filter(|node| node.path.starts_with(&user.path)).map(|node| node.size.bytes);
        let path = context.inside(&user.path);
        let files = named.iter().filter(|cause| {
            cause.kind == CauseKind::File
                && cause.path.as_ref().is_some_and(|file| Path::new(file).starts_with(&path))
        });
        let named = leaks.chain(files.map(|cause| cause.bytes)).fold(0, u64::saturating_add);
        let bytes = match user.kind {
            OtherUserKind::DeletedOpen => user.bytes,
            _ => user.bytes.saturating_sub(named),
        };
        if bytes < context.least(ix) {
            return None;
        }
        let quoted = shell_word(&path);
        let cause = |kind, text| Cause { path: Some(path.clone()), ..context.cause(ix, kind, bytes, text) };
        match user.kind {
            OtherUserKind::Journal => {
                Some(journal(context, ix, cause(CauseKind::Journal, format!("the journal in {path}"))))
            }
            OtherUserKind::VarTmp => Some(Cause {
                remedy: "find out what left them; systemd-tmpfiles deletes those older than 30 days".into(),
                ..cause(CauseKind::VarTmp, format!("temporary files in {path}"))
            }),
            OtherUserKind::CoreDumps => Some(Cause {
                remedy: "inspect them first".into(),
                command: Some(format!("find {quoted} -xdev -type f -delete")),
                frees_bytes: bytes,
                ..cause(CauseKind::CoreDumps, format!("core dumps in {path}"))
            }),
            OtherUserKind::DeletedOpen => {
                let holder = user.holder.as_deref().unwrap_or("a process");
                Some(Cause {
                    remedy: format!(
                        "restart {holder}: the file is freed when that process closes it or exits"
                    ),
                    frees_bytes: bytes,
                    ..cause(CauseKind::DeletedOpen, format!("{path}, deleted, but held open by {holder}"))
                })
            }
            // The other kinds have their own causes, or are in `others`.
            _ => None,
        }
    })
    .collect()
}

/// Adds the command that shrinks the journal, unless it would free almost nothing: the active files are kept.
fn journal(context: &Context<'_>, ix: FilesystemIx, journal: Cause) -> Cause {
    let files = context.other_users.archived_journal.iter().filter(|file| file.filesystem == ix);
    let archived: Vec<_> = files.map(|file| file.bytes).collect();
    let all = archived.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    let kept = if all >= 2 * JOURNAL_BYTES { JOURNAL_BYTES } else { LEAST_JOURNAL_BYTES };
    let frees_bytes = vacuumed(&archived, kept);
    let remedy = "SystemMaxUse in journald.conf limits it".to_owned();
    match frees_bytes >= LEAST {
        true => Cause {
            remedy,
            command: Some(format!("journalctl --vacuum-size={}M", kept >> 20)),
            frees_bytes,
            ..journal
        },
        false => Cause { remedy, taken_by: Action::Nobody, ..journal },
    }
}

/// Returns the bytes that `journalctl --vacuum-size` deletes of archived files, given the oldest first: files as long
/// as more than `kept` bytes are left.
fn vacuumed(archived: &[u64], kept: u64) -> u64 {
    let all = archived.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    let mut freed = 0;
    for bytes in archived {
        if all - freed <= kept {
            break;
        }
        freed += bytes;
    }
    freed
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
        let text = format!("{kind}, {path}{largest}");
        Cause {
            title: format!("{kind} in {root}"),
            remedy,
            path: Some(path),
            ..context.cause(ix, CauseKind::Other, directory.bytes, text)
        }
    })
    .collect()
}

/// Returns large data outside the stores: at least 5 % of the used bytes. Files that are causes in `named` and
/// temporary files that are leaks are subtracted.
fn others(context: &Context<'_>, ix: FilesystemIx, named: &[Cause]) -> Vec<Cause> {
    let used = context.scan.inventory.filesystems[ix.get()].used_bytes;
    let parts = context.divided.get(ix.get()).map_or(&[][..], |divided| &divided.parts);
    let is_file = |kind| matches!(kind, CauseKind::Log | CauseKind::File | CauseKind::Other);
    let logs = named.iter().filter(|cause| cause.filesystem_ix == ix && is_file(cause.kind));
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
    let inodes = context.scan.inventory.filesystems[ix.get()].inodes;
    others
        .filter(|(part, bytes)| {
            *bytes >= (used / 20).max(LEAST) || inodes > 0 && part.inodes >= (inodes / 20).max(LEAST_INODES)
        })
        .map(|(part, bytes)| {
            let (text, remedy) = match (&part.path, &hidden) {
                (Some(path), _) => (
                    format!("other data in {path}"),
                    format!(
                        "layersweep never deletes it; `layersweep explain {}` shows what is in it",
                        shell_word(path)
                    ),
                ),
                (None, Some(hidden)) if part.kind == PartKind::Other => hidden.clone(),
                (None, _) => (part.label.clone(), String::new()),
            };
            let cause = context.cause(ix, CauseKind::Other, bytes, text);
            let cause = Cause { remedy, path: part.path.clone(), taken_by: Action::Nobody, ..cause };
            match &part.path {
                Some(path) if inodes > 0 && part.inodes >= (inodes / 20).max(LEAST_INODES) => Cause {
                    title: path.clone(),
                    text: format!("{path}: {} files", display::thousands(part.inodes)),
                    remedy: format!(
                        "delete the files that nothing needs; `layersweep explain {}` shows where they are",
                        shell_word(path)
                    ),
                    frees_inodes: part.inodes,
                    taken_by: Action::Operator,
                    ..cause
                },
                _ => cause,
            }
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
        for (owner, id, sandbox, command, remedy) in [
            (Owner::CriO, id.to_owned(), false, "crictl rm 0123456789ab", "`layersweep gc` deletes it too"),
            (Owner::CriO, id.to_owned(), true, "crictl rmp 0123456789ab", "`layersweep gc` deletes it too"),
            (
                Owner::Containerd,
                id.to_owned(),
                false,
                "crictl rm 0123456789ab",
                "`layersweep gc` deletes it too",
            ),
            (Owner::Docker, format!("moby/{id}"), false, "docker rm 0123456789ab", ""),
            (
                Owner::Containerd,
                format!("default/{id}"),
                false,
                "ctr -n default containers rm 0123456789abcdef",
                "",
            ),
            (Owner::Containerd, format!("ci/{id}"), false, "", "remove it with the program that made it"),
            (Owner::Podman, id.to_owned(), false, "podman rm 0123456789ab", ""),
            (Owner::Buildah, id.to_owned(), false, "buildah rm 0123456789ab", "if no build uses it"),
            (Owner::Unknown, id.to_owned(), false, "", "remove it with the tool"),
        ] {
            let graphroot = Path::new("/var/lib/containers/storage");
            let found = removal_command(owner, &id, sandbox, graphroot);
            assert_eq!(found.as_deref().unwrap_or_default(), command);
            assert!(removal(owner, &id, found.is_some()).starts_with(remedy), "{remedy}");
        }
    }

    #[test]
    fn journal_is_vacuumed_by_whole_files() {
        for (archived, kept, freed) in [
            (&[][..], 16, 0),
            (&[8, 8], 16, 0),
            (&[8, 8, 8], 16, 8),
            (&[30, 8, 8], 16, 30),
            (&[8, 30, 8], 16, 38),
        ] {
            assert_eq!(vacuumed(archived, kept), freed, "{archived:?}");
        }
    }

    #[test]
    fn files_of_programs_are_recognised() {
        for (path, expected) in [
            ("/var/lib/etcd/member/snap/db", true),
            ("/usr/share/x", true),
            ("/var/library/x", false),
            ("/srv/backup.tar", false),
            ("/home/alice/x", false),
        ] {
            assert_eq!(belongs_to_a_program(Path::new(path)), expected, "{path}");
        }
    }
}
