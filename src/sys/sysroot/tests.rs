use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

/// Creates a root, and a file outside of it that must not be reached.
fn disk() -> (tempfile::TempDir, PathBuf) {
    let around = tempfile::tempdir().expect("a directory");
    let root = around.path().join("root");
    fs::create_dir_all(root.join("data/containers/storage")).expect("directories");
    fs::create_dir_all(root.join("var/lib")).expect("directories");
    fs::create_dir_all(root.join("etc")).expect("directories");
    fs::write(root.join("etc/here"), "inside").expect("a file");
    fs::write(around.path().join("secret"), "outside").expect("a file");
    fs::create_dir(around.path().join("etc")).expect("a directory");
    fs::write(around.path().join("etc/here"), "outside").expect("a file");
    let root = root.canonicalize().expect("a path");
    (around, root)
}

fn placed(root: &Path, path: &str) -> io::Result<PathBuf> {
    lookup::by_components(Path::new(path), |inside| lookup::below(root, inside))
}

#[test]
fn symlinks_stay_inside() {
    let (around, root) = disk();
    let secret = around.path().join("secret").display().to_string();
    for (target, name) in [
        ("/data/containers", "var/lib/containers"),
        ("../../data/containers", "var/lib/relative"),
        ("../../../../../../../etc", "up"),
        ("/../../etc", "absolute-up"),
        (&*secret, "escape"),
        ("loop-b", "loop-a"),
        ("loop-a", "loop-b"),
        ("missing", "dangling"),
        (".", "dot"),
    ] {
        symlink(target, root.join(name)).expect("a symlink");
    }
    for (path, expected) in [
        ("/var/lib/containers/storage", Ok("data/containers/storage")),
        ("/var/lib/relative/storage", Ok("data/containers/storage")),
        ("/var/lib/containers/../containers", Ok("data/containers")),
        ("/up/here", Ok("etc/here")),
        ("/absolute-up/here", Ok("etc/here")),
        ("/../../etc/here", Ok("etc/here")),
        ("/dot/dot/dot/etc/here", Ok("etc/here")),
        ("/", Ok("")),
        ("/..", Ok("")),
        ("etc/here", Ok("etc/here")),
        ("/escape", Err("NotFound")),
        ("/dangling", Err("NotFound")),
        ("/loop-a", Err("FilesystemLoop")),
        ("/loop-a/x", Err("FilesystemLoop")),
        ("/etc/here/x", Err("NotADirectory")),
        ("/etc/here/..", Err("NotADirectory")),
        ("", Err("NotFound")),
    ] {
        // By name, since the kind of ELOOP is not stable yet.
        let found = placed(&root, path).map_err(|error| format!("{:?}", error.kind()));
        let expected = expected.map(|inside| lookup::join(&root, Path::new(inside)));
        assert_eq!(found, expected.map_err(str::to_owned), "{path}");
    }
}

#[test]
fn at_most_forty_symlinks_are_followed() {
    let (_around, root) = disk();
    fs::write(root.join("link-0"), "").expect("a file");
    for number in 1..=41 {
        let name = format!("link-{}", number - 1);
        symlink(name, root.join(format!("link-{number}"))).expect("a symlink");
    }
    assert_eq!(placed(&root, "/link-40").expect("40 symlinks"), root.join("link-0"));
    assert!(placed(&root, "/link-41").is_err());
    // The maximum length stops symlinks whose targets multiply.
    let long = "bomb/".repeat(400);
    symlink(&long, root.join("bomb")).expect("a symlink");
    assert!(placed(&root, "/bomb").is_err());
}

#[test]
fn displayed_paths_are_inside_the_root() {
    let (_around, root) = disk();
    symlink("/data/containers", root.join("var/lib/containers")).expect("a symlink");
    let sysroot = Sysroot::at(&root);
    let placed = sysroot.resolve(Path::new("/var/lib/containers/storage")).expect("a path");
    assert_eq!(sysroot.display(&placed), Path::new("/data/containers/storage"));
    assert_eq!(sysroot.display(&root), Path::new("/"));
    assert_eq!(sysroot.display(Path::new("/elsewhere")), Path::new("/elsewhere"));
    assert_eq!(Sysroot::live().display(&placed), placed);
}

#[test]
fn root_in_any_spelling_is_live() {
    for spelling in ["/", "//", "/.", "/proc/.."] {
        assert_eq!(Sysroot::at(Path::new(spelling)).root(), Sysroot::live().root(), "{spelling}");
    }
    let missing = Sysroot::at(Path::new("/does/not/exist"));
    assert!(missing.is_foreign());
    assert!(missing.resolve(Path::new("/etc")).is_err());
}

#[test]
fn only_small_regular_files_are_read() {
    let (_around, root) = disk();
    fs::write(root.join("bytes"), b"ab\xff").expect("a file");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("a FIFO");
    let sparse = fs::File::create(root.join("sparse")).expect("a file");
    sparse.set_len(1 << 40).expect("a size");
    let sysroot = Sysroot::at(&root);
    assert_eq!(sysroot.read(Path::new("/etc/here"), 8).expect("a text"), "inside");
    for (path, kind, message) in [
        ("/etc", io::ErrorKind::IsADirectory, "a directory, not a file"),
        ("/fifo", io::ErrorKind::InvalidInput, "not a regular file"),
        ("/sparse", io::ErrorKind::FileTooLarge, "longer than the limit of 8 bytes"),
        ("/bytes", io::ErrorKind::InvalidData, "not valid UTF-8 at byte 2 on"),
    ] {
        let error = sysroot.read(Path::new(path), 8).expect_err(path);
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, message), "{path}");
    }
    assert_eq!(Sysroot::live().read(Path::new("/dev/null"), 8).expect("nothing"), "");
}

#[test]
fn reading_does_not_change_access_times() {
    let (_around, root) = disk();
    let sysroot = Sysroot::at(&root);
    let ancient = fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH);
    for name in ["etc", "etc/here"] {
        fs::File::open(root.join(name)).and_then(|file| file.set_times(ancient)).expect("a time");
    }
    sysroot.read(Path::new("/etc/here"), 100).expect("a text");
    let names: Vec<_> = sysroot.list(Path::new("/etc")).expect("a listing");
    assert_eq!(names, [DirectoryEntry { name: "here".into(), kind: FileKind::File }]);
    for name in ["etc", "etc/here"] {
        assert_eq!(fs::metadata(root.join(name)).expect("metadata").atime(), 0, "{name}");
    }
}

/// Creates the root partition of RHEL `CoreOS` as it is on a disk.
fn ostree_disk(root: &Path, stateroot: &str, deployments: &[&str], containers: bool) {
    let base = root.join("ostree/deploy").join(stateroot);
    let var = if containers { "var/lib/containers/storage" } else { "var" };
    fs::create_dir_all(base.join(var)).expect("directories");
    for name in deployments {
        // The change times must differ; the coarsest kernel clock ticks every 10 ms.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let deployment = base.join("deploy").join(name);
        fs::create_dir_all(deployment.join("etc")).expect("directories");
        fs::create_dir_all(deployment.join("var")).expect("directories");
        fs::write(deployment.join("etc/name"), name).expect("a file");
        symlink("var/home", deployment.join("home")).expect("a symlink");
        symlink("sysroot/ostree", deployment.join("ostree")).expect("a symlink");
        fs::write(base.join("deploy").join(format!("{name}.origin")), "").expect("a file");
    }
}

#[test]
fn ostree_disk_has_its_parts_elsewhere() {
    let disk = tempfile::tempdir().expect("a directory");
    let root = disk.path().canonicalize().expect("a path");
    ostree_disk(&root, "aaa", &["x.0"], false);
    ostree_disk(&root, "rhcos", &["b.0", "a.0"], true);
    fs::create_dir_all(root.join("data")).expect("a directory");
    let rhcos = root.join("ostree/deploy/rhcos");
    fs::create_dir_all(rhcos.join("var/home/core")).expect("directories");
    symlink("/home/../etc/name", rhcos.join("var/lib/tricky")).expect("a symlink");
    let sysroot = Sysroot::at(&root);
    assert_eq!(sysroot.read(Path::new("/etc/name"), 100).expect("a text"), "a.0");
    for (inside, placed, displayed) in [
        ("/var/lib/containers/storage", "ostree/deploy/rhcos/var/lib/containers/storage", None),
        ("/home/core", "ostree/deploy/rhcos/var/home/core", Some("/var/home/core")),
        ("/var/..", "ostree/deploy/rhcos/deploy/a.0", Some("/")),
        ("/var/../../../etc", "ostree/deploy/rhcos/deploy/a.0/etc", Some("/etc")),
        ("/sysroot/data", "data", Some("/data")),
        ("/data", "data", Some("/data")),
        ("/ostree/deploy/rhcos/var/lib", "ostree/deploy/rhcos/var/lib", Some("/var/lib")),
    ] {
        let found = sysroot.resolve(Path::new(inside)).expect(inside);
        assert_eq!(found, root.join(placed), "{inside}");
        assert_eq!(sysroot.display(&found), Path::new(displayed.unwrap_or(inside)), "{inside}");
    }
    // `/home` is a symlink to `/var/home`, whose `..` is `/var`; there is no `/var/etc`.
    assert!(sysroot.resolve(Path::new("/var/lib/tricky")).is_err());
}

#[test]
fn own_var_or_etc_is_used_first() {
    let disk = tempfile::tempdir().expect("a directory");
    let root = disk.path().canonicalize().expect("a path");
    ostree_disk(&root, "rhcos", &["a.0"], true);
    fs::create_dir_all(root.join("etc")).expect("a directory");
    fs::create_dir_all(root.join("var")).expect("a directory");
    let etc = Sysroot::at(&root);
    let path = Path::new("/var/lib/containers");
    assert!(etc.resolve(Path::new("/etc/name")).is_err());
    assert_eq!(etc.display(&etc.resolve(path).expect("a path")), path);
    assert!(etc.resolve(path).expect("a path").starts_with(root.join("ostree")));
    fs::create_dir_all(root.join("var/lib/containers")).expect("directories");
    assert_eq!(Sysroot::at(&root).resolve(path).expect("a path"), root.join("var/lib/containers"));
    assert_eq!(Sysroot::at(&root).ostree, None);
}
