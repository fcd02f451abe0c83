//! Lists of the HTML page, shortened for a large store.
//!
//! A page with 100,000 layers would be too large for a browser. The page therefore lists the largest objects
//! of each kind, and [`OmittedDoc`] has the sums of the others. The page also draws the layers as a forest,
//! so an omitted layer is counted with the nearest listed layer below it: of the chain 0 ← 1 ← 2 ← 3, with 1
//! and 2 omitted, both belong to the group on 0, and 3 is drawn on 0.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::ScanDoc;
use super::build::path;
use crate::model::refs::{Refs, Root};
use crate::model::{ContainerIx, ImageIx, Inventory, LeakIx, NodeIx, NodeKind, StoreIx};
use crate::stores::Scan;

/// Maximum number of listed images, and of containers and of leaks.
const OBJECTS: usize = 1_000;
/// Maximum number of listed layers, besides those of listed leaks.
const LAYERS: usize = 5_000;
/// Maximum number of images named by a layer, and of containers.
const USERS: usize = 20;

/// Objects that a document lists, each kind in the order of the inventory.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) images: Vec<ImageIx>,
    pub(super) layers: Vec<NodeIx>,
    pub(super) containers: Vec<ContainerIx>,
    pub(super) leaks: Vec<LeakIx>,
}

/// Sums of the objects that the page of a large store does not list.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OmittedDoc {
    /// Images, by their exclusive bytes.
    pub images: RestDoc,
    /// Layers, snapshots and blobs. A listed one names at most 20 of its images and of its containers;
    /// `refcount` counts all.
    pub layers: RestDoc,
    /// Containers, by their own bytes.
    pub containers: RestDoc,
    /// Leaks, by their own bytes.
    pub leaks: RestDoc,
    /// Omitted layers, and omitted leaks that are not layers, by the listed layer below them.
    pub groups: Vec<OmittedGroupDoc>,
    /// Listed layers whose parent is omitted.
    pub bases: Vec<OmittedBaseDoc>,
}

/// Omitted objects of one kind.
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

/// Omitted objects at one place in the forest of layers.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OmittedGroupDoc {
    /// Root of their store.
    pub store: String,
    /// `layer`, `blob` or `leak`.
    pub kind: &'static str,
    /// Id of the nearest listed layer below them; null without one.
    pub base: Option<String>,
    /// Number of objects.
    pub count: usize,
    /// Sum of their bytes.
    pub bytes: u64,
}

/// Listed layer whose parent is omitted.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OmittedBaseDoc {
    /// Root of its store.
    pub store: String,
    /// Id of the listed layer.
    pub layer: String,
    /// Id of the nearest listed layer below it; null without one.
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
    nodes.filter(|(_, node)| node.layer.is_some()).map(|(position, _)| NodeIx::from(position))
}

fn image_bytes(scan: &Scan, image_ix: ImageIx) -> u64 {
    scan.refs.sizes(&scan.inventory, Root::Image(image_ix)).exclusive.bytes
}

fn layer_bytes(inventory: &Inventory, node_ix: NodeIx) -> u64 {
    Refs::alone(inventory, node_ix).bytes
}

fn container_bytes(inventory: &Inventory, container_ix: ContainerIx) -> u64 {
    Refs::held_bytes(inventory, &inventory[container_ix].holds)
}

fn leak_bytes(inventory: &Inventory, leak_ix: LeakIx) -> u64 {
    Refs::held_bytes(inventory, &inventory[leak_ix].holds)
}

/// Returns the `count` largest objects in their order, of equal ones the first.
fn largest<T: Copy + Ord>(all: impl Iterator<Item = T>, count: usize, bytes: impl Fn(T) -> u64) -> Vec<T> {
    let mut all: Vec<_> = all.map(|object| (Reverse(bytes(object)), object)).collect();
    if all.len() > count {
        all.select_nth_unstable(count);
        all.truncate(count);
    }
    let mut all: Vec<_> = all.into_iter().map(|(_, object)| object).collect();
    all.sort_unstable();
    all
}

fn rest<T: Copy + Ord>(all: impl Iterator<Item = T>, listed: &[T], bytes: impl Fn(T) -> u64) -> RestDoc {
    RestDoc::of(all.filter(|object| listed.binary_search(object).is_err()).map(bytes))
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
        let leaks = largest(leaks.into_iter(), OBJECTS, |leak_ix| leak_bytes(inventory, leak_ix));
        let mut listed = largest(layers.into_iter(), LAYERS, |node_ix| layer_bytes(inventory, node_ix));
        // The page draws a leak that is a layer as that layer.
        let leaked = leaks.iter().flat_map(|leak_ix| &inventory[*leak_ix].holds);
        listed.extend(leaked.filter(|node_ix| inventory[**node_ix].layer.is_some()));
        listed.sort_unstable();
        listed.dedup();
        Self {
            images: largest(images.into_iter(), OBJECTS, |image_ix| image_bytes(scan, image_ix)),
            layers: listed,
            containers: largest(containers.into_iter(), OBJECTS, |container_ix| {
                container_bytes(inventory, container_ix)
            }),
            leaks,
        }
    }

    /// Returns the sums of the omitted objects, or `None` if every object is listed.
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
            images: rest(all.images.into_iter(), &self.images, |image_ix| image_bytes(scan, image_ix)),
            layers: rest(all.layers.into_iter(), &self.layers, |node_ix| layer_bytes(inventory, node_ix)),
            containers: rest(all.containers.into_iter(), &self.containers, |container_ix| {
                container_bytes(inventory, container_ix)
            }),
            leaks: rest(all.leaks.into_iter(), &self.leaks, |leak_ix| leak_bytes(inventory, leak_ix)),
            groups,
            bases,
        })
    }

    /// Returns the omitted objects by their place in the forest of layers, and the listed layers whose parent
    /// is omitted.
    fn forest(&self, inventory: &Inventory, all: &Self) -> (Vec<OmittedGroupDoc>, Vec<OmittedBaseDoc>) {
        let bases = Bases::of(inventory, &all.layers, self);
        let mut groups = Groups::default();
        let mut moved = Vec::new();
        for node_ix in all.layers.iter().copied() {
            let node = &inventory[node_ix];
            let base = bases.of_layer.get(&node_ix).copied().flatten();
            if !self.has_layer(node_ix) {
                let kind = if node.kind == NodeKind::Blob { "blob" } else { "layer" };
                groups.add((node.store, kind, base), layer_bytes(inventory, node_ix));
            } else if bases.parent(inventory, node_ix).is_some_and(|parent| !self.has_layer(parent)) {
                moved.push(OmittedBaseDoc {
                    store: path(&inventory[node.store].root),
                    layer: node.id.clone(),
                    base: base.map(|base| inventory[base].id.clone()),
                });
            }
        }
        for leak_ix in all.leaks.iter().filter(|leak_ix| self.leaks.binary_search(leak_ix).is_err()) {
            let leak = &inventory[*leak_ix];
            let outside = leak.holds.iter().copied();
            let outside: Vec<_> = outside.filter(|node_ix| inventory[*node_ix].layer.is_none()).collect();
            let bytes = Refs::held_bytes(inventory, &outside);
            if bytes > 0 {
                groups.add((leak.store, "leak", None), bytes);
            }
        }
        let groups = groups.0.into_iter().map(|((store, kind, base), (count, bytes))| OmittedGroupDoc {
            store: path(&inventory[store].root),
            kind,
            base: base.map(|base| inventory[base].id.clone()),
            count,
            bytes,
        });
        (groups.collect(), moved)
    }

    fn has_layer(&self, node_ix: NodeIx) -> bool {
        self.layers.binary_search(&node_ix).is_ok()
    }
}

/// Number and bytes of omitted objects by store, kind and nearest listed layer below.
#[derive(Default)]
struct Groups(BTreeMap<(StoreIx, &'static str, Option<NodeIx>), (usize, u64)>);

impl Groups {
    fn add(&mut self, place: (StoreIx, &'static str, Option<NodeIx>), bytes: u64) {
        let (count, sum) = self.0.entry(place).or_default();
        *count += 1;
        *sum = sum.saturating_add(bytes);
    }
}

/// Nearest listed layer below each layer.
struct Bases<'a> {
    by_id: HashMap<(StoreIx, &'a str), NodeIx>,
    of_layer: HashMap<NodeIx, Option<NodeIx>>,
}

impl<'a> Bases<'a> {
    fn of(inventory: &'a Inventory, layers: &[NodeIx], listed: &Listed) -> Self {
        let mut found = Self { by_id: HashMap::new(), of_layer: HashMap::new() };
        for node_ix in layers {
            let node = &inventory[*node_ix];
            found.by_id.insert((node.store, node.id.as_str()), *node_ix);
        }
        for start in layers {
            let (mut chain, mut layer) = (Vec::new(), *start);
            let mut seen = HashSet::new();
            let base = loop {
                if let Some(known) = found.of_layer.get(&layer) {
                    break *known;
                }
                // Damaged records can name each other as parents.
                if !seen.insert(layer) {
                    break None;
                }
                chain.push(layer);
                match found.parent(inventory, layer) {
                    Some(parent) if listed.has_layer(parent) => break Some(parent),
                    Some(parent) => layer = parent,
                    None => break None,
                }
            };
            found.of_layer.extend(chain.into_iter().map(|layer| (layer, base)));
        }
        found
    }

    fn parent(&self, inventory: &Inventory, node_ix: NodeIx) -> Option<NodeIx> {
        let node = &inventory[node_ix];
        let parent = node.layer.as_ref()?.parent.as_deref()?;
        self.by_id.get(&(node.store, parent)).copied()
    }
}

/// Shortens the images and containers named by each layer; listed images are first.
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

    /// Returns an inventory of layers, each with its bytes and the position of its parent.
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
        let nodes = layers.iter().enumerate().map(|(position, (bytes, parent))| Node {
            kind: NodeKind::Layer,
            id: position.to_string(),
            store: 0.into(),
            filesystem: 0.into(),
            path: "/store/x".into(),
            size: Size { bytes: *bytes, ..Size::default() },
            needs: Vec::new(),
            layer: Some(Box::new(LayerFacts {
                parent: parent.map(|parent| parent.to_string()),
                ..LayerFacts::default()
            })),
        });
        Inventory { stores: vec![store], nodes: nodes.collect(), ..Inventory::default() }
    }

    fn listed(inventory: &Inventory, count: usize) -> Listed {
        let all = Listed::all(inventory);
        let layers = largest(all.layers.iter().copied(), count, |node_ix| layer_bytes(inventory, node_ix));
        Listed { layers, ..all }
    }

    #[test]
    fn omitted_layers_are_summed_on_their_base() {
        // 0 <- 1 <- 2 <- 3, 2 <- 4, 0 <- 5; the parent of 6 does not exist; 7 and 8 are each other's parents.
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
        let groups: Vec<_> =
            groups.iter().map(|group| (group.base.as_deref(), group.count, group.bytes)).collect();
        assert_eq!(groups, [(None, 3, 4 + 5 + 6), (Some("0"), 3, 1 + 2 + 3)]);
        let bases: Vec<_> = bases.iter().map(|moved| (moved.layer.as_str(), moved.base.as_deref())).collect();
        assert_eq!(bases, [("3", Some("0"))], "the parent of 5 is listed");
    }

    #[test]
    fn largest_objects_are_listed_first_of_equal() {
        let sizes = [5_u64, 9, 5, 1, 5];
        let bytes = |position: usize| sizes[position];
        assert_eq!(largest(0..sizes.len(), 3, bytes), [0, 1, 2]);
        assert_eq!(largest(0..sizes.len(), 9, bytes), [0, 1, 2, 3, 4]);
        let rest = rest(0..sizes.len(), &[0, 1], bytes);
        assert_eq!((rest.count, rest.bytes, rest.largest_bytes), (3, 11, 5));
    }
}
