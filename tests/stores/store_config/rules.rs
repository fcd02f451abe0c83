//! Root's stores: `storage.conf` and CRI-O's files, rule by rule.

use std::fs;
use std::os::unix::fs::symlink;

use layersweep::stores::Environment;
use layersweep::stores::RunningPrograms;
use layersweep::stores::containers_storage::config::{discover, named};
use layersweep::sys::sysroot::Sysroot;

use super::{fixture, line, lines, made, path, root};

#[test]
fn root_has_configured_stores() {
    const ETC: &str = "/etc/containers/storage.conf";
    let default_run = "/run/containers/storage";
    let default = format!("/var/lib/containers/storage {default_run}");
    let cases: Vec<(&str, Environment, Vec<String>)> = vec![
        ("bare", root(), vec![format!("{default} (built-in default)")]),
        // Settings that the administrator's file omits are not read from the vendor's.
        (
            "administrator",
            root(),
            vec![format!("/data/containers/storage {default_run} driver=overlay ({ETC})")],
        ),
        (
            "administrator",
            Environment { storage_driver: Some("btrfs".into()), ..root() },
            vec![format!("/data/containers/storage {default_run} driver=btrfs ({ETC})")],
        ),
        (
            "vendor",
            root(),
            vec![
                "/vendor/storage /vendor/run ro=/usr/lib/containers/storage \
                 layers=/var/lib/stargz-store/store driver=vfs transient \
                 (/usr/share/containers/storage.conf)"
                    .to_owned(),
            ],
        ),
        (
            "environment",
            root(),
            vec![format!("/of/etc {default_run} images=/of/etc-images driver=btrfs ({ETC})")],
        ),
        (
            "environment",
            Environment { xdg_config_home: path("/srv/xdg"), ..root() },
            vec![format!("/of/xdg {default_run} driver=btrfs (/srv/xdg/containers/storage.conf)")],
        ),
        (
            "environment",
            Environment { xdg_config_home: path("/srv/missing"), ..root() },
            vec![format!("/of/etc {default_run} images=/of/etc-images driver=btrfs ({ETC})")],
        ),
        (
            "environment",
            Environment {
                containers_storage_conf: path("/srv/named.conf"),
                xdg_config_home: path("/srv/xdg"),
                ..root()
            },
            vec![format!("/of/named {default_run} (/srv/named.conf)")],
        ),
        // Only later libraries read the override, so both runroots count.
        (
            "environment",
            Environment {
                containers_storage_conf: path("/srv/named.conf"),
                containers_storage_conf_override: path("/srv/override.conf"),
                ..root()
            },
            vec![format!("/of/named {default_run} run=/of/override (/srv/named.conf)")],
        ),
        (
            "drop-ins",
            root(),
            vec![
                format!("/of/main /of/main-run ro=/of/main-images driver=overlay ({ETC})"),
                "/of/90 /of/10 images=/of/50-images ro=/of/main-images driver=overlay transient \
                 (/usr/share/containers/storage.conf.d/90-last-by-name.conf)"
                    .to_owned(),
            ],
        ),
        (
            "append",
            root(),
            vec![
                format!("{default} ro=/a layers=/l (built-in default)"),
                format!(
                    "/elsewhere {default_run} ro=/a ro=/b ro=/c layers=/m \
                     (/etc/containers/storage.conf.d/3.conf)"
                ),
            ],
        ),
        (
            "crio",
            root(),
            vec![
                "/of/storage.conf /of/storage.conf-run ro=/ro/storage.conf driver=overlay \
                 transient (/etc/containers/storage.conf)"
                    .to_owned(),
                "/of/crio.conf /of/10-sub.conf images=/of/10-images ro=/ro/storage.conf ro=/ro/a \
                 ro=/ro/b ro=/ro/c layers=/layers driver=overlay (/etc/crio/crio.conf)"
                    .to_owned(),
            ],
        ),
        (
            "crio-inherits",
            root(),
            vec![format!("/of/storage.conf {default_run} images=/of/storage.conf-images ({ETC})")],
        ),
        // An empty imagestore means none, an empty root means that of storage.conf.
        (
            "crio-unset",
            root(),
            vec![
                format!("{default} images=/of/storage.conf-images (built-in default)"),
                format!("/of/crio {default_run} (/etc/crio/crio.conf)"),
            ],
        ),
    ];
    for (case, environment, expected) in cases {
        let discovery = discover(&fixture(case), &environment, &RunningPrograms::default());
        assert_eq!(lines(&discovery), expected, "{case} {environment:?}");
        assert_eq!(discovery.problems, [], "{case}");
    }
}

#[test]
fn pins_come_from_last_file() {
    fn pins(case: &str) -> Vec<(String, String)> {
        let discovery = discover(&fixture(case), &root(), &RunningPrograms::default());
        discovery.pins.into_iter().map(|pin| (pin.pattern, pin.origin)).collect()
    }
    fn owned(pattern: &str, origin: &str) -> (String, String) {
        (pattern.to_owned(), origin.to_owned())
    }
    let drop_in = "/etc/crio/crio.conf.d/50-pinned-images";
    assert_eq!(
        pins("crio"),
        [
            owned("quay.io/openshift/release@sha256:00", drop_in),
            owned("quay.io/*", drop_in),
            owned("registry.example/pause:1", "/etc/crio/crio.conf"),
        ]
    );
    // An empty setting; no setting; no CRI-O.
    assert_eq!(pins("crio-unset"), []);
    assert!(
        pins("crio-inherits")
            .contains(&owned("registry.k8s.io/pause:3.10.1", "CRI-O's built-in pause_image"))
    );
    assert_eq!(pins("bare"), []);
}

#[test]
fn errors_name_file_and_line() {
    let discovery = discover(&fixture("wrong"), &root(), &RunningPrograms::default());
    assert_eq!(
        lines(&discovery),
        [
            "/var/lib/containers/storage /run/containers/storage ro=/good (built-in default)",
            "/good /run/containers/storage (/etc/crio/crio.conf)",
        ]
    );
    let problems: Vec<String> =
        (discovery.problems.iter()).map(|(file, reason)| format!("{}: {reason}", file.display())).collect();
    let storage = "/etc/containers/storage.conf";
    let crio = "/etc/crio/crio.conf";
    for expected in [
        format!("{storage}: line 2: driver must be a string, not integer; ignored"),
        format!("{storage}: graphroot: \"relative/path\" is not an absolute path; ignored"),
        format!("{storage}: line 4: runroot must be a string, not array; ignored"),
        format!("{storage}: imagestore is the graphroot; ignored"),
        format!("{storage}: line 6: transient_store must be a boolean, not string; ignored"),
        format!(
            "{storage}: line 9: additionalimagestores must be an array of strings, not integer; \
             ignored"
        ),
        format!(
            "{storage}: line 10: additionallayerstores must be an array of strings, not string; \
             ignored"
        ),
        format!("{crio}: line 3: storage_option must be an array of strings, not string; ignored"),
        format!("{crio}: line 4: image must be a table, not integer; ignored"),
        format!("{crio}.d/30-table: line 1: crio must be a table, not string; ignored"),
    ] {
        assert!(problems.contains(&expected), "{expected}\nis not in {problems:#?}");
    }
    for start in [format!("{crio}.d/10-syntax: line 3: "), format!("{crio}.d/20-duplicate: line 2: ")] {
        assert!(problems.iter().any(|problem| problem.starts_with(&start)), "{problems:#?}");
    }
    assert_eq!(problems.len(), 12, "each once: {problems:#?}");
}

#[test]
fn missing_named_file_is_a_problem() {
    let environment = Environment { containers_storage_conf: path("/missing"), ..root() };
    let discovery = discover(&fixture("environment"), &environment, &RunningPrograms::default());
    assert_eq!(lines(&discovery), ["/var/lib/containers/storage /run/containers/storage (built-in default)"]);
    assert_eq!(discovery.problems.len(), 1, "{:?}", discovery.problems);
}

#[test]
fn named_store_matches_configured_store() {
    for (graphroot, expected) in [
        // The graphroot of CRI-O.
        (
            "/of/crio.conf",
            "/of/crio.conf /of/10-sub.conf images=/of/10-images ro=/ro/storage.conf ro=/ro/a \
             ro=/ro/b ro=/ro/c layers=/layers driver=overlay (--graphroot)",
        ),
        (
            "//of/./storage.conf/",
            "/of/storage.conf /of/storage.conf-run ro=/ro/storage.conf driver=overlay transient (--graphroot)",
        ),
        ("/copy", "/copy /of/storage.conf-run ro=/ro/storage.conf transient (--graphroot)"),
        ("copy", "/copy /of/storage.conf-run ro=/ro/storage.conf transient (--graphroot)"),
    ] {
        let found = named(&fixture("crio"), &root(), &RunningPrograms::default(), &[graphroot.into()]);
        assert_eq!(line(&found.stores[0]), expected, "{graphroot}");
    }
    // An imagestore belongs to its graphroot.
    let found = named(&fixture("environment"), &root(), &RunningPrograms::default(), &["/copy".into()]);
    assert_eq!(line(&found.stores[0]), "/copy /run/containers/storage (--graphroot)");
}

#[test]
fn one_directory_is_one_store() {
    let (disk, sysroot) = made(&[
        ("etc/containers/storage.conf", b"[storage]\ngraphroot = \"/a\"\ndriver = \"vfs\""),
        (
            "etc/crio/crio.conf",
            b"[crio]\nroot = \"/b\"\nrunroot = \"/r\"\nstorage_driver = \"overlay\"\nimagestore=\"/i\"",
        ),
    ]);
    fs::create_dir(disk.path().join("a")).expect("a directory");
    symlink("a", disk.path().join("b")).expect("a symlink");
    // Two drivers are configured, so the directory must show the right one.
    assert_eq!(
        lines(&discover(&sysroot, &root(), &RunningPrograms::default())),
        ["/a /run/containers/storage run=/r images=/i (/etc/containers/storage.conf, /etc/crio/crio.conf)"]
    );
}

#[test]
fn dead_coreos_disk_is_understood() {
    let deployment = "ostree/deploy/rhcos/deploy/0123.0";
    let (disk, _) = made(&[
        (&format!("{deployment}/etc/crio/crio.conf.d/00-default"), b"[crio]\nroot = \"/var/lib/crio\""),
        (
            &format!("{deployment}/etc/crio/crio.conf.d/50-pinned-images"),
            b"[crio.image]\npinned_images = [\"a\"]",
        ),
        (&format!("{deployment}/usr/share/containers/storage.conf"), b"[storage]\ndriver = \"overlay\""),
        (&format!("{deployment}/etc/passwd"), b"core:x:1000:1000::/home/core:/bin/bash\n"),
    ]);
    let in_home = ".local/share/containers/storage";
    let var = disk.path().join("ostree/deploy/rhcos/var");
    fs::create_dir_all(var.join("lib/containers/storage")).expect("directories");
    fs::create_dir_all(var.join("home/core").join(in_home)).expect("directories");
    symlink("var/home", disk.path().join(deployment).join("home")).expect("a symlink");
    // The parts of the sysroot are searched only once, so it is made now.
    let sysroot = Sysroot::at(disk.path());
    let discovery = discover(&sysroot, &root(), &RunningPrograms::default());
    assert_eq!(
        lines(&discovery),
        [
            "/var/lib/containers/storage /run/containers/storage driver=overlay (built-in default)",
            "/var/lib/crio /run/containers/storage driver=overlay (/etc/crio/crio.conf.d/00-default)",
            &format!("/home/core/{in_home} /run/user/1000/containers driver=overlay (home of core)"),
        ]
    );
    assert_eq!(discovery.pins[0].pattern, "a");
    assert_eq!(discovery.problems, []);
    let placed = sysroot.resolve(&discovery.stores[0].graphroot).expect("a store");
    assert_eq!(placed, var.canonicalize().expect("a path").join("lib/containers/storage"));
}
