//! Image pulls that the kubelet has in progress, and images that it has pulled (KEP-2535, on by default from
//! Kubernetes 1.35).
//!
//! Before a pull the kubelet writes `<root>/image_manager/pulling/sha256-<hex>`, and removes the file when the pull
//! has ended (kubernetes `pkg/kubelet/images/pullmanager/fs_pullrecords.go`). After a crash it removes the file at its
//! next start.

use std::io::ErrorKind;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

use super::kubelet::Kubelet;
use super::places;
use crate::model::Finding;
use crate::model::NamedImage;
use crate::sys::quiet::is_absent;
use crate::sys::sysroot::Sysroot;

/// Maximum size of a record; real ones have a few hundred bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of files. The kubelet pulls a few images at a time, or some hundreds after a restart with many pods.
const MAX_FILES: usize = 10_000;

/// `ImagePullIntent`: the fields that all versions have.
#[derive(Deserialize)]
struct Intent {
    kind: String,
    image: String,
}

/// `ImagePulledRecord`, and `ImagePreloadedRecord` of an image that was there before the kubelet (enhancements,
/// pull request 6267): the fields that all versions have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PullRecord {
    kind: String,
    last_updated_time: Timestamp,
    image_ref: String,
}

const PRELOADED: &str = "ImagePreloadedRecord";

/// Image that the kubelet has pulled, or has found at its first start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The runtime's reference to the image after the pull: an id, or a name with a digest.
    pub image: String,
    /// Time at which the kubelet last wrote the record. The image existed by then.
    pub updated: Timestamp,
    /// The image was there before the kubelet, which has not pulled it.
    pub is_preloaded: bool,
}

/// Reads the images that the kubelet has pulled, from the same directories as [`read`]. A record that cannot be read
/// is skipped.
#[must_use]
pub fn pulled(root: &Sysroot, configured: Option<&Path>) -> Vec<Pulled> {
    let mut found = Vec::new();
    for kubelet in places::roots(configured, &Kubelet::read(root)) {
        let directory = kubelet.join("image_manager/pulled");
        let names = root.list(&directory).unwrap_or_default().into_iter().map(|entry| entry.name);
        for name in names.filter(|name| name.to_str().is_some_and(is_record)).take(MAX_FILES) {
            let path = directory.join(name);
            let text = root.read(&path, MAX_FILE_BYTES);
            let record = text.map_err(|error| error.to_string()).and_then(|text| {
                serde_json::from_str::<PullRecord>(&text).map_err(|error| error.to_string())
            });
            match record {
                Ok(record) if ["ImagePulledRecord", PRELOADED].contains(&record.kind.as_str()) => {
                    found.push(Pulled {
                        image: record.image_ref,
                        updated: record.last_updated_time,
                        is_preloaded: record.kind == PRELOADED,
                    });
                }
                Ok(record) => {
                    tracing::debug!(path = %path.display(), kind = record.kind, "not a pull record")
                }
                Err(error) => {
                    tracing::debug!(path = %path.display(), error, "cannot read a pull record")
                }
            }
        }
    }
    found
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pulls {
    /// The images, by the references in the pods.
    pub images: Vec<NamedImage>,
    pub findings: Vec<Finding>,
}

/// Reads the intents in the kubelet's own directory: in `configured` if it is set, otherwise in each directory that the
/// kubelet's flags name and in the default one.
#[must_use]
pub fn read(root: &Sysroot, kubelet: &Kubelet, configured: Option<&Path>) -> Pulls {
    let mut pulls = Pulls::default();
    for kubelet in places::roots(configured, kubelet) {
        pulls.below(root, &kubelet.join("image_manager/pulling"));
    }
    pulls
}

impl Pulls {
    fn below(&mut self, root: &Sysroot, directory: &Path) {
        let entries = match root.list(directory) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return,
            Err(error) => return self.finding(directory, &error.to_string()),
        };
        let names = entries.into_iter().map(|entry| entry.name);
        let intents = names.filter(|name| name.to_str().is_some_and(is_record)).take(MAX_FILES);
        for name in intents {
            let path = directory.join(name);
            let text = match root.read(&path, MAX_FILE_BYTES) {
                Ok(text) => text,
                // The pull has ended since the directory was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    self.finding(&path, &error.to_string());
                    continue;
                }
            };
            match serde_json::from_str::<Intent>(&text) {
                Ok(Intent { kind, image }) if kind == "ImagePullIntent" && !image.is_empty() => {
                    self.images.push(NamedImage { reference: image, source: path.display().to_string() });
                }
                Ok(Intent { kind, .. }) => self.finding(&path, &format!("{kind:?} is not a pull intent")),
                Err(error) => self.finding(&path, &error.to_string()),
            }
        }
    }

    fn finding(&mut self, path: &Path, why: &str) {
        let message = format!("{why}; images that the kubelet is pulling may be unknown");
        self.findings.push(Finding::new(path, message));
    }
}

/// Checks for the name of a complete record; one that is being written ends in `.tmp`.
fn is_record(name: &str) -> bool {
    let hex = name.strip_prefix("sha256-");
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn record_name(digit: &str) -> String {
        format!("sha256-{}", digit.repeat(64))
    }

    fn record(version: &str, image: &str, time: &str) -> String {
        let api = format!("imagemanager.kubelet.config.k8s.io/{version}");
        format!(
            r#"{{"kind":"ImagePulledRecord","apiVersion":"{api}","lastUpdatedTime":{time},"imageRef":"{image}","credentialMapping":{{"quay.io/app":{{"nodePodsAccessible":true}}}}}}"#
        )
    }

    fn intent(version: &str, image: &str) -> String {
        let api = format!("imagemanager.kubelet.config.k8s.io/{version}");
        format!(r#"{{"kind":"ImagePullIntent","apiVersion":"{api}","image":"{image}"}}"#)
    }

    fn references(pulls: &Pulls) -> Vec<&str> {
        let mut references: Vec<_> = pulls.images.iter().map(|image| image.reference.as_str()).collect();
        references.sort_unstable();
        references
    }

    #[test]
    fn pulled_records_of_all_versions_are_read() {
        let node = tempfile::tempdir().unwrap();
        let sysroot = Sysroot::at(node.path());
        assert_eq!(pulled(&sysroot, None), [], "no kubelet");
        let directory = node.path().join("var/lib/kubelet/image_manager/pulled");
        fs::create_dir_all(&directory).unwrap();
        for (digit, text) in [
            ("a", record("v1alpha1", "sha256:aa", r#""2026-03-01T10:00:00Z""#)),
            ("b", record("v1beta1", "quay.io/app@sha256:bb", r#""2026-03-02T10:00:00Z""#)),
            ("c", record("v1beta1", "quay.io/app", "null")),
            (
                "d",
                r#"{"kind":"ImagePullIntent","lastUpdatedTime":"2026-03-02T10:00:00Z","imageRef":"x"}"#
                    .into(),
            ),
            ("e", "{".into()),
        ] {
            fs::write(directory.join(record_name(digit)), text).unwrap();
        }
        fs::write(directory.join("README"), "no record").unwrap();
        let mut found = pulled(&sysroot, None);
        found.sort_by_key(|pulled| pulled.updated);
        let images: Vec<_> = found.iter().map(|pulled| pulled.image.as_str()).collect();
        assert_eq!(images, ["sha256:aa", "quay.io/app@sha256:bb"]);
        assert_eq!(found[0].updated, "2026-03-01T10:00:00Z".parse().unwrap());
    }

    #[test]
    fn intents_of_all_versions_are_read() {
        let node = tempfile::tempdir().unwrap();
        let sysroot = Sysroot::at(node.path());
        let read = |configured| super::read(&sysroot, &Kubelet::read(&sysroot), configured);
        assert_eq!(read(None), Pulls::default(), "no kubelet");
        let usual = "var/lib/kubelet";
        for (root, name, text) in [
            (usual, record_name("a"), intent("v1alpha1", "quay.io/app:1")),
            (usual, record_name("b"), intent("v1beta1", "busybox")),
            (usual, record_name("c"), r#"{"kind":"ImagePulledRecord","image":"x"}"#.into()),
            (usual, record_name("d"), "{".into()),
            (usual, format!("{}.tmp", record_name("e")), intent("v1beta1", "half")),
            (usual, "README".into(), "no intent".into()),
            ("data/k", record_name("f"), intent("v1beta1", "elsewhere")),
        ] {
            let directory = node.path().join(root).join("image_manager/pulling");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(name), text).unwrap();
        }
        let pulls = read(None);
        assert_eq!(references(&pulls), ["busybox", "quay.io/app:1"]);
        assert_eq!(pulls.findings.len(), 2, "{:?}", pulls.findings);
        assert_eq!(references(&read(Some(Path::new("/data/k")))), ["elsewhere"]);
        let flags = node.path().join("var/lib/kubelet/kubeadm-flags.env");
        fs::write(flags, "KUBELET_KUBEADM_ARGS=\"--root-dir=/data/k\"").unwrap();
        assert_eq!(references(&read(None)), ["busybox", "elsewhere", "quay.io/app:1"]);
    }
}
