//! A filesystem as one stacked bar, and its past as a line of small ones. Pure.

use anstyle::{AnsiColor, Style};

use crate::model::display::count;
use crate::policy::thresholds::{Counted, Source};
use crate::report::json::{ReportFilesystemDoc, RunDoc, UsageSeriesDoc};
use crate::report::text::format::{bytes, safe, wrapped};
use crate::report::text::screen::Screen;

/// One for each row of the legend, so that the bar can be read without colours, too.
const BLOCKS: [char; 8] = ['█', '░', '▚', '▓', '▙', '▒', '▞', '▟'];
/// What has no row of its own.
const SMALL: char = '▏';
const COLORS: [AnsiColor; 6] = [
    AnsiColor::Blue,
    AnsiColor::Yellow,
    AnsiColor::Cyan,
    AnsiColor::Magenta,
    AnsiColor::Green,
    AnsiColor::Red,
];

/// The parts that have a row of their own, the large ones, by their place in the bar; and the rest.
fn rows(disk: &ReportFilesystemDoc, rows: usize) -> (Vec<usize>, Vec<usize>) {
    let mut by_size: Vec<usize> = (0..disk.parts.len()).collect();
    by_size.sort_by_key(|number| (std::cmp::Reverse(disk.parts[*number].bytes), *number));
    let shown = if disk.parts.len() > rows { rows - 1 } else { rows };
    let small = by_size.split_off(by_size.len().min(shown));
    by_size.sort_unstable();
    (by_size, small)
}

/// What a part is drawn with: its character and colour, by its row in the legend.
fn look(row: Option<usize>, screen: &Screen) -> (char, Style) {
    let Some(number) = row else { return (if screen.unicode { SMALL } else { '+' }, Style::new()) };
    let character = match screen.unicode {
        true => BLOCKS[number % BLOCKS.len()],
        false => char::from(b'a' + u8::try_from(number % 26).unwrap_or(0)),
    };
    let color = COLORS[number % COLORS.len()];
    (character, Style::new().fg_color(Some(color.into())))
}

/// The stacked bar of the whole filesystem: its parts, reserved for root, free;
/// below it where its thresholds are.
pub(super) fn bar(disk: &ReportFilesystemDoc, screen: &Screen, width: usize, legend: usize) -> String {
    let (large, _) = rows(disk, legend);
    let capacity = disk.filesystem.capacity_bytes;
    let used = disk.filesystem.used_bytes;
    let columns = width.saturating_sub(4).max(10);
    let mut out = String::from("  ");
    let mut at = 0;
    let mut before = 0_u64;
    for (number, part) in disk.parts.iter().enumerate() {
        before = before.saturating_add(part.bytes);
        let end = column(before, capacity, columns).max(at);
        let (character, style) = look(large.iter().position(|one| *one == number), screen);
        if end > at {
            let run: String = std::iter::repeat_n(character, end - at).collect();
            out.push_str(&format!("{style}{run}{style:#}"));
        }
        at = end;
    }
    let reserved = column(used.saturating_add(disk.filesystem.reserved_bytes), capacity, columns).max(at);
    let free = if screen.unicode { '·' } else { '.' };
    out.extend(std::iter::repeat_n(hold(screen), reserved - at));
    out.extend(std::iter::repeat_n(free, columns - reserved.min(columns)));
    out.push('\n');
    out + &thresholds(disk, screen, columns, width)
}

/// Space reserved for root is drawn with this.
fn hold(screen: &Screen) -> char {
    if screen.unicode { '╌' } else { '-' }
}

/// Where the thresholds are, and what they are.
fn thresholds(disk: &ReportFilesystemDoc, screen: &Screen, columns: usize, width: usize) -> String {
    // The bar is made of bytes; inode thresholds are listed with the inode figures, above it.
    let shown: Vec<_> =
        disk.marks.iter().filter(|threshold| threshold.of == Counted::Bytes && threshold.acts()).collect();
    if shown.is_empty() {
        return String::new();
    }
    let mut line = vec![' '; columns];
    let sign = if screen.unicode { '▴' } else { '^' };
    let mut percents: Vec<(f64, Vec<String>)> = Vec::new();
    for threshold in shown {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // columns of a terminal
        let place = (threshold.percent.clamp(0.0, 100.0) * columns as f64 / 100.0) as usize;
        line[place.min(columns - 1)] = sign;
        let whose = if threshold.source == Source::Kubelet { "kubelet's " } else { "" };
        let name = format!("{whose}{}", threshold.name.short());
        match percents.last_mut().filter(|(percent, _)| (*percent - threshold.percent).abs() < 0.5) {
            Some((_, names)) => names.push(name),
            None => percents.push((threshold.percent, vec![name])),
        }
    }
    let line: String = line.into_iter().collect();
    let names: Vec<_> =
        percents.into_iter().map(|(percent, names)| format!("{percent:.0}% {}", names.join(", "))).collect();
    format!("  {}\n{}", line.trim_end(), wrapped(&format!("{sign} {}", names.join("; ")), width, "  "))
}

/// The parts of a filesystem in the order of the bar, the small ones in one row.
pub(super) fn legend(disk: &ReportFilesystemDoc, screen: &Screen, width: usize, legend: usize) -> String {
    let used = disk.filesystem.used_bytes;
    let (large, small) = rows(disk, legend);
    let mut out = format!("    {:>10} of used\n", "");
    for (row, part) in large.iter().map(|number| &disk.parts[*number]).enumerate() {
        let (character, style) = look(Some(row), screen);
        let label = match (&part.path, part.store.is_some()) {
            (Some(path), false) if *path != part.label => format!("{} ({path})", part.label),
            _ => part.label.clone(),
        };
        let facts = format!("{:>10} {:>3}%  ", bytes(part.bytes), percent(part.bytes, used));
        let room = width.saturating_sub(facts.len() + 4);
        let label = screen.shorten(&safe(&label), room);
        out.push_str(&format!("  {style}{character}{style:#} {facts}{label}\n"));
    }
    if !small.is_empty() {
        let sum: u64 = small.iter().map(|number| disk.parts[*number].bytes).sum();
        let facts = format!("{:>10} {:>3}%  ", bytes(sum), percent(sum, used));
        out.push_str(&format!("  {} {facts}in {} smaller parts\n", look(None, screen).0, small.len()));
    }
    if disk.filesystem.reserved_bytes > 0 {
        let facts = format!("{:>10} {:>4}  ", bytes(disk.filesystem.reserved_bytes), "");
        out.push_str(&format!("  {} {facts}reserved for root, or not available\n", hold(screen)));
    }
    out
}

/// How full it was: a column each stretch of time, with the highest of its points; the runs that
/// deleted something are marked below.
/// `now`: percent used at this moment, where it is known.
pub(super) fn sparkline(
    series: &UsageSeriesDoc,
    runs: &[RunDoc],
    now: Option<f64>,
    screen: &Screen,
    width: usize,
) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else {
        return String::new();
    };
    let columns = width.saturating_sub(4).max(10);
    let from = first.at.as_second();
    let span = (last.at.as_second() - from).max(1);
    let place = |second: i64| {
        let here = i128::from(second - from) * i128::try_from(columns - 1).unwrap_or(0) / i128::from(span);
        usize::try_from(here).ok().filter(|column| *column < columns)
    };
    let mut highest: Vec<Option<f64>> = vec![None; columns];
    for point in &series.points {
        let end = point.at.as_second() + point.span_seconds.saturating_sub(1).max(0);
        let columns = place(point.at.as_second()).unwrap_or(0)..=place(end).unwrap_or(columns - 1);
        for column in &mut highest[columns] {
            *column = Some(column.map_or(point.used_percent, |known| known.max(point.used_percent)));
        }
    }
    let cell = |percent: &Option<f64>| match percent {
        None => ' ',
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 7, 0 to 9
        Some(percent) if screen.unicode => HEIGHTS[((percent / 12.5) as usize).min(7)],
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Some(percent) => char::from(b'0' + ((percent / 10.0) as u8).min(9)),
    };
    let line: String = highest.iter().map(cell).collect();
    let acted: Vec<_> = runs
        .iter()
        .filter(|run| !run.deleted.is_empty())
        .filter(|run| run.filesystem.as_ref().is_none_or(|mount| *mount == series.filesystem))
        .filter_map(|run| place(run.started_at.as_second()))
        .collect();
    let tens = if screen.unicode { "" } else { " (0: below 10%, 9: 90% and more)" };
    let runs = match acted.len() {
        0 => String::new(),
        number => format!("; {} that deleted, marked", count(number, "run", "runs")),
    };
    let (since, until) = (screen.minute(first.at), screen.minute(last.at));
    // The last reading may be of a while ago, or the mean of several in one minute.
    let now = now.map_or_else(String::new, |now| format!(", now {now:.1}%"));
    let when = match since == until {
        true => format!("at {since}: {:.1}%{now}", last.used_percent),
        false => format!("from {since} to {until}{now}"),
    };
    let mut out = format!("  Used {when}{tens}{runs}\n  {}\n", line.trim_end());
    if !acted.is_empty() {
        let mut marks = vec![' '; columns];
        let sign = if screen.unicode { '▴' } else { '^' };
        acted.into_iter().for_each(|column| marks[column] = sign);
        out.push_str(&format!("  {}\n", marks.into_iter().collect::<String>().trim_end()));
    }
    out
}

/// The column in which the byte behind `bytes` of `capacity` lies.
fn column(bytes: u64, capacity: u64, columns: usize) -> usize {
    let all = u128::from(capacity.max(1));
    let half = all / 2;
    let here = (u128::from(bytes) * columns as u128 + half) / all;
    usize::try_from(here).unwrap_or(columns).min(columns)
}

fn percent(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    u64::try_from((u128::from(part) * 100 + whole / 2) / whole).unwrap_or(100)
}
