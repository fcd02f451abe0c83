//! Text of `report`: a disk on one terminal screen.

mod bar;

use unicode_width::UnicodeWidthStr;

use super::format::{bytes, safe, short_id, wrapped};
use super::screen::Screen;
use super::table::heading;
use super::usage::forecast_line;
use crate::app::diagnosis::Cause;
use crate::policy::thresholds::Counted;
use crate::report::json::{ReportDoc, ReportFilesystemDoc, UsageSeriesDoc};
use bar::{bar, legend, sparkline};

/// Width if the output is not a terminal.
const WIDTH: usize = 80;
/// Maximum number of causes shown; the JSON document contains all.
const CAUSES: usize = 6;
/// Number of causes that are shown with a remedy.
const REMEDIES: usize = 3;
/// Maximum number of rows in the legend of a filesystem.
const ROWS: usize = 7;
/// Number of largest objects shown of each kind.
const TOP: usize = 2;
/// Minimum percentage of used inodes that is mentioned.
const SCARCE: u64 = 50;
/// Maximum number of lines about files that could not be read.
const SKIPPED: usize = 3;

/// Formats the whole report.
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
    out.push_str(&causes(&document.verdict.causes, screen, width));
    out.push_str(&largest(document, screen, width));
    out + &skipped(document, width)
}

fn title(document: &ReportDoc, screen: &Screen) -> String {
    let host = document.host.as_deref().map_or_else(|| "this node".into(), safe);
    let disk = document.sysroot.as_deref();
    let disk = disk.map_or_else(String::new, |path| format!(", its disk mounted on {}", safe(path)));
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
    if let Some(forecast) = &disk.forecast {
        out.push_str(&wrapped(forecast_line(forecast).trim_end(), width, "  "));
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
    let acting = disk.marks.iter().filter(|threshold| threshold.of == Counted::Inodes && threshold.acts());
    let names: Vec<_> =
        acting.map(|threshold| format!("{} at {:.0}%", threshold.name.short(), threshold.percent)).collect();
    let thresholds = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    format!("; {percent}% of {} inodes used{thresholds}", facts.inodes)
}

/// Returns the recorded usage of a filesystem, the latest if several series match.
///
/// A disk that is mounted elsewhere has another mount point and device than in its own records, so it is
/// recognised by its size.
fn series_of<'a>(document: &'a ReportDoc, disk: &ReportFilesystemDoc) -> Option<&'a UsageSeriesDoc> {
    let facts = &disk.filesystem;
    let candidates = document.usage.iter().filter(|series| match document.sysroot {
        None => series.filesystem == facts.mount,
        Some(_) => series.points.last().is_some_and(|point| point.capacity_bytes == facts.capacity_bytes),
    });
    candidates.max_by_key(|series| series.points.last().map(|point| point.time))
}

/// Indentation below the sizes of causes.
const INDENT: &str = "            ";

fn causes(causes: &[Cause], screen: &Screen, width: usize) -> String {
    if causes.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}", heading("What fills it"));
    for (position, cause) in causes.iter().take(CAUSES).enumerate() {
        let size = format!("{:>10}  ", bytes(cause.bytes));
        let room = width.saturating_sub(size.len());
        let text = match screen.width {
            Some(_) => in_a_line(cause, screen, room),
            // Whole names, for searching in a file.
            None => match cause.path.as_deref().filter(|path| !cause.text.contains(*path)) {
                Some(path) => format!("{}, {}", safe(&cause.text), safe(path)),
                None => safe(&cause.text),
            },
        };
        out.push_str(&format!("{size}{}", wrapped(&text, width, INDENT).trim_start()));
        if position < REMEDIES && !cause.remedy.is_empty() {
            let arrow = if screen.unicode { "→" } else { "->" };
            // A command is never shortened, so that it can be copied.
            let remedy = format!("{arrow} {}", safe(&cause.remedy));
            out.push_str(&wrapped(&remedy, width, INDENT));
        }
    }
    let more = causes.len().saturating_sub(CAUSES);
    if more > 0 {
        out.push_str(&format!("{:12}and {more} more: --format json has them all\n", ""));
    }
    out
}

/// Formats a cause in one line: the whole text, or its title and as much of its path as fits.
fn in_a_line(cause: &Cause, screen: &Screen, room: usize) -> String {
    const LEAST: usize = 16;
    let text = safe(&cause.text);
    if text.width() <= room {
        return text;
    }
    let title = screen.shorten(&safe(&cause.title), room);
    let left = room.saturating_sub(title.width() + 2);
    match cause.path.as_deref().filter(|path| left >= LEAST && !cause.title.contains(*path)) {
        Some(path) => format!("{title}  {}", screen.shorten(&safe(path), left)),
        None => title,
    }
}

/// Formats the largest objects, a line for each kind.
fn largest(document: &ReportDoc, screen: &Screen, width: usize) -> String {
    let (scan, top) = (&document.scan, &document.top);
    let images = top.images.iter().filter_map(|id| {
        let image = scan.images.iter().find(|image| image.id == *id)?;
        let name = image.names.first().map_or_else(|| short_id(id), |name| safe(name));
        Some(sized(screen.shorten(&name, 40), image.exclusive_bytes))
    });
    let layers = top.layers.iter().filter_map(|id| {
        let layer = scan.layers.iter().find(|layer| layer.id == *id)?;
        let held = match layer.refcount {
            0 if layer.build_cache => ", in the build cache".to_owned(),
            0 => ", used by nothing".to_owned(),
            1 => String::new(),
            many => format!(", held by {many}"),
        };
        Some(sized(short_id(id), layer.bytes) + &held)
    });
    let containers = top.containers.iter().filter_map(|id| {
        let container = scan.containers.iter().find(|container| container.id == *id)?;
        Some(sized(screen.shorten(&safe(&container.name), 40), container.bytes))
    });
    let leaks = top.leaks.iter().filter_map(|id| {
        let leak = scan.leaks.iter().find(|leak| leak.id == *id)?;
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

/// Formats the files that could not be read, and the notes.
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
