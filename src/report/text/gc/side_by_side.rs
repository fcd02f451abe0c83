//! Comparison of the policies: their sums, then each run of the kubelet.

use crate::policy::PolicyKind;
use crate::policy::compare::{ComparedPolicy, Comparison, PredictedRun, Prediction};
use crate::report::json::{ComparisonDoc, GcDoc};
use crate::report::text::format::{bytes, name_or_id, percent, safe};
use crate::report::text::screen::Screen;
use crate::report::text::table::{Table, heading};

/// Formats a comparison, up to the heading of the run that the document contains.
pub(super) fn side_by_side(
    document: &GcDoc,
    ComparisonDoc { mount, policies }: &ComparisonDoc,
    screen: &Screen,
) -> String {
    let mut out = format!("{}: {} used", safe(mount), percent(Some(policies.usage_before_percent)));
    if let (Some(high), Some(low)) = (document.high_percent, document.low_percent) {
        out.push_str(&format!("; thresholds: high {high}%, low {low}%"));
    }
    out.push_str("\n\n");
    out.push_str(&totals(policies, screen));
    let kubelet = policies.of(ComparedPolicy::Kubelet).filter(|kubelet| !kubelet.runs.is_empty());
    if let Some(kubelet) = kubelet {
        out.push_str(&format!("\n{}", heading("The kubelet, run by run")));
        out.push_str(&runs(&kubelet.runs, screen));
        out.push_str(&then(document, kubelet));
    }
    if document.policy == Some(PolicyKind::Kubelet) {
        let title = "The first run by policy kubelet, as layersweep carries it out";
        out.push_str(&format!("\n{}", heading(title)));
        out.push_str(&kubelet.map_or_else(String::new, |kubelet| protected(document, kubelet)));
    } else {
        out.push_str(&format!("\n{}", heading("This run")));
    }
    out
}

type Value = fn(&Prediction) -> String;

fn totals(policies: &Comparison, screen: &Screen) -> String {
    let titles = policies.policies.iter().map(|each| format!(">{}", each.policy.as_str().to_uppercase()));
    let titles: Vec<_> = std::iter::once(String::new()).chain(titles).collect();
    let titles: Vec<_> = titles.iter().map(String::as_str).collect();
    let mut table = Table::new(screen, &titles);
    let rows: [(&str, Value); 9] = [
        ("runs", |prediction| prediction.runs.len().to_string()),
        ("images deleted", |prediction| prediction.deleted.to_string()),
        ("of these never pulled", |prediction| prediction.never_pulled.to_string()),
        ("believed to be freed", |prediction| bytes(prediction.believed_bytes)),
        ("actually freed", |prediction| bytes(prediction.freed_bytes)),
        ("usage afterwards", |prediction| percent(Some(prediction.usage_after_percent))),
        ("low threshold reached", |prediction| if prediction.reached { "yes".into() } else { "NO".into() }),
        ("expected pulls", |prediction| bytes(prediction.pulls.bytes)),
        ("no choice costs less than", |prediction| {
            prediction.pulls.at_least_bytes.map_or_else(|| "-".into(), bytes)
        }),
    ];
    for (label, value) in rows {
        let values = policies.policies.iter().map(value);
        table.row(std::iter::once(label.into()).chain(values).collect());
    }
    table.render()
}

fn runs(runs: &[PredictedRun], screen: &Screen) -> String {
    let mut table =
        Table::new(screen, &[">RUN", ">WANTED", ">IMAGES", ">BELIEVED", ">ACTUALLY FREED", ">USED AFTER"]);
    for (position, run) in runs.iter().enumerate() {
        table.row(vec![
            (position + 1).to_string(),
            bytes(run.wanted_bytes),
            run.deleted.len().to_string(),
            bytes(run.believed_bytes),
            bytes(run.freed_bytes),
            percent(Some(run.usage_after_percent)),
        ]);
    }
    let mut out = table.render();
    for (position, run) in runs.iter().enumerate().filter(|(_, run)| !run.still_there.is_empty()) {
        let (count, run) = (run.still_there.len(), position + 1);
        out.push_str(&format!("run {run}: {count} artifacts count as deleted but still exist\n"));
    }
    for (position, run) in runs.iter().enumerate() {
        let Some(failure) = &run.failure else { continue };
        let events = match run.events.as_slice() {
            [] => String::new(),
            events => format!(" ({})", events.join(", ")),
        };
        out.push_str(&format!("run {} fails: {}{events}\n", position + 1, safe(failure)));
    }
    out
}

/// Describes the runs after the last one that is shown.
fn then(document: &GcDoc, kubelet: &Prediction) -> String {
    let Some(last) = kubelet.runs.last() else { return String::new() };
    let used = percent(Some(kubelet.usage_after_percent));
    match (&last.failure, document.high_percent) {
        (None, _) if last.deleted.is_empty() && !last.still_there.is_empty() => {
            "Every run after it \"deletes\" the same artifacts again: the runtime removes an artifact by \
                its name\nonly, and the kubelet asks by id (docs/what-runtimes-get-wrong.md).\n"
                .into()
        }
        (Some(_), _) if last.deleted.is_empty() => "Every run after it fails in the same way.\n".into(),
        (None, Some(high)) if !kubelet.reached => format!(
            "Then it stops: {used} is below {high}%. It considers the work done, and\n\
             starts again as soon as the disk fills up.\n"
        ),
        _ => String::new(),
    }
}

/// Formats the images that the kubelet would delete and layersweep keeps, even with the kubelet's policy.
fn protected(document: &GcDoc, kubelet: &Prediction) -> String {
    let Some(run) = kubelet.runs.first() else { return String::new() };
    let kept: Vec<_> = run
        .deleted
        .iter()
        .filter(|id| document.deleted.iter().all(|deleted| deleted.id != **id))
        .filter_map(|id| document.kept.iter().find(|kept| kept.id == **id))
        .collect();
    let Some(first) = kept.first() else { return String::new() };
    format!(
        "keeps {} of the images above, protected by layersweep's own rules (the first is {}: {})\n",
        kept.len(),
        name_or_id(&first.names, &first.id),
        safe(&first.detail)
    )
}
