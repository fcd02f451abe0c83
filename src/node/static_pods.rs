//! Static pods: manifests of pods that the kubelet runs without an API server, and the images that these pods need for
//! their next start.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::kubelet::Kubelet;
use super::{ImageNamers, Unreadable, content, manifest};
use crate::model::Finding;
use crate::model::NamedImage;
use crate::sys::quiet::{FileKind, is_absent};
use crate::sys::sysroot::Sysroot;

/// Maximum size of a manifest that the kubelet reads (`maxConfigLength` in `pkg/kubelet/config/common.go`).
pub(super) const MAX_FILE_BYTES: u64 = 10 << 20;

const NAMES: ImageNamers = ImageNamers::StaticPods;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticPods {
    /// The images, in order of the files that name them.
    pub images: Vec<NamedImage>,
    /// The places that were searched, including those that do not exist.
    pub places: Vec<PathBuf>,
    pub findings: Vec<Finding>,
}

/// Reads the manifests in `configured`, in the `staticPodPath` (or `--pod-manifest-path`) of `kubelet` and in the data
/// directories of k3s and RKE2.
///
/// A place may be a directory or a single file, as for the kubelet. In a directory all files are read whose names do
/// not begin with a dot, but no subdirectories. A place that does not exist names no image. A file that cannot be
/// parsed is a finding.
///
/// # Errors
/// If a path exists but cannot be read, including the kubelet's own settings: then the images that must be kept are
/// unknown.
pub fn read(root: &Sysroot, kubelet: &Kubelet, configured: &Path) -> Result<StaticPods, Unreadable> {
    let mut reader = ManifestReader { root, seen: Vec::new(), found: StaticPods::default() };
    for place in reader.places(kubelet, configured)? {
        reader.place(&place)?;
    }
    Ok(reader.found)
}

/// Lists the manifests in a place, which may be a directory or a single file, as for the kubelet. A place that does not
/// exist has no manifests.
pub(super) fn files(root: &Sysroot, place: &Path) -> io::Result<Vec<(PathBuf, FileKind)>> {
    match root.list(place) {
        Ok(entries) => {
            let entries = entries.into_iter();
            let files = entries.filter(|entry| matches!(entry.kind, FileKind::File | FileKind::Symlink));
            Ok(files.map(|entry| (place.join(entry.name), entry.kind)).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Ok(vec![(place.to_path_buf(), FileKind::File)])
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

struct ManifestReader<'a> {
    root: &'a Sysroot,
    /// Real paths of the places that were read.
    seen: Vec<PathBuf>,
    found: StaticPods,
}

impl ManifestReader<'_> {
    fn places(&mut self, kubelet: &Kubelet, configured: &Path) -> Result<Vec<PathBuf>, Unreadable> {
        let mut places = vec![configured.to_path_buf()];
        let (paths, problems) = kubelet.setting("staticPodPath");
        // The kubelet resolves a relative path from the directory of its configuration file.
        for setting in paths {
            let parent = setting.file.parent().unwrap_or(Path::new(""));
            places.push(parent.join(&setting.value));
        }
        for setting in kubelet.flag("--pod-manifest-path") {
            if Path::new(&setting.value).is_absolute() {
                places.push(setting.value.into());
            } else {
                let path = &setting.value;
                let message =
                    format!("--pod-manifest-path {path:?} is relative: static pods there are not protected");
                self.finding(&setting.file, message);
            }
        }
        for (file, why) in problems {
            self.finding(&file, format!("{why}; static pods in a directory that it names are not protected"));
        }
        for setting in kubelet.setting("staticPodURL").0.into_iter().chain(kubelet.flag("--manifest-url")) {
            let message = format!("static pods in {:?} are not read and not protected", setting.value);
            self.finding(&setting.file, message);
        }
        places.extend(kubelet.data_dirs().iter().map(|dir| dir.agent().join("pod-manifests")));
        if let Some((path, source)) = kubelet.unreadable.first() {
            return Err(unreadable(path, io::Error::new(source.kind(), source.to_string())));
        }
        Ok(places)
    }

    fn place(&mut self, place: &Path) -> Result<(), Unreadable> {
        if !self.found.places.iter().any(|known| known == place) {
            self.found.places.push(place.to_path_buf());
        }
        let real = match self.root.resolve(place) {
            Ok(real) => real,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(place, error)),
        };
        if self.seen.contains(&real) {
            return Ok(());
        }
        self.seen.push(real);
        for (path, kind) in files(self.root, place).map_err(|source| unreadable(place, source))? {
            let is_hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
            if !is_hidden || path == place {
                self.file(&path, kind == FileKind::Symlink)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, is_symlink: bool) -> Result<(), Unreadable> {
        let content = content(self.root, path, MAX_FILE_BYTES).map_err(|source| unreadable(path, source))?;
        let bytes = match content {
            Ok(bytes) => bytes,
            // The kubelet skips these paths too, and runs no pod from them.
            Err(error) => {
                let reason = match error.kind() {
                    io::ErrorKind::IsADirectory => return Ok(()),
                    io::ErrorKind::FileTooLarge => format!("{error}, which the kubelet does not read"),
                    io::ErrorKind::InvalidInput => error.to_string(),
                    _ if is_symlink => "is a dangling symlink".to_owned(),
                    _ => return Ok(()),
                };
                self.finding(path, format!("{reason}; it is taken to name no image"));
                return Ok(());
            }
        };
        let manifest = manifest::read(&bytes);
        if let Some(why) = manifest.problem {
            self.finding(path, manifest::unparsed(&why));
        } else if manifest.images.is_empty() {
            self.finding(path, "names no image".into());
        }
        let source = path.display().to_string();
        let named = manifest.images.into_iter();
        self.found.images.extend(named.map(|reference| NamedImage { reference, source: source.clone() }));
        Ok(())
    }

    fn finding(&mut self, path: &Path, message: String) {
        self.found.findings.push(Finding::new(path, message));
    }
}

fn unreadable(path: &Path, source: io::Error) -> Unreadable {
    Unreadable { path: path.to_path_buf(), names: NAMES, source }
}

#[cfg(test)]
mod tests;
