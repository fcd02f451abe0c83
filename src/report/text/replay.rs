//! Text of `replay`: a row for each policy or value.

use super::format::{age_of, bytes, percent};
use super::screen::Screen;
use super::table::Table;
use crate::model::text::display::{count, thousands};
use crate::report::json::ReplayDoc;

pub fn replay(document: &ReplayDoc, screen: &Screen) -> String {
    let Some(first) = document.rows.first() else { return String::new() };
    let whole = first.sums.seconds;
    let mut out = match document.traces {
        1 => format!("The past {}", age_of(Some(whole))),
        traces => {
            let each = age_of(Some(whole / traces.max(1)));
            format!("{} traces of {each} on average", thousands(traces))
        }
    };
    out.push_str(", with one run of gc each ");
    out.push_str(&age_of(u64::try_from(document.period_seconds).ok()));
    if document.generated > 0 {
        out.push_str(&format!("; {} generated, of no real node", thousands(document.generated)));
    }
    out.push_str("\n\n");
    let column = document.varied.as_ref().map_or_else(|| "POLICY".to_owned(), |name| name.to_uppercase());
    let headings =
        [&column, ">DELETED", ">PULLED AGAIN", ">BYTES AGAIN", ">WAITED", ">PEAK", ">MEAN", ">ABOVE HIGH"];
    let mut table = Table::new(screen, &headings);
    for row in &document.rows {
        let sums = &row.sums;
        table.row(vec![
            row.value.clone().unwrap_or_else(|| row.policy.to_string()),
            thousands(sums.deletions),
            thousands(sums.pulled_again),
            bytes(sums.pulled_again_bytes),
            thousands(sums.waited),
            percent(Some(sums.peak_percent)),
            percent(Some(sums.mean_percent)),
            row.high_percent.map_or_else(|| "-".to_owned(), |_| above(sums.above_high_seconds, sums.seconds)),
        ]);
    }
    out.push_str(&table.render());
    out.push_str(&notes(document));
    out
}

#[allow(clippy::cast_precision_loss)] // shown with two decimals
fn above(part: u64, whole: u64) -> String {
    percent(Some(part as f64 * 100.0 / whole.max(1) as f64))
}

fn notes(document: &ReplayDoc) -> String {
    let mut out = String::new();
    if document.traces > 1
        && let Some(first) = document.rows.first()
    {
        let again = first.sums.pulled_again_bytes_by_node;
        out.push_str(&format!(
            "\nBytes pulled again by node, first row: half of the nodes at most {}, 90 % at most {}, one {}\n",
            bytes(again.p50),
            bytes(again.p90),
            bytes(again.max)
        ));
    }
    let lost: u64 = document.rows.iter().map(|row| row.sums.lost).max().unwrap_or(0);
    if lost > 0 {
        let images = count(usize::try_from(lost).unwrap_or(usize::MAX), "image", "images");
        out.push_str(&format!(
            "\n{images} that never came from a registry would have been missing: perhaps no pull brings them back\n"
        ));
    }
    if document.images_without_layers > 0 {
        out.push_str(&format!(
            "\nThe layers of {} images are unknown, since they are gone: only what they held alone is counted\n",
            thousands(document.images_without_layers)
        ));
    }
    if document.traces_unread > 0 {
        out.push_str(&format!("\n{} traces could not be read\n", thousands(document.traces_unread)));
    }
    out
}
