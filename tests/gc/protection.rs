//! Protection by the node's own files and the images' labels, from the disk to the verdict.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs;
use std::path::{Path, PathBuf};

use crate::support;
use layersweep::config::Config;
use layersweep::disk::Progress;
use layersweep::model::{Evidence, EvidenceKind, Labels, Pattern};
use layersweep::policy::Policy;
use layersweep::services::protect::FromNode;
use layersweep::stores::Environment;
use layersweep::stores::{self, Measure, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use support::rulings::rulings_of_old;
use support::store::{self, Store};

fn request(store: &Store) -> ScanRequest {
    ScanRequest {
        graphroots: vec![store.root().to_path_buf()],
        runroots: vec![store.runroot()],
        measure: Measure::RecordsAndMounts,
        ..ScanRequest::of(Sysroot::live())
    }
}

fn look(request: &ScanRequest) -> Scan {
    stores::run(request, &Progress::default()).unwrap()
}

fn no_static_pods() -> Config {
    Config { static_pods: None, ..Config::defaults(&[]).unwrap() }
}

/// Returns names, rule and detail of every kept image.
fn kept(scan: &Scan, policy: &Policy) -> Vec<(String, &'static str, String)> {
    let images = scan.inventory.images.iter().zip(rulings_of_old(scan, policy));
    let mut kept: Vec<_> = images
        .filter_map(|(image, ruling)| {
            let ruling = ruling?;
            Some((image.title().to_owned(), ruling.rule.as_str(), ruling.detail))
        })
        .collect();
    kept.sort();
    kept
}

/// Makes a store with labelled images, as podman makes them.
pub(super) fn labelled_store(root: &Path) -> Store {
    let store = Store::at(root, "overlay");
    let tar = store.scratch().join("rootfs.tar");
    let content = store.scratch().join("content");
    fs::write(&content, "content").unwrap();
    let mut archive = tar::Builder::new(fs::File::create(&tar).unwrap());
    archive.append_path_with_name(&content, "file").unwrap();
    archive.finish().unwrap();
    for (name, changes) in [
        ("localhost/keep:1", &["LABEL keep=yes", "LABEL team=a"][..]),
        ("localhost/other:1", &["LABEL team=b c"]),
        ("localhost/none:1", &["CMD /x"]),
        ("docker.io/library/busybox:1.36", &["CMD /x1"]),
        ("docker.io/library/short:latest", &["CMD /x2"]),
        ("quay.io/pods/half:1", &["CMD /x3"]),
        ("quay.io/pods/volume:1", &["CMD /x4"]),
        ("registry.k8s.io/pause:3.9", &["CMD /pause"]),
    ] {
        let mut command = store.podman_command();
        command.arg("import");
        for change in changes {
            command.args(["--change", change]);
        }
        store::succeed(command.arg(&tar).arg(name));
    }
    store
}

#[test]
fn labels_written_by_podman_protect_images() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = labelled_store(dir.path());
    store.podman(["manifest", "create", "localhost/list:1"]);
    let mut policy = Policy::default();
    policy.protect.labels = vec![("keep".into(), None), ("team".into(), Some("b c".into()))];

    // A scan without labels deletes nothing.
    let unasked = look(&request(&store));
    let images = unasked.inventory.images.len();
    assert!(unasked.inventory.images.iter().all(|image| image.labels == Labels::NotRead));
    assert_eq!(kept(&unasked, &policy).len(), images);

    let asking = ScanRequest { labels: true, ..request(&store) };
    let scan = look(&asking);
    fn of<'a>(scan: &'a Scan, name: &str) -> &'a layersweep::model::Image {
        let mut images = scan.inventory.images.iter();
        images.find(|image| image.names.iter().any(|other| other == name)).expect(name)
    }
    fn pairs(pairs: &[(&str, &str)]) -> Labels {
        Labels::Known(pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
    }
    /// Removes the versions that buildah and podman add.
    fn without_podmans(labels: &Labels) -> Labels {
        match labels {
            Labels::Known(labels) => {
                let written = labels.iter().filter(|(key, _)| !key.starts_with("io."));
                Labels::Known(written.cloned().collect())
            }
            other => other.clone(),
        }
    }
    assert_eq!(
        without_podmans(&of(&scan, "localhost/keep:1").labels),
        pairs(&[("keep", "yes"), ("team", "a")])
    );
    assert_eq!(without_podmans(&of(&scan, "localhost/other:1").labels), pairs(&[("team", "b c")]));
    assert_eq!(without_podmans(&of(&scan, "localhost/none:1").labels), pairs(&[]));
    assert_eq!(of(&scan, "localhost/list:1").labels, pairs(&[]), "a list has no configuration");
    let expected = [
        ("localhost/keep:1".to_owned(), "protected-label", "it has the protected label keep=yes".to_owned()),
        ("localhost/other:1".into(), "protected-label", "it has the protected label team=b c".into()),
    ];
    assert_eq!(kept(&scan, &policy), expected);

    // Right before a deletion, only the files of the image to delete are read, and the birth of lists.
    fn birth(image: &layersweep::model::Image) -> Option<&Evidence> {
        image.evidence.iter().find(|evidence| evidence.kind == EvidenceKind::MetadataDirectory)
    }
    let id = of(&scan, "localhost/keep:1").id.to_string();
    let single = look(&ScanRequest { image: Some(id), ..asking.clone() });
    for (image, with_all) in single.inventory.images.iter().zip(&scan.inventory.images) {
        let is_it = image.names == ["localhost/keep:1"];
        assert_eq!(image.labels, if is_it { with_all.labels.clone() } else { Labels::NotRead });
        let expected = birth(with_all).filter(|_| is_it || image.is_list);
        assert_eq!(birth(image), expected, "{:?}", image.names);
    }

    // Measured or not, the labels are the same.
    let measured = look(&ScanRequest { measure: Measure::Everything, ..asking.clone() });
    assert_eq!(measured.inventory.images.len(), scan.inventory.images.len());
    for (measured, image) in measured.inventory.images.iter().zip(&scan.inventory.images) {
        assert_eq!((&measured.id, &measured.labels), (&image.id, &image.labels));
    }

    // A configuration that a power failure destroyed: the labels of its image are unknown.
    let none = of(&scan, "localhost/none:1");
    let directory = dir.path().join("overlay-images").join(none.id.as_str());
    let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let config = files.filter(|file| fs::read_to_string(file).unwrap().contains("rootfs"));
    let config: Vec<_> = config.collect();
    assert_eq!(config.len(), 1, "{config:?}");
    for file in config {
        let length = fs::metadata(&file).unwrap().len();
        fs::write(&file, vec![0; usize::try_from(length).unwrap()]).unwrap();
    }
    let kept = kept(&look(&asking), &policy);
    let eaten = kept.iter().find(|(name, ..)| name == "localhost/none:1").expect("it is kept");
    let words = "it may have a protected label: its labels are unknown (its configuration is not JSON";
    assert!(eaten.1 == "protected-label" && eaten.2.starts_with(words), "{eaten:?}");
}

#[test]
fn members_of_podman_manifest_list_are_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = labelled_store(dir.path());
    let mut members = store.manifest_list("localhost/list:1", &["localhost/keep:1", "localhost/none:1"]);
    members.sort();
    let request = request(&store);
    let mut policy = Policy::default();
    assert_eq!(kept(&look(&request), &policy), [], "nothing keeps the list");
    policy.protect.names = vec![Pattern::new("localhost/list:*").unwrap()];
    let scan = look(&request);
    let detail = "localhost/list:1 matches the protected name localhost/list:*";
    let of_list = format!("a member of the manifest list localhost/list:1, which stays: {detail}");
    let mut expected: Vec<_> =
        members.iter().map(|id| (id.clone(), "protected-name", of_list.clone())).collect();
    expected.push(("localhost/list:1".into(), "protected-name", detail.into()));
    assert_eq!(kept(&scan, &policy), expected);

    // A manifest that cannot be read may name any image.
    let image = scan.inventory.images.iter().find(|image| image.is_list).unwrap();
    let manifest = dir.path().join("overlay-images").join(image.id.as_str()).join("manifest");
    fs::remove_file(&manifest).unwrap();
    fs::create_dir(&manifest).unwrap();
    let damaged = look(&request);
    assert!(damaged.inventory.findings.iter().any(|finding| finding.path == manifest && finding.incomplete));
    let rules = kept(&damaged, &Policy::default()).into_iter().map(|(_, rule, _)| rule);
    assert_eq!(rules.collect::<Vec<_>>(), vec!["damaged-store"; scan.inventory.images.len()]);
    // For a list without an index, podman does not find the members either.
    fs::remove_dir(&manifest).unwrap();
    assert_eq!(kept(&look(&request), &Policy::default()), []);
}

#[test]
fn images_named_by_node_files_are_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = labelled_store(&dir.path().join("store"));
    let node = dir.path().join("node");
    for (path, text) in [
        (
            "etc/kubernetes/manifests/apps.yaml",
            "kind: Pod\nspec:\n  containers:\n  - {image: 'busybox:1.36'}\n  - image: short\n  volumes:\n  - image: {reference: quay.io/pods/volume:1}\n",
        ),
        ("data/pods/pod.yaml", "kind: Pod\nspec:\n  containers:\n  - image: quay.io/pods/half:1\n"),
        (
            "data/pods/broken.yaml",
            "kind: Pod\nspec:\n  containers:\n  - image: quay.io/pods/left:1\n    name: \"ha",
        ),
        ("var/lib/kubelet/config.yaml", "staticPodPath: /data/pods\n"),
        ("var/lib/kubelet/kubeadm-flags.env", "A=\"--pod-infra-container-image=registry.k8s.io/pause:3.9\""),
    ] {
        write(&node, path, text);
    }
    let files = ScanRequest { sysroot: Sysroot::at(&node), ..request(&store) };

    let config = Config::defaults(&[]).unwrap();
    let found = FromNode::read(&files, &config).unwrap();
    assert_eq!(found.findings.len(), 1, "{:?}", found.findings);
    assert_eq!(found.findings[0].path, Path::new("/data/pods/broken.yaml"));
    let mut policy = Policy::default();
    found.apply(&mut policy.protect);
    let scan = look(&request(&store));
    let apps = "the static pod /etc/kubernetes/manifests/apps.yaml names it";
    let expected = [
        ("docker.io/library/busybox:1.36", "static-pod", apps),
        ("docker.io/library/short:latest", "static-pod", apps),
        ("quay.io/pods/half:1", "static-pod", "the static pod /data/pods/pod.yaml names it"),
        ("quay.io/pods/volume:1", "static-pod", apps),
        (
            "registry.k8s.io/pause:3.9",
            "sandbox-image",
            "used for pod sandboxes, according to --pod-infra-container-image in \
             /var/lib/kubelet/kubeadm-flags.env",
        ),
    ];
    let expected = expected.map(|(name, rule, detail)| (name.to_owned(), rule, detail.to_owned()));
    assert_eq!(kept(&scan, &policy), expected);

    // Switched off, static pods protect nothing; sandboxes still do.
    let without = FromNode::read(&files, &no_static_pods()).unwrap();
    assert_eq!((without.static_pods.len(), without.findings.len()), (0, 0));
    without.apply(&mut policy.protect);
    assert_eq!(kept(&scan, &policy).len(), 1);

    // A file that cannot be read may name any image.
    fs::remove_file(node.join("data/pods/broken.yaml")).unwrap();
    std::os::unix::fs::symlink("broken.yaml", node.join("data/pods/broken.yaml")).unwrap();
    let error = FromNode::read(&files, &config).unwrap_err();
    assert_eq!(error.path, Path::new("/data/pods/broken.yaml"));
}

/// Writes a file of a node and its directories.
fn write(node: &Path, path: &str, text: &str) {
    let path = node.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Root's quadlets keep images of root's store, a user's quadlets those of the user's store.
#[test]
fn quadlets_keep_images_in_their_users_stores() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = dir.path().join("node");
    let write = |path: &str, text: &str| write(&node, path, text);
    // Both stores contain the same images.
    let _stores = ["var/lib/containers/storage", "home/alice/.local/share/containers/storage"].map(|root| {
        fs::create_dir_all(node.join(root)).unwrap();
        labelled_store(&node.join(root))
    });
    let hers = node.join("home/alice/.local/share/containers/storage");
    std::os::unix::fs::chown(&hers, Some(1000), Some(1000)).unwrap();
    write("etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n");
    write("etc/containers/systemd/app/web.container", "[Container]\nImage=docker.io/library/busybox:1.36\n");
    write("usr/share/containers/systemd/base.image", "[Image]\nImage=quay.io/pods/half:1\n");
    write("home/alice/.config/containers/systemd/own.container", "[Container]\nImage=none:1\n");
    write("home/alice/.config/containers/systemd/own.container.d/x.conf", "[Container]\nImage=other:1\n");
    write("home/alice/.config/containers/systemd/huge.container", &"x".repeat(2 << 20));
    write("etc/containers/systemd/users/all.kube", "[Kube]\nYaml=pod.yml\n");
    write("etc/containers/systemd/users/pod.yml", "spec: {containers: [{image: quay.io/pods/volume:1}]}");
    write("etc/containers/systemd/users/1000/hers.container", "[Container]\nImage=localhost/keep:1\n");
    write(
        "etc/containers/systemd/users/1001/his.container",
        "[Container]\nImage=registry.k8s.io/pause:3.9\n",
    );
    let request = ScanRequest { measure: Measure::RecordsAndMounts, ..ScanRequest::of(Sysroot::at(&node)) };
    let scan = look(&request);
    assert_eq!(scan.inventory.stores.len(), 2);
    let found = FromNode::read(&request, &no_static_pods()).unwrap();
    assert_eq!(found.findings.len(), 1, "{:?}", found.findings);
    let mut policy = Policy::default();
    found.apply(&mut policy.protect);
    let home = "/home/alice/.config/containers/systemd";
    let expected = [
        ("docker.io/library/busybox:1.36", "/etc/containers/systemd/app/web.container".to_owned()),
        ("localhost/keep:1", "/etc/containers/systemd/users/1000/hers.container".to_owned()),
        ("localhost/none:1", format!("{home}/own.container")),
        ("localhost/other:1", format!("{home}/own.container.d/x.conf")),
        ("quay.io/pods/half:1", "/usr/share/containers/systemd/base.image".to_owned()),
        ("quay.io/pods/volume:1", "/etc/containers/systemd/users/pod.yml".to_owned()),
    ];
    let expected =
        expected.map(|(name, by)| (name.to_owned(), "quadlet", format!("the quadlet {by} names it")));
    assert_eq!(kept(&scan, &policy), expected);
    // Of a store that alice cannot use, her quadlets are not even read.
    let home = &home[1..];
    let named = |store: &str| ScanRequest { graphroots: vec![store.into()], ..request.clone() };
    let of_root = FromNode::read(&named("/var/lib/containers/storage"), &no_static_pods()).unwrap();
    assert_eq!((of_root.findings.len(), of_root.quadlets.len()), (0, 2), "{of_root:?}");
    let hers = named("/home/alice/.local/share/containers/storage");
    assert_eq!(FromNode::read(&hers, &no_static_pods()).unwrap().quadlets.len(), found.quadlets.len());
    // More quadlets than are read keep all of alice's images, and none of root's.
    write(&format!("{home}/endless.container"), &format!("[Container]\n{}", "Image=a\n".repeat(10_000)));
    FromNode::read(&request, &no_static_pods()).unwrap().apply(&mut policy.protect);
    let of_alice = scan
        .inventory
        .images
        .iter()
        .filter(|image| scan.inventory.stores[image.store.get()].root.starts_with(node.join("home")));
    let of_alice = of_alice.count();
    let kept_now = kept(&scan, &policy);
    assert_eq!(kept_now.len(), of_alice + 2, "{kept_now:?}");
    fs::remove_file(node.join(home).join("endless.container")).unwrap();
    // An unreadable quadlet of root may name any image; one of a user stops no run.
    std::os::unix::fs::symlink("x.container", node.join(format!("{home}/x.container"))).unwrap();
    FromNode::read(&request, &no_static_pods()).unwrap();
    std::os::unix::fs::symlink("x.container", node.join("etc/containers/systemd/x.container")).unwrap();
    let error = FromNode::read(&request, &no_static_pods()).unwrap_err();
    assert!(error.to_string().contains("quadlets"), "{error}");
}

/// A configuration of a runtime that cannot be read may pin any image, and name any image for its sandboxes.
#[test]
fn unreadable_runtime_settings_keep_everything() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| write(dir.path(), path, text);
    let crio = "etc/crio/crio.conf.d/50-pins";
    let containerd = "etc/containerd/config.toml";
    write(containerd, "imports = [\"conf.d/*.toml\"]\n");
    let imported = "etc/containerd/conf.d/pause.toml";
    fn read(
        dir: &tempfile::TempDir,
        graphroots: &[&str],
        uid: u32,
    ) -> Result<FromNode, layersweep::node::Unreadable> {
        let request = ScanRequest {
            graphroots: graphroots.iter().map(PathBuf::from).collect(),
            environment: Environment { uid, ..Environment::default() },
            ..ScanRequest::of(Sysroot::at(dir.path()))
        };
        FromNode::read(&request, &no_static_pods())
    }
    let assert_reported = |file: &str, owner: &str| {
        let error = read(&dir, &[], 0).unwrap_err();
        assert_eq!(error.path, Path::new("/").join(file));
        assert!(error.to_string().contains(owner), "{error}");
    };
    write(crio, "[crio.image]\npause_image = \"reg.local/pause:1\"\n");
    assert_eq!(read(&dir, &[], 0).unwrap().sandboxes.len(), 1);
    for broken in ["[crio.image", "[crio.image]\npinned_images = \"reg.local/*\"\n", "crio = 1\n"] {
        write(crio, broken);
        assert_reported(crio, "CRI-O");
        read(&dir, &["/any"], 0).unwrap_err();
    }
    read(&dir, &[], 1000).expect("an unreadable file of root does not stop a user");
    write(crio, "");

    // The configuration of containerd counts if containerd exists.
    write(imported, "[plugins");
    read(&dir, &[], 0).unwrap();
    write("var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db", "");
    assert_reported(imported, "containerd");
    read(&dir, &["/any"], 0).expect("its store is not named");
    write(imported, "");
    read(&dir, &[], 0).unwrap();
    let imports = dir.path().join("etc/containerd/conf.d");
    fs::rename(&imports, imports.with_file_name("away")).unwrap();
    std::os::unix::fs::symlink("conf.d", &imports).unwrap();
    assert_reported("etc/containerd/conf.d", "containerd");
}
