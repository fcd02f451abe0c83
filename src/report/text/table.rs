//! Tables in the style of `kubectl`: without borders, so that `awk` can read them.

use unicode_width::UnicodeWidthStr;

use super::format::safe;
use super::screen::Screen;

/// Number of blanks between two columns.
const GAP: usize = 2;
/// Maximum width of a cell, if the screen truncates, because every row is padded to the widest. An image name
/// with tag and digest has at most 456 characters.
pub(crate) const CELL: usize = 512;
/// Maximum width of a cell if the output is not a terminal: a table is not as wide as its longest name.
pub(super) const PIPED_CELL: usize = 60;
/// Maximum width of a cell in the last column, which contains sentences and lists of names.
const LAST_CELL: usize = 4096;
/// Minimum width of a column that shrinks.
const NARROWEST: usize = 10;
const BOLD: anstyle::Style = anstyle::Style::new().bold();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Table that rows are added to, then fitted to the terminal and rendered.
#[derive(Debug)]
pub(super) struct Table {
    screen: Screen,
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table. A heading that starts with `>` aligns its column to the right.
    pub(super) fn new(screen: &Screen, headings: &[&str]) -> Self {
        let align =
            headings.iter().map(|heading| if heading.starts_with('>') { Align::Right } else { Align::Left });
        Self {
            screen: screen.clone(),
            align: align.collect(),
            rows: vec![headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect()],
        }
    }

    /// Adds a row with one cell for each heading. Cells longer than any real name are shortened.
    pub(super) fn row(&mut self, mut cells: Vec<String>) {
        assert_eq!(cells.len(), self.align.len());
        if self.screen.truncates {
            let (last, most) = (cells.len() - 1, self.screen.width.map_or(PIPED_CELL, |_| CELL));
            for (column, cell) in cells.iter_mut().enumerate() {
                *cell = self.screen.shorten(cell, if column == last { LAST_CELL } else { most });
            }
        }
        self.rows.push(cells);
    }

    /// Adds the column STORE with the root of each row's store, unless it is the same for all rows.
    pub(super) fn add_stores<'a>(&mut self, stores: impl Iterator<Item = &'a str> + Clone) {
        let Some(first) = stores.clone().next() else { return };
        if stores.clone().all(|store| store == first) {
            return;
        }
        self.align.push(Align::Left);
        for (row, store) in self.rows.iter_mut().zip(std::iter::once("STORE").chain(stores)) {
            row.push(safe(store));
        }
    }

    /// Returns true if the table is not wider than the terminal.
    pub(super) fn fits(&self) -> bool {
        let widths = self.widths();
        let gaps = GAP * widths.len().saturating_sub(1);
        self.room().is_none_or(|room| widths.iter().sum::<usize>() + gaps <= room)
    }

    /// Returns the width that the table must fit, if there is a limit.
    fn room(&self) -> Option<usize> {
        self.screen.width.filter(|_| self.screen.truncates)
    }

    /// Fits the table to the terminal and returns the headings of the removed columns.
    ///
    /// First the columns of `optional` are removed, in this order, until the rest fits with each column of
    /// `elastic` at its minimum width. Then the elastic columns shrink, the widest first, a column at a time.
    /// Columns are numbered from 0.
    pub(super) fn fit(&mut self, optional: &[usize], elastic: &[(usize, usize)]) -> Vec<String> {
        let Some(room) = self.room() else { return Vec::new() };
        let mut widths = self.widths();
        let mut minimum = widths.clone();
        for (column, width) in elastic {
            minimum[*column] = minimum[*column].min(*width);
        }
        let mut is_kept = vec![true; widths.len()];
        for column in optional {
            if line_width(&minimum, &is_kept) <= room {
                break;
            }
            is_kept[*column] = false;
        }
        while line_width(&widths, &is_kept) > room {
            let shrinkable =
                elastic.iter().filter(|(column, width)| is_kept[*column] && widths[*column] > *width);
            let Some((widest, _)) = shrinkable.max_by_key(|(column, _)| widths[*column]) else { break };
            widths[*widest] -= 1;
        }
        let removed = self.rows[0]
            .iter()
            .zip(&is_kept)
            .filter(|(_, is_kept)| !**is_kept)
            .map(|(heading, _)| heading.clone())
            .collect();
        for row in &mut self.rows {
            for (column, _) in elastic {
                row[*column] = self.screen.shorten(&row[*column], widths[*column]);
            }
            retain(row, &is_kept);
        }
        retain(&mut self.align, &is_kept);
        removed
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.align.len())
            .map(|column| self.rows.iter().map(|row| row[column].width()).max().unwrap_or(0))
            .collect()
    }

    /// Returns the widths with which a row fits the terminal, if columns of at least [`NARROWEST`] can.
    fn fitting_widths(&self) -> Vec<usize> {
        let mut widths = self.widths();
        let Some(room) = self.room() else { return widths };
        let is_kept = vec![true; widths.len()];
        while line_width(&widths, &is_kept) > room {
            let columns = (0..widths.len()).filter(|column| self.align[*column] == Align::Left);
            let widest = columns.max_by_key(|column| widths[*column]);
            let Some(widest) = widest.filter(|column| widths[*column] > NARROWEST) else { break };
            widths[widest] -= 1;
        }
        widths
    }

    /// Renders the table after an empty line; returns an empty string for a table without rows.
    pub(super) fn block(&self) -> String {
        if self.rows.len() > 1 { format!("\n{}", self.render()) } else { String::new() }
    }

    /// Renders the table with bold headings. The caller removes the escapes if the output is not a terminal.
    ///
    /// No row is wider than the terminal: columns on the left shrink, the widest first.
    pub(super) fn render(&self) -> String {
        let widths = self.fitting_widths();
        let mut out = String::new();
        for (position, row) in self.rows.iter().enumerate() {
            let row: Vec<_> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| match self.room() {
                    Some(_) => self.screen.shorten(cell, *width),
                    None => cell.clone(),
                })
                .collect();
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.align) {
                // A longer cell of `--no-trunc` exceeds its column, so that no other row is padded to it.
                let gap = " ".repeat((*width).min(CELL).saturating_sub(cell.width()));
                match align {
                    Align::Left => line.extend([cell.as_str(), gap.as_str()]),
                    Align::Right => line.extend([gap.as_str(), cell.as_str()]),
                }
                line.push_str(&" ".repeat(GAP));
            }
            let line = line.trim_end();
            if position == 0 {
                out.push_str(&heading(line));
            } else {
                out.push_str(line);
                out.push('\n');
            }
        }
        out
    }
}

/// Returns the width of a line with these columns.
fn line_width(widths: &[usize], is_kept: &[bool]) -> usize {
    let kept = widths.iter().zip(is_kept).filter(|(_, is_kept)| **is_kept);
    kept.map(|(width, _)| width + GAP).sum::<usize>().saturating_sub(GAP)
}

fn retain<T>(cells: &mut Vec<T>, is_kept: &[bool]) {
    let mut is_kept = is_kept.iter().copied();
    cells.retain(|_| is_kept.next().unwrap_or(true));
}

pub(super) fn bold(text: &str) -> String {
    format!("{BOLD}{text}{BOLD:#}")
}

pub(super) fn heading(text: &str) -> String {
    bold(text) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(width: Option<usize>) -> Screen {
        Screen { width, unicode: true, truncates: true, notes: true, zone: jiff::tz::TimeZone::UTC }
    }

    #[test]
    fn store_column_is_shown_for_several_stores() {
        fn shown(stores: [&str; 2]) -> String {
            let mut table = Table::new(&screen(None), &["A", ">B"]);
            table.row(vec!["a".into(), "1".into()]);
            table.row(vec!["b".into(), "2".into()]);
            table.add_stores(stores.into_iter());
            anstream::adapter::strip_str(&table.render()).to_string()
        }
        assert_eq!(shown(["/s", "/s"]), "A  B\na  1\nb  2\n");
        assert_eq!(shown(["/s", "/t"]), "A  B  STORE\na  1  /s\nb  2  /t\n");
    }

    #[test]
    fn long_name_is_cut_unless_no_trunc() {
        let name = format!("a/{}\u{1b}:1", "x".repeat(500_000));
        fn shown(name: &str, screen: &Screen) -> String {
            let mut table = Table::new(screen, &["NAME", "ID", "NOTE"]);
            table.row(vec![safe(name), "1".into(), "y".repeat(600)]);
            table.row(vec!["b".into(), "2".into(), name.to_owned()]);
            anstream::adapter::strip_str(&table.render()).to_string()
        }
        let cut = shown(&name, &screen(None));
        let lines: Vec<_> = cut.lines().collect();
        assert!(lines.iter().all(|line| line.width() <= PIPED_CELL + GAP + 2 + GAP + LAST_CELL), "{cut}");
        assert!(lines[1].starts_with("a/xxx") && lines[1].contains("…"), "{cut}");
        assert!(lines[1].contains("x\\u{1b}:1  1   ") && lines[1].ends_with(&"y".repeat(600)), "{cut}");
        assert!(!cut.contains('\u{1b}'));
        let whole = shown(&name, &Screen { truncates: false, ..screen(Some(80)) });
        assert!(whole.contains(&safe(&name)) && !whole.contains('…'));
        assert!(whole.lines().next().unwrap().len() < 2 * CELL, "no other row is padded to it");
    }

    #[test]
    fn piped_column_has_a_maximum_width() {
        let mut table = Table::new(&screen(None), &["", ">SIZE", "WHY"]);
        table.row(vec!["x".repeat(190), "1 B".into(), "y".repeat(190)]);
        table.row(vec!["a".into(), "2 B".into(), String::new()]);
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(plain.lines().last(), Some(format!("{:<60}   2 B", "a").as_str()));
        assert!(
            plain.contains('…') && plain.ends_with("2 B\n") && plain.contains(&"y".repeat(190)),
            "{plain}"
        );
    }

    #[test]
    fn columns_are_aligned_by_display_width() {
        let mut table = Table::new(&screen(None), &["NAME", ">SIZE", "NOTE"]);
        table.row(vec!["画像".into(), "1 B".into(), String::new()]);
        table.row(vec!["a".into(), "100 KiB".into(), "x".into()]);
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(plain, "NAME     SIZE  NOTE\n画像      1 B\na     100 KiB  x\n");
    }

    #[test]
    fn narrow_terminal_removes_columns_and_shortens() {
        fn fitted(width: Option<usize>) -> (String, Vec<String>) {
            let mut table = Table::new(&screen(width), &["NAME", ">SIZE", "NOTE"]);
            table.row(vec!["docker.io/library/nginx".into(), "100 KiB".into(), "in use".into()]);
            let removed = table.fit(&[2], &[(0, 10)]);
            (anstream::adapter::strip_str(&table.render()).to_string(), removed)
        }
        let whole = "NAME                        SIZE  NOTE\ndocker.io/library/nginx  100 KiB  in use\n";
        assert_eq!(fitted(None), (whole.into(), vec![]));
        assert_eq!(fitted(Some(40)), (whole.into(), vec![]));
        let cut = "NAME             SIZE  NOTE\n…brary/nginx  100 KiB  in use\n";
        assert_eq!(fitted(Some(29)), (cut.into(), vec![]));
        let bare = "NAME           SIZE\n…ary/nginx  100 KiB\n";
        assert_eq!(fitted(Some(19)), (bare.into(), vec!["NOTE".into()]));
        // A table that cannot fit has its minimum width.
        assert_eq!(fitted(Some(3)).0, bare);
    }
}
