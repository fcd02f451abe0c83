//! Finds the runtime's store on the disk from the runtime's reports about itself.
//!
//! The sources, the best first:
//!
//! 1. The verbose part of `Status`: containerd reports its root and snapshotter (seen in 1.6.20 and 2.3.4). CRI-O
//!    reports only its sandbox image.
//! 2. `GET /info` on the same socket: CRI-O reports its graphroot (`InspectInfoEndpoint` in `server/inspect.go`).
//! 3. `ImageFsInfo`: both name a directory of the store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_cri::v1;
use serde_json::Value;

use super::client::Client;
use super::endpoint::Endpoint;
use super::error::CriError;
use super::raw;
use crate::stores::RuntimeStore;

/// Prefix of the directories in which containerd keeps the data of its plugins.
const CONTAINERD_PLUGIN: &str = "io.containerd.";
/// Prefix of a snapshotter's directory, before the snapshotter's name.
const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1.";
/// Maximum size of an answer of `/info`.
const MAX_INFO_BYTES: usize = 1 << 20;

impl Client {
    /// Returns the runtime's store, or `None` if the runtime does not report one.
    ///
    /// # Errors
    /// If `Status` fails. The other requests are not supported by every runtime, so their failure only means
    /// that they give no answer.
    pub fn runtime_store(&self) -> Result<Option<RuntimeStore>, CriError> {
        let status = self.status()?;
        if let Some(store) = of_status(&status) {
            return Ok(Some(resolved(store)));
        }
        let sandbox_image = sandbox_image(&status_config(&status).unwrap_or_default());
        let info = http_info(self.endpoint(), self.options().asking);
        let store = match info.and_then(|info| of_info(&info)) {
            Some(store) => store,
            None => match self.image_filesystems().map(|filesystems| of_filesystems(&filesystems)) {
                Ok(Some(store)) => store,
                Ok(None) => return Ok(None),
                Err(error) => {
                    tracing::debug!(%error, "the runtime does not report where its images are stored");
                    return Ok(None);
                }
            },
        };
        Ok(Some(resolved(RuntimeStore { sandbox_image, ..store })))
    }
}

/// Replaces the store's paths by real paths, without symlinks.
fn resolved(store: RuntimeStore) -> RuntimeStore {
    fn real(path: PathBuf) -> PathBuf {
        std::fs::canonicalize(&path).unwrap_or(path)
    }
    RuntimeStore { root: real(store.root), image_root: store.image_root.map(real), ..store }
}

/// Parses the configuration in the verbose part of a status.
fn status_config(status: &v1::StatusResponse) -> Option<Value> {
    serde_json::from_str(status.info.get("config")?).ok()
}

/// Returns the sandbox image, which containerd before 2.0 and CRI-O report.
fn sandbox_image(config: &Value) -> Option<String> {
    let image = config.get("sandboxImage").and_then(Value::as_str);
    image.filter(|image| !image.is_empty()).map(str::to_owned)
}

/// Reads the store from containerd's verbose status.
fn of_status(status: &v1::StatusResponse) -> Option<RuntimeStore> {
    let config = status_config(status)?;
    // `rootDir` is the directory of the CRI plugin in the root.
    let root = absolute_path(&config, "containerdRootDir")
        .or_else(|| plugin_parent(&absolute_path(&config, "rootDir")?).map(Path::to_path_buf))?;
    let state = absolute_path(&config, "stateDir");
    let snapshotter = config.pointer("/containerd/snapshotter").and_then(Value::as_str);
    Some(RuntimeStore {
        state: state.and_then(|state| plugin_parent(&state).map(Path::to_path_buf)),
        driver: snapshotter.filter(|name| !name.is_empty()).map(str::to_owned),
        sandbox_image: sandbox_image(&config),
        ..RuntimeStore::of_containerd(root, "the runtime's Status")
    })
}

/// Reads the store from CRI-O's `/info`. The driver is a string in older versions, a list in newer ones.
fn of_info(info: &str) -> Option<RuntimeStore> {
    let info: Value = serde_json::from_str(info).ok()?;
    let driver = info.get("storage_driver")?;
    let driver = driver.as_str().or_else(|| driver.as_array()?.first()?.as_str());
    Some(RuntimeStore {
        driver: driver.filter(|name| !name.is_empty()).map(str::to_owned),
        image_root: absolute_path(&info, "storage_image"),
        ..RuntimeStore::of_graphroot(absolute_path(&info, "storage_root")?, "CRI-O's /info")
    })
}

/// Reads the store from `ImageFsInfo`. What CRI calls an image filesystem is a directory of the store, and its name
/// shows the kind of the store.
///
/// The byte counts in the answer are not measurements: CRI-O counts only its image records, containerd omits the
/// content store.
fn of_filesystems(filesystems: &v1::ImageFsInfoResponse) -> Option<RuntimeStore> {
    let containers = first_directory(&filesystems.container_filesystems);
    let directory = first_directory(&filesystems.image_filesystems)?;
    let name = directory.file_name()?.to_str()?;
    const ORIGIN: &str = "the runtime's ImageFsInfo";
    if let Some(root) = plugin_parent(&directory) {
        return Some(RuntimeStore {
            driver: name.strip_prefix(SNAPSHOTTER).map(str::to_owned),
            ..RuntimeStore::of_containerd(root.to_path_buf(), ORIGIN)
        });
    }
    // CRI-O with a separate imagestore names the imagestore's records as the image filesystem, and the graphroot's
    // as the container filesystem.
    let (images, driver) = root_and_driver(&directory)?;
    let containers = containers.and_then(|directory| root_and_driver(&directory)).map(|(root, _)| root);
    let root = containers.unwrap_or_else(|| images.clone());
    Some(RuntimeStore {
        image_root: (images != root).then_some(images),
        driver: Some(driver),
        ..RuntimeStore::of_graphroot(root, ORIGIN)
    })
}

fn first_directory(filesystems: &[v1::FilesystemUsage]) -> Option<PathBuf> {
    absolute(&filesystems.first()?.fs_id.as_ref()?.mountpoint)
}

/// Splits a directory of records of containers/storage, `ROOT/DRIVER-images` or `ROOT/DRIVER-containers`.
fn root_and_driver(directory: &Path) -> Option<(PathBuf, String)> {
    let driver = directory.file_name()?.to_str()?;
    let driver = driver.strip_suffix("-images").or_else(|| driver.strip_suffix("-containers"))?;
    Some((directory.parent()?.to_path_buf(), driver.to_owned()))
}

/// Returns containerd's root, given the directory of one of its plugins.
fn plugin_parent(directory: &Path) -> Option<&Path> {
    let name = directory.file_name()?.to_str()?;
    if name.starts_with(CONTAINERD_PLUGIN) { directory.parent() } else { None }
}

fn absolute_path(json: &Value, key: &str) -> Option<PathBuf> {
    absolute(json.get(key)?.as_str()?)
}

fn absolute(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    path.is_absolute().then(|| path.to_path_buf())
}

/// Requests `/info`. HTTP 1.0 ends the answer with the connection.
fn http_info(endpoint: &Endpoint, deadline: Duration) -> Option<String> {
    let request = b"GET /info HTTP/1.0\r\nHost: crio\r\n\r\n";
    let answer = raw::exchange(endpoint, request, MAX_INFO_BYTES, deadline);
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let ok = head.split_whitespace().nth(1) == Some("200") && head.starts_with("HTTP/1.");
    ok.then(|| body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StoreKind;

    fn brief(store: Option<RuntimeStore>) -> Option<(StoreKind, String, Option<String>, Option<String>)> {
        let RuntimeStore { kind, root, driver, image_root, .. } = store?;
        let image_root = image_root.map(|path| path.display().to_string());
        Some((kind, root.display().to_string(), driver, image_root))
    }

    fn expect(
        kind: StoreKind,
        root: &str,
        driver: Option<&str>,
        images: Option<&str>,
    ) -> Option<(StoreKind, String, Option<String>, Option<String>)> {
        Some((kind, root.into(), driver.map(Into::into), images.map(Into::into)))
    }

    fn status_of(config: &str) -> Option<(StoreKind, String, Option<String>, Option<String>)> {
        let info = [("config".to_owned(), config.to_owned())].into();
        brief(of_status(&v1::StatusResponse { info, ..v1::StatusResponse::default() }))
    }

    #[test]
    fn status_of_containerd_names_its_root() {
        let containerd = StoreKind::Containerd;
        assert_eq!(
            status_of("{\"containerdRootDir\": \"/c\", \"containerd\": {\"snapshotter\": \"overlayfs\"}}"),
            expect(containerd, "/c", Some("overlayfs"), None)
        );
        assert_eq!(
            status_of("{\"rootDir\": \"/c/io.containerd.grpc.v1.cri\"}"),
            expect(containerd, "/c", None, None)
        );
        assert_eq!(status_of("{\"sandboxImage\": \"pause\"}"), None, "CRI-O");
        assert_eq!(status_of("{\"containerdRootDir\": \"c\"}"), None);
        assert_eq!(status_of("no JSON"), None);
        assert_eq!(brief(of_status(&v1::StatusResponse::default())), None);
    }

    #[test]
    fn info_of_crio_names_its_graphroot() {
        let storage = StoreKind::ContainersStorage;
        assert_eq!(
            brief(of_info(
                "{\"storage_driver\": \"overlay\", \"storage_root\": \"/g\", \"storage_image\": \"\"}"
            )),
            expect(storage, "/g", Some("overlay"), None)
        );
        assert_eq!(
            brief(of_info(
                "{\"storage_driver\": [\"overlay\"], \"storage_root\": \"/g\", \"storage_image\": \"/i\"}"
            )),
            expect(storage, "/g", Some("overlay"), Some("/i"))
        );
        assert_eq!(brief(of_info("{}")), None);
        assert_eq!(brief(of_info("404")), None);
    }

    #[test]
    fn filesystems_name_a_directory_of_the_store() {
        let of = |images: &str, containers: &str| {
            let [image_filesystems, container_filesystems] = [images, containers].map(|directory| {
                let fs_id = Some(v1::FilesystemIdentifier { mountpoint: directory.into() });
                vec![v1::FilesystemUsage { fs_id, ..v1::FilesystemUsage::default() }]
            });
            brief(of_filesystems(&v1::ImageFsInfoResponse { image_filesystems, container_filesystems }))
        };
        let storage = StoreKind::ContainersStorage;
        assert_eq!(of("/g/overlay-images", ""), expect(storage, "/g", Some("overlay"), None));
        assert_eq!(
            of("/i/overlay-images", "/g/overlay-containers"),
            expect(storage, "/g", Some("overlay"), Some("/i"))
        );
        assert_eq!(
            of("/c/io.containerd.snapshotter.v1.overlayfs", ""),
            expect(StoreKind::Containerd, "/c", Some("overlayfs"), None)
        );
        for other in ["/var/lib/docker", "", "overlay-images", "/"] {
            assert_eq!(of(other, ""), None, "{other}");
        }
        assert_eq!(brief(of_filesystems(&v1::ImageFsInfoResponse::default())), None);
    }
}
