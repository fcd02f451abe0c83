//! Which images and names the arguments of `rm` mean, and what a person can do about those that stay.

use std::path::Path;

use super::error::Error;
use crate::execute::untag::Untag;
use crate::model::display::{shell_word, short_id, short_reference};
use crate::model::plan::{Plan, TargetKind};
use crate::model::reference::repository;
use crate::model::rules::Rule;
use crate::model::{
    Container, ContainerState, Image, ImageId, ImageIx, Owner, StoreKind, is_for_ctr, is_of_docker,
    removal_command, with_root,
};
use crate::stores::Scan;
use crate::stores::lookup::{self, Subject};

/// The namespace of containerd that CRI uses.
const CRI_NAMESPACE: &str = "k8s.io";

/// What references mean.
#[derive(Debug, Default)]
pub(super) struct Requested {
    /// Images that go, each once, in the order given.
    pub(super) images: Vec<ImageIx>,
    /// Names that go, of images that keep others.
    pub(super) untags: Vec<Untag>,
}

/// Looks up `references`. A name means that name, and the image only where it has no other; an id or
/// a digest means the image, and with `all_tags` a name does, too.
pub(super) fn named(scan: &Scan, references: &[String], all_tags: bool) -> Result<Requested, Error> {
    // For each image, in the order given, the names that were meant.
    let mut meant: Vec<Untag> = Vec::new();
    for reference in references {
        let at = image(scan, reference)?;
        let all = &scan.inventory[at].names;
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
        match meant.iter_mut().find(|known| known.image == at) {
            Some(known) => known.names.extend(names),
            None => meant.push(Untag { image: at, names }),
        }
    }
    let mut named = Requested::default();
    for mut one in meant {
        if scan.inventory[one.image].names.iter().all(|name| one.names.contains(name)) {
            named.images.push(one.image);
        } else {
            one.names.sort();
            one.names.dedup();
            named.untags.push(one);
        }
    }
    Ok(named)
}

/// A runtime knows no way to take a name alone. A name by digest says no more than a tag of the same repository, and
/// goes with it.
pub(super) fn for_runtime(scan: &Scan, named: &mut Requested) -> Result<(), Error> {
    let has_other = |untag: &mut Untag| {
        let repositories: Vec<_> = untag.names.iter().map(|name| repository(name)).collect();
        let stays = |name: &String| {
            let goes_along = || name.contains('@') && repositories.contains(&repository(name));
            !untag.names.contains(name) && !goes_along()
        };
        scan.inventory[untag.image].names.iter().any(stays)
    };
    let whole = named.untags.extract_if(.., |untag| !has_other(untag));
    named.images.extend(whole.map(|untag| untag.image));
    let Some(first) = named.untags.first() else { return Ok(()) };
    let image = &scan.inventory[first.image];
    let store = &scan.inventory[image.store];
    let mut others = image.names.clone();
    others.retain(|name| !first.names.contains(name));
    Err(Error::refused(format!(
        "nothing was deleted: {} has other names, and a runtime removes an image with all its names: {}",
        first.names.join(", "),
        others.join(", ")
    ))
    .hint(format!(
        "to delete the image, use --all-tags or its id; to remove only the name, use {}",
        untagging(store.kind, &store.root, &image.id, &first.names)
    )))
}

/// Returns the command that takes these names from an image that keeps others, or the program that can.
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

/// Returns what ends the use of images that stay since containers use them, and what deletes those that another
/// program owns: a clause a container or image.
pub(super) fn hints(plan: &Plan, scan: &Scan) -> Vec<String> {
    let inventory = &scan.inventory;
    let kept_by = |rule: Rule| -> Vec<&str> {
        let kept = plan.kept.iter().filter(|kept| kept.rule == rule && kept.target.kind == TargetKind::Image);
        kept.map(|kept| kept.target.id.as_str()).collect()
    };
    let used = kept_by(Rule::InUse);
    let is_user =
        |container: &&Container| container.images().any(|image| used.contains(&inventory[image].id.as_str()));
    let containers = inventory.containers.iter().filter(is_user);
    let containers = containers.map(|container| end_of_use(container, &inventory[container.store].root));
    let unreached = kept_by(Rule::OutOfReach);
    let is_foreign =
        |image: &&Image| image.id.namespace().is_some() && unreached.contains(&image.id.as_str());
    let images = inventory.images.iter().filter(is_foreign);
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

/// The image that a reference means.
fn image(scan: &Scan, reference: &str) -> Result<ImageIx, Error> {
    match lookup::look_up(scan, reference) {
        Ok(Subject::Image(at)) => Ok(at),
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
            holds: Vec::new(),
        }
    }

    #[test]
    fn use_ends_by_command_of_the_maker() {
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
    fn names_in_namespaces_of_programs_get_no_ctr_command() {
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
