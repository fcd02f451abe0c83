//! Facts from the configuration alone, without reading any store: where a scan would look, and the sandbox
//! images.

pub(crate) mod containerds;
pub(crate) mod graphroots;

use std::io;
use std::path::PathBuf;

use containerds::Containerds;

use crate::node::kubelet::{DataDir, Kubelet};
use crate::node::{ImageNamers, NamedImage, Unreadable};
use crate::stores::containers_storage::config as graphroot;
use crate::stores::request::ScanRequest;

/// The kubelet's flag, which told its own image GC what to keep up to 1.34; kubeadm still writes
/// it where older kubelets need it.
const FLAG: &str = "--pod-infra-container-image";

/// The sandbox images that CRI-O and the containerds of `request`'s root, and its `kubelet`, are
/// configured to use, each once; with those that CRI-O and containerd have built in where their
/// configuration is silent. Reads configuration alone, no store.
///
/// # Errors
/// When the configuration of one of these runtimes cannot be read or understood: it may pin any image, and name any for
/// sandboxes. What a user who is not root cannot read is not about that user's stores.
pub fn sandbox_images(request: &ScanRequest, kubelet: &Kubelet) -> Result<Vec<NamedImage>, Unreadable> {
    let unreadable = |names, problem: Option<(PathBuf, String)>| match problem {
        Some((path, reason)) if request.environment.uid == 0 => {
            Err(Unreadable { path, names, source: io::Error::other(reason) })
        }
        _ => Ok(()),
    };
    let mut found = Vec::new();
    let (pins, problem) = graphroot::sandboxes(&request.sysroot);
    let is_asked = |named: &[PathBuf]| !request.names_stores() || !named.is_empty();
    if is_asked(&request.graphroots) {
        unreadable(ImageNamers::CriO, problem)?;
    }
    for pin in pins {
        found.push(NamedImage { reference: pin.pattern, source: pin.origin });
    }
    let containerds = Containerds::of(request);
    if is_asked(&request.containerd_roots) {
        unreadable(ImageNamers::Containerd, containerds.problem)?;
    }
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

/// Data directories of k3s and RKE2 that hold a root of containerd, named or found: the manifests of static
/// pods are there, too.
pub fn data_dirs(request: &ScanRequest) -> Vec<DataDir> {
    let roots = Containerds::of(request).roots.into_iter();
    roots.filter_map(|config| DataDir::of_root(&config.root, &config.origin)).collect()
}

/// Directories that a scan of `request` reads as stores and as their runtime state: what is written
/// for messages has no place in them. Paths inside the root, as configured; they need not exist.
#[must_use]
pub fn directories(request: &ScanRequest) -> Vec<PathBuf> {
    let mut found = request.graphroots.clone();
    found.extend(request.runroot.clone());
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
    fn a_node_without_a_runtime_has_none() {
        assert_eq!(images(&[]), []);
        assert_eq!(images(&[(CONFIG, "version = 2")]), [], "containerd never ran here");
    }

    #[test]
    fn each_configuration_has_its_own() {
        let one = |reference: &str, source: &str| (reference.to_owned(), source.to_owned());
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
            assert_eq!(found, [one(expected, "/etc/containerd/config.toml")]);
        }
        let found = images(&[(META_DB, "")]);
        assert!(found.contains(&one("registry.k8s.io/pause:3.10", "containerd's built-in defaults")));
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
                one("reg.local/pause:4", "/etc/crio/crio.conf.d/10-a.conf"),
                one("reg.local/pause:5", "--pod-infra-container-image in /var/lib/kubelet/kubeadm-flags.env"),
            ]
        );
        let found = images(&[("etc/crio/crio.conf", "")]);
        assert!(found.contains(&one("registry.k8s.io/pause:3.10.1", "CRI-O's built-in pause_image")));
        assert_eq!(images(&[("etc/crio/crio.conf", "[crio.image]\npause_image = \"\"")]), []);
    }

    #[test]
    fn a_named_root_has_those_of_the_configuration_that_names_it() {
        let node = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(node.path().join("etc/containerd")).unwrap();
        let config = "root = \"/data/c\"\n[plugins.cri]\nsandbox_image = \"reg.local/pause:1\"";
        std::fs::write(node.path().join(CONFIG), config).unwrap();
        let of = |root: &str| {
            let request = ScanRequest { containerd_roots: vec![root.into()], ..request(node.path()) };
            let found = sandbox_images(&request, &Kubelet::default()).unwrap().into_iter();
            found.map(|image| image.reference).collect::<Vec<_>>()
        };
        assert_eq!(of("/data/c"), ["reg.local/pause:1"]);
        assert_eq!(of("/elsewhere"), ["reg.local/pause:1"], "a copied root has the system's");
        let request = ScanRequest { graphroots: vec!["/g".into()], ..request(node.path()) };
        assert_eq!(sandbox_images(&request, &Kubelet::default()).unwrap(), [], "no containerd is looked at");
    }
}
