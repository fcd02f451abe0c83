//! Drawing of the view, at 80 by 24 and larger. Colours only repeat what a sign beside them says.

use std::sync::PoisonError;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use unicode_width::UnicodeWidthStr;

use super::rows::{Explored, Place, PlaceRow};
use super::state::{EnteredPlace, ExploreView, TextPage, Typing};
use crate::model::ImageIx;
use crate::model::text::display::count;
use crate::report::text::{bytes, shorten};

#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) unicode: bool,
    pub(super) colour: bool,
}

const SIZE: usize = 10;
const BAR: usize = 12;

impl Look {
    fn in_colour(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn cut(self, text: &str, width: usize) -> String {
        let mark = if self.unicode { "…" } else { ".." };
        let text = shorten(text, width, mark);
        let text = if self.unicode || text.is_ascii() { text } else { text.escape_default().to_string() };
        format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
    }
}

/// Draws the view. `waiting`: what is being done.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut ExploreView, look: Look, waiting: Option<&str>) {
    let areas = [Constraint::Length(2), Constraint::Min(1), Constraint::Length(3)];
    let [head, body, foot] = Layout::vertical(areas).areas(frame.area());
    let shares = view.facts.as_ref().zip(view.level()).and_then(|(facts, level)| {
        let is_shown = view.page.is_none() && !view.in_marked && view.deleting.is_none();
        facts.of_shares(&level.place, &level.rows).filter(|_| is_shown)
    });
    view.height = usize::from(body.height).saturating_sub(1 + usize::from(shares.is_some())).max(1);
    frame.render_widget(Paragraph::new(header(view, look, usize::from(head.width))), head);
    let lines = match (&view.page, &view.facts) {
        _ if view.deleting.is_some() => of_deletion(view, look, body),
        (Some(page), _) => of_page(page, look, body),
        (None, Some(facts)) if view.in_marked => of_marked(view, facts, look, body),
        (None, Some(facts)) => {
            let rows = view.level().map(|level| of_level(level, view, facts, look, body));
            let shares = shares.map(|text| Line::from(look.cut(&text, usize::from(body.width))));
            shares.into_iter().chain(rows.unwrap_or_default()).collect()
        }
        (None, None) => Vec::new(),
    };
    frame.render_widget(Paragraph::new(lines), body);
    frame.render_widget(Paragraph::new(footer(view, look, usize::from(foot.width), waiting)), foot);
}

fn header(view: &ExploreView, look: Look, width: usize) -> Vec<Line<'static>> {
    let between = if look.unicode { " › " } else { " > " };
    let Some(facts) = &view.facts else { return vec![Line::from("layersweep explore")] };
    let titles: Vec<_> = view.levels.iter().map(|level| facts.title(&level.place)).collect();
    let title = match &view.page {
        _ if view.deleting.is_some() => "deleting".into(),
        Some(page) => page.title.clone(),
        None if view.in_marked => "marked images".into(),
        None => titles.join(between),
    };
    let filesystem = view.levels.iter().find_map(|level| match level.place {
        Place::Filesystem(ix) => facts.filesystems.get(ix.get()),
        _ => None,
    });
    let full = filesystem.map_or_else(String::new, |filled| {
        let disk = &filled.filesystem;
        let percent = disk.used_percent.map_or_else(String::new, |percent| format!("{percent:.1}% of "));
        format!("{percent}{} used, {} available", bytes(disk.capacity_bytes), bytes(disk.available_bytes))
    });
    let partly = if facts.is_complete { "" } else { "not everything could be read: sizes are lower bounds" };
    let saved = if facts.is_saved {
        format!("saved {}", facts.scan.taken_at.strftime("%Y-%m-%d %H:%M UTC"))
    } else {
        String::new()
    };
    let state: Vec<_> =
        [saved.as_str(), full.as_str(), partly].into_iter().filter(|part| !part.is_empty()).collect();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    vec![
        Line::from(Span::styled(look.cut(&title, width), bold)),
        Line::from(look.cut(&state.join("; "), width)),
    ]
}

/// Returns the first of the rows to show, so that the selected one is in sight.
fn first(selected: usize, height: usize) -> usize {
    selected.saturating_sub(height.saturating_sub(1))
}

fn of_level(
    level: &EnteredPlace,
    view: &ExploreView,
    facts: &Explored,
    look: Look,
    area: Rect,
) -> Vec<Line<'static>> {
    let has_images = level.rows.iter().any(|row| row.image.is_some());
    let whole =
        level.rows.iter().filter(|row| !row.overlaps).fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
    let width = usize::from(area.width);
    let mut lines = vec![headline(has_images, level, width)];
    if level.shown.is_empty() && !level.is_waiting {
        lines.push(Line::from(if level.filter.is_empty() { "empty" } else { "no row has this text" }));
    }
    let start = first(level.selected, view.height);
    for (position, row) in level.shown.iter().enumerate().skip(start).take(view.height) {
        let row = &level.rows[*row];
        let is_marked = row.image.is_some_and(|image| view.marked.contains(&image));
        let line = of_row(row, (facts, whole), has_images, is_marked, look, width);
        lines.push(if position == level.selected { line.style(Modifier::REVERSED) } else { line });
    }
    lines
}

fn headline(has_images: bool, level: &EnteredPlace, width: usize) -> Line<'static> {
    let sizes = if has_images {
        format!("{:>SIZE$} {:>SIZE$} {:>SIZE$}  ", "FAIR", "EXCLUSIVE", "FREES")
    } else {
        format!("{:>SIZE$}  {:BAR$}  ", "SIZE", "")
    };
    let only = if level.filter.is_empty() { String::new() } else { format!("; only {:?}", level.filter) };
    let text = format!(
        "  {sizes}{:<8}(by {}{only})",
        if has_images { "IMAGE" } else { "NAME" },
        level.sort.as_str()
    );
    Line::from(Span::styled(text.chars().take(width).collect::<String>(), Modifier::BOLD))
}

fn of_row(
    row: &PlaceRow,
    (facts, whole): (&Explored, u64),
    has_images: bool,
    is_marked: bool,
    look: Look,
    width: usize,
) -> Line<'static> {
    let red = look.in_colour(Color::Red);
    let mark = match (is_marked, &row.hidden) {
        (true, _) => Span::styled("* ", red),
        (false, Some(_)) => Span::styled("~ ", red),
        (false, None) => Span::raw("  "),
    };
    let size = if row.bytes == 0 && row.overlaps { String::new() } else { bytes(row.bytes) };
    let figures = match row.image.map(|image| &facts.images[image.get()]) {
        Some(image) => format!(
            "{size:>SIZE$} {:>SIZE$} {:>SIZE$}  ",
            bytes(image.exclusive_bytes),
            image.frees_bytes.map_or_else(|| "unknown".into(), bytes)
        ),
        None if has_images => format!("{size:>SIZE$} {:SIZE$} {:SIZE$}  ", "", ""),
        None => format!("{size:>SIZE$}  {}  ", bar(row, whole, look)),
    };
    let left = width.saturating_sub(mark.width() + figures.width());
    let note = note_of(row, left / 2);
    let room = note.width().min(left / 2);
    let name = look.cut(&row.name, left.saturating_sub(room + usize::from(room > 0) * 2));
    let gap = if room > 0 { "  " } else { "" };
    let style = match (row.image, &row.into) {
        (Some(image), _) if facts.kept(image).is_some() => look.in_colour(Color::Green),
        (Some(_), _) => look.in_colour(Color::Yellow),
        _ if row.hidden.is_some() => look.in_colour(Color::Magenta),
        (None, Some(Place::File(_)) | None) => Style::new(),
        (None, Some(_)) => look.in_colour(Color::Cyan),
    };
    Line::from(vec![
        mark,
        Span::raw(figures),
        Span::styled(name, style),
        Span::raw(format!("{gap}{}", look.cut(&note, room))),
    ])
}

/// Returns the note of a row. The store of an image that several stores have comes before the rest, and alone if there is
/// no room for both.
fn note_of(row: &PlaceRow, room: usize) -> String {
    let both = in_store(row, row.hidden.as_ref().unwrap_or(&row.note));
    match &row.store {
        Some(store) if both.width() > room => store.clone(),
        _ => both,
    }
}

fn in_store(row: &PlaceRow, note: &str) -> String {
    match &row.store {
        Some(store) if note.is_empty() => store.clone(),
        Some(store) => format!("{store}: {note}"),
        None => note.to_owned(),
    }
}

fn bar(row: &PlaceRow, whole: u64, look: Look) -> String {
    if row.overlaps || whole == 0 {
        return " ".repeat(BAR);
    }
    bar_of(row.bytes, whole, BAR, look)
}

fn bar_of(part: u64, whole: u64, width: usize, look: Look) -> String {
    let filled = u128::from(part) * width as u128 / u128::from(whole.max(1));
    let filled = usize::try_from(filled).unwrap_or(width).min(width);
    let (full, empty) = if look.unicode { ("█", "·") } else { ("#", ".") };
    format!("{}{}", full.repeat(filled), empty.repeat(width - filled))
}

fn of_marked(view: &ExploreView, facts: &Explored, look: Look, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let start = first(view.marked_selected, view.height);
    let head = format!("  {:>SIZE$}  IMAGE", "FREES");
    let mut lines = vec![Line::from(Span::styled(head, Modifier::BOLD))];
    for (position, image) in view.marked.iter().enumerate().skip(start).take(view.height) {
        let line = Line::from(marked_line(facts, *image, look, width));
        lines.push(if position == view.marked_selected { line.style(Modifier::REVERSED) } else { line });
    }
    lines
}

fn marked_line(facts: &Explored, image_ix: ImageIx, look: Look, width: usize) -> String {
    let name = facts.title(&Place::Image(image_ix));
    let (frees, why) = match facts.kept(image_ix) {
        Some(why) => ("stays".to_owned(), format!(": {why}")),
        None => {
            (facts.images[image_ix.get()].frees_bytes.map_or_else(|| "unknown".into(), bytes), String::new())
        }
    };
    let room = width.saturating_sub(SIZE + 4);
    format!("* {frees:>SIZE$}  {}", look.cut(&format!("{name}{why}"), room))
}

fn of_deletion(view: &ExploreView, look: Look, area: Rect) -> Vec<Line<'static>> {
    let Some(deletion) = &view.deleting else { return Vec::new() };
    let deletion = deletion.lock().unwrap_or_else(PoisonError::into_inner);
    let width = usize::from(area.width);
    let expected = view.freed.iter().map(|freed| freed.bytes).fold(0, u64::saturating_add);
    let done = deletion.number.saturating_sub(1);
    let disks = deletion.disks.iter().map(|(mount, percent)| {
        let percent = percent.map_or_else(|| "unknown".into(), |percent| format!("{percent:.1}%"));
        format!("{mount} {percent} used")
    });
    let head = match deletion.number {
        0 => "Planning: the node is scanned again, and each image is proven to be unused.".into(),
        number => format!("Image {number} of {}", deletion.planned),
    };
    let bar = bar_of(done as u64, deletion.planned as u64, width.min(60), look);
    let freed = format!(
        "{} freed, {} predicted; {}",
        bytes(deletion.freed_bytes),
        bytes(expected),
        disks.collect::<Vec<_>>().join(", ")
    );
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::from(Span::styled(look.cut(&head, width), bold))];
    lines.extend([bar, freed, String::new()].map(|line| Line::from(look.cut(&line, width))));
    // The last ones are in sight.
    let room = usize::from(area.height).saturating_sub(lines.len());
    let first = deletion.begun.len().saturating_sub(room);
    lines.extend(deletion.begun.iter().enumerate().skip(first).map(|(position, name)| {
        let mark = if position + 1 == deletion.begun.len() { "now   " } else { "done  " };
        Line::from(look.cut(&format!("{mark}{name}"), width))
    }));
    lines
}

fn of_page(page: &TextPage, look: Look, area: Rect) -> Vec<Line<'static>> {
    let lines = page.lines.iter().skip(page.scroll).take(usize::from(area.height));
    lines.map(|line| Line::from(look.cut(line, usize::from(area.width)))).collect()
}

fn footer(view: &ExploreView, look: Look, width: usize, waiting: Option<&str>) -> Vec<Line<'static>> {
    let last = match (&view.typing, waiting) {
        (Some(Typing::Answer(answer)), _) => question(view, answer, look, width),
        (Some(Typing::Filter), _) => {
            let filter = view.level().map_or("", |level| level.filter.as_str());
            format!("/{filter}")
        }
        (None, Some(waiting)) => waiting.to_owned(),
        (None, None) if view.deleting.is_some() => during_deletion(false).into(),
        (None, None) if !view.message.is_empty() => view.message.clone(),
        (None, None) if view.page.is_some() => "j k scroll   any other key closes".into(),
        (None, None) if view.in_marked => {
            "Space unmark   D delete   E write a list   Tab back   ? help".into()
        }
        (None, None) => {
            "Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help".into()
        }
    };
    let mut marked = marked_lines(view);
    if marked[1].is_empty() {
        marked[1] = whole_note(view, width).unwrap_or_default();
    }
    let styled = look.in_colour(Color::Red).add_modifier(Modifier::BOLD);
    vec![
        Line::from(Span::styled(look.cut(&marked[0], width), styled)),
        Line::from(look.cut(&marked[1], width)),
        Line::from(look.cut(&last, width)),
    ]
}

/// Returns the line at the bottom during a deletion, and whether the view is suspended after it.
pub(super) fn during_deletion(suspends: bool) -> &'static str {
    if suspends { "deleting; suspends after this deletion; Ctrl-C stops" } else { "deleting; Ctrl-C stops" }
}

/// Returns the question before a deletion. It names the store if another store has one of the images too.
fn question(view: &ExploreView, answer: &str, look: Look, width: usize) -> String {
    let images = count(view.marked.len() - view.stays.len(), "image", "images");
    let asks = format!("Type yes and Enter, or Esc: {answer}");
    match view.stores_of_twins().as_slice() {
        [] => format!("Delete {images}, as `layersweep rm` would? {asks}"),
        [store] => {
            let words = format!("Delete {images} in ? {asks}").width();
            let store = look.cut(store, store.width().min(width.saturating_sub(words)));
            format!("Delete {images} in {store}? {asks}")
        }
        stores => format!("Delete {images} in {} stores? {asks}", stores.len()),
    }
}

/// Returns what the selected row has no room for: its whole note.
fn whole_note(view: &ExploreView, width: usize) -> Option<String> {
    let facts = view.facts.as_ref()?;
    let is_shown = view.page.is_none() && !view.in_marked && view.deleting.is_none();
    let level = view.level().filter(|_| is_shown)?;
    let row = view.selected_row().filter(|row| row.hidden.is_none())?;
    let has_images = level.rows.iter().any(|row| row.image.is_some());
    let figures = if has_images { 3 * SIZE + 4 } else { SIZE + BAR + 4 };
    let room = width.saturating_sub(2 + figures) / 2;
    let whole = row.image.and_then(|image| facts.kept(image)).unwrap_or_else(|| row.note.clone());
    let is_shown_whole = in_store(row, &whole) == note_of(row, room) && in_store(row, &whole).width() <= room;
    let store = row.store.as_ref().map_or_else(String::new, |store| format!(" in {store}"));
    (!is_shown_whole).then(|| format!("{}{store}: {whole}", row.name))
}

fn marked_lines(view: &ExploreView) -> [String; 2] {
    let Some(facts) = view.facts.as_ref().filter(|_| !view.marked.is_empty()) else {
        return ["No image is marked.".into(), String::new()];
    };
    let freed: Vec<_> = view
        .freed
        .iter()
        .map(|freed| match freed.percents {
            Some((now, then)) => {
                format!("{}, {now:.1}% to {then:.1}% of {}", bytes(freed.bytes), freed.mount)
            }
            None => format!("{} on {}", bytes(freed.bytes), freed.mount),
        })
        .collect();
    let freed = match view.by_tool {
        Some((tool, _, bytes_by_tool)) if freed.is_empty() => {
            format!("{}, by {tool} rmi only", bytes(bytes_by_tool))
        }
        _ if freed.is_empty() => "nothing".to_owned(),
        _ => freed.join("; "),
    };
    let marked = match view.marked.len() {
        1 => "1 image marked frees".to_owned(),
        number => format!("{number} images marked free"),
    };
    let stays = view.stays.first().map_or_else(String::new, |(image, why)| {
        let name = facts.title(&Place::Image(*image));
        let verb = if view.stays.len() == 1 { "stays" } else { "stay" };
        match view.by_tool {
            Some((tool, images, more)) if !view.freed.is_empty() => {
                let kept = view.stays.len() - images;
                let kept = if kept > 0 { format!(", {kept} of them kept") } else { String::new() };
                let of_tool = count(images, "image", "images");
                format!(
                    "{} {verb}{kept}: `{tool} rmi` frees {} with {of_tool}",
                    view.stays.len(),
                    bytes(more)
                )
            }
            _ => format!("{} {verb}: {name}: {why}", view.stays.len()),
        }
    });
    [format!("{marked} {freed}"), stays]
}

#[cfg(test)]
mod tests;
