//! Images named by the arguments of `rm`, and hints about images that are kept.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::model::deletion::plan::{Plan, TargetKind};
use crate::model::rules::Rule;
use crate::model::text::display::{count, shell_word, short_id, short_reference};
use crate::model::text::reference::{bare_id, means, normalized, repository};
use crate::model::{
    CRI_NAMESPACE, Container, Image, ImageId, ImageIx, Inventory, KindFacts, Owner, OwnersStore,
    PrintedCommand, is_for_ctr, is_of_docker, removal_command,
};
use crate::services::diagnosis;
use crate::services::error::Error;
use crate::services::gc_request::ListLine;
use crate::services::paths::owners_store;
use crate::stores::Scan;
use crate::stores::lookup::{self, LookupError, Subject};

#[derive(Debug, Default)]
pub(super) struct NamedImages {
    /// Each once, in the order given.
    pub(super) images: Vec<ImageIx>,
    /// Lines of lists that name no image of this node, each once.
    pub(super) absent: Vec<String>,
    /// Hints about such lines whose digest is that of an image here under other names.
    pub(super) hints: Vec<String>,
}

/// Looks up `references` and the lines of lists (`listed`). An id or a digest means the image; a name means it
/// if all its names are given, or with `all_tags`. A name by digest means no more than a tag of the same repository,
/// and needs not be given beside it. Beside one image that can be deleted, a reference also means those in Docker's own
/// store: the plan names them as out of reach.
///
/// A list may be the same for many nodes: a line that names no image here is not an error, and a line that names several
/// images (in two stores, or by the digest of an index) means all of them.
///
/// # Errors
/// When a reference means no image, or images are also tagged by names that were not given.
pub(super) fn named(
    scan: &Scan,
    references: &[String],
    listed: &[ListLine],
    all_tags: bool,
) -> Result<NamedImages, Error> {
    let mut meant = Meant::default();
    for reference in references {
        let (image_ix, out_of_reach) = images(scan, reference)?;
        let all = &scan.inventory[image_ix].names;
        let names = lookup::names_meant(all, reference);
        if let [_, _, ..] = names.as_slice()
            && !reference.contains('@')
            && !all_tags
        {
            let names = names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Error::usage(format!("{reference:?} is ambiguous: {names}; nothing was deleted"))
                .hint("give the full name"));
        }
        let names =
            if names.is_empty() || all_tags { all.clone() } else { names.into_iter().cloned().collect() };
        meant.add(image_ix, names, None);
        for image_ix in out_of_reach {
            meant.add(image_ix, scan.inventory[image_ix].names.clone(), None);
        }
    }
    let finder = ImageFinder::new(&scan.inventory);
    let (mut absent, mut hints) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for line in listed.iter().filter(|line| seen.insert((line.reference.as_str(), &line.store))) {
        let mut found = finder.find(&line.reference);
        let store = |image_ix: &ImageIx| &scan.inventory[scan.inventory[*image_ix].store].root;
        found.retain(|image_ix| line.store.as_ref().is_none_or(|root| store(image_ix) == root));
        if found.is_empty() {
            absent.push(line.reference.clone());
            hints.extend(finder.of_other_repository(line));
        }
        for image_ix in found {
            let all = &scan.inventory[image_ix].names;
            let names = names_listed(all, &line.reference);
            let names = if names.is_empty() || all_tags { all.clone() } else { names };
            meant.add(image_ix, names, Some(&line.place));
        }
    }
    let mut errors = meant.images.iter().filter_map(|meant| also_tagged(scan, meant));
    if let Some(mut error) = errors.next() {
        error.others = errors.take(MOST_ERRORS - 1).collect();
        return Err(error);
    }
    hints.truncate(MOST_HINTS);
    Ok(NamedImages { images: meant.images.into_iter().map(|meant| meant.image_ix).collect(), absent, hints })
}

/// Maximum number of images with other names that are reported at once.
const MOST_ERRORS: usize = 20;

/// Returns an error if an image has names that were not given. An image in another namespace of containerd is out of
/// reach in any case.
fn also_tagged(scan: &Scan, meant: &MeantImage) -> Option<Error> {
    let inventory = &scan.inventory;
    let MeantImage { image_ix, names, place } = meant;
    let image = &inventory[*image_ix];
    let others = other_names(image, names);
    if others.is_empty() || image.id.namespace().is_some() {
        return None;
    }
    let (given, others) = (names.join(", "), others.join(", "));
    let start = place.as_ref().map_or_else(String::new, |place| format!("{place}: "));
    let remedy = match place {
        Some(_) => format!(
            "list {} or all its names",
            image.digests.first().map_or(image.id.as_str(), String::as_str)
        ),
        None => "name the id".to_owned(),
    };
    let error = Error::usage(format!(
        "{start}{given}: it is also tagged {others}; {remedy} or add --all-tags; nothing was deleted"
    ));
    if inventory.is_artifact(*image_ix) {
        return Some(error);
    }
    let kind = inventory[image.store].kind.facts();
    let untagging = untagging(kind, &owners_store(scan, image.store), &image.id, names);
    Some(error.hint(format!("to remove only the name, use {untagging}")))
}

#[derive(Default)]
struct Meant {
    images: Vec<MeantImage>,
    positions: HashMap<ImageIx, usize>,
}

struct MeantImage {
    image_ix: ImageIx,
    names: Vec<String>,
    /// First line of a list that names it.
    place: Option<String>,
}

impl Meant {
    fn add(&mut self, image_ix: ImageIx, names: Vec<String>, place: Option<&str>) {
        let position = *self.positions.entry(image_ix).or_insert(self.images.len());
        match self.images.get_mut(position) {
            // A list may name an image by tag and by digest.
            Some(known) => {
                let new: Vec<_> = names.into_iter().filter(|name| !known.names.contains(name)).collect();
                known.names.extend(new);
            }
            None => self.images.push(MeantImage { image_ix, names, place: place.map(str::to_owned) }),
        }
    }
}

/// Finds the images that lines of a list name. Unlike an argument, a line never means the start of an id or the end of a
/// name: a short name is the one that the tools would pull, as `fits` reads it.
struct ImageFinder<'a> {
    inventory: &'a Inventory,
    /// By name in full, digest and id.
    images: HashMap<String, Vec<ImageIx>>,
}

impl<'a> ImageFinder<'a> {
    fn new(inventory: &'a Inventory) -> Self {
        let mut images: HashMap<String, Vec<ImageIx>> = HashMap::new();
        for (position, image) in inventory.images.iter().enumerate() {
            let names = image.names.iter().map(|name| normalized(name));
            let keys: BTreeSet<_> =
                names.chain(image.digests.iter().cloned()).chain([image.id.to_string()]).collect();
            keys.into_iter().for_each(|key| images.entry(key).or_default().push(position.into()));
        }
        Self { inventory, images }
    }

    fn find(&self, line: &str) -> Vec<ImageIx> {
        let with = |key: &str| self.images.get(key).into_iter().flatten().copied();
        let found: BTreeSet<ImageIx> = match line.split_once('@') {
            Some((_, digest)) => with(digest)
                .chain(with(&normalized(line)))
                .filter(|image_ix| {
                    let image = &self.inventory[*image_ix];
                    means(line, &image.names, &image.digests)
                })
                .collect(),
            None => with(line).chain(with(bare_id(line))).chain(with(&normalized(line))).collect(),
        };
        found.into_iter().collect()
    }

    /// Returns a hint if the digest of a line is that of an image under names of other repositories.
    fn of_other_repository(&self, line: &ListLine) -> Option<String> {
        let (_, digest) = line.reference.split_once('@')?;
        let image_ix = *self.images.get(digest)?.first()?;
        let title = self.inventory[image_ix].title();
        Some(format!("{}: {digest} is here as {title}: list the digest alone to delete it", line.place))
    }
}

/// Returns the names of an image that a line of a list means, as [`lookup::names_meant`] does for an argument.
fn names_listed(names: &[String], line: &str) -> Vec<String> {
    let full = normalized(line);
    let of_repository = full.split_once('@').map(|(start, _)| start);
    let is_meant = |name: &&String| {
        let name = normalized(name);
        name == full || of_repository == Some(repository(&name))
    };
    names.iter().filter(is_meant).cloned().collect()
}

/// Names of an image that are not given, and not implied by a tag of the same repository.
fn other_names<'a>(image: &'a Image, given: &[String]) -> Vec<&'a str> {
    let repositories: Vec<_> = given.iter().map(|name| repository(name)).collect();
    let names = image
        .names
        .iter()
        .filter(|name| !given.contains(name))
        .filter(|name| !(name.contains('@') && repositories.contains(&repository(name))));
    names.map(String::as_str).collect()
}

/// The command that removes these names from an image with other names, or the program that can.
fn untagging(kind: &KindFacts, store: &OwnersStore, id: &ImageId, names: &[String]) -> String {
    let names = names.iter().map(|name| shell_word(name)).collect::<Vec<_>>().join(" ");
    match id.namespace().unwrap_or(CRI_NAMESPACE) {
        _ if kind.tool.is_some() && store.user.is_some() => "the Docker whose store it is".to_owned(),
        _ if let Some(tool) = kind.tool => format!("`{tool} rmi {names}`"),
        _ if kind.is_of_podman => {
            format!("`{} untag {} {names}`", store.tool("podman"), shell_word(&short_id(id)))
        }
        namespace if is_of_docker(namespace) => format!("`docker image rm {names}`"),
        namespace if is_for_ctr(namespace) => {
            format!("`ctr -n {} images rm {names}`", shell_word(namespace))
        }
        namespace => format!("the program that uses the namespace {namespace}"),
    }
}

const MOST_HINTS: usize = 5;

/// Hints for kept images: how to end the use by containers, how to delete images of other programs, and when young
/// images can be deleted. One clause for each container or image, and one for all young images.
pub(super) fn hints(plan: &Plan, scan: &Scan) -> Vec<String> {
    fn kept_by(plan: &Plan, rule: Rule) -> Vec<&str> {
        let kept = plan.kept.iter().filter(|kept| kept.rule == rule && kept.target.kind == TargetKind::Image);
        kept.map(|kept| kept.target.id.as_str()).collect()
    }
    let inventory = &scan.inventory;
    let used = kept_by(plan, Rule::InUse);
    let containers = inventory
        .containers
        .iter()
        .enumerate()
        .filter(|(_, container)| container.images().any(|image| used.contains(&inventory[image].id.as_str())))
        .map(|(position, container)| {
            let removal = diagnosis::removal_of(scan, position.into());
            end_of_use(container, removal, &owners_store(scan, container.store))
        });
    let unreached = kept_by(plan, Rule::OutOfReach);
    let images = inventory
        .images
        .iter()
        .filter(|image| {
            let is_of_tool = inventory[image.store].kind.facts().tool.is_some();
            (is_of_tool || image.id.namespace().is_some()) && unreached.contains(&image.id.as_str())
        })
        .map(|image| {
            let kind = inventory[image.store].kind.facts();
            let id = [short_id(&image.id)];
            let words = if image.names.is_empty() { &id[..] } else { &image.names };
            let remover = untagging(kind, &owners_store(scan, image.store), &image.id, words);
            format!("{remover} can delete {}", short_reference(&image.id))
        });
    let mut silent: Vec<_> = inventory
        .images
        .iter()
        .filter(|image| image.id.namespace().is_none() && unreached.contains(&image.id.as_str()))
        .filter(|image| inventory.silent_stores.contains(&image.store))
        .map(|image| format!("start {}, then run this again", inventory[image.store].kind.runtime()))
        .collect();
    silent.dedup();
    let mut hints: Vec<_> = containers.chain(images).chain(silent).collect();
    let more = hints.len().saturating_sub(MOST_HINTS);
    hints.truncate(MOST_HINTS);
    hints.extend((more > 0).then(|| format!("the same for {more} more")));
    hints.extend(too_young(plan));
    hints
}

fn too_young(plan: &Plan) -> Option<String> {
    let young: Vec<_> = plan.kept.iter().filter(|kept| kept.rule == Rule::MinAge).collect();
    let until = young.iter().filter_map(|kept| kept.until).max()?;
    let (verb, whose) = if young.len() == 1 { ("is", "its") } else { ("are", "their") };
    let (images, until) = (count(young.len(), "image", "images"), until.strftime("%Y-%m-%d %H:%M:%S UTC"));
    Some(format!("{images} {verb} too young until {until}; --min-age 0s allows {whose} deletion"))
}

/// Says how the use by a container ends. `removal`: its command if it is stopped.
fn end_of_use(container: &Container, removal: Option<PrintedCommand>, store: &OwnersStore) -> String {
    let Container { owner, id, name, sandbox, .. } = container;
    let object = format!("container {name}");
    match removal {
        Some(PrintedCommand::Deletes(command)) => {
            return format!("`{command}` removes {object}, if nothing needs it");
        }
        Some(PrintedCommand::Shows(command)) => {
            return format!("`{command}` shows {object}, which has ended");
        }
        None => {}
    }
    let command = removal_command(*owner, id, *sandbox, store);
    let words = command.as_deref().and_then(|command| command.rsplit_once(" rm "));
    // The removal of a container deletes what it has written, so of one that runs only the listing is printed.
    let list = match (owner, words) {
        (Owner::Podman | Owner::Docker, Some((program, id))) => format!("{program} ps --filter id={id}"),
        (Owner::Buildah, Some((program, id))) => format!("{program} containers --filter id={id}"),
        (Owner::Containerd, Some((program, id))) if container.id.contains('/') => {
            format!("{program} info {id}")
        }
        (Owner::CriO | Owner::Containerd, _) if command.is_some() => {
            return format!("{object} may be running: the image is free once its pod is deleted");
        }
        _ => return format!("{object} can be removed by the program that made it"),
    };
    format!("{object} may be running, and its removal deletes what it has written: `{list}` shows it")
}

/// Returns the image that an argument means, and those that it also means in stores in which layersweep deletes nothing.
fn images(scan: &Scan, reference: &str) -> Result<(ImageIx, Vec<ImageIx>), Error> {
    let error = match lookup::look_up(scan, reference, None) {
        Ok(Subject::Image(image_ix)) => return Ok((image_ix, Vec::new())),
        Ok(_) => {
            return Err(Error::failed(format!("{reference:?} is not an image; nothing was deleted"))
                .hint("`layersweep images` lists what exists"));
        }
        Err(error) => error,
    };
    let one_in_reach = match &error {
        LookupError::Ambiguous { subjects, .. } => one_in_reach(&scan.inventory, subjects),
        _ => None,
    };
    one_in_reach.ok_or_else(|| Error::from(error).with("; nothing was deleted"))
}

fn one_in_reach(inventory: &Inventory, subjects: &[Subject]) -> Option<(ImageIx, Vec<ImageIx>)> {
    let images = subjects.iter().map(|subject| match subject {
        Subject::Image(image_ix) => Some(*image_ix),
        _ => None,
    });
    let images = images.collect::<Option<Vec<_>>>()?.into_iter();
    let (out_of_reach, in_reach): (Vec<_>, Vec<_>) =
        images.partition(|image_ix| inventory.obstacle_of_store(inventory[*image_ix].store).is_some());
    let [image_ix] = in_reach[..] else { return None };
    Some((image_ix, out_of_reach))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::model::deletion::plan::{Kept, Target};
    use crate::model::rules::Ruling;
    use crate::model::{ContainerState, StoreKind, samples};

    fn container() -> Container {
        Container { name: "a".into(), ..samples::container("0a", Owner::Podman, ContainerState::Exited) }
    }

    #[test]
    fn hint_names_the_owners_command() {
        let store = OwnersStore { graphroot: "/var/lib/containers/storage".into(), user: None };
        for (owner, id, state, expected) in [
            (Owner::Docker, "moby/00", ContainerState::Exited, "`docker rm 00` removes container a, if"),
            (Owner::Docker, "moby/00", ContainerState::Running, ": `docker ps --filter id=00` shows it"),
            (Owner::Podman, "00", ContainerState::Created, "`podman rm 00` removes"),
            (Owner::Buildah, "00", ContainerState::Unknown, "`buildah rm 00` removes"),
            (Owner::CriO, "00", ContainerState::Running, "once its pod is deleted"),
            (Owner::CriO, "00", ContainerState::Exited, "`crictl rm 00` removes"),
            (
                Owner::Containerd,
                "default/00",
                ContainerState::Running,
                ": `ctr -n default containers info 00` shows it",
            ),
            (Owner::Containerd, "ci/00", ContainerState::Exited, "`ctr -n ci containers rm 00` removes"),
            (Owner::Containerd, "buildkit/00", ContainerState::Exited, "by the program that made it"),
        ] {
            let container = Container { owner, id: id.into(), state, ..container() };
            let has_ended = state != ContainerState::Running;
            let removal = has_ended.then(|| removal_command(owner, id, false, &store)).flatten();
            let hint = end_of_use(&container, removal.map(PrintedCommand::Deletes), &store);
            assert!(hint.contains(expected), "{expected}: {hint}");
        }
        let shown = end_of_use(&container(), Some(PrintedCommand::Shows("crictl inspect 0a".into())), &store);
        assert_eq!(shown, "`crictl inspect 0a` shows container a, which has ended");
        let alices = OwnersStore { graphroot: "/srv/a b".into(), user: Some("alice".into()) };
        let running = Container { state: ContainerState::Running, ..container() };
        assert_eq!(
            end_of_use(&running, None, &alices),
            "container a may be running, and its removal deletes what it has written: `as alice: podman --root '/srv/a b' \
             ps --filter id=0a` shows it"
        );
    }

    #[test]
    fn young_images_have_a_hint_with_the_time() {
        let ruling = || Ruling::keeps(Rule::MinAge, "young");
        let target =
            Target { kind: TargetKind::Image, store: None, id: "aa".into(), names: vec![], leak: None };
        let kept = |until: i64| Kept {
            until: Timestamp::from_second(until).ok(),
            ..Kept::new(target.clone(), ruling())
        };
        let mut plan = Plan { kept: vec![kept(60)], ..Plan::default() };
        let hint = "1 image is too young until 1970-01-01 00:01:00 UTC; --min-age 0s allows its deletion";
        assert_eq!(too_young(&plan).as_deref(), Some(hint));
        plan.kept.push(kept(120));
        let hint = "2 images are too young until 1970-01-01 00:02:00 UTC; --min-age 0s allows their deletion";
        assert_eq!(too_young(&plan).as_deref(), Some(hint));
    }

    #[test]
    fn ctr_is_suggested_for_its_namespaces_only() {
        let store = OwnersStore { graphroot: "/var/lib/containerd".into(), user: None };
        let containerd = StoreKind::Containerd.facts();
        for (id, expected) in [
            ("00", "`ctr -n k8s.io images rm a:1`"),
            ("default/00", "`ctr -n default images rm a:1`"),
            ("ci/00", "`ctr -n ci images rm a:1`"),
            ("moby/00", "`docker image rm a:1`"),
            ("moby-1000.1000/00", "`docker image rm a:1`"),
            ("buildkit/00", "the program that uses the namespace buildkit"),
        ] {
            assert_eq!(untagging(containerd, &store, &id.into(), &["a:1".to_owned()]), expected);
        }
    }
}
