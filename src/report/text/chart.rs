//! A chart of percents over time, of braille dots or of ASCII. Pure.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use super::screen::Screen;

/// A value over a stretch of time: one reading, or the lows and highs of a span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) from: Timestamp,
    /// Equal to `from` for a single reading.
    pub(super) to: Timestamp,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// What is drawn.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// By time.
    pub(super) samples: &'a [Sample],
    /// Times to be marked below the axis.
    pub(super) marks: &'a [Timestamp],
}

/// Columns left of the plot: `100% ┤`.
const MARGIN: usize = 6;
/// Lines of the plot, about.
const HEIGHT: usize = 10;
/// Columns that a label of the time axis needs, and the blank after it.
const LABEL: usize = 9;
/// The least difference between top and bottom, in percent: less looks like drama.
const LEAST: f64 = 5.0;

impl Chart<'_> {
    /// The lines.
    pub(super) fn draw(&self, screen: &Screen) -> String {
        let columns = screen.width.unwrap_or(80).saturating_sub(MARGIN).clamp(20, 400);
        let (wide, high) = if screen.unicode { (2, 4) } else { (1, 1) };
        let axis = Axis::over(self.samples);
        let rows = axis.rows();
        let ranges = self.ranges(columns * wide);
        let mut dots = Dots { wide, high, columns, cells: vec![0; columns * rows] };
        let line = |percent: f64| axis.line(percent, rows * high);
        let mut before: Option<(usize, usize)> = None;
        for (x, range) in ranges.iter().enumerate() {
            let here = range.map(|(low, top)| (line(top), line(low)));
            if let Some((mut top, mut bottom)) = here {
                // A line without holes: up or down to where the last column ended.
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

    /// Low and high of each column of dots; between two samples the straight line, unless
    /// they lie so far apart that nobody was looking.
    fn ranges(&self, columns: usize) -> Vec<Option<(f64, f64)>> {
        let mut ranges: Vec<Option<(f64, f64)>> = vec![None; columns];
        let mut add = |x: usize, low: f64, high: f64| {
            if let Some(range) = ranges.get_mut(x) {
                *range = Some(range.map_or((low, high), |(a, b)| (a.min(low), b.max(high))));
            }
        };
        let shown = || self.samples.iter().filter(|sample| sample.from <= self.to && sample.to >= self.from);
        let mut gaps: Vec<i64> = shown().zip(shown().skip(1)).map(|(a, b)| seconds(a.to, b.from)).collect();
        gaps.sort_unstable();
        let farthest = gaps.get(gaps.len() / 2).map_or(0, |usual| usual.saturating_mul(3)).max(
            // Two columns are no gap that could be seen.
            2 * seconds(self.from, self.to) / i64::try_from(columns).unwrap_or(i64::MAX),
        );
        let mut last: Option<&Sample> = None;
        for sample in shown() {
            let (first, end) = (self.column(sample.from, columns), self.column(sample.to, columns));
            // A span ends where the next begins.
            let end = if sample.to > sample.from { end.max(first + 1) - 1 } else { end };
            (first..=end).for_each(|x| add(x, sample.low, sample.high));
            if let Some(last) = last.filter(|last| seconds(last.to, sample.from) <= farthest) {
                let (from, to) = (self.column(last.to, columns), first);
                let (a, b) = (f64::midpoint(last.low, last.high), f64::midpoint(sample.low, sample.high));
                for x in from + 1..to {
                    #[allow(clippy::cast_precision_loss)] // columns of a terminal
                    let part = (x - from) as f64 / (to - from) as f64;
                    let between = a + (b - a) * part;
                    add(x, between, between);
                }
            }
            last = Some(sample);
        }
        ranges
    }

    /// The column of a time; the first or last one for what lies outside.
    fn column(&self, at: Timestamp, columns: usize) -> usize {
        let all = i128::from(seconds(self.from, self.to).max(1));
        let here = i128::from(seconds(self.from, at).max(0));
        let column = here * i128::try_from(columns).unwrap_or(0) / all;
        usize::try_from(column).unwrap_or(0).min(columns.saturating_sub(1))
    }

    /// The axis with its marks, and the times below it.
    fn time_axis(&self, columns: usize, bottom: f64, screen: &Screen) -> String {
        let (corner, line, tick) = if screen.unicode { ('└', '─', '┬') } else { ('+', '-', '+') };
        let mut axis = vec![line; columns];
        let mut labels = vec![' '; columns];
        for (at, label) in ticks(self.from, self.to, columns / (LABEL + 3), &screen.zone) {
            let column = self.column(at, columns);
            axis[column] = tick;
            // Half a date is another date.
            if let Some(places) = labels.get_mut(column..column + label.len()) {
                places.iter_mut().zip(label.chars()).for_each(|(place, c)| *place = c);
            }
        }
        let mut out = format!("{bottom:>3.0}% {corner}{}\n", axis.into_iter().collect::<String>());
        if !self.marks.is_empty() {
            let mut marks = vec![' '; columns];
            for at in self.marks {
                marks[self.column(*at, columns)] = if screen.unicode { '▴' } else { '^' };
            }
            out.push_str(format!("{:MARGIN$}{}", "", marks.into_iter().collect::<String>()).trim_end());
            out.push('\n');
        }
        out.push_str(format!("{:MARGIN$}{}", "", labels.into_iter().collect::<String>()).trim_end());
        out + "\n"
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// The percent axis: round numbers that hold all that is drawn.
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

    /// The percent at the upper edge of a row, where that is a round one.
    fn label(&self, row: usize) -> Option<f64> {
        let every = HEIGHT / self.steps;
        #[allow(clippy::cast_precision_loss)] // 0 to 5
        let steps = (self.steps - row / every) as f64;
        row.is_multiple_of(every).then_some(self.bottom + self.step * steps)
    }

    /// The line, of `lines` from the top, that holds a percent.
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

/// Dots, several to a character.
struct Dots {
    wide: usize,
    high: usize,
    columns: usize,
    /// Bits of each character, from 1 at the top left, rows first.
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
        /// Unicode's bit of each dot of a braille character, rows first.
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

/// Round local times between two times, at most about `most`, with what they are called.
fn ticks(from: Timestamp, to: Timestamp, most: usize, zone: &TimeZone) -> Vec<(Timestamp, String)> {
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
    let most = i64::try_from(most.max(1)).unwrap_or(i64::MAX);
    let step = STEPS.into_iter().find(|step| length / step <= most);
    let months =
        [1, 2, 3, 6, 12].into_iter().find(|months| length / (months * 30 * DAY) <= most).unwrap_or(24);
    // From a local midnight on, by the clock on the wall: it stays round when summer ends.
    let Ok(midnight) = from.to_zoned(zone.clone()).start_of_day() else { return Vec::new() };
    let mut civil = midnight.datetime();
    let step = match step {
        Some(seconds) => seconds.seconds(),
        None => {
            // With months, from the first of January on.
            civil = civil.date().first_of_year().at(0, 0, 0, 0);
            months.months()
        }
    };
    let mut ticks = Vec::new();
    while let Ok(at) = civil.to_zoned(zone.clone()).map(|zoned| zoned.timestamp())
        && at <= to
    {
        if at >= from {
            let midnight = civil.time() == jiff::civil::Time::midnight();
            let label = match () {
                () if step.get_months() > 0 => civil.strftime("%b %Y").to_string(),
                () if midnight => civil.strftime("%b %-d").to_string(),
                () => civil.strftime("%H:%M").to_string(),
            };
            ticks.push((at, label));
        }
        match civil.checked_add(step) {
            Ok(next) => civil = next,
            Err(_) => break,
        }
    }
    ticks
}

/// How long a window should be to show `samples`, where none was asked for.
pub(super) fn window(samples: &[Sample], now: Timestamp) -> (Timestamp, Timestamp) {
    let to = samples.last().map_or(now, |last| last.to.max(now));
    let from = samples.first().map_or(now, |first| first.from);
    let least = to.saturating_sub(SignedDuration::from_mins(10)).unwrap_or(to);
    (from.min(least), to)
}

#[cfg(test)]
mod tests;
