use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;

use super::*;
use crate::model::documents::trace::{TraceEvent, TraceHeader};

/// Line of a trace: the first, or one of the others.
#[derive(schemars::JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code)]
enum TraceLine {
    Header(TraceHeader),
    Event(TraceEvent),
}

/// Fails if `docs/schema/` differs from the types. To write the files: `LAYERSWEEP_WRITE_SCHEMAS=1 cargo test
/// schemas`.
#[test]
fn committed_schemas_match_the_types() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema");
    let mut stale = Vec::new();
    for (name, schema) in [
        ("scan", schema::<ScanDoc>()),
        ("images", schema::<ImagesDoc>()),
        ("layers", schema::<LayersDoc>()),
        ("usage", schema::<UsageDoc>()),
        ("usage-growth", schema::<GrowthDoc>()),
        ("explain", schema::<ExplainDoc>()),
        ("fits", schema::<FitsDoc>()),
        ("gc", schema::<GcDoc>()),
        ("history", schema::<HistoryDoc>()),
        ("history-repull", schema::<RepullDoc>()),
        ("history-scans", schema::<HistoryScansDoc>()),
        ("diff", schema::<DiffDoc>()),
        ("history-usage", schema::<HistoryUsageDoc>()),
        ("config", schema::<ConfigDoc>()),
        ("pins", schema::<PinsDoc>()),
        ("replay", schema::<ReplayDoc>()),
        ("trace", schema::<TraceLine>()),
        ("report", schema::<ReportDoc>()),
        ("report-merge", schema::<FleetDoc>()),
        ("sweep", schema::<SweepDoc>()),
        ("waste", schema::<WasteDoc>()),
        ("doctor", schema::<DoctorDoc>()),
        ("doctor-suggest", schema::<DoctorSuggestDoc>()),
    ] {
        let path = directory.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("LAYERSWEEP_WRITE_SCHEMAS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        if std::fs::read_to_string(&path).ok() != Some(text) {
            stale.push(path);
        }
    }
    assert!(stale.is_empty(), "stale: {stale:?}");
}

fn schema<T: schemars::JsonSchema>() -> schemars::Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with_transform(RecursiveTransform(remove_time_format));
    settings.into_generator().into_root_schema_for::<T>()
}

/// Removes the format of times, which version 1 of the schemas does not contain.
fn remove_time_format(schema: &mut schemars::Schema) {
    if schema.get("format").is_some_and(|format| format == "date-time") {
        schema.remove("format");
    }
}
