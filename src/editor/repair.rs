//! Repairs a layer's short name. Library versions up to 1.62 recreate a missing one at the next
//! mount; later ones fail to mount layers without `lower-layers`. All versions accept an empty `link`
//! file as it is.

use std::path::Path;

use rustix::fs::Mode;

use super::deleted::Deleted;
use super::error::{Error, Refusal};
use super::graphroot_editor::Editor;
use super::links;
use super::mounted::Read;
use super::session::Session;
use super::write;
use crate::stores::containers_storage::places::RecordKind;

impl Editor {
    /// Recreates the short name of a layer with a record (class `missing-link`): the entry of `l/` that its `link` file
    /// names, or the `link` file if exactly one entry of `l/` leads to the layer.
    ///
    /// # Errors
    /// [`Error::Refused`] if the layer has no record, if its link exists, or if several names are possible. Other
    /// errors as documented.
    pub fn repair_link(&self, id: &str) -> Result<Deleted, Error> {
        Session::open(self, Read::Mounts)?.run(|session| session.repair_link(id))
    }
}

impl Session<'_> {
    fn repair_link(&mut self, id: &str) -> Result<(), Error> {
        let file = self.records.file_of(RecordKind::Layers, id)?;
        let dir_index = self.directory_of_layers(file);
        let layers = self.directories[dir_index].layers.as_ref().ok_or_else(|| no_directory(id))?;
        let directory = layers.below(id)?.ok_or_else(|| no_directory(id))?;
        let names = layers.below(links::DIRECTORY)?.ok_or_else(|| no_directory(id))?;
        let written = directory.read_small("link")?.unwrap_or_default();
        let leading = self.editor.with_links(dir_index, |known| {
            let names = known.names_of(id).filter(|name| links::is_short_name(name));
            names.map(str::to_owned).collect::<Vec<_>>()
        });
        if links::is_short_name(&written) {
            if names.has(&written)? {
                return Err(Refusal::Changed { id: id.to_owned(), change: "its link exists".into() }.into());
            }
            names.make_symlink(&Path::new("..").join(id).join("diff"), &written)?;
        } else {
            let Some([name]) = leading.as_deref() else {
                let change = "not exactly one name leads to it".into();
                return Err(Refusal::Changed { id: id.to_owned(), change }.into());
            };
            // The library writes it without a newline, and readable for all users.
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
            write::replace(&directory, "link", name.as_bytes(), mode, true, &|step| self.step(step))?;
        }
        self.done.has_changed = true;
        self.step("link repaired");
        Ok(())
    }
}

fn no_directory(id: &str) -> Refusal {
    Refusal::Unknown { kind: "layer directory", id: id.to_owned() }
}
