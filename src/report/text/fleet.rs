//! Text of `report --merge`: sums over many nodes.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::format::{age_of, bytes, names, percent, safe, short_id, wrapped};
use super::screen::Screen;
use super::table::{Table, heading};
use crate::model::documents::fleet::{FleetImage, FleetNode};
use crate::model::documents::urgency::Urgency;
use crate::model::text::display::{count, thousands};
use crate::report::json::FleetDoc;

/// Maximum number of rows of a table on a screen.
const ROWS: usize = 20;

#[derive(Debug)]
pub struct Section {
    pub title: &'static str,
    /// A heading that starts with `>` aligns its column to the right.
    pub headings: &'static [&'static str],
    pub rows: Vec<Vec<String>>,
    pub omitted: usize,
    /// Columns that a narrow screen does not show, and columns that may shrink.
    optional: &'static [usize],
    elastic: &'static [(usize, usize)],
}

pub fn fleet(document: &FleetDoc, screen: &Screen) -> String {
    let mut out = heading(&title(document, screen));
    for sentence in sentences(document) {
        out.push_str(&wrapped(&sentence, screen.width.unwrap_or(usize::MAX), ""));
    }
    for section in sections(document, ROWS) {
        let mut table = Table::new(screen, section.headings);
        section.rows.into_iter().for_each(|row| table.row(row));
        table.fit(section.optional, section.elastic);
        out.push_str(&format!("\n{}{}", heading(section.title), table.render()));
        if section.omitted > 0 {
            out.push_str(&screen.note(&omitted(section.omitted)));
        }
    }
    out
}

pub fn omitted(rows: usize) -> String {
    format!("… and {} more", thousands(rows as u64))
}

pub fn title(document: &FleetDoc, screen: &Screen) -> String {
    let nodes = &document.fleet.nodes;
    let time = match (nodes.oldest_at, nodes.newest_at) {
        (Some(oldest), Some(newest)) if oldest == newest => screen.minute(oldest),
        (Some(oldest), Some(newest)) => format!("{} to {}", screen.minute(oldest), screen.minute(newest)),
        _ => return "0 nodes".into(),
    };
    let zone = nodes.newest_at.map(|newest| screen.zone_name(newest)).unwrap_or_default();
    format!("{}, {time} {zone}", nodes_of(nodes.count))
}

fn nodes_of(number: u64) -> String {
    format!("{} {}", thousands(number), if number == 1 { "node" } else { "nodes" })
}

pub fn sentences(document: &FleetDoc) -> Vec<String> {
    let (nodes, totals) = (&document.fleet.nodes, &document.fleet.totals);
    let calm = if nodes.of_scan > 0 { "OK or without a known threshold" } else { OK };
    let urgencies = [
        (nodes.critical, "critical"),
        (nodes.warning, "warning"),
        (nodes.calm, calm),
        (nodes.unknown, "unknown"),
    ];
    let urgencies: Vec<_> = urgencies
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, name)| format!("{} {name}", thousands(*number)))
        .collect();
    let mut out = vec![
        format!("Nodes by urgency: {}.", urgencies.join(", ")),
        format!(
            "Disks: {} of {} used. Stores: {}, of which {} are reclaimable ({}; {}).",
            bytes(totals.used_bytes),
            bytes(totals.capacity_bytes),
            bytes(totals.store_bytes),
            bytes(totals.reclaimable_bytes),
            count(totals.images_unused, "unused image", "unused images"),
            count(totals.leaks, "leak", "leaks"),
        ),
    ];
    if totals.volume_bytes > 0 || totals.other_store_bytes > 0 {
        out.push(format!(
            "Beside them: {} in volumes, {} in stores of users and old ones.",
            bytes(totals.volume_bytes),
            bytes(totals.other_store_bytes)
        ));
    }
    if nodes.low_not_reached > 0 {
        out.push(format!(
            "{} of {} with known thresholds would stay above the low threshold without any of it.",
            thousands(nodes.low_not_reached),
            nodes_of(nodes.with_thresholds)
        ));
    }
    if nodes.of_scan > 0 {
        let verb = if nodes.of_scan == 1 { "is" } else { "are" };
        let documents = count(nodes.of_scan, "document", "documents");
        out.push(format!("{documents} {verb} of `scan`: no thresholds, no forecast."));
    }
    if nodes.forecast > 0 {
        let periods: Vec<_> = document
            .fleet
            .forecasts
            .iter()
            .map(|forecast| {
                format!(
                    "{} within {}",
                    thousands(forecast.nodes),
                    age_of(u64::try_from(forecast.within_seconds).ok())
                )
            })
            .collect();
        out.push(format!(
            "Full at their present growth: {} ({} with a forecast).",
            periods.join(", "),
            nodes_of(nodes.forecast)
        ));
    }
    if nodes.stale > 0 {
        out.push(stale(document));
    }
    if let Some(newest) = nodes.newest_at
        && document.header.generated_at.duration_since(newest).as_hours() >= 24
    {
        out.push(format!("The newest document is of {}: all figures are of that time.", date(newest)));
    }
    if nodes.future > 0 {
        let clock =
            if nodes.future == 1 { "the clock of its node is" } else { "the clocks of their nodes are" };
        let documents = count(nodes.future, "document is", "documents are");
        out.push(format!("{documents} dated in the future: {clock} wrong."));
    }
    if nodes.incomplete > 0 {
        let whose = if nodes.incomplete == 1 { "its" } else { "their" };
        out.push(format!(
            "{} could not be read completely: {whose} figures are lower bounds.",
            nodes_of(nodes.incomplete)
        ));
    }
    if document.documents_unread > 0 {
        let unread = count(document.documents_unread, "document", "documents");
        out.push(format!("{unread} could not be read: the sums are lower bounds."));
    }
    if document.documents_older > 0 {
        let older = count(document.documents_older, "older document", "older documents");
        let of = nodes_of(document.nodes_with_older);
        out.push(format!("{older} of {of} not counted: each node counts with its newest document."));
    }
    out
}

fn stale(document: &FleetDoc) -> String {
    /// Maximum number of named nodes.
    const NAMED: usize = 5;
    let fleet = &document.fleet;
    let named = fleet.stale.iter().take(NAMED);
    let mut names: Vec<_> =
        named.map(|node| format!("{}, {}", safe(&node.node), date(node.generated_at))).collect();
    let more = fleet.nodes.stale.saturating_sub(names.len() as u64);
    if more > 0 {
        names.push(format!("{} more", thousands(more)));
    }
    let verb = if fleet.nodes.stale == 1 { "is" } else { "are" };
    let documents = count(fleet.nodes.stale, "document", "documents");
    format!("{documents} {verb} more than a day old: {}.", names.join("; "))
}

fn date(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}

/// Word for nodes below every threshold.
const OK: &str = "OK";

fn urgency(node: &FleetNode) -> &'static str {
    match node.urgency {
        Urgency::Calm if node.headline.is_none() => "no threshold known",
        Urgency::Calm => OK,
        other => other.as_str(),
    }
}

/// Builds the tables, each with at most `rows` rows. Tables without rows are left out.
pub fn sections(document: &FleetDoc, rows: usize) -> Vec<Section> {
    let (fleet, now) = (&document.fleet, document.header.generated_at);
    let unused: Vec<_> = fleet.images.iter().filter(|image| image.nodes_unused > 0).collect();
    let sections = [
        Section {
            title: "Most urgent nodes",
            headings: &[
                "NODE",
                "URGENCY",
                "FILESYSTEM",
                ">USED",
                ">INODES",
                ">RECLAIMABLE",
                ">AFTER",
                ">FULL IN",
                "NOTE",
            ],
            rows: fleet.urgent.iter().take(rows).map(|node| node_row(node, now)).collect(),
            omitted: usize::try_from(fleet.nodes.count).unwrap_or(usize::MAX).saturating_sub(rows),
            optional: &[2, 4, 8],
            elastic: &[(0, 12), (2, 12), (8, 16)],
        },
        Section {
            title: "Unused images, by the bytes that deleting each on these nodes frees",
            headings: &["IMAGE", "ID", ">NODES", ">UNUSED ON", ">EXCLUSIVE", ">FREES"],
            rows: unused.iter().take(rows).map(|image| image_row(image)).collect(),
            omitted: unused.len().saturating_sub(rows),
            optional: &[1, 4],
            elastic: &[(0, 20)],
        },
        Section {
            title: "Leaks",
            headings: &["CLASS", ">NODES", ">LEAKS", ">BYTES", ">SWEEP FREES"],
            rows: fleet
                .leaks
                .iter()
                .take(rows)
                .map(|leak| {
                    vec![
                        safe(&leak.class),
                        thousands(leak.nodes),
                        thousands(leak.count),
                        bytes(leak.bytes),
                        bytes(leak.reclaim_bytes),
                    ]
                })
                .collect(),
            omitted: fleet.leaks.len().saturating_sub(rows),
            optional: &[],
            elastic: &[(0, 16)],
        },
    ];
    sections.into_iter().filter(|section| !section.rows.is_empty()).collect()
}

fn node_row(node: &FleetNode, now: Timestamp) -> Vec<String> {
    let mut notes = Vec::new();
    if node.reaches_low == Some(false) {
        notes.push(format!("stays above {:.0}%", node.low_percent.unwrap_or_default()));
    }
    if !node.complete {
        notes.push("incomplete".into());
    }
    let full_in = node.full_at.map(|full_at| full_at.duration_since(now).as_secs());
    let seconds = full_in.map(|seconds| u64::try_from(seconds).unwrap_or(0));
    vec![
        safe(&node.node),
        urgency(node).into(),
        node.filesystem.as_deref().map_or_else(|| "-".into(), safe),
        percent(node.used_percent),
        node.inodes_used_percent.map_or_else(|| "-".into(), |used| format!("{used:.0}%")),
        bytes(node.reclaimable_bytes),
        node.used_after_percent.map_or_else(|| "-".into(), |used| format!("{used:.2}%")),
        age_of(seconds),
        notes.join(", "),
    ]
}

fn image_row(image: &FleetImage) -> Vec<String> {
    vec![
        names(&image.names),
        short_id(&image.id),
        thousands(image.nodes),
        thousands(image.nodes_unused),
        bytes(image.unused_exclusive_bytes),
        bytes(image.unused_frees_bytes),
    ]
}
