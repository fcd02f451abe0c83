//! Text of `replay`: a row for each policy or value.

use super::format::{age_of, bytes, percent};
use super::screen::Screen;
use super::table::Table;
use crate::app::replay::NEEDED_DAYS;
use crate::model::text::display::{count, thousands};
use crate::report::json::ReplayDoc;

/// Columns after the first.
const FIGURES: [&str; 7] =
    [">DELETED", ">PULLED AGAIN", ">BYTES AGAIN", ">WAITED", ">PEAK", ">MEAN", ">ABOVE HIGH"];

pub fn replay(document: &ReplayDoc, screen: &Screen) -> String {
    let (headings, rows) = rows(document);
    let headings: Vec<_> = headings.iter().map(String::as_str).collect();
    let mut table = Table::new(screen, &headings);
    rows.into_iter().for_each(|row| table.row(row));
    let notes = notes(document).into_iter().map(|note| format!("\n{note}\n"));
    format!("{}\n\n{}{}", title(document), table.render(), notes.collect::<String>())
}

pub fn title(document: &ReplayDoc) -> String {
    let whole = document.rows.first().map_or(0, |first| first.sums.figures.seconds);
    let mut out = match document.traces {
        1 => format!("The past {}", age_of(Some(whole))),
        traces => {
            let each = age_of(Some(whole / traces.max(1)));
            format!("{} traces, one for each filesystem, of {each} on average", thousands(traces))
        }
    };
    out.push_str(", with one run of gc each ");
    out.push_str(&age_of(u64::try_from(document.period_seconds).ok()));
    if document.generated > 0 {
        out.push_str(&format!("; {} generated, of no real node", thousands(document.generated)));
    }
    out
}

/// Returns the headings, and a row for each policy or value. A heading that starts with `>` aligns its column to the
/// right.
pub fn rows(document: &ReplayDoc) -> (Vec<String>, Vec<Vec<String>>) {
    let first = document.varied.as_ref().map_or_else(|| "POLICY".to_owned(), |name| name.to_uppercase());
    let headings = std::iter::once(first).chain(FIGURES.map(str::to_owned)).collect();
    let rows = document.rows.iter().map(|row| {
        let sums = &row.sums;
        vec![
            row.value.clone().unwrap_or_else(|| row.policy.to_string()),
            thousands(sums.deletions),
            thousands(sums.figures.pulled_again),
            bytes(sums.figures.pulled_again_bytes),
            thousands(sums.figures.waited),
            percent(Some(sums.figures.peak_percent)),
            percent(Some(sums.figures.mean_percent)),
            row.high_percent.map_or_else(
                || "-".to_owned(),
                |_| above(sums.figures.above_high_seconds, sums.figures.seconds),
            ),
        ]
    });
    (headings, rows.collect())
}

#[allow(clippy::cast_precision_loss)] // shown with two decimals
fn above(part: u64, whole: u64) -> String {
    percent(Some(part as f64 * 100.0 / whole.max(1) as f64))
}

pub fn notes(document: &ReplayDoc) -> Vec<String> {
    let mut out = Vec::new();
    let whole = document.rows.first().map_or(0, |first| first.sums.figures.seconds);
    if document.traces > 0 && whole / document.traces < u64::try_from(NEEDED_DAYS * 86_400).unwrap_or(0) {
        out.push(format!(
            "Judge no age by this: in a past shorter than {NEEDED_DAYS} days every age looks safe"
        ));
    }
    if document.traces > 1
        && let Some(first) = document.rows.first()
    {
        let again = first.sums.pulled_again_bytes_by_trace;
        out.push(format!(
            "Bytes pulled again by filesystem, first row: half of them at most {}, 90 % at most {}, one {}",
            bytes(again.p50),
            bytes(again.p90),
            bytes(again.max)
        ));
    }
    let lost: u64 = document.rows.iter().map(|row| row.sums.figures.lost).max().unwrap_or(0);
    if lost > 0 {
        let images = count(usize::try_from(lost).unwrap_or(usize::MAX), "image", "images");
        out.push(format!(
            "{images} that never came from a registry would have been missing: perhaps no pull brings them back"
        ));
    }
    if document.images_without_layers > 0 {
        out.push(format!(
            "The layers of {} images are unknown, since they are gone: only what they held alone is counted",
            thousands(document.images_without_layers)
        ));
    }
    if document.traces_unread > 0 {
        out.push(format!("{} traces could not be read", thousands(document.traces_unread)));
    }
    out
}
