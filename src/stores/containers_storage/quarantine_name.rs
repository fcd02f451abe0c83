//! Names of quarantined layer directories.
//!
//! A filesystem without a free byte has no room for rewritten records. There, layersweep first renames the directory of
//! a layer to a name from this module and empties it, and then deletes the records with the room that this freed. If the
//! run is killed in between, the layer has a record but no directory, and the renamed directory remains. Its name is
//!
//! ```text
//! 6c617965727377656570 | 00     | 42 digits
//! "layersweep" in hex  | number | start of the layer's id
//! ```
//!
//! As long as the layer has a record and no directory, layersweep keeps the renamed directory. It is the sign that the
//! deletion of the image on that layer has to be finished.
//!
//! The name is also a valid id without a record. Every version of the library treats such a directory as an orphan and
//! deletes it in its garbage collection.

use super::records::is_id;

/// `layersweep` in hexadecimal digits.
const PREFIX: &str = "6c617965727377656570";

/// Maximum number of rename attempts. ext4 selects a block of the parent directory by the hash of the name. That block
/// can be full while others have room, so another name can succeed.
const NAMES: u8 = 64;

/// Number of digits of the layer's id that the name contains.
const OF_LAYER: usize = 42;

/// Returns the possible names for the directory of a layer, or none if `layer` is not an id.
pub(crate) fn names_of(layer: &str) -> impl Iterator<Item = String> + '_ {
    let layer = Some(layer).filter(|id| is_id(id)).map(|id| &id[..OF_LAYER]);
    layer.into_iter().flat_map(|layer| (0..NAMES).map(move |number| format!("{PREFIX}{number:02x}{layer}")))
}

/// Returns the first digits of the layer's id in a quarantine name, or `None` for another name.
pub(crate) fn layer_of(name: &str) -> Option<&str> {
    Some(name).filter(|name| is_id(name))?.strip_prefix(PREFIX)?.get(2..)
}

/// Returns the id of the layer whose deletion was interrupted after its directory got this name.
///
/// Such a layer has a record (its id is in `ids`) but no directory. `has_directory` takes a position in `ids`.
pub(crate) fn lost_layer<'a, E>(
    name: &str,
    ids: impl Iterator<Item = &'a str>,
    has_directory: impl Fn(usize) -> Result<bool, E>,
) -> Result<Option<&'a str>, E> {
    let Some(prefix) = layer_of(name) else { return Ok(None) };
    let Some((position, id)) = ids.enumerate().find(|(_, id)| id.starts_with(prefix)) else {
        return Ok(None);
    };
    Ok((!has_directory(position)?).then_some(id))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn name_is_an_id_and_identifies_the_layer() {
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
