//! Configurations of all versions, on generated disks.

use super::*;

fn disk(files: &[(&str, &str)]) -> (tempfile::TempDir, Sysroot) {
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::create_dir_all(dir.path().join("etc")).expect("etc");
    for (path, content) in files {
        let path = dir.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        std::fs::write(path, content).expect("file");
    }
    let sysroot = Sysroot::at(dir.path());
    (dir, sysroot)
}

/// Discovers roots from the files alone.
fn discover(sysroot: &Sysroot) -> ContainerdDiscovery {
    super::discover(sysroot, &RunningPrograms::default())
}

fn sources(discovery: &ContainerdDiscovery) -> Vec<(String, String)> {
    let roots = discovery.roots.iter();
    roots.map(|config| (config.root.display().to_string(), config.origin.clone())).collect()
}

fn first(files: &[(&str, &str)]) -> RootConfig {
    let (_dir, sysroot) = disk(files);
    let found = discover(&sysroot);
    assert_eq!(found.problems, []);
    found.roots.into_iter().next().expect("a root")
}

fn pins(config: &RootConfig) -> Vec<&str> {
    config.pins.iter().map(|pin| pin.image.as_str()).collect()
}

const MAIN: &str = "/etc/containerd/config.toml";

#[test]
fn default_roots_are_found_without_configuration() {
    let (_dir, sysroot) = disk(&[]);
    let found = discover(&sysroot);
    let expected = [
        ("/var/lib/containerd", "containerd's default"),
        ("/var/lib/rancher/k3s/agent/containerd", "k3s' default"),
        ("/var/lib/rancher/rke2/agent/containerd", "RKE2's default"),
        ("/var/snap/microk8s/common/var/lib/containerd", "MicroK8s' default"),
        ("/var/lib/k0s/containerd", "k0s' default"),
        ("/var/lib/docker/containerd/daemon", "Docker's default"),
    ];
    assert_eq!(sources(&found), expected.map(|(root, origin)| (root.to_owned(), origin.to_owned())));
    assert_eq!(found.problems, []);
}

#[test]
fn every_version_is_parsed() {
    let version_1 =
        "root = \"/data/c\"\n[plugins.cri]\nsandbox_image = \"p:1\"\n[plugins.overlayfs]\nroot_path = \"/o\"";
    let version_2 = "version = 2\nroot = \"/data/c\"\nstate = \"/s\"\n\
        [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"p:1\"\n\
        [plugins.\"io.containerd.snapshotter.v1.overlayfs\"]\nroot_path = \"/o\"\n\
        [plugins.\"io.containerd.snapshotter.v1.native\"]\nroot_path = \"\"";
    let version_3 = "version = 3\nroot = \"/data/c\"\n\
        [plugins.\"io.containerd.cri.v1.images\".pinned_images]\nsandbox = \"p:1\"\n\
        [plugins.'io.containerd.snapshotter.v1.overlayfs']\nroot_path = \"/o\"";
    for (text, state) in [(version_1, "/run/containerd"), (version_2, "/s"), (version_3, "/run/containerd")] {
        let config = first(&[(MAIN, text)]);
        assert_eq!(config.root, Path::new("/data/c"));
        assert_eq!(config.state, Path::new(state));
        assert_eq!(pins(&config), ["p:1"]);
        assert_eq!(config.snapshotters, [("overlayfs".to_owned(), PathBuf::from("/o"))]);
        assert_eq!(config.origin, MAIN);
    }
}

#[test]
fn directories_beside_the_root_are_found() {
    let text = "version = 3\nroot = \"/data/c\"\n\
        [proxy_plugins.soci]\ntype = \"snapshot\"\n[proxy_plugins.soci.exports]\nroot = \"/nvme/soci\"\n\
        [proxy_plugins.stargz]\ntype = \"snapshot\"\n[proxy_plugins.unknown]\ntype = \"snapshot\"\n\
        [proxy_plugins.nydus]\ntype = \"snapshot\"\n\
        [proxy_plugins.around]\ntype = \"snapshot\"\n[proxy_plugins.around.exports]\nroot = \"/data\"\n\
        [proxy_plugins.store]\ntype = \"content\"\n[proxy_plugins.store.exports]\nroot = \"/content\"\n\
        [plugins.'io.containerd.snapshotter.v1.erofs']\nlayer_content_caches = [\"/cache\", \"no\", \"/gone\"]";
    let files = [
        (MAIN, text),
        ("/data/c/x", ""),
        ("/nvme/soci/snapshotter/metadata.db", ""),
        ("/var/lib/containerd-stargz-grpc/stargz/x", ""),
        ("/cache/x", ""),
    ];
    let (dir, sysroot) = disk(&files);
    let config = discover(&sysroot).roots.into_iter().next().expect("a root");
    let names: Vec<_> = config.proxies.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["around", "nydus", "soci", "stargz"], "those whose directory is known");
    let top = dir.path().canonicalize().expect("path");
    let places = config.places(&sysroot).expect("places");
    let proxy = |name: &str, directory: &str, data: Option<&str>| Proxy {
        name: name.into(),
        directory: top.join(directory),
        data: data.map(|data| top.join(data)),
    };
    let expected = [
        proxy("soci", "nvme/soci", Some("nvme/soci/snapshotter")),
        proxy("stargz", "var/lib/containerd-stargz-grpc", None),
    ];
    assert_eq!(places.proxies, expected, "neither a directory around the root nor a missing one");
    assert_eq!(places.layer_caches, [top.join("cache")]);
}

#[test]
fn imports_override_in_order() {
    let config = first(&[
        (MAIN, "version = 2\nroot = \"/a\"\nimports = [\"conf.d/*.toml\", \"/opt/last.toml\"]"),
        ("/etc/containerd/conf.d/10.toml", "root = \"/b\"\nimports = [\"../config.toml\"]"),
        ("/etc/containerd/conf.d/20.toml", "[plugins.cri]\nsandbox_image = \"late\""),
        ("/etc/containerd/conf.d/30.txt", "root = \"/never\""),
        ("/opt/last.toml", "root = \"/c\""),
    ]);
    assert_eq!((config.root.as_path(), config.origin.as_str()), (Path::new("/c"), "/opt/last.toml"));
    assert_eq!(pins(&config), ["late"]);
}

#[test]
fn problems_are_reported_and_the_rest_is_used() {
    let (_dir, sysroot) = disk(&[
        (MAIN, "root = \"/a\"\nimports = [\"gone.toml\", \"*/x.toml\", \"bad.toml\"]"),
        ("/etc/containerd/bad.toml", "\nroot = "),
    ]);
    let found = discover(&sysroot);
    assert_eq!(found.roots[0].root, Path::new("/a"));
    let problems: Vec<_> =
        found.problems.iter().map(|(path, reason)| format!("{}: {reason}", path.display())).collect();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].starts_with("/etc/containerd/config.toml: imports: invalid pattern"), "{problems:?}");
    assert!(problems[1].starts_with("/etc/containerd/gone.toml: reading it"), "{problems:?}");
    assert!(problems[2].starts_with("/etc/containerd/bad.toml: line 2: "), "{problems:?}");
}

#[test]
fn k3s_configuration_is_found() {
    let k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
    let (_dir, sysroot) = disk(&[(
        k3s,
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"rancher/mirrored-pause:3.6\"",
    )]);
    let found = discover(&sysroot);
    let k3s = found.roots.iter().find(|root| root.origin == "k3s' default").expect("k3s");
    assert_eq!(k3s.root, Path::new("/var/lib/rancher/k3s/agent/containerd"));
    assert_eq!(k3s.state, Path::new("/run/k3s/containerd"));
    assert_eq!(pins(k3s), ["rancher/mirrored-pause:3.6"]);
}

#[test]
fn every_source_adds_its_root() {
    fn root(root: &str, origin: &str) -> (String, String) {
        (root.to_owned(), origin.to_owned())
    }
    fn reported(root: &str) -> RuntimeStore {
        RuntimeStore {
            kind: StoreKind::Containerd,
            root: root.into(),
            state: None,
            driver: None,
            image_root: None,
            sandbox_image: Some("reported:1".into()),
            ended_sandboxes: Vec::new(),
            origin: "Status".into(),
        }
    }
    let rke2 = "/dd/agent/etc/containerd/config.toml";
    let (_dir, sysroot) = disk(&[
        (MAIN, "root = \"/data/c\"\n[plugins.cri]\nsandbox_image = \"p:1\""),
        ("/etc/rancher/rke2/config.yaml", "data-dir: /dd\n"),
        ("/etc/rancher/k3s/config.yaml.d/10.yaml", "data-dir: \"/k\"\n"),
        (
            "/etc/systemd/system/k3s-agent.service",
            "ExecStart=/bin/k3s \\\n  agent \\\n\t'--data-dir' \\\n\t'/u' \\\n",
        ),
        (rke2, "root = \"/drive\"\n[plugins.cri]\nsandbox_image = \"p:2\""),
        ("/my.toml", "root = \"/my\"\nstate = \"/mystate\"\n[plugins.overlayfs]\nroot_path = \"/o\""),
    ]);
    let containerds = [
        "/usr/bin/containerd",
        "containerd -c /dd/agent/etc/containerd/config.toml --state /s --root /dd/agent/containerd",
        "containerd --config /my.toml",
        "k3s server --data-dir /fake",
    ];
    let running = RunningPrograms {
        containerds: containerds.map(|line| line.split(' ').map(str::to_owned).collect()).into(),
        stores: vec![reported("/my"), reported("/elsewhere")],
    };
    let found = super::discover(&sysroot, &running);
    let expected = [
        root("/dd/agent/containerd", "containerd's command line"),
        root("/my", "/my.toml"),
        root("/data/c", MAIN),
        root("/var/lib/containerd", "containerd's default"),
        root("/var/lib/rancher/k3s/agent/containerd", "k3s' default"),
        root("/var/lib/rancher/rke2/agent/containerd", "RKE2's default"),
        root("/k/agent/containerd", "data-dir in /etc/rancher/k3s/config.yaml.d/10.yaml"),
        root("/drive", rke2),
        root("/u/agent/containerd", "data-dir in /etc/systemd/system/k3s-agent.service"),
        root("/fake/agent/containerd", "a command line's data-dir"),
        root("/var/snap/microk8s/common/var/lib/containerd", "MicroK8s' default"),
        root("/var/lib/k0s/containerd", "k0s' default"),
        root("/var/lib/docker/containerd/daemon", "Docker's default"),
        root("/elsewhere", "Status"),
    ];
    assert_eq!(sources(&found), expected);
    for (root, expected) in [
        ("/dd/agent/containerd", &["p:2"][..]),
        ("/drive", &["p:2"]),
        ("/my", &["reported:1"]),
        ("/var/lib/containerd", &["p:1"]),
        ("/elsewhere", &["reported:1"]),
    ] {
        let config = found.roots.iter().find(|config| config.root == Path::new(root)).expect("a root");
        assert_eq!(pins(config), expected, "{root}");
    }
    let states = found.roots.iter().map(|config| config.state.as_path());
    assert_eq!(states.take(2).collect::<Vec<_>>(), [Path::new("/s"), Path::new("/mystate")]);
}

#[test]
fn named_root_uses_known_configuration() {
    let (dir, sysroot) =
        disk(&[(MAIN, "root = \"/data/c\"\n[plugins.cri]\nsandbox_image = \"p:1\""), ("/data/c/x", "")]);
    let named = |root: &str| discover(&sysroot).named(&sysroot, Path::new(root));
    let config = named("/data/../data/c");
    assert_eq!((config.origin.as_str(), pins(&config)), ("--containerd-root", vec!["p:1"]));
    let places = config.places(&sysroot).expect("places");
    assert!(places.foreign);
    assert_eq!(places.root, dir.path().canonicalize().expect("path").join("data/c"));
    assert!(named("/elsewhere").places(&sysroot).is_err());
    assert_eq!(pins(&named("/elsewhere")), ["p:1"], "a copied root has those of all files");
}
