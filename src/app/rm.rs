//! Which images and names the arguments of `rm` mean.

use super::error::Error;
use crate::execute::untag::Untag;
use crate::model::display::{shell_word, short_id};
use crate::model::reference::repository;
use crate::model::{Image, ImageIx, Store, StoreKind};
use crate::stores::Scan;
use crate::stores::lookup::{self, Subject};

/// The namespace of containerd that CRI uses.
const CRI_NAMESPACE: &str = "k8s.io";

/// What references mean.
#[derive(Debug, Default)]
pub(super) struct Requested {
    /// Images that go, each once, in the order given.
    pub(super) images: Vec<ImageIx>,
    /// Names that go, of images that keep others.
    pub(super) untags: Vec<Untag>,
}

/// Looks up `references`. A name means that name, and the image only where it has no other; an id or
/// a digest means the image, and with `all_tags` a name does, too.
pub(super) fn named(scan: &Scan, references: &[String], all_tags: bool) -> Result<Requested, Error> {
    // For each image, in the order given, the names that were meant.
    let mut meant: Vec<Untag> = Vec::new();
    for reference in references {
        let at = image(scan, reference)?;
        let all = &scan.inventory[at].names;
        let names = lookup::names_meant(all, reference);
        if let [_, _, ..] = names.as_slice()
            && !reference.contains('@')
            && !all_tags
        {
            let names = names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Error::usage(format!("{reference:?} is ambiguous: {names}; nothing was deleted"))
                .hint("give the full name"));
        }
        let names =
            if names.is_empty() || all_tags { all.clone() } else { names.into_iter().cloned().collect() };
        match meant.iter_mut().find(|known| known.image == at) {
            Some(known) => known.names.extend(names),
            None => meant.push(Untag { image: at, names }),
        }
    }
    let mut named = Requested::default();
    for mut one in meant {
        if scan.inventory[one.image].names.iter().all(|name| one.names.contains(name)) {
            named.images.push(one.image);
        } else {
            one.names.sort();
            one.names.dedup();
            named.untags.push(one);
        }
    }
    Ok(named)
}

/// A runtime knows no way to take a name alone. A name by digest says no more than a tag of the same repository, and
/// goes with it.
pub(super) fn for_runtime(scan: &Scan, named: &mut Requested) -> Result<(), Error> {
    let has_other = |untag: &mut Untag| {
        let repositories: Vec<_> = untag.names.iter().map(|name| repository(name)).collect();
        let stays = |name: &String| {
            let goes_along = || name.contains('@') && repositories.contains(&repository(name));
            !untag.names.contains(name) && !goes_along()
        };
        scan.inventory[untag.image].names.iter().any(stays)
    };
    let whole = named.untags.extract_if(.., |untag| !has_other(untag));
    named.images.extend(whole.map(|untag| untag.image));
    let Some(first) = named.untags.first() else { return Ok(()) };
    let image = &scan.inventory[first.image];
    let mut others = image.names.clone();
    others.retain(|name| !first.names.contains(name));
    Err(Error::refused(format!(
        "nothing was deleted: {} has other names, and a runtime removes an image with all its names: {}",
        first.names.join(", "),
        others.join(", ")
    ))
    .hint(format!(
        "to delete the image, use --all-tags or its id; to remove only the name, use `{}`",
        untag_command(&scan.inventory[image.store], image, &first.names)
    )))
}

/// The command that takes these names from an image that keeps others, behind the back of a runtime.
fn untag_command(store: &Store, image: &Image, names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| shell_word(name)).collect();
    let names = names.join(" ");
    match (store.kind, image.id.namespace()) {
        (StoreKind::ContainersStorage, _) => {
            let root = shell_word(&store.root.to_string_lossy());
            format!("podman --root {root} untag {} {names}", short_id(&image.id))
        }
        (StoreKind::Containerd, Some("moby")) => format!("docker image rm {names}"),
        (StoreKind::Containerd, namespace) => {
            let namespace = shell_word(namespace.unwrap_or(CRI_NAMESPACE));
            format!("ctr -n {namespace} images rm {names}")
        }
    }
}

/// The image that a reference means.
fn image(scan: &Scan, reference: &str) -> Result<ImageIx, Error> {
    match lookup::look_up(scan, reference) {
        Ok(Subject::Image(at)) => Ok(at),
        Ok(_) => Err(Error::failed(format!("{reference:?} is not an image; nothing was deleted"))
            .hint("`layersweep images` lists what exists")),
        Err(error) => Err(Error::from(error).with("; nothing was deleted")),
    }
}
