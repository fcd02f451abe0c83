//! A filesystem as one stacked bar, and its usage over time as a row of small ones, drawn by ratatui.

use anstyle::{AnsiColor, Style};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::symbols::bar;
use ratatui::widgets::{Fill, Sparkline, Widget};

use crate::model::text::display::count;
use crate::policy::thresholds::{Counted, Source};
use crate::report::json::{ReportFilesystemDoc, RunDoc, SeriesDoc};
use crate::report::text::drawing::printed;
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
    let (capacity, used) = (disk.filesystem.capacity_bytes, disk.filesystem.used_bytes);
    let places = disk.parts.iter().enumerate().scan(0_u64, |before, (position, part)| {
        *before = before.saturating_add(part.bytes);
        Some((*before, look(large.iter().position(|row| *row == position), screen)))
    });
    let reserved = used.saturating_add(disk.filesystem.reserved_bytes);
    let free = if screen.unicode { '·' } else { '.' };
    let rest = [(reserved, (reserve_character(screen), Style::new())), (u64::MAX, (free, Style::new()))];
    let places: Vec<_> = places.chain(rest).collect();
    let (mut buffer, line) = canvas(width);
    // Each part covers the end of the parts after it.
    for (end, (character, style)) in places.into_iter().rev() {
        let line = Rect { width: column(end, capacity, line.width), ..line };
        Fill::new(character.to_string()).style(style).render(line, &mut buffer);
    }
    // The bar shows bytes; thresholds for inodes are in the line above it.
    let mut percents: Vec<(f64, Vec<String>)> = Vec::new();
    let of_bytes = disk.thresholds.iter().filter(|threshold| threshold.of == Counted::Bytes);
    for threshold in of_bytes.filter(|threshold| threshold.acts()) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // columns of a terminal
        let place = (threshold.percent.clamp(0.0, 100.0) * f64::from(line.width) / 100.0) as u16;
        mark(&mut buffer, line.x + place.min(line.width - 1), screen);
        let owner = if threshold.source == Source::Kubelet { "kubelet's " } else { "" };
        let name = format!("{owner}{}", threshold.name.short());
        match percents.last_mut().filter(|(percent, _)| (*percent - threshold.percent).abs() < 0.5) {
            Some((_, names)) => names.push(name),
            None => percents.push((threshold.percent, vec![name])),
        }
    }
    let names: Vec<_> =
        percents.into_iter().map(|(percent, names)| format!("{percent:.0}% {}", names.join(", "))).collect();
    let named = format!("{} {}", sign(screen), names.join("; "));
    printed(&buffer) + &if names.is_empty() { String::new() } else { wrapped(&named, width, "  ") }
}

/// Returns an empty buffer with a line for a bar, indented by two blanks, and one for the marks below it.
fn canvas(width: usize) -> (Buffer, Rect) {
    let columns = u16::try_from(width.saturating_sub(4).max(10)).unwrap_or(u16::MAX - 2);
    (Buffer::empty(Rect::new(0, 0, columns + 2, 2)), Rect::new(2, 0, columns, 1))
}

fn mark(buffer: &mut Buffer, column: u16, screen: &Screen) {
    buffer[(column, 1)].set_symbol(sign(screen));
}

fn sign(screen: &Screen) -> &'static str {
    if screen.unicode { "▴" } else { "^" }
}

fn reserve_character(screen: &Screen) -> char {
    if screen.unicode { '╌' } else { '-' }
}

/// Formats the parts in the order of the bar, the small ones in one row.
pub(super) fn legend(disk: &ReportFilesystemDoc, screen: &Screen, width: usize, legend: usize) -> String {
    let used = disk.filesystem.used_bytes;
    let (large, small) = rows(disk, legend);
    let mut out = format!("    {:>10} of used\n", "");
    for (row, part) in large.iter().map(|position| &disk.parts[*position]).enumerate() {
        let (character, style) = look(Some(row), screen);
        // Two stores have parts with the same label.
        let is_unique = disk.parts.iter().filter(|other| other.label == part.label).count() == 1;
        let label = match &part.path {
            Some(path) if *path != part.label && !(part.store.is_some() && is_unique) => {
                format!("{} ({path})", part.label)
            }
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
    let (mut buffer, line) = canvas(width);
    let from = first.reading.time.as_second();
    let span = (last.reading.time.as_second() - from).max(1);
    let column_of = |second: i64| {
        let column = i128::from(second - from) * i128::from(line.width - 1) / i128::from(span);
        u16::try_from(column).ok().filter(|column| *column < line.width)
    };
    let mut highest = vec![None; usize::from(line.width)];
    for point in &series.points {
        let begin = point.reading.time.as_second();
        let end = begin + point.reading.span.seconds().saturating_sub(1).max(0);
        let columns = column_of(begin).unwrap_or(0)..=column_of(end).unwrap_or(line.width - 1);
        let height = Some(height(point.used_percent.avg, screen));
        columns.for_each(|column| highest[usize::from(column)] = height.max(highest[usize::from(column)]));
    }
    let blocks = if screen.unicode { bar::NINE_LEVELS } else { TENS };
    Sparkline::default().data(highest).max(8).bar_set(blocks).render(line, &mut buffer);
    let acted: Vec<_> = runs
        .iter()
        .filter(|run| !run.deleted.is_empty())
        .filter(|run| run.is_on(&series.filesystem.mount))
        .filter_map(|run| column_of(run.started_at.as_second()))
        .collect();
    let tens = if screen.unicode { "" } else { " (1: below 20%, 9: 90% and more)" };
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
    acted.into_iter().for_each(|column| mark(&mut buffer, line.x + column, screen));
    format!("  Used {when}{tens}{runs}\n{}", printed(&buffer))
}

/// Digits from 1, below 20 %, to 9, 90 % and more.
const TENS: bar::Set<'_> = bar::Set {
    empty: "1",
    one_eighth: "2",
    one_quarter: "3",
    three_eighths: "4",
    half: "5",
    five_eighths: "6",
    three_quarters: "7",
    seven_eighths: "8",
    full: "9",
};

/// Returns the height of a bar of the sparkline, 0 to 8. With blocks, only an unknown usage has no bar.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped
fn height(percent: f64, screen: &Screen) -> u64 {
    if screen.unicode {
        (percent / 12.5).ceil().clamp(1.0, 8.0) as u64
    } else {
        (percent / 10.0 - 1.0).clamp(0.0, 8.0) as u64
    }
}

/// Returns the column of the byte after `bytes` of `capacity`.
fn column(bytes: u64, capacity: u64, columns: u16) -> u16 {
    let all = u128::from(capacity.max(1));
    let column = (u128::from(bytes) * u128::from(columns) + all / 2) / all;
    u16::try_from(column).unwrap_or(columns).min(columns)
}

fn percent(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    u64::try_from((u128::from(part) * 100 + whole / 2) / whole).unwrap_or(100)
}
