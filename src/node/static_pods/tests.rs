//! Trees of files as kubelets have them, each below its own root.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

const MANIFESTS: &str = "/etc/kubernetes/manifests";

struct Node(tempfile::TempDir);

impl Node {
    fn new(files: &[(&str, &str)]) -> Self {
        let node = Self(tempfile::Builder::new().prefix("layersweep-pods-").tempdir().unwrap());
        for (path, text) in files {
            node.write(path, text.as_bytes());
        }
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn read(&self) -> Result<StaticPods, Unreadable> {
        let sysroot = Sysroot::at(self.0.path());
        read(&sysroot, &Kubelet::read(&sysroot), Path::new(MANIFESTS))
    }

    /// Returns reference and source of each image, and the findings.
    fn found(&self) -> (Vec<String>, Vec<String>) {
        let found = self.read().unwrap();
        let images = found.images.into_iter().map(|image| format!("{} {}", image.reference, image.source));
        let findings = found
            .findings
            .into_iter()
            .map(|finding| format!("{}: {}", finding.path.display(), finding.message));
        (images.collect(), findings.collect())
    }
}

fn pod(image: &str) -> String {
    format!("kind: Pod\nspec:\n  containers:\n  - image: {image}\n")
}

#[test]
fn missing_or_empty_directory_names_no_image() {
    let node = Node::new(&[]);
    assert_eq!(node.found(), (vec![], vec![]));
    fs::create_dir_all(node.path(MANIFESTS)).unwrap();
    assert_eq!(node.found(), (vec![], vec![]));
    let node = Node::new(&[("/etc/kubernetes", "a file")]);
    assert_eq!(node.found(), (vec![], vec![]));
}

#[test]
fn files_that_the_kubelet_reads_are_read() {
    let node = Node::new(&[
        ("/etc/kubernetes/manifests/etcd.yaml", &pod("etcd")),
        ("/etc/kubernetes/manifests/api", &pod("api")),
        ("/etc/kubernetes/manifests/pod.json", "{\"spec\": {\"containers\": [{\"image\": \"json\"}]}}"),
        ("/etc/kubernetes/manifests/.hidden.yaml", &pod("hidden")),
        ("/etc/kubernetes/manifests/deeper/x.yaml", &pod("deeper")),
        ("/etc/kubernetes/manifests/d.yaml/x.yaml", &pod("deeper")),
        ("/etc/kubernetes/manifests/readme", "no pod"),
        ("/srv/elsewhere.yaml", &pod("elsewhere")),
    ]);
    let manifests = node.path(MANIFESTS);
    symlink("/srv/elsewhere.yaml", manifests.join("link.yaml")).unwrap();
    symlink("deeper", manifests.join("to-directory.yaml")).unwrap();
    symlink("/srv/none", manifests.join("dangling.yaml")).unwrap();
    symlink("loop", manifests.join(".loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        manifests.join("fifo.yaml"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    symlink("fifo.yaml", manifests.join("to-fifo.yaml")).unwrap();
    let (images, findings) = node.found();
    assert_eq!(
        images,
        [
            "api /etc/kubernetes/manifests/api",
            "etcd /etc/kubernetes/manifests/etcd.yaml",
            "elsewhere /etc/kubernetes/manifests/link.yaml",
            "json /etc/kubernetes/manifests/pod.json",
        ]
    );
    assert_eq!(
        findings,
        [
            "/etc/kubernetes/manifests/dangling.yaml: is a dangling symlink; it is taken to name no image",
            "/etc/kubernetes/manifests/readme: names no image",
            "/etc/kubernetes/manifests/to-fifo.yaml: not a regular file; it is taken to name no image",
        ]
    );
}

#[test]
fn file_with_parse_error_is_a_finding() {
    let node =
        Node::new(&[("/etc/kubernetes/manifests/a.yaml", &format!("{}  - \"name", pod("reg.local/a:1")))]);
    let (images, findings) = node.found();
    assert_eq!(images, [""; 0]);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert!(finding.starts_with("/etc/kubernetes/manifests/a.yaml: neither YAML nor JSON: "), "{finding}");
    assert!(finding.ends_with("; images that it names from there on are not protected"), "{finding}");
}

#[test]
fn file_too_large_for_the_kubelet_is_skipped() {
    let node = Node::new(&[("/etc/kubernetes/manifests/a.yaml", "")]);
    let file = fs::File::options().write(true).open(node.path("/etc/kubernetes/manifests/a.yaml")).unwrap();
    file.set_len(1 << 40).unwrap();
    let (images, findings) = node.found();
    assert_eq!((images.len(), findings.len()), (0, 1));
    assert!(findings[0].contains("which the kubelet does not read"), "{findings:?}");
}

/// The kubelet's settings name the directory of its manifests.
#[test]
fn directory_of_the_kubelets_settings_is_read() {
    for (file, text, directory) in [
        ("/var/lib/kubelet/config.yaml", "kind: X\nstaticPodPath: /data/pods\n", "/data/pods"),
        ("/var/lib/kubelet/config.yaml", "{\"staticPodPath\": \"/data/pods\"}", "/data/pods"),
        ("/etc/kubernetes/kubelet.conf", "staticPodPath: \"/data/pods\"", "/data/pods"),
        ("/var/lib/kubelet/config.yaml", "staticPodPath: pods", "/var/lib/kubelet/pods"),
        ("/etc/default/kubelet", "A=\"--pod-manifest-path=/data/pods --x\"", "/data/pods"),
        ("/var/snap/microk8s/current/args/kubelet", "--x=1\n--pod-manifest-path=/data/pods\n", "/data/pods"),
        (
            "/etc/systemd/system/kubelet.service.d/10-a.conf",
            "[Service]\nExecStart=/usr/bin/kubelet \\\n  --pod-manifest-path /data/pods \\\n  --x\n",
            "/data/pods",
        ),
        (
            "/var/lib/rancher/rke2/agent/etc/kubelet.conf.d/00-a.conf",
            "staticPodPath: /data/pods",
            "/data/pods",
        ),
        ("/none", "", "/var/lib/rancher/rke2/agent/pod-manifests"),
        ("/none", "", "/var/lib/rancher/k3s/agent/pod-manifests"),
    ] {
        let configured = format!("{MANIFESTS}/pod.yaml");
        let set = format!("{directory}/pod.yaml");
        let node = Node::new(&[(file, text), (&configured, &pod("a")), (&set, &pod("b"))]);
        let (images, findings) = node.found();
        let expected = [format!("a {configured}"), format!("b {set}")];
        assert_eq!((images, findings), (expected.into(), vec![]), "{file}: {text}");
    }
}

#[test]
fn settings_in_files_named_by_flags_are_read() {
    let node = Node::new(&[
        ("/etc/sysconfig/kubelet", "A=\"--config=/opt/kubelet.json --config-dir=/opt/kubelet.d\""),
        ("/opt/kubelet.json", "{\"staticPodPath\": \"/data/a\"}"),
        ("/opt/kubelet.d/10-b.conf", "staticPodPath: /data/b"),
        ("/opt/kubelet.d/readme", "staticPodPath: /data/c"),
        ("/data/a/pod", &pod("a")),
        ("/data/b/pod", &pod("b")),
        ("/data/c/pod", &pod("c")),
    ]);
    assert_eq!(node.found().0, ["a /data/a/pod", "b /data/b/pod"]);
}

#[test]
fn place_with_several_names_is_read_once() {
    let node = Node::new(&[
        ("/data/pods/pod.yaml", &pod("a")),
        ("/var/lib/kubelet/config.yaml", "staticPodPath: /etc/kubernetes/manifests/"),
        ("/etc/kubernetes/kubelet.conf", "staticPodPath: /data/pods"),
    ]);
    fs::create_dir_all(node.path("/etc/kubernetes")).unwrap();
    symlink("/data/pods", node.path(MANIFESTS)).unwrap();
    assert_eq!(node.found().0, ["a /etc/kubernetes/manifests/pod.yaml"]);
}

#[test]
fn place_may_be_a_single_file() {
    let node = Node::new(&[
        ("/var/lib/kubelet/config.yaml", "staticPodPath: /data/pod.yaml"),
        ("/data/pod.yaml", &pod("a")),
    ]);
    assert_eq!(node.found(), (vec!["a /data/pod.yaml".into()], vec![]));
}

#[test]
fn unprotected_static_pods_are_reported() {
    let node = Node::new(&[
        ("/var/lib/kubelet/config.yaml", "staticPodPath: [a]\nstaticPodURL: https://a/b\n"),
        ("/etc/kubernetes/kubelet.conf", "a: ["),
        ("/etc/default/kubelet", "A=\"--pod-manifest-path=pods\""),
    ]);
    let (images, findings) = node.found();
    assert_eq!(images, [""; 0]);
    for part in [
        "/var/lib/kubelet/config.yaml: staticPodPath must be a string; static pods in a directory",
        "/etc/kubernetes/kubelet.conf: ",
        "/etc/default/kubelet: --pod-manifest-path \"pods\" is relative",
        "/var/lib/kubelet/config.yaml: static pods in \"https://a/b\" are not read",
    ] {
        assert!(findings.iter().any(|finding| finding.starts_with(part)), "{part}: {findings:#?}");
    }
}

/// Even root cannot read a loop of symlinks, or a directory where a file is expected.
#[test]
fn unreadable_path_is_an_error() {
    let node = Node::new(&[("/etc/kubernetes/manifests/a.yaml", &pod("a"))]);
    symlink("b.yaml", node.path("/etc/kubernetes/manifests/b.yaml")).unwrap();
    let error = node.read().unwrap_err();
    assert_eq!(error.path, Path::new("/etc/kubernetes/manifests/b.yaml"));
    assert!(
        error.to_string().starts_with("reading /etc/kubernetes/manifests/b.yaml: which images"),
        "{error}"
    );

    let node = Node::new(&[]);
    fs::create_dir_all(node.path("/etc/kubernetes")).unwrap();
    symlink("manifests", node.path(MANIFESTS)).unwrap();
    assert_eq!(node.read().unwrap_err().path, Path::new(MANIFESTS));

    let node = Node::new(&[("/var/lib/kubelet/config.yaml/x", "")]);
    assert_eq!(node.read().unwrap_err().path, Path::new("/var/lib/kubelet/config.yaml"));
}
