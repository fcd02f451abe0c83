//! Charts of percentages over time, drawn by ratatui with braille dots or in ASCII.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp, ToSpan};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::{Marker, border};
use ratatui::widgets::canvas::{Canvas, FilledLine, Line};
use ratatui::widgets::{Block, Borders, Widget};

use super::drawing::printed;
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
const MARGIN: u16 = 6;
/// Approximate number of lines of the plot.
const HEIGHT: u16 = 10;
/// Columns of a label of the time axis, and the blank after it.
const LABEL: u16 = 9;
/// Minimum difference between top and bottom in percent: a smaller scale would exaggerate changes.
const LEAST: f64 = 5.0;

impl Chart<'_> {
    pub(super) fn draw(&self, screen: &Screen) -> String {
        let columns = screen.width.unwrap_or(80).saturating_sub(usize::from(MARGIN)).clamp(20, 400);
        let columns = u16::try_from(columns).unwrap_or(400);
        let axis = Axis::over(self.samples);
        let rows = axis.rows();
        let labels_row = rows + 1 + u16::from(!self.marks.is_empty());
        let mut buffer = Buffer::empty(Rect::new(0, 0, MARGIN + columns, labels_row + 1));
        let (marker, borders, [percent_tick, tick, mark]) = if screen.unicode {
            (Marker::Braille, border::PLAIN, ["┤", "┬", "▴"])
        } else {
            let ascii =
                border::Set { vertical_left: "|", bottom_left: "+", horizontal_bottom: "-", ..border::PLAIN };
            (Marker::Custom('#'), ascii, ["|", "+", "^"])
        };
        Canvas::default()
            .block(Block::new().borders(Borders::LEFT | Borders::BOTTOM).border_set(borders))
            .marker(marker)
            .x_bounds([0.0, self.seconds(self.to)])
            .y_bounds([axis.bottom, axis.percent(axis.steps)])
            .paint(|canvas| {
                for run in self.runs(columns) {
                    for Sample { from, to, low, high } in run {
                        let (from, to) = (self.seconds(*from), self.seconds(*to));
                        canvas.draw(&FilledLine::new(from, *high, to, *high, *low, Color::Reset));
                    }
                    for pair in run.windows(2) {
                        let (from, to) = (self.seconds(pair[0].to), self.seconds(pair[1].from));
                        let [start, end] =
                            [pair[0], pair[1]].map(|sample| f64::midpoint(sample.low, sample.high));
                        canvas.draw(&Line::new(from, start, to, end, Color::Reset));
                    }
                }
            })
            .render(Rect::new(MARGIN - 1, 0, columns + 1, rows + 1), &mut buffer);
        for step in 0..=axis.steps {
            let row = rows - step * axis.rows_in_step();
            buffer.set_string(0, row, format!("{:>3.0}%", axis.percent(step)), Style::new());
            if step > 0 {
                buffer[(MARGIN - 1, row)].set_symbol(percent_tick);
            }
        }
        for (time, label) in ticks(self.from, self.to, columns / (LABEL + 3), &screen.zone) {
            let column = self.column(time, columns);
            buffer[(column, rows)].set_symbol(tick);
            // A label that is cut would show another date.
            if usize::from(column) + label.len() <= usize::from(buffer.area.width) {
                buffer.set_string(column, labels_row, label, Style::new());
            }
        }
        for time in self.marks {
            buffer[(self.column(*time, columns), rows + 1)].set_symbol(mark);
        }
        printed(&buffer)
    }

    /// Splits the samples where a gap shows that no readings were taken.
    fn runs(&self, columns: u16) -> impl Iterator<Item = &[Sample]> {
        let mut gaps: Vec<i64> =
            self.samples.windows(2).map(|pair| seconds(pair[0].to, pair[1].from)).collect();
        gaps.sort_unstable();
        // A gap of one column cannot be seen.
        let invisible = seconds(self.from, self.to) / i64::from(columns);
        let longest = gaps.get(gaps.len() / 2).map_or(0, |usual| usual.saturating_mul(3)).max(invisible);
        self.samples.chunk_by(move |left, right| seconds(left.to, right.from) <= longest)
    }

    /// Returns the seconds from the left edge to a time.
    fn seconds(&self, time: Timestamp) -> f64 {
        time.duration_since(self.from).as_secs_f64()
    }

    /// Returns the column of a time in the buffer; the first or last of the plot for a time outside.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped to the columns of a terminal
    fn column(&self, time: Timestamp, columns: u16) -> u16 {
        let part = (self.seconds(time) / self.seconds(self.to).max(1.0)).clamp(0.0, 1.0);
        MARGIN + (part * f64::from(columns - 1)).round() as u16
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// Percentage axis with round numbers that includes all samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    bottom: f64,
    step: f64,
    steps: u16,
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
                return Self { bottom: bottom * step, step, steps: (steps as u16).max(1) };
            }
        }
        Self { bottom: 0.0, step: 25.0, steps: 4 }
    }

    fn rows_in_step(self) -> u16 {
        HEIGHT / self.steps
    }

    fn rows(self) -> u16 {
        self.steps * self.rows_in_step()
    }

    /// Returns the percentage after a number of steps from the bottom.
    fn percent(self, steps: u16) -> f64 {
        self.bottom + self.step * f64::from(steps)
    }
}

/// Returns round local times with their labels, at most about `count`.
fn ticks(from: Timestamp, to: Timestamp, count: u16, zone: &TimeZone) -> Vec<(Timestamp, String)> {
    const MINUTES: [i64; 14] =
        [1, 5, 15, 30, 60, 120, 180, 360, 720, 1440, 2 * 1440, 4 * 1440, 7 * 1440, 14 * 1440];
    const MONTHS: [i64; 6] = [1, 2, 3, 6, 12, 24];
    let (length, count) = (seconds(from, to).max(1), i64::from(count.max(1)));
    let step_minutes = MINUTES.into_iter().find(|minutes| length / (minutes * 60) <= count);
    // Steps are added to local time from midnight on, so that labels stay round when summer time ends.
    let Ok(midnight) = from.to_zoned(zone.clone()).start_of_day() else { return Vec::new() };
    let (start, step, format): (_, Span, _) = match step_minutes {
        Some(minutes) => (midnight.datetime(), minutes.minutes(), "%b %-d"),
        None => {
            let months = MONTHS.into_iter().find(|months| length / (months * 30 * 86_400) <= count);
            (midnight.date().first_of_year().at(0, 0, 0, 0), months.unwrap_or(24).months(), "%b %Y")
        }
    };
    start
        .series(step)
        .filter_map(|civil| {
            let format = if civil.time() == jiff::civil::Time::midnight() { format } else { "%H:%M" };
            Some((civil.to_zoned(zone.clone()).ok()?.timestamp(), civil.strftime(format).to_string()))
        })
        .skip_while(|(time, _)| *time < from)
        .take_while(|(time, _)| *time <= to)
        .collect()
}

pub(super) fn window(samples: &[Sample], now: Timestamp) -> (Timestamp, Timestamp) {
    let to = samples.last().map_or(now, |last| last.to.max(now));
    let from = samples.first().map_or(now, |first| first.from);
    let latest_start = to.saturating_sub(SignedDuration::from_mins(10)).unwrap_or(to);
    (from.min(latest_start), to)
}

#[cfg(test)]
mod tests;
