//! Columns in the manner of `kubectl`: no borders, so that `awk` can read them too.

use unicode_width::UnicodeWidthStr;

use super::format::safe;
use super::screen::Screen;

/// Blanks between two columns.
const GAP: usize = 2;
/// Maximum width of a cell, if the screen truncates: every row is padded to the widest. An image's name with tag and
/// digest has at most 456 characters.
pub(crate) const CELL: usize = 512;
/// The same for the last column, which has sentences and lists of names.
const LAST_CELL: usize = 4096;
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
    screen: Screen,
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table for this screen with these headings; `>` in front of a heading sets its column right.
    pub(super) fn new(screen: &Screen, headings: &[&str]) -> Self {
        let right = |heading: &&str| if heading.starts_with('>') { Align::Right } else { Align::Left };
        Self {
            screen: screen.clone(),
            align: headings.iter().map(right).collect(),
            rows: vec![headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect()],
        }
    }

    /// Adds a row; it has as many cells as there are headings. Longer cells than any real name are cut.
    pub(super) fn row(&mut self, mut cells: Vec<String>) {
        assert_eq!(cells.len(), self.align.len());
        if self.screen.truncates {
            let last = cells.len() - 1;
            for (column, cell) in cells.iter_mut().enumerate() {
                *cell = self.screen.shorten(cell, if column == last { LAST_CELL } else { CELL });
            }
        }
        self.rows.push(cells);
    }

    /// Adds the column STORE with the root of each row's store, unless all rows have the same.
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

    /// Whether it is no wider than the terminal.
    pub(super) fn fits(&self) -> bool {
        let widths = self.widths();
        let gaps = GAP * widths.len().saturating_sub(1);
        self.room().is_none_or(|room| widths.iter().sum::<usize>() + gaps <= room)
    }

    /// Columns of the terminal that it has to fit.
    fn room(&self) -> Option<usize> {
        self.screen.width.filter(|_| self.screen.truncates)
    }

    /// Makes it fit a terminal: the columns of `spare` go, the first one first, until the rest
    /// has room with the columns of `elastic` at their least width; then these shrink, the
    /// widest first. Returns the headings of what has gone. Columns are numbered from 0.
    pub(super) fn fit(&mut self, spare: &[usize], elastic: &[(usize, usize)]) -> Vec<String> {
        let Some(room) = self.room() else { return Vec::new() };
        let mut widths = self.widths();
        let mut stays = vec![true; widths.len()];
        let least = |column: usize, width: usize| {
            elastic
                .iter()
                .find(|(elastic, _)| *elastic == column)
                .map_or(width, |(_, least)| width.min(*least))
        };
        let needs = |stays: &[bool], width: &dyn Fn(usize) -> usize| {
            let shown = (0..stays.len()).filter(|column| stays[*column]);
            shown.map(|column| width(column) + GAP).sum::<usize>().saturating_sub(GAP)
        };
        for column in spare {
            if needs(&stays, &|column| least(column, widths[column])) <= room {
                break;
            }
            stays[*column] = false;
        }
        while needs(&stays, &|column| widths[column]) > room {
            let shrinks = elastic.iter().filter(|(column, least)| stays[*column] && widths[*column] > *least);
            let Some((widest, _)) = shrinks.max_by_key(|(column, _)| widths[*column]) else { break };
            widths[*widest] -= 1;
        }
        let keep = |cells: &mut Vec<String>| {
            let mut column = 0;
            cells.retain(|_| {
                column += 1;
                stays[column - 1]
            });
        };
        let gone =
            self.rows[0].iter().zip(&stays).filter(|(_, stays)| !**stays).map(|(heading, _)| heading.clone());
        let gone = gone.collect();
        for row in &mut self.rows {
            for (column, _) in elastic {
                row[*column] = self.screen.shorten(&row[*column], widths[*column]);
            }
            keep(row);
        }
        let mut column = 0;
        self.align.retain(|_| {
            column += 1;
            stays[column - 1]
        });
        gone
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.align.len())
            .map(|column| self.rows.iter().map(|row| row[column].width()).max().unwrap_or(0))
            .collect()
    }

    /// The lines after an empty one; nothing where there is no row.
    pub(super) fn block(&self) -> String {
        if self.rows.len() > 1 { format!("\n{}", self.render()) } else { String::new() }
    }

    /// The lines, headings in bold (the caller strips that where no terminal listens).
    pub(super) fn render(&self) -> String {
        let widths = self.widths();
        let mut out = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.align) {
                // With `--no-trunc` a longer cell exceeds its column: no other row is padded to it.
                let gap = " ".repeat((*width).min(CELL).saturating_sub(cell.width()));
                match align {
                    Align::Left => line.extend([cell.as_str(), gap.as_str()]),
                    Align::Right => line.extend([gap.as_str(), cell.as_str()]),
                }
                line.push_str(&" ".repeat(GAP));
            }
            let line = line.trim_end();
            if number == 0 {
                out.push_str(&heading(line));
            } else {
                out.push_str(line);
                out.push('\n');
            }
        }
        out
    }
}

pub(super) fn bold(text: &str) -> String {
    format!("{BOLD}{text}{BOLD:#}")
}

/// A heading of its own.
pub(super) fn heading(text: &str) -> String {
    bold(text) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(width: Option<usize>) -> Screen {
        Screen { width, unicode: true, truncates: true, zone: jiff::tz::TimeZone::UTC }
    }

    #[test]
    fn stores_are_shown_where_there_are_several() {
        let shown = |stores: [&str; 2]| {
            let mut table = Table::new(&screen(None), &["A", ">B"]);
            table.row(vec!["a".into(), "1".into()]);
            table.row(vec!["b".into(), "2".into()]);
            table.add_stores(stores.into_iter());
            anstream::adapter::strip_str(&table.render()).to_string()
        };
        assert_eq!(shown(["/s", "/s"]), "A  B\na  1\nb  2\n");
        assert_eq!(shown(["/s", "/t"]), "A  B  STORE\na  1  /s\nb  2  /t\n");
    }

    #[test]
    fn one_long_name_widens_no_column_without_end() {
        let name = format!("a/{}\u{1b}:1", "x".repeat(500_000));
        let shown = |screen: &Screen| {
            let mut table = Table::new(screen, &["NAME", "ID", "NOTE"]);
            table.row(vec![safe(&name), "1".into(), "y".repeat(600)]);
            table.row(vec!["b".into(), "2".into(), name.clone()]);
            anstream::adapter::strip_str(&table.render()).to_string()
        };
        let cut = shown(&screen(None));
        let lines: Vec<_> = cut.lines().collect();
        assert!(lines.iter().all(|line| line.width() <= CELL + GAP + 2 + GAP + LAST_CELL), "{cut}");
        assert!(lines[1].starts_with("a/xxx") && lines[1].contains("…"), "{cut}");
        assert!(lines[1].contains("x\\u{1b}:1  1   ") && lines[1].ends_with(&"y".repeat(600)), "{cut}");
        assert!(!cut.contains('\u{1b}'));
        let whole = shown(&Screen { truncates: false, ..screen(Some(80)) });
        assert!(whole.contains(&safe(&name)) && !whole.contains('…'));
        assert!(whole.lines().next().unwrap().len() < 2 * CELL, "no row is padded to it");
    }

    #[test]
    fn columns_line_up_by_display_width() {
        let mut table = Table::new(&screen(None), &["NAME", ">SIZE", "NOTE"]);
        table.row(vec!["画像".into(), "1 B".into(), String::new()]);
        table.row(vec!["a".into(), "100 KiB".into(), "x".into()]);
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(plain, "NAME     SIZE  NOTE\n画像      1 B\na     100 KiB  x\n");
    }

    #[test]
    fn a_narrow_terminal_takes_what_can_be_spared() {
        let fitted = |width, spare: &[usize]| {
            let mut table = Table::new(&screen(width), &["NAME", ">SIZE", "NOTE"]);
            table.row(vec!["docker.io/library/nginx".into(), "100 KiB".into(), "in use".into()]);
            let gone = table.fit(spare, &[(0, 10)]);
            (anstream::adapter::strip_str(&table.render()).to_string(), gone)
        };
        let whole = "NAME                        SIZE  NOTE\ndocker.io/library/nginx  100 KiB  in use\n";
        assert_eq!(fitted(None, &[2]), (whole.into(), vec![]));
        assert_eq!(fitted(Some(40), &[2]), (whole.into(), vec![]));
        let cut = "NAME             SIZE  NOTE\n…brary/nginx  100 KiB  in use\n";
        assert_eq!(fitted(Some(29), &[2]), (cut.into(), vec![]));
        let bare = "NAME           SIZE\n…ary/nginx  100 KiB\n";
        assert_eq!(fitted(Some(19), &[2]), (bare.into(), vec!["NOTE".into()]));
        // What cannot fit stays as narrow as it can be.
        assert_eq!(fitted(Some(3), &[2]).0, bare);
    }
}
