//! The prepared node: a mount namespace in which a store of podman lies where podman has it, with the
//! runtime of the tests in front, records a month long, and a filesystem that is 91 % used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::cri_server::CriServer;
use crate::support::archive::{ImageSpec, LayerSpec};
use crate::support::loopfs::MIB;
use crate::support::past;
use crate::support::program::{self, Run};
use crate::support::reserve_file;
use crate::support::store::{Store, succeed};

/// Set inside the namespace.
const INSIDE: &str = "LAYERSWEEP_TEST_NAMESPACE";
/// What the commands of a page work on.
const GRAPHROOT: &str = "/var/lib/containers/storage";
const STATE: &str = "/var/lib/layersweep";
const TOOLS: &str = "/run/docs";

/// Runs `work` in namespaces of its own: this test, once more.
pub fn inside(test: &str, work: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return work();
    }
    let mut again = Command::new("unshare");
    again.args(["--mount", "--propagation", "private", "--fork", "--kill-child"]);
    again.arg("--net").arg(std::env::current_exe().expect("this program"));
    again.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(INSIDE, "1");
    // Not where something is mounted over.
    again.env_remove("TMPDIR");
    let status = again.stdin(Stdio::null()).status().expect("unshare");
    assert!(status.success(), "see above for what is wrong with the pages");
}

/// The node.
pub struct Prepared {
    store: Arc<Store>,
    /// Copies of the disk and of the records as they were made.
    disk: PathBuf,
    work: tempfile::TempDir,
}

/// A page's own copy of it, until it is dropped.
pub struct Page<'a> {
    node: &'a Prepared,
    runtime: Option<CriServer>,
}

fn sh(script: &str) {
    succeed(Command::new("sh").args(["-euc", script]).env("PATH", path()));
}

fn path() -> String {
    format!("{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

fn images() -> Vec<ImageSpec> {
    let layer = |name: &str, mebibytes: u64| LayerSpec {
        small_files: 30,
        plain: vec![mebibytes * MIB],
        ..LayerSpec::new(name)
    };
    let base = || layer("base", 12);
    let image = |name: &str, layers: Vec<LayerSpec>| ImageSpec {
        names: vec![format!("registry.example/{name}")],
        layers,
        label: name.to_owned(),
    };
    let mut images = vec![image("base:1", vec![base()]), image("db:16", vec![base(), layer("db", 30)])];
    images.extend((1..=5).map(|at| {
        image(&format!("shop:1.{at}"), vec![base(), layer("node", 20), layer(&format!("shop-{at}"), 32)])
    }));
    images.push(ImageSpec {
        names: vec!["registry.k8s.io/pause:3.9".into()],
        ..image("pause", vec![layer("pause", 1)])
    });
    images.push(image("notes:1", vec![base(), layer("notes", 8)]));
    images
}

impl Prepared {
    /// Inside the namespace only: what is mounted over here is the machine's own.
    pub fn new() -> Self {
        assert!(std::env::var_os(INSIDE).is_some());
        let work = tempfile::Builder::new().prefix("layersweep-docs-").tempdir().expect("a directory");
        let (disk, binary) = (work.path().join("prepared"), env!("CARGO_BIN_EXE_layersweep"));
        // Makes a directory beside the program's, which may be out of sight in a moment.
        program::hermetic(&mut Command::new("true"));
        // Nothing of this machine is left that a command could find, read or delete.
        sh(&format!(
            "mount -t tmpfs tmpfs /run; mkdir -p {TOOLS} /run/lock /run/upper/etc /run/upper/work
             cp {binary} {TOOLS}/layersweep
             mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper/etc,workdir=/run/upper/work /etc
             echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
             rm -rf /etc/containers /etc/containerd /etc/crio /etc/kubernetes /etc/crictl.yaml /etc/layersweep
             mkdir -p /etc/containers
             for dir in /root /home /srv /mnt /var/tmp /var/lib /var/log; do
                 if [ -d $dir ]; then mount -t tmpfs tmpfs $dir; fi
             done
             mkdir -p /var/lib/containers /var/log/pods
             truncate -s 512M {0}; mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0,lazy_journal_init=0 {0}
             mount -o loop {0} /var/lib/containers",
            disk.display(),
        ));
        let store = Arc::new(Store::at(Path::new(GRAPHROOT), "overlay"));
        let trust = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
        fs::write("/etc/containers/policy.json", trust).expect("a file");
        for name in ["storage.conf", "containers.conf"] {
            fs::copy(store.scratch().join(name), Path::new("/etc/containers").join(name)).expect("a file");
        }
        store.load(&images());
        store.podman(["create", "--name", "db", "--network", "none", "registry.example/db:16", "/x"]);
        let orphan = Path::new(GRAPHROOT).join("overlay").join("b".repeat(64)).join("diff");
        fs::create_dir_all(&orphan).expect("a directory");
        fs::write(orphan.join("half-a-layer"), vec![7; 6 << 20]).expect("a file");
        sh(&format!("touch -d '3 days ago' {0}/half-a-layer {0} {0}/..", orphan.display()));
        let node = Self { store, disk, work };
        let page = node.page();
        let podman = page.runtime.as_ref().expect("a runtime").podman();
        let pod = podman.sandbox("shop", "registry.k8s.io/pause:3.9");
        let container = podman.container(&pod, "shop", "shop", "registry.example/shop:1.5");
        for id in [pod, container] {
            // What CRI-O keeps of each, and looks for when it starts.
            let userdata = Path::new(GRAPHROOT).join("overlay-containers").join(id).join("userdata");
            fs::create_dir_all(&userdata).expect("a directory");
            fs::write(userdata.join("config.json"), r#"{"ociVersion": "1.1.0"}"#).expect("a file");
        }
        succeed(node.command("layersweep").args(["scan", "-q"]));
        for (at, image) in images().iter().enumerate() {
            past::set_first_detected(
                Path::new(STATE),
                &image.names[0],
                40 - 3 * i64::try_from(at).expect("few"),
            );
        }
        // Somebody else's files: what a node has beside its images.
        let fill = "set -- $(stat -f -c '%b %a %S' /var/lib/containers)
                    fallocate -l $((($2 - $1 * 9 / 100) * $3)) /var/lib/containers/core.4711";
        sh(fill);
        drop(page);
        sh(&format!(
            "cp -a {STATE} {work}/records
             then=$(($(date +%s) - 21 * 86400))
             for directory in {GRAPHROOT}/overlay-images/*/; do
                 inode=$(stat -c %i $directory)
                 echo \"set_inode_field <$inode> crtime_extra 0\"
                 echo \"set_inode_field <$inode> crtime @$then\"
             done >{work}/requests
             umount /var/lib/containers
             cp --sparse=always {disk} {work}/aged
             e2fsck -p {work}/aged >/dev/null || [ $? -le 1 ]
             debugfs -w -f {work}/requests {work}/aged >/dev/null 2>&1",
            work = node.work.path().display(),
            disk = node.disk.display(),
        ));
        node
    }

    /// Everything as it was made.
    pub fn fresh(&self) -> Page<'_> {
        sh(&format!("cp -a {}/records {STATE}", self.work.path().display()));
        self.mounted(&self.disk)
    }

    /// Without leaks and records of ours. Its images are three weeks old by what the disk tells.
    pub fn bare(&self) -> Page<'_> {
        let page = self.mounted(&self.work.path().join("aged"));
        sh(&format!(
            "rm -rf {STATE} {GRAPHROOT}/overlay/{}
             then=$(date -u -d '21 days ago' +%FT%TZ)
             sed -i \"s/\\\"created\\\":\\\"[^\\\"]*/\\\"created\\\":\\\"$then/g\" \\
                 {GRAPHROOT}/overlay-layers/layers.json",
            "b".repeat(64)
        ));
        page
    }

    fn mounted(&self, disk: &Path) -> Page<'_> {
        sh(&format!(
            "cp --sparse=always {} {work}/disk; mount -o loop {work}/disk /var/lib/containers",
            disk.display(),
            work = self.work.path().display(),
        ));
        self.page()
    }

    fn page(&self) -> Page<'_> {
        let runtime = CriServer::start(&self.store);
        sh(&format!("mkdir -p /run/crio; ln -sf {} /run/crio/crio.sock", runtime.socket().display()));
        Page { node: self, runtime: Some(runtime) }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", path()).env("HOME", "/root").current_dir("/root");
        command.env("TZ", "UTC").env("LANG", "C.UTF-8").env("TERM", "dumb").stdin(Stdio::null());
        command
    }
}

impl Page<'_> {
    /// Runs a script as a person would type it: what it prints on either stream, in one.
    pub fn sh(&mut self, script: &str, runtime: bool) -> Run {
        match (runtime, &mut self.runtime) {
            (false, Some(_)) => {
                self.runtime = None;
                fs::remove_file("/run/crio/crio.sock").expect("the socket");
            }
            (true, None) => *self = self.node.page(),
            _ => {}
        }
        let script = format!("exec 2>&1\n{}", on_this_node(script));
        program::run(self.node.command("sh").args(["-ec", &script])).expect_no_crash()
    }
}

impl Page<'_> {
    /// Takes every inode that is left.
    pub fn fill_inodes(&self) {
        let top = Path::new("/var/lib/containers/spool");
        fs::create_dir(top).expect("a directory");
        assert!((0..1_000_000).any(|at| fs::File::create(top.join(at.to_string())).is_err()));
    }

    /// Takes every byte that is left.
    pub fn fill(&self) {
        reserve_file::fill_filesystem_of(Path::new("/var/lib/containers"));
        sh("sync -f /var/lib/containers");
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        self.runtime = None;
        if self.node.work.path().join("disk").exists() {
            self.node.store.unmount();
            // Somebody may just be closing a file.
            sh(&format!(
                "for _ in $(seq 50); do umount /var/lib/containers 2>/dev/null && break; sleep 0.1; done
                 ! mountpoint -q /var/lib/containers
                 rm -rf {0}/disk {STATE} /etc/layersweep /run/layersweep /root/*",
                self.node.work.path().display(),
            ));
        } else {
            self.node.store.unmount();
        }
    }
}

/// What stands for something of the reader's, as this node has it.
fn on_this_node(script: &str) -> String {
    let mut script = script.to_owned();
    if let Some(at) = script.find("/var/lib/containers/storage/overlay/").filter(|_| script.contains('…')) {
        let end = script[at..].find(char::is_whitespace).map_or(script.len(), |end| at + end);
        let layers = fs::read_dir(Path::new(GRAPHROOT).join("overlay")).expect("the layers");
        let mut layers: Vec<_> = layers.map(|entry| entry.expect("an entry").path()).collect();
        layers.sort();
        let layer = layers.iter().find(|path| path.join("link").exists()).expect("a layer");
        script.replace_range(at..end, &layer.display().to_string());
    }
    let image = |text: &str| text.replace("IMAGE...", "IMAGE").replace("IMAGE", "registry.example/notes:1");
    script = script
        .lines()
        .map(|line| if line.starts_with('#') { line.to_owned() } else { image(line) } + "\n")
        .collect();
    script
}
