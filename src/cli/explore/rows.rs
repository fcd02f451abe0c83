//! The node as rows: what each place of the view lists.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::app::usage::{self, Usage};
use crate::config::Config;
use crate::model::deletion::plan::TargetKind;
use crate::model::refs::{self, LineKind, Refs, Root, is_deletable, kind_of};
use crate::model::text::display::{count, short_id};
use crate::model::{ContainerIx, FilesystemIx, ImageIx, NodeIx, StoreIx};
use crate::report::json::{self, ImageDoc, ShareKind, ShareRowDoc, UsageDoc};
use crate::report::text::{age, bytes, safe};
use crate::services::diagnosis::PartKind;
use crate::services::error::Error;
use crate::services::observer::Observer;
use crate::services::request::Request;
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
    /// It overlaps with other rows, so it has no share of a sum.
    pub(super) overlaps: bool,
}

impl PlaceRow {
    fn new(name: impl AsRef<str>, bytes: u64) -> Self {
        let name = safe(name.as_ref());
        Self { name, bytes, note: String::new(), into: None, image: None, overlaps: false }
    }
}

#[derive(Debug)]
pub(super) struct Explored {
    pub(super) usage: Usage,
    pub(super) document: UsageDoc,
    pub(super) images: Vec<ImageDoc>,
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
        let document = json::usage(&usage);
        let images = json::known_images(&usage.result, &json::fair(&usage.result.scan));
        Ok(Self { usage, document, images })
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
            Place::Directory(_) => Vec::new(),
        }
    }

    pub(super) fn title(&self, place: &Place) -> String {
        let inventory = &self.usage.result.scan.inventory;
        match place {
            Place::Filesystems => "filesystems".into(),
            Place::Filesystem(ix) => safe(&self.document.filesystems[ix.get()].filesystem.mount),
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
            Place::Image(image) => safe(inventory[*image].title()),
            Place::Layer(node) => format!("layer {}", short_id(&inventory[*node].id)),
            Place::Directory(path) => safe(&path.to_string_lossy()),
        }
    }

    /// Returns the position of a filesystem in order, the fullest first.
    pub(super) fn fullness(&self, place: &Place) -> Option<u64> {
        let Place::Filesystem(ix) = place else { return None };
        let disk = &self.document.filesystems[ix.get()].filesystem;
        Some(disk.available_bytes.saturating_mul(1000) / disk.capacity_bytes.max(1))
    }

    fn filesystems(&self) -> Vec<PlaceRow> {
        let filesystems = self.document.filesystems.iter().enumerate();
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
        let scan = &self.usage.result.scan;
        let rows = self.document.filesystems[ix.get()].rows.iter().filter(|row| row.bytes > 0);
        let parts = rows.map(|row| PlaceRow {
            note: row.count.map(|count| count.to_string()).unwrap_or_default(),
            into: into_row(ix, row),
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
        let images = self.document.filesystems[ix.get()].rows.iter().filter(|row| is_of_images(row.kind));
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

    fn images_on(&self, ix: FilesystemIx, kind: Option<LineKind>) -> Vec<PlaceRow> {
        let scan = &self.usage.result.scan;
        let images = (0..self.images.len()).map(ImageIx::from).filter(|image| {
            let root = Root::Image(*image);
            let is_here = scan.inventory[scan.inventory[*image].store].filesystem == ix
                || refs::has_bytes_on(&scan.inventory, &scan.refs, root, ix);
            is_here && kind.is_none_or(|kind| kind_of(&scan.inventory, &scan.refs, root).0 == kind)
        });
        images.map(|image| self.image_row(image)).collect()
    }

    fn image_row(&self, image_ix: ImageIx) -> PlaceRow {
        let document = &self.images[image_ix.get()];
        let name = document.names.first().map_or("<none>", String::as_str);
        PlaceRow {
            note: self.kept(image_ix).unwrap_or_else(|| self.idle(document)),
            into: Some(Place::Image(image_ix)),
            image: Some(image_ix),
            ..PlaceRow::new(name, document.fair_bytes)
        }
    }

    fn idle(&self, document: &ImageDoc) -> String {
        let now = self.usage.result.scan.taken_at;
        match (document.last_used, document.first_detected) {
            (Some(used), _) => format!("idle {}", age(Some(used), now)),
            (None, Some(detected)) => format!("never used, here {}", age(Some(detected), now)),
            (None, None) => String::new(),
        }
    }

    /// Returns the reason for which an image stays whatever is asked, as a clause.
    pub(super) fn kept(&self, image_ix: ImageIx) -> Option<String> {
        let scan = &self.usage.result.scan;
        if is_deletable(&scan.inventory, &scan.refs, Root::Image(image_ix)) {
            return None;
        }
        let document = &self.images[image_ix.get()];
        let user = document.used_by.first().map(|user| format!("in use by {}", user.name));
        let ruling = scan.inventory.protected.get(&image_ix).map(|ruling| ruling.detail.clone());
        let pinned = document.pinned_by.first().map(|by| format!("kept by {by}"));
        let obstacle = scan.inventory.obstacle(image_ix);
        let why = user.or(ruling).or(pinned).or(obstacle);
        Some(safe(&why.unwrap_or_else(|| "in a store that layersweep does not edit".into())))
    }

    fn containers(&self, ix: FilesystemIx, kind: LineKind) -> Vec<PlaceRow> {
        let inventory = &self.usage.result.scan.inventory;
        let containers = inventory.containers.iter().filter(|container| {
            LineKind::of_container(container.state) == kind && inventory[container.store].filesystem == ix
        });
        let rows = containers.map(|container| {
            let layer = container.holds.iter().copied().find(|node| inventory[*node].layer.is_some());
            let image = container.image.map(|image| inventory[image].title());
            PlaceRow {
                note: safe(image.unwrap_or("without an image")),
                into: layer.or(container.holds.first().copied()).map(Place::Layer),
                ..PlaceRow::new(&container.name, Refs::held_bytes(inventory, &container.holds))
            }
        });
        rows.collect()
    }

    fn leaks(&self, ix: FilesystemIx) -> Vec<PlaceRow> {
        let scan = &self.usage.result.scan;
        let leaks = scan.inventory.leaks.iter().filter(|leak| scan.inventory[leak.store].filesystem == ix);
        let rows = leaks.map(|leak| PlaceRow {
            note: safe(&scan.sysroot.shown(&leak.path)),
            into: Some(Place::Directory(scan.sysroot.shown(&leak.path).into())),
            ..PlaceRow::new(leak.title(), Refs::held_bytes(&scan.inventory, &leak.holds))
        });
        rows.collect()
    }

    fn forest(&self, store: StoreIx, parent: Option<NodeIx>) -> Vec<PlaceRow> {
        let scan = &self.usage.result.scan;
        let layers = scan.refs.nodes_of(store).iter().copied().filter(|node| {
            let facts = &scan.inventory[*node];
            let lower = facts.needs.iter().copied().find(|need| scan.inventory[*need].layer.is_some());
            facts.layer.is_some() && lower == parent
        });
        layers.map(|node| self.layer_row(node)).collect()
    }

    fn layer_row(&self, node: NodeIx) -> PlaceRow {
        let scan = &self.usage.result.scan;
        let holders = scan.refs.refcount(node) as usize;
        PlaceRow {
            note: if holders == 0 { "held by nothing".into() } else { format!("held by {holders}") },
            into: Some(Place::Layer(node)),
            ..PlaceRow::new(
                format!("{} {}", scan.inventory[node].kind.of_layer(), short_id(&scan.inventory[node].id)),
                Refs::alone(&scan.inventory, node).bytes,
            )
        }
    }

    fn layers_of(&self, image: ImageIx) -> Vec<PlaceRow> {
        let scan = &self.usage.result.scan;
        let nodes = scan.refs.reach(Root::Image(image)).iter().copied();
        let layers = nodes.filter(|node| scan.inventory[*node].kind.is_layer());
        layers.map(|node| self.layer_row(node)).collect()
    }

    /// Returns the files of a layer, the layers on it, and everything that holds it.
    fn holders(&self, node: NodeIx) -> Vec<PlaceRow> {
        let scan = &self.usage.result.scan;
        let facts = &scan.inventory[node];
        let files = PlaceRow {
            note: safe(&scan.sysroot.shown(&facts.path)),
            into: Some(Place::Directory(scan.sysroot.shown(&facts.path).into())),
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
            Root::Leak(leak) => PlaceRow { overlaps: true, ..PlaceRow::new(scan.inventory[leak].title(), 0) },
        });
        [files].into_iter().chain(above).chain(holders).collect()
    }

    fn container_holder(&self, container_ix: ContainerIx) -> PlaceRow {
        let inventory = &self.usage.result.scan.inventory;
        let container = &inventory[container_ix];
        PlaceRow {
            note: format!("container, {}", container.state),
            overlaps: true,
            ..PlaceRow::new(&container.name, Refs::held_bytes(inventory, &container.holds))
        }
    }

    /// Returns what deleting those images of a set that can be deleted frees together, by filesystem.
    pub(super) fn freed(&self, images: impl Iterator<Item = ImageIx>) -> Vec<FreedTogether> {
        let scan = &self.usage.result.scan;
        let roots = images.map(Root::Image);
        let roots: Vec<_> = roots.filter(|root| is_deletable(&scan.inventory, &scan.refs, *root)).collect();
        let nodes = scan.refs.live().last_held_by(&roots);
        let filesystems = self.document.filesystems.iter().enumerate();
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

pub(super) fn rows_of_directory(directory: &std::path::Path, entries: &[SizedEntry]) -> Vec<PlaceRow> {
    let rows = entries.iter().map(|entry| {
        let mark = if entry.is_directory { "/" } else { "" };
        let inodes = usize::try_from(entry.size.inodes).unwrap_or(usize::MAX);
        let note = match (entry.is_partial, entry.is_directory) {
            (true, _) => "or more: a part cannot be read".into(),
            (false, true) => count(inodes, "inode", "inodes"),
            (false, false) => String::new(),
        };
        PlaceRow {
            note,
            into: entry.is_directory.then(|| Place::Directory(directory.join(&entry.name))),
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

fn into_row(ix: FilesystemIx, row: &ShareRowDoc) -> Option<Place> {
    use LineKind::{ContainersExited, ContainersOther, ContainersRunning};
    match row.kind {
        ShareKind::InStore(kind) if is_of_images(row.kind) => Some(Place::Images(ix, Some(kind))),
        ShareKind::InStore(kind @ (ContainersRunning | ContainersExited | ContainersOther)) => {
            Some(Place::Containers(ix, kind))
        }
        ShareKind::InStore(LineKind::Leaks) => Some(Place::Leaks(ix)),
        ShareKind::Object(TargetKind::Image) | ShareKind::Rest => None,
        ShareKind::Outside(PartKind::DeletedOpen) => None,
        _ => row.path.as_ref().map(|path| Place::Directory(path.into())),
    }
}
