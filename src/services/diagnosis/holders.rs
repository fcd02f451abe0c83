//! Stopped containers, and the images that only they keep. `gc` never deletes an image that a container of any state
//! uses, so a forgotten `podman create` keeps an image for ever: the operator has to remove the container first.
//!
//! One list for all screens and documents. An example: the stopped containers `migrate` and `later` of podman use two
//! images of 60 MiB that share 15 MiB. One command, `podman rm migrate later`, removes both, and then lets `gc` free
//! 105 MiB: bytes are those of a set, and a layer that a used image shares with it is not counted. What the containers'
//! own layers hold is lost with them; it is a figure of its own, and a container whose own layer is large has a command
//! of its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use crate::model::refs::{Live, Root};
use crate::model::text::display::{bytes, count, listed, shell_word, short_id};
use crate::model::text::names::names;
use crate::model::{
    Consistency, Container, ContainerIx, ContainerState, FilesystemIx, ImageIx, Inventory, LeakClass, NodeIx,
    NodeKind, Owner, OwnersStore, PrintedCommand, Size, StoreIx, is_for_ctr, removal_words,
};
use crate::services::diagnosis::{LEAST, least};
use crate::services::paths::owners_store;
use crate::stores::Scan;

/// Maximum number of containers in a command.
const MOST: usize = 20;
/// Maximum number of containers and images that a text names.
const NAMED: usize = 5;

/// Stopped containers, which no process uses, with the images that only they keep from `gc`, or from Docker's tool in
/// Docker's own store. Containers of a pod that has
/// not exited keep their images without a remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StoppedHoldersDoc"))]
pub struct StoppedHolders {
    /// Images that `gc`, or `docker rmi` in Docker's own store, can delete once the stopped containers are removed: only
    /// these use them.
    pub images: Vec<HeldImage>,
    /// Bytes that deleting all of `images` then frees.
    pub keeps_bytes: u64,
    /// Commands that remove the containers. Containers of which neither the own layers nor the images are worth 1 MiB
    /// are left out, but not in Docker's own store if they keep an image.
    pub removals: Vec<StoppedRemoval>,
}

/// Stopped containers that one command removes, with the bytes of one filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StoppedRemovalDoc"))]
pub struct StoppedRemoval {
    /// Mount point of the filesystem.
    pub filesystem: String,
    /// `{"deletes": COMMAND}` removes the containers with their own layers, without force; `{"shows": COMMAND}` if their
    /// program has no such command; null if the program is unknown.
    pub command: Option<PrintedCommand>,
    /// The containers, in the order of the command.
    pub containers: Vec<RemovableContainer>,
    /// Images that these containers, and only stopped ones, keep.
    pub images: Vec<HeldImage>,
    /// True if other stopped containers keep some of these images too.
    pub needs_others: bool,
    /// Bytes that the own layers of the containers hold: the command frees these.
    pub own_bytes: u64,
    /// Inodes of the own layers.
    pub own_inodes: u64,
    /// Bytes that deleting all of `images` frees once the containers, and the others that keep them, are removed.
    pub keeps_bytes: u64,
    /// `gc`, `user` (the `gc` of the user who owns the store) or `owner` (the program that made the images): who can
    /// delete the images then.
    pub deleted_by: DeletedBy,
    /// The containers in words.
    pub text: String,
    /// Effect of the command besides freeing the own layers, in words.
    pub effect: String,
    #[serde(skip)]
    pub filesystem_ix: FilesystemIx,
}

/// Container that a command of the list removes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RemovableContainerDoc"))]
pub struct RemovableContainer {
    pub id: String,
    /// Name of the container; its id if it has no name.
    pub name: String,
    /// Program that made it.
    pub owner: Owner,
    /// `exited`, `created, never started` or `build container`.
    pub state: &'static str,
    /// Root of its store.
    pub store: String,
    /// Path of its own layer, as the node itself names it; null if it has none.
    pub path: Option<String>,
    /// Bytes that its own layer, its log and its volumes hold.
    pub own_bytes: u64,
}

names! {
    /// Program that can delete an image once no container uses it.
    DeletedBy {
        /// `layersweep gc`.
        Gc = "gc",
        /// `layersweep gc` of the user who owns the store.
        User = "user",
        /// The program that made the image: layersweep cannot delete it here.
        Owner = "owner",
    }
}

/// Image that only stopped containers keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "HeldImageDoc"))]
pub struct HeldImage {
    pub id: String,
    /// Its first name, or its id.
    pub name: String,
    /// Root of its store.
    pub store: String,
}

impl StoppedHolders {
    /// Finds all stopped containers. Images that stay for another reason too are left out: pinned ones, those of
    /// additional stores, those that a rule keeps, and those that another store needs.
    #[must_use]
    pub fn find(scan: &Scan) -> Self {
        let all: Vec<_> = (0..scan.inventory.containers.len()).map(ContainerIx::from).collect();
        Self::of(scan, &all)
    }

    /// Finds the stopped ones of some containers, and the images that only these keep.
    #[must_use]
    pub fn of(scan: &Scan, containers: &[ContainerIx]) -> Self {
        let inventory = &scan.inventory;
        let is_foreign = scan.sysroot.is_foreign();
        let with_state = containers.iter().filter_map(|container_ix| {
            Some((*container_ix, stopped(&inventory[*container_ix], is_foreign)?))
        });
        let candidates: BTreeMap<_, _> = with_state.collect();
        let tools = Tools::new(scan);
        let removable = candidates.keys().copied().filter(|ix| !tools.is_in_live_pod(&inventory[*ix]));
        let removable: BTreeSet<_> = removable.collect();
        let (holders, live) = images_held_by(scan, &removable, &tools);
        let mut kept: BTreeMap<ContainerIx, BTreeSet<ImageIx>> = BTreeMap::new();
        for (image, containers) in &holders {
            for container in containers {
                kept.entry(*container).or_default().insert(*image);
            }
        }
        let present = scan.refs.live();
        let finder = Finder { scan, candidates, holders, kept, present, live, tools };
        let filesystems = (0..inventory.filesystems.len()).map(FilesystemIx::from);
        let removals = filesystems.flat_map(|ix| finder.removals(ix)).collect();
        let held = finder.holders.keys().copied();
        let images: BTreeSet<_> = held.filter(|image| is_freed(inventory, &finder.tools, *image)).collect();
        let freed = finder.freed(&images, removable).into_iter();
        let freed = freed.map(|node| inventory[node].size.frees_bytes);
        Self {
            keeps_bytes: freed.fold(0, u64::saturating_add),
            images: held_images(inventory, &images),
            removals,
        }
    }

    #[must_use]
    pub fn keeps(&self, store: &str, image_id: &str) -> bool {
        self.images.iter().any(|image| image.store == store && image.id == image_id)
    }
}

impl StoppedRemoval {
    /// Returns a short name of the containers.
    #[must_use]
    pub fn title(&self) -> String {
        match self.containers.as_slice() {
            [container] => format!("container {}", container.name),
            many => {
                format!("containers {}", listed(&first(many.iter().map(|container| container.name.clone()))))
            }
        }
    }
}

/// Returns the images that only `candidates` keep, each with these containers, and the reference counts after the deletion
/// of all images that `gc` can delete already: what the containers and the held images share with those becomes free, too.
fn images_held_by<'a>(
    scan: &'a Scan,
    candidates: &BTreeSet<ContainerIx>,
    tools: &Tools<'_>,
) -> (BTreeMap<ImageIx, BTreeSet<ContainerIx>>, Live<'a>) {
    let inventory = &scan.inventory;
    let mut holders: BTreeMap<ImageIx, BTreeSet<ContainerIx>> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for (position, container) in inventory.containers.iter().enumerate() {
        let container_ix = ContainerIx::from(position);
        if candidates.contains(&container_ix) {
            for image in container.images() {
                holders.entry(image).or_default().insert(container_ix);
            }
        } else {
            used.extend(container.images());
        }
    }
    holders.retain(|image_ix, _| !is_kept(inventory, tools, *image_ix) && !used.contains(image_ix));
    let mut live = scan.refs.live();
    let mut without_containers = scan.refs.live();
    for container in holders.values().flatten().collect::<BTreeSet<_>>() {
        without_containers.remove(inventory, Root::Container(*container));
    }
    holders.retain(|image_ix, _| without_containers.needed_elsewhere(inventory, *image_ix).is_none());
    for image_ix in (0..inventory.images.len()).map(ImageIx::from) {
        let is_held = used.contains(&image_ix) || holders.contains_key(&image_ix);
        if !is_held
            && !is_kept(inventory, tools, image_ix)
            && is_freed(inventory, tools, image_ix)
            && without_containers.needed_elsewhere(inventory, image_ix).is_none()
        {
            without_containers.remove(inventory, Root::Image(image_ix));
            live.remove(inventory, Root::Image(image_ix));
        }
    }
    (holders, live)
}

/// Returns true if another reason than a container keeps an image.
fn is_kept(inventory: &Inventory, tools: &Tools<'_>, image_ix: ImageIx) -> bool {
    let image = &inventory[image_ix];
    !image.pinned_by.is_empty()
        || inventory.protected.contains_key(&image_ix)
        || inventory[image.store].read_only
        || deleted_by(inventory, tools, image_ix).is_none()
        || inventory.uses_of(image_ix).next().is_some()
}

/// Returns the program that can delete an image once no container uses it. `None`: the records do not prove that it is
/// unused then.
fn deleted_by(inventory: &Inventory, tools: &Tools<'_>, image_ix: ImageIx) -> Option<DeletedBy> {
    let store = inventory[image_ix].store;
    let is_unread = inventory[store].consistency == Consistency::Damaged
        || inventory.unread_users.iter().any(|user| user.store == store);
    if is_unread {
        return None;
    }
    let has_user = tools.stores.get(&store).is_some_and(|store| store.user.is_some());
    Some(match inventory.obstacle(image_ix) {
        None => DeletedBy::Gc,
        Some(_) if has_user => DeletedBy::User,
        Some(_) => DeletedBy::Owner,
    })
}

/// Returns the tool that alone deletes an image, if it knows the store.
fn tool_of(inventory: &Inventory, image_ix: ImageIx) -> Option<&'static str> {
    inventory.tool(inventory[image_ix].store)
}

/// Returns true if `gc`, or the tool that alone deletes in the store, can delete an image once no container uses it.
fn is_freed(inventory: &Inventory, tools: &Tools<'_>, image_ix: ImageIx) -> bool {
    match deleted_by(inventory, tools, image_ix) {
        Some(DeletedBy::Gc) => true,
        Some(DeletedBy::Owner) => tool_of(inventory, image_ix).is_some(),
        Some(DeletedBy::User) | None => false,
    }
}

/// Facts about the stopped containers while the list is made.
struct Finder<'a> {
    scan: &'a Scan,
    /// The stopped containers, each with its state.
    candidates: BTreeMap<ContainerIx, &'static str>,
    /// By image that only they keep: its containers.
    holders: BTreeMap<ImageIx, BTreeSet<ContainerIx>>,
    /// The same by container.
    kept: BTreeMap<ContainerIx, BTreeSet<ImageIx>>,
    /// Reference counts now.
    present: Live<'a>,
    /// Reference counts after the deletion of the images that can be deleted already.
    live: Live<'a>,
    tools: Tools<'a>,
}

impl Finder<'_> {
    /// Returns the removals with bytes on a filesystem, the one that frees most first.
    fn removals(&self, ix: FilesystemIx) -> Vec<StoppedRemoval> {
        let inventory = &self.scan.inventory;
        let least = least(&inventory[ix]);
        // By store and command, its containers: the word of each, and the size of its own layer. A container whose own
        // layer is large is judged by itself.
        let mut groups: BTreeMap<_, Vec<(ContainerIx, String, Size)>> = BTreeMap::new();
        for container_ix in self.candidates.keys().copied() {
            let top = self.present.last_held(Root::Container(container_ix)).map(|node| &inventory[node]);
            let own: Size = top.filter(|node| node.filesystem == ix).map(|node| node.size).sum();
            let is_large = own.frees_bytes >= least;
            if is_large || self.kept.contains_key(&container_ix) {
                let (tool, word) = self.tools.of(container_ix);
                let key = (inventory[container_ix].store, tool, is_large.then_some(container_ix));
                groups.entry(key).or_default().push((container_ix, word, own));
            }
        }
        let groups = groups.iter().flat_map(|((_, tool, _), members)| {
            members.chunks(MOST).map(move |members| self.removal(ix, tool, members))
        });
        let removals = groups.filter(|(removal, keeps_for_tool)| {
            removal.own_bytes.max(removal.keeps_bytes) >= LEAST || *keeps_for_tool
        });
        let mut removals: Vec<_> = removals.map(|(removal, _)| removal).collect();
        removals.sort_by_key(|removal| Reverse(removal.own_bytes.saturating_add(removal.keeps_bytes)));
        removals
    }

    fn removal(
        &self,
        ix: FilesystemIx,
        tool: &Tool,
        members: &[(ContainerIx, String, Size)],
    ) -> (StoppedRemoval, bool) {
        let inventory = &self.scan.inventory;
        let of_members = members.iter().filter_map(|(container_ix, ..)| self.kept.get(container_ix));
        let images: BTreeSet<_> = of_members.flatten().copied().collect();
        let containers = members.iter().map(|(container_ix, ..)| *container_ix).collect();
        let freed = self.freed(&images, containers).into_iter().map(|node| &inventory[node]);
        let here = freed.filter(|node| node.filesystem == ix).map(|node| node.size.frees_bytes);
        let keeps_bytes = here.fold(0, u64::saturating_add);
        let mut holders = images.iter().flat_map(|image| &self.holders[image]);
        let needs_others = holders.any(|container| members.iter().all(|(member, ..)| member != container));
        let own: Size = members.iter().map(|(.., own)| *own).sum();
        let words: Vec<_> = members.iter().map(|(_, word, _)| word.as_str()).collect();
        let removed = members.iter().map(|(container_ix, _, own)| self.container(*container_ix, *own));
        let containers: Vec<_> = removed.collect();
        let deleted_by = images.first().and_then(|image| deleted_by(inventory, &self.tools, *image));
        let deleted_by = deleted_by.unwrap_or(DeletedBy::Gc);
        let image_tool = images.first().and_then(|image| tool_of(inventory, *image));
        let images = held_images(inventory, &images);
        let mut effects = Vec::new();
        if keeps_bytes >= LEAST || image_tool.is_some() {
            let effect = lets_free(deleted_by, image_tool, &images, keeps_bytes, needs_others);
            let is_removal = matches!(tool, Tool::Removes(..));
            effects.push(if is_removal { effect } else { format!("removal {effect}") });
        }
        effects.extend(tool.remark().map(str::to_owned));
        let removal = StoppedRemoval {
            filesystem: inventory[ix].mount.to_string_lossy().into_owned(),
            command: match tool {
                Tool::Removes(command, _) => {
                    Some(PrintedCommand::Deletes(format!("{command} {}", words.join(" "))))
                }
                Tool::Shows(command, _) => Some(PrintedCommand::Shows(command.clone())),
                Tool::Unknown(_) => None,
            },
            text: self.text(members, &containers),
            containers,
            images,
            needs_others,
            own_bytes: own.frees_bytes,
            own_inodes: own.inodes,
            keeps_bytes,
            deleted_by,
            effect: effects.join("; "),
            filesystem_ix: ix,
        };
        (removal, image_tool.is_some())
    }

    /// Returns the nodes that are freed by deleting these images, and those that can be deleted already, once the
    /// containers and the others that keep the images are removed.
    fn freed(&self, images: &BTreeSet<ImageIx>, mut containers: BTreeSet<ContainerIx>) -> Vec<NodeIx> {
        containers.extend(images.iter().flat_map(|image| &self.holders[image]));
        let images: Vec<_> = images.iter().map(|image| Root::Image(*image)).collect();
        let containers: Vec<_> = containers.into_iter().map(Root::Container).collect();
        freed_after(&self.present, &self.live, &containers, &images)
    }

    fn container(&self, container_ix: ContainerIx, own: Size) -> RemovableContainer {
        let container = &self.scan.inventory[container_ix];
        RemovableContainer {
            id: container.id.to_string(),
            name: container.name.clone(),
            owner: container.owner,
            state: self.candidates[&container_ix],
            store: root(&self.scan.inventory, container.store),
            path: layer_path(self.scan, container),
            own_bytes: own.frees_bytes,
        }
    }

    /// Describes the containers. What is not in the own layers is named: the log is lost too.
    fn text(&self, members: &[(ContainerIx, String, Size)], containers: &[RemovableContainer]) -> String {
        let inventory = &self.scan.inventory;
        let held = members.iter().flat_map(|(container_ix, ..)| &inventory[*container_ix].holds);
        let besides = held.map(|node| &inventory[*node]).filter(|node| !node.kind.is_layer());
        let besides = besides.fold(0, |sum: u64, node| sum.saturating_add(node.size.frees_bytes));
        let besides = match besides {
            0..LEAST => String::new(),
            more => format!(", and {} of logs and volumes", bytes(more)),
        };
        let names = containers.iter().map(|container| {
            let size = match container.own_bytes {
                own @ LEAST.. if containers.len() > 1 => format!(", {}", bytes(own)),
                _ => String::new(),
            };
            format!("{} ({}, {}{size})", container.name, container.owner, container.state)
        });
        let (noun, part) = match containers.len() {
            1 => ("container", "its writable layer"),
            _ => ("containers", "their writable layers"),
        };
        format!("{noun} {}: {part}{besides}", listed(&first(names)))
    }
}

/// Returns the nodes that are freed by deleting `images` after the removal of `containers`. In `live`, the images that can be
/// deleted already are deleted: what only they and the containers share counts, but not what the removal frees by itself.
fn freed_after(present: &Live<'_>, live: &Live<'_>, containers: &[Root], images: &[Root]) -> Vec<NodeIx> {
    let own: HashSet<_> = present.last_held_by(containers).into_iter().collect();
    let mut freed = live.last_held_by(&[containers, images].concat());
    freed.retain(|node| !own.contains(node));
    freed
}

/// Program of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tool {
    /// Start of the command that removes containers, and a remark about it.
    Removes(String, Option<&'static str>),
    /// Command that shows them, and the reason why none removes them.
    Shows(String, &'static str),
    /// Remark on how to remove them.
    Unknown(String),
}

impl Tool {
    fn remark(&self) -> Option<&str> {
        match self {
            Self::Removes(_, remark) => *remark,
            Self::Shows(_, reason) => Some(reason),
            Self::Unknown(remark) => Some(remark),
        }
    }
}

/// Finds the program of each container.
struct Tools<'a> {
    scan: &'a Scan,
    /// By store: its name for the tools of its owner.
    stores: HashMap<StoreIx, OwnersStore>,
    /// Ids of the containers that podman's database lacks.
    forgotten: HashSet<&'a str>,
    /// By store: ids of the pod sandboxes that have not exited.
    live_pods: HashSet<(StoreIx, &'a str)>,
    /// By store and name: the number of containers with that name.
    names: HashMap<(StoreIx, &'a str), usize>,
}

impl<'a> Tools<'a> {
    fn new(scan: &'a Scan) -> Self {
        let inventory = &scan.inventory;
        let mut names = HashMap::new();
        let mut stores = HashMap::new();
        for container in &inventory.containers {
            *names.entry((container.store, container.name.as_str())).or_default() += 1;
            stores.entry(container.store).or_insert_with(|| owners_store(scan, container.store));
        }
        let leaks = inventory.leaks.iter().filter(|leak| leak.class == LeakClass::ForgottenContainer);
        let forgotten = leaks.map(|leak| leak.id.as_str()).collect();
        let sandboxes = inventory.containers.iter().filter(|container| container.sandbox);
        let live = sandboxes.filter(|sandbox| sandbox.state != ContainerState::Exited);
        let live_pods = live.map(|sandbox| (sandbox.store, sandbox.id.as_str())).collect();
        Self { scan, stores, forgotten, live_pods, names }
    }

    /// Returns true for a container of a pod that has not exited. The kubelet may run such a container again if its record
    /// is removed, for example a job that is done.
    fn is_in_live_pod(&self, container: &Container) -> bool {
        let sandbox = container.sandbox_id.as_deref().filter(|_| !container.sandbox);
        sandbox.is_some_and(|sandbox| self.live_pods.contains(&(container.store, sandbox)))
    }

    /// Returns the program of a stopped container, and the container's word in its command. A container that podman's
    /// own database lacks can only be shown: podman removes it by force alone. So can one of a pod that runs.
    fn of(&self, container_ix: ContainerIx) -> (Tool, String) {
        let container = &self.scan.inventory[container_ix];
        let Container { id, name, owner, store, sandbox, .. } = container;
        let owners = &self.stores[store];
        if *owner == Owner::Podman && self.forgotten.contains(id.as_str()) {
            let command = format!("{} ps --all --external", owners.tool("podman"));
            return (Tool::Shows(command, "use the tool that created such a container"), String::new());
        }
        if self.is_in_live_pod(container)
            && let Some(command) = inspection(container, owners)
        {
            let reason = "its pod runs, and the kubelet may start it again; `layersweep gc` deletes it if the kubelet does \
                          not need it, with [containers] enabled";
            return (Tool::Shows(command, reason), String::new());
        }
        let Some((command, word)) = removal_words(*owner, id, *sandbox, owners) else {
            return (Tool::Unknown(remark_without_command(*owner, id)), String::new());
        };
        let has_names = match owner {
            Owner::Podman | Owner::Buildah => true,
            // In containerd, the name of Docker's container may be missing.
            Owner::Docker => self.scan.inventory[*store].kind.facts().tool.is_some(),
            Owner::CriO | Owner::Containerd | Owner::Unknown => false,
        };
        let is_unique = self.names.get(&(*store, name.as_str())) == Some(&1);
        let word = if has_names && is_unique && is_plain_name(name) { name.clone() } else { word };
        (Tool::Removes(command, remark(*owner, id)), word)
    }
}

/// Returns true for a name that podman gives. The names of records are foreign: any other is not printed in a command.
fn is_plain_name(name: &str) -> bool {
    const MOST_LETTERS: usize = 64;
    name.len() <= MOST_LETTERS
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// Returns what a person has to know about the command that removes a stopped container.
fn remark(owner: Owner, id: &str) -> Option<&'static str> {
    const BY_GC: &str = "`layersweep gc` deletes such a container too, with [containers] enabled";
    match owner {
        Owner::CriO => Some(BY_GC),
        Owner::Containerd => match id.rsplit_once('/') {
            None => Some(BY_GC),
            Some(("default" | "k8s.io", _)) => None,
            Some(_) => Some("the program that uses the namespace may have its own record of the container"),
        },
        Owner::Buildah => Some("such a container belongs to a build, which may be unfinished"),
        _ => None,
    }
}

fn remark_without_command(owner: Owner, id: &str) -> String {
    match id.rsplit_once('/') {
        Some((namespace, _)) if owner == Owner::Containerd => {
            format!(
                "use the program that created such a container, in the namespace {namespace} of containerd"
            )
        }
        _ => "use the tool that created such a container".to_owned(),
    }
}

/// Returns the state of a container that does not run; `None` if it runs or may run.
pub(super) fn stopped(container: &Container, is_foreign: bool) -> Option<&'static str> {
    match container.state {
        ContainerState::Exited => Some("exited"),
        // The kubelet is about to start the container, or has just started it.
        ContainerState::Created if container.owner == Owner::CriO && !is_foreign => None,
        ContainerState::Created => Some("created, never started"),
        // A build that runs has its container mounted, which counts as running.
        ContainerState::Unknown if container.owner == Owner::Buildah => Some("build container"),
        // On a disk that is mounted on another machine, they ran, or may have run, when it was last in use.
        ContainerState::Running | ContainerState::Unknown => None,
    }
}

/// Returns the command for a container: it removes a stopped one, and on a disk of another node it shows one that may have
/// run there. `None` if the container runs or may run, or if its program is unknown.
pub fn removal_of(scan: &Scan, container_ix: ContainerIx) -> Option<PrintedCommand> {
    let container = &scan.inventory[container_ix];
    let foreign = scan.sysroot.is_foreign();
    if stopped(container, foreign).is_none() {
        let command = foreign.then(|| inspection(container, &owners_store(scan, container.store))).flatten();
        return command.map(PrintedCommand::Shows);
    }
    match Tools::new(scan).of(container_ix) {
        (Tool::Removes(command, _), word) => Some(PrintedCommand::Deletes(format!("{command} {word}"))),
        (Tool::Shows(command, _), _) => Some(PrintedCommand::Shows(command)),
        (Tool::Unknown(_), _) => None,
    }
}

/// Returns the command that shows a container with the program that made it; `None` if that program is unknown.
fn inspection(container: &Container, store: &OwnersStore) -> Option<String> {
    let tool = match container.owner {
        Owner::CriO | Owner::Containerd if container.id.contains('/') => return None,
        Owner::CriO | Owner::Containerd if container.sandbox => "crictl inspectp".to_owned(),
        Owner::CriO | Owner::Containerd => "crictl inspect".to_owned(),
        Owner::Podman => format!("{} inspect", store.tool("podman")),
        Owner::Buildah => format!("{} inspect", store.tool("buildah")),
        Owner::Docker => "docker inspect".to_owned(),
        Owner::Unknown => return None,
    };
    let id = container.id.rsplit('/').next().unwrap_or_default();
    Some(format!("{tool} {}", shell_word(&short_id(id))))
}

/// Returns the path of a container's own layer, as the node itself names it.
pub(super) fn layer_path(scan: &Scan, container: &Container) -> Option<String> {
    let mut held = container.holds.iter().map(|node| &scan.inventory[*node]);
    let layer = held.find(|node| matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot))?;
    Some(scan.sysroot.shown(&layer.path))
}

/// Describes what can be freed after the removal.
fn lets_free(
    deleted_by: DeletedBy,
    tool: Option<&str>,
    images: &[HeldImage],
    freed: u64,
    needs_others: bool,
) -> String {
    let namespace = images.first().and_then(|image| Some(image.id.split_once('/')?.0));
    let whom = match (deleted_by, tool) {
        (DeletedBy::Gc, _) => "gc".to_owned(),
        (DeletedBy::User, _) => "the user's gc".to_owned(),
        (DeletedBy::Owner, Some(tool)) => format!("`{tool} rmi`"),
        (DeletedBy::Owner, None) => match namespace {
            Some(namespace) if is_for_ctr(namespace) => {
                format!("`ctr -n {} images rm`", shell_word(namespace))
            }
            _ => "the owner of the images".to_owned(),
        },
    };
    let names = listed(&first(images.iter().map(|image| image.name.clone())));
    let others = match (needs_others, images.len()) {
        (false, _) => "",
        (true, 1) => ", once the other stopped containers that keep it are removed too",
        (true, _) => ", once the other stopped containers that keep them are removed too",
    };
    if images.is_empty() {
        return format!(
            "lets {whom} free {}, which the writable layer shares with unused images",
            bytes(freed)
        );
    }
    let noun = if images.len() == 1 { "the image" } else { "the images" };
    format!("lets {whom} free {}: {noun} {names}{others}", bytes(freed))
}

fn first(names: impl ExactSizeIterator<Item = String>) -> Vec<String> {
    let more = names.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| count(more, "more", "more"));
    names.take(NAMED).chain(more).collect()
}

fn held_images(inventory: &Inventory, images: &BTreeSet<ImageIx>) -> Vec<HeldImage> {
    let images = images.iter().map(|image_ix| &inventory[*image_ix]);
    let held = images.map(|image| HeldImage {
        id: image.id.to_string(),
        name: image.title().to_owned(),
        store: root(inventory, image.store),
    });
    held.collect()
}

fn root(inventory: &Inventory, store: StoreIx) -> String {
    inventory[store].root.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::refs::Refs;
    use crate::model::samples::{self, image};
    use crate::model::{Node, removal_command};

    fn container(owner: Owner, state: ContainerState) -> Container {
        samples::container("0123456789abcdef", owner, state)
    }

    #[test]
    fn extents_shared_with_unused_images_are_freed() {
        fn node(kind: NodeKind, bytes: u64, needs: &[usize]) -> Node {
            Node { kind, ..samples::layer(bytes, needs) }
        }
        use NodeKind::{Layer, SharedExtents};
        let (held, used, unused) = (0, 1, 2);
        let mut inventory = Inventory {
            nodes: vec![
                node(Layer, 1, &[]),
                node(Layer, 20, &[6]),
                node(Layer, 300, &[5]),
                // Own layers of the stopped and of the running container.
                node(Layer, 4000, &[0, 5, 6]),
                node(Layer, 50_000, &[1]),
                // Extents of the stopped container's layer: in the unused image, and in the used one.
                node(SharedExtents, 600_000, &[]),
                node(SharedExtents, 7_000_000, &[]),
            ],
            ..Inventory::default()
        };
        inventory.images = [held, used, unused].map(|layer| image("a", &[layer])).into();
        inventory.containers = vec![container(Owner::Podman, ContainerState::Exited)];
        inventory.containers.push(container(Owner::Podman, ContainerState::Running));
        for (container, holds) in inventory.containers.iter_mut().zip([3, 4]) {
            container.holds = vec![holds.into()];
        }
        let refs = Refs::new(&inventory);
        let present = refs.live();
        let mut live = refs.live();
        live.remove(&inventory, Root::Image(unused.into()));
        let stopped = [Root::Container(0.into())];
        let freed = |images: &[Root]| {
            let freed = freed_after(&present, &live, &stopped, images).into_iter();
            freed.map(|node| inventory[node].size.frees_bytes).sum::<u64>()
        };
        assert_eq!(freed(&[Root::Image(held.into())]), 600_001);
        assert_eq!(freed(&[]), 600_000, "of a container that keeps no image");
    }

    #[test]
    fn commands_have_plain_names_only() {
        for (name, is_plain) in [
            ("later", true),
            ("web_1.db-0", true),
            ("", false),
            ("--all", false),
            ("a b", false),
            ("$(reboot)", false),
            ("a\u{202e}b", false),
        ] {
            assert_eq!(is_plain_name(name), is_plain, "{name}");
        }
    }

    #[test]
    fn container_of_a_mounted_disk_may_have_run() {
        let store = OwnersStore { graphroot: "/var/lib/containers/storage".into(), user: Some("al".into()) };
        for (owner, state, on_disk, shown) in [
            (Owner::Podman, ContainerState::Running, None, "as al: podman --root"),
            (Owner::Podman, ContainerState::Unknown, None, "as al: podman --root"),
            (Owner::Podman, ContainerState::Exited, Some("exited"), "as al: podman --root"),
            (
                Owner::CriO,
                ContainerState::Created,
                Some("created, never started"),
                "crictl inspect 0123456789ab",
            ),
            (Owner::Buildah, ContainerState::Unknown, Some("build container"), "as al: buildah --root"),
            (Owner::Unknown, ContainerState::Running, None, ""),
        ] {
            let container = container(owner, state);
            assert_eq!(stopped(&container, true), on_disk, "{owner:?} {state:?}");
            assert!(inspection(&container, &store).unwrap_or_default().starts_with(shown), "{owner:?}");
        }
    }

    #[test]
    fn container_is_removed_with_the_tool_of_its_owner() {
        let id = "0123456789abcdef";
        for (owner, id, sandbox, command, remedy) in [
            (Owner::CriO, id.to_owned(), false, "crictl rm 0123456789ab", "`layersweep gc` deletes such"),
            (Owner::CriO, id.to_owned(), true, "crictl rmp 0123456789ab", "`layersweep gc` deletes such"),
            (
                Owner::Containerd,
                id.to_owned(),
                false,
                "crictl rm 0123456789ab",
                "`layersweep gc` deletes such",
            ),
            (Owner::Docker, format!("moby/{id}"), false, "docker rm 0123456789ab", ""),
            (
                Owner::Containerd,
                format!("default/{id}"),
                false,
                "ctr -n default containers rm 0123456789abcdef",
                "",
            ),
            (
                Owner::Containerd,
                format!("k8s.io/{id}"),
                false,
                "ctr -n k8s.io containers rm 0123456789abcdef",
                "",
            ),
            (
                Owner::Containerd,
                format!("ci/{id}"),
                false,
                "ctr -n ci containers rm 0123456789abcdef",
                "the program that uses the namespace",
            ),
            (Owner::Containerd, format!("buildkit/{id}"), false, "", "use the program that created"),
            (Owner::Podman, id.to_owned(), false, "podman rm 0123456789ab", ""),
            (Owner::Buildah, id.to_owned(), false, "buildah rm 0123456789ab", "such a container belongs"),
            (Owner::Unknown, id.to_owned(), false, "", "use the tool"),
        ] {
            let store = OwnersStore { graphroot: "/var/lib/containers/storage".into(), user: None };
            let found = removal_command(owner, &id, sandbox, &store);
            assert_eq!(found.as_deref().unwrap_or_default(), command);
            let remark = match found {
                Some(_) => remark(owner, &id).unwrap_or_default().to_owned(),
                None => remark_without_command(owner, &id),
            };
            assert!(remark.starts_with(remedy), "{remedy}: {remark}");
        }
    }
}
