//! State of the view, and what each key does to it. No I/O: work is returned as a [`Job`].

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rows::{
    Explored, FreedTogether, Place, PlaceRow, Reference, files_of_layer, image_title, mark_hidden,
};
use crate::app::waste::HiddenInLayer;
use crate::model::refs::Root;
use crate::model::{FilesystemIx, ImageIx, NodeIx};
use crate::report::text::safe;
use crate::stores::Scan;

/// Work that the view asks for; the answer comes later.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Scan,
    Directory(PathBuf),
    File(PathBuf),
    /// Find what upper layers hide of a layer.
    Hidden(Arc<Scan>, NodeIx),
    Explain(Reference),
    Waste(Reference),
    /// Write the marked images to a list for `rm --file`.
    Export,
    Delete,
    /// End a deletion.
    Stop,
    Suspend,
    Quit,
}

/// Progress of a deletion, which its thread writes.
#[derive(Debug, Default)]
pub(super) struct DeletionProgress {
    /// Number of the deletion that has begun, from 1.
    pub(super) number: usize,
    pub(super) planned: usize,
    /// Titles of the images whose deletion has begun.
    pub(super) begun: Vec<String>,
    pub(super) freed_bytes: u64,
    /// Filesystems on which it frees bytes, each with the percentage used.
    pub(super) disks: Vec<(String, Option<f64>)>,
    pub(super) messages: Vec<String>,
}

impl DeletionProgress {
    pub(super) fn new(view: &ExploreView) -> Self {
        let disks = view.freed.iter().map(|freed| (freed.mount.clone(), freed.percents.map(|(now, _)| now)));
        Self { planned: view.marked.len() - view.stays.len(), disks: disks.collect(), ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Size,
    Exclusive,
    Frees,
    Age,
    Name,
}

impl Sort {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Exclusive => "exclusive",
            Self::Frees => "frees",
            Self::Age => "age, oldest first",
            Self::Name => "name",
        }
    }
}

#[derive(Debug)]
pub(super) struct EnteredPlace {
    pub(super) place: Place,
    pub(super) rows: Vec<PlaceRow>,
    /// Positions of the rows that the filter leaves, in the order shown.
    pub(super) shown: Vec<usize>,
    pub(super) selected: usize,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) is_waiting: bool,
}

impl EnteredPlace {
    /// Replaces the rows; the selection stays with the row of the same name and store, or else where it is. The order
    /// follows.
    fn set_rows(&mut self, rows: Vec<PlaceRow>) {
        let selected = self.shown.get(self.selected).map(|row| &self.rows[*row]);
        let same = selected.and_then(|selected| {
            rows.iter().position(|row| row.name == selected.name && row.store == selected.store)
        });
        self.shown = same.into_iter().collect();
        if same.is_some() {
            self.selected = 0;
        }
        self.rows = rows;
    }
}

/// Text over the view, for example an explanation.
#[derive(Debug)]
pub(super) struct TextPage {
    pub(super) title: String,
    pub(super) lines: Vec<String>,
    pub(super) scroll: usize,
}

/// Destination of typed characters.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typing {
    Filter,
    /// The answer to the question before a deletion.
    Answer(String),
}

#[derive(Debug)]
pub(super) struct ExploreView {
    pub(super) facts: Option<Explored>,
    pub(super) levels: Vec<EnteredPlace>,
    pub(super) marked: BTreeSet<ImageIx>,
    /// Bytes that those of them free which can be deleted.
    pub(super) freed: Vec<FreedTogether>,
    pub(super) stays: Vec<(ImageIx, String)>,
    /// Unused images of those that stay, which only another tool deletes: it, their number, and what they free.
    pub(super) by_tool: Option<(&'static str, usize, u64)>,
    /// The marked images are shown instead of the innermost level.
    pub(super) in_marked: bool,
    pub(super) marked_selected: usize,
    pub(super) page: Option<TextPage>,
    pub(super) typing: Option<Typing>,
    pub(super) message: String,
    pub(super) deleting: Option<Arc<Mutex<DeletionProgress>>>,
    /// Files that upper layers hide, of the layer that was entered last; `None` until they are found.
    hidden: Option<(NodeIx, Option<HiddenInLayer>)>,
    /// Reason for which nothing can be deleted from here.
    pub(super) read_only: Option<String>,
    pub(super) height: usize,
}

impl ExploreView {
    pub(super) fn new(read_only: Option<String>) -> Self {
        Self {
            facts: None,
            levels: Vec::new(),
            marked: BTreeSet::new(),
            freed: Vec::new(),
            stays: Vec::new(),
            by_tool: None,
            in_marked: false,
            marked_selected: 0,
            page: None,
            typing: None,
            message: String::new(),
            deleting: None,
            hidden: None,
            read_only,
            height: 1,
        }
    }

    /// Shows the result of a scan. Marks stay with images, and the view with its place, as far as they still exist.
    pub(super) fn set_facts(&mut self, facts: Explored) -> Option<Job> {
        let marked: HashSet<_> =
            self.facts.iter().flat_map(|old| self.marked.iter().map(|ix| key(old, *ix))).collect();
        let images = (0..facts.images.len()).map(ImageIx::from);
        self.marked = images.filter(|ix| marked.contains(&key(&facts, *ix))).collect();
        let earlier = self.facts.replace(facts);
        self.hidden = None;
        // The question was about what the earlier scan found.
        if matches!(self.typing, Some(Typing::Answer(_))) {
            self.typing = None;
            self.message = "The node was scanned again: nothing was deleted.".into();
        }
        let levels = std::mem::take(&mut self.levels);
        match earlier {
            Some(earlier) => self.enter_again(&earlier, levels),
            None => {
                self.enter(Place::Filesystems);
                if self.level().is_some_and(|level| level.rows.len() == 1) {
                    self.enter(Place::Filesystem(FilesystemIx::from(0)));
                }
            }
        }
        self.marks_changed();
        let level = self.levels.last_mut()?;
        let Place::Directory(path) = &level.place else { return None };
        level.is_waiting = true;
        Some(Job::Directory(path.clone()))
    }

    /// Enters the places of an earlier scan, each with its order, filter and selected row.
    fn enter_again(&mut self, earlier: &Explored, levels: Vec<EnteredPlace>) {
        for mut level in levels {
            let Some(place) = self.facts.as_ref().and_then(|facts| facts.find(earlier, &level.place)) else {
                return;
            };
            let is_directory = matches!(place, Place::Directory(_));
            level.place = place;
            if !is_directory && let Some(facts) = &self.facts {
                level.set_rows(facts.rows(&level.place));
            }
            if level.rows.is_empty() && !is_directory && !self.levels.is_empty() {
                return;
            }
            self.order(&mut level);
            self.levels.push(level);
        }
    }

    pub(super) fn level(&self) -> Option<&EnteredPlace> {
        self.levels.last()
    }

    fn enter(&mut self, place: Place) -> Option<Job> {
        let rows = self.facts.as_ref()?.rows(&place);
        let job = match &place {
            Place::Directory(path) => Some(Job::Directory(path.clone())),
            _ => None,
        };
        let (filter, is_waiting) = (String::new(), job.is_some());
        let mut level = EnteredPlace {
            place,
            rows,
            shown: Vec::new(),
            selected: 0,
            sort: Sort::Size,
            filter,
            is_waiting,
        };
        self.order(&mut level);
        self.levels.push(level);
        job
    }

    /// Shows the entries of a directory. Leaves it if it cannot be read.
    pub(super) fn set_directory(&mut self, directory: &Path, rows: Result<Vec<PlaceRow>, String>) {
        let place = Place::Directory(directory.to_path_buf());
        let Some(position) = self.levels.iter().rposition(|level| level.place == place) else { return };
        match rows {
            Ok(rows) => {
                let mut inner = self.levels.split_off(position);
                let level = &mut inner[0];
                level.set_rows(rows);
                level.is_waiting = false;
                self.order(level);
                self.levels.append(&mut inner);
                self.mark_hidden();
            }
            Err(why) => {
                self.levels.truncate(position.max(1));
                self.message = why;
            }
        }
    }

    /// Returns the layer in which the innermost place is.
    fn layer(&self) -> Option<NodeIx> {
        let Place::Directory(_) = self.level()?.place else { return None };
        self.levels.iter().rev().find_map(|level| match level.place {
            Place::Layer(node_ix) => Some(node_ix),
            _ => None,
        })
    }

    /// Returns the search for what upper layers hide of the layer in which the view is, unless it has begun.
    pub(super) fn unmarked_layer(&mut self) -> Option<Job> {
        let layer = self.layer()?;
        if self.hidden.as_ref().is_some_and(|(known, _)| *known == layer) {
            return None;
        }
        self.hidden = Some((layer, None));
        Some(Job::Hidden(Arc::clone(&self.facts.as_ref()?.scan), layer))
    }

    /// Shows what upper layers hide of a layer, if the view is still in it.
    pub(super) fn set_hidden(
        &mut self,
        scan: &Arc<Scan>,
        layer: NodeIx,
        hidden: Result<HiddenInLayer, String>,
    ) {
        let is_shown = self.facts.as_ref().is_some_and(|facts| Arc::ptr_eq(&facts.scan, scan));
        let Some((_, found)) = self.hidden.as_mut().filter(|(known, _)| is_shown && *known == layer) else {
            return;
        };
        match hidden {
            Ok(hidden) => {
                if hidden.is_partial {
                    self.message = "Not all upper layers were read: they may hide more.".into();
                }
                *found = Some(hidden);
                self.mark_hidden();
            }
            Err(why) => self.message = safe(&why),
        }
    }

    fn mark_hidden(&mut self) {
        let layer = self.layer();
        if let (Some(facts), Some((known, Some(hidden)))) = (&self.facts, &self.hidden)
            && layer == Some(*known)
        {
            let Some(files) = files_of_layer(&facts.scan, *known) else { return };
            for level in self.levels.iter_mut().rev().take_while(|level| level.place != Place::Layer(*known))
            {
                mark_hidden(&mut level.rows, &files, hidden);
            }
        }
    }

    /// Filters and sorts the rows of a level; the selection stays with its row.
    fn order(&self, level: &mut EnteredPlace) {
        let selected = level.shown.get(level.selected).copied();
        let wanted = level.filter.to_lowercase();
        let rows = level.rows.iter().enumerate();
        let passing = rows.filter(|(_, row)| wanted.is_empty() || row.name.to_lowercase().contains(&wanted));
        level.shown = passing.map(|(position, _)| position).collect();
        let document = |position: usize| {
            let facts = self.facts.as_ref()?;
            facts.images.get(level.rows[position].image?.get())
        };
        match level.sort {
            // Overlapping rows stand below those that add up.
            Sort::Size => level.shown.sort_by_key(|position| {
                let row = &level.rows[*position];
                let full =
                    self.facts.as_ref().zip(row.into.as_ref()).and_then(|(facts, into)| facts.fullness(into));
                (row.overlaps, full, Reverse(row.bytes))
            }),
            Sort::Exclusive => level
                .shown
                .sort_by_key(|position| Reverse(document(*position).map(|image| image.exclusive_bytes))),
            Sort::Frees => level
                .shown
                .sort_by_key(|position| Reverse(document(*position).and_then(|image| image.frees_bytes))),
            Sort::Age => level.shown.sort_by_key(|position| {
                let facts = self.facts.as_ref();
                facts.zip(level.rows[*position].image).and_then(|(facts, image)| facts.last_used(image))
            }),
            Sort::Name => level.shown.sort_by(|a, b| level.rows[*a].name.cmp(&level.rows[*b].name)),
        }
        let stays = selected.and_then(|row| level.shown.iter().position(|shown| *shown == row));
        level.selected = match selected {
            Some(_) => stays.unwrap_or(0),
            None => level.selected.min(level.shown.len().saturating_sub(1)),
        };
    }

    fn reorder(&mut self, change: impl FnOnce(&mut EnteredPlace)) {
        let Some(mut level) = self.levels.pop() else { return };
        change(&mut level);
        self.order(&mut level);
        self.levels.push(level);
    }

    pub(super) fn selected_row(&self) -> Option<&PlaceRow> {
        let level = self.level()?;
        level.rows.get(*level.shown.get(level.selected)?)
    }

    /// Returns the image that a command on the selected row means.
    fn selected_image(&self) -> Option<ImageIx> {
        if self.in_marked {
            return self.marked.iter().nth(self.marked_selected).copied();
        }
        let of_level = match self.level()?.place {
            Place::Image(image) => Some(image),
            _ => None,
        };
        self.selected_row()?.image.or(of_level)
    }

    fn marks_changed(&mut self) {
        if let Some(facts) = &self.facts {
            let mut deletable = Vec::with_capacity(self.marked.len());
            let (mut tool, mut of_tool) = (None, Vec::new());
            self.stays.clear();
            for image in &self.marked {
                match facts.kept(*image) {
                    Some(why) => self.stays.push((*image, why)),
                    None => deletable.push(Root::Image(*image)),
                }
                if let Some(by) = facts.tool_of(*image) {
                    tool = Some(by);
                    of_tool.push(Root::Image(*image));
                }
            }
            // One that something keeps says more than one that another tool deletes.
            self.stays.sort_by_key(|(image, _)| facts.tool_of(*image).is_some());
            self.freed = facts.freed(&deletable);
            let bytes = facts.freed(&of_tool).iter().map(|freed| freed.bytes).fold(0, u64::saturating_add);
            self.by_tool = tool.map(|tool| (tool, of_tool.len(), bytes));
        }
        self.marked_selected = self.marked_selected.min(self.marked.len().saturating_sub(1));
        self.in_marked &= !self.marked.is_empty();
    }

    /// Returns the stores with marked images that can be deleted, if another store has one of these images too.
    pub(super) fn stores_of_twins(&self) -> Vec<String> {
        let Some(facts) = &self.facts else { return Vec::new() };
        let stays: HashSet<_> = self.stays.iter().map(|(image, _)| *image).collect();
        let deletable: Vec<_> = self.marked.iter().copied().filter(|image| !stays.contains(image)).collect();
        if deletable.iter().all(|image| facts.store_of_twin(*image).is_none()) {
            return Vec::new();
        }
        let stores: BTreeSet<_> =
            deletable.iter().map(|image| safe(&facts.images[image.get()].store)).collect();
        stores.into_iter().collect()
    }

    fn toggle(&mut self, image: ImageIx) {
        if !self.marked.remove(&image) {
            self.marked.insert(image);
        }
        self.marks_changed();
    }

    fn mark_all(&mut self) {
        let Some(level) = self.level() else { return };
        let images: Vec<_> = level.shown.iter().filter_map(|position| level.rows[*position].image).collect();
        let all_marked = images.iter().all(|image| self.marked.contains(image));
        for image in images {
            if all_marked {
                self.marked.remove(&image);
            } else {
                self.marked.insert(image);
            }
        }
        self.marks_changed();
    }

    fn step(&mut self, by: isize) {
        let (selected, count) = if self.in_marked {
            (&mut self.marked_selected, self.marked.len())
        } else {
            let Some(level) = self.levels.last_mut() else { return };
            (&mut level.selected, level.shown.len())
        };
        *selected = selected.saturating_add_signed(by).min(count.saturating_sub(1));
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Job> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') if self.deleting.is_some() => Some(Job::Stop),
                KeyCode::Char('c') => Some(Job::Quit),
                KeyCode::Char('z') => Some(Job::Suspend),
                KeyCode::Char('d' | 'f') => self.key(KeyCode::PageDown.into()),
                KeyCode::Char('u' | 'b') => self.key(KeyCode::PageUp.into()),
                _ => None,
            };
        }
        if self.deleting.is_some() {
            return None;
        }
        self.message.clear();
        match self.typing.take() {
            Some(Typing::Filter) => {
                self.type_filter(key.code);
                None
            }
            Some(Typing::Answer(answer)) => self.type_answer(answer, key.code),
            None if self.page.is_some() => {
                self.turn_page(key.code);
                None
            }
            None => self.command(key.code),
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        self.typing = Some(Typing::Filter);
        match code {
            KeyCode::Char(typed) => self.reorder(|level| level.filter.push(typed)),
            KeyCode::Backspace => self.reorder(|level| {
                level.filter.pop();
            }),
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => {
                self.reorder(|level| level.filter.clear());
                self.typing = None;
            }
            KeyCode::Down => self.step(1),
            KeyCode::Up => self.step(-1),
            _ => {}
        }
    }

    fn type_answer(&mut self, mut answer: String, code: KeyCode) -> Option<Job> {
        match code {
            KeyCode::Enter if answer == "yes" => return Some(Job::Delete),
            KeyCode::Enter | KeyCode::Esc => {
                self.message = "Nothing was deleted.".into();
                return None;
            }
            KeyCode::Backspace => {
                answer.pop();
            }
            KeyCode::Char(typed) => answer.push(typed),
            _ => {}
        }
        self.typing = Some(Typing::Answer(answer));
        None
    }

    fn turn_page(&mut self, code: KeyCode) {
        let height = self.height;
        let Some(page) = &mut self.page else { return };
        let last = page.lines.len().saturating_sub(height);
        page.scroll = match code {
            KeyCode::Down | KeyCode::Char('j') => page.scroll + 1,
            KeyCode::Up | KeyCode::Char('k') => page.scroll.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => page.scroll + height,
            KeyCode::PageUp => page.scroll.saturating_sub(height),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return self.page = None,
        }
        .min(last);
    }

    fn command(&mut self, code: KeyCode) -> Option<Job> {
        let page = isize::try_from(self.height).unwrap_or(isize::MAX);
        match code {
            KeyCode::Char('q') => return Some(Job::Quit),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(page),
            KeyCode::PageUp => self.step(-page),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => return self.descend(),
            KeyCode::Esc | KeyCode::Left | KeyCode::Char('h') | KeyCode::Backspace => self.ascend(code),
            KeyCode::Char(' ') => self.mark(),
            KeyCode::Char('a') => self.mark_all(),
            KeyCode::Char('s') if !self.in_marked => self.sort_next(),
            KeyCode::Char('n') if !self.in_marked => self.reorder(|level| level.sort = Sort::Name),
            KeyCode::Char('/') if !self.in_marked => self.typing = Some(Typing::Filter),
            KeyCode::Char('r') => return Some(Job::Scan),
            KeyCode::Char('i') => return self.explain(),
            KeyCode::Char('w') => return self.waste(),
            KeyCode::Char('E') if self.marked.is_empty() => self.message = "No image is marked.".into(),
            KeyCode::Char('E') => match self.refused_list().or_else(|| self.unmarked_twin()) {
                Some(why) => self.message = why,
                None => return Some(Job::Export),
            },
            KeyCode::Tab if self.marked.is_empty() => {
                self.message = "No image is marked: Space marks one.".into()
            }
            KeyCode::Tab => self.in_marked = !self.in_marked,
            KeyCode::Char('D') => self.ask(),
            KeyCode::Char('?') => self.page = Some(self.help()),
            KeyCode::Char('d' | 'x') | KeyCode::Delete => {
                self.message =
                    "Space marks an image; Tab shows the marked ones, and D deletes them there.".into()
            }
            KeyCode::Char(_) => self.message = "This key does nothing here: ? lists the keys.".into(),
            _ => {}
        }
        None
    }

    fn descend(&mut self) -> Option<Job> {
        if self.in_marked {
            let image = self.selected_image()?;
            self.in_marked = false;
            return self.enter(Place::Image(image));
        }
        let into = self.selected_row()?.into.clone();
        let is_saved = self.facts.as_ref()?.is_saved;
        match into {
            Some(Place::Directory(_) | Place::File(_)) if is_saved => {
                self.message = SAVED.into();
                None
            }
            Some(Place::File(path)) => Some(Job::File(path)),
            Some(place) => self.enter(place),
            None => {
                self.message = "There is nothing below this row.".into();
                None
            }
        }
    }

    fn ascend(&mut self, code: KeyCode) {
        let filters = self.level().is_some_and(|level| !level.filter.is_empty());
        if self.in_marked {
            self.in_marked = false;
        } else if filters && code == KeyCode::Esc {
            self.reorder(|level| level.filter.clear());
        } else if self.levels.len() > 1 {
            self.levels.pop();
        }
    }

    fn mark(&mut self) {
        match (self.in_marked, self.selected_image()) {
            (true, Some(image)) => self.toggle(image),
            (false, Some(image)) if self.selected_row().is_some_and(|row| row.image.is_some()) => {
                self.toggle(image);
                self.step(1);
            }
            _ => self.message = "Only images can be marked.".into(),
        }
    }

    fn sort_next(&mut self) {
        self.reorder(|level| {
            let has_images = level.rows.iter().any(|row| row.image.is_some());
            level.sort = match level.sort {
                Sort::Size if has_images => Sort::Exclusive,
                Sort::Exclusive => Sort::Frees,
                Sort::Frees => Sort::Age,
                _ => Sort::Size,
            };
        });
    }

    fn explain(&mut self) -> Option<Job> {
        let row = if self.in_marked { None } else { self.selected_row() };
        let reference = row.and_then(|row| row.reference.clone());
        if reference.is_none()
            && let Some(row) = row
        {
            self.message = match row.into {
                Some(Place::Images(..)) => {
                    "`layersweep images` lists these; Enter shows them, and `i` explains one."
                }
                Some(Place::Leaks(_)) => {
                    "`layersweep sweep` lists these; Enter shows them, and `i` explains one."
                }
                Some(Place::Containers(..) | Place::Forest(..)) => {
                    "`layersweep layers` lists these; Enter shows them, and `i` explains one."
                }
                None => "`layersweep usage --all` has this row; `layersweep layers` lists build cache.",
                Some(_) => "`layersweep usage` lists what is here.",
            }
            .into();
            return None;
        }
        let image = self.selected_image();
        let facts = self.facts.as_ref()?;
        if facts.is_saved {
            self.message = SAVED.into();
            return None;
        }
        reference.or_else(|| facts.reference_of_image(image?)).map(Job::Explain)
    }

    fn waste(&mut self) -> Option<Job> {
        let image = self.selected_image();
        if image.is_none() {
            self.message = "`w` is for images.".into();
        }
        let facts = self.facts.as_ref()?;
        if facts.is_saved {
            self.message = SAVED.into();
            return None;
        }
        facts.reference_of_image(image?).map(Job::Waste)
    }

    fn ask(&mut self) {
        self.message = match (&self.read_only, self.in_marked) {
            (Some(why), _) => format!("Nothing can be deleted here: {why}."),
            (None, false) => "Deletions begin in the marked pane: Tab opens it.".into(),
            (None, true) if self.stays.len() == self.marked.len() => {
                "None of these images can be deleted.".into()
            }
            (None, true) => {
                self.typing = Some(Typing::Answer(String::new()));
                String::new()
            }
        };
    }

    /// Returns a refusal if `rm` would refuse each image of the list.
    fn refused_list(&self) -> Option<String> {
        let (tool, images, _) = self.by_tool?;
        (images == self.marked.len())
            .then(|| format!("No list: `rm` would refuse all of it, only `{tool} rmi` deletes here."))
    }

    /// Returns a refusal if an image that is not marked has the id of a marked one: a list of ids means both.
    fn unmarked_twin(&self) -> Option<String> {
        let facts = self.facts.as_ref()?;
        let marked: HashSet<_> =
            self.marked.iter().map(|image| facts.images[image.get()].id.as_str()).collect();
        let mut others =
            facts.images.iter().enumerate().filter(|(ix, _)| !self.marked.contains(&(*ix).into()));
        let (ix, twin) = others.find(|(_, image)| marked.contains(image.id.as_str()))?;
        let name = image_title(&facts.scan.inventory[ImageIx::from(ix)]);
        Some(format!("{name} is also in {}: mark it there too, or unmark it.", safe(&twin.store)))
    }

    fn help(&self) -> TextPage {
        let same = match self.level().map(|level| &level.place) {
            _ if self.in_marked => "layersweep rm --file LIST --dry-run",
            Some(Place::Images(..)) => "layersweep images",
            Some(Place::Image(_)) => "layersweep explain IMAGE",
            Some(Place::Layer(_)) => "layersweep explain LAYER",
            Some(Place::Forest(..)) => "layersweep layers --tree",
            Some(Place::Leaks(_)) => "layersweep sweep",
            Some(Place::Directory(_) | Place::File(_)) => "layersweep explain PATH",
            _ => "layersweep usage",
        };
        let lines =
            HELP.lines().map(str::to_owned).chain([String::new(), format!("The same in plain text: {same}")]);
        TextPage { title: "Keys".into(), lines: lines.collect(), scroll: 0 }
    }
}

/// Answer to a key that needs more than a saved scan has.
const SAVED: &str = "A saved scan has no directories and files: this needs the disk itself.";

const HELP: &str = "\
j k, arrows    down, up            g G, Home End   first, last row
Enter, l       into the row        h, Esc          back
Space          mark the image      a               mark all shown, or none
s              sort by size, exclusive, frees, age
n              sort by name        /               show only rows with this text
i              explain the row     w               wasted bytes of the image
Tab            the marked images   E               list them for rm --file
D              in the marked pane: delete them, after a typed yes
r              scan again          q               quit

*              the image is marked
~              layers above this one hide it, or a part of it

FAIR is an image's share: layers are divided equally among all that use them.
EXCLUSIVE is what it alone has, FREES what its deletion alone frees. The line at
the bottom says what all marked images free together.";

fn key(facts: &Explored, image: ImageIx) -> (String, String) {
    let document = &facts.images[image.get()];
    (document.store.clone(), document.id.clone())
}
