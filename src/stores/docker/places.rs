//! Paths below Docker's data root.

use std::io;
use std::path::{Path, PathBuf};

use crate::stores::dockerd::OWN_CONTAINERD;
use crate::sys::quiet::{self, FileKind, Within};
use crate::sys::root::Root;

/// The graph driver whose layers are directories that layersweep knows.
pub const DRIVER: &str = "overlay2";
/// Directory of the records of all drivers.
pub const IMAGE: &str = "image";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerPlaces {
    pub root: PathBuf,
    /// Graph drivers with records of layers, other than [`DRIVER`].
    pub other_drivers: Vec<String>,
    /// The data root has records of [`DRIVER`].
    pub has_driver: bool,
    /// The containerd below the data root is read as a store of its own.
    pub is_containerd_read: bool,
    /// The reason why the Docker that root's commands reach has another data root, as a clause.
    pub out_of_tool: Option<String>,
    /// True for a store on another system's disk, to which no process writes.
    pub foreign: bool,
}

/// Returns true if a directory has layers of [`DRIVER`] and their records.
pub fn is_data_root(root: &Root) -> bool {
    let places = DockerPlaces { root: root.path().to_path_buf(), ..DockerPlaces::default() };
    let within = Within::new([root]);
    let mut both = [places.layer_records(), places.layers()].into_iter();
    both.all(|path| within.facts(&path).is_ok_and(|facts| facts.kind == FileKind::Directory))
}

impl DockerPlaces {
    /// Finds the drivers with records in the data root `root`; `None` without any, as with a daemon that keeps its images
    /// in containerd.
    ///
    /// # Errors
    /// If this cannot be examined, for example without privileges.
    pub fn find(root: &Path, foreign: bool) -> io::Result<Option<Self>> {
        let within = match Root::open_in(root, Path::new("/")) {
            Ok(root) => Within::new([&root]),
            Err(error) if quiet::is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let image = root.join(IMAGE);
        let mut drivers = Vec::new();
        for entry in quiet::if_present(within.list(&image))?.unwrap_or_default() {
            let layers = within.facts(&image.join(&entry.name).join("layerdb"));
            if entry.kind == FileKind::Directory && layers.is_ok() {
                drivers.extend(entry.name.into_string());
            }
        }
        let has_driver = drivers.iter().any(|driver| driver == DRIVER);
        drivers.retain(|driver| driver != DRIVER);
        let places =
            Self { root: root.to_path_buf(), other_drivers: drivers, has_driver, foreign, ..Self::default() };
        Ok((places.has_driver || !places.other_drivers.is_empty()).then_some(places))
    }

    #[must_use]
    pub fn driver(&self) -> &str {
        let other = self.other_drivers.first().filter(|_| !self.has_driver);
        other.map_or(DRIVER, String::as_str)
    }

    /// Returns the directories that the parts of units are relative to. Docker mounts the driver's on itself.
    #[must_use]
    pub fn roots(&self) -> Vec<PathBuf> {
        vec![self.root.clone(), self.layers()]
    }

    #[must_use]
    pub fn within(&self) -> Within {
        let roots = self.roots();
        Within::at(roots.iter().map(PathBuf::as_path))
    }

    /// Returns the directory of the driver's layers.
    #[must_use]
    pub fn layers(&self) -> PathBuf {
        self.root.join(DRIVER)
    }

    #[must_use]
    pub fn layer_records(&self) -> PathBuf {
        self.root.join(IMAGE).join(DRIVER).join("layerdb")
    }

    #[must_use]
    pub fn image_records(&self) -> PathBuf {
        self.root.join(IMAGE).join(DRIVER).join("imagedb")
    }

    #[must_use]
    pub fn repositories(&self) -> PathBuf {
        self.root.join(IMAGE).join(DRIVER).join("repositories.json")
    }

    #[must_use]
    pub fn containerd(&self) -> PathBuf {
        self.root.join(OWN_CONTAINERD)
    }
}
