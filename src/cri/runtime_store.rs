//! Finds the runtime's store on the disk from what it reports about itself, the best source first.
//!
//! containerd tells its root and snapshotter in the verbose part of `Status` (seen in 1.6.20 and
//! 2.3.4). CRI-O tells only its sandbox image there, but answers `GET /info` on the same socket
//! with its graphroot (`InspectInfoEndpoint` in `server/inspect.go`). Both name a directory of
//! the store in `ImageFsInfo`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_cri::v1;
use serde_json::Value;

use super::client::Client;
use super::endpoint::Endpoint;
use super::error::CriError;
use super::raw;
use crate::model::StoreKind;
use crate::stores::RuntimeStore;

/// containerd keeps each plugin's data in a directory of this kind of name.
const CONTAINERD_PLUGIN: &str = "io.containerd.";
/// Before the name of a snapshotter in its directory's name.
const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1.";
/// No answer of `/info` is longer.
const MAX_INFO_BYTES: usize = 1 << 20;

impl Client {
    /// The runtime's store; `None` if it does not report one.
    ///
    /// # Errors
    /// When `Status` fails. The other questions are not every runtime's to answer, so
    /// their failure is only that they do not tell.
    pub fn runtime_store(&self) -> Result<Option<RuntimeStore>, CriError> {
        let status = self.status()?;
        if let Some(store) = of_status(&status) {
            return Ok(Some(resolved(store)));
        }
        let sandbox_image = sandbox_image(&status_config(&status).unwrap_or_default());
        let complete = |store| resolved(RuntimeStore { sandbox_image: sandbox_image.clone(), ..store });
        let info = http_info(self.endpoint(), self.options().asking);
        if let Some(store) = info.and_then(|info| of_info(&info)) {
            return Ok(Some(complete(store)));
        }
        match self.image_filesystems() {
            Ok(filesystems) => Ok(of_filesystems(&filesystems).map(complete)),
            Err(error) => {
                tracing::debug!(%error, "the runtime does not report where its images are stored");
                Ok(None)
            }
        }
    }
}

fn resolved(store: RuntimeStore) -> RuntimeStore {
    let resolved = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
    RuntimeStore { root: resolved(store.root), image_root: store.image_root.map(resolved), ..store }
}

/// The configuration in the verbose part of a status.
fn status_config(status: &v1::StatusResponse) -> Option<Value> {
    serde_json::from_str(status.info.get("config")?).ok()
}

/// containerd before 2.0 and CRI-O tell it.
fn sandbox_image(config: &Value) -> Option<String> {
    let image = config.get("sandboxImage").and_then(Value::as_str);
    image.filter(|image| !image.is_empty()).map(str::to_owned)
}

/// containerd's verbose status.
fn of_status(status: &v1::StatusResponse) -> Option<RuntimeStore> {
    let config = status_config(status)?;
    let path = |key: &str| absolute(config.get(key)?.as_str()?);
    // `rootDir` is CRI's own directory in the root.
    let root =
        path("containerdRootDir").or_else(|| plugin_parent(&path("rootDir")?).map(Path::to_path_buf))?;
    let snapshotter = config.pointer("/containerd/snapshotter").and_then(Value::as_str);
    Some(RuntimeStore {
        store_type: StoreKind::Containerd,
        root,
        state: path("stateDir").and_then(|state| plugin_parent(&state).map(Path::to_path_buf)),
        driver: snapshotter.filter(|name| !name.is_empty()).map(str::to_owned),
        image_root: None,
        sandbox_image: sandbox_image(&config),
        origin: "the runtime's Status".into(),
    })
}

/// CRI-O's answer to `/info`. Of old the driver was a text, of late a list.
fn of_info(info: &str) -> Option<RuntimeStore> {
    let info: Value = serde_json::from_str(info).ok()?;
    let path = |key: &str| absolute(info.get(key)?.as_str()?);
    let driver = info.get("storage_driver")?;
    let driver = driver.as_str().or_else(|| driver.as_array()?.first()?.as_str());
    Some(RuntimeStore {
        store_type: StoreKind::ContainersStorage,
        root: path("storage_root")?,
        driver: driver.filter(|name| !name.is_empty()).map(str::to_owned),
        state: None,
        image_root: path("storage_image"),
        sandbox_image: None,
        origin: "CRI-O's /info".into(),
    })
}

/// The directory that a runtime names as its image filesystem, by its name.
fn of_filesystems(filesystems: &v1::ImageFsInfoResponse) -> Option<RuntimeStore> {
    // A directory of the store, in spite of its name. The byte counts beside it are no measurements: CRI-O
    // counts only its records of images, containerd leaves out the content store.
    let directory = |of: &[v1::FilesystemUsage]| absolute(&of.first()?.fs_id.as_ref()?.mountpoint);
    let containers = directory(&filesystems.container_filesystems);
    let directory = directory(&filesystems.image_filesystems)?;
    let name = directory.file_name()?.to_str()?;
    let origin = || "the runtime's ImageFsInfo".to_owned();
    if let Some(root) = plugin_parent(&directory) {
        return Some(RuntimeStore {
            store_type: StoreKind::Containerd,
            root: root.to_path_buf(),
            driver: name.strip_prefix(SNAPSHOTTER).map(str::to_owned),
            state: None,
            image_root: None,
            sandbox_image: None,
            origin: origin(),
        });
    }
    // With a separate image store CRI-O names that store's records here, and its root's as
    // those of containers.
    let graph = |directory: &Path| {
        let driver = directory.file_name()?.to_str()?;
        let driver = driver.strip_suffix("-images").or_else(|| driver.strip_suffix("-containers"))?;
        Some((directory.parent()?.to_path_buf(), driver.to_owned()))
    };
    let (images, driver) = graph(&directory)?;
    let containers = containers.and_then(|directory| graph(&directory)).map(|(root, _)| root);
    let root = containers.unwrap_or_else(|| images.clone());
    Some(RuntimeStore {
        store_type: StoreKind::ContainersStorage,
        state: None,
        image_root: (images != root).then_some(images),
        sandbox_image: None,
        root,
        driver: Some(driver),
        origin: origin(),
    })
}

/// The root of a directory that a plugin of containerd has in it.
fn plugin_parent(directory: &Path) -> Option<&Path> {
    let name = directory.file_name()?.to_str()?;
    if name.starts_with(CONTAINERD_PLUGIN) { directory.parent() } else { None }
}

fn absolute(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    path.is_absolute().then(|| path.to_path_buf())
}

/// `GET /info`, in HTTP 1.0 so that the answer ends where the connection does.
fn http_info(endpoint: &Endpoint, deadline: Duration) -> Option<String> {
    let question = b"GET /info HTTP/1.0\r\nHost: crio\r\n\r\n";
    let answer = raw::ask(endpoint, question, MAX_INFO_BYTES, deadline);
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let ok = head.split_whitespace().nth(1) == Some("200") && head.starts_with("HTTP/1.");
    ok.then(|| body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brief(store: Option<RuntimeStore>) -> Option<(StoreKind, String, Option<String>, Option<String>)> {
        let text = |path: PathBuf| path.display().to_string();
        store.map(|store| (store.store_type, text(store.root), store.driver, store.image_root.map(text)))
    }

    fn expect(
        store_type: StoreKind,
        root: &str,
        driver: Option<&str>,
        images: Option<&str>,
    ) -> Option<(StoreKind, String, Option<String>, Option<String>)> {
        Some((store_type, root.into(), driver.map(Into::into), images.map(Into::into)))
    }

    #[test]
    fn what_status_tells() {
        let of = |config: &str| {
            let info = [("config".to_owned(), config.to_owned())].into();
            brief(of_status(&v1::StatusResponse { info, ..v1::StatusResponse::default() }))
        };
        let containerd = StoreKind::Containerd;
        assert_eq!(
            of("{\"containerdRootDir\": \"/c\", \"containerd\": {\"snapshotter\": \"overlayfs\"}}"),
            expect(containerd, "/c", Some("overlayfs"), None)
        );
        assert_eq!(
            of("{\"rootDir\": \"/c/io.containerd.grpc.v1.cri\"}"),
            expect(containerd, "/c", None, None)
        );
        assert_eq!(of("{\"sandboxImage\": \"pause\"}"), None, "CRI-O");
        assert_eq!(of("{\"containerdRootDir\": \"c\"}"), None);
        assert_eq!(of("no JSON"), None);
        assert_eq!(brief(of_status(&v1::StatusResponse::default())), None);
    }

    #[test]
    fn what_crio_tells() {
        let of = |info: &str| brief(of_info(info));
        let storage = StoreKind::ContainersStorage;
        assert_eq!(
            of("{\"storage_driver\": \"overlay\", \"storage_root\": \"/g\", \"storage_image\": \"\"}"),
            expect(storage, "/g", Some("overlay"), None)
        );
        assert_eq!(
            of("{\"storage_driver\": [\"overlay\"], \"storage_root\": \"/g\", \"storage_image\": \"/i\"}"),
            expect(storage, "/g", Some("overlay"), Some("/i"))
        );
        assert_eq!(of("{}"), None);
        assert_eq!(of("404"), None);
    }

    #[test]
    fn what_filesystems_tell() {
        let of = |images: &str, containers: &str| {
            let one = |directory: &str| v1::FilesystemUsage {
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: directory.into() }),
                ..v1::FilesystemUsage::default()
            };
            brief(of_filesystems(&v1::ImageFsInfoResponse {
                image_filesystems: vec![one(images)],
                container_filesystems: vec![one(containers)],
            }))
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
