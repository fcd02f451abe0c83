//! Text of what ratatui's widgets draw into a buffer.

use anstyle::{AnsiColor, Style};
use ratatui::buffer::{Buffer, Cell};

/// Returns the rows of a buffer as lines with the colours of the characters, without blanks at their ends and empty lines
/// below. Every character has to be one column wide.
pub(super) fn printed(buffer: &Buffer) -> String {
    let mut out = String::new();
    for row in buffer.content.chunks(usize::from(buffer.area.width).max(1)) {
        let end = row.iter().rposition(|cell| cell.symbol() != " ").map_or(0, |last| last + 1);
        for run in row[..end].chunk_by(|left, right| left.fg == right.fg) {
            // The usual colour of the terminal is not one of the sixteen.
            let style = Style::new().fg_color(AnsiColor::try_from(run[0].fg).ok().map(Into::into));
            let text: String = run.iter().map(Cell::symbol).collect();
            out.push_str(&format!("{style}{text}{style:#}"));
        }
        out.push('\n');
    }
    out.truncate(out.trim_end_matches('\n').len());
    out + "\n"
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Color;

    use super::*;

    #[test]
    fn lines_have_colours_but_no_trailing_blanks() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 5, 4));
        buffer.set_string(1, 0, "abc", Color::Reset);
        buffer[(2, 0)].set_fg(Color::Blue);
        buffer.set_string(0, 2, "d", Color::Reset);
        assert_eq!(printed(&buffer), " a\u{1b}[34mb\u{1b}[0mc\n\nd\n");
    }
}
