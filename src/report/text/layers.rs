//! One line a layer, or the forest that the layers form.

use std::collections::{HashMap, HashSet};

use super::format::{bytes, first_of, safe, short_id};
use super::screen::Screen;
use super::table::Table;
use crate::model::{Inventory, StoreIx};
use crate::report::json::LayerDoc;

/// What images and containers are called.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// By the id of the image or container.
    pub by_id: HashMap<String, String>,
    /// Those whose top layer a layer is, by its store and id.
    pub on_top: HashMap<(String, String), Vec<String>>,
}

impl Names {
    /// Of everything in an inventory.
    pub fn of(inventory: &Inventory) -> Self {
        let mut names = Self::default();
        let root = |store: StoreIx| inventory.stores[store.get()].root.to_string_lossy().into_owned();
        for image in &inventory.images {
            let name = image.names.first().cloned().unwrap_or_else(|| "<none>".into());
            for name in image.names.iter().chain(image.names.is_empty().then_some(&name)) {
                if let Some(top) = image.layers.first() {
                    let top = (root(image.store), top.to_string());
                    names.on_top.entry(top).or_default().push(name.clone());
                }
            }
            names.by_id.insert(image.id.to_string(), name);
        }
        for container in &inventory.containers {
            let name = format!("container {}", container.name);
            for node in &container.holds {
                let node = &inventory.nodes[node.get()];
                if node.layer.is_some() {
                    names.on_top.entry((root(node.store), node.id.clone())).or_default().push(name.clone());
                }
            }
            names.by_id.insert(container.id.to_string(), name);
        }
        names
    }
}

/// The table of layers.
pub fn layers(layers: &[LayerDoc], names: &Names, screen: &Screen) -> String {
    let mut table = Table::new(screen, &["LAYER", "PARENT", "KIND", ">REFS", ">SIZE", ">INODES", "HELD BY"]);
    for layer in layers {
        table.row(vec![
            short_id(&layer.id),
            layer.parent.as_deref().map_or_else(|| "-".into(), short_id),
            if layer.read_write { "read-write".into() } else { layer.kind.into() },
            layer.refcount.to_string(),
            bytes(layer.bytes),
            layer.inodes.to_string(),
            holders(layer, names),
        ]);
    }
    table.add_stores(layers.iter().map(|layer| layer.store.as_str()));
    table.render()
}

fn holders(layer: &LayerDoc, names: &Names) -> String {
    let images = layer.images.iter().map(|id| id.as_str());
    let all: Vec<&str> = images.chain(layer.containers.iter().map(|id| id.as_str())).collect();
    let name = |id: &str| names.by_id.get(id).map_or_else(|| short_id(id), |name| safe(name));
    let nothing = if layer.build_cache { "build cache" } else { "nobody" };
    first_of(&all, nothing, |id| name(id))
}

/// Columns of indentation after which the drawing starts again at the left.
const WIDEST: usize = 300;

/// The forest: a base layer a tree, its children below it, the largest first.
pub fn tree(layers: &[LayerDoc], names: &Names) -> String {
    // A layer's id is only unique within its store.
    let known: HashSet<(&str, &str)> =
        layers.iter().map(|layer| (layer.store.as_str(), layer.id.as_str())).collect();
    let mut children: HashMap<Option<(&str, &str)>, Vec<&LayerDoc>> = HashMap::new();
    for layer in layers {
        let parent = layer.parent.as_deref().map(|parent| (layer.store.as_str(), parent));
        children.entry(parent.filter(|parent| known.contains(parent))).or_default().push(layer);
    }
    for siblings in children.values_mut() {
        siblings.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    }
    let mut out = String::new();
    let mut drawn = HashSet::new();
    // A stack of our own: chains may be longer than the program's.
    let mut stack: Vec<(&LayerDoc, String, String)> = Vec::new();
    let push = |stack: &mut Vec<_>, parent, indent: &str, top: bool| {
        let Some(siblings): Option<&Vec<&LayerDoc>> = children.get(&parent) else { return };
        for (from_end, layer) in siblings.iter().rev().enumerate() {
            let (branch, below) = match (top, from_end == 0) {
                (true, _) => ("", ""),
                (false, true) => ("└─ ", "   "),
                (false, false) => ("├─ ", "│  "),
            };
            stack.push((*layer, format!("{indent}{branch}"), format!("{indent}{below}")));
        }
    };
    push(&mut stack, None, "", true);
    while let Some((layer, line, mut below)) = stack.pop() {
        if !drawn.insert((layer.store.as_str(), layer.id.as_str())) {
            continue;
        }
        out.push_str(&format!("{line}{}\n", label(layer, names)));
        if below.chars().count() > WIDEST {
            // A chain without end would fill the memory with its indentation.
            below = "… ".into();
        }
        push(&mut stack, Some((layer.store.as_str(), layer.id.as_str())), &below, false);
    }
    // Chains that bite their own tail have no base.
    for layer in layers.iter().filter(|layer| !drawn.contains(&(layer.store.as_str(), layer.id.as_str()))) {
        out.push_str(&format!("{} (its chain of parents is a cycle)\n", label(layer, names)));
    }
    out
}

fn label(layer: &LayerDoc, names: &Names) -> String {
    let kind = if layer.read_write { "  read-write" } else { "" };
    let tops: Vec<_> = names
        .on_top
        .get(&(layer.store.clone(), layer.id.clone()))
        .into_iter()
        .flatten()
        .map(|name| safe(name))
        .collect();
    let tops = match tops.as_slice() {
        [] if layer.refcount == 0 && layer.build_cache => "  build cache".into(),
        [] if layer.refcount == 0 => "  nothing uses it".into(),
        [] if layer.kind == "blob" => format!("  blob of {}", holders(layer, names)),
        [] => String::new(),
        tops => format!("  {}", tops.join(", ")),
    };
    format!("{}  {}  refs {}{kind}{tops}", short_id(&layer.id), bytes(layer.bytes), layer.refcount)
}
