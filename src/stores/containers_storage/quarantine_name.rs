//! The name of a layer's directory that was taken out of the way to be emptied, on a disk without a free byte.
//!
//! It is an id without a record, which every version of the library takes for an orphan that its garbage collection
//! removes. layersweep keeps it as long as the layer has a record and no directory: it is the sign that the deletion of
//! the image on that layer has to be finished.

use super::records::is_id;

/// `layersweep` in hexadecimal digits.
const OURS: &str = "6c617965727377656570";

/// Maximum number of names that are tried. ext4 puts a name into the block of the directory that its hash says, and that
/// one may be full while others have room.
const NAMES: u8 = 64;

/// Number of digits of the layer's id in the name.
const OF_LAYER: usize = 42;

/// The names that the directory of a layer can get; none for an id that is not the library's.
pub(crate) fn names_of(layer: &str) -> impl Iterator<Item = String> + '_ {
    let layer = Some(layer).filter(|id| is_id(id)).map(|id| &id[..OF_LAYER]);
    layer.into_iter().flat_map(|layer| (0..NAMES).map(move |number| format!("{OURS}{number:02x}{layer}")))
}

/// First digits of the id of the layer that a directory of this name belonged to.
pub(crate) fn layer_of(name: &str) -> Option<&str> {
    Some(name).filter(|name| is_id(name))?.strip_prefix(OURS)?.get(2..)
}

/// The layer that a directory of this name was taken from, if it is lost and its deletion unfinished: it still has a
/// record, as those of `ids` have, and no directory. `has_directory` takes a position in `ids`.
pub(crate) fn lost_layer<'a, E>(
    name: &str,
    ids: impl Iterator<Item = &'a str>,
    has_directory: impl Fn(usize) -> Result<bool, E>,
) -> Result<Option<&'a str>, E> {
    let Some(begins) = layer_of(name) else { return Ok(None) };
    let Some((position, id)) = ids.enumerate().find(|(_, id)| id.starts_with(begins)) else {
        return Ok(None);
    };
    Ok((!has_directory(position)?).then_some(id))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_name_tells_the_layer_and_is_an_id() {
        let id = "0123456789abcdef".repeat(4);
        let other = "fedcba9876543210".repeat(4);
        for name in names_of(&id) {
            assert!(is_id(&name), "{name}");
            assert!(id.starts_with(layer_of(&name).unwrap()), "{name}");
        }
        assert_eq!(names_of(&id).collect::<HashSet<_>>().len(), usize::from(NAMES));
        let name = names_of(&id).next().unwrap();
        for (layers, has_directory, lost) in
            [(vec![&*other, &*id], false, true), (vec![&*id], true, false), (vec![&*other], false, false)]
        {
            let found = lost_layer(&name, layers.into_iter(), |_| Ok::<_, ()>(has_directory));
            assert_eq!(found, Ok(Some(&*id).filter(|_| lost)), "{has_directory}");
        }
        assert_eq!(layer_of(&id), None);
        assert_eq!(names_of("../escape").next(), None);
    }
}
