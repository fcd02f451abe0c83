//! Fair shares by repository, registry, namespace, owner or container. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::fair::Fair;
use crate::model::container::Container;
use crate::model::image::Image;
use crate::model::inventory::Inventory;
use crate::model::text::names::names;
use crate::model::text::reference::{registry, repository};

names! {
    GroupBy {
        /// Repositories of an image's names; a container is grouped with its image.
        Repository = "repository",
        /// Registries of an image's names; a container is grouped with its image.
        Registry = "registry",
        /// Namespace of a container's pod; an image is grouped with the containers that use it.
        Namespace = "namespace",
        /// Program that made a container; an image is grouped with the containers that use it.
        Owner = "owner",
        /// Each container; an image is grouped with the containers that use it.
        Container = "container",
    }
}

names! {
    GroupKind {
        Group = "group",
        /// Images without a name; or containers in no namespace, and their images.
        Unnamed = "unnamed",
        /// Images that no container uses, in a grouping by namespace, owner or container.
        Unused = "unused",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub kind: GroupKind,
    /// Name of the group; empty if it has none.
    pub name: String,
    pub images: usize,
    pub containers: usize,
    /// Sum of their fair shares. The share of a member of several groups is divided equally among them.
    pub bytes: u64,
}

/// Groups images and containers, the largest group first. The sum of the groups is the sum of all shares.
pub fn groups(keys: &GroupKeys<'_>, fair: &Fair) -> Vec<Group> {
    let mut groups = BTreeMap::new();
    // The shares may be those of one filesystem: what has none of it is elsewhere.
    for (position, keys) in keys.images.iter().enumerate() {
        let share = fair.of_image(position.into());
        divide(&mut groups, keys, share, |group| group.images += usize::from(share > 0));
    }
    for (position, keys) in keys.containers.iter().enumerate() {
        let share = fair.of_container(position.into());
        divide(&mut groups, keys, share, |group| group.containers += usize::from(share > 0));
    }
    groups.retain(|_, group| group.images + group.containers > 0);
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (a.kind, &a.name).cmp(&(b.kind, &b.name))));
    groups
}

/// Divides a share among its groups. The first groups get the remaining bytes.
fn divide<'a>(
    groups: &mut BTreeMap<KeyOfGroup<'a>, Group>,
    keys: &BTreeSet<KeyOfGroup<'a>>,
    bytes: u64,
    count: impl Fn(&mut Group),
) {
    let parts = keys.len().max(1) as u64;
    for (position, key) in (0..).zip(keys) {
        let (kind, name) = *key;
        let group = groups.entry(*key).or_insert_with(|| Group {
            kind,
            name: name.to_owned(),
            images: 0,
            containers: 0,
            bytes: 0,
        });
        group.bytes = group.bytes.saturating_add(bytes / parts + u64::from(position < bytes % parts));
        count(group);
    }
}

type KeyOfGroup<'a> = (GroupKind, &'a str);

/// Groups of each image and container; each has at least one.
#[derive(Debug)]
pub struct GroupKeys<'a> {
    images: Vec<BTreeSet<KeyOfGroup<'a>>>,
    containers: Vec<BTreeSet<KeyOfGroup<'a>>>,
}

impl<'a> GroupKeys<'a> {
    #[must_use]
    pub fn new(inventory: &'a Inventory, by: GroupBy) -> Self {
        keys(inventory, by)
    }
}

fn keys(inventory: &Inventory, by: GroupBy) -> GroupKeys<'_> {
    const NAMELESS: KeyOfGroup<'_> = (GroupKind::Unnamed, "");
    fn named(name: &str) -> KeyOfGroup<'_> {
        (GroupKind::Group, name)
    }
    let of_image: fn(&Image) -> BTreeSet<KeyOfGroup<'_>> = match by {
        GroupBy::Repository => |image| image.names.iter().map(|name| named(repository(name))).collect(),
        GroupBy::Registry => |image| image.names.iter().map(|name| named(registry(name))).collect(),
        GroupBy::Namespace | GroupBy::Owner | GroupBy::Container => |_| BTreeSet::new(),
    };
    let of_container: fn(&Container) -> Option<KeyOfGroup<'_>> = match by {
        GroupBy::Namespace => |container| Some(container.namespace.as_deref().map_or(NAMELESS, named)),
        GroupBy::Owner => |container| Some(named(container.owner.as_str())),
        GroupBy::Container => |container| Some(named(&container.name)),
        GroupBy::Repository | GroupBy::Registry => |_| None,
    };
    let mut images: Vec<_> = inventory.images.iter().map(of_image).collect();
    let mut containers = Vec::with_capacity(inventory.containers.len());
    for container in &inventory.containers {
        let mut keys: BTreeSet<_> = of_container(container).into_iter().collect();
        for image in container.images() {
            images[image.get()].extend(&keys);
        }
        if let (GroupBy::Repository | GroupBy::Registry, Some(image)) = (by, container.image) {
            keys.clone_from(&images[image.get()]);
        }
        containers.push(keys);
    }
    let rest = match by {
        GroupBy::Namespace | GroupBy::Owner | GroupBy::Container => (GroupKind::Unused, ""),
        GroupBy::Repository | GroupBy::Registry => NAMELESS,
    };
    images.iter_mut().filter(|keys| keys.is_empty()).for_each(|keys| _ = keys.insert(rest));
    containers.iter_mut().filter(|keys| keys.is_empty()).for_each(|keys| _ = keys.insert(NAMELESS));
    GroupKeys { images, containers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::refs::tests::{container, tree};
    use crate::model::refs::{Refs, bytes_on_disk, fair};
    use crate::model::samples::image;

    #[test]
    fn shares_are_divided_by_group() {
        let mut inventory = tree();
        for (ix, names) in
            [(0, vec![]), (1, vec!["quay.io/a:1", "quay.io/a:2", "b:1"]), (2, vec!["quay.io/a:3"])]
        {
            inventory.images[ix].names = names.into_iter().map(str::to_owned).collect();
        }
        inventory.images[3].names = vec!["localhost/c:1".into()];
        inventory.containers[0].namespace = Some("shop".into());
        inventory.containers.push(container(Some(2), &[2]));
        inventory.images.push(image("unused", &[]));
        let refs = Refs::new(&inventory);
        let fair = fair(&inventory, &refs, |node| bytes_on_disk(&inventory, node));
        let all = fair.images() + fair.containers();
        let (nameless, unused) = (GroupKind::Unnamed, GroupKind::Unused);
        fn rest(
            kind: GroupKind,
            images: usize,
            containers: usize,
        ) -> (GroupKind, &'static str, usize, usize) {
            (kind, "", images, containers)
        }
        fn named(name: &str, images: usize, containers: usize) -> (GroupKind, &str, usize, usize) {
            (GroupKind::Group, name, images, containers)
        }
        for (by, expected) in [
            (
                GroupBy::Repository,
                vec![
                    named("b", 1, 0),
                    named("localhost/c", 1, 0),
                    named("quay.io/a", 2, 2),
                    rest(nameless, 1, 0),
                ],
            ),
            (
                GroupBy::Registry,
                vec![
                    named("docker.io", 1, 0),
                    named("localhost", 1, 0),
                    named("quay.io", 2, 2),
                    rest(nameless, 1, 0),
                ],
            ),
            // svc is used in a namespace and, by a container of podman, outside every namespace.
            (GroupBy::Namespace, vec![named("shop", 1, 1), rest(nameless, 1, 1), rest(unused, 3, 0)]),
            (GroupBy::Owner, vec![named("podman", 1, 2), rest(unused, 3, 0)]),
            (GroupBy::Container, vec![named("c", 1, 2), rest(unused, 3, 0)]),
        ] {
            let found = groups(&GroupKeys::new(&inventory, by), &fair);
            assert_eq!(found.iter().map(|group| group.bytes).sum::<u64>(), all, "{by}");
            assert!(found.is_sorted_by_key(|group| std::cmp::Reverse(group.bytes)));
            let mut found: Vec<_> = found
                .iter()
                .map(|group| (group.kind, group.name.as_str(), group.images, group.containers))
                .collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{by}");
        }
    }

    #[test]
    fn share_in_several_groups_is_divided_exactly() {
        let mut groups = BTreeMap::new();
        let keys = ["a", "b", "c"].map(|name| (GroupKind::Group, name));
        divide(&mut groups, &keys.into(), 11, |group| group.images += 1);
        assert_eq!(groups.values().map(|group| group.bytes).collect::<Vec<_>>(), [4, 4, 3]);
    }
}
