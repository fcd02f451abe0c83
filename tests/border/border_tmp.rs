//! Temporary files in a directory where every user may write: leftovers of the tools are deleted, similarly named files
//! of people and of other users are kept. An incomplete deletion is not reported as deleted.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, Run, list, text, texts};
use support::store::{self, Store};
use support::{edit, node, small};

/// A store as the only one of the machine, and a directory for temporary files.
struct Bed {
    store: Store,
    _dir: tempfile::TempDir,
    tmp: PathBuf,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = small::still(&dir.path().join("root"));
        let tmp = dir.path().join("tmp");
        fs::create_dir(&tmp).unwrap();
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).unwrap();
        Self { store, _dir: dir, tmp }
    }

    /// Runs `sweep` for temporary files only.
    fn sweep(&self, args: &[&str]) -> Run {
        let mut command = program::command();
        command.args(["sweep", "--class", "vartmp", "--format", "json"]).args(args);
        command.env("CONTAINERS_STORAGE_CONF", self.store.scratch().join("storage.conf"));
        command.env("TMPDIR", &self.tmp);
        program::run(&mut command).expect_no_crash()
    }

    /// Makes a file or, if the path ends with `/`, a directory, and all directories above it.
    fn plant(&self, path: &str, content: &str, mode: u32) {
        let file = self.tmp.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        if path.ends_with('/') {
            fs::create_dir_all(&file).unwrap()
        } else {
            fs::write(&file, content).unwrap()
        }
        let top = self.tmp.join(Path::new(path).components().next().unwrap());
        fs::set_permissions(top, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.tmp).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn age(&self) {
        let all = format!("find {} -exec touch -h -d '9 days ago' {{}} +", self.tmp.display());
        store::succeed(Command::new("sh").args(["-c", &all]));
    }

    /// Runs a tool until it has a temporary file of the name `prefix` that is not empty, and kills it.
    fn killed(&self, mut command: Command, prefix: &str) {
        let before = self.names();
        let began = Instant::now();
        command.env("TMPDIR", &self.tmp).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let config = self.store.scratch().join("containers.conf");
        let text = fs::read_to_string(&config).unwrap();
        let temporary = format!("{}/tmp\"\ncgroup", self.store.scratch().display());
        fs::write(&config, text.replace(&temporary, &format!("{}\"\ncgroup", self.tmp.display()))).unwrap();
        let mut tool = command.spawn().unwrap();
        let made =
            || self.names().into_iter().find(|name| name.starts_with(prefix) && !before.contains(name));
        let pid = Pid::from_raw(i32::try_from(tool.id()).unwrap());
        // The process is stopped for the check: on a fast disk its file is gone a moment later.
        let is_big = |name: &str| prefix == "buildah" || weight(&self.tmp.join(name)) > 100_000;
        loop {
            if made().is_some() {
                kill(pid, Signal::SIGSTOP).unwrap();
                if made().is_some_and(|name| is_big(&name)) {
                    break;
                }
                kill(pid, Signal::SIGCONT).unwrap();
            }
            assert!(tool.try_wait().unwrap().is_none(), "{command:?} ended without {prefix}");
            assert!(began.elapsed() < Duration::from_secs(60), "{command:?} makes no {prefix}");
            std::thread::sleep(Duration::from_millis(1));
        }
        tool.kill().unwrap();
        tool.wait().unwrap();
        assert!(made().is_some(), "{prefix} is gone with its tool");
    }
}

/// Returns the allocated bytes as far as they can be read.
fn weight(path: &Path) -> u64 {
    let du = Command::new("du").args(["-s", "--block-size=1"]).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&du.stdout).into_owned();
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

fn paths(document: &Value, verdict: &str) -> Vec<String> {
    let leaks = list(document, "/leaks").iter().filter(|leak| leak["verdict"] == verdict);
    let names = leaks.map(|leak| Path::new(text(leak, "/path")).file_name().unwrap());
    let mut names: Vec<_> = names.map(|name| name.to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn user_files_with_similar_names_are_kept() {
    if !store::require_tools() {
        return;
    }
    let bed = Bed::new();
    // Names that people, root and other users chose.
    bed.plant("storage1/thesis.tex", "years", 0o755);
    bed.plant("oci2024", "invoices", 0o600);
    bed.plant("buildah3/Dockerfile", "FROM scratch", 0o700);
    bed.plant("docker-tar20240101.bak", "x", 0o600);
    // Dates that look like random numbers.
    bed.plant("oci20240101/index.json", "{}", 0o755);
    bed.plant("storage20240101/notes", "x", 0o700);
    bed.plant("buildah20240101/Dockerfile", "FROM scratch", 0o700);
    bed.plant("docker-tar20240101", "no archive", 0o600);
    bed.plant("container_images_20240101", "x", 0o600);
    // Archives that root made with podman, identical to those of the tools.
    bed.plant("docker-tar20260101", &format!("{}ustar\0", "x".repeat(257)), 0o600);
    bed.plant("oci20260101/index.json", "{}", 0o700);
    bed.plant("storage2026010112/1", "blob", 0o700);
    // A pull of another user: that user's sweep may delete it.
    bed.plant("storage1175831575/1", "blob", 0o700);
    chown(bed.tmp.join("storage1175831575"), Some(65534), Some(65534)).unwrap();
    bed.age();
    let before = bed.names();
    let swept = bed.sweep(&["--delete", "--min-age", "0s"]).json();
    assert_eq!(bed.names(), before, "{swept:#}");
    assert_eq!(paths(&swept, "reclaim"), [] as [&str; 0]);
    let reported = [
        "buildah20240101",
        "container_images_20240101",
        "docker-tar20240101",
        "docker-tar20260101",
        "oci20240101",
        "oci20260101",
        "storage1175831575",
        "storage20240101",
        "storage2026010112",
    ];
    assert_eq!(paths(&swept, "report"), reported, "{swept:#}");
    fn evidence(swept: &Value, name: &str) -> String {
        let found = list(swept, "/leaks").iter().find(|leak| text(leak, "/path").ends_with(name));
        text(found.unwrap(), "/evidence").to_owned()
    }
    assert!(evidence(&swept, "storage1175831575").contains("belongs to the user 65534"), "{swept:#}");
    assert!(evidence(&swept, "buildah20240101").contains("Dockerfile"), "{swept:#}");
    for name in ["docker-tar20260101", "oci20260101", "storage2026010112"] {
        assert!(evidence(&swept, name).contains("looks like a date"), "{swept:#}");
    }
}

/// `cp -a` preserves old times; the copies are new, for the list and for the deletion.
#[test]
fn copied_files_count_as_new() {
    if !store::require_tools() {
        return;
    }
    let bed = Bed::new();
    bed.plant("storage1175831575/1", "blob", 0o700);
    bed.age();
    for words in [&[][..], &["--delete"]] {
        let swept = bed.sweep(words).json();
        assert_eq!(bed.names(), ["storage1175831575"], "{swept:#}");
        let leak = &list(&swept, "/leaks")[0];
        assert!(program::number(leak, "/age_seconds") < 3600, "{leak:#}");
    }
}

/// Every leftover of a killed tool is recognised.
#[test]
fn leftovers_of_killed_tools_are_deleted() {
    if !store::require_tools() || !support::require_program("xz") {
        return;
    }
    let bed = Bed::new();
    let store = &bed.store;
    let scratch = store.scratch().to_path_buf();
    let root = scratch.join("rootfs");
    fs::create_dir_all(root.join("bin")).unwrap();
    let busybox = store::succeed(Command::new("sh").args(["-c", "command -v busybox"]));
    fs::copy(busybox.trim(), root.join("bin/busybox")).unwrap();
    let big = format!("head -c 32000000 /dev/urandom > {}/big", root.display());
    store::succeed(Command::new("sh").args(["-c", &big]));
    store.buildah(["from", "--name", "work", "scratch"]);
    store.buildah(["copy", "-q", "work", root.to_str().unwrap(), "/"]);
    store.buildah(["commit", "-q", "work", "localhost/big:1"]);
    fn file(scratch: &Path, name: &str) -> String {
        scratch.join(name).to_str().unwrap().to_owned()
    }
    store.podman(["save", "-q", "--format", "oci-archive", "-o", &file(&scratch, "oci"), "localhost/big:1"]);
    store.podman(["save", "-q", "-o", &file(&scratch, "docker"), "localhost/big:1"]);
    // podman 4.3.1 does not read archives compressed by gzip.
    store::succeed(Command::new("xz").args(["-0", "-T2", &file(&scratch, "docker")]));
    store.podman(["rmi", "--no-prune", "localhost/big:1"]);

    let oci = ["load", "-q", "-i", &file(&scratch, "oci")].map(str::to_owned);
    let docker = ["load", "-q", "-i", &file(&scratch, "docker.xz")].map(str::to_owned);
    let commit = ["commit", "-q", "work", "localhost/big:2"].map(str::to_owned);
    let run = ["run", "work", "/bin/busybox", "sleep", "5"].map(str::to_owned);
    let kinds = [
        ("storage", store.podman_command(), &oci[..]),
        ("oci", store.podman_command(), &oci),
        ("docker-tar", store.podman_command(), &docker),
        ("buildah", store.buildah_command(), &commit),
        ("buildah", store.buildah_command(), &run),
    ];
    for (prefix, mut command, args) in kinds {
        command.args(args);
        bed.killed(command, prefix);
    }
    // A build step may have been killed with only its empty directory.
    let left = bed.names();
    assert!(left.len() >= 5, "{left:?}");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !bed.names().is_empty() {
        // Children of the tools end a moment after them, and may belong to another test's tool.
        let swept = bed.sweep(&["--delete", "--min-age", "1s"]).json();
        for leak in list(&swept, "/leaks").iter().filter(|leak| text(leak, "/verdict") == "report") {
            // About one random number in 500 reads as a date: such a leftover is only reported.
            assert!(text(leak, "/evidence").contains("looks like a date"), "{swept:#}");
            store::succeed(Command::new("rm").args(["-r", text(leak, "/path")]));
        }
        assert!(Instant::now() < deadline, "{:?} stay: {swept:#}", bed.names());
    }
    store.remove_containers();
}

/// A partly deleted orphan is not reported as deleted, but its freed bytes are.
#[test]
fn partly_deleted_orphan_is_an_error() {
    if !store::require_tools() || !support::require_program("chattr") {
        return;
    }
    // On a disk where no other process writes.
    if !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 256 * MIB);
    let store = small::still(&disk.path().join("root"));
    fn immutable(store: &Store, flag: &str) {
        let all = format!("find {} -name stuck -exec chattr {flag} {{}} +", store.root().display());
        store::succeed(Command::new("sh").args(["-c", &all]));
    }
    let layers = store.root().join("overlay");
    for (letter, command) in
        [("a", &["sweep", "--delete"][..]), ("b", &["gc", "--via", "direct", "--only", "leaks"])]
    {
        let whole = layers.join("ffee".repeat(16));
        fs::create_dir_all(whole.join("diff")).unwrap();
        fs::write(whole.join("diff/blob"), vec![7; 40_000]).unwrap();
        let orphan = layers.join(format!("{letter}bcd").repeat(16));
        fs::create_dir_all(orphan.join("diff")).unwrap();
        fs::write(orphan.join("diff/blob"), vec![7; 400_000]).unwrap();
        fs::write(orphan.join("diff/stuck"), "x").unwrap();
        store::succeed(Command::new("touch").args(["-d", "9 days ago"]).args([&whole, &orphan]));
        immutable(&store, "+i");
        let mut line = program::command();
        line.args(command).args(["--format", "json", "--graphroot"]).arg(store.root());
        line.arg("--runroot").arg(store.runroot());
        let run = program::run(&mut line).expect_no_crash();
        immutable(&store, "-i");
        let document = run.expect_code(1).json();
        node::assert_fits(&document);
        let deleted: Vec<_> = list(&document, "/deleted").iter().map(|row| text(row, "/id")).collect();
        assert_eq!(deleted, ["ffee".repeat(16)], "{document:#}");
        let error = &list(&document, "/errors")[0];
        assert_eq!(text(error, "/id"), format!("{letter}bcd").repeat(16));
        let message = text(error, "/message");
        assert!(message.contains("partially removed") && message.contains("lsattr"), "{message}");
        assert!(program::number(&document, "/measured_bytes") >= 400_000, "{document:#}");
        assert_eq!(document["outcome"], "failed");
        // Once it can be deleted, it is deleted as a whole.
        let rest = list(&store.json("scan"), "/leaks")
            .iter()
            .map(|leak| text(leak, "/path").to_owned())
            .collect::<Vec<_>>();
        assert_eq!(rest.len(), 1, "{rest:?}");
        #[allow(clippy::disallowed_methods)] // left by a tool of this test
        fs::remove_dir_all(&rest[0]).unwrap();
    }
    edit::whole(&store);
    store.unmount();
}

#[test]
fn partly_deleted_image_is_an_error() {
    if !store::require_tools() || !support::require_program("chattr") || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 256 * MIB);
    let store = small::store(&disk.path().join("root"));
    store.unmount();
    // An image's own directory protects nothing else, so its deletion continues.
    let images = store.images();
    let image = images.iter().find(|image| texts(image, "/names").contains(&small::name("other"))).unwrap();
    let stuck = store.root().join("overlay-images").join(text(image, "/id")).join("stuck");
    fs::write(&stuck, "x").unwrap();
    store::succeed(Command::new("chattr").arg("+i").arg(&stuck));
    let mut line = program::command();
    line.args(["rm", "-y", "--via", "direct", "--min-age", "0s", "--format", "json"]);
    line.arg(small::name("other")).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
    let run = program::run(&mut line).expect_no_crash();
    let find = Command::new("find").arg(store.root()).args(["-name", "stuck"]).output().unwrap();
    let stays = String::from_utf8(find.stdout).unwrap();
    let all = format!("find {} -name stuck -exec chattr -i {{}} +", store.root().display());
    store::succeed(Command::new("sh").args(["-c", &all]));
    let document = run.expect_code(1).json();
    node::assert_fits(&document);
    assert_eq!(text(&document, "/outcome"), "failed");
    assert_eq!(list(&document, "/deleted").len(), 1, "its record is gone: {document:#}");
    let errors = list(&document, "/errors");
    assert_eq!(errors.len(), 1, "{document:#}");
    let message = text(&errors[0], "/message");
    assert!(message.contains("partially removed") && message.contains(stays.trim()), "{stays}: {message}");
    assert_eq!(text(&errors[0], "/id"), text(image, "/id"));
    assert!(!store.podman(["images"]).contains("small/other"));
}
