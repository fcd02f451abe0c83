//! Volumes of nerdctl. No record on the disk lists them: a path shows them.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NerdctlVolume {
    pub directory: PathBuf,
    pub namespace: String,
    pub name: String,
}

impl NerdctlVolume {
    /// Returns the volume around a path, or the path itself. nerdctl has a directory for each containerd, named after a
    /// hash of its address: `/var/lib/nerdctl/1935db59/volumes/<namespace>/<name>/_data` (`docs/dir.md` of nerdctl). A
    /// data root with another name is not recognised.
    #[must_use]
    pub fn around(path: &Path) -> Option<Self> {
        let names: Vec<_> = path.iter().collect();
        let top = names.iter().position(|name| *name == "nerdctl")?;
        let [_, volumes, namespace, name, ..] = &names[top + 1..] else { return None };
        (*volumes == "volumes").then(|| Self {
            directory: names[..top + 5].iter().collect(),
            namespace: namespace.to_string_lossy().into_owned(),
            name: name.to_string_lossy().into_owned(),
        })
    }

    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        Self::around(path).filter(|volume| volume.directory == path)
    }
}

/// Returns the name of a path outside the stores: that of the volume that it is, or else the path.
#[must_use]
pub fn title(path: &str) -> String {
    let volume = NerdctlVolume::at(Path::new(path));
    volume.map_or_else(
        || path.to_owned(),
        |NerdctlVolume { namespace, name, .. }| format!("volume {namespace}/{name} of nerdctl"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_of_nerdctl_has_its_name() {
        let volume = "/var/lib/nerdctl/1935db59/volumes/shop/media";
        for path in [volume.to_owned(), format!("{volume}/_data/a/b")] {
            let expected = NerdctlVolume {
                directory: volume.into(),
                namespace: "shop".to_owned(),
                name: "media".to_owned(),
            };
            assert_eq!(NerdctlVolume::around(Path::new(&path)), Some(expected));
        }
        assert_eq!(title(volume), "volume shop/media of nerdctl");
        for other in
            [&format!("{volume}/_data"), "/var/lib/nerdctl/1935db59/volumes/shop", "/srv/a/volumes/b/c", "/"]
        {
            assert_eq!(title(other), *other);
        }
    }
}
