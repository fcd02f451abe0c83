//! The prepared node: a mount namespace in which a store of podman is at its usual place, with the test CRI server in
//! front, records of a month, and a filesystem that is 91 % used. Also bare nodes of podman, CRI-O and containerd,
//! without any file of layersweep on the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::blocks::Bare;
use super::registry;
use crate::support::archive::{self, ImageSpec, LayerSpec};
use crate::support::containerd::{Collection, Rig};
use crate::support::containerd_node::busybox;
use crate::support::cri_server::CriServer;
use crate::support::loopfs::MIB;
use crate::support::machine;
use crate::support::past;
use crate::support::program::{self, Run, text};
use crate::support::reserve_file;
use crate::support::store::{Store, succeed};

/// Environment variable that is set inside the namespace.
const INSIDE: &str = "LAYERSWEEP_TEST_NAMESPACE";
/// Store of the commands of a page.
const GRAPHROOT: &str = "/var/lib/containers/storage";
const STATE: &str = "/var/lib/layersweep";
const TOOLS: &str = "/run/docs";

/// Runs `work` in new namespaces, by running this test again.
pub fn inside(test: &str, work: impl FnOnce()) {
    machine::require_checkout_elsewhere();
    if std::env::var_os(INSIDE).is_some() {
        return work();
    }
    let mut again = Command::new("unshare");
    again.args(["--mount", "--uts", "--propagation", "private", "--fork", "--kill-child"]);
    again.arg("--net").arg(std::env::current_exe().expect("this program"));
    again.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(INSIDE, "1");
    // It may be below a directory that is mounted over.
    again.env_remove("TMPDIR");
    let status = again.stdin(Stdio::null()).status().expect("unshare");
    assert!(status.success(), "see above for what is wrong with the pages");
}

/// The node that pages copy.
pub struct Prepared {
    store: Arc<Store>,
    /// Address of `registry.example`.
    registry: String,
    /// Image of the disk as it was made.
    disk: PathBuf,
    work: tempfile::TempDir,
}

/// A page's own copy of the node, until it is dropped.
pub struct Page<'a> {
    node: &'a Prepared,
    /// Mount point of its filesystem.
    mount: &'static Path,
    /// Server in place of CRI-O.
    runtime: Option<CriServer>,
    containerd: Option<Rig>,
}

fn sh(script: &str) {
    succeed(Command::new("sh").args(["-euc", script]).env("PATH", path()));
}

fn path() -> String {
    format!("{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

fn images() -> Vec<ImageSpec> {
    fn base() -> LayerSpec {
        layer("base", 12)
    }
    let mut images = vec![image("base:1", vec![base()]), image("db:16", vec![base(), layer("db", 30)])];
    images.extend(
        (1..=5).map(|number| {
            image(&format!("shop:1.{number}"), vec![base(), layer("node", 20), shop(number, 32)])
        }),
    );
    images.push(ImageSpec {
        names: vec!["registry.k8s.io/pause:3.9".into()],
        ..image("pause", vec![layer("pause", 1)])
    });
    images.push(image("notes:1", vec![base(), running("notes", 6)]));
    images
}

/// Returns images that are small, because containerd stores them twice, as blobs and unpacked.
fn images_of_containerd() -> Vec<ImageSpec> {
    fn base() -> LayerSpec {
        running("base", 2)
    }
    let mut images: Vec<_> =
        (1..=5).map(|number| image(&format!("shop:1.{number}"), vec![base(), shop(number, 16)])).collect();
    images.push(ImageSpec { names: vec!["reg.local/pause:1".into()], ..image("pause", vec![base()]) });
    images
}

fn image(name: &str, layers: Vec<LayerSpec>) -> ImageSpec {
    ImageSpec { names: vec![format!("registry.example/{name}")], layers, label: name.to_owned() }
}

fn layer(name: &str, mebibytes: u64) -> LayerSpec {
    LayerSpec { small_files: 30, plain: vec![mebibytes * MIB], ..LayerSpec::new(name) }
}

/// Returns the layer of a version of the shop. No two have the same size: tables sort by it, and a filesystem needs a
/// block more for a file in many pieces.
fn shop(version: u64, mebibytes: u64) -> LayerSpec {
    LayerSpec {
        small_files: 30,
        plain: vec![mebibytes * MIB + version * 64 * 1024],
        ..LayerSpec::new(&format!("shop-{version}"))
    }
}

/// Returns a layer with a program that can run.
fn running(name: &str, mebibytes: u64) -> LayerSpec {
    LayerSpec { programs: vec![busybox()], ..layer(name, mebibytes) }
}

/// Makes a filesystem in a file and mounts it as `/var`, the disk of a node.
fn mount_var(file: &Path, mkfs: &str) {
    sh(&format!(
        "{mkfs} {0}; mount -o loop {0} /var
         mkdir -p /var/lib /var/log/pods /var/tmp; ln -s /run /var/run; ln -s /run/lock /var/lock",
        file.display()
    ));
}

const EXT4: &str = "mkfs.ext4 -q -F -b 4096 -m 0 -E lazy_itable_init=0,lazy_journal_init=0";

impl Prepared {
    /// Makes the node; only inside the namespace, because it mounts over directories of the machine.
    pub fn new() -> Self {
        assert!(std::env::var_os(INSIDE).is_some());
        let work = tempfile::Builder::new().prefix("layersweep-docs-").tempdir().expect("a directory");
        let (disk, binary) = (work.path().join("prepared"), env!("CARGO_BIN_EXE_layersweep"));
        // This makes a directory beside the program's, which may be hidden in a moment.
        program::hermetic(&mut Command::new("true"));
        // Hides everything of this machine that a command could find, read or delete, and the mounts that hide it from
        // other tests, which `df` would show.
        sh(&format!(
            "for dir in $(awk '$2 ~ /^\\/var\\// {{ print $2 }}' /proc/mounts | sort -r); do umount $dir; done
             mount -t tmpfs tmpfs /run; mkdir -p {TOOLS} /run/lock /run/upper/etc /run/upper/work
             cp {binary} {TOOLS}/layersweep
             mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper/etc,workdir=/run/upper/work /etc
             echo node-1 | tee /etc/hostname >/proc/sys/kernel/hostname
             echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
             rm -rf /etc/containers /etc/containerd /etc/crio /etc/kubernetes /etc/crictl.yaml /etc/layersweep
             mkdir -p /etc/containers
             for dir in /root /home /srv /mnt /var/tmp /var/lib /var/log; do
                 if [ -d $dir ]; then mount -t tmpfs tmpfs $dir; fi
             done
             mkdir -p /var/lib/containers /var/log/pods
             truncate -s 512M {0}; {EXT4} {0}; mount -o loop {0} /var/lib/containers",
            disk.display(),
        ));
        let store = Arc::new(Store::at(Path::new(GRAPHROOT), "overlay"));
        let trust = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
        fs::write("/etc/containers/policy.json", trust).expect("a file");
        for name in ["storage.conf", "containers.conf"] {
            fs::copy(store.scratch().join(name), Path::new("/etc/containers").join(name)).expect("a file");
        }
        // Containers also run where root may not raise its own limits, and in the cgroups of a container.
        fs::create_dir("/etc/containers/containers.conf.d").expect("a directory");
        let limits = "default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]";
        let runs = format!("[containers]\n{limits}\n[engine]\nruntime = \"runc\"\n");
        fs::write("/etc/containers/containers.conf.d/run.conf", runs).expect("a file");
        store.load(&images());
        store.podman(["create", "--name", "db", "--network", "none", "registry.example/db:16", "/x"]);
        let orphan = Path::new(GRAPHROOT).join("overlay").join("b".repeat(64)).join("diff");
        fs::create_dir_all(&orphan).expect("a directory");
        fs::write(orphan.join("half-a-layer"), vec![7; 6 << 20]).expect("a file");
        sh(&format!("touch -d '3 days ago' {0}/half-a-layer {0} {0}/..", orphan.display()));
        let registry = registry::serve(&image("new:1", vec![running("new", 3)]), work.path());
        let mirror = format!(
            "[[registry]]\nlocation = \"registry.example\"\n\
             [[registry.mirror]]\nlocation = \"{registry}\"\ninsecure = true\n"
        );
        fs::write("/etc/containers/registries.conf", mirror).expect("a file");
        let node = Self { store, registry, disk, work };
        let mount = Path::new("/var/lib/containers");
        let mut page = Page { node: &node, mount, runtime: None, containerd: None };
        page.start_runtime();
        let podman = page.runtime.as_ref().expect("a runtime").podman();
        let pod = podman.sandbox("shop", "registry.k8s.io/pause:3.9");
        let container = podman.container(&pod, "shop", "shop", "registry.example/shop:1.5");
        // Sizes that differ: reports sort by them.
        for (id, padding) in [(pod, 0), (container, 20_000)] {
            // CRI-O keeps this file for each container, and looks for it when it starts.
            let userdata = Path::new(GRAPHROOT).join("overlay-containers").join(id).join("userdata");
            fs::create_dir_all(&userdata).expect("a directory");
            let config = format!("{{\"ociVersion\": \"1.1.0\"}}{}", " ".repeat(padding));
            fs::write(userdata.join("config.json"), config).expect("a file");
        }
        // Written out, files have their final number of blocks: ext4 adds one for a file in many pieces.
        sh("sync -f /var/lib/containers");
        succeed(node.command("layersweep").args(["scan", "-q"]));
        for (number, image) in images().iter().enumerate() {
            past::set_first_detected(
                Path::new(STATE),
                &image.names[0],
                40 - 3 * i64::try_from(number).expect("few"),
            );
        }
        // Files of the node beside its images.
        let fill = "set -- $(stat -f -c '%b %a %S' /var/lib/containers)
                    fallocate -l $((($2 - $1 * 9 / 100) * $3)) /var/lib/containers/core.4711";
        sh(fill);
        drop(page);
        node.age();
        sh(&format!(
            "cp -a {STATE} {work}/records; umount /var/lib/containers",
            work = node.work.path().display()
        ));
        node
    }

    /// Makes the disk of the bare nodes: a separate `/var`, where the images are three weeks old according to the disk.
    fn age(&self) {
        let work = self.work.path();
        sh(&format!("mkdir {0}/before; mount --bind /var/lib/containers {0}/before", work.display()));
        sh(&format!("truncate -s 420M {}/aged", work.display()));
        mount_var(&work.join("aged"), &format!("{EXT4} -N 1000"));
        sh(&format!(
            "mkdir /var/lib/containers; cp -a {work}/before/storage {work}/before/cache /var/lib/containers/
             umount {work}/before
             rm -rf {GRAPHROOT}/overlay/{orphan}
             then=$(($(date +%s) - 21 * 86400))
             sed -i \"s/\\\"created\\\":\\\"[^\\\"]*/\\\"created\\\":\\\"$(date -u -d @$then +%FT%TZ)/g\" \\
                 {GRAPHROOT}/overlay-layers/layers.json
             for directory in {GRAPHROOT}/overlay-images/*/; do
                 inode=$(stat -c %i $directory)
                 echo \"set_inode_field <$inode> crtime_extra 0\"
                 echo \"set_inode_field <$inode> crtime @$then\"
             done >{work}/requests
             umount /var
             debugfs -w -f {work}/requests {work}/aged >/dev/null 2>&1",
            work = work.display(),
            orphan = "b".repeat(64),
        ));
    }

    /// Returns a page on the node as it was made.
    pub fn fresh(&self) -> Page<'_> {
        sh(&format!("cp -a {}/records {STATE}", self.work.path().display()));
        self.mounted(&self.disk, "/var/lib/containers")
    }

    /// Returns a page on a node without leaks and records. Its images are three weeks old according to the disk.
    pub fn bare(&self, kind: Bare) -> Page<'_> {
        match kind {
            Bare::Containerd | Bare::ContainerdNamespaces | Bare::ContainerdOnBtrfs => {
                return self.containerd(kind);
            }
            Bare::Dead => return self.dead(),
            Bare::CriO | Bare::Podman | Bare::PodmanBuilds => {}
        }
        let page = self.mounted(&self.work.path().join("aged"), "/var");
        if kind != Bare::CriO {
            let all: serde_json::Value =
                serde_json::from_str(&self.store.storage(["containers", "--json"])).expect("containers");
            for container in
                all.as_array().expect("a list").iter().filter(|container| container["names"][0] != "db")
            {
                self.store.storage(["delete-container", text(container, "/id")]);
            }
            self.store.unmount();
        }
        if kind == Bare::PodmanBuilds {
            let builds = "buildah from --pull=never --name api-builder registry.example/base:1 >/dev/null
                          head -c 24M /dev/urandom >$(buildah mount api-builder)/api.o
                          buildah umount api-builder >/dev/null
                          podman volume create cache >/dev/null
                          head -c 30M /dev/urandom >/var/lib/containers/storage/volumes/cache/_data/packages
                          podman untag registry.example/notes:1";
            succeed(self.command("sh").args(["-euc", builds]));
            self.store.unmount();
        }
        page
    }

    /// Returns a page with the prepared disk as that of a node that does not run, with its records.
    fn dead(&self) -> Page<'_> {
        sh(&format!(
            "mkdir -p /mnt/node-7/etc /mnt/node-7/var/lib/containers; echo node-7.example >/mnt/node-7/etc/hostname
             cp -a {}/records /mnt/node-7/var/lib/layersweep",
            self.work.path().display()
        ));
        let page = self.mounted(&self.disk, "/mnt/node-7/var/lib/containers");
        sh("mount -o remount,ro /mnt/node-7/var/lib/containers");
        page
    }

    /// Returns a page on a real containerd with its own disk, a pod, and a log of another program.
    fn containerd(&self, kind: Bare) -> Page<'_> {
        let disk = self.work.path().join("disk");
        sh(&format!("truncate -s 380M {}", disk.display()));
        let ext4 = format!("{EXT4} -N 900");
        mount_var(&disk, if kind == Bare::ContainerdOnBtrfs { "mkfs.btrfs -q -f -m dup" } else { &ext4 });
        let rig = Rig::start(Path::new("/var/lib/containerd"), Collection::Default);
        let images = images_of_containerd();
        let page = Page { node: self, mount: Path::new("/var"), runtime: None, containerd: Some(rig) };
        let old = image("old:1", vec![running("base", 2), running("old", 1), running("older", 1)]);
        page.import("k8s.io", &[images.as_slice(), &[old]].concat());
        let rig = page.containerd.as_ref().expect("just started");
        rig.settle(images.len() + 1);
        // As on any node that has been in use, containerd's databases have free pages: if they have to grow, the first
        // deletions free nothing until a later one makes containerd collect its garbage again.
        let all = rig.images();
        let old = all.iter().find(|image| image.tags == ["registry.example/old:1"]).expect("it was imported");
        rig.remove(old.id.trim_start_matches("sha256:"));
        rig.script("30-pods.sh", &["--run", "shop-0", "registry.example/shop:1.5"]);
        let log = "/var/log/pods/default_shop-0_5d0f31b2-7a5c-4f7e-9d1e-0b6a7c8d9e01/shop";
        sh(&format!(
            "mkdir -p /run/containerd /etc/layersweep {log}
             head -c 24M /dev/zero >{log}/0.log
             touch /run/containerd/containerd.sock; mount --bind {} /run/containerd/containerd.sock
             # Everything on this disk is new.
             printf '[images]\nmin_age = \"0s\"\n' >/etc/layersweep/layersweep.toml",
            rig.socket().display()
        ));
        if kind == Bare::ContainerdNamespaces {
            page.import("ci", &[image("tools:1", vec![layer("tools", 12)])]);
        }
        page
    }

    fn mounted(&self, disk: &Path, mount: &'static str) -> Page<'_> {
        sh(&format!(
            "cp --sparse=always {} {work}/disk; mount -o loop {work}/disk {mount}",
            disk.display(),
            work = self.work.path().display(),
        ));
        Page { node: self, mount: Path::new(mount), runtime: None, containerd: None }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", path()).env("HOME", "/root").current_dir("/root");
        command.env("TZ", "UTC").env("LANG", "C.UTF-8").env("TERM", "dumb").stdin(Stdio::null());
        command
    }
}

impl Page<'_> {
    /// Runs a script as a person would type it; returns both output streams in one.
    pub fn sh(&mut self, script: &str, runtime: bool) -> Run {
        match (runtime, &self.runtime) {
            (false, Some(_)) => self.stop_runtime(),
            (true, None) if self.containerd.is_none() => self.start_runtime(),
            _ => {}
        }
        let script = format!("exec 2>&1\n{}", on_this_node(script));
        program::run(self.node.command("sh").args(["-ec", &script])).expect_no_crash()
    }

    fn start_runtime(&mut self) {
        let runtime = CriServer::start(&self.node.store);
        sh(&format!("mkdir -p /run/crio; ln -sf {} /run/crio/crio.sock", runtime.socket().display()));
        self.runtime = Some(runtime);
    }

    fn stop_runtime(&mut self) {
        self.runtime = None;
        fs::remove_file("/run/crio/crio.sock").expect("the socket");
    }

    /// Uses every free inode.
    pub fn fill_inodes(&self) {
        let top = self.mount.join("spool");
        fs::create_dir(&top).expect("a directory");
        assert!((0..1_000_000).any(|number| fs::File::create(top.join(number.to_string())).is_err()));
    }

    /// Uses every free byte.
    pub fn fill(&self) {
        reserve_file::fill_filesystem_of(self.mount);
        sh(&format!("sync -f {}", self.mount.display()));
    }

    /// Checks that the tools of the node pull a new image and run it.
    pub fn works(&self) {
        let run = "run --rm registry.example/new:1";
        let run = match &self.containerd {
            Some(rig) => {
                let hosts = rig.scratch().join("certs.d/registry.example");
                fs::create_dir_all(&hosts).expect("a directory");
                let server = format!(
                    "[host.\"http://{}\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
                    self.node.registry
                );
                fs::write(hosts.join("hosts.toml"), server).expect("a file");
                rig.shell(
                    "cri ImageService/PullImage $(pb_msg 1 $(pb_str 1 registry.example/new:1)) >/dev/null",
                );
                format!("ctr -n k8s.io {run} new /bin/busybox true")
            }
            None => format!("podman {run} /bin/busybox true").replace("run", "run --network none"),
        };
        succeed(self.node.command("sh").args(["-ec", &run]));
    }

    /// Imports images into a namespace of containerd.
    fn import(&self, namespace: &str, images: &[ImageSpec]) {
        let rig = self.containerd.as_ref().expect("a containerd");
        let path = rig.scratch().join("images.tar");
        archive::write_running(&path, images, &["/bin/busybox", "sleep", "100000000"]).expect("an archive");
        rig.shell(&format!("CN {namespace} images import {0} >/dev/null; as_pulled; rm {0}", path.display()));
        sh(&format!("sync -f {}", self.mount.display()));
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        self.runtime = None;
        self.containerd = None;
        self.node.store.unmount();
        if self.node.work.path().join("disk").exists() {
            // A process may just be closing a file.
            sh(&format!(
                "for _ in $(seq 50); do umount {1} 2>/dev/null && break; sleep 0.1; done
                 ! mountpoint -q {1}
                 umount /run/containerd/containerd.sock 2>/dev/null || true
                 rm -rf {0}/disk {STATE} /etc/layersweep /run/layersweep /run/containerd /root/*",
                self.node.work.path().display(),
                self.mount.display(),
            ));
        }
    }
}

/// Replaces placeholders of the reader with objects of this node.
fn on_this_node(script: &str) -> String {
    let mut script = script.to_owned();
    if let Some(start) = script.find("/var/lib/containers/storage/overlay/").filter(|_| script.contains('…'))
    {
        let end = script[start..].find(char::is_whitespace).map_or(script.len(), |end| start + end);
        let layers = fs::read_dir(Path::new(GRAPHROOT).join("overlay")).expect("the layers");
        let mut layers: Vec<_> = layers.map(|entry| entry.expect("an entry").path()).collect();
        layers.sort();
        let layer = layers.iter().find(|path| path.join("link").exists()).expect("a layer");
        script.replace_range(start..end, &layer.display().to_string());
    }
    script = script
        .lines()
        .map(|line| {
            if line.starts_with('#') {
                line.to_owned() + "\n"
            } else {
                line.replace("IMAGE...", "IMAGE").replace("IMAGE", "registry.example/notes:1") + "\n"
            }
        })
        .collect();
    script
}
