//! A node with a real CRI-O, if its programs are in PATH. Debian has none, so CI measures only containerd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use layersweep::cri::{Client, Endpoint, Options};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::support::archive::ImageSpec;
use super::support::loopfs::{Fs, LoopFs, MIB};
use super::support::program::{self, Run};
use super::support::store::Store;

const PROGRAMS: [&str; 5] = ["crio", "pinns", "conmon", "runc", "podman"];

/// The fields are dropped in this order.
pub struct CrioNode {
    daemon: Child,
    store: Store,
    _loopfs: LoopFs,
}

impl CrioNode {
    /// A node with these images, loaded by podman; `None` if a program is missing.
    pub fn new(images: &[ImageSpec]) -> Result<Option<Self>> {
        let Some([crio, pinns, conmon, runc, _]) = programs() else { return Ok(None) };
        let loopfs = LoopFs::new(Fs::Ext4, 2048 * MIB);
        let store = Store::of(&loopfs.path().join("storage"), "overlay", images);
        let dir = store.scratch();
        for name in ["cni", "hooks", "none"] {
            fs::create_dir(dir.join(name))?;
        }
        fs::write(dir.join("policy.json"), r#"{"default":[{"type":"insecureAcceptAnything"}]}"#)?;
        fs::write(dir.join("crio.conf"), configuration(&store, [&pinns, &conmon, &runc]))?;
        let log = fs::File::create(dir.join("crio.log"))?;
        let daemon = store
            .command(crio)
            .arg("--config")
            .arg(dir.join("crio.conf"))
            .arg("--config-dir")
            .arg(dir.join("none"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting crio")?;
        let node = Self { daemon, store, _loopfs: loopfs };
        node.wait()?;
        Ok(Some(node))
    }

    fn wait(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let client = Client::connect(Endpoint::at(&self.socket())?, Options::default());
            match client.and_then(|client| client.images()) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => {
                    let log = fs::read_to_string(self.store.scratch().join("crio.log")).unwrap_or_default();
                    return Err(error).context(log);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.store.scratch().join("crio.sock")
    }

    pub fn state(&self) -> PathBuf {
        self.store.scratch().join("state")
    }

    /// Runs layersweep with the flags of this node.
    pub fn run(&self, words: &[&str]) -> Run {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(self.state());
        if words[0] == "gc" {
            command.args(["--cri-endpoint", &format!("unix://{}", self.socket().display())]);
        }
        program::run(&mut command).expect_no_crash()
    }
}

impl Drop for CrioNode {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.daemon.id().cast_signed()), Signal::SIGTERM);
        let _ = self.daemon.wait();
    }
}

fn programs() -> Option<[PathBuf; 5]> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).collect();
    let found: Vec<_> = PROGRAMS
        .into_iter()
        .filter_map(|name| directories.iter().map(|dir| dir.join(name)).find(|path| path.is_file()))
        .collect();
    found.try_into().ok()
}

fn configuration(store: &Store, [pinns, conmon, runc]: [&Path; 3]) -> String {
    let (root, runroot, dir) = (store.root().display(), store.runroot(), store.scratch().display());
    format!(
        r#"[crio]
root = "{root}"
runroot = "{runroot}"
storage_driver = "overlay"
log_dir = "{dir}/logs"
version_file = "{dir}/version"
version_file_persist = "{root}/../version"
clean_shutdown_file = "{dir}/clean"
[crio.api]
listen = "{dir}/crio.sock"
stream_port = "0"
[crio.runtime]
conmon = "{conmon}"
conmon_cgroup = "pod"
pinns_path = "{pinns}"
namespaces_dir = "{dir}/ns"
container_exits_dir = "{dir}/exits"
container_attach_socket_dir = "{dir}/attach"
hooks_dir = ["{dir}/hooks"]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
apparmor_profile = ""
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
[crio.image]
signature_policy = "{dir}/policy.json"
[crio.network]
network_dir = "{dir}/cni"
plugin_dirs = ["{dir}/cni"]
"#,
        runroot = runroot.display(),
        conmon = conmon.display(),
        pinns = pinns.display(),
        runc = runc.display(),
    )
}
