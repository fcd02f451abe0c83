//! `layersweep layers`

use super::args::{Format, LayersArgs};
use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::scan;
use crate::model::{NodeIx, StoreIx};
use crate::report::json::{self, LayerDoc, LayersDoc};
use crate::report::text::{self, Names};
use crate::stores::Survey;

pub(super) fn run(global: &Global, own: &LayersArgs) -> Result<Exit, Error> {
    let surveyed = scan::scan(&global.request, global)?;
    let survey = &surveyed.survey;
    let document = LayersDoc {
        schema_version: json::SCHEMA_VERSION,
        kind: "layers",
        generated_at: survey.taken_at,
        complete: survey.is_complete(),
        layers: largest_first(survey),
        warnings: json::warnings(survey),
    };
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => {
            if global.quiet {
                output::ids(document.layers.iter().map(|layer| layer.id.as_str()))?;
            } else if own.tree {
                output::text(&text::tree(&document.layers, &names(survey)))?;
            } else {
                output::text(&text::layers(&document.layers, &names(survey)))?;
            }
        }
    }
    Ok(surveyed.exit())
}

fn largest_first(survey: &Survey) -> Vec<LayerDoc> {
    let nodes = (0..survey.inventory.nodes.len()).map(NodeIx::from);
    let mut layers: Vec<_> = nodes.filter_map(|at| json::layer(survey, at)).collect();
    layers.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    layers
}

fn names(survey: &Survey) -> Names {
    let mut names = Names::default();
    let root = |store: StoreIx| survey.inventory.stores[store.get()].root.to_string_lossy().into_owned();
    for image in &survey.inventory.images {
        let name = image.names.first().cloned().unwrap_or_else(|| "<none>".into());
        for name in image.names.iter().chain(image.names.is_empty().then_some(&name)) {
            if let Some(top) = image.layers.first() {
                let top = (root(image.store), top.to_string());
                names.on_top.entry(top).or_default().push(name.clone());
            }
        }
        names.by_id.insert(image.id.to_string(), name);
    }
    for container in &survey.inventory.containers {
        let name = format!("container {}", container.name);
        for node in &container.holds {
            let node = &survey.inventory.nodes[node.get()];
            if node.layer.is_some() {
                names.on_top.entry((root(node.store), node.id.clone())).or_default().push(name.clone());
            }
        }
        names.by_id.insert(container.id.to_string(), name);
    }
    names
}
