//! Inventory of a saved scan, for `explore FILE`. Pure.
//!
//! A document lists layers, and sums for everything else. The rest of an image is therefore one node: what only the image
//! has beside its own layers. What these nodes free is scaled so that the deletion of the image alone frees what the
//! document says; layers of several images count with their bytes. A set of images then has the figures that it had on
//! the node, up to what a filesystem keeps for the inodes of shared layers.

use hashbrown::HashMap;
use serde::Deserialize;
use serde::de::IntoDeserializer as _;
use serde::de::value::Error as ValueError;

use super::read_scan::node_path;
use super::reader::{DocumentImage, NodeDocument, Text};
use crate::model::build_cache::BuildCache;
use crate::model::container::{Container, ContainerState, Owner};
use crate::model::filesystem::Filesystem;
use crate::model::ids::{FilesystemIx, ImageIx, NodeIx, StoreIx};
use crate::model::image::{Image, PinReason};
use crate::model::inventory::{Inventory, Use};
use crate::model::labels::Labels;
use crate::model::leak::Leak;
use crate::model::leak_class::Verdict;
use crate::model::node::{LayerFacts, Node, NodeKind, Size};
use crate::model::origin::Origin;
use crate::model::store::{Consistency, Store};

/// Returns the inventory of a document, with images and containers in its order.
///
/// # Errors
/// Describes in words why the document cannot be shown.
pub fn inventory(document: &NodeDocument<'_>) -> Result<Inventory, String> {
    let mut filler = InventoryFiller {
        document,
        inventory: Inventory::default(),
        images: HashMap::new(),
        layers: HashMap::new(),
    };
    filler.add_filesystems();
    filler.add_stores()?;
    filler.add_images()?;
    filler.add_layers()?;
    filler.add_containers()?;
    filler.add_leaks()?;
    Ok(filler.inventory)
}

/// Reads a name of an enum; `None` if a later version has written it.
fn named<'a, T: Deserialize<'a>>(text: &'a Text<'_>) -> Option<T> {
    let text: &str = &text.0;
    T::deserialize(text.into_deserializer()).map_err(|_: ValueError| ()).ok()
}

struct InventoryFiller<'a> {
    document: &'a NodeDocument<'a>,
    inventory: Inventory,
    images: HashMap<(StoreIx, &'a str), ImageIx>,
    layers: HashMap<(StoreIx, &'a str), NodeIx>,
}

impl<'a> InventoryFiller<'a> {
    fn path(&self, path: &Text<'_>) -> std::path::PathBuf {
        node_path(self.document.sysroot.as_deref(), &path.0).into()
    }

    fn add_filesystems(&mut self) {
        for facts in &self.document.filesystems {
            self.inventory.filesystems.push(Filesystem {
                mount: self.path(&facts.mount),
                device: String::new(),
                fstype: facts.fstype.to_owned(),
                capacity_bytes: facts.capacity_bytes,
                used_bytes: facts.used_bytes,
                available_bytes: facts.available_bytes,
                inodes: facts.inodes,
                inodes_free: facts.inodes_free,
            });
        }
    }

    fn add_stores(&mut self) -> Result<(), String> {
        for (position, store) in self.document.stores.iter().enumerate() {
            let mount = self.path(&store.filesystem);
            let filesystem = self.inventory.filesystems.iter().position(|facts| facts.mount == mount);
            let filesystem = filesystem
                .ok_or_else(|| format!("the filesystem of the store {} is not in it", store.root.0))?;
            self.inventory.stores.push(Store {
                kind: named(&store.kind)
                    .ok_or_else(|| format!("{:?} is not a kind of store", store.kind.0))?,
                root: self.path(&store.root),
                driver: store.driver.to_owned(),
                filesystem: filesystem.into(),
                read_only: store.read_only,
                origin: String::new(),
                consistency: named(&store.consistency).unwrap_or(Consistency::Consistent),
            });
            let bytes =
                [(NodeKind::StoreMetadata, store.bytes.metadata), (NodeKind::Other, store.bytes.other)];
            for (kind, bytes) in bytes {
                let node = self.add_node(position.into(), kind, "", Size { bytes, ..Size::default() });
                self.inventory.anchored.push(node);
            }
        }
        Ok(())
    }

    fn add_node(&mut self, store: StoreIx, kind: NodeKind, id: &str, size: Size) -> NodeIx {
        let filesystem: FilesystemIx = self.inventory[store].filesystem;
        self.inventory.nodes.push(Node {
            kind,
            id: id.to_owned(),
            store,
            filesystem,
            path: std::path::PathBuf::new(),
            size,
            needs: Vec::new(),
            layer: None,
        });
        (self.inventory.nodes.len() - 1).into()
    }

    fn store(&self, root: &Text<'_>) -> Result<StoreIx, String> {
        let position = self.document.stores.iter().position(|store| store.root.0 == root.0);
        position.map(StoreIx::from).ok_or_else(|| format!("the store {} is not in it", root.0))
    }

    fn add_images(&mut self) -> Result<(), String> {
        for (position, image) in self.document.images.iter().enumerate() {
            let image_ix = ImageIx::from(position);
            let store = self.store(&image.store)?;
            let rest = self.add_node(store, NodeKind::ImageMetadata, "", Size::default());
            self.images.entry((store, &image.id.0)).or_insert(image_ix);
            self.inventory.images.push(Image {
                id: image.id.0.as_ref().into(),
                store,
                names: image.names.iter().map(Text::to_owned).collect(),
                digests: Vec::new(),
                created: None,
                evidence: Vec::new(),
                origin: Origin::default(),
                is_list: false,
                pinned_by: image.pinned_by.iter().map(|pin| PinReason::from(pin.to_owned())).collect(),
                labels: Labels::default(),
                layers: Vec::new(),
                listed_bytes: None,
                blobs: Vec::new(),
                holds: vec![rest],
            });
            if let Some(why) = &image.out_of_reach {
                self.inventory.out_of_reach.insert(image_ix, why.to_owned());
            }
            let external = image.used_by.iter().filter(|user| user.kind.0 == "external");
            self.inventory.uses.extend(external.map(|user| Use {
                by: user.name.to_owned(),
                images: vec![image_ix],
                ..Use::default()
            }));
        }
        Ok(())
    }

    /// Adds the layers to the images that have them. A layer of an additional store names images of other stores.
    fn add_layers(&mut self) -> Result<(), String> {
        let mut images: HashMap<&str, Vec<ImageIx>> = HashMap::new();
        for (position, image) in self.document.images.iter().enumerate() {
            images.entry(&image.id.0).or_default().push(position.into());
        }
        // Layers that one image alone has.
        let mut own_layers: Vec<Vec<NodeIx>> = vec![Vec::new(); self.document.images.len()];
        for layer in &self.document.layers {
            let store = self.store(&layer.store)?;
            let size = Size {
                bytes: layer.bytes,
                inodes: layer.inodes,
                apparent_bytes: 0,
                frees_bytes: layer.bytes,
            };
            let kind = named(&layer.kind).unwrap_or(NodeKind::Layer);
            let node_ix = self.add_node(store, kind, &layer.id.0, size);
            let path = self.path(&layer.path);
            let node = &mut self.inventory[node_ix];
            node.path = path;
            node.layer = Some(Box::new(LayerFacts {
                parent: layer.parent.as_ref().map(Text::to_owned),
                read_write: layer.read_write,
                is_unmeasured: layer.unmeasured,
                ..LayerFacts::default()
            }));
            self.layers.insert((store, &layer.id.0), node_ix);
            for id in &layer.images {
                let same_id = images.get(&*id.0).map_or(&[][..], Vec::as_slice);
                let here = same_id.iter().filter(|image| self.inventory[**image].store == store);
                let holders: Vec<_> = here.copied().collect();
                for image in if holders.is_empty() { same_id.to_vec() } else { holders } {
                    self.inventory[image].holds.push(node_ix);
                    if layer.refcount == 1 && !layer.build_cache {
                        own_layers[image.get()].push(node_ix);
                    }
                }
            }
            if layer.build_cache {
                self.inventory.anchored.push(node_ix);
                let (namespace, holds) = (String::new(), vec![node_ix]);
                self.inventory.build_caches.push(BuildCache { store, namespace, records: 1, holds });
            }
        }
        for layer in &self.document.layers {
            let store = self.store(&layer.store)?;
            let parent =
                layer.parent.as_ref().and_then(|parent| self.layers.get(&(store, &*parent.0)).copied());
            if let Some(parent) = parent {
                let node_ix = self.layers[&(store, &*layer.id.0)];
                self.inventory[node_ix].needs.push(parent);
            }
        }
        for (position, (image, layers)) in self.document.images.iter().zip(own_layers).enumerate() {
            self.scale(position.into(), image, &layers);
        }
        Ok(())
    }

    /// Gives the rest of an image its size, and makes its own nodes free what the document says.
    fn scale(&mut self, image_ix: ImageIx, image: &DocumentImage<'_>, layers: &[NodeIx]) {
        let rest = self.inventory[image_ix].holds[0];
        let in_layers =
            layers.iter().map(|node| self.inventory[*node].size.bytes).fold(0, u64::saturating_add);
        self.inventory[rest].size.bytes = image.exclusive_bytes.saturating_sub(in_layers);
        let frees = image.frees_bytes.unwrap_or(image.exclusive_bytes);
        let mut left = frees;
        for node in layers {
            let bytes = u128::from(self.inventory[*node].size.bytes);
            let part = bytes * u128::from(frees) / u128::from(image.exclusive_bytes.max(1));
            let part = u64::try_from(part).unwrap_or(u64::MAX).min(left);
            self.inventory[*node].size.frees_bytes = part;
            left -= part;
        }
        self.inventory[rest].size.frees_bytes = left;
    }

    fn add_containers(&mut self) -> Result<(), String> {
        let mut layers: HashMap<&str, Vec<(NodeIx, bool)>> = HashMap::new();
        for layer in &self.document.layers {
            let node_ix = self.layers[&(self.store(&layer.store)?, &*layer.id.0)];
            for id in &layer.containers {
                layers.entry(&id.0).or_default().push((node_ix, layer.read_write));
            }
        }
        for container in &self.document.containers {
            let store = self.store(&container.store)?;
            let held = layers.get(&*container.id.0).map_or(&[][..], Vec::as_slice);
            let here = held.iter().filter(|(node, _)| self.inventory[*node].store == store);
            let (written, lower): (Vec<_>, Vec<_>) = here.partition(|(_, is_written)| *is_written);
            let written: Vec<_> = written.into_iter().map(|(node, _)| node).collect();
            let lower: Vec<_> = lower.into_iter().map(|(node, _)| node).collect();
            let in_layers =
                written.iter().map(|node| self.inventory[*node].size.bytes).fold(0, u64::saturating_add);
            let bytes = container.bytes.saturating_sub(in_layers);
            let size = Size { bytes, frees_bytes: bytes, ..Size::default() };
            let rest = self.add_node(store, NodeKind::ContainerMetadata, "", size);
            self.inventory[rest].needs = lower;
            let image = container.image_id.as_ref().and_then(|id| self.images.get(&(store, &*id.0)).copied());
            self.inventory.containers.push(Container {
                id: container.id.0.as_ref().into(),
                store,
                name: container.name.to_owned(),
                owner: named(&container.owner).unwrap_or(Owner::Unknown),
                image_id: container.image_id.as_ref().map(|id| id.0.as_ref().into()),
                image,
                volumes: Vec::new(),
                created: None,
                state: named(&container.state).unwrap_or(ContainerState::Unknown),
                sandbox: false,
                sandbox_id: None,
                namespace: None,
                listed_bytes: None,
                log: None,
                holds: written.into_iter().chain([rest]).collect(),
            });
        }
        Ok(())
    }

    fn add_leaks(&mut self) -> Result<(), String> {
        for leak in &self.document.leaks {
            let store = self.store(&leak.store)?;
            // A later version may have more classes.
            let Some(class) = named(&leak.class) else { continue };
            let layer = self.layers.get(&(store, &*leak.id.0)).copied();
            let size = Size { bytes: leak.bytes, frees_bytes: leak.bytes, ..Size::default() };
            let node = layer.unwrap_or_else(|| self.add_node(store, NodeKind::Orphan, &leak.id.0, size));
            self.inventory.leaks.push(Leak {
                class,
                store,
                path: self.path(&leak.path),
                id: leak.id.to_owned(),
                since: None,
                verdict: named(&leak.verdict).unwrap_or(Verdict::Report),
                evidence: String::new(),
                holds: vec![node],
            });
        }
        Ok(())
    }
}
