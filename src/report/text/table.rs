//! Columns in the manner of `kubectl`: no borders, so that `awk` can read them too.

use unicode_width::UnicodeWidthStr;

const BOLD: anstyle::Style = anstyle::Style::new().bold();

/// Where a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A table under construction.
#[derive(Debug)]
pub(super) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; `>` in front of a heading sets its column right.
    pub(super) fn new(headings: &[&str]) -> Self {
        let right = |heading: &&str| if heading.starts_with('>') { Align::Right } else { Align::Left };
        Self {
            align: headings.iter().map(right).collect(),
            rows: vec![headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect()],
        }
    }

    /// Adds a row; it has as many cells as there are headings.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.align.len());
        self.rows.push(cells);
    }

    /// The lines, headings in bold (the caller strips that where no terminal listens).
    pub(super) fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.align.len())
            .map(|column| self.rows.iter().map(|row| row[column].width()).max().unwrap_or(0))
            .collect();
        let mut out = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.align) {
                let gap = " ".repeat(width.saturating_sub(cell.width()));
                match align {
                    Align::Left => line.extend([cell.as_str(), gap.as_str()]),
                    Align::Right => line.extend([gap.as_str(), cell.as_str()]),
                }
                line.push_str("  ");
            }
            let line = line.trim_end();
            if number == 0 {
                out.push_str(&format!("{BOLD}{line}{BOLD:#}\n"));
            } else {
                out.push_str(line);
                out.push('\n');
            }
        }
        out
    }
}

/// A heading of its own.
pub(super) fn heading(text: &str) -> String {
    format!("{BOLD}{text}{BOLD:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_display_width() {
        let mut table = Table::new(&["NAME", ">SIZE", "NOTE"]);
        table.row(vec!["画像".into(), "1 B".into(), String::new()]);
        table.row(vec!["a".into(), "100 KiB".into(), "x".into()]);
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(plain, "NAME     SIZE  NOTE\n画像      1 B\na     100 KiB  x\n");
    }
}
