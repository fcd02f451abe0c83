//! Trees that were made to do harm, and random bytes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use layersweep::stores::Environment;
use layersweep::stores::RunningPrograms;
use layersweep::stores::containers_storage::config::{discover, named};
use proptest::prelude::*;

use super::{lines, made, root};

#[test]
fn hostile_trees_are_problems() {
    let default = ["/var/lib/containers/storage /run/containers/storage (built-in default)"];
    let (disk, sysroot) = made(&[
        ("etc/containers/storage.conf/is/a/directory", b""),
        ("etc/crio/crio.conf.d/20-bytes", b"[crio]\nroot = \"/\xff\""),
        ("etc/crio/crio.conf.d/30-nul", b"[crio]\nroot = \"/a\\u0000b\""),
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
    let discovery = discover(&sysroot, &root(), &RunningPrograms::default());
    assert_eq!(lines(&discovery)[..1], default);
    let mut expected = vec!["/etc/containers/storage.conf".to_owned(), "/etc/passwd".to_owned()];
    for name in ["10-loop", "20-bytes", "40-self", "50-endless", "60-out", "70-huge", "90-nested"] {
        expected.push(format!("/etc/crio/crio.conf.d/{name}"));
    }
    for file in &expected {
        let mut problems = discovery.problems.iter();
        assert!(problems.any(|(path, _)| path == Path::new(file)), "{file} is not a problem");
    }
    assert!(discovery.problems.iter().any(|(_, reason)| reason.contains("too deeply")));
}

/// Generates bytes that sometimes look like a configuration.
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
    fn random_bytes_do_not_panic(
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
        let discovery = discover(&sysroot, &environment, &RunningPrograms::default());
        prop_assert!(!discovery.stores.is_empty());
        for store in &discovery.stores {
            prop_assert!(store.graphroot.is_absolute());
            prop_assert!(store.runroot.is_absolute());
        }
        let store = &named(&sysroot, &environment, &RunningPrograms::default(), &["/x".into()]).stores[0];
        prop_assert_eq!(&store.graphroot, Path::new("/x"));
    }
}
