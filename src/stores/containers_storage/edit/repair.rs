//! Repairs a layer's short name. Library versions up to 1.62 recreate a missing one at the next
//! mount; later ones fail to mount layers without `lower-layers`. All versions accept an empty `link`
//! file as it is.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::deleted::Deleted;
use super::directory::{Directory, give_to_owner};
use super::editor::Editor;
use super::error::{Error, Fault, Refusal};
use super::links;
use super::locks::noise64;
use super::mounted::Read;
use super::session::Session;
use crate::stores::containers_storage::places::RecordKind;

impl Editor {
    /// Makes the short name of a layer with a record (classes `missing-l`, `empty-linkfile`): the
    /// entry of `l/` that its `link` file names, or the `link` file from the one entry of `l/`
    /// that leads to it.
    ///
    /// # Errors
    /// [`Error::Refused`] where the layer has no record, where nothing is wrong with it, or where
    /// several names are possible. Other errors as documented.
    pub fn repair_link(&self, id: &str) -> Result<Deleted, Error> {
        Session::open(self, Read::Mounts)?.run(|session| session.repair_link(id))
    }
}

impl Session<'_> {
    fn repair_link(&mut self, id: &str) -> Result<(), Error> {
        let file = self.records.file_of(RecordKind::Layers, id)?;
        let place = self.directory_place(file);
        let unknown = || Refusal::Unknown { kind: "layer directory", id: id.to_owned() };
        let layers = self.places[place].layers.as_ref().ok_or_else(unknown)?;
        let directory = layers.below(id)?.ok_or_else(unknown)?;
        let names = layers.below(links::DIRECTORY)?.ok_or_else(unknown)?;
        let written = directory.read_small("link")?.unwrap_or_default();
        let leading = self.editor.with_links(place, |links| links.leading_to(id)).unwrap_or_default();
        if links::is_short_name(&written) {
            if names.has(&written)? {
                return Err(Refusal::Changed { id: id.to_owned(), what: "its link exists".into() }.into());
            }
            names.make_symlink(&Path::new("..").join(id).join("diff"), &written)?;
        } else {
            let mut leading = leading.into_iter();
            let (Some(name), None) = (leading.next(), leading.next()) else {
                let what = "not exactly one name leads to it".into();
                return Err(Refusal::Changed { id: id.to_owned(), what }.into());
            };
            write_link(&directory, &name)?;
        }
        self.step("link repaired");
        Ok(())
    }
}

/// As the library writes it: mode 0644, no newline.
fn write_link(directory: &Directory, name: &str) -> Result<(), Fault> {
    let temporary = OsString::from(format!(".tmp-link{}", noise64() % 1_000_000_000));
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let mut file = directory.create(&temporary, mode)?;
    give_to_owner(file.as_fd(), directory.fd());
    let written = file.write_all(name.as_bytes()).and_then(|()| file.sync_data()).map_err(|error| {
        let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Fault::new("writing", directory.path().join(&temporary), error)
    });
    let written = written.and_then(|()| directory.replace(&temporary, "link".as_ref()));
    if written.is_err() {
        let _ = directory.unlink(&temporary);
    }
    written
}

impl links::Links {
    /// The names in `l/` that lead to a layer.
    fn leading_to(&self, id: &str) -> BTreeSet<String> {
        self.names_of(id).filter(|name| links::is_short_name(name)).map(str::to_owned).collect()
    }
}
