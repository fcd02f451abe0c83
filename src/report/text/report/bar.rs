//! A filesystem as one stacked bar, and its usage over time as a row of small ones.

use anstyle::{AnsiColor, Style};

use crate::model::text::display::count;
use crate::policy::thresholds::{Counted, Source};
use crate::report::json::{ReportFilesystemDoc, RunDoc, SeriesDoc};
use crate::report::text::format::{bytes, safe, wrapped};
use crate::report::text::screen::Screen;

/// Character for each row of the legend, so that the bar can be read without colours.
const BLOCKS: [char; 8] = ['█', '░', '▚', '▓', '▙', '▒', '▞', '▟'];
/// Character for parts without a row in the legend.
const SMALL: char = '▏';
const COLORS: [AnsiColor; 6] = [
    AnsiColor::Blue,
    AnsiColor::Yellow,
    AnsiColor::Cyan,
    AnsiColor::Magenta,
    AnsiColor::Green,
    AnsiColor::Red,
];

/// Splits the parts, as positions in the bar, into the large ones with a row in the legend and the small
/// ones.
fn rows(disk: &ReportFilesystemDoc, rows: usize) -> (Vec<usize>, Vec<usize>) {
    let mut by_size: Vec<usize> = (0..disk.parts.len()).collect();
    by_size.sort_by_key(|position| (std::cmp::Reverse(disk.parts[*position].bytes), *position));
    let shown = if disk.parts.len() > rows { rows - 1 } else { rows };
    let small = by_size.split_off(by_size.len().min(shown));
    by_size.sort_unstable();
    (by_size, small)
}

fn look(row: Option<usize>, screen: &Screen) -> (char, Style) {
    let Some(position) = row else { return (if screen.unicode { SMALL } else { '+' }, Style::new()) };
    let character = if screen.unicode {
        BLOCKS[position % BLOCKS.len()]
    } else {
        char::from(b'a' + u8::try_from(position % 26).unwrap_or(0))
    };
    let color = COLORS[position % COLORS.len()];
    (character, Style::new().fg_color(Some(color.into())))
}

/// Draws the parts of a filesystem, the space reserved for root and the free space; below, the thresholds.
pub(super) fn bar(disk: &ReportFilesystemDoc, screen: &Screen, width: usize, legend: usize) -> String {
    let (large, _) = rows(disk, legend);
    let capacity = disk.filesystem.capacity_bytes;
    let used = disk.filesystem.used_bytes;
    let columns = width.saturating_sub(4).max(10);
    let mut out = String::from("  ");
    let mut drawn = 0;
    let mut before = 0_u64;
    for (position, part) in disk.parts.iter().enumerate() {
        before = before.saturating_add(part.bytes);
        let end = column(before, capacity, columns).max(drawn);
        let (character, style) = look(large.iter().position(|row| *row == position), screen);
        if end > drawn {
            let run: String = std::iter::repeat_n(character, end - drawn).collect();
            out.push_str(&format!("{style}{run}{style:#}"));
        }
        drawn = end;
    }
    let reserved = column(used.saturating_add(disk.filesystem.reserved_bytes), capacity, columns).max(drawn);
    let free = if screen.unicode { '·' } else { '.' };
    out.extend(std::iter::repeat_n(reserve_character(screen), reserved - drawn));
    out.extend(std::iter::repeat_n(free, columns - reserved.min(columns)));
    out.push('\n');
    out + &thresholds(disk, screen, columns, width)
}

fn reserve_character(screen: &Screen) -> char {
    if screen.unicode { '╌' } else { '-' }
}

fn thresholds(disk: &ReportFilesystemDoc, screen: &Screen, columns: usize, width: usize) -> String {
    // The bar shows bytes; thresholds for inodes are in the line above it.
    let shown: Vec<_> = disk
        .thresholds
        .iter()
        .filter(|threshold| threshold.of == Counted::Bytes && threshold.acts())
        .collect();
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
        let owner = if threshold.source == Source::Kubelet { "kubelet's " } else { "" };
        let name = format!("{owner}{}", threshold.name.short());
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

/// Formats the parts in the order of the bar, the small ones in one row.
pub(super) fn legend(disk: &ReportFilesystemDoc, screen: &Screen, width: usize, legend: usize) -> String {
    let used = disk.filesystem.used_bytes;
    let (large, small) = rows(disk, legend);
    let mut out = format!("    {:>10} of used\n", "");
    for (row, part) in large.iter().map(|position| &disk.parts[*position]).enumerate() {
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
        let sum: u64 = small.iter().map(|position| disk.parts[*position].bytes).sum();
        let facts = format!("{:>10} {:>3}%  ", bytes(sum), percent(sum, used));
        out.push_str(&format!("  {} {facts}in {} smaller parts\n", look(None, screen).0, small.len()));
    }
    if disk.filesystem.reserved_bytes > 0 {
        let facts = format!("{:>10} {:>4}  ", bytes(disk.filesystem.reserved_bytes), "");
        out.push_str(&format!(
            "  {} {facts}reserved for root, or not available\n",
            reserve_character(screen)
        ));
    }
    out
}

/// Draws the usage over time: each column shows the highest point of its period, and marks below show the
/// runs that deleted something. `now` is the percentage used at this moment, if known.
pub(super) fn sparkline(
    series: &SeriesDoc,
    runs: &[RunDoc],
    now: Option<f64>,
    screen: &Screen,
    width: usize,
) -> String {
    let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else {
        return String::new();
    };
    let columns = width.saturating_sub(4).max(10);
    let from = first.reading.time.as_second();
    let span = (last.reading.time.as_second() - from).max(1);
    let column_of = |second: i64| {
        let column = i128::from(second - from) * i128::try_from(columns - 1).unwrap_or(0) / i128::from(span);
        usize::try_from(column).ok().filter(|column| *column < columns)
    };
    let mut highest: Vec<Option<f64>> = vec![None; columns];
    for point in &series.points {
        let end = point.reading.time.as_second() + point.reading.span.seconds().saturating_sub(1).max(0);
        let (first, last) = (column_of(point.reading.time.as_second()), column_of(end));
        let columns = first.unwrap_or(0)..=last.unwrap_or(columns - 1);
        for column in &mut highest[columns] {
            *column = Some(column.map_or(point.used_percent.avg, |known| known.max(point.used_percent.avg)));
        }
    }
    let line: String = highest.iter().map(|highest| column_character(*highest, screen)).collect();
    let acted: Vec<_> = runs
        .iter()
        .filter(|run| !run.deleted.is_empty())
        .filter(|run| run.filesystem.as_ref().is_none_or(|mount| *mount == series.filesystem.mount))
        .filter_map(|run| column_of(run.started_at.as_second()))
        .collect();
    let tens = if screen.unicode { "" } else { " (0: below 10%, 9: 90% and more)" };
    let runs = match acted.len() {
        0 => String::new(),
        number => format!("; {} that deleted, marked", count(number, "run", "runs")),
    };
    let (since, until) = (screen.minute(first.reading.time), screen.minute(last.reading.time));
    // The last point may be old, or the mean of several readings in one minute.
    let now = now.map_or_else(String::new, |now| format!(", now {now:.1}%"));
    let when = if since == until {
        format!("at {since}: {:.1}%{now}", last.used_percent.avg)
    } else {
        format!("from {since} to {until}{now}")
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

fn column_character(percent: Option<f64>, screen: &Screen) -> char {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    match percent {
        None => ' ',
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 7, 0 to 9
        Some(percent) if screen.unicode => HEIGHTS[((percent / 12.5) as usize).min(7)],
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Some(percent) => char::from(b'0' + ((percent / 10.0) as u8).min(9)),
    }
}

/// Returns the column of the byte after `bytes` of `capacity`.
fn column(bytes: u64, capacity: u64, columns: usize) -> usize {
    let all = u128::from(capacity.max(1));
    let half = all / 2;
    let column = (u128::from(bytes) * columns as u128 + half) / all;
    usize::try_from(column).unwrap_or(columns).min(columns)
}

fn percent(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    u64::try_from((u128::from(part) * 100 + whole / 2) / whole).unwrap_or(100)
}
