//! Facts from the configuration alone, without reading a store: the places that a scan reads, and the sandbox images.

pub(crate) mod containerds;
pub(crate) mod dockers;
pub(in crate::stores) mod found;
pub(crate) mod graphroots;

use std::io;
use std::path::PathBuf;

use containerds::Containerds;

use crate::node::kubelet::{DataDir, Kubelet};
use crate::node::{ImageNamers, NamedImage, Unreadable};
use crate::stores::containers_storage::config as graphroot;
use crate::stores::request::ScanRequest;

/// Flag of the kubelet for the sandbox image, which its own image GC kept up to version 1.34. kubeadm still writes it
/// for older kubelets.
const FLAG: &str = "--pod-infra-container-image";

/// Returns the sandbox images that CRI-O, the containerds of `request`'s root, and its `kubelet` are configured to
/// use, each once. If a configuration does not set the image, the built-in default of CRI-O or containerd is
/// included. Reads no store.
///
/// # Errors
/// If the configuration of one of these runtimes cannot be read or parsed: it may pin any image, and name any image
/// for sandboxes. Files that a user other than root cannot read are ignored: they are not about that user's stores.
pub fn sandbox_images(request: &ScanRequest, kubelet: &Kubelet) -> Result<Vec<NamedImage>, Unreadable> {
    fn check(
        request: &ScanRequest,
        stores: &[PathBuf],
        names: ImageNamers,
        problem: Option<(PathBuf, String)>,
    ) -> Result<(), Unreadable> {
        let is_relevant = !request.names_stores() || !stores.is_empty();
        match problem {
            Some((path, reason)) if is_relevant && request.environment.uid == 0 => {
                Err(Unreadable { path, names, source: io::Error::other(reason) })
            }
            _ => Ok(()),
        }
    }
    let mut found = Vec::new();
    let (pins, problem) = graphroot::sandboxes(&request.sysroot);
    check(request, &request.graphroots, ImageNamers::CriO, problem)?;
    for pin in pins {
        found.push(NamedImage { reference: pin.pattern, source: pin.origin });
    }
    let containerds = Containerds::of(request);
    check(request, &request.containerd_roots, ImageNamers::Containerd, containerds.problem)?;
    let pins = containerds.pins.into_iter();
    found.extend(pins.map(|pin| NamedImage { reference: pin.image, source: pin.origin }));
    for store in &request.running.stores {
        let image = store.sandbox_image.iter();
        found
            .extend(image.map(|image| NamedImage { reference: image.clone(), source: store.origin.clone() }));
    }
    for setting in kubelet.flag(FLAG) {
        let source = format!("{FLAG} in {}", setting.file.display());
        found.push(NamedImage { reference: setting.value, source });
    }
    let mut once: Vec<NamedImage> = Vec::new();
    for image in found {
        if !once.iter().any(|known| known.reference == image.reference) {
            once.push(image);
        }
    }
    Ok(once)
}

/// Returns the data directories of k3s and RKE2 that contain a root of containerd, named or found. They contain the
/// manifests of static pods too.
pub fn data_dirs(request: &ScanRequest) -> Vec<DataDir> {
    let roots = Containerds::of(request).roots.into_iter();
    roots.filter_map(|config| DataDir::of_root(&config.root, &config.origin)).collect()
}

/// Returns the directories that a scan of `request` reads as stores and as their runtime state. This program must not
/// write messages into them. The paths are inside the root, as configured, and need not exist.
#[must_use]
pub fn directories(request: &ScanRequest) -> Vec<PathBuf> {
    let mut found = request.graphroots.clone();
    found.extend(request.runroots.iter().cloned());
    found.extend(request.containerd_roots.iter().cloned());
    let configured = match (request.names_stores(), request.graphroots.is_empty()) {
        (false, _) => graphroot::discover(&request.sysroot, &request.environment, &request.running).stores,
        (true, true) => Vec::new(),
        (true, false) => {
            graphroot::named(&request.sysroot, &request.environment, &request.running, &request.graphroots)
                .stores
        }
    };
    for store in configured {
        found.extend([store.graphroot, store.runroot]);
        found.extend(store.imagestore);
        found.extend([store.other_runroots, store.other_imagestores].concat());
        found.extend([store.additional_image_stores, store.additional_layer_stores].concat());
    }
    for root in Containerds::of(request).roots {
        found.extend([root.root, root.state]);
        found.extend(root.snapshotters.into_iter().chain(root.proxies).map(|(_, directory)| directory));
        found.extend(root.layer_caches);
    }
    found.extend(dockers::roots(request).into_iter().map(|(root, _)| root));
    found.retain(|path| path.is_absolute());
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jiff::Timestamp;

    use super::*;
    use crate::stores::Measure;

    use crate::sys::sysroot::Sysroot;

    fn images(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let node = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = node.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let request = request(node.path());
        let found = sandbox_images(&request, &Kubelet::read(&request.sysroot)).unwrap().into_iter();
        found.map(|image| (image.reference, image.source)).collect()
    }

    fn request(root: &Path) -> ScanRequest {
        ScanRequest {
            measure: Measure::RecordsAndMounts,
            now: Timestamp::UNIX_EPOCH,
            ..ScanRequest::of(Sysroot::at(root))
        }
    }

    const META_DB: &str = "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db";
    const CONFIG: &str = "etc/containerd/config.toml";
    const FLAGS: &str = "var/lib/kubelet/kubeadm-flags.env";

    #[test]
    fn node_without_runtime_has_no_sandbox_image() {
        assert_eq!(images(&[]), []);
        assert_eq!(images(&[(CONFIG, "version = 2")]), [], "containerd never ran here");
    }

    #[test]
    fn each_configuration_names_its_sandbox_image() {
        fn image(reference: &str, source: &str) -> (String, String) {
            (reference.to_owned(), source.to_owned())
        }
        let version_1 = "[plugins.cri]\nsandbox_image = \"reg.local/pause:1\"";
        let version_2 =
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"reg.local/pause:2\"";
        let version_3 = "version = 3\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = \"reg.local/pause:3\"";
        for (config, expected) in [
            (version_1, "reg.local/pause:1"),
            (version_2, "reg.local/pause:2"),
            (version_3, "reg.local/pause:3"),
        ] {
            let found = images(&[(META_DB, ""), (CONFIG, config)]);
            assert_eq!(found, [image(expected, "/etc/containerd/config.toml")]);
        }
        let found = images(&[(META_DB, "")]);
        assert!(found.contains(&image("registry.k8s.io/pause:3.10", "containerd's built-in defaults")));
        let crio = "[crio.image]\npause_image = \"reg.local/pause:4\"\npinned_images = [\"quay.io/*\"]";
        let flags = "KUBELET_KUBEADM_ARGS=\"--pod-infra-container-image=reg.local/pause:5 --node-ip=1\"";
        let same = "KUBELET_EXTRA_ARGS=--pod-infra-container-image=reg.local/pause:4";
        assert_eq!(
            images(&[
                ("etc/crio/crio.conf.d/10-a.conf", crio),
                (FLAGS, flags),
                ("etc/default/kubelet", same)
            ]),
            [
                image("reg.local/pause:4", "/etc/crio/crio.conf.d/10-a.conf"),
                image(
                    "reg.local/pause:5",
                    "--pod-infra-container-image in /var/lib/kubelet/kubeadm-flags.env"
                ),
            ]
        );
        let found = images(&[("etc/crio/crio.conf", "")]);
        assert!(found.contains(&image("registry.k8s.io/pause:3.10.1", "CRI-O's built-in pause_image")));
        assert_eq!(images(&[("etc/crio/crio.conf", "[crio.image]\npause_image = \"\"")]), []);
    }

    #[test]
    fn named_root_uses_matching_configuration() {
        let node = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(node.path().join("etc/containerd")).unwrap();
        let config = "root = \"/data/c\"\n[plugins.cri]\nsandbox_image = \"reg.local/pause:1\"";
        std::fs::write(node.path().join(CONFIG), config).unwrap();
        for (root, message) in [("/data/c", "its own"), ("/elsewhere", "a copied root uses the system's")] {
            let request = ScanRequest { containerd_roots: vec![root.into()], ..request(node.path()) };
            let found: Vec<_> = sandbox_images(&request, &Kubelet::default())
                .unwrap()
                .into_iter()
                .map(|image| image.reference)
                .collect();
            assert_eq!(found, ["reg.local/pause:1"], "{message}");
        }
        let request = ScanRequest { graphroots: vec!["/g".into()], ..request(node.path()) };
        assert_eq!(sandbox_images(&request, &Kubelet::default()).unwrap(), [], "containerd is not examined");
    }
}
