//! Images named by the arguments of `rm`, and hints about images that are kept.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use super::error::Error;
use crate::model::display::{shell_word, short_id, short_reference};
use crate::model::plan::{Plan, TargetKind};
use crate::model::reference::{bare_id, means, normalized, repository};
use crate::model::rules::Rule;
use crate::model::{
    Container, ContainerState, Image, ImageId, ImageIx, Inventory, Owner, StoreKind, is_for_ctr,
    is_of_docker, removal_command, with_root,
};
use crate::stores::Scan;
use crate::stores::lookup::{self, Subject};

/// The namespace of containerd that CRI uses.
const CRI_NAMESPACE: &str = "k8s.io";

/// Images that `rm` is to delete.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Each once, in the order given.
    pub(super) images: Vec<ImageIx>,
    /// Lines of lists that name no image of this node, each once.
    pub(super) absent: Vec<String>,
}

/// Looks up `references` and the lines of lists (`listed`). An id or a digest means the image; a name means it
/// if all its names are given, or with `all_tags`. A name by digest means no more than a tag of the same repository,
/// and needs not be given beside it.
///
/// A list may be the same for many nodes: a line that names no image here is not an error, and a line that names several
/// images (in two stores, or by the digest of an index) means all of them.
///
/// # Errors
/// When a reference means no image, or an image is also tagged by a name that was not given.
pub(super) fn named(
    scan: &Scan,
    references: &[String],
    listed: &[String],
    all_tags: bool,
) -> Result<Named, Error> {
    let mut meant = Meant::default();
    for reference in references {
        let image_ix = image(scan, reference)?;
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
        meant.add(image_ix, names);
    }
    let finder = Finder::new(&scan.inventory);
    let mut absent = Vec::new();
    let mut seen = HashSet::new();
    for line in listed.iter().filter(|line| seen.insert(line.as_str())) {
        let found = finder.find(line);
        if found.is_empty() {
            absent.push(line.clone());
        }
        for image_ix in found {
            let all = &scan.inventory[image_ix].names;
            let names = names_listed(all, line);
            meant.add(image_ix, if names.is_empty() || all_tags { all.clone() } else { names });
        }
    }
    let Meant { images: meant, .. } = meant;
    for (image_ix, names) in &meant {
        let image = &scan.inventory[*image_ix];
        let others = other_names(image, names);
        if !others.is_empty() {
            let (given, others) = (names.join(", "), others.join(", "));
            let error = format!("{given}: it is also tagged {others}; name the id or add --all-tags");
            let error = Error::usage(error);
            if scan.inventory.is_artifact(*image_ix) {
                return Err(error);
            }
            let store = &scan.inventory[image.store];
            let untagging = untagging(store.kind, &store.root, &image.id, names);
            return Err(error.hint(format!("to remove only the name, use {untagging}")));
        }
    }
    Ok(Named { images: meant.into_iter().map(|(image_ix, _)| image_ix).collect(), absent })
}

/// Images, each with the names that were given for it.
#[derive(Default)]
struct Meant {
    images: Vec<(ImageIx, Vec<String>)>,
    positions: HashMap<ImageIx, usize>,
}

impl Meant {
    fn add(&mut self, image_ix: ImageIx, names: Vec<String>) {
        let position = *self.positions.entry(image_ix).or_insert(self.images.len());
        match self.images.get_mut(position) {
            Some((_, known)) => known.extend(names),
            None => self.images.push((image_ix, names)),
        }
    }
}

/// Finds the images that lines of a list name. Unlike an argument, a line never means the start of an id or the end of a
/// name: a short name is the one that the tools would pull, as `fits` reads it.
struct Finder<'a> {
    inventory: &'a Inventory,
    /// By name in full, digest and id.
    images: HashMap<String, Vec<ImageIx>>,
}

impl<'a> Finder<'a> {
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
    let names = image.names.iter().filter(|name| !given.contains(name));
    let names = names.filter(|name| !(name.contains('@') && repositories.contains(&repository(name))));
    names.map(String::as_str).collect()
}

/// The command that removes these names from an image with other names, or the program that can.
fn untagging(kind: StoreKind, root: &Path, id: &ImageId, names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| shell_word(name)).collect();
    let names = names.join(" ");
    match (kind, id.namespace().unwrap_or(CRI_NAMESPACE)) {
        (StoreKind::ContainersStorage, _) => {
            format!("`{} untag {} {names}`", with_root("podman", root), short_id(id))
        }
        (StoreKind::Containerd, namespace) if is_of_docker(namespace) => format!("`docker image rm {names}`"),
        (StoreKind::Containerd, namespace) if is_for_ctr(namespace) => {
            format!("`ctr -n {namespace} images rm {names}`")
        }
        (StoreKind::Containerd, namespace) => format!("the program that uses the namespace {namespace}"),
    }
}

/// Maximum number of containers that hints name.
const MOST_HINTS: usize = 5;

/// Hints for kept images: how to end the use by containers, and how to delete images of other programs. One clause for
/// each container or image.
pub(super) fn hints(plan: &Plan, scan: &Scan) -> Vec<String> {
    fn kept_by(plan: &Plan, rule: Rule) -> Vec<&str> {
        let kept = plan.kept.iter().filter(|kept| kept.rule == rule && kept.target.kind == TargetKind::Image);
        kept.map(|kept| kept.target.id.as_str()).collect()
    }
    let inventory = &scan.inventory;
    let used = kept_by(plan, Rule::InUse);
    let containers = inventory.containers.iter();
    let containers = containers
        .filter(|container| container.images().any(|image| used.contains(&inventory[image].id.as_str())));
    let containers = containers.map(|container| end_of_use(container, &inventory[container.store].root));
    let unreached = kept_by(plan, Rule::OutOfReach);
    let images = inventory.images.iter();
    let images =
        images.filter(|image| image.id.namespace().is_some() && unreached.contains(&image.id.as_str()));
    let images = images.map(|image| {
        let store = &inventory[image.store];
        let remover = untagging(store.kind, &store.root, &image.id, &image.names);
        format!("{remover} can delete {}", short_reference(&image.id))
    });
    containers.chain(images).take(MOST_HINTS).collect()
}

fn end_of_use(container: &Container, graphroot: &Path) -> String {
    let Container { owner, id, name, sandbox, state, .. } = container;
    let object = format!("container {name}");
    let has_ended = matches!(state, ContainerState::Exited | ContainerState::Created);
    match removal_command(*owner, id, *sandbox, graphroot) {
        Some(command) if has_ended || *owner == Owner::Buildah => {
            format!("`{command}` removes {object}, if nothing needs it")
        }
        Some(command) if matches!(owner, Owner::Podman | Owner::Docker) => {
            let (program, id) = command.rsplit_once(" rm ").unwrap_or_default();
            format!("if nothing needs {object}: `{program} stop {id}`, then `{command}`")
        }
        Some(_) if *owner == Owner::CriO || container.sandbox_id.is_some() => {
            format!("{object} may be running: the image is free once its pod is deleted")
        }
        Some(command) => format!("if nothing needs {object}: stop it, then `{command}`"),
        None => format!("{object} can be removed by the program that made it"),
    }
}

/// Looks up the image that a reference names.
fn image(scan: &Scan, reference: &str) -> Result<ImageIx, Error> {
    match lookup::look_up(scan, reference) {
        Ok(Subject::Image(image_ix)) => Ok(image_ix),
        Ok(_) => Err(Error::failed(format!("{reference:?} is not an image; nothing was deleted"))
            .hint("`layersweep images` lists what exists")),
        Err(error) => Err(Error::from(error).with("; nothing was deleted")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> Container {
        Container {
            id: "0a".into(),
            store: 0.into(),
            name: "a".into(),
            owner: Owner::Podman,
            image_id: None,
            image: None,
            created: None,
            state: ContainerState::Exited,
            sandbox: false,
            sandbox_id: None,
            namespace: None,
            volumes: Vec::new(),
            listed_bytes: None,
            log: None,
            holds: Vec::new(),
        }
    }

    #[test]
    fn hint_names_the_owners_command() {
        let graphroot = Path::new("/var/lib/containers/storage");
        for (owner, id, state, expected) in [
            (Owner::Docker, "moby/00", ContainerState::Exited, "`docker rm 00` removes container a, if"),
            (Owner::Docker, "moby/00", ContainerState::Running, "`docker stop 00`, then `docker rm 00`"),
            (Owner::Podman, "00", ContainerState::Created, "`podman rm 00` removes"),
            (Owner::Buildah, "00", ContainerState::Unknown, "`buildah rm 00` removes"),
            (Owner::CriO, "00", ContainerState::Running, "once its pod is deleted"),
            (Owner::CriO, "00", ContainerState::Exited, "`crictl rm 00` removes"),
            (
                Owner::Containerd,
                "default/00",
                ContainerState::Running,
                "stop it, then `ctr -n default containers rm 00`",
            ),
            (Owner::Containerd, "ci/00", ContainerState::Exited, "by the program that made it"),
        ] {
            let container = Container { owner, id: id.into(), state, ..container() };
            let hint = end_of_use(&container, graphroot);
            assert!(hint.contains(expected), "{expected}: {hint}");
        }
        let elsewhere = end_of_use(&container(), Path::new("/srv/a b"));
        assert!(elsewhere.starts_with("`podman --root '/srv/a b' rm 0a`"), "{elsewhere}");
    }

    #[test]
    fn ctr_is_suggested_for_its_namespaces_only() {
        let root = Path::new("/var/lib/containerd");
        for (id, expected) in [
            ("00", "`ctr -n k8s.io images rm a:1`"),
            ("default/00", "`ctr -n default images rm a:1`"),
            ("moby/00", "`docker image rm a:1`"),
            ("moby-1000.1000/00", "`docker image rm a:1`"),
            ("buildkit/00", "the program that uses the namespace buildkit"),
        ] {
            assert_eq!(untagging(StoreKind::Containerd, root, &id.into(), &["a:1".to_owned()]), expected);
        }
    }
}
