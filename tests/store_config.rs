//! Which stores the configuration files of a node name: small trees below `fixtures/config`,
//! each taken as a root, and trees that are made here because they are hostile.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use layersweep::graphroot::config::{Discovery, Environment, StoreConfig, discover, named};
use layersweep::sys::sysroot::Sysroot;
use proptest::prelude::*;

fn fixture(case: &str) -> Sysroot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/config")
        .join(case);
    assert!(path.is_dir(), "no fixture {case}");
    Sysroot::at(&path)
}

fn root() -> Environment {
    Environment {
        home: Some("/root".into()),
        ..Environment::default()
    }
}

fn user(uid: u32, name: &str) -> Environment {
    Environment {
        uid,
        home: Some(Path::new("/home").join(name)),
        ..Environment::default()
    }
}

fn path(value: &str) -> Option<PathBuf> {
    Some(value.into())
}

/// A store in one line: graphroot, runroot, then whatever is not the rule.
fn line(store: &StoreConfig) -> String {
    let mut line = format!("{} {}", store.graphroot.display(), store.runroot.display());
    let mut add = |name: &str, paths: &[PathBuf]| {
        for path in paths {
            line.push_str(&format!(" {name}={}", path.display()));
        }
    };
    add("run", &store.other_runroots);
    add("images", store.imagestore.as_slice());
    add("more-images", &store.other_imagestores);
    add("ro", &store.additional_image_stores);
    add("layers", &store.additional_layer_stores);
    if let Some(driver) = &store.driver {
        line.push_str(&format!(" driver={driver}"));
    }
    if store.transient {
        line.push_str(" transient");
    }
    format!("{line} ({})", store.origin)
}

fn lines(discovery: &Discovery) -> Vec<String> {
    discovery.stores.iter().map(line).collect()
}

#[test]
fn root_has_the_stores_that_its_files_name() {
    const ETC: &str = "/etc/containers/storage.conf";
    let default_run = "/run/containers/storage";
    let default = format!("/var/lib/containers/storage {default_run}");
    let cases: Vec<(&str, Environment, Vec<String>)> = vec![
        (
            "bare",
            root(),
            vec![format!("{default} (built-in default)")],
        ),
        // What the administrator's file leaves out is not taken from the vendor's.
        (
            "administrator",
            root(),
            vec![format!(
                "/data/containers/storage {default_run} driver=overlay ({ETC})"
            )],
        ),
        (
            "administrator",
            Environment {
                storage_driver: Some("btrfs".into()),
                ..root()
            },
            vec![format!(
                "/data/containers/storage {default_run} driver=btrfs ({ETC})"
            )],
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
            vec![format!(
                "/of/etc {default_run} images=/of/etc-images driver=btrfs ({ETC})"
            )],
        ),
        (
            "environment",
            Environment {
                xdg_config_home: path("/srv/xdg"),
                ..root()
            },
            vec![format!(
                "/of/xdg {default_run} driver=btrfs (/srv/xdg/containers/storage.conf)"
            )],
        ),
        (
            "environment",
            Environment {
                xdg_config_home: path("/srv/missing"),
                ..root()
            },
            vec![format!(
                "/of/etc {default_run} images=/of/etc-images driver=btrfs ({ETC})"
            )],
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
        // The override is read by later libraries only, so both runroots count.
        (
            "environment",
            Environment {
                containers_storage_conf: path("/srv/named.conf"),
                containers_storage_conf_override: path("/srv/override.conf"),
                ..root()
            },
            vec![format!(
                "/of/named {default_run} run=/of/override (/srv/named.conf)"
            )],
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
            vec![format!(
                "/of/storage.conf {default_run} images=/of/storage.conf-images ({ETC})"
            )],
        ),
        // An empty imagestore means none, an empty root means the one of storage.conf.
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
        let discovery = discover(&fixture(case), &environment);
        assert_eq!(lines(&discovery), expected, "{case} {environment:?}");
        assert_eq!(discovery.problems, [], "{case}");
    }
}

#[test]
fn users_have_their_own_stores() {
    const HOMES: &str = "/home/alice/.local/share/containers/storage";
    let run = "/run/user/1000/containers";
    let cases: Vec<(&str, Environment, Vec<String>)> = vec![
        (
            "rootless-default",
            user(1000, "alice"),
            vec![format!("{HOMES} {run} (built-in default)")],
        ),
        // A variable that is not set is looked up in the user database.
        (
            "rootless-default",
            Environment {
                uid: 1000,
                ..Environment::default()
            },
            vec![format!("{HOMES} {run} (built-in default)")],
        ),
        (
            "rootless-default",
            Environment {
                xdg_data_home: path("/data"),
                xdg_runtime_dir: path("/runtime"),
                ..user(1000, "alice")
            },
            vec!["/data/containers/storage /runtime/containers (built-in default)".to_owned()],
        ),
        // Up to 1.62 a user has root's rootless_storage_path alone; later root's whole file,
        // whose graphroot then wins. Root's driver is not one that a user could use.
        (
            "rootless",
            user(1000, "alice"),
            vec![
                format!(
                    "/scratch/alice-1000/home/alice/storage {run} (/etc/containers/storage.conf)"
                ),
                format!(
                    "/var/lib/containers/storage {run} run=/run/containers/storage images=/images \
                     driver=zfs \
                     (/etc/containers/storage.conf)"
                ),
            ],
        ),
        (
            "rootless",
            Environment {
                xdg_runtime_dir: path("/runtime"),
                ..user(1001, "bob")
            },
            vec![
                "/home/bob/store /runtime/run driver=vfs \
                 (/home/bob/.config/containers/storage.conf)"
                    .to_owned(),
            ],
        ),
        (
            "drop-ins",
            user(1000, "alice"),
            vec![
                format!("{HOMES} {run} driver=overlay (built-in default)"),
                "/of/90 /rootless/1000/run run=/of/10 images=/of/50-images ro=/of/main-images \
                 driver=overlay transient \
                 (/usr/share/containers/storage.conf.d/90-last-by-name.conf)"
                    .to_owned(),
            ],
        ),
    ];
    for (case, environment, expected) in cases {
        // Root's stores come after the user's; where the graphroot is the same, in one entry.
        let found = lines(&discover(&fixture(case), &environment));
        assert_eq!(found[..expected.len()], expected, "{case} {environment:?}");
    }
    let bob = discover(&fixture("rootless"), &user(1001, "bob"));
    let unknown = "runroot: $NOWHERE is not known here".to_owned();
    let file = PathBuf::from("/home/bob/.config/containers/storage.conf");
    assert!(
        bob.problems.contains(&(file, unknown)),
        "{:?}",
        bob.problems
    );
}

#[test]
fn pins_come_from_the_last_file_that_has_them() {
    let pins = |case: &str| -> Vec<(String, String)> {
        let discovery = discover(&fixture(case), &root());
        discovery
            .pins
            .into_iter()
            .map(|pin| (pin.pattern, pin.origin))
            .collect()
    };
    let owned = |pattern: &str, origin: &str| (pattern.to_owned(), origin.to_owned());
    let drop_in = "/etc/crio/crio.conf.d/50-pinned-images";
    assert_eq!(
        pins("crio"),
        [
            owned("quay.io/openshift/release@sha256:00", drop_in),
            owned("quay.io/*", drop_in),
            owned("registry.example/pause:1", "/etc/crio/crio.conf"),
        ]
    );
    // Set to nothing; not set; no CRI-O.
    assert_eq!(pins("crio-unset"), []);
    assert!(pins("crio-inherits").contains(&owned(
        "registry.k8s.io/pause:3.10.1",
        "CRI-O's built-in pause_image"
    )));
    assert_eq!(pins("bare"), []);
}

#[test]
fn what_is_wrong_is_named_by_file_and_line() {
    let discovery = discover(&fixture("wrong"), &root());
    assert_eq!(
        lines(&discovery),
        [
            "/var/lib/containers/storage /run/containers/storage ro=/good (built-in default)",
            "/good /run/containers/storage (/etc/crio/crio.conf)",
        ]
    );
    let problems: Vec<String> = (discovery.problems.iter())
        .map(|(file, reason)| format!("{}: {reason}", file.display()))
        .collect();
    let storage = "/etc/containers/storage.conf";
    let crio = "/etc/crio/crio.conf";
    for expected in [
        format!("{storage}: line 2: driver is to be a string, not integer; it is ignored"),
        format!("{storage}: graphroot: \"relative/path\" is no absolute path; it is ignored"),
        format!("{storage}: line 4: runroot is to be a string, not array; it is ignored"),
        format!("{storage}: imagestore is the graphroot; it is ignored"),
        format!("{storage}: line 6: transient_store is to be a boolean, not string; it is ignored"),
        format!(
            "{storage}: line 9: additionalimagestores is to be an array of strings, not integer; \
             it is ignored"
        ),
        format!(
            "{storage}: line 10: additionallayerstores is to be an array of strings, not string; \
             it is ignored"
        ),
        format!(
            "{crio}: line 3: storage_option is to be an array of strings, not string; it is ignored"
        ),
        format!("{crio}: line 4: image is to be a table, not integer; it is ignored"),
        format!("{crio}.d/30-table: line 1: crio is to be a table, not string; it is ignored"),
    ] {
        assert!(
            problems.contains(&expected),
            "{expected}\nis not in {problems:#?}"
        );
    }
    let starts = |start: String| problems.iter().any(|problem| problem.starts_with(&start));
    assert!(
        starts(format!("{crio}.d/10-syntax: line 3: ")),
        "{problems:#?}"
    );
    assert!(
        starts(format!("{crio}.d/20-duplicate: line 2: ")),
        "{problems:#?}"
    );
    assert_eq!(problems.len(), 12, "each once: {problems:#?}");
}

#[test]
fn a_named_file_that_is_missing_is_a_problem() {
    let environment = Environment {
        containers_storage_conf: path("/missing"),
        ..root()
    };
    let discovery = discover(&fixture("environment"), &environment);
    assert_eq!(
        lines(&discovery),
        ["/var/lib/containers/storage /run/containers/storage (built-in default)"]
    );
    assert_eq!(discovery.problems.len(), 1, "{:?}", discovery.problems);
}

#[test]
fn a_named_store_is_the_configured_one_where_there_is_one() {
    for (graphroot, expected) in [
        // CRI-O's.
        (
            "/of/crio.conf",
            "/of/crio.conf /of/10-sub.conf images=/of/10-images ro=/ro/storage.conf ro=/ro/a \
             ro=/ro/b ro=/ro/c layers=/layers driver=overlay (--graphroot)",
        ),
        (
            "//of/./storage.conf/",
            "/of/storage.conf /of/storage.conf-run ro=/ro/storage.conf driver=overlay transient (--graphroot)",
        ),
        (
            "/copy",
            "/copy /of/storage.conf-run ro=/ro/storage.conf transient (--graphroot)",
        ),
        (
            "copy",
            "/copy /of/storage.conf-run ro=/ro/storage.conf transient (--graphroot)",
        ),
    ] {
        let store = named(&fixture("crio"), &root(), Path::new(graphroot));
        assert_eq!(line(&store), expected, "{graphroot}");
    }
    // An imagestore belongs to its graphroot.
    let store = named(&fixture("environment"), &root(), Path::new("/copy"));
    assert_eq!(line(&store), "/copy /run/containers/storage (--graphroot)");
}

/// A root of its own, to be filled.
fn made(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Sysroot) {
    let disk = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let file = disk.path().join(name);
        fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
        fs::write(file, text).expect("a file");
    }
    let sysroot = Sysroot::at(disk.path());
    (disk, sysroot)
}

#[test]
fn root_sees_the_stores_of_all_homes() {
    let own = fs::metadata("/proc/self").expect("metadata").uid();
    let passwd = format!(
        "root:x:0:0:root:/root:/bin/bash\nbroken\n\nbad:x:-1:0::/home/bad:\n\
         rel:x:5:5::relative:\nalice:x:1000:1000::/home/alice:/bin/bash\n\
         nobody:x:65534:65534::/nonexistent:\nsvc:x:{own}:7::/srv/svc:/sbin/nologin\n\
         twin:x:1002:1002::/home/twin:\nthief:x:1003:1003::/home/thief:\n"
    );
    let mut bytes = passwd.into_bytes();
    bytes.extend(b"caf\xe9:x:1009:9::/home/caf\xe9:\n");
    let in_home = ".local/share/containers/storage";
    let (disk, sysroot) = made(&[
        ("etc/passwd", &bytes),
        (
            "srv/svc/.config/containers/storage.conf",
            b"[storage]\ngraphroot = \"/srv/graph\"\n",
        ),
        (
            "home/thief/.config/containers/storage.conf",
            b"[storage]\ngraphroot = \"/secret\"\n",
        ),
    ]);
    let make = |name: &str| fs::create_dir_all(disk.path().join(name)).expect("directories");
    make("var/lib/containers/storage");
    make("srv/graph");
    make("secret");
    make(&format!("home/alice/{in_home}"));
    make(&format!("home/ldap/{in_home}"));
    make("home/twin/.local/share/containers");
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"home/caf\xe9")).join(in_home);
    fs::create_dir_all(disk.path().join(&odd)).expect("directories");
    let link = disk.path().join("home/twin").join(in_home);
    symlink("/var/lib/containers/storage", link).expect("a symlink");
    // Whoever owns the homes here owns `secret` too, unless that is another user's.
    if own == 0 {
        std::os::unix::fs::chown(disk.path().join("secret"), Some(4), Some(4)).expect("an owner");
    }
    let discovery = discover(&sysroot, &root());
    let mut expected = vec![
        "/var/lib/containers/storage /run/containers/storage (built-in default)".to_owned(),
        format!("/home/alice/{in_home} /run/user/1000/containers (home of alice)"),
    ];
    if own != 0 {
        // Root's own file is not read as a user's.
        let origin = "/srv/svc/.config/containers/storage.conf";
        expected.push(format!("/srv/graph /run/user/{own}/containers ({origin})"));
    }
    expected.push(format!(
        "/home/caf\u{fffd}/{in_home} /run/user/1009/containers (home of caf\u{fffd})"
    ));
    expected.push(format!(
        "/home/ldap/{in_home} /run/user/{own}/containers (home of ldap)"
    ));
    assert_eq!(lines(&discovery), expected);
    // Users do not look into each other's homes.
    assert_eq!(discover(&sysroot, &user(1000, "alice")).stores.len(), 2);
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
    // Two drivers are configured, so the directory has to show which it has.
    assert_eq!(
        lines(&discover(&sysroot, &root())),
        [
            "/a /run/containers/storage run=/r images=/i (/etc/containers/storage.conf, /etc/crio/crio.conf)"
        ]
    );
}

#[test]
fn hostile_trees_are_problems_and_nothing_worse() {
    let default = ["/var/lib/containers/storage /run/containers/storage (built-in default)"];
    let (disk, sysroot) = made(&[
        ("etc/containers/storage.conf/is/a/directory", b""),
        ("etc/crio/crio.conf.d/20-bytes", b"[crio]\nroot = \"/\xff\""),
        (
            "etc/crio/crio.conf.d/30-nul",
            b"[crio]\nroot = \"/a\\u0000b\"",
        ),
    ]);
    let drop_ins = disk.path().join("etc/crio/crio.conf.d");
    symlink("10-loop", drop_ins.join("10-loop")).expect("a symlink");
    symlink(".", drop_ins.join("40-self")).expect("a symlink");
    symlink("/dev/zero", drop_ins.join("50-endless")).expect("a symlink");
    symlink("../../../../../../etc/hostname", drop_ins.join("60-out")).expect("a symlink");
    let huge = fs::File::create(drop_ins.join("70-huge")).expect("a file");
    huge.set_len(1 << 40).expect("a size");
    let deep = drop_ins.join("80-deep").join(["d"; 100].join("/"));
    fs::create_dir_all(deep).expect("directories");
    let nested = format!("crio = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    fs::write(drop_ins.join("90-nested"), nested).expect("a file");
    fs::create_dir_all(disk.path().join("etc/containers/storage.conf.d")).expect("directories");
    fs::write(disk.path().join("usr"), "").expect("a file");
    fs::write(disk.path().join("home"), "").expect("a file");
    symlink("passwd", disk.path().join("etc/passwd")).expect("a symlink");
    let discovery = discover(&sysroot, &root());
    assert_eq!(lines(&discovery)[..1], default);
    let has = |file: &str| {
        let path = Path::new(file);
        assert!(
            discovery.problems.iter().any(|(at, _)| at == path),
            "{file} is no problem"
        );
    };
    has("/etc/containers/storage.conf");
    for name in [
        "10-loop",
        "20-bytes",
        "40-self",
        "50-endless",
        "60-out",
        "70-huge",
        "90-nested",
    ] {
        has(&format!("/etc/crio/crio.conf.d/{name}"));
    }
    has("/etc/passwd");
    assert!(
        discovery
            .problems
            .iter()
            .any(|(_, reason)| reason.contains("too deeply"))
    );
}

/// Bytes that now and then look like a configuration.
fn configuration() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        Just(b"[storage]\n".to_vec()),
        Just(b"[storage.options]\n".to_vec()),
        Just(b"[crio]\n".to_vec()),
        Just(b"[crio.image]\n".to_vec()),
        Just(b"graphroot = \"/$HOME${UID$\"\n".to_vec()),
        Just(b"root = \"/..\"\n".to_vec()),
        Just(b"pinned_images = [\"*\", \"\", {append = true}]\n".to_vec()),
        Just(b"storage_option = [\"=\", \".imagestore=,\"]\n".to_vec()),
        Just(b"alice:x:1000:1000::/home/alice:\n".to_vec()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        storage in configuration(), drop_in in configuration(), crio in configuration(),
        passwd in configuration(), uid in prop_oneof![Just(0), Just(1000), any::<u32>()],
    ) {
        let (_disk, sysroot) = made(&[
            ("etc/containers/storage.conf", &storage),
            ("usr/share/containers/storage.conf.d/x.conf", &drop_in),
            ("etc/crio/crio.conf.d/x", &crio),
            ("etc/passwd", &passwd),
        ]);
        let environment = Environment { uid, ..Environment::default() };
        let discovery = discover(&sysroot, &environment);
        prop_assert!(!discovery.stores.is_empty());
        for store in &discovery.stores {
            prop_assert!(store.graphroot.is_absolute());
            prop_assert!(store.runroot.is_absolute());
        }
        let store = named(&sysroot, &environment, Path::new("/x"));
        prop_assert_eq!(store.graphroot, Path::new("/x"));
    }
}
