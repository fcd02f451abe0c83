//! Charts of percentages over time, drawn with braille dots or in ASCII.
//!
//! A braille character has 2 × 4 dots, so a plot of 74 columns and 10 lines has 148 × 40 dots. The samples
//! are first reduced to a range for each column of dots, which keeps the spike of a single reading visible
//! however long the period is; the ranges are then joined to a line, except across a gap in the readings.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use super::screen::Screen;

/// Value over a period: a single reading, or the lowest and highest of a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) from: Timestamp,
    /// Equal to `from` for a single reading.
    pub(super) to: Timestamp,
    pub(super) low: f64,
    pub(super) high: f64,
}

#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// Sorted by time.
    pub(super) samples: &'a [Sample],
    pub(super) marks: &'a [Timestamp],
}

/// Columns left of the plot, for example `100% ┤`.
const MARGIN: usize = 6;
/// Approximate number of lines of the plot.
const HEIGHT: usize = 10;
/// Columns of a label of the time axis, and the blank after it.
const LABEL: usize = 9;
/// Minimum difference between top and bottom in percent: a smaller scale would exaggerate changes.
const LEAST: f64 = 5.0;

impl Chart<'_> {
    pub(super) fn draw(&self, screen: &Screen) -> String {
        let columns = screen.width.unwrap_or(80).saturating_sub(MARGIN).clamp(20, 400);
        let (wide, high) = if screen.unicode { (2, 4) } else { (1, 1) };
        let axis = Axis::over(self.samples);
        let rows = axis.rows();
        let ranges = self.ranges(columns * wide);
        let mut dots = Dots { wide, high, columns, cells: vec![0; columns * rows] };
        let lines = rows * high;
        let mut before: Option<(usize, usize)> = None;
        for (x, range) in ranges.iter().enumerate() {
            let here = range.map(|(low, top)| (axis.line(top, lines), axis.line(low, lines)));
            if let Some((mut top, mut bottom)) = here {
                // Join the line: extend it up or down to the end of the last column.
                if let Some((last_top, last_bottom)) = before {
                    top = top.min(last_bottom + 1);
                    bottom = bottom.max(last_top.saturating_sub(1));
                }
                (top..=bottom).for_each(|y| dots.set(x, y));
            }
            before = here;
        }
        let mut out = String::new();
        for row in 0..rows {
            let label = axis.label(row).map_or_else(String::new, |percent| format!("{percent:.0}%"));
            let edge = match (screen.unicode, label.is_empty()) {
                (true, false) => '┤',
                (true, true) => '│',
                (false, _) => '|',
            };
            let line: String = (0..columns).map(|column| dots.character(column, row)).collect();
            out.push_str(format!("{label:>4} {edge}{line}").trim_end());
            out.push('\n');
        }
        out + &self.time_axis(columns, axis.bottom, screen)
    }

    /// Returns the lowest and highest value of each column of dots. Two samples are joined by a straight
    /// line, unless the gap between them shows that no readings were taken.
    fn ranges(&self, columns: usize) -> Vec<Option<(f64, f64)>> {
        let mut ranges: Vec<Option<(f64, f64)>> = vec![None; columns];
        let shown: Vec<_> =
            self.samples.iter().filter(|sample| sample.from <= self.to && sample.to >= self.from).collect();
        let mut gaps: Vec<i64> = shown.windows(2).map(|pair| seconds(pair[0].to, pair[1].from)).collect();
        gaps.sort_unstable();
        let longest = gaps.get(gaps.len() / 2).map_or(0, |usual| usual.saturating_mul(3)).max(
            // A gap of two columns cannot be seen.
            2 * seconds(self.from, self.to) / i64::try_from(columns).unwrap_or(i64::MAX),
        );
        let mut last: Option<&Sample> = None;
        for sample in shown {
            let (first, end) = (self.column(sample.from, columns), self.column(sample.to, columns));
            // A span ends at the start of the next.
            let end = if sample.to > sample.from { end.max(first + 1) - 1 } else { end };
            for range in ranges.iter_mut().take(end + 1).skip(first) {
                widen(range, sample.low, sample.high);
            }
            if let Some(last) = last.filter(|last| seconds(last.to, sample.from) <= longest) {
                let (from, to) = (self.column(last.to, columns), first);
                let (a, b) = (f64::midpoint(last.low, last.high), f64::midpoint(sample.low, sample.high));
                for (x, range) in ranges.iter_mut().enumerate().take(to).skip(from + 1) {
                    #[allow(clippy::cast_precision_loss)] // columns of a terminal
                    let part = (x - from) as f64 / (to - from) as f64;
                    let between = a + (b - a) * part;
                    widen(range, between, between);
                }
            }
            last = Some(sample);
        }
        ranges
    }

    /// Returns the column of a time; the first or last one for a time outside.
    fn column(&self, time: Timestamp, columns: usize) -> usize {
        let all = i128::from(seconds(self.from, self.to).max(1));
        let offset = i128::from(seconds(self.from, time).max(0));
        let column = offset * i128::try_from(columns).unwrap_or(0) / all;
        usize::try_from(column).unwrap_or(0).min(columns.saturating_sub(1))
    }

    fn time_axis(&self, columns: usize, bottom: f64, screen: &Screen) -> String {
        let (corner, line, tick) = if screen.unicode { ('└', '─', '┬') } else { ('+', '-', '+') };
        let mut axis = vec![line; columns];
        let mut labels = vec![' '; columns];
        for (time, label) in ticks(self.from, self.to, columns / (LABEL + 3), &screen.zone) {
            let column = self.column(time, columns);
            axis[column] = tick;
            // A label that is cut would show another date.
            if let Some(places) = labels.get_mut(column..column + label.len()) {
                places.iter_mut().zip(label.chars()).for_each(|(place, c)| *place = c);
            }
        }
        let mut out = format!("{bottom:>3.0}% {corner}{}\n", axis.into_iter().collect::<String>());
        if !self.marks.is_empty() {
            let mut marks = vec![' '; columns];
            for time in self.marks {
                marks[self.column(*time, columns)] = if screen.unicode { '▴' } else { '^' };
            }
            out.push_str(format!("{:MARGIN$}{}", "", marks.into_iter().collect::<String>()).trim_end());
            out.push('\n');
        }
        out.push_str(format!("{:MARGIN$}{}", "", labels.into_iter().collect::<String>()).trim_end());
        out + "\n"
    }
}

fn widen(range: &mut Option<(f64, f64)>, low: f64, high: f64) {
    *range = Some(range.map_or((low, high), |(lowest, highest)| (lowest.min(low), highest.max(high))));
}

fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// Percentage axis with round numbers that includes all samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    bottom: f64,
    step: f64,
    steps: usize,
}

impl Axis {
    fn over(samples: &[Sample]) -> Self {
        let low = samples.iter().map(|sample| sample.low).fold(100.0, f64::min).clamp(0.0, 100.0);
        let high = samples.iter().map(|sample| sample.high).fold(0.0, f64::max).clamp(low, 100.0);
        let missing = (LEAST - (high - low)).max(0.0) / 2.0;
        let (low, high) = ((low - missing).max(0.0), (high + missing).min(100.0));
        for step in [1.0, 2.0, 5.0, 10.0, 20.0] {
            let bottom = (low / step).floor();
            let steps = (high / step).ceil() - bottom;
            if steps <= 5.0 {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 5
                return Self { bottom: bottom * step, step, steps: (steps as usize).max(1) };
            }
        }
        Self { bottom: 0.0, step: 25.0, steps: 4 }
    }

    fn rows(&self) -> usize {
        self.steps * (HEIGHT / self.steps)
    }

    /// Returns the percentage at the upper edge of a row, if it is a multiple of the step.
    fn label(&self, row: usize) -> Option<f64> {
        let every = HEIGHT / self.steps;
        #[allow(clippy::cast_precision_loss)] // 0 to 5
        let steps = (self.steps - row / every) as f64;
        row.is_multiple_of(every).then_some(self.bottom + self.step * steps)
    }

    /// Returns the line of a percentage, out of `lines` from the top.
    fn line(&self, percent: f64, lines: usize) -> usize {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // lines of a terminal
        {
            let part = (percent - self.bottom) / (self.step * self.steps as f64);
            let from_below = (part.clamp(0.0, 1.0) * lines as f64) as usize;
            lines - 1 - from_below.min(lines - 1)
        }
    }
}

/// Grid of dots, several in each character.
struct Dots {
    wide: usize,
    high: usize,
    columns: usize,
    /// Bits of each character, from 1 at the top left, row by row.
    cells: Vec<u8>,
}

impl Dots {
    fn set(&mut self, x: usize, y: usize) {
        let bit = (y % self.high) * self.wide + x % self.wide;
        if let Some(cell) = self.cells.get_mut(y / self.high * self.columns + x / self.wide) {
            *cell |= 1 << bit;
        }
    }

    fn character(&self, column: usize, row: usize) -> char {
        /// Unicode's bit of each dot of a braille character, row by row.
        const BRAILLE: [u32; 8] = [0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80];
        let cell = self.cells[row * self.columns + column];
        match cell {
            0 => ' ',
            _ if self.high == 1 => '#',
            _ => {
                let bits = (0..8).filter(|bit| cell & (1 << bit) != 0).map(|bit| BRAILLE[bit]).sum::<u32>();
                char::from_u32(0x2800 + bits).unwrap_or('?')
            }
        }
    }
}

/// Returns round local times with their labels, at most about `count`.
fn ticks(from: Timestamp, to: Timestamp, count: usize, zone: &TimeZone) -> Vec<(Timestamp, String)> {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 3600;
    const DAY: i64 = 86_400;
    const STEPS: [i64; 14] = [
        MINUTE,
        5 * MINUTE,
        15 * MINUTE,
        30 * MINUTE,
        HOUR,
        2 * HOUR,
        3 * HOUR,
        6 * HOUR,
        12 * HOUR,
        DAY,
        2 * DAY,
        4 * DAY,
        7 * DAY,
        14 * DAY,
    ];
    let length = seconds(from, to).max(1);
    let count = i64::try_from(count.max(1)).unwrap_or(i64::MAX);
    let step = STEPS.into_iter().find(|step| length / step <= count);
    let months =
        [1, 2, 3, 6, 12].into_iter().find(|months| length / (months * 30 * DAY) <= count).unwrap_or(24);
    // Steps are added to local time from midnight on, so that labels stay round when summer time ends.
    let Ok(midnight) = from.to_zoned(zone.clone()).start_of_day() else { return Vec::new() };
    let mut civil = midnight.datetime();
    let step = match step {
        Some(seconds) => seconds.seconds(),
        None => {
            // Steps of months begin on the first of January.
            civil = civil.date().first_of_year().at(0, 0, 0, 0);
            months.months()
        }
    };
    let mut ticks = Vec::new();
    while let Ok(time) = civil.to_zoned(zone.clone()).map(|zoned| zoned.timestamp())
        && time <= to
    {
        if time >= from {
            let midnight = civil.time() == jiff::civil::Time::midnight();
            let label = match () {
                () if step.get_months() > 0 => civil.strftime("%b %Y").to_string(),
                () if midnight => civil.strftime("%b %-d").to_string(),
                () => civil.strftime("%H:%M").to_string(),
            };
            ticks.push((time, label));
        }
        match civil.checked_add(step) {
            Ok(next) => civil = next,
            Err(_) => break,
        }
    }
    ticks
}

pub(super) fn window(samples: &[Sample], now: Timestamp) -> (Timestamp, Timestamp) {
    let to = samples.last().map_or(now, |last| last.to.max(now));
    let from = samples.first().map_or(now, |first| first.from);
    let latest_start = to.saturating_sub(SignedDuration::from_mins(10)).unwrap_or(to);
    (from.min(latest_start), to)
}

#[cfg(test)]
mod tests;
