//! Text of `report`: a disk on one terminal screen.

mod bar;
pub(super) mod deletions;

use std::path::Path;

use super::format::{bytes, safe, short_id, wrapped};
use super::screen::Screen;
use super::table::heading;
use super::usage::{forecast_line, saved};
use crate::policy::thresholds::Counted;
use crate::report::json::{ReportDoc, ReportFilesystemDoc, SeriesDoc, TopObjectDoc};
use bar::{bar, legend, sparkline};
use deletions::Deletions;

/// Width if the output is not a terminal.
const WIDTH: usize = 80;
/// Maximum number of rows in the legend of a filesystem.
const ROWS: usize = 7;
/// Number of largest objects shown of each kind.
const TOP: usize = 2;
/// Minimum percentage of used inodes that is mentioned.
const SCARCE: u64 = 50;
/// Maximum number of lines about files that could not be read.
const SKIPPED: usize = 3;

pub fn report(document: &ReportDoc, screen: &Screen) -> String {
    let width = screen.width.unwrap_or(WIDTH).max(40);
    let mut out = heading(&title(document, screen));
    for sentence in &document.verdict.sentences {
        out.push_str(&wrapped(&safe(sentence), width, ""));
    }
    for filesystem in &document.filesystems {
        out.push('\n');
        out.push_str(&disk(document, filesystem, screen, width));
    }
    out.push_str(&changes(document, screen, width));
    out.push_str(&causes(document, screen, width));
    out.push_str(&largest(document, screen, width));
    out + &skipped(document, width)
}

fn title(document: &ReportDoc, screen: &Screen) -> String {
    let host = document.host.as_deref().map_or_else(|| "this node".into(), safe);
    let disk = document
        .sysroot
        .as_deref()
        .map_or_else(String::new, |path| format!(", its disk mounted on {}", safe(path)));
    let now = document.header.generated_at;
    format!("{host}{disk}, {} {}", screen.minute(now), screen.zone_name(now))
}

/// Formats a filesystem as a bar with its legend, and its usage over time.
fn disk(document: &ReportDoc, disk: &ReportFilesystemDoc, screen: &Screen, width: usize) -> String {
    let facts = &disk.filesystem;
    let percent = match facts.used_percent {
        Some(percent) => format!("{percent:.1}%"),
        None => "?".into(),
    };
    let head = format!(
        "{} ({} on {}): {percent} of {}, {} used, {} available{}",
        safe(&facts.mount),
        safe(&facts.fstype),
        safe(&facts.device),
        bytes(facts.capacity_bytes),
        bytes(facts.used_bytes),
        bytes(facts.available_bytes),
        inodes(disk),
    );
    let mut out = heading(wrapped(&head, width, "").trim_end());
    out.push_str(&bar(disk, screen, width, ROWS));
    out.push_str(&legend(disk, screen, width, ROWS));
    if let Some(text) = saved(disk.saved_bytes) {
        out.push_str(&wrapped(&format!("  {text}"), width, "  "));
    }
    if let Some(forecast) = &disk.forecast {
        out.push_str(&wrapped(forecast_line(forecast).trim_end(), width, "  "));
    }
    for waste in document.waste.iter().filter(|waste| waste.filesystem == facts.mount) {
        let equal = bytes(waste.equal_bytes.unwrap_or(0));
        let text = format!(
            "Images in {}: {} of files that no image and no container shows, {equal} of further copies of equal files \
             (`layersweep waste`).",
            safe(&waste.root),
            bytes(waste.hidden.bytes),
        );
        out.push_str(&wrapped(&text, width, "  "));
    }
    if let Some(series) = series_of(document, disk) {
        out.push_str(&sparkline(series, &document.runs, facts.used_percent, screen, width));
    }
    out
}

/// Formats the share of used inodes with the thresholds for inodes, unless few are used.
fn inodes(disk: &ReportFilesystemDoc) -> String {
    let facts = &disk.filesystem;
    let used = facts.inodes.saturating_sub(facts.inodes_free);
    let Some(percent) = used.saturating_mul(100).checked_div(facts.inodes) else { return String::new() };
    if percent < SCARCE {
        return String::new();
    }
    let acting =
        disk.thresholds.iter().filter(|threshold| threshold.of == Counted::Inodes && threshold.acts());
    let names: Vec<_> =
        acting.map(|threshold| format!("{} at {:.0}%", threshold.name.short(), threshold.percent)).collect();
    let thresholds = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    format!("; {percent}% of {} inodes used{thresholds}", facts.inodes)
}

/// Returns the recorded usage of a filesystem, the latest if several series match.
///
/// A disk that is mounted elsewhere has another device than in its own records, and its mount point begins with the
/// sysroot. The size has to match too, and a series with another mount point is used only if no other has this size.
fn series_of<'a>(document: &'a ReportDoc, disk: &ReportFilesystemDoc) -> Option<&'a SeriesDoc> {
    let facts = &disk.filesystem;
    let Some(sysroot) = &document.sysroot else {
        let same = document.usage.iter().filter(|series| series.filesystem.mount == facts.mount);
        return same.max_by_key(|series| series.points.last().map(|point| point.reading.time));
    };
    let of_size: Vec<_> = document
        .usage
        .iter()
        .filter(|series| {
            series.points.last().is_some_and(|point| point.reading.capacity_bytes == facts.capacity_bytes)
        })
        .collect();
    let mount = Path::new("/").join(Path::new(&facts.mount).strip_prefix(sysroot).unwrap_or(Path::new("")));
    let same = of_size
        .iter()
        .filter(|series| Path::new(&series.filesystem.mount) == mount)
        .max_by_key(|series| series.points.last().map(|point| point.reading.time));
    same.or(of_size.first().filter(|_| of_size.len() == 1)).copied()
}

fn changes(document: &ReportDoc, screen: &Screen, width: usize) -> String {
    let several = document.filesystems.len() > 1;
    let mut out = String::new();
    for changes in &document.changes {
        let place = if several { format!(" on {}", safe(&changes.filesystem)) } else { String::new() };
        let since = screen.minute(changes.since);
        let text = format!("Since {since} (scan {}){place}: {}", changes.scan, safe(&changes.clause()));
        out.push_str(&wrapped(&text, width, ""));
    }
    if out.is_empty() {
        out = match document.sysroot {
            Some(_) => wrapped("The disk contains no kept scan: what grew is unknown.", width, ""),
            None => wrapped(
                "No earlier scan is kept, so what grew is unknown; `layersweep scan` keeps one.",
                width,
                "",
            ),
        };
    }
    format!("\n{}{out}", heading("What happened"))
}

fn causes(document: &ReportDoc, screen: &Screen, width: usize) -> String {
    let several = document.filesystems.len() > 1;
    let (mut out, mut rest) = (String::new(), String::new());
    let mut mounts: Vec<&str> = Vec::new();
    for cause in &document.verdict.causes {
        if mounts.last() != Some(&cause.filesystem.as_str()) {
            mounts.push(&cause.filesystem);
        }
    }
    for mount in mounts {
        let Some(disk) = document.filesystems.iter().find(|disk| disk.filesystem.mount == mount) else {
            continue;
        };
        let causes = document.verdict.causes.iter().filter(|cause| cause.filesystem == mount);
        let list = Deletions { causes: causes.collect(), scarce: disk.scarce, low: disk.low() };
        let place = if several { format!(" on {}", safe(mount)) } else { String::new() };
        let when = if document.sysroot.is_some() { ", once the node runs" } else { "" };
        out.push_str(&list.list(&format!("What to delete{place}{when}"), screen, width));
        rest.push_str(&list.rest(&format!("What else holds it{place}"), screen, width));
    }
    out + &rest
}

fn largest(document: &ReportDoc, screen: &Screen, width: usize) -> String {
    let (scan, top) = (&document.scan, &document.top);
    let images = top.images.iter().filter_map(|TopObjectDoc { store, id }| {
        let image = scan.images.iter().find(|image| image.id == *id && image.store == *store)?;
        let name = image.names.first().map_or_else(|| short_id(id), |name| safe(name));
        Some(sized(screen.shorten(&name, 40), image.exclusive_bytes))
    });
    let layers = top.layers.iter().filter_map(|TopObjectDoc { store, id }| {
        let layer = scan.layers.iter().find(|layer| layer.id == *id && layer.store == *store)?;
        let held = match layer.refcount {
            0 if layer.build_cache => ", in the build cache".to_owned(),
            0 => ", used by nothing".to_owned(),
            1 => String::new(),
            many => format!(", held by {many}"),
        };
        Some(sized(short_id(id), layer.bytes) + &held)
    });
    let containers = top.containers.iter().filter_map(|TopObjectDoc { store, id }| {
        let mut containers = scan.containers.iter();
        let container = containers.find(|container| container.id == *id && container.store == *store)?;
        Some(sized(screen.shorten(&safe(&container.name), 40), container.bytes))
    });
    let leaks = top.leaks.iter().filter_map(|TopObjectDoc { store, id }| {
        let leak = scan.leaks.iter().find(|leak| leak.id == *id && leak.store == *store)?;
        Some(sized(format!("{} {}", leak.class, short_id(id)), leak.bytes))
    });
    let rows: [(&str, Vec<String>); 4] = [
        ("images", images.take(TOP).collect()),
        ("layers", layers.take(TOP).collect()),
        ("containers", containers.take(TOP).collect()),
        ("leaks", leaks.take(TOP).collect()),
    ];
    if rows.iter().all(|(_, names)| names.is_empty()) {
        return String::new();
    }
    let mut out = format!("\n{}", heading("Largest (images by exclusive bytes)"));
    for (kind, names) in rows.iter().filter(|(_, names)| !names.is_empty()) {
        let text = wrapped(&names.join("; "), width, "            ");
        out.push_str(&format!("{kind:<10}  {}", text.trim_start()));
    }
    out
}

fn sized(name: String, size: u64) -> String {
    format!("{name} {}", bytes(size))
}

fn skipped(document: &ReportDoc, width: usize) -> String {
    let measured = &document.measured;
    let lists = [("Not read (figures are lower bounds)", &measured.skipped), ("Notes", &measured.warnings)];
    let mut out = String::new();
    for (title, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        out.push_str(&format!("\n{}", heading(title)));
        for finding in list.iter().take(SKIPPED) {
            out.push_str(&wrapped(
                &safe(&format!("{}: {}", finding.path.display(), finding.message)),
                width,
                "  ",
            ));
        }
        let more = list.len().saturating_sub(SKIPPED);
        if more > 0 {
            out.push_str(&format!("  and {more} more\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
