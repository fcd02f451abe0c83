//! The name of a layer's directory that was taken out of the way to be emptied, on a disk without a free byte: it
//! tells which layer that was, and which images are deleted.
//!
//! It is an id without a record, which every version of the library takes for an orphan that its garbage collection
//! removes. For us it is none as long as the layer has a record and no directory: it is the sign that the deletion
//! has to be finished.

use super::records::is_id;

/// `layersweep` in hexadecimal digits.
const OURS: &str = "6c617965727377656570";

/// So many names are tried. ext4 puts a name into the block of the directory that its hash says, and that
/// one may be full while others have room.
const NAMES: u8 = 64;

/// So many digits of the layer's id are in the name, and so many of the images' together.
const OF_LAYER: usize = 20;
const OF_IMAGES: usize = 21;

/// Tells the images that are deleted together: the first digit says how many digits there are of each id, and
/// these follow. The more images, the fewer digits: 0 where there are too many, and then any image on the layer is
/// taken for one of them. Empty for ids that are none of the library's.
pub(super) fn group_of<'a>(images: impl Iterator<Item = &'a str>) -> String {
    let ids: Vec<_> = images.collect();
    if !ids.iter().all(|id| is_id(id)) {
        return String::new();
    }
    let each = (OF_IMAGES / ids.len().max(1)).min(15);
    let digits = ids.iter().cycle().flat_map(|id| if each > 0 { &id[..each] } else { "0" }.chars());
    format!("{each:x}{}", digits.take(OF_IMAGES).collect::<String>())
}

/// Whether an image is one of those.
pub(super) fn is_in_group(group: &str, image: &str) -> bool {
    let (each, digits) = group.split_at(1);
    match usize::from_str_radix(each, 16) {
        Ok(0) => true,
        Ok(each) => digits.as_bytes().chunks_exact(each).any(|begin| image.as_bytes().starts_with(begin)),
        Err(_) => false,
    }
}

/// The names that the directory of a layer can get when the images of this group are deleted; none for ids that
/// are none of the library's.
pub(super) fn names_of<'a>(layer: &'a str, group: &'a str) -> impl Iterator<Item = String> + 'a {
    let layer = Some(layer).filter(|id| is_id(id) && !group.is_empty()).map(|id| &id[..OF_LAYER]);
    layer
        .into_iter()
        .flat_map(move |layer| (0..NAMES).map(move |number| format!("{OURS}{number:02x}{layer}{group}")))
}

/// What the id of the layer begins with that a directory of this name was of, and the group of the images.
pub(super) fn ids_of(name: &str) -> Option<(&str, &str)> {
    Some(name).filter(|name| is_id(name))?.strip_prefix(OURS)?.get(2..)?.split_at_checked(OF_LAYER)
}

/// The layer that a directory of this name was taken from, if it is lost and its deletion unfinished: it still has a
/// record, as those of `ids` have, and no directory. `has_directory` takes a position in `ids`.
pub(super) fn lost_layer<'a, E>(
    name: &str,
    ids: impl Iterator<Item = &'a str>,
    has_directory: impl Fn(usize) -> Result<bool, E>,
) -> Result<Option<&'a str>, E> {
    let Some((begins, _)) = ids_of(name) else { return Ok(None) };
    let Some((at, id)) = ids.enumerate().find(|(_, id)| id.starts_with(begins)) else {
        return Ok(None);
    };
    Ok((!has_directory(at)?).then_some(id))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_name_tells_the_layer_and_is_an_id() {
        let id = "0123456789abcdef".repeat(4);
        let images = ["fedcba9876543210", "00ffcc9876543210", "1123456789abcdef"].map(|id| id.repeat(4));
        let group = |count: usize| group_of(images[..count].iter().map(String::as_str));
        assert_eq!(group(2), "afedcba987600ffcc9876f");
        for count in 1..=3 {
            let group = group(count);
            for name in names_of(&id, &group) {
                assert!(is_id(&name), "{name}");
                let (of_layer, of_images) = ids_of(&name).unwrap();
                assert!(id.starts_with(of_layer) && of_images == group, "{name}");
            }
            for (at, image) in images.iter().enumerate() {
                assert_eq!(is_in_group(&group, image), at < count, "{group} {image}");
            }
        }
        assert_eq!(names_of(&id, &group(1)).collect::<HashSet<_>>().len(), usize::from(NAMES));
        let name = names_of(&id, &group(1)).next().unwrap();
        for (layers, has_directory, lost) in [
            (vec![&*images[0], &*id], false, true),
            (vec![&*id], true, false),
            (vec![&*images[0]], false, false),
        ] {
            let found = lost_layer(&name, layers.into_iter(), |_| Ok::<_, ()>(has_directory));
            assert_eq!(found, Ok(Some(&*id).filter(|_| lost)), "{has_directory}");
        }
        let many: Vec<_> = (0..30).map(|at| format!("{at:064x}")).collect();
        let many = group_of(many.iter().map(String::as_str));
        assert!(names_of(&id, &many).all(|name| ids_of(&name).is_some()));
        assert!(is_in_group(&many, &images[0]));
        assert_eq!(ids_of(&id), None);
        assert_eq!(names_of("../escape", &group(1)).next(), None);
        assert_eq!(names_of(&id, &group_of(["oci-artifact"].into_iter())).next(), None);
    }
}
