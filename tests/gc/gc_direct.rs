//! `gc --via direct` and `rm --via direct` as an operator runs them: without a runtime, on a disk without a free byte,
//! and in a run that is killed.

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

/// Number of images of 6 MiB each on a common base; a container uses one of them.
const IMAGES: usize = 8;
const IN_USE: usize = 5;

fn name(number: usize) -> String {
    format!("reg.local/old-{number}:1")
}

/// A node whose runtime does not run.
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
        let images: Vec<_> = (0..IMAGES)
            .map(|number| ImageSpec {
                names: vec![name(number)],
                layers: [("base".to_owned(), 4 * MIB), (format!("old-{number}"), 6 * MIB)]
                    .map(|(name, bytes)| LayerSpec {
                        files: vec![bytes],
                        small_files: 20,
                        ..LayerSpec::new(&name)
                    })
                    .into(),
                label: name(number),
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

    /// Writes ever smaller pieces until nothing more fits.
    fn fill(&self) {
        let mut noise = support::archive::Noise::new("filler");
        for (number, size) in [1 << 20, 64 << 10, 4096, 512].into_iter().enumerate() {
            for round in 0.. {
                let path = self.loopfs.path().join(format!("filler-{number}-{round}"));
                let Ok(mut file) = std::fs::File::create(path) else { break };
                let block: Vec<u8> = (0..size / 8).flat_map(|_| noise.next().to_le_bytes()).collect();
                let mut written = 0;
                while written < 64 << 20 && file.write_all(&block).is_ok() {
                    written += size;
                }
                // Delayed allocation reports errors only now.
                if file.sync_all().is_err() || written == 0 {
                    break;
                }
            }
            self.loopfs.sync();
        }
        for number in 0..64 {
            if std::fs::write(self.loopfs.path().join(format!("last-{number}")), [7; 3000]).is_err() {
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

    /// Checks that podman works as usual.
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

/// Frees a full disk down to the low threshold, with only the reserve file of an earlier run.
fn from_zero(fs: Fs, bytes: u64) {
    let Some(down) = Down::new(fs, bytes) else { return };
    // A run with nothing to do creates the reserve file, and a scan recognises it.
    let quiet = down.json(0, &["gc", "--via", "direct", "--high", "99", "--low", "98"]);
    assert_eq!(text(&quiet, "/outcome"), "not_needed", "{quiet:#}");
    let reserve_file = down.store.root().join(".layersweep-reserve");
    assert!(reserve_file.exists(), "{fs:?}");
    let scan = down.store.json("scan");
    assert!(list(&scan, "/leaks").is_empty(), "{:#}", scan["leaks"]);
    let other =
        list(&list(&scan, "/stores")[0], "/other").iter().any(|row| row["name"] == ".layersweep-reserve");
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
    assert!(reserve_file.exists() || fs == Fs::Btrfs, "it is created again for the next run");
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

/// Without a free inode, no record file can be written anew: deleting the reserve file frees the first inode.
#[test]
fn ext4_without_an_inode() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let down = Down::on(LoopFs::with(Fs::Ext4, 240 * MIB, &["-N", "1500"], &[]));
    down.json(0, &["gc", "--via", "direct", "--high", "99", "--low", "98"]);
    for number in 0.. {
        if std::fs::File::create(down.loopfs.path().join(format!("inode-{number}"))).is_err() {
            break;
        }
    }
    let removed = down.json(0, &["rm", "--via", "direct", "--min-age", "0s", &name(0), &name(1)]);
    assert_eq!(deleted(&removed), [name(0), name(1)], "{removed:#}");
    down.podman_works();
}

/// Without a free byte and without a reserve file, deleting unused files makes room; then images are deleted.
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

/// A leak that cannot be deleted fails the run, whatever else the run does; a failed image only backs off.
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
    // The leak has another name by now.
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

/// Sets what the records say of an image: days since its first detection and its last use, and the number of uses.
fn remember(down: &Down, name: &str, (first, last): (f64, f64), use_count: i64) {
    let database = rusqlite::Connection::open(down.state.join("layersweep.db")).unwrap();
    let [first, last] = [first, last].map(|days| {
        let ago = jiff::SignedDuration::from_secs_f64(days * 86_400.0);
        (jiff::Timestamp::now() - ago).as_microsecond()
    });
    let sql = "UPDATE images SET first_detected = ?1, last_used = ?2, use_count = ?3, proven_since = NULL
        WHERE names LIKE '%' || ?4 || '%'";
    let changed = database.execute(sql, rusqlite::params![first, last, use_count, name]).unwrap();
    assert_eq!(changed, 1, "{name}");
}

/// All images are equally large. The first one is idle for longest, but was used every day for two months.
#[test]
fn cheapest_order_keeps_image_in_regular_use() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    down.json(0, &["scan"]);
    for number in (1..IMAGES).filter(|number| *number != IN_USE) {
        remember(&down, &name(number), (60.0, 2.5), 1);
    }
    remember(&down, &name(0), (63.0, 3.0), 61);
    remember(&down, &name(3), (60.0, 2.9), 1);
    let used = down.used_percent().floor();
    let [high, low] = [used, used - 2.0].map(|percent| format!("{percent}"));
    let real = ["gc", "--via", "direct", "--high", &high, "--low", &low];
    assert_eq!(deleted(&down.json(0, &[&real[..], &["--dry-run"]].concat())), [name(0)]);
    let real = [&real[..], &["--order", "cheapest"]].concat();
    let dry = [&real[..], &["--dry-run"]].concat();
    let compared = down.json(0, &[&dry[..], &["--compare"]].concat());
    assert_eq!(deleted(&compared), [name(3)], "{compared:#}");
    let pulls = &list(&compared, "/filesystems")[0]["pulls"];
    let [expected, least] = ["bytes", "at_least_bytes"].map(|key| pulls[key].as_u64().unwrap());
    // 6 MiB are wanted again with a chance of about a quarter.
    assert!((MIB..2 * MIB).contains(&expected) && (1..=expected).contains(&least), "{pulls:#}");
    assert_eq!(pulls["is_estimated"], false, "the manifests have the sizes: {pulls:#}");
    let [idle, cheapest] = list(&compared, "/comparison/0/policies") else { panic!("{compared:#}") };
    assert_eq!(cheapest["pulls"], *pulls, "{compared:#}");
    assert!(idle["pulls"]["bytes"].as_u64().unwrap() > expected * 3 / 2, "{idle:#}");
    assert_eq!([&idle["reached"], &cheapest["reached"]], [true, true]);
    let screen = down.run(&dry).expect_code(0).stdout;
    assert!(
        screen.contains("\nexpected pulls: 1.") && screen.contains("; no choice costs less than "),
        "{screen}"
    );
    let done = down.json(0, &real);
    assert_eq!(deleted(&done), [name(3)], "{done:#}");
    down.podman_works();
}

/// Killed at any moment: the tools still work, and the next run finishes.
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
    // The image in use prevents 1 %.
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
        let kept = list(&real, "/kept").iter().find(|row| text(row, "/id") == id).unwrap();
        assert_eq!(kept["rule"], "pinned", "{real:#}");
    }
    let pushed = format!("dir:{}", down.store.scratch().join("pushed").display());
    down.store.podman(["manifest", "push", "--all", multi, &pushed]);
    down.run(&["pin", "remove", multi]).expect_code(0);
    let real = down.json(4, &all);
    let gone: Vec<_> = list(&real, "/deleted").iter().map(|row| text(row, "/id").to_owned()).collect();
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
    // No process listens there any more.
    let removed = down.json(5, &[&direct[..], &[&second, &in_use]].concat());
    assert_eq!(deleted(&removed), [second], "{removed:#}");
    assert_eq!(list(&removed, "/kept")[0]["rule"], "in-use", "{removed:#}");
    down.podman_works();
}

/// A process that ends with the test.
struct Service(std::process::Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running service of podman sees at once what was deleted, and writes nothing of it back.
#[test]
fn running_service_sees_deletion_at_once() {
    let Some(down) = Down::new(Fs::Ext4, 160 * MIB) else { return };
    let socket = format!("unix://{}/podman.sock", down.store.scratch().display());
    let mut service = down.store.podman_command();
    let service = Service(service.args(["system", "service", "--time=0", &socket]).spawn().unwrap());
    fn remote(down: &Down, socket: &str, args: &[&str]) -> program::Run {
        let mut command = down.store.command("podman");
        program::run(command.args(["--remote", "--url", socket]).args(args))
    }
    for _ in 0..100 {
        if remote(&down, &socket, &["version"]).code == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let count_images =
        || remote(&down, &socket, &["images", "--quiet"]).expect_code(0).stdout.lines().count();
    let before = count_images();
    let orphan = down.store.root().join("overlay").join("0c".repeat(32));
    std::fs::create_dir_all(orphan.join("diff")).unwrap();
    let swept = down.json(0, &["sweep", "--delete", "--min-age", "0s"]);
    assert_eq!(list(&swept, "/deleted").len(), 1, "{swept:#}");
    let removed = down.json(0, &["rm", "--via", "direct", "--min-age", "0s", &name(0), &name(2)]);
    assert_eq!(deleted(&removed).len(), 2, "{removed:#}");
    assert_eq!(count_images(), before - 2);
    // A collection also deletes leaks that are old enough, if the configuration says so.
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
    let ids: Vec<_> = list(&collected, "/deleted").iter().map(|row| text(row, "/id").to_owned()).collect();
    assert_eq!(ids, ["0d".repeat(32)], "{collected:#}");
    down.json(0, &["sweep", "--delete", "--min-age", "0s"]);
    remote(&down, &socket, &["rmi", &name(1)]).expect_code(0);
    assert_eq!(count_images(), before - 3);
    drop(service);
    down.store.unmount();
    assert_eq!(edit::whole(&down.store).len(), IMAGES - 3);
}

/// Runs `--via auto`, the default, on a node whose own store is found: `node_files` makes the other files of the node
/// in a mount namespace with an empty `/run`.
fn auto(down: &Down, node_files: &str, words: &[&str]) -> Run {
    auto_in(&[], down, node_files, words)
}

/// Like [`auto`], in further namespaces.
fn auto_in(namespaces: &[&str], down: &Down, node_files: &str, words: &[&str]) -> Run {
    let conf = down.store.scratch().join("node-storage.conf");
    let text = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = {:?}\nrunroot = {:?}\n",
        down.store.root(),
        down.store.runroot()
    );
    std::fs::write(&conf, text).unwrap();
    let script = format!("{NODE_WITHOUT_RUNTIME}; {node_files}\nexec \"$@\"");
    let mut command = Command::new("unshare");
    program::hermetic(&mut command);
    command.args(namespaces);
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &script, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_layersweep")).args(words).arg("--state-dir").arg(&down.state);
    command.args(["-y", "--format", "json"]).env("CONTAINERS_STORAGE_CONF", conf);
    program::run(&mut command).expect_no_crash()
}

/// Removes every runtime of the machine and its configuration: hidden files would still be files. Both directories are
/// writable.
const NODE_WITHOUT_RUNTIME: &str = "mount -t tmpfs none /run; mkdir /run/crio /run/upper /run/work; \
    mount -t overlay none -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc; \
    cd /etc; rm -rf containerd containers crictl.yaml crio default/kubelet k0s kubernetes layersweep rancher; cd /";

const AUTO: [&str; 7] = ["gc", "--high", "1", "--low", "0", "--min-age", "0s"];

#[test]
fn auto_deletes_directly_without_runtime() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    let plan = node::document(auto(&down, "", &[&AUTO[..], &["--dry-run"]].concat()).expect_code(4));
    assert_eq!(plan["via"], "direct", "{plan:#}");
    // `--via cri` needs a runtime.
    let none = auto(&down, "", &[&AUTO[..], &["--via", "cri"]].concat()).expect_code(5);
    assert!(none.stderr.contains("no container runtime found"), "{none:?}");
    let config = down.store.scratch().join("cri.toml");
    std::fs::write(&config, "images.via = \"cri\"\n").unwrap();
    auto(&down, "", &[&AUTO[..], &["--config", config.to_str().unwrap()]].concat()).expect_code(5);
    // A socket that Docker leaves at the usual place is not a runtime that could answer for podman's store.
    let broken = Broken::without_cri();
    let docker =
        format!("mkdir /run/containerd; ln -s {} /run/containerd/containerd.sock", broken.socket().display());
    let plan = node::document(auto(&down, &docker, &[&AUTO[..], &["--dry-run"]].concat()).expect_code(4));
    assert_eq!(plan["via"], "direct", "{plan:#}");
    // One image by name, then all unprotected images; the missing runtime has kept nothing.
    let removed = node::document(auto(&down, "", &["rm", "--min-age", "0s", &name(0)]).expect_code(0));
    assert_eq!((deleted(&removed), text(&removed, "/via")), (vec![name(0)], "direct"), "{removed:#}");
    let real = node::document(auto(&down, "", &AUTO).expect_code(4));
    assert_eq!((deleted(&real).len(), text(&real, "/via")), (IMAGES - 2, "direct"), "{real:#}");
    assert!(!deleted(&real).contains(&name(IN_USE)), "{real:#}");
    assert_eq!(list(&down.json(0, &["history"]), "/runs")[0]["via"], "direct");
    down.podman_works();
}

/// If the configuration of CRI-O cannot be read, its pins and the image of its sandboxes are unknown.
#[test]
fn broken_crio_configuration_keeps_everything() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    fn node(text: &str) -> String {
        format!("mkdir -p /etc/crio/crio.conf.d; echo '{text}' > /etc/crio/crio.conf.d/1")
    }
    let gc = [&AUTO[..], &["--via", "direct", "--dry-run"]].concat();
    let whole = node(&format!("[crio.image]\npinned_images = [\"{}\"]", name(0)));
    let plan = node::document(auto(&down, &whole, &gc).expect_code(4));
    assert_eq!(deleted(&plan).len(), IMAGES - 2, "{plan:#}");
    let broken = node("[crio.image");
    let refused = auto(&down, &broken, &gc).expect_code(5);
    assert!(refused.stderr.contains("/etc/crio/crio.conf.d/1"), "{refused:?}");
    assert!(refused.stderr.contains("hint: fix it"), "{refused:?}");
    let explained = node::document(auto(&down, &broken, &["explain", &name(0)]).expect_code(0));
    assert_eq!(explained["decision"]["would_delete"], false, "{explained:#}");
    assert!(text(&explained, "/decision/detail").contains("CRI-O"), "{explained:#}");
}

#[test]
fn auto_refuses_store_of_a_runtime() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    fn assert_refused(run: Run) {
        let run = run.expect_code(5);
        assert!(
            run.stderr.lines().any(|line| line.starts_with("hint: ") && line.contains("--via direct")),
            "{run:?}"
        );
        assert_eq!(node::document(run)["via"], "auto");
    }
    // CRI-O has not started: its socket exists, or the kubelet names its socket, or CRI-O is installed.
    let abandoned = Broken::abandoned();
    assert_refused(auto(
        &down,
        &format!("ln -s {} /run/crio/crio.sock", abandoned.socket().display()),
        &AUTO,
    ));
    let crictl = "echo runtime-endpoint: unix:///run/crio/crio.sock > /etc/crictl.yaml";
    assert_refused(auto(&down, crictl, &AUTO));
    assert_refused(auto(&down, "mkdir /etc/crio", &AUTO));
    // The runtime answers and owns the store: its images are deleted only through it, unless `--via direct` is given.
    let server = CriServer::start(&down.store);
    let link = format!("ln -s {} /run/crio/crio.sock", server.socket().display());
    let plan = node::document(auto(&down, &link, &[&AUTO[..], &["--dry-run"]].concat()).expect_code(4));
    assert_eq!(plan["via"], "cri", "{plan:#}");
    // Containers of CRI show the owner of the store where nothing else does.
    let sandbox = server.podman().sandbox("pod-1", &name(1));
    server.podman().container(&sandbox, "pod-1", "app", &name(1));
    assert_refused(auto(&down, "", &AUTO));
    let direct = auto(&down, "", &[&AUTO[..], &["--via", "direct", "--dry-run"]].concat()).expect_code(4);
    assert_eq!(node::document(direct)["via"], "direct");
}

/// After an unclean stop CRI-O wipes a store that it cannot repair, so the hint does not say to start it first.
#[test]
fn hint_frees_space_before_starting_crio() {
    let Some(down) = Down::new(Fs::Ext4, 240 * MIB) else { return };
    fn crio(files: &str) -> String {
        let conf = "clean_shutdown_file = \"/run/crio/clean.shutdown\"";
        format!("mkdir /etc/crio; printf '[crio]\\n{conf}\\n' > /etc/crio/crio.conf; cd /run/crio; {files}")
    }
    let crictl = "echo runtime-endpoint: unix:///run/crio/crio.sock > /etc/crictl.yaml";
    let start = "start CRI-O, or name its socket";
    let with_room = "start CRI-O while there is room, as now: ";
    let first = "free space with `layersweep ";
    // `gc` and `doctor` give the same hint.
    let assert_hint = |files: &str, expected: &str, is_error: bool| {
        let node = format!("{crictl}; {}", crio(files));
        let refused = auto(&down, &node, &AUTO).expect_code(5);
        let hint = refused.stderr.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
        assert!(hint.starts_with(expected), "{files}: {refused:?}");
        // In its own PID namespace: a CRI-O of the machine does not belong to this node.
        let alone = ["--pid", "--fork", "--mount-proc"];
        let doctor = auto_in(&alone, &down, &node, &["doctor"]).json();
        let checks =
            |name: &'static str| list(&doctor, "/checks").iter().filter(move |check| check["name"] == name);
        assert!(
            checks("socket").all(|check| text(check, "/remedy").starts_with(expected)),
            "{files}: {doctor:#}"
        );
        let wipes = checks("crio-start").any(|check| check["status"] == "error");
        assert_eq!(wipes, is_error, "{files}: {doctor:#}");
    };
    let clean = "touch clean.shutdown.supported clean.shutdown";
    assert_hint("true", start, false);
    assert_hint(clean, start, false);
    let unclean = "touch clean.shutdown.supported";
    assert_hint(unclean, with_room, true);
    // No configuration names a socket.
    let refused = auto(&down, &crio(unclean), &AUTO).expect_code(5);
    assert!(refused.stderr.contains(&format!("hint: {with_room}")), "{refused:?}");
    down.fill();
    assert_hint(clean, first, false);
    assert_hint(unclean, first, true);
    // The hint works, and then CRI-O can be started.
    let room = ["gc", "--via", "direct", "--min-age", "0s", "--high", "90", "--low", "83"];
    node::document(auto(&down, &crio(clean), &room).expect_code(0));
    assert_hint(clean, start, false);
    assert_hint(unclean, with_room, true);
}

/// A run creates its reserve file after the images are deleted, so that it deletes what a dry run announced; an `rm`
/// that deletes nothing creates none.
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
