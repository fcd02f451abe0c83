//! Layers stacked as overlayfs stacks them.
//!
//! The layers of a store form a forest. The view is walked over it in depth: [`LayerView::enter`] puts a layer on top of its
//! parent, [`LayerView::leave`] takes it off again and restores what it hid. So each layer is read once, whatever number of
//! images share it, and only the names of one chain are in memory.
//!
//! A file is counted as hidden by the layer that hides its last name. Layers below one another hide it only once, so the
//! bytes that an image does not show are the sum over the layers of its chain. For the whole store a file counts only if
//! no image and no container shows it: each layer knows the number of its *viewers* (images and containers on it or on
//! layers above it), each file the number of viewers for which it is hidden. Example: of two images on one base, one
//! deletes a file of the base. The image does not show it, the other one does: it is hidden for one of two viewers, so it
//! is waste of the image and not of the store.

use std::ops::AddAssign;

use hashbrown::HashMap;
use serde::Serialize;

use super::layer_files::{Content, FileFacts, LayerEntry, LayerFiles};
use crate::model::text::names::names;

names! {
    /// Cause for which a file is hidden.
    HiddenHow {
        /// By a file, symlink or device with other content.
        Overwritten = "overwritten",
        /// By a whiteout, or by an opaque directory.
        Deleted = "deleted",
        /// By a file with the same content: a copy that differs in owner, mode or times.
        Copied = "copied",
    }
}

/// Files that upper layers hide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "HiddenDoc"))]
pub struct Hidden {
    /// Number of hidden files; a file with several hard links is hidden with the last of them.
    #[serde(rename = "hidden_files")]
    pub files: u64,
    /// Allocated bytes of hidden files. A tar-split has only their lengths, which are rounded up to blocks.
    #[serde(rename = "hidden_bytes")]
    pub bytes: u64,
    /// The part of `hidden_bytes` that was deleted: by a whiteout, or by an opaque directory.
    pub deleted_bytes: u64,
    /// The part of `hidden_bytes` that was replaced by a copy with the same content, which differs in owner, mode or
    /// times. The rest was overwritten with other content.
    pub copied_bytes: u64,
}

impl Hidden {
    pub fn add(&mut self, bytes: u64, how: HiddenHow) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        match how {
            HiddenHow::Overwritten => {}
            HiddenHow::Deleted => self.deleted_bytes = self.deleted_bytes.saturating_add(bytes),
            HiddenHow::Copied => self.copied_bytes = self.copied_bytes.saturating_add(bytes),
        }
    }
}

impl AddAssign for Hidden {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.deleted_bytes = self.deleted_bytes.saturating_add(other.deleted_bytes);
        self.copied_bytes = self.copied_bytes.saturating_add(other.copied_bytes);
    }
}

/// File that an upper layer hides. Layers are numbered from the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HiddenFile {
    pub path: u64,
    pub bytes: u64,
    pub layer: usize,
    pub hidden_by: usize,
    pub how: HiddenHow,
}

const NONE: usize = usize::MAX;

/// Name in the view. The names in a directory are a list through `next`, the newest first.
#[derive(Clone, Copy, Debug)]
struct Name {
    path: u64,
    directory: usize,
    first: usize,
    next: usize,
    file: usize,
    is_directory: bool,
}

#[derive(Clone, Copy, Debug)]
struct ViewFile {
    facts: FileFacts,
    /// Path, layer and, if it is hidden, the layer that hides it.
    place: HiddenFile,
    visible_names: u32,
    hidden_viewers: u32,
}

#[derive(Clone, Debug)]
struct Entered {
    viewers: u32,
    first_name: usize,
    first_file: usize,
    /// Names that it hides, in their order.
    hidden: Vec<usize>,
}

/// Maximum number of steps of hiding, in all layers together: ten seconds. A store of 10,000 layers that each replace
/// a thousand files takes a hundredth of it; only one built for it takes more.
const MOST_STEPS: u64 = 1 << 28;

/// Names of a chain of layers, the visible ones by path.
#[derive(Clone, Debug)]
pub struct LayerView {
    names: Vec<Name>,
    visible: HashMap<u64, usize>,
    files: Vec<ViewFile>,
    entered: Vec<Entered>,
    steps_left: u64,
}

impl Default for LayerView {
    fn default() -> Self {
        let top = Name { path: 0, directory: NONE, first: NONE, next: NONE, file: NONE, is_directory: true };
        Self {
            names: vec![top],
            visible: HashMap::from_iter([(top.path, 0)]),
            files: Vec::new(),
            entered: Vec::new(),
            steps_left: MOST_STEPS,
        }
    }
}

impl LayerView {
    #[must_use]
    pub fn depth(&self) -> usize {
        self.entered.len()
    }

    /// Returns true if the layers hide more than is counted: the figures are lower bounds.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.steps_left == 0
    }

    /// Puts a layer on top. Returns the files below that it hides.
    pub fn enter(&mut self, layer: &LayerFiles, viewers: u32) -> Hidden {
        let (first_name, first_file) = (self.names.len(), self.files.len());
        self.entered.push(Entered { viewers, first_name, first_file, hidden: Vec::new() });
        let mut hides = Hidden::default();
        // Directories come last: a file in an opaque directory that the layer has itself was not deleted.
        let (directories, others): (Vec<&LayerEntry>, Vec<&LayerEntry>) =
            layer.entries.iter().partition(|entry| entry.content.is_directory());
        for entry in others.into_iter().chain(directories) {
            let Some(name) = self.visible.get(&entry.path).copied() else { continue };
            match entry.content {
                Content::Directory { .. } if !self.names[name].is_directory => {
                    self.hide(name, HiddenHow::Overwritten, None, &mut hides);
                }
                Content::Directory { is_opaque: true } => {
                    for child in self.children(name) {
                        self.hide(child, HiddenHow::Deleted, None, &mut hides);
                    }
                }
                Content::Directory { is_opaque: false } => {}
                Content::Whiteout => self.hide(name, HiddenHow::Deleted, None, &mut hides),
                content => {
                    self.hide(name, HiddenHow::Overwritten, layer.facts(content), &mut hides);
                }
            }
        }
        self.add(layer);
        hides
    }

    /// Removes the top layer. Returns its files that no viewer shows.
    pub fn leave(&mut self) -> Hidden {
        let mut unseen = Hidden::default();
        let Some(Entered { viewers, first_name, first_file, hidden }) = self.entered.pop() else {
            return unseen;
        };
        for name in self.names.drain(first_name..).rev().collect::<Vec<_>>() {
            self.visible.remove(&name.path);
            // The newest name is the first one in its directory, which may have been removed already.
            if let Some(directory) = self.names.get_mut(name.directory) {
                directory.first = name.next;
            }
        }
        for position in hidden.into_iter().rev() {
            let name = self.names[position];
            self.visible.insert(name.path, position);
            if let Some(file) = self.files.get_mut(name.file) {
                file.visible_names += 1;
            }
        }
        for file in self.files.drain(first_file..).filter(|file| file.hidden_viewers >= viewers.max(1)) {
            unseen.add(file.facts.bytes, file.place.how);
        }
        unseen
    }

    /// Returns the files of the present chain that its top does not show, in the order in which they were added.
    pub fn hidden(&self) -> impl Iterator<Item = HiddenFile> + '_ {
        self.files.iter().filter(|file| file.visible_names == 0).map(|file| file.place)
    }

    /// Returns the files that are hidden for some viewers of the layers that were above, with the number of these viewers.
    pub fn hidden_for(&self) -> impl Iterator<Item = (HiddenFile, u32)> + '_ {
        let hidden = self.files.iter().filter(|file| file.hidden_viewers > 0);
        hidden.map(|file| (file.place, file.hidden_viewers))
    }

    fn children(&self, directory: usize) -> Vec<usize> {
        let mut children = Vec::new();
        let mut next = self.names[directory].first;
        while let Some(name) = self.names.get(next) {
            children.push(next);
            next = name.next;
        }
        children
    }

    /// Hides a name and everything below it. `by`: the file that replaces it.
    fn hide(&mut self, name: usize, how: HiddenHow, by: Option<FileFacts>, hides: &mut Hidden) {
        let depth = self.entered.len() - 1;
        let mut waiting = vec![name];
        while let Some(position) = waiting.pop() {
            if self.steps_left == 0 {
                return;
            }
            self.steps_left -= 1;
            let name = self.names[position];
            if self.visible.get(&name.path) != Some(&position) {
                continue;
            }
            self.visible.remove(&name.path);
            self.entered[depth].hidden.push(position);
            waiting.extend(self.children(position));
            let viewers = self.entered[depth].viewers;
            let Some(file) = self.files.get_mut(name.file) else { continue };
            file.visible_names -= 1;
            if file.visible_names == 0 {
                let is_copy = by.is_some_and(|by| by.equals(&file.facts));
                file.place.how = if is_copy { HiddenHow::Copied } else { how };
                file.place.hidden_by = depth;
                file.hidden_viewers = file.hidden_viewers.saturating_add(viewers);
                hides.add(file.facts.bytes, file.place.how);
            }
        }
    }

    fn add(&mut self, layer: &LayerFiles) {
        let depth = self.entered.len() - 1;
        let mut added = vec![NONE; layer.entries.len()];
        added[0] = 0;
        let mut links = Vec::new();
        for (position, entry) in layer.entries.iter().enumerate().skip(1) {
            let directory = added[entry.directory];
            // A file took the place of its directory, or it is in a directory that did.
            if self.names.get(directory).is_none_or(|name| !name.is_directory) {
                continue;
            }
            let mut file = NONE;
            match entry.content {
                Content::Whiteout => continue,
                Content::Link(target) => {
                    links.push((position, target));
                    continue;
                }
                Content::Directory { .. } => {
                    if let Some(lower) = self.visible.get(&entry.path) {
                        added[position] = *lower;
                        continue;
                    }
                }
                Content::Other => {}
                Content::File(facts) => {
                    file = self.files.len();
                    let how = HiddenHow::Overwritten;
                    let place = HiddenFile {
                        path: entry.path,
                        bytes: facts.bytes,
                        layer: depth,
                        hidden_by: depth,
                        how,
                    };
                    self.files.push(ViewFile { facts, place, visible_names: 1, hidden_viewers: 0 });
                }
            }
            added[position] = self.push(entry.path, directory, file, entry.content.is_directory());
        }
        for (position, target) in links {
            let entry = layer.entries[position];
            let file = self.names.get(added[target]).map_or(NONE, |name| name.file);
            if let Some(file) = self.files.get_mut(file) {
                file.visible_names += 1;
            }
            self.push(entry.path, added[entry.directory], file, false);
        }
    }

    fn push(&mut self, path: u64, directory: usize, file: usize, is_directory: bool) -> usize {
        let position = self.names.len();
        let next = std::mem::replace(&mut self.names[directory].first, position);
        self.names.push(Name { path, directory, first: NONE, next, file, is_directory });
        self.visible.insert(path, position);
        position
    }
}

#[cfg(test)]
mod tests;
