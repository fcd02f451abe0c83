//! What the page lists of a large store: the largest objects of each kind. The rest is summed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::ScanDoc;
use super::build::path;
use crate::model::refs::{Refs, Root};
use crate::model::{ContainerIx, ImageIx, Inventory, LeakIx, NodeIx, NodeKind, StoreIx};
use crate::stores::Scan;

/// So many images, containers and leaks are listed, each.
const OBJECTS: usize = 1_000;
/// So many layers are listed, besides those that a listed leak holds.
const LAYERS: usize = 5_000;
/// So many images and containers are named with a layer, each.
const USERS: usize = 20;

/// Objects that a document lists, in the order of the inventory.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) images: Vec<ImageIx>,
    pub(super) layers: Vec<NodeIx>,
    pub(super) containers: Vec<ContainerIx>,
    pub(super) leaks: Vec<LeakIx>,
}

/// What the page of a large store does not list.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OmittedDoc {
    /// Images, by their exclusive bytes.
    pub images: RestDoc,
    /// Layers. A listed one names at most 20 of its images and containers; `refcount` counts all.
    pub layers: RestDoc,
    /// Containers.
    pub containers: RestDoc,
    /// Leaks.
    pub leaks: RestDoc,
    /// The omitted layers, and the omitted leaks outside of layers, by what they are built on.
    pub groups: Vec<OmittedGroupDoc>,
    /// Listed layers whose parent is omitted.
    pub bases: Vec<OmittedBaseDoc>,
}

/// What is not listed of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RestDoc {
    /// Number of objects.
    pub count: usize,
    /// Sum of their bytes.
    pub bytes: u64,
    /// Bytes of the largest of them.
    pub largest_bytes: u64,
}

/// Objects that are not listed, in one place of the forest of layers.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OmittedGroupDoc {
    /// Root of their store.
    pub store: String,
    /// `layer`, `blob` or `leak`.
    pub kind: &'static str,
    /// Id of the nearest listed layer below them; null where there is none.
    pub base: Option<String>,
    /// Number of objects.
    pub count: usize,
    /// Sum of their bytes.
    pub bytes: u64,
}

/// A listed layer whose parent is not listed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OmittedBaseDoc {
    /// Root of its store.
    pub store: String,
    /// Its id.
    pub layer: String,
    /// Id of the nearest listed layer below it; null where there is none.
    pub base: Option<String>,
}

impl RestDoc {
    fn of(sizes: impl Iterator<Item = u64>) -> Self {
        sizes.fold(Self::default(), |rest, bytes| Self {
            count: rest.count + 1,
            bytes: rest.bytes.saturating_add(bytes),
            largest_bytes: rest.largest_bytes.max(bytes),
        })
    }
}

fn layers(inventory: &Inventory) -> impl Iterator<Item = NodeIx> + '_ {
    let nodes = inventory.nodes.iter().enumerate();
    nodes.filter(|(_, node)| node.layer.is_some()).map(|(at, _)| at.into())
}

fn image_bytes(scan: &Scan, at: ImageIx) -> u64 {
    scan.refs.sizes(&scan.inventory, Root::Image(at)).exclusive.bytes
}

/// The largest; of equal ones the first.
fn largest<T: Copy + Ord>(all: impl Iterator<Item = T>, most: usize, bytes: impl Fn(T) -> u64) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| (Reverse(bytes(one)), one)).collect();
    if all.len() > most {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    let mut all: Vec<_> = all.into_iter().map(|(_, one)| one).collect();
    all.sort_unstable();
    all
}

fn rest<T: Copy + Ord>(all: impl Iterator<Item = T>, listed: &[T], bytes: impl Fn(T) -> u64) -> RestDoc {
    RestDoc::of(all.filter(|one| listed.binary_search(one).is_err()).map(bytes))
}

impl Listed {
    pub(super) fn all(inventory: &Inventory) -> Self {
        Self {
            images: (0..inventory.images.len()).map(ImageIx::from).collect(),
            layers: layers(inventory).collect(),
            containers: (0..inventory.containers.len()).map(ContainerIx::from).collect(),
            leaks: (0..inventory.leaks.len()).map(LeakIx::from).collect(),
        }
    }

    pub(super) fn largest(scan: &Scan) -> Self {
        let inventory = &scan.inventory;
        let Self { images, layers, containers, leaks } = Self::all(inventory);
        let of_leak = |at: LeakIx| Refs::held_bytes(inventory, &inventory.leaks[at.get()].holds);
        let of_container =
            |at: ContainerIx| Refs::held_bytes(inventory, &inventory.containers[at.get()].holds);
        let leaks = largest(leaks.into_iter(), OBJECTS, of_leak);
        let mut listed = largest(layers.into_iter(), LAYERS, |at: NodeIx| Refs::alone(inventory, at).bytes);
        // A leak that is a layer is drawn as that layer.
        let leaked = leaks.iter().flat_map(|leak| &inventory.leaks[leak.get()].holds);
        listed.extend(leaked.filter(|node| inventory.nodes[node.get()].layer.is_some()));
        listed.sort_unstable();
        listed.dedup();
        Self {
            images: largest(images.into_iter(), OBJECTS, |at| image_bytes(scan, at)),
            layers: listed,
            containers: largest(containers.into_iter(), OBJECTS, of_container),
            leaks,
        }
    }

    /// Sums of what is not listed; `None` if everything is.
    pub(super) fn omitted(&self, scan: &Scan) -> Option<OmittedDoc> {
        let inventory = &scan.inventory;
        let all = Self::all(inventory);
        let is_all = self.images.len() == all.images.len()
            && self.layers.len() == all.layers.len()
            && self.containers.len() == all.containers.len()
            && self.leaks.len() == all.leaks.len();
        if is_all {
            return None;
        }
        let (groups, bases) = self.forest(inventory, &all);
        Some(OmittedDoc {
            images: rest(all.images.into_iter(), &self.images, |at| image_bytes(scan, at)),
            layers: rest(all.layers.into_iter(), &self.layers, |at| Refs::alone(inventory, at).bytes),
            containers: rest(all.containers.into_iter(), &self.containers, |at| {
                Refs::held_bytes(inventory, &inventory.containers[at.get()].holds)
            }),
            leaks: rest(all.leaks.into_iter(), &self.leaks, |at| {
                Refs::held_bytes(inventory, &inventory.leaks[at.get()].holds)
            }),
            groups,
            bases,
        })
    }

    /// Where the omitted objects belong in the forest of layers, and on what the listed ones stand.
    fn forest(&self, inventory: &Inventory, all: &Self) -> (Vec<OmittedGroupDoc>, Vec<OmittedBaseDoc>) {
        let is_listed = |node: NodeIx| self.layers.binary_search(&node).is_ok();
        let bases = Bases::of(inventory, &all.layers, &is_listed);
        let root = |store: StoreIx| path(&inventory.stores[store.get()].root);
        let id = |node: NodeIx| inventory.nodes[node.get()].id.clone();
        let mut groups: BTreeMap<(StoreIx, &'static str, Option<NodeIx>), (usize, u64)> = BTreeMap::new();
        let mut add = |store, kind, base, bytes: u64| {
            let (count, sum) = groups.entry((store, kind, base)).or_default();
            *count += 1;
            *sum = sum.saturating_add(bytes);
        };
        let mut moved = Vec::new();
        for at in &all.layers {
            let (node, base) = (&inventory.nodes[at.get()], bases.of_layer.get(at).copied().flatten());
            if !is_listed(*at) {
                let kind = if node.kind == NodeKind::Blob { "blob" } else { "layer" };
                add(node.store, kind, base, Refs::alone(inventory, *at).bytes);
            } else if bases.parent(inventory, *at).is_some_and(|parent| !is_listed(parent)) {
                moved.push(OmittedBaseDoc {
                    store: root(node.store),
                    layer: node.id.clone(),
                    base: base.map(id),
                });
            }
        }
        for at in all.leaks.iter().filter(|at| self.leaks.binary_search(at).is_err()) {
            let leak = &inventory.leaks[at.get()];
            let outside = leak.holds.iter().copied();
            let outside: Vec<_> =
                outside.filter(|node| inventory.nodes[node.get()].layer.is_none()).collect();
            let bytes = Refs::held_bytes(inventory, &outside);
            if bytes > 0 {
                add(leak.store, "leak", None, bytes);
            }
        }
        let groups = groups.into_iter().map(|((store, kind, base), (count, bytes))| OmittedGroupDoc {
            store: root(store),
            kind,
            base: base.map(id),
            count,
            bytes,
        });
        (groups.collect(), moved)
    }
}

/// The nearest listed layer below each layer.
struct Bases<'a> {
    by_id: HashMap<(StoreIx, &'a str), NodeIx>,
    of_layer: HashMap<NodeIx, Option<NodeIx>>,
}

impl<'a> Bases<'a> {
    fn of(inventory: &'a Inventory, layers: &[NodeIx], is_listed: &impl Fn(NodeIx) -> bool) -> Self {
        let key = |at: &NodeIx| {
            let node = &inventory.nodes[at.get()];
            ((node.store, node.id.as_str()), *at)
        };
        let mut found = Self { by_id: layers.iter().map(key).collect(), of_layer: HashMap::new() };
        for start in layers {
            let (mut chain, mut at) = (Vec::new(), *start);
            let mut seen = HashSet::new();
            let base = loop {
                if let Some(known) = found.of_layer.get(&at) {
                    break *known;
                }
                // Records may name each other as parents.
                if !seen.insert(at) {
                    break None;
                }
                chain.push(at);
                match found.parent(inventory, at) {
                    Some(parent) if is_listed(parent) => break Some(parent),
                    Some(parent) => at = parent,
                    None => break None,
                }
            };
            found.of_layer.extend(chain.into_iter().map(|layer| (layer, base)));
        }
        found
    }

    fn parent(&self, inventory: &Inventory, at: NodeIx) -> Option<NodeIx> {
        let node = &inventory.nodes[at.get()];
        let parent = node.layer.as_ref()?.parent.as_deref()?;
        self.by_id.get(&(node.store, parent)).copied()
    }
}

/// Names only some of the images and containers that need a layer, listed ones first.
pub(super) fn shorten_users(scan: &mut ScanDoc) {
    let listed: HashSet<_> = scan.images.iter().map(|image| image.id.clone()).collect();
    for layer in &mut scan.layers {
        layer.images.sort_by_key(|id| !listed.contains(id.as_str()));
        layer.images.truncate(USERS);
        layer.containers.truncate(USERS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Consistency, LayerFacts, Node, Size, Store, StoreKind};

    /// Layers, each with its bytes and the position of its parent.
    fn inventory(layers: &[(u64, Option<usize>)]) -> Inventory {
        let store = Store {
            kind: StoreKind::ContainersStorage,
            root: "/store".into(),
            driver: "overlay".into(),
            filesystem: 0.into(),
            read_only: false,
            origin: String::new(),
            consistency: Consistency::Consistent,
        };
        let node = |(at, (bytes, parent)): (usize, &(u64, Option<usize>))| Node {
            kind: NodeKind::Layer,
            id: at.to_string(),
            store: 0.into(),
            filesystem: 0.into(),
            path: "/store/x".into(),
            size: Size { bytes: *bytes, ..Size::default() },
            needs: Vec::new(),
            layer: Some(Box::new(LayerFacts {
                parent: parent.map(|parent| parent.to_string()),
                ..LayerFacts::default()
            })),
        };
        Inventory {
            stores: vec![store],
            nodes: layers.iter().enumerate().map(node).collect(),
            ..Inventory::default()
        }
    }

    fn listed(inventory: &Inventory, most: usize) -> Listed {
        let all = Listed::all(inventory);
        let layers = largest(all.layers.iter().copied(), most, |at| Refs::alone(inventory, at).bytes);
        Listed { layers, ..all }
    }

    #[test]
    fn smaller_layers_are_summed_where_they_were() {
        // 0 <- 1 <- 2 <- 3, 2 <- 4, 0 <- 5; 6 on a parent that does not exist; 7 and 8 in a ring.
        let inventory = inventory(&[
            (100, None),
            (1, Some(0)),
            (2, Some(1)),
            (90, Some(2)),
            (3, Some(2)),
            (80, Some(0)),
            (4, Some(99)),
            (5, Some(8)),
            (6, Some(7)),
        ]);
        let listed = listed(&inventory, 3);
        assert_eq!(listed.layers, [0, 3, 5].map(NodeIx::from));
        let (groups, bases) = listed.forest(&inventory, &Listed::all(&inventory));
        let groups: Vec<_> = groups.iter().map(|one| (one.base.as_deref(), one.count, one.bytes)).collect();
        assert_eq!(groups, [(None, 3, 4 + 5 + 6), (Some("0"), 3, 1 + 2 + 3)]);
        let bases: Vec<_> = bases.iter().map(|one| (one.layer.as_str(), one.base.as_deref())).collect();
        assert_eq!(bases, [("3", Some("0"))], "5 stands on its own parent");
    }

    #[test]
    fn the_largest_are_listed_and_of_equal_ones_the_first() {
        let sizes = [5_u64, 9, 5, 1, 5];
        let pick = |most| largest(0..sizes.len(), most, |at| sizes[at]);
        assert_eq!(pick(3), [0, 1, 2]);
        assert_eq!(pick(9), [0, 1, 2, 3, 4]);
        let rest = rest(0..sizes.len(), &pick(2), |at| sizes[at]);
        assert_eq!((rest.count, rest.bytes, rest.largest_bytes), (3, 11, 5));
    }
}
