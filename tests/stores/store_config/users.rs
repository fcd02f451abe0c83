//! Stores of users: the caller's own, and those that root finds in the homes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use layersweep::stores::Environment;
use layersweep::stores::RunningPrograms;
use layersweep::stores::containers_storage::config::discover;

use super::{fixture, lines, made, path, root, user};

#[test]
fn users_have_their_own_stores() {
    const HOMES: &str = "/home/alice/.local/share/containers/storage";
    let run = "/run/user/1000/containers";
    let cases: Vec<(&str, Environment, Vec<String>)> = vec![
        ("rootless-default", user(1000, "alice"), vec![format!("{HOMES} {run} (built-in default)")]),
        // A variable that is not set is replaced by the user database.
        (
            "rootless-default",
            Environment { uid: 1000, ..Environment::default() },
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
        // Up to 1.62 only root's rootless_storage_path counts for a user; later root's whole file, whose graphroot then
        // wins. Root's driver is not one that a user could use.
        (
            "rootless",
            user(1000, "alice"),
            vec![
                format!("/scratch/alice-1000/home/alice/storage {run} (/etc/containers/storage.conf)"),
                format!(
                    "/var/lib/containers/storage {run} run=/run/containers/storage images=/images \
                     driver=zfs \
                     (/etc/containers/storage.conf)"
                ),
            ],
        ),
        (
            "rootless",
            Environment { xdg_runtime_dir: path("/runtime"), ..user(1001, "bob") },
            vec![
                "/home/bob/store /runtime/run driver=vfs \
                 (/home/bob/.config/containers/storage.conf)"
                    .to_owned(),
            ],
        ),
        // Podman reads only some settings of a named file; the library itself reads all.
        (
            "environment",
            Environment { containers_storage_conf: path("/srv/rootless.conf"), ..user(1000, "a") },
            vec![
                "/of/rootless /run/user/1000/containers images=/of/images driver=vfs \
                 (/srv/rootless.conf)"
                    .to_owned(),
                "/of/named /of/run images=/of/images driver=vfs (/srv/rootless.conf)".to_owned(),
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
        // Root's stores follow the user's; if the graphroot is the same, both are one entry.
        let found = lines(&discover(&fixture(case), &environment, &RunningPrograms::default()));
        assert_eq!(found[..expected.len()], expected, "{case} {environment:?}");
    }
    let bob = discover(&fixture("rootless"), &user(1001, "bob"), &RunningPrograms::default());
    let unknown = "runroot: $NOWHERE is unknown".to_owned();
    let file = PathBuf::from("/home/bob/.config/containers/storage.conf");
    assert!(bob.problems.contains(&(file, unknown)), "{:?}", bob.problems);
}

#[test]
fn root_sees_the_stores_of_all_homes() {
    let uid = fs::metadata("/proc/self").expect("metadata").uid();
    let passwd = format!(
        "root:x:0:0:root:/root:/bin/bash\nbroken\n\nbad:x:-1:0::/home/bad:\n\
         rel:x:5:5::relative:\nalice:x:1000:1000::/home/alice:/bin/bash\n\
         nobody:x:65534:65534::/nonexistent:\nsvc:x:{uid}:7::/srv/svc:/sbin/nologin\n\
         twin:x:1002:1002::/home/twin:\nthief:x:1003:1003::/home/thief:\n"
    );
    let mut bytes = passwd.into_bytes();
    bytes.extend(b"caf\xe9:x:1009:9::/home/caf\xe9:\n");
    let in_home = ".local/share/containers/storage";
    let (disk, sysroot) = made(&[
        ("etc/passwd", &bytes),
        ("srv/svc/.config/containers/storage.conf", b"[storage]\ngraphroot = \"/srv/graph\"\n"),
        ("home/thief/.config/containers/storage.conf", b"[storage]\ngraphroot = \"/secret\"\n"),
    ]);
    for name in [
        "var/lib/containers/storage",
        "srv/graph",
        "secret",
        &format!("home/alice/{in_home}"),
        &format!("home/ldap/{in_home}"),
    ] {
        fs::create_dir_all(disk.path().join(name)).expect("directories");
    }
    fs::create_dir_all(disk.path().join("home/twin/.local/share/containers")).expect("directories");
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"home/caf\xe9")).join(in_home);
    fs::create_dir_all(disk.path().join(&odd)).expect("directories");
    let link = disk.path().join("home/twin").join(in_home);
    symlink("/var/lib/containers/storage", link).expect("a symlink");
    // The owner of these homes also owns `secret`, unless it is given to another user.
    if uid == 0 {
        std::os::unix::fs::chown(disk.path().join("secret"), Some(4), Some(4)).expect("an owner");
    }
    let discovery = discover(&sysroot, &root(), &RunningPrograms::default());
    let mut expected = vec![
        "/var/lib/containers/storage /run/containers/storage (built-in default)".to_owned(),
        format!("/home/alice/{in_home} /run/user/1000/containers (home of alice)"),
    ];
    if uid != 0 {
        // Root's own file is not read as that of a user.
        let origin = "/srv/svc/.config/containers/storage.conf";
        expected.push(format!("/srv/graph /run/user/{uid}/containers ({origin})"));
    }
    expected.push(format!("/home/caf\u{fffd}/{in_home} /run/user/1009/containers (home of caf\u{fffd})"));
    expected.push(format!("/home/ldap/{in_home} /run/user/{uid}/containers (home of ldap)"));
    assert_eq!(lines(&discovery), expected);
    // Users do not search each other's homes.
    assert_eq!(discover(&sysroot, &user(1000, "alice"), &RunningPrograms::default()).stores.len(), 2);
}
