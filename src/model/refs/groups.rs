//! The fair column by repository, registry, namespace or owner. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::Fair;
use crate::model::names::names;
use crate::model::{Container, Image, Inventory, registry, repository};

names! {
    /// What images and containers are grouped by.
    By {
        /// Repositories of an image's names; a container counts with its image.
        Repository = "repository",
        /// Registries of an image's names; a container counts with its image.
        Registry = "registry",
        /// Namespace of a container's pod; an image counts with the containers that use it.
        Namespace = "namespace",
        /// Who made a container; an image counts with the containers that use it.
        Owner = "owner",
    }
}

/// Images and containers with one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// `None`: images without a name, those that no container uses, containers in no namespace.
    pub name: Option<String>,
    pub images: usize,
    pub containers: usize,
    /// Their fair shares. What is in several groups is divided equally among these.
    pub bytes: u64,
}

/// Groups images and containers, the largest group first. The sum of the groups is the sum of all shares.
#[must_use]
pub fn groups(inventory: &Inventory, fair: &Fair, by: By) -> Vec<Group> {
    let keys = keys(inventory, by);
    let mut groups: BTreeMap<Option<&str>, Group> = BTreeMap::new();
    for (at, keys) in keys.images.iter().enumerate() {
        divide(&mut groups, keys, fair.of_image(at.into()), |group| group.images += 1);
    }
    for (at, keys) in keys.containers.iter().enumerate() {
        divide(&mut groups, keys, fair.of_container(at.into()), |group| group.containers += 1);
    }
    let groups = groups.into_iter().map(|(name, group)| Group { name: name.map(str::to_owned), ..group });
    let mut groups: Vec<_> = groups.collect();
    groups.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    groups
}

/// Adds a share to its groups; the bytes that are left over go to the first of them.
fn divide<'a>(
    groups: &mut BTreeMap<Option<&'a str>, Group>,
    keys: &BTreeSet<&'a str>,
    bytes: u64,
    count: impl Fn(&mut Group),
) {
    let nameless = keys.is_empty().then_some(None);
    let parts = keys.len().max(1) as u64;
    for (at, key) in (0..).zip(nameless.into_iter().chain(keys.iter().copied().map(Some))) {
        let group = groups.entry(key).or_default();
        group.bytes = group.bytes.saturating_add(bytes / parts + u64::from(at < bytes % parts));
        count(group);
    }
}

/// The groups of each image and container.
struct Keys<'a> {
    images: Vec<BTreeSet<&'a str>>,
    containers: Vec<BTreeSet<&'a str>>,
}

fn keys(inventory: &Inventory, by: By) -> Keys<'_> {
    let of_image: fn(&Image) -> BTreeSet<&str> = match by {
        By::Repository => |image| image.names.iter().map(|name| repository(name)).collect(),
        By::Registry => |image| image.names.iter().map(|name| registry(name)).collect(),
        By::Namespace | By::Owner => |_| BTreeSet::new(),
    };
    let of_container: fn(&Container) -> Option<&str> = match by {
        By::Namespace => |container| container.namespace.as_deref(),
        By::Owner => |container| Some(container.owner.as_str()),
        By::Repository | By::Registry => |_| None,
    };
    let mut images: Vec<_> = inventory.images.iter().map(of_image).collect();
    let mut containers = Vec::with_capacity(inventory.containers.len());
    for container in &inventory.containers {
        let mut keys: BTreeSet<_> = of_container(container).into_iter().collect();
        for image in container.images() {
            images[image.get()].extend(&keys);
        }
        if let (By::Repository | By::Registry, Some(image)) = (by, container.image) {
            keys.clone_from(&images[image.get()]);
        }
        containers.push(keys);
    }
    Keys { images, containers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::refs::tests::{container, image, tree};
    use crate::model::refs::{Refs, fair, size_in_store};

    #[test]
    fn shares_go_to_the_groups_of_their_images_and_containers() {
        let mut inventory = tree();
        for (at, names) in
            [(0, vec![]), (1, vec!["quay.io/a:1", "quay.io/a:2", "b:1"]), (2, vec!["quay.io/a:3"])]
        {
            inventory.images[at].names = names.into_iter().map(str::to_owned).collect();
        }
        inventory.images[3].names = vec!["localhost/c:1".into()];
        inventory.containers[0].namespace = Some("shop".into());
        inventory.containers.push(container(Some(2), &[2]));
        inventory.images.push(image("unused", &[]));
        let refs = Refs::new(&inventory);
        let fair = fair(&inventory, &refs, |at| size_in_store(&inventory, at));
        let all = fair.images() + fair.containers();
        for (by, expected) in [
            (
                By::Repository,
                vec![(None, 2, 0), (Some("b"), 1, 0), (Some("localhost/c"), 1, 0), (Some("quay.io/a"), 2, 2)],
            ),
            (
                By::Registry,
                vec![
                    (None, 2, 0),
                    (Some("docker.io"), 1, 0),
                    (Some("localhost"), 1, 0),
                    (Some("quay.io"), 2, 2),
                ],
            ),
            // svc is used in a namespace and, by a container of podman's, outside of any.
            (By::Namespace, vec![(None, 4, 1), (Some("shop"), 1, 1)]),
            (By::Owner, vec![(None, 4, 0), (Some("podman"), 1, 2)]),
        ] {
            let found = groups(&inventory, &fair, by);
            assert_eq!(found.iter().map(|group| group.bytes).sum::<u64>(), all, "{by}");
            assert!(found.is_sorted_by_key(|group| std::cmp::Reverse(group.bytes)));
            let mut found: Vec<_> =
                found.iter().map(|group| (group.name.as_deref(), group.images, group.containers)).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{by}");
        }
    }

    #[test]
    fn a_share_in_several_groups_is_divided_to_the_byte() {
        let mut groups = BTreeMap::new();
        divide(&mut groups, &["a", "b", "c"].into(), 11, |group| group.images += 1);
        assert_eq!(groups.values().map(|group| group.bytes).collect::<Vec<_>>(), [4, 4, 3]);
    }
}
