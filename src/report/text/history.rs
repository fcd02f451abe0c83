//! Text of `history`: the runs, and the usage of the filesystems over time.

use jiff::Timestamp;

use super::chart::{Chart, Sample, window};
use super::format::{DIFFERS, bytes, freed, measured, name_or_id, safe, signed_bytes};
use super::screen::Screen;
use super::story::events;
use super::table::{Table, bold};
use crate::history::runs::{Command, DeletionOutcome, Quiet};
use crate::history::usage::{Point, Span};
use crate::model::OutcomeKind;
use crate::model::deletion::outcome::UsageChange;
use crate::model::rules::Rule;
use crate::model::text::display::count;
use crate::report::json::{
    DeletionDoc, HistoryDoc, HistoryScansDoc, HistoryUsageDoc, KeptScanDoc, PointDoc, RunDoc, SeriesDoc,
};

/// Formats the runs, the newest first, each with its deletions; with an image, what happened to it. Each line has the
/// date and the id of the run, so that `grep` finds whole facts.
pub fn history(document: &HistoryDoc, screen: &Screen) -> String {
    if !document.images.is_empty() {
        return events(&document.images, screen);
    }
    let table = deletions(&document.runs, screen);
    let rendered = table.render();
    let mut lines = rendered.lines();
    let headings = lines.next().unwrap_or_default();
    let mut out = String::new();
    let mut has_headings = false;
    for run in &document.runs {
        out.push_str(&run_lines(run, screen));
        if !run.deleted.is_empty() && !has_headings {
            out.push_str(&format!("{headings}\n"));
            has_headings = true;
        }
        for (deletion, line) in run.deleted.iter().zip(lines.by_ref()) {
            out.push_str(&format!("{line}\n"));
            let object = name_or_id(&deletion.names, &deletion.id);
            if let Some(error) = &deletion.error {
                let outcome = deletion.outcome.map_or("", DeletionOutcome::as_str);
                let fact = format!("{outcome}: {object}: {}", safe(error));
                out.push_str(&fact_line(deletion.deleted_at.unwrap_or(run.started_at), &fact, run, screen));
            } else if deletion.confirmed {
                let fact = format!("{object}: deleted, as found by a later scan");
                out.push_str(&fact_line(deletion.deleted_at.unwrap_or(run.started_at), &fact, run, screen));
            }
        }
    }
    if document.runs.iter().flat_map(|run| &run.deleted).any(|deletion| deletion.differs) {
        out.push_str(&screen.note(DIFFERS.trim_end()));
    }
    if document.more {
        out.push_str(&screen.note("There are older runs: `--limit 0` shows all."));
    }
    match (document.runs.is_empty(), &document.origin.database) {
        (true, None) if !document.origin.complete => out.push_str("The records cannot be read.\n"),
        (true, None) => out.push_str("Nothing has been recorded yet.\n"),
        (true, Some(_)) => out.push_str("Nothing was deleted and nothing failed.\n"),
        (false, _) => {}
    }
    let are_listed = document
        .runs
        .iter()
        .any(|run| run.command == Command::Scan && run.outcome != Some(OutcomeKind::Failed));
    if screen.notes {
        out.push_str(&quiet(&document.quiet, are_listed, screen));
    }
    let has_times = !document.runs.is_empty() || document.quiet.last_at.is_some();
    out + &if has_times { screen.zone_line(document.header.generated_at) } else { String::new() }
}

/// Returns one table with the deletions of all runs, so that their columns are aligned. A narrow terminal shows the
/// last digits of the ids of runs.
fn deletions(runs: &[RunDoc], screen: &Screen) -> Table {
    const HEADINGS: [&str; 9] =
        ["  TIME", "KIND", "OBJECT", "REASON", ">PREDICTED", ">MEASURED", ">USED", "RUN", ""];
    let deletions = runs.iter().flat_map(|run| &run.deleted);
    let mut stores: Vec<_> = deletions.map(|deletion| deletion.store.as_str()).collect();
    stores.retain(|store| !store.is_empty());
    stores.sort_unstable();
    stores.dedup();
    let several = stores.len() > 1;
    let table = |run_id: fn(&str) -> &str| {
        let headings = HEADINGS[..8].iter().copied().chain(several.then_some("STORE")).chain([HEADINGS[8]]);
        let mut table = Table::new(screen, &headings.collect::<Vec<_>>());
        for run in runs {
            let rows = run.deleted.iter().map(|deletion| {
                let mut cells = deletion_cells(deletion, run_id(&run.run_id), screen);
                let mark = cells.pop();
                cells.extend(several.then(|| safe(&deletion.store)));
                cells.extend(mark);
                cells
            });
            rows.for_each(|row| table.row(row));
        }
        table
    };
    let whole = table(|run_id| run_id);
    if whole.fits() {
        return whole;
    }
    let mut short = table(|run_id| run_id.rsplit('-').next().unwrap_or(run_id));
    short.fit(&[6, 3], &[(2, 16)]);
    short
}

fn fact_line(time: Timestamp, fact: &str, run: &RunDoc, screen: &Screen) -> String {
    format!("  {}  {fact}; run {}\n", screen.time(time), safe(&run.run_id))
}

/// Formats the line about a run, and a line for each event and failure.
fn run_lines(run: &RunDoc, screen: &Screen) -> String {
    let via = run.via.as_deref().map_or_else(String::new, |via| format!(" ({})", safe(via)));
    let command = format!("{}{via}:", run.command);
    let mut facts = Vec::new();
    let outcome = run.outcome_text.clone();
    facts.push(match (run.runs, run.ended_at) {
        (1, Some(ended)) if run.outcome == Some(OutcomeKind::Refused) => {
            format!("{outcome}, after {}", length(run.started_at, ended))
        }
        (1, Some(ended)) => format!("{outcome} in {}", length(run.started_at, ended)),
        (1, None) => outcome,
        (many, ended) => {
            format!(
                "{many} runs until {}, {outcome}",
                ended.map_or_else(|| "?".into(), |ended| screen.time_on(ended, run.started_at))
            )
        }
    });
    facts.extend(match (run.trigger.space, run.trigger.age) {
        (true, true) => Some("space and age".to_owned()),
        (true, false) => Some("space was short".to_owned()),
        (false, true) => Some("by age".to_owned()),
        (false, false) => None,
    });
    let notable = UsageChange::notable(&run.filesystems).into_iter();
    let mut used: Vec<_> = notable.filter_map(|change| percents(change, screen)).collect();
    if let Some(last) = used.last_mut() {
        last.push_str(" used");
    }
    facts.extend(used);
    let sums: Vec<_> = [
        ("wanted", run.wanted_bytes.map(bytes)),
        ("predicted", run.predicted_bytes.map(bytes)),
        ("freed", run.measured_bytes.map(|bytes| freed(bytes, run.disturbed))),
        ("other leaks freed", Some(run.byproduct_bytes).filter(|bytes| *bytes > 0).map(bytes)),
    ]
    .into_iter()
    .filter_map(|(kind, sum)| Some(format!("{kind} {}", sum?)))
    .collect();
    let mut out = format!("{} ", bold(&screen.time(run.started_at)));
    let indent = " ".repeat(20);
    let mut column = indent.len();
    let id = (run.runs == 1).then(|| format!("run {}", safe(&run.run_id)));
    let parts = std::iter::once(command).chain(commas(facts)).chain(commas(sums)).chain(id);
    for part in parts {
        let width = unicode_width::UnicodeWidthStr::width(part.as_str()) + 1;
        if column + width > screen.width.unwrap_or(usize::MAX) && column > indent.len() {
            out.push_str(&format!("\n{indent}"));
            column = indent.len();
        }
        out.push_str(&format!("{part} "));
        column += width;
    }
    out = lines_without_trailing_blanks(&out);
    if run.unsaved {
        let fact = "not in the database yet: the next run that can write saves it";
        out.push_str(&fact_line(run.started_at, fact, run, screen));
    }
    for event in &run.events {
        let fact = format!("{}: {}", safe(&event.reason), safe(&event.message));
        out.push_str(&fact_line(run.started_at, &fact, run, screen));
    }
    for error in &run.errors {
        let object = match error.id.as_str() {
            "" => String::new(),
            id => format!("{}: ", name_or_id(&error.names, id)),
        };
        let (step, message) = (safe(&error.step), safe(&error.message));
        let fact = match error.rule {
            Some(Rule::InUse) => format!("kept: {object}in use, {message}"),
            Some(_) => format!("kept: {object}{message}"),
            None => format!("failed: {object}{step}: {message}"),
        };
        out.push_str(&fact_line(run.started_at, &fact, run, screen));
    }
    out
}

/// Formats a filesystem before and after a run: `/var 80.5% → 79.0%`.
fn percents(change: &UsageChange, screen: &Screen) -> Option<String> {
    let arrow = if screen.unicode { "→" } else { "->" };
    let percents = match (change.usage_before_percent, change.usage_after_percent) {
        (Some(before), Some(after)) => format!("{before:.1}% {arrow} {after:.1}%"),
        (Some(only), None) | (None, Some(only)) => format!("{only:.1}%"),
        (None, None) => return None,
    };
    Some(format!("{} {percents}", safe(&change.mount)))
}

/// Adds a comma to all parts but the last, which gets a semicolon.
fn commas(parts: Vec<String>) -> impl Iterator<Item = String> {
    let last = parts.len().saturating_sub(1);
    parts.into_iter().enumerate().map(move |(position, part)| part + if position < last { "," } else { ";" })
}

fn lines_without_trailing_blanks(text: &str) -> String {
    let text = text.trim_end().trim_end_matches([';', ':']);
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n"
}

fn deletion_cells(deletion: &DeletionDoc, run_id: &str, screen: &Screen) -> Vec<String> {
    vec![
        format!("  {}", deletion.deleted_at.map_or_else(String::new, |time| screen.time(time))),
        deletion.kind.to_string(),
        name_or_id(&deletion.names, &deletion.id),
        deletion.reason.to_string(),
        bytes(deletion.predicted_bytes),
        measured(deletion.measured_bytes, deletion.disturbed),
        deletion.usage_after_percent.map_or_else(|| "-".into(), |percent| format!("{percent:.1}%")),
        safe(run_id),
        if deletion.differs { "!".into() } else { String::new() },
    ]
}

fn quiet(quiet: &Quiet, are_listed: bool, screen: &Screen) -> String {
    let mut kinds = Vec::new();
    if quiet.scans > 0 {
        let incomplete = match quiet.incomplete_scans {
            0 => String::new(),
            some => format!(" ({some} incomplete)"),
        };
        kinds.push(format!("{}{incomplete}", count(quiet.scans, "scan", "scans")));
    }
    if quiet.other_runs > 0 {
        kinds.push(format!("{} with nothing to do", count(quiet.other_runs, "run", "runs")));
    }
    let (Some(first), Some(last)) = (quiet.first_at, quiet.last_at) else { return String::new() };
    let hint = if are_listed { "" } else { " (--all lists them)" };
    let (begin, end) = (screen.time(first), screen.time_on(last, first));
    format!("{}, {begin} to {end}{hint}\n", kinds.join(" and "))
}

fn length(from: Timestamp, to: Timestamp) -> String {
    let took = to.duration_since(from);
    match took.as_secs().max(0) {
        0..60 => format!("{:.1} s", took.as_secs_f64().max(0.0)),
        secs @ 60..3600 => format!("{}m{:02}s", secs / 60, secs % 60),
        secs => format!("{}h{:02}m", secs / 3600, secs / 60 % 60),
    }
}

/// Formats the usage over time: charts on a terminal, otherwise tables.
pub fn history_usage(document: &HistoryUsageDoc, screen: &Screen) -> String {
    let mut out = String::new();
    for series in &document.filesystems {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!(
            "{} {} ({} on {})\n",
            bold("Filesystem"),
            safe(&series.filesystem.mount),
            safe(&series.filesystem.fstype),
            safe(&series.filesystem.device),
        ));
        if series.points.is_empty() {
            out.push_str(&format!(
                "No readings in this time; the last was {}.\n",
                screen.time(series.filesystem.last_seen)
            ));
        } else if screen.width.is_some() {
            out.push_str(&chart(series, document, screen));
        } else {
            out.push_str(&points(series, screen));
        }
    }
    if !document.filesystems.is_empty() {
        out.push_str(&screen.zone_line(document.header.generated_at));
    }
    if !document.origin.complete {
        out.push_str("The records cannot be read.\n");
    } else if document.filesystems.is_empty() {
        out.push_str("Nothing has been recorded yet.\n");
    }
    out
}

/// Formats the scans that can be compared, the newest first.
pub fn history_scans(document: &HistoryScansDoc, screen: &Screen) -> String {
    if document.scans.is_empty() {
        return match (document.origin.complete, document.origin.since) {
            (false, _) => "The records cannot be read.\n".into(),
            (true, None) => "No scan is kept yet: `layersweep scan` keeps one.\n".into(),
            (true, Some(_)) => "No scan of this time is kept.\n".into(),
        };
    }
    let mut table = Table::new(screen, &["TIME", "SCAN", "OR", ">STORES", ""]);
    for KeptScanDoc { name, scan } in &document.scans {
        let note = if scan.complete { "" } else { "incomplete" };
        table.row(vec![
            screen.time(scan.at),
            safe(&scan.run_id),
            name.clone(),
            bytes(scan.bytes),
            note.into(),
        ]);
    }
    let compare = match document.scans.as_slice() {
        [first, second, ..] => format!(
            "`layersweep diff {} {}` compares two of them; without names, the last two.",
            safe(&second.scan.run_id),
            safe(&first.scan.run_id)
        ),
        _ => String::new(),
    };
    let compare = if compare.is_empty() { compare } else { screen.note(&compare) };
    table.render() + &compare + &screen.zone_line(document.header.generated_at)
}

fn chart(series: &SeriesDoc, document: &HistoryUsageDoc, screen: &Screen) -> String {
    let samples: Vec<_> = series
        .points
        .iter()
        .map(|point| Sample {
            from: point.reading.time,
            to: end(point),
            low: point.used_percent.min,
            high: point.used_percent.max,
        })
        .collect();
    let (first, to) = window(&samples, document.header.generated_at);
    let from = document.origin.since.map_or(first, |since| since.min(to));
    let runs: Vec<_> = document
        .runs
        .iter()
        .filter(|run| run.is_on(&series.filesystem.mount))
        .filter(|run| (from..=to).contains(&run.started_at))
        .collect();
    let marks: Vec<_> = runs.iter().map(|run| run.started_at).collect();
    let mut out = Chart { from, to, samples: &samples, marks: &marks }.draw(screen);
    out.push_str(&summary(&series.points, screen));
    if !runs.is_empty() {
        let freed = runs.iter().filter_map(|run| run.measured_on(&series.filesystem.mount));
        let freed = freed.fold(0_i64, i64::saturating_add);
        let mark = if screen.unicode { "▴" } else { "^" };
        let runs = count(runs.len(), "run", "runs");
        out.push_str(&format!("{mark} {runs} that deleted something, {} measured\n", signed_bytes(freed)));
    }
    out
}

fn summary(points: &[PointDoc], screen: &Screen) -> String {
    let Some(last) = points.last() else { return String::new() };
    let lowest = points.iter().min_by(|a, b| a.used_percent.min.total_cmp(&b.used_percent.min));
    // The last one of equal points, which is the most recent.
    let highest = points.iter().max_by(|a, b| a.used_percent.max.total_cmp(&b.used_percent.max));
    let (lowest, highest) = (lowest.unwrap_or(last), highest.unwrap_or(last));
    let inodes =
        inodes_percent(last).map_or_else(String::new, |percent| format!("inodes {percent:>4}% used\n"));
    format!(
        "{}  {} available of {}\n{}\n{}\n{inodes}",
        summary_line("last", last.used_percent.avg, last, screen),
        bytes(last.reading.available.avg),
        bytes(last.reading.capacity_bytes),
        summary_line("lowest", lowest.used_percent.min, lowest, screen),
        summary_line("highest", highest.used_percent.max, highest, screen),
    )
}

fn summary_line(label: &str, percent: f64, point: &PointDoc, screen: &Screen) -> String {
    let when = match point.reading.span {
        Span::Day => screen.date(point.reading.time),
        Span::Single => screen.minute(point.reading.time),
    };
    format!("{label:8}{percent:>5.1}%  {when}")
}

fn end(point: &PointDoc) -> Timestamp {
    let Point { time, span, .. } = point.reading;
    time.saturating_add(jiff::SignedDuration::from_secs(span.seconds())).unwrap_or(time)
}

fn inodes_percent(point: &PointDoc) -> Option<u64> {
    let Point { inodes, inodes_free, .. } = point.reading;
    inodes.saturating_sub(inodes_free.min).saturating_mul(100).checked_div(inodes)
}

/// Formats a row for each reading. Readings of the last week are single; of older ones, the mean of a day is shown with
/// its lowest and highest reading.
fn points(series: &SeriesDoc, screen: &Screen) -> String {
    let has_spans = series.points.iter().any(|point| point.reading.span == Span::Day);
    let spans: &[&str] = if has_spans { &[">SPAN"] } else { &[] };
    let extremes: &[&str] = if has_spans { &[">LOWEST%", ">HIGHEST%"] } else { &[] };
    let figures = [">USED", ">AVAILABLE", ">CAPACITY", ">INODES%"];
    let mut table = Table::new(screen, &[&["TIME"], spans, &[">USED%"], extremes, &figures].concat());
    for point in &series.points {
        let span = match point.reading.span {
            Span::Day => "day",
            Span::Single => "-",
        };
        let mut row = vec![screen.time(point.reading.time)];
        row.extend(has_spans.then(|| span.into()));
        row.push(format!("{:.2}", point.used_percent.avg));
        if has_spans {
            row.extend(
                [point.used_percent.min, point.used_percent.max].map(|percent| format!("{percent:.2}")),
            );
        }
        row.extend([
            bytes(point.reading.used.avg),
            bytes(point.reading.available.avg),
            bytes(point.reading.capacity_bytes),
            inodes_percent(point).map_or_else(|| "-".into(), |percent| percent.to_string()),
        ]);
        table.row(row);
    }
    table.render()
}

#[cfg(test)]
mod tests;
