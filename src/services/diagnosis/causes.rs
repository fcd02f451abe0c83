//! Causes of the usage: the objects that fill the filesystems, each with its bytes and its remedy.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;

use crate::model::refs::{self, Root, Standing};
use crate::model::rules::Rule;
use crate::model::text::display::{self, shell_reference, shell_word, short_id, span};
use crate::model::{
    Consistency, Container, ContainerIx, ContainerState, FilesystemIx, ImageIx, Leak, LeakClass, LeakIx,
    NodeKind, OriginKind, PinReason, PrintedCommand, StoreIx, Verdict, is_for_ctr,
};
use crate::policy::leaks::{self, Decision, KeepReason};
use crate::services::diagnosis::context::Context;
use crate::services::diagnosis::holders::{self, removal_of};
use crate::services::diagnosis::outside_causes;
use crate::services::diagnosis::parts::kind_of_large;
use crate::services::diagnosis::ranking::rank;
use crate::services::diagnosis::{Cause, CauseGroup, CauseKind, Disk, LEAST, Planned};
use crate::services::paths::owners_store;
use crate::stores::Scan;
use crate::sys::namespaces::{HIDDEN_PROCESSES, SHOW_PROCESSES};

/// Returns the causes of the usage of all filesystems, ranked as in [`rank`].
pub fn causes(context: &Context<'_>, disks: &[Disk]) -> Vec<Cause> {
    let mut causes = Vec::new();
    // No file can be deleted from a filesystem that is mounted read-only.
    for ix in disks.iter().filter(|disk| !disk.is_full_by_design).map(|disk| disk.ix) {
        causes.extend(unused_images(context, ix));
        causes.extend(out_of_reach(context, ix));
        causes.extend(pinned_images(context, ix));
        causes.extend(stopped_containers(context, ix));
        causes.extend(containers(context, ix));
        causes.extend(container_logs(context, ix));
        causes.extend(build_caches(context, ix));
        causes.extend(leaks(context, ix));
        causes.extend(outside_causes::package_caches(context, ix));
        causes.extend(outside_causes::logs(context, ix));
        causes.extend(outside_causes::volumes(context, ix));
        causes.extend(outside_causes::large_files(context, ix));
        causes.extend(outside_causes::unread_stores(context, ix));
        causes.extend(outside_causes::nerdctl_volumes(context, ix));
        causes.extend(outside_causes::other_users(context, ix, &causes));
        causes.extend(volumes(context, ix));
        causes.extend(large(context, ix));
        causes.extend(outside_causes::others(context, ix, &causes));
    }
    rank(&mut causes, disks);
    causes
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
    // Each store has its own remedy. If a command deletes the images, those that no registry may have are apart.
    let mut by_reason: BTreeMap<(String, StoreIx, bool), Vec<ImageIx>> = BTreeMap::new();
    for image_ix in (0..inventory.images.len()).map(ImageIx::from) {
        if refs::standing(inventory, &context.scan.refs, image_ix) == Standing::Unused
            && let Some(obstacle) = inventory.obstacle(image_ix)
        {
            let image = &inventory[image_ix];
            let has_command = removing_tool(context.scan, image.store).is_some()
                || image.id.namespace().is_some_and(is_for_ctr);
            let is_only_here = has_command && !image.names.is_empty() && image.origin.may_lack_a_registry();
            by_reason.entry((obstacle, image.store, is_only_here)).or_default().push(image_ix);
        }
    }
    let causes = by_reason.into_iter().filter_map(|((obstacle, store, is_only_here), images)| {
        let roots: Vec<_> = images.iter().map(|image| Root::Image(*image)).collect();
        let size = context.frees(ix, &roots);
        let count = display::count(images.len(), "unused image", "unused images");
        let kind = inventory[store].kind;
        let cause = (size.frees_bytes >= LEAST).then(|| Cause {
            title: match kind.facts().tool {
                Some(_) => format!("{count} of {}", kind.runtime()),
                None => "images out of reach".into(),
            },
            remedy: remedy_out_of_reach(context.scan, images[0]),
            group: CauseGroup::Kept,
            ..context.cause(
                ix,
                CauseKind::ImagesOutOfReach,
                size.frees_bytes,
                format!("{count} out of reach: {obstacle}"),
            )
        })?;
        Some(match removing_tool(context.scan, store) {
            Some(tool) if is_only_here => Cause {
                title: format!("{}, built or loaded here", cause.title),
                remedy: "perhaps no registry has them".into(),
                command: Some(PrintedCommand::Shows(format!("{tool} images"))),
                group: CauseGroup::OnlyYouCanJudge,
                frees_bytes: size.frees_bytes,
                frees_inodes: size.inodes,
                ..cause
            },
            Some(tool) => by_tool(context, &tool, &images, cause),
            None => cause,
        })
    });
    causes.collect()
}

/// Returns the tool that deletes the images of a store, if layersweep does not: Docker's in its own store, and podman where
/// the layers are subvolumes or datasets.
fn removing_tool(scan: &Scan, store: StoreIx) -> Option<String> {
    let inventory = &scan.inventory;
    let is_podmans = inventory.closed_stores.contains(&store)
        && !inventory.silent_stores.contains(&store)
        && matches!(inventory[store].driver.as_str(), "btrfs" | "zfs");
    let dockers = inventory.tool(store);
    dockers.map(str::to_owned).or_else(|| is_podmans.then(|| owners_store(scan, store).tool("podman")))
}

/// Adds the tool's command to the cause of unused images that only the tool can delete. It names the images: a prune would
/// also delete those that a pin or rule keeps, which the tool does not know. Without force, the tool refuses what is in use.
fn by_tool(context: &Context<'_>, tool: &str, images: &[ImageIx], cause: Cause) -> Cause {
    /// Maximum number of images in a command.
    const MOST: usize = 20;
    let inventory = &context.scan.inventory;
    let live = context.scan.refs.live();
    let alone = |image| context.alone(&live, cause.filesystem_ix, Root::Image(image)).frees_bytes;
    let mut largest: Vec<_> = images.iter().map(|image| (Reverse(alone(*image)), *image)).collect();
    largest.sort();
    largest.truncate(MOST);
    let words = largest.iter().flat_map(|(_, image)| {
        let image = &inventory[*image];
        let nameless = image.names.is_empty().then(|| shell_reference(&image.id));
        image.names.iter().map(|name| shell_word(name)).chain(nameless)
    });
    let words = words.collect::<Vec<_>>().join(" ");
    let roots: Vec<_> = largest.iter().map(|(_, image)| Root::Image(*image)).collect();
    let size = context.frees(cause.filesystem_ix, &roots);
    let more = images.len() - largest.len();
    let was_pulled = |image: &ImageIx| inventory[*image].origin.kind == OriginKind::Pulled;
    let parts = [
        (more > 0).then(|| format!("and then {more} more")),
        (!images.iter().all(was_pulled))
            .then(|| "one that was built or loaded here cannot be pulled again".to_owned()),
    ];
    Cause {
        remedy: parts.into_iter().flatten().collect::<Vec<_>>().join("; "),
        command: Some(PrintedCommand::Deletes(format!("{tool} rmi {words}"))),
        group: CauseGroup::CanBeMadeAgain,
        frees_bytes: size.frees_bytes,
        frees_inodes: size.inodes,
        ..cause
    }
}

/// Returns the remedy for images that are out of reach for the same reason as `image`.
pub fn remedy_out_of_reach(scan: &Scan, image_ix: ImageIx) -> String {
    let inventory = &scan.inventory;
    let image = &inventory[image_ix];
    let store = &inventory[image.store];
    match image.id.namespace() {
        _ if store.consistency == Consistency::Damaged => "see the warnings".into(),
        _ if inventory.out_of_tool.contains_key(&image.store) => "see docs/docker.md".into(),
        _ if let Some(tool) = store.kind.facts().tool => {
            format!("`{tool} rmi NAME` deletes one, `{tool} image prune` those without a name")
        }
        Some("moby") => "Docker deletes them; `docker image ls` lists them".into(),
        Some(namespace) if is_for_ctr(namespace) => {
            let ctr = format!("ctr -n {} images", shell_word(namespace));
            if image.origin.may_lack_a_registry() {
                format!("`{ctr} ls` lists them; perhaps no registry has them")
            } else {
                format!("the program that uses the namespace deletes them, or `{ctr} rm NAME`")
            }
        }
        Some(namespace) => format!("the program that uses the namespace {namespace} deletes them"),
        None if inventory.silent_stores.contains(&image.store) => {
            let runtime = store.kind.runtime();
            let is_full = inventory[store.filesystem].available_bytes == 0;
            let start = if is_full { "free some space by hand and start" } else { "start" };
            format!("{start} {runtime}, then `layersweep gc` deletes them by policy")
        }
        None if inventory.is_left_by_cri(image_ix) && inventory.removal_by_ctr(image_ix).is_some() => {
            let image = shell_reference(&image.id);
            format!("`layersweep explain {image}` names the command that removes such an image")
        }
        None if inventory.closed_stores.contains(&image.store) => {
            let command = owners_store(scan, image.store).gc_of_user();
            command.map_or_else(String::new, |command| format!("`{command}` deletes them by policy"))
        }
        None if inventory.out_of_reach.get(&image_ix).is_some_and(|why| why == HIDDEN_PROCESSES) => {
            SHOW_PROCESSES.to_owned()
        }
        None if store.kind.facts().is_editable => {
            let (flag, root) = (store.kind.facts().flag, shell_word(&store.root.to_string_lossy()));
            format!("`layersweep gc --via direct {flag} {root}` deletes them by policy")
        }
        None => format!("`layersweep gc` deletes them by policy while {} runs", store.kind.runtime()),
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
    let planned = &context.planned[ix.get()];
    let (gc, remedy) = (planned.gc, remedy_of_unused(planned, bytes));
    (bytes >= LEAST).then(|| Cause {
        title: "images not in use".into(),
        remedy,
        command: (!gc.is_nothing()).then(|| PrintedCommand::Deletes(planned.command.to_owned())),
        frees_bytes: gc.bytes,
        frees_inodes: gc.inodes,
        group: CauseGroup::Layersweep,
        ..context.cause(ix, CauseKind::UnusedImages, bytes, text)
    })
}

/// Returns the remedy for unused images of `bytes`: those that the command deletes.
fn remedy_of_unused(planned: &Planned, bytes: u64) -> String {
    match (planned.gc.is_nothing(), planned.by_age) {
        (true, _) => format!("kept for now: {}", planned.none),
        (false, Some(number)) => format!("{number} of them, which are idle for longer than max_age"),
        (false, None) if planned.gc.bytes < bytes => {
            "the least recently used of them, until the low threshold is reached".into()
        }
        (false, None) => String::new(),
    }
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
        let pause = facts.pinned_by.iter().any(|pin| pin.is_of_sandboxes);
        let ruling = inventory.protected.get(&image).filter(|_| facts.pinned_by.is_empty());
        let pause = pause || ruling.is_some_and(|ruling| ruling.rule == Rule::SandboxImage);
        let command = context.planned[ix.get()].command;
        let (kind, kept, remedy) = match ruling {
            Some(ruling) => ("kept", format!("kept: {}", ruling.detail), lift(ruling.rule, command)),
            None => {
                let pins = facts.pin_texts().join(", ");
                ("pinned", format!("pinned by {pins}"), unpin(&facts.pinned_by, command))
            }
        };
        let text = format!("unused image {name} ({used}), {kept}");
        (bytes >= context.least(ix) && !pause).then(|| Cause {
            title: format!("{kind} image {name}"),
            remedy,
            id: Some(facts.id.to_string()),
            group: CauseGroup::Kept,
            ..context.cause(ix, CauseKind::PinnedImage, bytes, text)
        })
    });
    causes.collect()
}

fn lift(rule: Rule, command: &str) -> String {
    let step = match rule {
        Rule::StaticPod => "remove that static pod",
        Rule::Quadlet => "remove that quadlet",
        Rule::ProtectedName => "remove that entry of protect.names or protect.references_file",
        Rule::ProtectedLabel => "remove that label from protect.labels",
        Rule::NewestOfRepository => "set a smaller keep_newest",
        Rule::NotRepullable => "set protect.not_repullable = \"never\", which is for all such images",
        _ => return format!("the rule {rule} keeps it"),
    };
    format!("if nothing needs it: {step}; then `{command}` can delete it")
}

/// Returns the remedy that removes the pins of an image, each where it was set.
fn unpin(pinned_by: &[PinReason], command: &str) -> String {
    let mut steps: Vec<&str> = Vec::new();
    for undo in pinned_by.iter().filter_map(|pin| pin.undo.as_deref()) {
        if !steps.contains(&undo) {
            steps.push(undo);
        }
    }
    if steps.is_empty() {
        format!("if nothing needs it, remove the pin; then `{command}` can delete it")
    } else {
        format!("if nothing needs it: {}; then `{command}` can delete it", steps.join(", "))
    }
}

/// Returns a cause for each command that removes stopped containers.
fn stopped_containers(context: &Context<'_>, ix: FilesystemIx) -> impl Iterator<Item = Cause> {
    let removals = context.stopped.removals.iter().filter(move |removal| removal.filesystem_ix == ix);
    removals.map(move |removal| {
        let single = removal.containers.first().filter(|_| removal.containers.len() == 1);
        let is_deleted = matches!(removal.command, Some(PrintedCommand::Deletes(_)));
        Cause {
            title: removal.title(),
            remedy: removal.effect.clone(),
            command: removal.command.clone(),
            frees_bytes: removal.own_bytes,
            frees_inodes: removal.own_inodes,
            keeps_bytes: removal.keeps_bytes,
            id: single.map(|container| container.id.clone()),
            path: single.and_then(|container| container.path.clone()),
            group: if is_deleted { CauseGroup::StoppedContainer } else { CauseGroup::OnlyYouCanJudge },
            ..context.cause(ix, CauseKind::DeadContainer, removal.own_bytes, removal.text.clone())
        }
    })
}

/// Returns the containers with large writable layers that run or may run. On a disk of another node, only a person can
/// judge a container that ran, or may have run, when the disk was last in use.
fn containers(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let inventory = &context.scan.inventory;
    let foreign = context.scan.sysroot.is_foreign();
    let live = context.scan.refs.live();
    let mut causes = Vec::new();
    for (position, container) in inventory.containers.iter().enumerate() {
        let container_ix = ContainerIx::from(position);
        let size = context.alone(&live, ix, Root::Container(container_ix));
        let log_bytes = log_bytes(context, ix, container);
        let its_volumes = context.other_users.volumes.iter().filter(|volume| volume.of == Some(container_ix));
        // The volumes of the container are causes of their own; so is its log, unless it ran on another node.
        let volumes = its_volumes.map(|volume| volume.bytes).fold(0, u64::saturating_add);
        let own_log = if foreign { 0 } else { log_bytes };
        let bytes = size.frees_bytes.saturating_sub(own_log).saturating_sub(volumes);
        if holders::stopped(container, foreign).is_some() || bytes < context.least(ix) {
            continue;
        }
        let (name, owner) = (&container.name, container.owner.as_str());
        let log = match log_bytes - own_log {
            log if log >= LEAST => format!(", its log {}", display::bytes(log)),
            _ => String::new(),
        };
        let state = match container.state {
            _ if foreign => "ran, or may have run, when the disk was last in use",
            ContainerState::Running => "running",
            ContainerState::Created => "created",
            ContainerState::Exited | ContainerState::Unknown => "state unknown, may be running",
        };
        let text = format!("container {name} ({owner}, {state}): its writable layer{log}");
        let cause = Cause {
            title: format!("container {name}"),
            id: Some(container.id.to_string()),
            path: holders::layer_path(context.scan, container),
            ..context.cause(ix, CauseKind::Container, bytes, text)
        };
        causes.push(if foreign {
            Cause {
                command: removal_of(context.scan, container_ix),
                frees_bytes: bytes,
                frees_inodes: size.inodes,
                ..cause
            }
        } else {
            Cause {
                remedy: "find out what it writes to its root filesystem; use a volume for that".into(),
                group: CauseGroup::Kept,
                ..cause
            }
        });
    }
    causes
}

/// Returns the bytes of the log among a container's own files on a filesystem.
fn log_bytes(context: &Context<'_>, ix: FilesystemIx, container: &Container) -> u64 {
    let inventory = &context.scan.inventory;
    let nodes = container.holds.iter().map(|node| &inventory.nodes[node.get()]);
    let metadata = nodes.filter(|node| node.kind == NodeKind::ContainerMetadata && node.filesystem == ix);
    let most = metadata.map(|node| node.size.frees_bytes).sum();
    container.log.as_ref().map_or(0, |log| log.bytes.min(most))
}

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
            command: Some(context.shows_file(&path)),
            frees_bytes: bytes,
            id: Some(container.id.to_string()),
            ..context.cause(ix, CauseKind::Log, bytes, format!("log of container {name} ({owner}): {path}"))
        });
    }
    causes
}

/// Returns the build caches. Layers that images or containers reach are not counted.
fn build_caches(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let Scan { inventory, refs, .. } = context.scan;
    let mut causes = Vec::new();
    for cache in &inventory.build_caches {
        let unreferenced = cache.holds.iter().filter(|node| refs.refcount(**node) == 0);
        let nodes = unreferenced.map(|node| &inventory[*node]).filter(|node| node.filesystem == ix);
        let bytes = nodes.map(|node| node.size.frees_bytes).fold(0, u64::saturating_add);
        if bytes < LEAST {
            continue;
        }
        let records = display::count(cache.records, "record", "records");
        if inventory[cache.store].kind.facts().tool.is_some() && inventory.tool(cache.store).is_none() {
            let why = inventory.out_of_tool.get(&cache.store).cloned();
            let text = format!("build cache of {}: {records}", cache.owner());
            causes.push(Cause {
                title: format!("build cache of {}", cache.owner()),
                remedy: why.unwrap_or_else(|| "see the warnings".to_owned()),
                group: CauseGroup::Kept,
                path: Some(context.inside(&inventory[cache.store].root)),
                ..context.cause(ix, CauseKind::BuildCache, bytes, text)
            });
            continue;
        }
        causes.push(Cause {
            title: format!("build cache of {}", cache.owner()),
            remedy: cache.remedy().into(),
            command: Some(PrintedCommand::Deletes(cache.command().into())),
            group: CauseGroup::CanBeMadeAgain,
            frees_bytes: bytes,
            path: Some(context.inside(&inventory[cache.store].root)),
            ..context.cause(
                ix,
                CauseKind::BuildCache,
                bytes,
                if inventory[cache.store].kind.facts().tool.is_some() {
                    format!("build cache of {}: {records}", cache.owner())
                } else {
                    let (owner, namespace) = (cache.owner(), &cache.namespace);
                    format!("build cache of {owner} (namespace {namespace} of containerd): {records}")
                },
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
        let (group, remedy, command) = remedy_of_leak(context, leak, decisions.get(first), many);
        let name = match class {
            // These files are outside the stores: the name is not enough to find them.
            LeakClass::VarTmp => context.inside(&leak.path),
            _ => short_id(&leak.id),
        };
        let title = if many {
            format!("{} leaks of class {class}", members.len())
        } else {
            format!("leak {class} {name}")
        };
        let text = if many {
            format!("{title}; the largest: {name}, {}: {}", display::bytes(*largest), leak.evidence)
        } else {
            format!("{title}: {}", leak.evidence)
        };
        let is_deletable = matches!(command, Some(PrintedCommand::Deletes(_)));
        // Docker has forgotten it, and nothing deletes it: only a person can.
        let is_forgotten = group == CauseGroup::OnlyYouCanJudge
            && class.recipe().is_some()
            && inventory[leak.store].kind.facts().tool.is_some();
        let (frees_bytes, frees_inodes) = if is_deletable || is_forgotten || class == LeakClass::VolumeOrphan
        {
            (size.frees_bytes, size.inodes)
        } else {
            (0, 0)
        };
        causes.push(Cause {
            title,
            remedy,
            command,
            frees_bytes,
            frees_inodes,
            id: (!many).then(|| leak.id.clone()),
            path: (!many).then(|| context.inside(&leak.path)),
            group,
            ..context.cause(ix, CauseKind::Leak, size.frees_bytes, text)
        });
    }
    causes
}

/// Returns the remedy for a leak, or for `many` of its class: its group, a description, and the command that deletes or
/// shows it.
fn remedy_of_leak(
    context: &Context<'_>,
    leak: &Leak,
    decision: Option<&&Decision>,
    many: bool,
) -> (CauseGroup, String, Option<PrintedCommand>) {
    let pronoun = if many { "them" } else { "it" };
    let store_kind = context.scan.inventory[leak.store].kind;
    let kept = decision.and_then(|decision| match decision {
        Decision::Stay(stay) => Some(stay),
        Decision::Delete(_) | Decision::Repair => None,
    });
    let class = leak.class;
    let command = format!("layersweep sweep --delete --class {class}");
    match (leak.verdict, kept) {
        (Verdict::Reclaim, _) if !store_kind.facts().is_editable => {
            let remedy =
                format!("{} removes {pronoun} automatically; see docs/leaks.md", store_kind.as_str());
            (CauseGroup::Kept, remedy, None)
        }
        (Verdict::Reclaim, None) => {
            (CauseGroup::Layersweep, String::new(), Some(PrintedCommand::Deletes(command)))
        }
        (Verdict::Reclaim, Some(KeepReason::Young(_))) => {
            let min_age = span(context.min_age);
            let when = if many { "once they are" } else { "once it is" };
            (CauseGroup::Layersweep, format!("`{command}` removes {pronoun} {when} {min_age} old"), None)
        }
        (Verdict::Reclaim, Some(kept)) => {
            let reason = leaks::reason(&context.scan.inventory, leak, kept, context.min_age);
            (CauseGroup::Kept, format!("not deletable: {reason}"), None)
        }
        (Verdict::Repair, _) if class.recipe().is_some() => {
            (CauseGroup::Kept, format!("`layersweep sweep --repair {class}` fixes {pronoun}"), None)
        }
        // The object looks like a leak, but is not.
        (Verdict::Keep, _) => (CauseGroup::Kept, String::new(), None),
        (Verdict::Repair | Verdict::Report, _) => {
            let advice = match leaks::by_hand(&context.scan.inventory, leak) {
                clause if clause.contains("docs/") => clause,
                clause => format!("{clause}; see docs/leaks.md"),
            };
            match leaks::command(&context.scan.inventory, leak)
                .filter(|_| !many && class == LeakClass::BrokenImage)
            {
                Some(command) => (CauseGroup::CanBeMadeAgain, advice, Some(PrintedCommand::Deletes(command))),
                None => {
                    let command = format!("layersweep sweep --class {class}");
                    (CauseGroup::OnlyYouCanJudge, advice, Some(PrintedCommand::Shows(command)))
                }
            }
        }
    }
}

/// Returns the volumes in the stores. Those of a container of CRI that does not run count with the container.
fn volumes(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let all = context.other_users.volumes.iter();
    let volumes = all.filter(|volume| volume.filesystem == ix && volume.bytes >= context.least(ix));
    let causes = volumes.filter_map(|volume| {
        let store = owners_store(context.scan, volume.store);
        let tool = context.scan.inventory[volume.store].kind.facts().tool;
        let owner = match (volume.of, tool, &store.user) {
            (Some(_), ..) => "containerd".to_owned(),
            (None, Some(tool), _) => tool.to_owned(),
            (None, None, Some(user)) => format!("podman of {user}"),
            (None, None, None) => "podman".to_owned(),
        };
        let users = match (&volume.containers, volume.of) {
            (_, Some(_)) => "the image declares it".to_owned(),
            (None, None) => "its containers are unknown".to_owned(),
            (Some(containers), None) if containers.is_empty() => "no container uses it now".to_owned(),
            (Some(containers), None) => format!("used by {}", display::listed(containers)),
        };
        let text = format!("volume {} ({owner}): {users}", volume.name);
        let tool = tool.map_or_else(|| store.tool("podman"), str::to_owned);
        let is_out_of_tool = context.scan.inventory.out_of_tool.contains_key(&volume.store);
        let inspect = format!("{tool} volume inspect {}", shell_word(&volume.name));
        let cause = Cause {
            title: format!("volume {}", volume.name),
            path: Some(context.inside(&volume.path)),
            command: (!is_out_of_tool).then_some(PrintedCommand::Shows(inspect)),
            group: CauseGroup::Kept,
            ..context.cause(ix, CauseKind::Volume, volume.bytes, text)
        };
        match (&volume.containers, volume.of) {
            (_, Some(container)) => {
                let state = context.scan.inventory[container].state;
                (state != ContainerState::Exited).then(|| Cause {
                    remedy: "deleted with its container; declare a volume of the pod for that path".into(),
                    command: None,
                    ..cause
                })
            }
            _ if is_out_of_tool => Some(cause),
            (Some(containers), None) if containers.is_empty() => Some(Cause {
                remedy: "a service or quadlet that is stopped may need its data".into(),
                frees_bytes: volume.bytes,
                frees_inodes: volume.inodes,
                group: CauseGroup::OnlyYouCanJudge,
                ..cause
            }),
            (Some(_), None) => Some(cause),
            (None, None) => {
                Some(Cause { command: Some(PrintedCommand::Shows(format!("{tool} volume ls"))), ..cause })
            }
        }
    });
    causes.collect()
}

/// Returns the large directories in the stores that do not belong to an image or container.
fn large(context: &Context<'_>, ix: FilesystemIx) -> Vec<Cause> {
    let here = context.other_users.large.iter().filter(|directory| directory.filesystem == ix);
    // Volumes are causes of their own.
    let is_volumes =
        |path: &Path| context.other_users.volumes.iter().any(|volume| volume.path.parent() == Some(path));
    let here = here.filter(|directory| {
        let is_large = directory.bytes >= context.least(ix) || context.has_many_inodes(ix, directory.inodes);
        is_large && !is_volumes(&directory.path)
    });
    here.map(|directory| {
        let path = context.inside(&directory.path);
        let root = context.inside(&context.scan.inventory[directory.store].root);
        let kind = kind_of_large(directory);
        let largest = directory.largest.as_ref().map_or_else(String::new, |(path, bytes)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            format!(", the largest: {name} {}", display::bytes(*bytes))
        });
        let (group, frees_bytes, command) = match directory.unread_store {
            Some(store_kind) => {
                let command = outside_causes::usage_of_store(store_kind.facts().flag, &path);
                (CauseGroup::OnlyYouCanJudge, directory.bytes, command)
            }
            None => (CauseGroup::Kept, 0, format!("layersweep explain {}", shell_word(&path))),
        };
        let text = format!("{kind}, {path}{largest}");
        let cause = Cause {
            title: format!("{kind} in {root}"),
            command: Some(PrintedCommand::Shows(command)),
            frees_bytes,
            group,
            path: Some(path.clone()),
            ..context.cause(ix, CauseKind::Other, directory.bytes, text)
        };
        if context.has_many_inodes(ix, directory.inodes) {
            outside_causes::of_many_files(&path, directory.inodes, cause)
        } else {
            cause
        }
    })
    .collect()
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
    use crate::model::space::BytesAndInodes;

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
    fn images_that_gc_would_delete_are_named() {
        let planned = |bytes, by_age| Planned {
            command: "layersweep gc",
            gc: BytesAndInodes { bytes, inodes: bytes },
            none: "why".into(),
            by_age,
            sweep: BytesAndInodes::default(),
            owed_bytes: 0,
        };
        for (bytes, by_age, expected) in [
            (0, None, "kept for now: why"),
            (7, Some(4), "4 of them, which are idle for longer than max_age"),
            (7, None, "the least recently used of them, until the low threshold is reached"),
            (9, None, ""),
        ] {
            assert_eq!(remedy_of_unused(&planned(bytes, by_age), 9), expected);
        }
    }

    #[test]
    fn rule_that_keeps_an_image_has_a_remedy() {
        for (rule, expected) in [
            (
                Rule::NotRepullable,
                "if nothing needs it: set protect.not_repullable = \"never\", which is for all",
            ),
            (Rule::ProtectedName, "if nothing needs it: remove that entry of protect.names or"),
            (Rule::Quadlet, "if nothing needs it: remove that quadlet; then `layersweep gc` can delete it"),
        ] {
            let remedy = lift(rule, "layersweep gc");
            assert!(remedy.starts_with(expected) && !remedy.contains("pin"), "{rule}: {remedy}");
        }
    }
}
