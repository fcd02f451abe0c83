//! Hides the machine's own runtimes and configuration from the tests.
//!
//! The program checks the whole node for what is in use or pinned, whichever store is named, so a CRI-O, a kubelet
//! or a socket of the machine that runs the tests would change their results. Each test process therefore enters
//! its own mount namespace before its first thread starts, and hides these files in it; `tests/hermetic.sh` shows
//! that this is enough. Without root nothing is hidden.

use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Directories that some tests hide.
const HIDDEN: [&str; 6] = ["/home", "/mnt", "/root", "/run", "/srv", "/var"];

/// Ends a test that hides these directories if this repository or its build is in one of them.
pub fn require_checkout_elsewhere() {
    for path in [env!("CARGO_MANIFEST_DIR"), env!("CARGO_BIN_EXE_layersweep")].map(Path::new) {
        let hidden = HIDDEN.iter().find(|directory| path.starts_with(directory));
        assert!(
            hidden.is_none(),
            "this test hides {hidden:?}, and {path:?} is there: run it with tests/run.sh and without a target \
             directory in such a place"
        );
    }
}

/// Directories that are empty for tests, if the machine has them.
const DIRECTORIES: [&str; 29] = [
    "/etc/containerd",
    "/etc/containers",
    "/etc/k0s",
    "/etc/kubernetes",
    "/etc/layersweep",
    "/etc/openshift",
    "/etc/rancher",
    "/etc/systemd/system/crio.service.d",
    "/etc/systemd/system/kubelet.service.d",
    "/etc/systemd/system/podman.service.d",
    "/run/containerd",
    "/run/containers",
    "/run/crio",
    "/run/docker",
    "/run/k0s",
    "/run/k3s",
    "/run/layersweep",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/crio",
    "/var/lib/docker",
    "/var/lib/k0s",
    "/var/lib/kubelet",
    "/var/lib/layersweep",
    "/var/lib/rancher",
    "/var/log/containers",
    "/var/log/pods",
    "/var/snap",
    "/var/tmp",
];

/// Files that tests see as `/dev/null`, if the machine has them.
const FILES: [&str; 5] = [
    "/etc/crictl.yaml",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/etc/systemd/system/kubelet.service",
    "/run/cri-dockerd.sock",
];

/// An empty directory means a CRI-O with its built-in settings. Tests see no such directory.
const CRIO: &str = "/etc/crio";

/// Podman and buildah accept no image without a policy.
const POLICY: (&str, &str) =
    ("/etc/containers/policy.json", r#"{"default": [{"type": "insecureAcceptAnything"}]}"#);

/// Runs before `main`: a namespace can only be left before the process has a second thread.
#[used]
// SAFETY: the C library calls the function in this section once, before any thread is made; the function needs
// nothing that `main` sets up.
#[allow(unsafe_code)]
#[unsafe(link_section = ".init_array")]
static HIDE: extern "C" fn() = hide;

extern "C" fn hide() {
    // A test that another test runs in its namespaces must mount things for that test: hide nothing.
    let arguments = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let is_of_another = arguments.split(|byte| *byte == 0).any(|argument| argument == b"--ignored");
    if !nix::unistd::geteuid().is_root() || is_of_another {
        return;
    }
    if let Err(error) = hide_all() {
        super::skip(&format!("hiding the machine's configuration from the tests: {error}"));
    }
}

#[allow(clippy::disallowed_methods)] // nothing is mounted in the copy of the directory that is deleted
fn hide_all() -> std::io::Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Unmounts of the machine still propagate into the namespace; mounts made here do not propagate out.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    if Path::new(CRIO).is_dir() {
        mount_memory(CRIO, "mode=755")?;
        let [upper, work] = ["upper", "work"].map(|name| Path::new(CRIO).join(name));
        std::fs::create_dir(&upper)?;
        std::fs::create_dir(&work)?;
        let options = format!("lowerdir=/etc,upperdir={},workdir={}", upper.display(), work.display());
        mount(Some(NAME), "/etc", Some("overlay"), MsFlags::empty(), Some(&*options))?;
        std::fs::remove_dir_all(CRIO)?;
    }
    for directory in DIRECTORIES.map(Path::new).into_iter().filter(|path| path.is_dir()) {
        mount_memory(directory, if directory.ends_with("tmp") { "mode=1777" } else { "mode=755" })?;
    }
    for file in FILES.map(Path::new).into_iter().filter(|path| path.exists()) {
        mount(Some("/dev/null"), file, none, MsFlags::MS_BIND, none)?;
    }
    let (path, content) = POLICY;
    if Path::new(path).parent().is_some_and(Path::is_dir) {
        std::fs::write(path, content)?;
    }
    Ok(())
}

/// Source of the mounts that hide files.
const NAME: &str = "layersweep-tests";

fn mount_memory(directory: impl AsRef<Path>, options: &str) -> nix::Result<()> {
    mount(Some(NAME), directory.as_ref(), Some("tmpfs"), MsFlags::empty(), Some(options))
}
