//! `waste`: bytes of layers that no image or container shows, and files that layers have in common.
//!
//! The layers form a forest. They are read in parallel, sixteen at a time, in the order of a walk in depth, and put on a
//! [`LayerView`] one after the other: each is read once, whatever number of images are on it, and only the names of one chain
//! and a digest for each file are kept. The figures of an image are the sums over its chain. Layers that nothing reaches
//! are leaks, which `sweep` reports, and are left out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use rayon::prelude::*;
use serde::Serialize;

use crate::disk::filesystem;
use crate::model::text::display::count;
use crate::model::waste::layer_files::LayerFiles;
use crate::model::waste::view::{Hidden, HiddenHow, LayerView};
use crate::model::{Finding, ImageIx, Inventory, Node, NodeIx, NodeKind, StoreIx};
use crate::services::error::Error;
use crate::services::observer::{Audience, Observer};
use crate::services::request::Request;
use crate::services::scan::{self, ScanOptions, ScanResult};
use crate::services::state::Purpose;
use crate::stores::layer_reader::{LayerReader, LayerSource};
use crate::stores::lookup::{self, Subject};
use crate::stores::{Measure, Scan};

const BATCH: usize = 16;

/// Maximum length of all tar-splits that `report` reads, for one to two million files: it must not take seconds longer.
const MOST_PACKED: u64 = 64 << 20;

/// Maximum number of files that are listed, and of different problems that are reported.
const MOST_FILES: usize = 100_000;
const MOST_PROBLEMS: usize = 20;

#[derive(Debug)]
pub struct Waste {
    pub result: ScanResult,
    pub image: Option<ImageIx>,
    pub stores: Vec<StoreWaste>,
    pub images: Vec<ImageWaste>,
    pub layers: Vec<LayerWaste>,
    pub files: Option<HiddenFiles>,
}

/// Layers of a store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StoreWasteDoc"))]
pub struct StoreWaste {
    /// Root directory of the store.
    pub root: String,
    /// Mount point of its filesystem.
    pub filesystem: String,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// True if files on the filesystem can share their blocks: XFS with reflinks, btrfs.
    pub can_deduplicate: bool,
    /// Number of layers that images and containers reach, without those that containers write to.
    pub layers: usize,
    /// Number of these layers that could not be read; `hidden_bytes` is then a lower bound.
    pub unread_layers: usize,
    /// Number of these layers without a tar-split, whose directories were walked: their files have no checksums.
    pub walked_layers: usize,
    /// Bytes of the files in its layers, counted as `hidden_bytes` are.
    pub bytes: u64,
    /// Files that neither an image nor a container shows.
    #[serde(flatten)]
    pub hidden: Hidden,
    /// Bytes that all but one of each set of equal files take: what deduplication saves if no blocks are shared yet. A
    /// hidden file may be among them. Null if no layer has checksums.
    pub equal_bytes: Option<u64>,
}

/// Layers of an image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ImageWasteDoc"))]
pub struct ImageWaste {
    /// Id of the image.
    pub id: String,
    /// All its names.
    pub names: Vec<String>,
    /// Root directory of the store.
    pub store: String,
    /// True if all its layers were read.
    pub complete: bool,
    /// Bytes of the files in its layers, counted as `hidden_bytes` are.
    pub bytes: u64,
    /// Files of its layers that it does not show; another image may show them.
    #[serde(flatten)]
    pub hidden: Hidden,
    /// Sum of `equal_bytes` of its layers; null if a layer has no checksums.
    pub equal_bytes: Option<u64>,
}

/// Layer of a store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "LayerWasteDoc"))]
pub struct LayerWaste {
    /// Id of the layer or key of the snapshot.
    pub id: String,
    /// Root directory of the store.
    pub store: String,
    /// `tar-split` (lengths and checksums of the files), `directory` (allocated bytes, no checksums) or `unread`.
    pub source: LayerSource,
    /// Bytes of its files, counted as `hidden_bytes` are.
    pub bytes: u64,
    /// Bytes of files in lower layers that it hides.
    pub hides_bytes: u64,
    /// Its files that neither an image nor a container shows; of a single image, those that the image does not show.
    #[serde(flatten)]
    pub hidden: Hidden,
    /// Bytes of its files that equal a file of this store's layers before it, in the order of the document: the sum over
    /// all layers is that of the store. Null without checksums.
    pub equal_bytes: Option<u64>,
}

/// File of an image that an upper layer hides.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "HiddenFileDoc"))]
pub struct HiddenFileText {
    /// Path in the image. Bytes that are not UTF-8 become replacement characters.
    pub path: String,
    /// Bytes, counted as `hidden_bytes` are.
    pub bytes: u64,
    /// `overwritten`, `deleted`, or `copied` (with the same content).
    pub how: HiddenHow,
    /// Id of the layer that contains it.
    pub layer: String,
    /// Id of the layer that hides it.
    pub hidden_by: String,
}

/// Hidden files of an image, the largest first.
#[derive(Clone, Debug, Default)]
pub struct HiddenFiles {
    pub listed: Vec<HiddenFileText>,
    pub omitted: usize,
}

/// Compares the layers of all images. `image`: the image whose layers are shown, and the root of its store if others may
/// have it too; `files`: maximum number of its hidden files to list.
///
/// # Errors
/// When there is no store, or no image matches.
pub fn waste(
    request: &Request,
    observer: &dyn Observer,
    image: Option<(&str, Option<&Path>)>,
    files: Option<usize>,
) -> Result<Waste, Error> {
    let options = ScanOptions { measure: Measure::Records, ..ScanOptions::default() };
    let mut result = scan::scan_with(request, observer, Purpose::Look, false, options)?;
    let image = image.map(|(reference, store)| find_image(&result.scan, reference, store)).transpose()?;
    let reader = LayerReader::new(&result.scan);
    let mut comparison = LayerComparison::new(&result.scan);
    comparison.run(&reader);
    let inventory = &result.scan.inventory;
    let (images, layers, files) = match image {
        Some(image_ix) => {
            let chain = comparison.chain(image_ix);
            let (hidden, files) = hidden_of(&reader, &comparison, &chain, files);
            let with_hidden = chain.iter().zip(hidden);
            let rows =
                with_hidden.map(|(node_ix, hidden)| LayerWaste { hidden, ..comparison.layer(*node_ix) });
            (vec![comparison.image(image_ix)], rows.collect(), files)
        }
        None => {
            let mut rows: Vec<_> = (0..inventory.images.len())
                .map(ImageIx::from)
                .filter(|image_ix| !comparison.chain(*image_ix).is_empty())
                .map(|image_ix| comparison.image(image_ix))
                .collect();
            rows.sort_by(|a, b| b.hidden.bytes.cmp(&a.hidden.bytes).then_with(|| a.names.cmp(&b.names)));
            let read = comparison.order.iter().filter(|node_ix| !is_written(&inventory[**node_ix]));
            (rows, read.map(|node_ix| comparison.layer(*node_ix)).collect(), None)
        }
    };
    let stores = comparison.stores();
    let findings = comparison.findings(&stores);
    observer.findings(Audience::Usual, &findings);
    result.scan.inventory.findings.extend(findings);
    Ok(Waste { result, image, stores, images, layers, files })
}

/// Returns the stores in which hidden or equal files take more than 1 % of the filesystem. Reads only tar-splits, and
/// none if they are long.
pub(super) fn noticeable(scan: &Scan) -> Vec<StoreWaste> {
    let reader = LayerReader::new(scan).without_walks();
    let mut comparison = LayerComparison::new(scan);
    let packed: u64 = comparison.order.par_iter().map(|node_ix| reader.packed_bytes(*node_ix)).sum();
    if packed > MOST_PACKED {
        return Vec::new();
    }
    comparison.run(&reader);
    let mut stores = comparison.stores();
    stores
        .retain(|store| store.hidden.bytes.max(store.equal_bytes.unwrap_or(0)) > store.capacity_bytes / 100);
    stores
}

/// Files of a layer that layers above it hide.
#[derive(Clone, Debug, Default)]
pub struct HiddenInLayer {
    /// Number of images and containers on the layer or on layers above it.
    pub viewers: u32,
    /// Bytes by path in the layer, and the number of viewers for which the file is hidden.
    pub files: BTreeMap<PathBuf, (u64, u32)>,
    /// Not all layers above it were read: more may be hidden.
    pub is_partial: bool,
}

/// Finds the files of a layer that layers above it hide. Layers that cannot be read until `deadline` are left out.
///
/// # Errors
/// If the layer itself cannot be read.
pub fn hidden_in_layer(scan: &Scan, node_ix: NodeIx, deadline: Instant) -> io::Result<HiddenInLayer> {
    let reader = LayerReader::new(scan);
    let LayerComparison { parents, viewers, order, .. } = LayerComparison::new(scan);
    let mut hidden = HiddenInLayer { viewers: viewers[node_ix.get()], ..HiddenInLayer::default() };
    let mut view = LayerView::default();
    view.enter(&reader.read(node_ix, HashSet::new())?.1, hidden.viewers);
    let mut depths: HashMap<NodeIx, usize> = HashMap::from_iter([(node_ix, view.depth())]);
    for upper in order.into_iter().skip_while(|other| *other != node_ix).skip(1) {
        // The layers above it follow it.
        let Some(depth) = parents[upper.get()].and_then(|parent| depths.get(&parent)).copied() else { break };
        if Instant::now() > deadline {
            hidden.is_partial = true;
            break;
        }
        while view.depth() > depth {
            view.leave();
        }
        let read = (!is_written(&scan.inventory[upper])).then(|| reader.read(upper, HashSet::new()));
        hidden.is_partial |= matches!(read, Some(Err(_)));
        let files = read.and_then(Result::ok).map_or_else(|| reader.empty(), |(_, files)| files);
        view.enter(&files, viewers[upper.get()]);
        depths.insert(upper, view.depth());
    }
    while view.depth() > 1 {
        view.leave();
    }
    hidden.is_partial |= view.is_exhausted();
    let by_path: HashMap<_, _> =
        view.hidden_for().map(|(file, viewers)| (file.path, (file.bytes, viewers))).collect();
    if !by_path.is_empty() {
        let (_, files) = reader.read(node_ix, by_path.keys().copied().collect())?;
        let paths = files
            .texts
            .into_iter()
            .map(|(path, text)| (PathBuf::from(OsString::from_vec(text)), by_path[&path]));
        hidden.files = paths.collect();
    }
    Ok(hidden)
}

fn find_image(scan: &Scan, reference: &str, store: Option<&Path>) -> Result<ImageIx, Error> {
    match lookup::look_up(scan, reference, store)? {
        Subject::Image(image_ix) => Ok(image_ix),
        _ => {
            Err(Error::usage(format!("{reference} is not an image"))
                .hint("name an image of `layersweep images`"))
        }
    }
}

fn is_stacked(node: &Node) -> bool {
    matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot) && node.layer.is_some()
}

/// Returns true if a container writes to the layer. Such a layer is not read: it only shows those below.
fn is_written(node: &Node) -> bool {
    node.layer.as_ref().is_some_and(|layer| layer.read_write)
}

#[derive(Clone, Copy, Debug)]
struct LayerFigures {
    source: LayerSource,
    bytes: u64,
    hides: Hidden,
    hidden: Hidden,
    equal_bytes: Option<u64>,
    chain: ChainFigures,
}

#[derive(Clone, Copy, Debug)]
struct ChainFigures {
    depth: usize,
    is_complete: bool,
    bytes: u64,
    hidden: Hidden,
    equal_bytes: Option<u64>,
}

struct LayerComparison<'a> {
    inventory: &'a Inventory,
    parents: Vec<Option<NodeIx>>,
    /// By node: number of images and containers on it or on layers above it.
    viewers: Vec<u32>,
    /// Layers with a viewer, each after its parent and followed by the layers above it.
    order: Vec<NodeIx>,
    figures: HashMap<NodeIx, LayerFigures>,
    problems: BTreeMap<(StoreIx, String), (NodeIx, usize)>,
    is_exhausted: bool,
}

impl<'a> LayerComparison<'a> {
    fn new(scan: &'a Scan) -> Self {
        let inventory = &scan.inventory;
        let nodes = inventory.nodes.len();
        let parents: Vec<_> = inventory.nodes.iter().map(|node| parent(inventory, node)).collect();
        let mut viewers = vec![0_u32; nodes];
        for top in tops(inventory) {
            viewers[top.get()] = 1;
        }
        let mut children: HashMap<Option<NodeIx>, Vec<NodeIx>> = HashMap::new();
        for position in (0..nodes).rev().filter(|position| is_stacked(&inventory.nodes[*position])) {
            children.entry(parents[position]).or_default().push(position.into());
        }
        // Layers in a cycle of parents are above no base: they are left out.
        let mut waiting = children.remove(&None).unwrap_or_default();
        let mut order = Vec::new();
        while let Some(node_ix) = waiting.pop() {
            order.push(node_ix);
            waiting.extend(children.remove(&Some(node_ix)).unwrap_or_default());
        }
        for node_ix in order.iter().rev() {
            if let Some(parent) = parents[node_ix.get()] {
                viewers[parent.get()] = viewers[parent.get()].saturating_add(viewers[node_ix.get()]);
            }
        }
        order.retain(|node_ix| viewers[node_ix.get()] > 0);
        let (figures, problems) = (HashMap::new(), BTreeMap::new());
        Self { inventory, parents, viewers, order, figures, problems, is_exhausted: false }
    }

    fn run(&mut self, reader: &LayerReader<'_>) {
        let order = std::mem::take(&mut self.order);
        let mut view = LayerView::default();
        let mut entered: Vec<NodeIx> = Vec::new();
        let mut contents = Contents::default();
        for batch in order.chunks(BATCH) {
            let read: Vec<_> = batch
                .par_iter()
                .map(|node_ix| {
                    let is_read = !is_written(&self.inventory[*node_ix]);
                    is_read.then(|| reader.read(*node_ix, HashSet::new()))
                })
                .collect();
            for (node_ix, read) in batch.iter().zip(read) {
                let below = self.parents[node_ix.get()]
                    .and_then(|parent| self.figures.get(&parent))
                    .map_or(ChainFigures::EMPTY, |figures| figures.chain);
                while view.depth() > below.depth {
                    self.leave(&mut view, &mut entered);
                }
                let (source, files) = read
                    .unwrap_or_else(|| Ok((LayerSource::TarSplit, reader.empty())))
                    .unwrap_or_else(|error| {
                        let problem = (self.inventory[*node_ix].store, error.to_string());
                        self.problems.entry(problem).or_insert((*node_ix, 0)).1 += 1;
                        (LayerSource::Unread, reader.empty())
                    });
                let is_whole = below.depth > 0 || recorded_parent(&self.inventory[*node_ix]).is_none();
                let hides = view.enter(&files, self.viewers[node_ix.get()]);
                entered.push(*node_ix);
                let equal_bytes = equal_bytes(&files, self.inventory[*node_ix].store, source, &mut contents);
                let bytes = files.files().map(|facts| facts.bytes).fold(0, u64::saturating_add);
                let chain = below.with(is_whole && source != LayerSource::Unread, bytes, hides, equal_bytes);
                let hidden = Hidden::default();
                let figures = LayerFigures { source, bytes, hides, hidden, equal_bytes, chain };
                self.figures.insert(*node_ix, figures);
            }
        }
        while view.depth() > 0 {
            self.leave(&mut view, &mut entered);
        }
        self.is_exhausted = view.is_exhausted();
        self.order = order;
    }

    fn leave(&mut self, view: &mut LayerView, entered: &mut Vec<NodeIx>) {
        let hidden = view.leave();
        if let Some(figures) = entered.pop().and_then(|node_ix| self.figures.get_mut(&node_ix)) {
            figures.hidden = hidden;
        }
    }

    fn chain(&self, image_ix: ImageIx) -> Vec<NodeIx> {
        let mut chain: Vec<_> =
            std::iter::successors(top(self.inventory, image_ix), |node_ix| self.parents[node_ix.get()])
                // A cycle has no figures.
                .take_while(|node_ix| self.figures.contains_key(node_ix))
                .collect();
        chain.reverse();
        chain
    }

    fn root(&self, store_ix: StoreIx) -> String {
        self.inventory[store_ix].root.to_string_lossy().into_owned()
    }

    fn image(&self, image_ix: ImageIx) -> ImageWaste {
        let image = &self.inventory[image_ix];
        let figures = top(self.inventory, image_ix).and_then(|top| self.figures.get(&top));
        let ChainFigures { is_complete, bytes, hidden, equal_bytes, .. } =
            figures.map_or(ChainFigures::EMPTY, |figures| figures.chain);
        ImageWaste {
            id: image.id.to_string(),
            names: image.names.clone(),
            store: self.root(image.store),
            complete: is_complete,
            bytes,
            hidden,
            equal_bytes,
        }
    }

    fn layer(&self, node_ix: NodeIx) -> LayerWaste {
        let node = &self.inventory[node_ix];
        let figures = &self.figures[&node_ix];
        LayerWaste {
            id: node.id.clone(),
            store: self.root(node.store),
            source: figures.source,
            bytes: figures.bytes,
            hides_bytes: figures.hides.bytes,
            hidden: figures.hidden,
            equal_bytes: figures.equal_bytes,
        }
    }

    fn stores(&self) -> Vec<StoreWaste> {
        let mut rows: BTreeMap<StoreIx, StoreWaste> = BTreeMap::new();
        for node_ix in &self.order {
            let node = &self.inventory[*node_ix];
            if is_written(node) {
                continue;
            }
            let row = rows.entry(node.store).or_insert_with(|| self.empty(node.store));
            let figures = &self.figures[node_ix];
            row.layers += 1;
            row.unread_layers += usize::from(figures.source == LayerSource::Unread);
            row.walked_layers += usize::from(figures.source == LayerSource::Directory);
            row.bytes = row.bytes.saturating_add(figures.bytes);
            row.hidden += figures.hidden;
            if let Some(bytes) = figures.equal_bytes {
                row.equal_bytes = Some(row.equal_bytes.unwrap_or(0).saturating_add(bytes));
            }
        }
        rows.into_values().collect()
    }

    fn empty(&self, store_ix: StoreIx) -> StoreWaste {
        let store = &self.inventory[store_ix];
        let filesystem = &self.inventory[store.filesystem];
        StoreWaste {
            root: self.root(store_ix),
            filesystem: filesystem.mount.to_string_lossy().into_owned(),
            capacity_bytes: filesystem.capacity_bytes,
            can_deduplicate: filesystem::of(&store.root).is_ok_and(|(_, cost)| cost.reflinks),
            layers: 0,
            unread_layers: 0,
            walked_layers: 0,
            bytes: 0,
            hidden: Hidden::default(),
            equal_bytes: None,
        }
    }

    fn findings(&self, stores: &[StoreWaste]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for ((_, problem), (node_ix, number)) in self.problems.iter().take(MOST_PROBLEMS) {
            let layers = count(*number, "layer was", "layers were");
            let message = format!("{layers} not read: {problem}; what they contain and hide is unknown");
            findings.push(Finding::incomplete(&self.inventory[*node_ix].path, message));
        }
        if let Some(more) = self.problems.len().checked_sub(MOST_PROBLEMS).filter(|more| *more > 0) {
            let ((store_ix, _), _) = self.problems.iter().next().expect("there are problems");
            let message = format!("{more} more problems with layers are not shown");
            findings.push(Finding::incomplete(&self.inventory[*store_ix].root, message));
        }
        for store in stores.iter().filter(|store| store.equal_bytes.is_some()) {
            if store.walked_layers > 0 {
                let layers = count(store.walked_layers, "layer has", "layers have");
                let message = format!("{layers} no tar-split: files that equal theirs are unknown");
                findings.push(Finding::incomplete(&store.root, message));
            }
        }
        if self.is_exhausted {
            let message = "the layers hide more names than layersweep follows: hidden bytes are lower bounds";
            findings.push(Finding::incomplete(&self.inventory.stores[0].root, message));
        }
        findings
    }
}

impl ChainFigures {
    const EMPTY: Self = Self {
        depth: 0,
        is_complete: true,
        bytes: 0,
        hidden: Hidden { files: 0, bytes: 0, deleted_bytes: 0, copied_bytes: 0 },
        equal_bytes: Some(0),
    };

    fn with(mut self, is_complete: bool, bytes: u64, hides: Hidden, equal_bytes: Option<u64>) -> Self {
        self.depth += 1;
        self.is_complete &= is_complete;
        self.bytes = self.bytes.saturating_add(bytes);
        self.hidden += hides;
        self.equal_bytes =
            self.equal_bytes.zip(equal_bytes).map(|(below, layer)| below.saturating_add(layer));
        self
    }
}

fn recorded_parent(node: &Node) -> Option<&str> {
    node.layer.as_ref()?.parent.as_deref()
}

fn parent(inventory: &Inventory, node: &Node) -> Option<NodeIx> {
    let recorded = recorded_parent(node)?;
    let mut needs = node.needs.iter().copied();
    needs.find(|need| is_stacked(&inventory[*need]) && inventory[*need].id == recorded)
}

fn top(inventory: &Inventory, image_ix: ImageIx) -> Option<NodeIx> {
    let image = &inventory[image_ix];
    let mut holds = image.holds.iter().copied().filter(|node_ix| is_stacked(&inventory[*node_ix]));
    let top = image.layers.first()?;
    holds.find(|node_ix| inventory[*node_ix].id == top.as_str())
}

/// Returns the layers that an image, a container or a user in another store is directly on.
fn tops(inventory: &Inventory) -> impl Iterator<Item = NodeIx> + '_ {
    let images = inventory.images.iter().map(|image| &image.holds);
    let containers = inventory.containers.iter().map(|container| &container.holds);
    let uses = inventory.uses.iter().map(|user| &user.holds);
    let holds = images.chain(containers).chain(uses).flatten().copied();
    holds.filter(|node_ix| is_stacked(&inventory[*node_ix]))
}

/// Digests of the contents that were read, with their seed: 64 bits each, since a node has millions of files.
#[derive(Default)]
struct Contents(HashSet<u64>, RandomState);

/// Returns the bytes of the files whose content was read before, and adds the others to `contents`.
fn equal_bytes(
    files: &LayerFiles,
    store: StoreIx,
    source: LayerSource,
    contents: &mut Contents,
) -> Option<u64> {
    let mut bytes = 0_u64;
    for facts in files.files().filter(|facts| facts.apparent_bytes > 0) {
        if let Some(checksum) = facts.checksum
            && !contents.0.insert(contents.1.hash_one((store, facts.apparent_bytes, checksum)))
        {
            bytes = bytes.saturating_add(facts.bytes);
        }
    }
    (source == LayerSource::TarSplit).then_some(bytes)
}

/// Returns for each layer of a chain its files that the top does not show, and the largest of these files.
fn hidden_of(
    reader: &LayerReader<'_>,
    comparison: &LayerComparison<'_>,
    chain: &[NodeIx],
    most: Option<usize>,
) -> (Vec<Hidden>, Option<HiddenFiles>) {
    let inventory = comparison.inventory;
    let mut view = LayerView::default();
    for node_ix in chain {
        let read = reader.read(*node_ix, HashSet::new());
        view.enter(&read.map_or_else(|_| reader.empty(), |(_, files)| files), 1);
    }
    let mut hidden = vec![Hidden::default(); chain.len()];
    view.hidden().for_each(|file| hidden[file.layer].add(file.bytes, file.how));
    let Some(most) = most else { return (hidden, None) };
    let mut largest: Vec<_> = view.hidden().collect();
    drop(view);
    largest.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let omitted = largest.len().saturating_sub(most.min(MOST_FILES));
    largest.truncate(most.min(MOST_FILES));
    let mut texts = HashMap::new();
    for (position, node_ix) in chain.iter().enumerate() {
        let wanted: HashSet<_> =
            largest.iter().filter(|file| file.layer == position).map(|file| file.path).collect();
        if !wanted.is_empty()
            && let Ok((_, files)) = reader.read(*node_ix, wanted)
        {
            texts.extend(files.texts.into_iter().map(|(path, text)| ((position, path), text)));
        }
    }
    let listed = largest.into_iter().map(|file| HiddenFileText {
        path: texts
            .remove(&(file.layer, file.path))
            .map_or_else(|| "unknown".to_owned(), |text| String::from_utf8_lossy(&text).into_owned()),
        bytes: file.bytes,
        how: file.how,
        layer: inventory[chain[file.layer]].id.clone(),
        hidden_by: inventory[chain[file.hidden_by]].id.clone(),
    });
    (hidden, Some(HiddenFiles { listed: listed.collect(), omitted }))
}
