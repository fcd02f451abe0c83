//! Images named by the arguments of `rm`, and hints about images that are kept.

use std::path::Path;

use super::error::Error;
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

/// Looks up `references`: each image once, in the order given. An id or a digest means the image; a name means it
/// if all its names are given, or with `all_tags`. A name by digest means no more than a tag of the same repository,
/// and needs not be given beside it.
///
/// # Errors
/// When a reference means no image, or an image is also tagged by a name that was not given.
pub(super) fn named(scan: &Scan, references: &[String], all_tags: bool) -> Result<Vec<ImageIx>, Error> {
    let mut meant: Vec<(ImageIx, Vec<String>)> = Vec::new();
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
        match meant.iter_mut().find(|(known, _)| *known == image_ix) {
            Some((_, known)) => known.extend(names),
            None => meant.push((image_ix, names)),
        }
    }
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
    Ok(meant.into_iter().map(|(image_ix, _)| image_ix).collect())
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
