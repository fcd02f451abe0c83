//! Static pods: the manifests of pods that the kubelet runs without an API server, and the
//! images that these pods need to start again.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::kubelet::Kubelet;
use super::{ImageNamers, NamedImage, Unreadable, content, manifest};
use crate::model::Finding;
use crate::sys::quiet::{FileKind, is_absent};
use crate::sys::sysroot::Sysroot;

/// The kubelet reads no longer manifest (`maxConfigLength` in `pkg/kubelet/config/common.go`).
pub(super) const MAX_FILE_BYTES: u64 = 10 << 20;

const NAMES: ImageNamers = ImageNamers::StaticPods;

/// What static pods name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticPods {
    /// The images, in order of the files that name them.
    pub images: Vec<NamedImage>,
    /// The places that were looked in, whether or not anything is there.
    pub looked: Vec<PathBuf>,
    /// Parse errors and their consequences.
    pub findings: Vec<Finding>,
}

/// Reads the manifests in `configured`, in the `staticPodPath` (or `--pod-manifest-path`) of `kubelet` and in the
/// data directories of k3s and RKE2.
///
/// A place may be a directory or a single file, as for the kubelet. Of a directory all files
/// count whose names do not begin with a dot; it is not entered further down. A place that does
/// not exist names nothing. A file that the kubelet cannot parse is a finding.
///
/// # Errors
/// When something exists and cannot be read, the kubelet's own settings included: then it is
/// unknown which images have to stay.
pub fn read(root: &Sysroot, kubelet: &Kubelet, configured: &Path) -> Result<StaticPods, Unreadable> {
    let mut reader = Reader { root, seen: Vec::new(), found: StaticPods::default() };
    for place in reader.places(kubelet, configured)? {
        reader.place(&place)?;
    }
    Ok(reader.found)
}

/// The manifests in a place, which may be a directory or a single file, as for the kubelet. A place that
/// does not exist has none.
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

struct Reader<'a> {
    root: &'a Sysroot,
    /// Where the places that were read lie for us.
    seen: Vec<PathBuf>,
    found: StaticPods,
}

impl Reader<'_> {
    fn places(&mut self, kubelet: &Kubelet, configured: &Path) -> Result<Vec<PathBuf>, Unreadable> {
        let mut places = vec![configured.to_path_buf()];
        let (paths, problems) = kubelet.setting("staticPodPath");
        // The kubelet takes a relative one from where its configuration is.
        let of_configs = paths.into_iter().map(|setting| {
            setting
                .file
                .parent()
                .map_or_else(|| (&setting.value).into(), |parent| parent.join(&setting.value))
        });
        places.extend(of_configs);
        for setting in kubelet.flag("--pod-manifest-path") {
            match Path::new(&setting.value).is_absolute() {
                true => places.push(setting.value.into()),
                false => self.finding(
                    &setting.file,
                    format!(
                        "--pod-manifest-path {:?} is relative: static pods there are not protected",
                        setting.value
                    ),
                ),
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
        match kubelet.unreadable.first() {
            Some((path, source)) => {
                let source = io::Error::new(source.kind(), source.to_string());
                Err(Unreadable { path: path.clone(), names: NAMES, source })
            }
            None => Ok(places),
        }
    }

    fn place(&mut self, place: &Path) -> Result<(), Unreadable> {
        if !self.found.looked.iter().any(|known| known == place) {
            self.found.looked.push(place.to_path_buf());
        }
        let unreadable = |source| Unreadable { path: place.to_path_buf(), names: NAMES, source };
        let placed = match self.root.resolve(place) {
            Ok(placed) => placed,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        if self.seen.contains(&placed) {
            return Ok(());
        }
        self.seen.push(placed);
        for (path, kind) in files(self.root, place).map_err(unreadable)? {
            let is_hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
            if !is_hidden || path == place {
                self.file(&path, kind == FileKind::Symlink)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, symlink: bool) -> Result<(), Unreadable> {
        let unreadable = |source| Unreadable { path: path.to_path_buf(), names: NAMES, source };
        let bytes = match content(self.root, path, MAX_FILE_BYTES).map_err(unreadable)? {
            Ok(bytes) => bytes,
            // The kubelet passes over these as well, and runs nothing from them.
            Err(error) => {
                let what = match error.kind() {
                    io::ErrorKind::IsADirectory => return Ok(()),
                    io::ErrorKind::FileTooLarge => format!("{error}, which the kubelet does not read"),
                    io::ErrorKind::InvalidInput => error.to_string(),
                    _ if symlink => "is a dangling symlink".to_owned(),
                    _ => return Ok(()),
                };
                self.finding(path, format!("{what}; it is taken to name no image"));
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

#[cfg(test)]
mod tests;
