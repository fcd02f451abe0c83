//! A replay as a single HTML page: the table, and with `--vary` a curve of what each value costs and what it buys.

use super::escape;
use super::still::{StillPage, section, table};
use crate::app::replay::ReplayRow;
use crate::report::json::ReplayDoc;
use crate::report::text;

const WIDTH: f64 = 860.0;
/// Space for the labels of the axes.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 30.0;
const HEIGHT: f64 = 150.0;
/// Space above a picture, for the label of its highest point.
const TOP: f64 = 22.0;

/// Builds the page of a replay, with its end of line.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn replay_page(document: &ReplayDoc) -> serde_json::Result<String> {
    let (headings, rows) = text::replay_rows(document);
    let headings: Vec<_> = headings.iter().map(String::as_str).collect();
    let notes = text::replay_notes(document).into_iter().map(|note| format!("<p>{}</p>\n", escape(&note)));
    let mut content = notes.collect::<String>();
    if let Some(setting) = &document.varied {
        content.push_str(&section(&format!("What {setting} costs, and what it buys"), &pictures(document)));
    }
    content.push_str(&section("All figures", &table(&headings, &rows)));
    let page = StillPage {
        title: &text::replay_title(document),
        generated_at: document.header.generated_at,
        command: "replay",
        content: &content,
    };
    page.build(document)
}

#[derive(Debug)]
struct Curve<'a> {
    name: &'a str,
    class: &'a str,
    values: Vec<f64>,
    /// Distance of the figures from the points: negative above them.
    label: f64,
}

fn pictures(document: &ReplayDoc) -> String {
    let figure = |of: fn(&ReplayRow) -> f64| document.rows.iter().map(of).collect::<Vec<_>>();
    let pulled = figure(|row| as_float(row.sums.figures.pulled_again_bytes));
    let most = pulled.iter().copied().fold(1.0, f64::max);
    let cost = [Curve { name: "pulled again", class: "mean", values: pulled, label: -8.0 }];
    let usage = [
        Curve {
            name: "peak",
            class: "mark",
            values: figure(|row| row.sums.figures.peak_percent),
            label: -8.0,
        },
        Curve {
            name: "mean",
            class: "mean",
            values: figure(|row| row.sums.figures.mean_percent),
            label: 18.0,
        },
    ];
    picture(document, "Bytes that were pulled again", most, &cost, shown_bytes)
        + &picture(document, "Disk usage in percent", 100.0, &usage, |percent| format!("{percent:.0} %"))
}

/// Draws curves through one point for each value, from left to right as they were named. `most`: upper end of the axis.
fn picture(
    document: &ReplayDoc,
    title: &str,
    most: f64,
    curves: &[Curve<'_>],
    shown: impl Fn(f64) -> String,
) -> String {
    let (bottom, right) = (TOP + HEIGHT, WIDTH - RIGHT);
    let gaps = as_float(document.rows.len().saturating_sub(1).max(1) as u64);
    let x = |position: usize| LEFT + 30.0 + (right - LEFT - 60.0) * as_float(position as u64) / gaps;
    let y = |value: f64| bottom - value / most * HEIGHT;
    let mut out = format!(
        "<figure><h3>{title}</h3>\n<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{title}\">\n",
        bottom + 26.0,
    );
    for part in [0.0, 0.5, 1.0] {
        let at = y(part * most);
        out.push_str(&format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"muted\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            LEFT - 8.0,
            at + 4.0,
            shown(part * most)
        ));
    }
    for (position, row) in document.rows.iter().enumerate() {
        let value = row.value.as_deref().unwrap_or_else(|| row.policy.as_str());
        out.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            x(position),
            bottom + 18.0,
            escape(value)
        ));
    }
    for curve in curves {
        let points = curve.values.iter().enumerate();
        let path = points.clone().map(|(position, value)| format!("{:.1},{:.1}", x(position), y(*value)));
        let path = path.collect::<Vec<_>>().join(" ");
        out.push_str(&format!("<polyline class=\"{}\" fill=\"none\" points=\"{path}\"/>\n", curve.class));
        for (position, value) in points {
            let (x, y) = (x(position), y(*value));
            out.push_str(&format!(
                "<circle class=\"fill-curve\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{name}: {value}</title></circle>\
                 <text class=\"on-line\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>\n",
                y + curve.label,
                name = curve.name,
                value = shown(*value)
            ));
        }
        let end = curve.values.last().map_or(bottom, |value| y(*value));
        if curves.len() > 1 {
            out.push_str(&format!(
                "<text class=\"muted\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                right - 18.0,
                end + 4.0,
                curve.name
            ));
        }
    }
    out + "</svg></figure>\n"
}

#[allow(clippy::cast_precision_loss)] // shown rounded
fn as_float(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a part of a number of bytes
fn shown_bytes(value: f64) -> String {
    text::bytes(value as u64)
}
