//! `gc --via direct` and `rm --via direct` as an operator runs them: no runtime, a disk without a
//! free byte, a run that is killed.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::deleted;
use cri_server::{Broken, CriServer};
use serde_json::Value;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, Run, list, text};
use support::store::{self, Store};
use support::{edit, node};

/// Images of 6 MiB each on a common base, and one that a container uses.
const IMAGES: usize = 8;
const IN_USE: usize = 5;

fn name(at: usize) -> String {
    format!("reg.local/old-{at}:1")
}

/// A node whose runtime is down.
struct Down {
    store: std::sync::Arc<Store>,
    state: PathBuf,
    loopfs: LoopFs,
}

const GC: [&str; 9] = ["gc", "--via", "direct", "--high", "75", "--low", "70", "--min-age", "0s"];

impl Down {
    fn new(fs: Fs, bytes: u64) -> Option<Self> {
        if !store::require_tools() || !fs.require() {
            return None;
        }
        Some(Self::on(LoopFs::new(fs, bytes)))
    }

    fn on(loopfs: LoopFs) -> Self {
        let layer =
            |name: &str, bytes| LayerSpec { files: vec![bytes], small_files: 20, ..LayerSpec::new(name) };
        let images: Vec<_> = (0..IMAGES)
            .map(|at| ImageSpec {
                names: vec![name(at)],
                layers: vec![layer("base", 4 * MIB), layer(&format!("old-{at}"), 6 * MIB)],
                label: name(at),
            })
            .collect();
        let store = Store::of(&loopfs.path().join("graphroot"), "overlay", &images);
        store.podman(["create", "--name", "app", "--network", "none", &name(IN_USE), "/x"]);
        store.unmount();
        let state = store.scratch().join("state");
        Self { store: std::sync::Arc::new(store), state, loopfs }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(&self.state);
        command
    }

    fn run(&self, words: &[&str]) -> Run {
        program::run(&mut self.command(words)).expect_no_crash()
    }

    fn json(&self, code: i32, words: &[&str]) -> Value {
        node::document(self.run(&[words, &["--format", "json"]].concat()).expect_code(code))
    }

    fn used_percent(&self) -> f64 {
        let sizes = rustix::fs::statvfs(self.loopfs.path()).unwrap();
        #[allow(clippy::cast_precision_loss)] // percents
        let share = sizes.f_bavail as f64 / sizes.f_blocks as f64;
        100.0 - share * 100.0
    }

    /// Writes until nothing more fits, in ever smaller pieces.
    fn fill(&self) {
        let mut noise = support::archive::Noise::new("filler");
        for (at, size) in [1 << 20, 64 << 10, 4096, 512].into_iter().enumerate() {
            for round in 0.. {
                let path = self.loopfs.path().join(format!("filler-{at}-{round}"));
                let Ok(mut file) = std::fs::File::create(path) else { break };
                let block: Vec<u8> = (0..size / 8).flat_map(|_| noise.next().to_le_bytes()).collect();
                let mut written = 0;
                while written < 64 << 20 && file.write_all(&block).is_ok() {
                    written += size;
                }
                // Delayed allocation finds out at the end.
                if file.sync_all().is_err() || written == 0 {
                    break;
                }
            }
            self.loopfs.sync();
        }
        for at in 0..64 {
            if std::fs::write(self.loopfs.path().join(format!("last-{at}")), [7; 3000]).is_err() {
                break;
            }
        }
        self.loopfs.sync();
    }

    fn is_full(&self) -> bool {
        let probe = self.loopfs.path().join("probe");
        let full = std::fs::File::create(&probe)
            .and_then(|mut file| file.write_all(&[1; 8192]).and_then(|()| file.sync_all()))
            .is_err();
        let _ = std::fs::remove_file(probe);
        full
    }

    /// podman works as on any other day.
    fn podman_works(&self) {
        let name = name(IN_USE);
        self.store.podman(["create", "--name", "after", "--network", "none", &name, "/x"]);
        self.store.podman(["rm", "after"]);
        self.store.unmount();
        let whole = edit::whole(&self.store);
        assert_eq!(edit::podman_ids(&self.store), whole);
        self.store.unmount();
    }
}

/// From 0 bytes free to the low threshold, with nothing but the reserve file of an earlier run.
fn from_zero(fs: Fs, bytes: u64) {
    let Some(down) = Down::new(fs, bytes) else { return };
    // A run with nothing to do leaves the reserve file, and no scan takes it for anybody else's.
    let quiet = down.json(0, &["gc", "--via", "direct", "--high", "99", "--low", "98"]);
    assert_eq!(text(&quiet, "/outcome"), "not_needed", "{quiet:#}");
    let reserve_file = down.store.root().join(".layersweep-reserve");
    assert!(reserve_file.exists(), "{fs:?}");
    let scan = down.store.json("scan");
    assert!(list(&scan, "/leaks").is_empty(), "{:#}", scan["leaks"]);
    let other =
        list(&list(&scan, "/stores")[0], "/other").iter().any(|one| one["name"] == ".layersweep-reserve");
    assert!(!other, "{scan:#}");

    down.fill();
    assert!(down.is_full(), "{fs:?}: {} % used", down.used_percent());
    let low = format!("{}", LOW);
    let words = ["gc", "--via", "direct", "--high", "90", "--low", &low, "--min-age", "0s"];
    let real = down.json(0, &words);
    println!("{fs:?}: {} deleted, now {:.2} %", deleted(&real).len(), down.used_percent());
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert!(down.used_percent() <= f64::from(LOW), "{fs:?}: {}", down.used_percent());
    assert!(!deleted(&real).contains(&name(IN_USE)));
    assert!(reserve_file.exists() || fs == Fs::Btrfs, "it is made again for the next time");
    down.podman_works();
    let history = down.json(0, &["history"]);
    let run = list(&history, "/runs").iter().find(|run| run["run_id"] == real["run_id"]).unwrap();
    assert_eq!(list(run, "/deleted").len(), list(&real, "/deleted").len());
    assert_eq!(run["via"], "direct");
}

const LOW: u8 = 85;

#[test]
fn ext4_from_zero() {
    from_zero(Fs::Ext4, 240 * MIB);
}

#[test]
fn xfs_from_zero() {
    from_zero(Fs::Xfs, 320 * MIB);
}

#[test]
fn btrfs_from_zero() {
    from_zero(Fs::Btrfs, 256 * MIB);
}

/// Without a free inode no record file can be written anew: the reserve file's inode is the first.
#[test]
fn ext4_without_an_inode() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let down = Down::on(LoopFs::with(Fs::Ext4, 240 * MIB, &["-N", "1500"], &[]));
    down.json(0, &["gc", "--via", "direct", "--high", "99", "--low", "98"]);
    for at in 0.. {
        if std::fs::File::create(down.loopfs.path().join(format!("inode-{at}"))).is_err() {
            break;
        }
    }
    let removed = down.json(0, &["rm", "--via", "direct", "--min-age", "0s", &name(0), &name(1)]);
    assert_eq!(deleted(&removed), [name(0), name(1)], "{removed:#}");
    down.podman_works();
}

/// Neither a free byte nor a reserve file: what nothing uses makes the room, the images follow.
#[test]
fn leaks_make_room_without_reserve_file() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    let orphan = down.store.root().join("overlay").join("0b".repeat(32));
    std::fs::create_dir_all(orphan.join("diff")).unwrap();
    std::fs::write(orphan.join("diff/file"), vec![9; 9 << 20]).unwrap();
    store::succeed(Command::new("find").arg(&orphan).args(["-exec", "touch", "-d", "3 days ago", "{}", "+"]));
    down.fill();
    assert!(down.is_full());
    let words = ["gc", "--via", "direct", "--high", "90", "--low", "80", "--min-age", "0s"];
    let dry = down.json(0, &[&words[..], &["--dry-run"]].concat());
    let real = down.json(0, &words);
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    let first = &list(&real, "/deleted")[0];
    assert_eq!((text(first, "/kind"), text(first, "/reason")), ("leak", "leak"), "{real:#}");
    assert_eq!(deleted(&dry), deleted(&real), "the dry run knows of the room that the leak makes");
    assert_eq!(dry["usage_before_percent"], real["usage_before_percent"]);
    assert!(list(&real, "/deleted").len() > 1, "{real:#}");
    assert!(down.used_percent() <= 80.0);
    down.podman_works();
}

/// A failure on the way is the run's, whatever else it was to do; an image alone backs off instead.
#[test]
fn undeletable_leak_fails_the_run() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    if !support::require_program("chattr") {
        return;
    }
    let orphan = down.store.root().join("overlay").join("0b".repeat(32));
    std::fs::create_dir_all(orphan.join("diff")).unwrap();
    let file = orphan.join("diff/file");
    std::fs::write(&file, vec![9; 1 << 20]).unwrap();
    store::succeed(Command::new("find").arg(&orphan).args(["-exec", "touch", "-d", "3 days ago", "{}", "+"]));
    store::succeed(Command::new("chattr").arg("+i").arg(&file));
    let failed = down.json(1, &["gc", "--via", "direct", "--only", "leaks"]);
    // It lies under another name by now.
    let overlay = down.store.root().join("overlay");
    store::succeed(
        Command::new("find").arg(overlay).args(["-name", "file", "-exec", "chattr", "-i", "{}", "+"]),
    );
    assert_eq!(text(&failed, "/outcome"), "failed", "{failed:#}");
    let [error] = list(&failed, "/errors") else { panic!("{failed:#}") };
    assert_eq!(text(error, "/step"), "remove", "{failed:#}");
    assert!(text(error, "/message").contains("diff/file"), "{failed:#}");
    let done = down.json(0, &["gc", "--via", "direct", "--only", "leaks"]);
    assert_eq!(text(&done, "/outcome"), "reached", "{done:#}");
}

/// Killed at any moment: the tools work, and the next run finishes.
#[test]
fn killed_run_is_finished_by_next_run() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    let all = ["gc", "-y", "--via", "direct", "--high", "2", "--low", "1", "--min-age", "0s"];
    for round in 0..6_u64 {
        let mut child = down.command(&all).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(120 + 90 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let listed = down.store.podman(["images", "--quiet"]).lines().count();
        println!("killed after {} ms: {listed} images", 120 + 90 * round);
        assert!(listed >= 1);
        down.store.unmount();
    }
    // The one in use keeps it from 1 %.
    let last = down.json(4, &all);
    assert!(list(&last, "/errors").is_empty(), "{last:#}");
    let left = down.store.images();
    assert_eq!(left.len(), 1, "{left:#?}");
    down.podman_works();
}

#[test]
fn members_of_pinned_manifest_list_are_kept() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    let multi = "reg.local/multi:1";
    let members = down.store.manifest_list(multi, &[&name(0), &name(1)]);
    down.run(&["pin", "add", multi]).expect_code(0);
    let listed = down.json(0, &["images"]);
    let pinned = list(&listed, "/images").iter().filter(|image| image["pinned"] == true);
    assert_eq!(pinned.count(), 3, "{listed:#}");
    let all = ["gc", "--via", "direct", "--high", "2", "--low", "1", "--min-age", "0s"];
    let real = down.json(4, &all);
    for id in &members {
        let kept = list(&real, "/kept").iter().find(|one| text(one, "/id") == id).unwrap();
        assert_eq!(kept["rule"], "pinned", "{real:#}");
    }
    let pushed = format!("dir:{}", down.store.scratch().join("pushed").display());
    down.store.podman(["manifest", "push", "--all", multi, &pushed]);
    down.run(&["pin", "remove", multi]).expect_code(0);
    let real = down.json(4, &all);
    let gone: Vec<_> = list(&real, "/deleted").iter().map(|one| text(one, "/id").to_owned()).collect();
    assert!(members.iter().all(|id| gone.contains(id)), "{real:#}");
    down.podman_works();
}

#[test]
fn run_is_refused_while_owner_runs() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    let server = CriServer::start(&down.store);
    let endpoint = server.endpoint();
    let direct = ["rm", "--via", "direct", "--min-age", "0s", "--cri-endpoint", &endpoint];
    let refused = down.json(5, &[&GC[..], &["--cri-endpoint", &endpoint]].concat());
    assert_eq!(text(&refused, "/outcome"), "refused");
    let [first, second, in_use] = [0, 1, IN_USE].map(name);
    let told = down.run(&[&direct[..], &[&first]].concat()).expect_code(5);
    assert!(
        told.stderr.contains("is running on") && told.stderr.contains("--while-runtime-runs"),
        "{told:?}"
    );
    let removed = down.json(0, &[&direct[..], &[&first, "--while-runtime-runs"]].concat());
    assert_eq!(deleted(&removed), [first], "{removed:#}");
    drop(server);
    // Nobody listens there any more.
    let removed = down.json(5, &[&direct[..], &[&second, &in_use]].concat());
    assert_eq!(deleted(&removed), [second], "{removed:#}");
    assert_eq!(list(&removed, "/kept")[0]["rule"], "in-use", "{removed:#}");
    down.podman_works();
}

/// Ends with the test, whatever its end.
struct Service(std::process::Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service of podman sees what is gone at once, and writes nothing of it back.
#[test]
fn running_service_sees_deletion_at_once() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    let socket = format!("unix://{}/podman.sock", down.store.scratch().display());
    let mut service = down.store.podman_command();
    let service = Service(service.args(["system", "service", "--time=0", &socket]).spawn().unwrap());
    let remote = |args: &[&str]| {
        let mut command = down.store.command("podman");
        program::run(command.args(["--remote", "--url", &socket]).args(args))
    };
    for _ in 0..100 {
        if remote(&["version"]).code == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let listed = || remote(&["images", "--quiet"]).expect_code(0).stdout.lines().count();
    let before = listed();
    let orphan = down.store.root().join("overlay").join("0c".repeat(32));
    std::fs::create_dir_all(orphan.join("diff")).unwrap();
    let swept = down.json(0, &["sweep", "--delete", "--min-age", "0s"]);
    assert_eq!(list(&swept, "/deleted").len(), 1, "{swept:#}");
    let removed = down.json(0, &["rm", "--via", "direct", "--min-age", "0s", &name(0), &name(2)]);
    assert_eq!(deleted(&removed).len(), 2, "{removed:#}");
    assert_eq!(listed(), before - 2);
    // A collection takes leaks along where the configuration says so, if they are old enough.
    for (id, age) in [("0d", "3 days ago"), ("0e", "1 hour ago")] {
        let orphan = down.store.root().join("overlay").join(id.repeat(32));
        std::fs::create_dir_all(orphan.join("diff")).unwrap();
        store::succeed(Command::new("touch").args(["-d", age]).arg(&orphan));
    }
    let config = down.store.scratch().join("layersweep.toml");
    std::fs::write(&config, "[leaks]\ndelete = true\n").unwrap();
    let words =
        ["gc", "--via", "direct", "--high", "99", "--low", "98", "--config", config.to_str().unwrap()];
    let collected = down.json(0, &words);
    let ids: Vec<_> = list(&collected, "/deleted").iter().map(|one| text(one, "/id").to_owned()).collect();
    assert_eq!(ids, ["0d".repeat(32)], "{collected:#}");
    down.json(0, &["sweep", "--delete", "--min-age", "0s"]);
    remote(&["rmi", &name(1)]).expect_code(0);
    assert_eq!(listed(), before - 3);
    drop(service);
    down.store.unmount();
    assert_eq!(edit::whole(&down.store).len(), IMAGES - 3);
}

/// `--via auto`, which is the default, on a node whose own store is found: `node_files` makes the rest of it
/// in a mount namespace with an empty `/run`.
fn auto(down: &Down, node_files: &str, words: &[&str]) -> Run {
    auto_in(&[], down, node_files, words)
}

/// The same in more namespaces.
fn auto_in(namespaces: &[&str], down: &Down, node_files: &str, words: &[&str]) -> Run {
    let conf = down.store.scratch().join("node-storage.conf");
    let text = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = {:?}\nrunroot = {:?}\n",
        down.store.root(),
        down.store.runroot()
    );
    std::fs::write(&conf, text).unwrap();
    let script = format!("{NOBODYS_NODE}; {node_files}\nexec \"$@\"");
    let mut command = Command::new("unshare");
    program::hermetic(&mut command);
    command.args(namespaces);
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &script, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_layersweep")).args(words).arg("--state-dir").arg(&down.state);
    command.args(["-y", "--format", "json"]).env("CONTAINERS_STORAGE_CONF", conf);
    program::run(&mut command).expect_no_crash()
}

/// No runtime of the machine's is there, and none is configured: hidden files would still be files. Both
/// directories can be written to.
const NOBODYS_NODE: &str = "mount -t tmpfs none /run; mkdir /run/crio /run/upper /run/work; \
    mount -t overlay none -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc; \
    cd /etc; rm -rf containerd containers crictl.yaml crio default/kubelet k0s kubernetes layersweep rancher; cd /";

const AUTO: [&str; 7] = ["gc", "--high", "1", "--low", "0", "--min-age", "0s"];

#[test]
fn auto_deletes_directly_without_runtime() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    let plan = node::document(auto(&down, "", &[&AUTO[..], &["--dry-run"]].concat()).expect_code(4));
    assert_eq!(plan["via"], "direct", "{plan:#}");
    // Through a runtime there is no way.
    let none = auto(&down, "", &[&AUTO[..], &["--via", "cri"]].concat()).expect_code(5);
    assert!(none.stderr.contains("no container runtime found"), "{none:?}");
    let config = down.store.scratch().join("cri.toml");
    std::fs::write(&config, "images.via = \"cri\"\n").unwrap();
    auto(&down, "", &[&AUTO[..], &["--config", config.to_str().unwrap()]].concat()).expect_code(5);
    // What Docker leaves at the usual socket is no runtime that should answer for podman's store.
    let broken = Broken::without_cri();
    let docker =
        format!("mkdir /run/containerd; ln -s {} /run/containerd/containerd.sock", broken.socket().display());
    let plan = node::document(auto(&down, &docker, &[&AUTO[..], &["--dry-run"]].concat()).expect_code(4));
    assert_eq!(plan["via"], "direct", "{plan:#}");
    // One image by name, then all that may go; the runtime that is none has kept nothing.
    let removed = node::document(auto(&down, "", &["rm", "--min-age", "0s", &name(0)]).expect_code(0));
    assert_eq!((deleted(&removed), text(&removed, "/via")), (vec![name(0)], "direct"), "{removed:#}");
    let real = node::document(auto(&down, "", &AUTO).expect_code(4));
    assert_eq!((deleted(&real).len(), text(&real, "/via")), (IMAGES - 2, "direct"), "{real:#}");
    assert!(!deleted(&real).contains(&name(IN_USE)), "{real:#}");
    assert_eq!(list(&down.json(0, &["history"]), "/runs")[0]["via"], "direct");
    down.podman_works();
}

/// What a broken configuration of CRI-O pins is unknown, and so is the image of its sandboxes.
#[test]
fn broken_crio_configuration_keeps_everything() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    let node =
        |text: &str| format!("mkdir -p /etc/crio/crio.conf.d; echo '{text}' > /etc/crio/crio.conf.d/1");
    let gc = [&AUTO[..], &["--via", "direct", "--dry-run"]].concat();
    let whole = node(&format!("[crio.image]\npinned_images = [\"{}\"]", name(0)));
    let plan = node::document(auto(&down, &whole, &gc).expect_code(4));
    assert_eq!(deleted(&plan).len(), IMAGES - 2, "{plan:#}");
    let broken = node("[crio.image");
    let refused = auto(&down, &broken, &gc).expect_code(5);
    assert!(refused.stderr.contains("/etc/crio/crio.conf.d/1"), "{refused:?}");
    assert!(refused.stderr.contains("hint: fix it"), "{refused:?}");
    let explained = node::document(auto(&down, &broken, &["explain", &name(0)]).expect_code(0));
    assert_eq!(explained["fate"]["goes"], false, "{explained:#}");
    assert!(text(&explained, "/fate/detail").contains("CRI-O"), "{explained:#}");
}

#[test]
fn auto_refuses_store_of_a_runtime() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    let refused = |run: Run| {
        let run = run.expect_code(5);
        assert!(
            run.stderr.lines().any(|line| line.starts_with("hint: ") && line.contains("--via direct")),
            "{run:?}"
        );
        assert_eq!(node::document(run)["via"], "auto");
    };
    // Its socket is there, or the kubelet says where it will be, or CRI-O is installed: it has not started.
    let abandoned = Broken::abandoned();
    refused(auto(&down, &format!("ln -s {} /run/crio/crio.sock", abandoned.socket().display()), &AUTO));
    let crictl = "echo runtime-endpoint: unix:///run/crio/crio.sock > /etc/crictl.yaml";
    refused(auto(&down, crictl, &AUTO));
    refused(auto(&down, "mkdir /etc/crio", &AUTO));
    // The runtime answers and owns the store: through it, and no other way unless that is asked for.
    let server = CriServer::start(&down.store);
    let link = format!("ln -s {} /run/crio/crio.sock", server.socket().display());
    let plan = node::document(auto(&down, &link, &[&AUTO[..], &["--dry-run"]].concat()).expect_code(4));
    assert_eq!(plan["via"], "cri", "{plan:#}");
    // Its containers tell whose store it is where nothing else does.
    let sandbox = server.podman().sandbox("pod-1", &name(1));
    server.podman().container(&sandbox, "pod-1", "app", &name(1));
    refused(auto(&down, "", &AUTO));
    let direct = auto(&down, "", &[&AUTO[..], &["--via", "direct", "--dry-run"]].concat()).expect_code(4);
    assert_eq!(node::document(direct)["via"], "direct");
}

/// After an unclean stop CRI-O wipes a store that it cannot repair, so nobody is told to start it first.
#[test]
fn hint_frees_space_before_starting_crio() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    let crio = |files: &str| {
        let conf = "clean_shutdown_file = \"/run/crio/clean.shutdown\"";
        format!("mkdir /etc/crio; printf '[crio]\\n{conf}\\n' > /etc/crio/crio.conf; cd /run/crio; {files}")
    };
    let crictl = "echo runtime-endpoint: unix:///run/crio/crio.sock > /etc/crictl.yaml";
    let start = "start the runtime";
    let with_room = "start CRI-O while there is room, as now: ";
    let first = "free space with `layersweep ";
    // That is said to whoever deletes and to whoever asks what is wrong.
    let assert_said = |files: &str, expected: &str, is_error: bool| {
        let node = format!("{crictl}; {}", crio(files));
        let refused = auto(&down, &node, &AUTO).expect_code(5);
        let hint = refused.stderr.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
        assert!(hint.starts_with(expected), "{files}: {refused:?}");
        // A CRI-O of the machine's is not this node's.
        let alone = ["--pid", "--fork", "--mount-proc"];
        let doctor = auto_in(&alone, &down, &node, &["doctor"]).json();
        let checks =
            |name: &'static str| list(&doctor, "/checks").iter().filter(move |one| one["name"] == name);
        assert!(
            checks("socket").all(|one| text(one, "/remedy").starts_with(expected)),
            "{files}: {doctor:#}"
        );
        let wipes = checks("crio-start").any(|one| one["status"] == "error");
        assert_eq!(wipes, is_error, "{files}: {doctor:#}");
    };
    let clean = "touch clean.shutdown.supported clean.shutdown";
    assert_said("true", start, false);
    assert_said(clean, start, false);
    let unclean = "touch clean.shutdown.supported";
    assert_said(unclean, with_room, true);
    // Nothing names a socket.
    let refused = auto(&down, &crio(unclean), &AUTO).expect_code(5);
    assert!(refused.stderr.contains(&format!("hint: {with_room}")), "{refused:?}");
    down.fill();
    assert_said(clean, first, false);
    assert_said(unclean, first, true);
    // That works, and then CRI-O can be started.
    let room = ["gc", "--via", "direct", "--min-age", "0s", "--high", "90", "--low", "83"];
    node::document(auto(&down, &crio(clean), &room).expect_code(0));
    assert_said(clean, start, false);
    assert_said(unclean, with_room, true);
}

/// A run makes its reserve file after the images, so that it deletes what a dry run announced; a `rm` that deletes
/// nothing makes none.
#[test]
fn reserve_file_is_created_after_images() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    let reserve_file = down.store.root().join(".layersweep-reserve");
    let refused = down.json(5, &["rm", "--via", "direct", &name(IN_USE)]);
    assert!(deleted(&refused).is_empty(), "{refused:#}");
    assert!(!reserve_file.exists());
    // Two images of 6 MiB are enough for this threshold; with 4 MiB more in use, three.
    let above_threshold = 100.0 * 11.0 / 240.0;
    let low = (down.used_percent() - above_threshold).ceil();
    let filler = std::fs::File::create(down.loopfs.path().join("filler")).unwrap();
    let mut length = 0;
    while down.used_percent() < low + above_threshold {
        length += 64 << 10;
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, length).unwrap();
    }
    let low = low.to_string();
    let words = ["gc", "--via", "direct", "--high", &low, "--low", &low, "--min-age", "0s"];
    let planned = down.json(0, &[&words[..], &["--dry-run"]].concat());
    assert!(!reserve_file.exists());
    let done = down.json(0, &words);
    assert_eq!(deleted(&planned).len(), 2, "{planned:#}");
    assert_eq!(deleted(&done), deleted(&planned), "{done:#}");
    assert!(reserve_file.exists());
}
