//! The node as rows: what each place of the view lists.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::app::usage;
use crate::app::waste::HiddenInLayer;
use crate::config::Config;
use crate::model::deletion::plan::TargetKind;
use crate::model::documents::reader::NodeDocument;
use crate::model::refs::{self, LineKind, Refs, Root, Standing, is_deletable, kind_of, standing};
use crate::model::text::display::{count, short_id};
use crate::model::{ContainerIx, FilesystemIx, Image, ImageIx, Inventory, NodeIx, StoreId, StoreIx};
use crate::report::json::{self, ImageDoc, ShareKind, ShareRowDoc, UsageFilesystemDoc};
use crate::report::text::{age, bytes, safe};
use crate::services::diagnosis::PartKind;
use crate::services::error::Error;
use crate::services::observer::Observer;
use crate::services::request::Request;
use crate::services::scan::ScanResult;
use crate::stores::Scan;
use crate::stores::layer_reader::directory_of;
use crate::stores::other_usage::SizedEntry;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Filesystems,
    Filesystem(FilesystemIx),
    /// Images with bytes on a filesystem, all or those of one row of `usage`.
    Images(FilesystemIx, Option<LineKind>),
    Containers(FilesystemIx, LineKind),
    Leaks(FilesystemIx),
    /// Layers of a store without a parent, or those on a layer.
    Forest(StoreIx, Option<NodeIx>),
    Image(ImageIx),
    Layer(NodeIx),
    /// A directory, as the node itself names it.
    Directory(PathBuf),
    /// A file, which has facts and no rows.
    File(PathBuf),
}

impl Place {
    pub(super) fn is_directory(&self, path: &Path) -> bool {
        matches!(self, Self::Directory(directory) if directory == path)
    }
}

#[derive(Clone, Debug)]
pub(super) struct PlaceRow {
    /// Free of control characters.
    pub(super) name: String,
    /// Its part of the place's sum; of an image, the fair share.
    pub(super) bytes: u64,
    pub(super) note: String,
    pub(super) into: Option<Place>,
    pub(super) image: Option<ImageIx>,
    /// Root of its store, if another store has an image of this name.
    pub(super) store: Option<String>,
    /// It overlaps with other rows, so it has no share of a sum.
    pub(super) overlaps: bool,
    /// Part that layers above this one hide; shown instead of the note.
    pub(super) hidden: Option<String>,
    /// What `explain` takes for it.
    pub(super) reference: Option<Reference>,
}

/// An object as `explain` and `waste` take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) text: String,
    /// Root of its store: another store may have an object with the same id.
    pub(super) store: Option<PathBuf>,
}

impl From<String> for Reference {
    fn from(text: String) -> Self {
        Self { text, store: None }
    }
}

impl PlaceRow {
    pub(super) fn new(name: impl AsRef<str>, bytes: u64) -> Self {
        let name = safe(name.as_ref());
        Self {
            name,
            bytes,
            note: String::new(),
            into: None,
            image: None,
            store: None,
            overlaps: false,
            hidden: None,
            reference: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Explored {
    pub(super) scan: Arc<Scan>,
    /// Everything could be read.
    pub(super) is_complete: bool,
    /// Filesystems in the order of the scan.
    pub(super) filesystems: Vec<UsageFilesystemDoc>,
    pub(super) images: Vec<ImageDoc>,
    /// By image. Each mark asks this for all marked images.
    deleted_by: Vec<DeletedBy>,
    /// Images of which a store at another root has one of the same name.
    twins: HashSet<ImageIx>,
    pub(super) node: Option<String>,
    /// It was read from a file: there is no disk with directories and files.
    pub(super) is_saved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeletedBy {
    Layersweep,
    /// Nothing uses it, but only this tool deletes in its store.
    Tool(&'static str),
    /// Something keeps it, or may use it.
    Nothing,
}

/// Bytes that the deletion of a set of images frees on a filesystem.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FreedTogether {
    pub(super) mount: String,
    pub(super) bytes: u64,
    /// Percentage used now and afterwards.
    pub(super) percents: Option<(f64, f64)>,
}

impl Explored {
    pub(super) fn read(request: &Request, observer: &dyn Observer, config: &Config) -> Result<Self, Error> {
        let usage = usage::usage(request, observer, config, None)?;
        let is_complete = usage.is_complete();
        let inventory = &usage.result.scan.inventory;
        let filesystems = json::usage_filesystems(inventory, &usage.disks, &usage.forecasts);
        let images = json::known_images(&usage.result, &json::fair(&usage.result.scan));
        let ScanResult { scan, node, .. } = usage.result;
        let deleted_by = deleted_by(&scan);
        let twins = twins(&scan.inventory);
        let scan = Arc::new(scan);
        Ok(Self { scan, is_complete, filesystems, images, deleted_by, twins, node, is_saved: false })
    }

    /// Reads the document of a saved scan. Its figures of each image are kept as they are.
    pub(super) fn saved(text: &[u8]) -> Result<Self, String> {
        let document = NodeDocument::read(text)?;
        let (scan, disks) = usage::saved(&document)?;
        let fair = json::fair(&scan);
        let images = document.images.iter().enumerate().map(|(position, saved)| ImageDoc {
            fair_bytes: saved.fair_bytes,
            exclusive_bytes: saved.exclusive_bytes,
            frees_bytes: saved.frees_bytes,
            first_detected: saved.first_detected,
            last_used: saved.last_used,
            ..json::image(&scan, &fair, position.into())
        });
        Ok(Self {
            filesystems: json::usage_filesystems(&scan.inventory, &disks, &[]),
            images: images.collect(),
            deleted_by: deleted_by(&scan),
            twins: twins(&scan.inventory),
            scan: Arc::new(scan),
            is_complete: document.complete,
            node: document.node.as_ref().map(ToString::to_string),
            is_saved: true,
        })
    }

    /// Returns the place of an earlier view in this one, if it still exists.
    pub(super) fn find(&self, earlier: &Self, place: &Place) -> Option<Place> {
        Some(match place {
            Place::Filesystems => Place::Filesystems,
            Place::Filesystem(ix) => Place::Filesystem(self.find_filesystem(earlier, *ix)?),
            Place::Images(ix, kind) => Place::Images(self.find_filesystem(earlier, *ix)?, *kind),
            Place::Containers(ix, kind) => Place::Containers(self.find_filesystem(earlier, *ix)?, *kind),
            Place::Leaks(ix) => Place::Leaks(self.find_filesystem(earlier, *ix)?),
            Place::Forest(store, None) => Place::Forest(self.find_store(earlier, *store)?, None),
            Place::Forest(store, Some(node)) => {
                Place::Forest(self.find_store(earlier, *store)?, Some(self.find_node(earlier, *node)?))
            }
            Place::Image(image) => {
                let image = &earlier.scan.inventory[*image];
                let store = self.find_store(earlier, image.store)?;
                Place::Image(self.scan.inventory.find_image(store, &image.id)?)
            }
            Place::Layer(node) => Place::Layer(self.find_node(earlier, *node)?),
            Place::Directory(path) => Place::Directory(path.clone()),
            Place::File(path) => Place::File(path.clone()),
        })
    }

    fn find_filesystem(&self, earlier: &Self, ix: FilesystemIx) -> Option<FilesystemIx> {
        let mount = &earlier.scan.inventory[ix].mount;
        let mut filesystems = self.scan.inventory.filesystems.iter();
        filesystems.position(|filesystem| filesystem.mount == *mount).map(FilesystemIx::from)
    }

    fn find_store(&self, earlier: &Self, store: StoreIx) -> Option<StoreIx> {
        self.scan.inventory.find_store(&StoreId::of(&earlier.scan.inventory[store]))
    }

    fn find_node(&self, earlier: &Self, node: NodeIx) -> Option<NodeIx> {
        let node = &earlier.scan.inventory[node];
        let mut nodes = self.scan.refs.nodes_of(self.find_store(earlier, node.store)?).iter().copied();
        nodes.find(|other| {
            let other = &self.scan.inventory[*other];
            other.id == node.id && other.kind == node.kind && other.layer.is_some()
        })
    }

    /// Returns the rows of a place whose data is here, the largest first. Those of directories are read from the disk.
    pub(super) fn rows(&self, place: &Place) -> Vec<PlaceRow> {
        match place {
            Place::Filesystems => self.filesystems(),
            Place::Filesystem(ix) => self.filesystem(*ix),
            Place::Images(ix, kind) => self.images_on(*ix, *kind),
            Place::Containers(ix, kind) => self.containers(*ix, *kind),
            Place::Leaks(ix) => self.leaks(*ix),
            Place::Forest(store, parent) => self.forest(*store, *parent),
            Place::Image(image) => self.layers_of(*image),
            Place::Layer(node) => self.holders(*node),
            Place::Directory(_) | Place::File(_) => Vec::new(),
        }
    }

    pub(super) fn title(&self, place: &Place) -> String {
        let inventory = &self.scan.inventory;
        match place {
            Place::Filesystems => match self.node.as_ref().filter(|_| self.is_saved) {
                Some(node) => format!("filesystems of {}", safe(node)),
                None => "filesystems".into(),
            },
            Place::Filesystem(ix) => safe(&self.filesystems[ix.get()].filesystem.mount),
            Place::Images(_, None) => "images".into(),
            Place::Images(_, Some(LineKind::ImagesInUse)) => "images in use".into(),
            Place::Images(_, Some(LineKind::ImagesPinned)) => "images kept by a rule".into(),
            Place::Images(_, Some(LineKind::ImagesOutOfReach)) => "images out of reach".into(),
            Place::Images(_, Some(LineKind::Artifacts)) => "artifacts".into(),
            Place::Images(_, Some(_)) => "images not in use".into(),
            Place::Containers(_, LineKind::ContainersRunning) => "running containers".into(),
            Place::Containers(_, LineKind::ContainersExited) => "exited containers".into(),
            Place::Containers(..) => "containers".into(),
            Place::Leaks(_) => "leaks".into(),
            Place::Forest(_, None) => "base layers".into(),
            Place::Forest(_, Some(node)) => format!("layers on {}", short_id(&inventory[*node].id)),
            Place::Image(image) => {
                let store = self.store_of_twin(*image).map_or_else(String::new, |root| format!(" in {root}"));
                format!("{}{store}", image_title(&inventory[*image]))
            }
            Place::Layer(node) => format!("layer {}", short_id(&inventory[*node].id)),
            Place::Directory(path) | Place::File(path) => safe(&path.to_string_lossy()),
        }
    }

    /// Returns the position of a filesystem in order, the fullest first.
    pub(super) fn fullness(&self, place: &Place) -> Option<u64> {
        let Place::Filesystem(ix) = place else { return None };
        let disk = &self.filesystems[ix.get()].filesystem;
        Some(disk.available_bytes.saturating_mul(1000) / disk.capacity_bytes.max(1))
    }

    fn filesystems(&self) -> Vec<PlaceRow> {
        let filesystems = self.filesystems.iter().enumerate();
        let rows = filesystems.map(|(ix, filled)| {
            let facts = &filled.filesystem;
            let percent = facts.used_percent.map_or_else(String::new, |percent| format!("{percent:.1}% of "));
            PlaceRow {
                note: format!("{percent}{}", bytes(facts.capacity_bytes)),
                into: Some(Place::Filesystem(ix.into())),
                overlaps: true,
                ..PlaceRow::new(&facts.mount, facts.used_bytes)
            }
        });
        rows.collect()
    }

    fn filesystem(&self, ix: FilesystemIx) -> Vec<PlaceRow> {
        let scan = &self.scan;
        let rows: Vec<_> = self.filesystems[ix.get()].rows.iter().filter(|row| row.bytes > 0).collect();
        let parts = rows.iter().map(|row| PlaceRow {
            note: row.count.map_or_else(|| self.left_out(row, &rows), |count| count.to_string()),
            into: self.place_of_row(ix, row),
            reference: row.path.clone().map(Reference::from),
            ..PlaceRow::new(label(row), row.bytes)
        });
        let stores = scan.inventory.stores.iter().enumerate().filter(|(_, store)| store.filesystem == ix);
        let layers = stores.filter_map(|(store_ix, store)| {
            let nodes = scan.refs.nodes_of(store_ix.into()).iter().map(|node| &scan.inventory[*node]);
            let layers = nodes.filter(|node| node.layer.is_some());
            let bytes = layers.map(|node| node.size.bytes).fold(0, u64::saturating_add);
            let name = format!("All layers of {}", store.root.display());
            Some((name, bytes, Place::Forest(store_ix.into(), None))).filter(|_| bytes > 0)
        });
        let images = self.filesystems[ix.get()].rows.iter().filter(|row| is_of_images(row.kind));
        let images = images.map(|row| row.bytes).fold(0, u64::saturating_add);
        let images = ("All images".to_owned(), images, Place::Images(ix, None));
        let whole = Some(images).filter(|(_, bytes, _)| *bytes > 0).into_iter().chain(layers);
        let whole = whole.map(|(name, bytes, place)| PlaceRow {
            note: "overlaps".into(),
            into: Some(place),
            overlaps: true,
            ..PlaceRow::new(name, bytes)
        });
        parts.chain(whole).collect()
    }

    fn place_of_row(&self, ix: FilesystemIx, row: &ShareRowDoc) -> Option<Place> {
        use LineKind::{ContainersExited, ContainersOther, ContainersRunning};
        match row.kind {
            ShareKind::InStore(kind) if is_of_images(row.kind) => Some(Place::Images(ix, Some(kind))),
            ShareKind::InStore(kind @ (ContainersRunning | ContainersExited | ContainersOther)) => {
                Some(Place::Containers(ix, kind))
            }
            ShareKind::InStore(LineKind::Leaks) => Some(Place::Leaks(ix)),
            // The whole filesystem: what is in other rows is seen there again.
            ShareKind::Rest => {
                Some(Place::Directory(self.scan.sysroot.shown(&self.scan.inventory[ix].mount).into()))
            }
            ShareKind::Object(TargetKind::Image) | ShareKind::Outside(PartKind::DeletedOpen) => None,
            _ => row.path.as_ref().map(|path| Place::Directory(path.into())),
        }
    }

    /// Says what a row does not have: parts of its directory that are in other rows, or the parts that a saved scan does
    /// not know.
    fn left_out(&self, row: &ShareRowDoc, rows: &[&ShareRowDoc]) -> String {
        let has_outside = rows.iter().any(|row| matches!(row.kind, ShareKind::Outside(_)));
        if row.kind == ShareKind::Rest && self.is_saved && !has_outside {
            return "a saved report divides it".into();
        }
        if row.kind == ShareKind::Rest && !self.is_saved {
            return "Enter: the whole disk".into();
        }
        let Some(path) = row.path.as_ref().map(Path::new) else { return String::new() };
        let others = rows.iter().filter_map(|other| other.path.as_ref().map(Path::new));
        let below = others.filter(|other| *other != path && other.starts_with(path)).count();
        let stores = self.scan.inventory.stores.iter().map(|store| self.scan.sysroot.shown(&store.root));
        let stores_below = stores.filter(|root| !row.in_store && Path::new(root).starts_with(path)).count();
        match below + stores_below {
            0 => String::new(),
            parts => count(parts, "part listed apart", "parts listed apart"),
        }
    }

    fn images_on(&self, ix: FilesystemIx, kind: Option<LineKind>) -> Vec<PlaceRow> {
        let scan = &self.scan;
        let images = (0..self.images.len()).map(ImageIx::from).filter(|image| {
            let root = Root::Image(*image);
            let is_here = scan.inventory[scan.inventory[*image].store].filesystem == ix
                || refs::has_bytes_on(&scan.inventory, &scan.refs, root, ix);
            is_here && kind.is_none_or(|kind| kind_of(&scan.inventory, &scan.refs, root).0 == kind)
        });
        images.map(|image| self.image_row(image)).collect()
    }

    /// Returns the root of an image's store, if another store has an image of the same name.
    pub(super) fn store_of_twin(&self, image_ix: ImageIx) -> Option<String> {
        let document = &self.images[image_ix.get()];
        self.twins.contains(&image_ix).then(|| safe(&document.store))
    }

    /// Returns the words for an object of a store.
    fn reference(&self, id: &str, store: StoreIx) -> Option<Reference> {
        Some(Reference { text: id.to_owned(), store: Some(self.scan.inventory[store].root.clone()) })
    }

    pub(super) fn reference_of_image(&self, image_ix: ImageIx) -> Option<Reference> {
        let image = &self.scan.inventory[image_ix];
        self.reference(&image.id, image.store)
    }

    fn image_row(&self, image_ix: ImageIx) -> PlaceRow {
        let document = &self.images[image_ix.get()];
        let short = self.tool_of(image_ix).map(|tool| format!("{tool} rmi only"));
        PlaceRow {
            note: short.or_else(|| self.kept(image_ix)).unwrap_or_else(|| self.idle(document)),
            into: Some(Place::Image(image_ix)),
            image: Some(image_ix),
            store: self.store_of_twin(image_ix),
            reference: self.reference_of_image(image_ix),
            ..PlaceRow::new(image_title(&self.scan.inventory[image_ix]), document.fair_bytes)
        }
    }

    fn idle(&self, document: &ImageDoc) -> String {
        let now = self.scan.taken_at;
        match (document.last_used, document.first_detected) {
            (Some(used), _) => format!("idle {}", age(Some(used), now)),
            (None, Some(detected)) => format!("never used, here {}", age(Some(detected), now)),
            (None, None) => String::new(),
        }
    }

    /// Returns the reason for which an image stays whatever is asked, as a clause.
    pub(super) fn kept(&self, image_ix: ImageIx) -> Option<String> {
        if self.deleted_by[image_ix.get()] == DeletedBy::Layersweep {
            return None;
        }
        let scan = &self.scan;
        let document = &self.images[image_ix.get()];
        let user = document.used_by.first().map(|user| format!("in use by {}", user.name));
        let ruling = scan.inventory.protected.get(&image_ix).map(|ruling| ruling.detail.clone());
        let pinned = document.pinned_by.first().map(|by| format!("kept by {by}"));
        let obstacle = scan.inventory.obstacle(image_ix);
        let why = user.or(ruling).or(pinned).or(obstacle);
        Some(safe(&why.unwrap_or_else(|| "in a store that layersweep does not edit".into())))
    }

    /// Returns the tool that alone deletes an unused image.
    pub(super) fn tool_of(&self, image_ix: ImageIx) -> Option<&'static str> {
        match self.deleted_by[image_ix.get()] {
            DeletedBy::Tool(tool) => Some(tool),
            _ => None,
        }
    }

    /// Says why the fair shares of a row's images do not add up to the bytes of the row, if they do not.
    pub(super) fn of_shares(&self, level: &Place, rows: &[PlaceRow]) -> Option<String> {
        let Place::Images(ix, Some(kind)) = level else { return None };
        let rows_of_usage = &self.filesystems[ix.get()].rows;
        let row = rows_of_usage.iter().find(|row| row.kind == ShareKind::InStore(*kind))?;
        let shares = rows.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
        // Shares are rounded.
        (shares.abs_diff(row.bytes) > rows.len() as u64).then(|| {
            format!(
                "{} in usage: it counts shared layers in one row only, FAIR divides them",
                bytes(row.bytes)
            )
        })
    }

    fn containers(&self, ix: FilesystemIx, kind: LineKind) -> Vec<PlaceRow> {
        let inventory = &self.scan.inventory;
        let containers = inventory.containers.iter().filter(|container| {
            LineKind::of_container(container.state) == kind && inventory[container.store].filesystem == ix
        });
        let rows = containers.map(|container| {
            let layer = container.holds.iter().copied().find(|node| inventory[*node].layer.is_some());
            let image = container.image.map(|image| inventory[image].title());
            PlaceRow {
                note: safe(image.unwrap_or("without an image")),
                into: layer.or(container.holds.first().copied()).map(Place::Layer),
                reference: self.reference(&container.id, container.store),
                ..PlaceRow::new(&container.name, Refs::held_bytes(inventory, &container.holds))
            }
        });
        rows.collect()
    }

    fn leaks(&self, ix: FilesystemIx) -> Vec<PlaceRow> {
        let scan = &self.scan;
        let leaks = scan.inventory.leaks.iter().filter(|leak| scan.inventory[leak.store].filesystem == ix);
        let rows = leaks.map(|leak| PlaceRow {
            note: safe(&scan.sysroot.shown(&leak.path)),
            into: Some(Place::Directory(scan.sysroot.shown(&leak.path).into())),
            reference: Some(scan.sysroot.shown(&leak.path).into()),
            ..PlaceRow::new(leak.title(), Refs::held_bytes(&scan.inventory, &leak.holds))
        });
        rows.collect()
    }

    fn forest(&self, store: StoreIx, parent: Option<NodeIx>) -> Vec<PlaceRow> {
        let scan = &self.scan;
        let layers = scan.refs.nodes_of(store).iter().copied().filter(|node| {
            let facts = &scan.inventory[*node];
            let lower = facts.needs.iter().copied().find(|need| scan.inventory[*need].layer.is_some());
            facts.layer.is_some() && lower == parent
        });
        layers.map(|node| self.layer_row(node)).collect()
    }

    fn layer_row(&self, node: NodeIx) -> PlaceRow {
        let scan = &self.scan;
        let holders = scan.refs.refcount(node) as usize;
        PlaceRow {
            note: if holders == 0 { "held by nothing".into() } else { format!("held by {holders}") },
            into: Some(Place::Layer(node)),
            reference: self.reference(&scan.inventory[node].id, scan.inventory[node].store),
            ..PlaceRow::new(
                format!("{} {}", scan.inventory[node].kind.of_layer(), short_id(&scan.inventory[node].id)),
                Refs::alone(&scan.inventory, node).bytes,
            )
        }
    }

    fn layers_of(&self, image: ImageIx) -> Vec<PlaceRow> {
        let scan = &self.scan;
        let nodes = scan.refs.reach(Root::Image(image)).iter().copied();
        let layers = nodes.filter(|node| scan.inventory[*node].kind.is_layer());
        layers.map(|node| self.layer_row(node)).collect()
    }

    /// Returns the files of a layer, the layers on it, and everything that holds it.
    fn holders(&self, node: NodeIx) -> Vec<PlaceRow> {
        let scan = &self.scan;
        let facts = &scan.inventory[node];
        let files = PlaceRow {
            note: safe(&scan.sysroot.shown(&facts.path)),
            into: Some(Place::Directory(scan.sysroot.shown(&facts.path).into())),
            reference: Some(scan.sysroot.shown(&facts.path).into()),
            ..PlaceRow::new("its files", Refs::alone(&scan.inventory, node).bytes)
        };
        let upper = self.forest(facts.store, Some(node));
        let above = (!upper.is_empty()).then(|| PlaceRow {
            into: Some(Place::Forest(facts.store, Some(node))),
            overlaps: true,
            ..PlaceRow::new(
                count(upper.len(), "layer on it", "layers on it"),
                upper.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes)),
            )
        });
        let holders = scan.refs.reached_by(node).map(|root| match root {
            Root::Image(image) => PlaceRow { overlaps: true, ..self.image_row(image) },
            Root::Container(container) => self.container_holder(container),
            Root::Leak(leak) => PlaceRow {
                overlaps: true,
                reference: Some(scan.sysroot.shown(&scan.inventory[leak].path).into()),
                ..PlaceRow::new(scan.inventory[leak].title(), 0)
            },
        });
        [files].into_iter().chain(above).chain(holders).collect()
    }

    fn container_holder(&self, container_ix: ContainerIx) -> PlaceRow {
        let inventory = &self.scan.inventory;
        let container = &inventory[container_ix];
        PlaceRow {
            note: format!("container, {}", container.state),
            overlaps: true,
            reference: self.reference(&container.id, container.store),
            ..PlaceRow::new(&container.name, Refs::held_bytes(inventory, &container.holds))
        }
    }

    /// Returns what deleting images that can be deleted frees together, by filesystem.
    pub(super) fn freed(&self, images: &[Root]) -> Vec<FreedTogether> {
        let scan = &self.scan;
        let nodes = scan.refs.live().last_held_by(images);
        let filesystems = self.filesystems.iter().enumerate();
        let freed = filesystems.map(|(ix, filled)| {
            let here = nodes.iter().map(|node| &scan.inventory[*node]);
            let here = here.filter(|node| node.filesystem == ix.into());
            let bytes = here.map(|node| node.size.frees_bytes).fold(0, u64::saturating_add);
            let facts = &filled.filesystem;
            #[allow(clippy::cast_precision_loss)] // a percentage
            let less = bytes as f64 * 100.0 / facts.capacity_bytes.max(1) as f64;
            let percents = facts.used_percent.map(|percent| (percent, (percent - less).max(0.0)));
            FreedTogether { mount: safe(&facts.mount), bytes, percents }
        });
        freed.filter(|freed| freed.bytes > 0).collect()
    }

    /// Returns the last use of an image, or else its first detection.
    pub(super) fn last_used(&self, image: ImageIx) -> Option<Timestamp> {
        let document = &self.images[image.get()];
        document.last_used.or(document.first_detected)
    }
}

fn deleted_by(scan: &Scan) -> Vec<DeletedBy> {
    let (inventory, refs) = (&scan.inventory, &scan.refs);
    let images = (0..inventory.images.len()).map(ImageIx::from).map(|image| {
        let facts = &inventory[inventory[image].store];
        if is_deletable(inventory, refs, Root::Image(image)) {
            return DeletedBy::Layersweep;
        }
        // Every other obstacle means that it may be in use.
        let is_of_tool = inventory.obstacle(image) == facts.kind.obstacle();
        match facts
            .kind
            .facts()
            .tool
            .filter(|_| is_of_tool && standing(inventory, refs, image) == Standing::Unused)
        {
            Some(tool) => DeletedBy::Tool(tool),
            None => DeletedBy::Nothing,
        }
    });
    images.collect()
}

fn twins(inventory: &Inventory) -> HashSet<ImageIx> {
    let mut stores: HashMap<String, HashSet<&Path>> = HashMap::new();
    for image in &inventory.images {
        stores.entry(image_title(image)).or_default().insert(&inventory[image.store].root);
    }
    let images = inventory.images.iter().enumerate();
    let twins = images.filter(|(_, image)| stores[&image_title(image)].len() > 1);
    twins.map(|(position, _)| position.into()).collect()
}

/// Returns the first name of an image; without a name, the beginning of its id tells it from others.
pub(super) fn image_title(image: &Image) -> String {
    image.names.first().map_or_else(|| format!("<none> {}", short_id(&image.id)), |name| safe(name))
}

pub(super) fn rows_of_directory(directory: &Path, entries: &[SizedEntry]) -> Vec<PlaceRow> {
    let rows = entries.iter().map(|entry| {
        let path = directory.join(&entry.name);
        if entry.is_mount {
            let note = "a mount: not entered".into();
            return PlaceRow {
                note,
                reference: path.to_str().map(|path| path.to_owned().into()),
                ..PlaceRow::new(entry.name.to_string_lossy(), 0)
            };
        }
        let mark = if entry.is_directory { "/" } else { "" };
        let reference = path.to_str().map(|path| path.to_owned().into());
        let inodes = usize::try_from(entry.size.inodes).unwrap_or(usize::MAX);
        let note = match (entry.is_partial, entry.is_directory) {
            (true, _) => "or more: a part cannot be read".into(),
            (false, true) => count(inodes, "inode", "inodes"),
            (false, false) => String::new(),
        };
        PlaceRow {
            note,
            reference,
            into: Some(if entry.is_directory { Place::Directory(path) } else { Place::File(path) }),
            ..PlaceRow::new(format!("{}{mark}", entry.name.to_string_lossy()), entry.size.bytes)
        }
    });
    rows.collect()
}

fn label(row: &ShareRowDoc) -> String {
    match &row.path {
        Some(path) if row.label.starts_with('/') => path.clone(),
        Some(path) => format!("{} ({path})", row.label),
        None => row.label.clone(),
    }
}

fn is_of_images(kind: ShareKind) -> bool {
    use LineKind::{Artifacts, ImagesInUse, ImagesOutOfReach, ImagesPinned, ImagesUnused};
    let kinds = [ImagesInUse, ImagesPinned, ImagesOutOfReach, ImagesUnused, Artifacts];
    matches!(kind, ShareKind::InStore(kind) if kinds.contains(&kind))
}

/// Returns the directory of a layer that has its files, as the node itself names it; `None` if no layer hides them.
pub(super) fn files_of_layer(scan: &Scan, node_ix: NodeIx) -> Option<PathBuf> {
    let node = &scan.inventory[node_ix];
    let files = directory_of(node, &scan.inventory[node.store].driver).ok()?;
    Some(scan.sysroot.shown(&files).into())
}

/// Writes into the rows of a directory which of its files upper layers hide. `files`: the layer's directory with its files.
pub(super) fn mark_hidden(rows: &mut [PlaceRow], files: &Path, hidden: &HiddenInLayer) {
    for row in rows {
        let (path, is_directory) = match &row.into {
            Some(Place::Directory(path)) => (path, true),
            Some(Place::File(path)) => (path, false),
            _ => continue,
        };
        row.hidden = match path.strip_prefix(files) {
            Ok(inside) if !is_directory => hidden.files.get(inside).map(|(_, viewers)| {
                if *viewers >= hidden.viewers {
                    "hidden by upper layers".into()
                } else {
                    format!("hidden for {viewers} of {} users", hidden.viewers)
                }
            }),
            Ok(inside) => sum(hidden, inside),
            Err(_) if files.starts_with(path) => sum(hidden, Path::new("")),
            Err(_) => None,
        };
    }
}

fn sum(hidden: &HiddenInLayer, directory: &Path) -> Option<String> {
    let below =
        hidden.files.range(directory.to_path_buf()..).take_while(|(path, _)| path.starts_with(directory));
    let (mut of_all, mut of_some) = (0_u64, 0_u64);
    for (_, (bytes, viewers)) in below {
        let sum = if *viewers >= hidden.viewers { &mut of_all } else { &mut of_some };
        *sum = sum.saturating_add(*bytes);
    }
    match (of_all, of_some) {
        (0, 0) => None,
        (0, of_some) => Some(format!("{} hidden for some", bytes(of_some))),
        (of_all, _) => Some(format!("{} hidden", bytes(of_all))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_files_are_marked_in_their_directories() {
        let file = |path: &str, bytes, viewers| (PathBuf::from(path), (bytes, viewers));
        let files = [file("usr/bin/a", 1 << 20, 2), file("usr/bin/b", 2 << 20, 1), file("var/c", 3 << 20, 1)];
        let hidden = HiddenInLayer { viewers: 2, files: files.into(), is_partial: false };
        let files = Path::new("/s/overlay/0a/diff");
        for (path, is_directory, expected) in [
            ("/s/overlay/0a/diff", true, Some("1.0 MiB hidden")),
            ("/s/overlay/0a/diff/usr", true, Some("1.0 MiB hidden")),
            ("/s/overlay/0a/diff/var", true, Some("3.0 MiB hidden for some")),
            ("/s/overlay/0a/diff/usr/bin/a", false, Some("hidden by upper layers")),
            ("/s/overlay/0a/diff/usr/bin/b", false, Some("hidden for 1 of 2 users")),
            ("/s/overlay/0a/diff/usr/bi", true, None),
            ("/s/overlay/0a/link", false, None),
        ] {
            let place = if is_directory { Place::Directory(path.into()) } else { Place::File(path.into()) };
            let mut rows = [PlaceRow { into: Some(place), ..PlaceRow::new("x", 1) }];
            mark_hidden(&mut rows, files, &hidden);
            assert_eq!(rows[0].hidden.as_deref(), expected, "{path}");
        }
    }
}
