//! Text of `layers`: a line for each layer, or the forest that the layers form.

use std::collections::{HashMap, HashSet};

use unicode_width::UnicodeWidthStr;

use super::format::{bytes, safe, short_id};
use super::screen::Screen;
use super::table::Table;
use crate::model::NodeKind;
use crate::model::{Inventory, StoreIx};
use crate::report::json::LayerDoc;

#[derive(Clone, Debug, Default)]
pub struct Names {
    /// First name by id of the image or container.
    pub by_id: HashMap<String, String>,
    /// Names of the images and containers on top of a layer, by its store and id.
    pub on_top: HashMap<(String, String), Vec<String>>,
}

impl Names {
    pub fn of(inventory: &Inventory) -> Self {
        let mut names = Self::default();
        for image in &inventory.images {
            let name = image.names.first().cloned().unwrap_or_else(|| "<none>".into());
            for name in image.names.iter().chain(image.names.is_empty().then_some(&name)) {
                if let Some(top) = image.layers.first() {
                    let top = (root(inventory, image.store), top.to_string());
                    names.on_top.entry(top).or_default().push(name.clone());
                }
            }
            names.by_id.insert(image.id.to_string(), name);
        }
        for container in &inventory.containers {
            let name = format!("container {}", container.name);
            for node in &container.holds {
                let node = &inventory[*node];
                if node.layer.is_some() {
                    names
                        .on_top
                        .entry((root(inventory, node.store), node.id.clone()))
                        .or_default()
                        .push(name.clone());
                }
            }
            names.by_id.insert(container.id.to_string(), name);
        }
        names
    }
}

fn root(inventory: &Inventory, store: StoreIx) -> String {
    inventory[store].root.to_string_lossy().into_owned()
}

pub fn layers(layers: &[LayerDoc], names: &Names, screen: &Screen) -> String {
    let mut table = Table::new(screen, &["LAYER", "PARENT", "KIND", ">REFS", ">SIZE", ">INODES", "HELD BY"]);
    for layer in layers {
        table.row(vec![
            short_id(&layer.id),
            layer.parent.as_deref().map_or_else(|| "-".into(), short_id),
            if layer.read_write { "read-write".into() } else { layer.kind.to_string() },
            layer.refcount.to_string(),
            size(layer),
            layer.inodes.to_string(),
            holders(layer, names, screen),
        ]);
    }
    table.add_stores(layers.iter().map(|layer| layer.store.as_str()));
    table.render()
}

pub(super) fn size(layer: &LayerDoc) -> String {
    if layer.unmeasured { "unknown".into() } else { bytes(layer.bytes) }
}

fn holders(layer: &LayerDoc, names: &Names, screen: &Screen) -> String {
    let images = layer.images.iter().map(|id| id.as_str());
    let all: Vec<&str> = images.chain(layer.containers.iter().map(|id| id.as_str())).collect();
    let nothing = if layer.build_cache { "build cache" } else { "nothing" };
    screen.list(&all, nothing, |id| names.by_id.get(*id).map_or_else(|| short_id(id), |name| safe(name)))
}

/// Maximum indentation in columns; a deeper layer starts again at the left.
const WIDEST: usize = 300;

/// Formats the forest of layers: children below their parent, the largest first.
///
/// A damaged store can record a chain of a million parents, or a cycle. The walk therefore uses a stack on
/// the heap, limits the indentation, draws each layer only once, and lists the layers of cycles, which have
/// no base, at the end.
pub fn tree(layers: &[LayerDoc], names: &Names, screen: &Screen) -> String {
    // A layer id is unique only within its store.
    let known: HashSet<(&str, &str)> =
        layers.iter().map(|layer| (layer.store.as_str(), layer.id.as_str())).collect();
    let mut children: Children<'_> = HashMap::new();
    for layer in layers {
        let parent = layer.parent.as_deref().map(|parent| (layer.store.as_str(), parent));
        children.entry(parent.filter(|parent| known.contains(parent))).or_default().push(layer);
    }
    for siblings in children.values_mut() {
        siblings.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    }
    let mut out = String::new();
    let mut drawn = HashSet::new();
    let mut stack: Vec<(&LayerDoc, String, String)> = Vec::new();
    push_children(&mut stack, &children, None, "");
    while let Some((layer, line, mut below)) = stack.pop() {
        if !drawn.insert((layer.store.as_str(), layer.id.as_str())) {
            continue;
        }
        out.push_str(&fitting_line(&line, layer, names, screen));
        out.push('\n');
        if below.chars().count() > WIDEST {
            below = "… ".into();
        }
        push_children(&mut stack, &children, Some((layer.store.as_str(), layer.id.as_str())), &below);
    }
    for layer in layers.iter().filter(|layer| !drawn.contains(&(layer.store.as_str(), layer.id.as_str()))) {
        out.push_str(&format!("{} (its chain of parents is a cycle)\n", label(layer, names, screen)));
    }
    out
}

type Children<'a> = HashMap<Option<(&'a str, &'a str)>, Vec<&'a LayerDoc>>;

/// Pushes the children of a layer, or the bases, with the text before their lines and before the lines below.
fn push_children<'a>(
    stack: &mut Vec<(&'a LayerDoc, String, String)>,
    children: &Children<'a>,
    parent: Option<(&'a str, &'a str)>,
    indent: &str,
) {
    for (from_end, layer) in children.get(&parent).into_iter().flatten().rev().enumerate() {
        let (branch, below) = match (parent, from_end == 0) {
            (None, _) => ("", ""),
            (Some(_), true) => ("└─ ", "   "),
            (Some(_), false) => ("├─ ", "│  "),
        };
        stack.push((*layer, format!("{indent}{branch}"), format!("{indent}{below}")));
    }
}

/// Formats the line of a layer; on a terminal, its names are cut so that it fits.
fn fitting_line(line: &str, layer: &LayerDoc, names: &Names, screen: &Screen) -> String {
    /// Minimum width of the names.
    const NARROWEST: usize = 12;
    let label = label(layer, names, screen);
    match (screen.width.filter(|_| screen.truncates), label.rsplit_once("  ")) {
        (Some(width), Some((facts, tops))) => {
            let facts = format!("{line}{facts}  ");
            let room = width.saturating_sub(facts.width()).max(NARROWEST);
            facts + &screen.shorten(tops, room)
        }
        _ => format!("{line}{label}"),
    }
}

fn label(layer: &LayerDoc, names: &Names, screen: &Screen) -> String {
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
        [] if layer.kind == NodeKind::Blob => format!("  blob of {}", holders(layer, names, screen)),
        [] => String::new(),
        tops => format!("  {}", tops.join(", ")),
    };
    let elsewhere = layer.content_path.as_ref().map_or("", |_| "  in an additional layer store");
    format!("{}  {}  refs {}{kind}{elsewhere}{tops}", short_id(&layer.id), size(layer), layer.refcount)
}
