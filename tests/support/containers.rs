//! Containers that podman and runc really run, without a network.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::program;
use super::store::Store;

/// A store with an image of busybox. Dropping it kills its containers: while a container runs, the store's
/// filesystem cannot be unmounted.
#[derive(Debug)]
pub struct Containers<'s> {
    store: &'s Store,
}

impl<'s> Containers<'s> {
    /// Image of the containers.
    pub const IMAGE: &'static str = "reg.local/busy:1";

    /// Makes the image.
    pub fn new(store: &'s Store) -> Self {
        let made = store.buildah(["from", "scratch"]);
        let made = made.trim();
        let busybox = which("busybox");
        let busybox = busybox.to_str().expect("a path of text");
        for name in ["/bin/busybox", "/bin/sh", "/bin/sleep"] {
            store.buildah(["copy", made, busybox, name]);
        }
        store.buildah(["commit", "--quiet", made, Self::IMAGE]);
        store.buildah(["rm", made]);
        Self { store }
    }

    /// Starts a container that runs `script`.
    pub fn run(&self, name: &str, script: &str) {
        let mut podman = self.store.podman_command();
        // Limits that any user may set, and the one runtime that accepts every arrangement of cgroups.
        podman.args(["--runtime", "runc", "run", "-d", "--name", name, "--network", "none"]);
        podman.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--log-driver", "none"]);
        podman.args([Self::IMAGE, "/bin/sh", "-c", script]);
        let run = program::run(&mut podman);
        assert_eq!(run.code, 0, "{run:?}");
    }

    /// Runs podman with runc.
    pub fn podman<'a>(&self, words: impl IntoIterator<Item = &'a str>) {
        let mut podman = self.store.podman_command();
        let run = program::run(podman.args(["--runtime", "runc"]).args(words));
        assert_eq!(run.code, 0, "{run:?}");
    }

    /// Waits until no container writes files any more.
    pub fn wait_for_files(&self) {
        let began = Instant::now();
        let mut last = 0;
        loop {
            let now = super::tree::du(self.store.root());
            if now == last {
                return;
            }
            last = now;
            assert!(began.elapsed() < Duration::from_secs(60), "they do not end writing");
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

impl Drop for Containers<'_> {
    fn drop(&mut self) {
        let mut podman = self.store.podman_command();
        program::run(podman.args(["--runtime", "runc", "rm", "--all", "--force", "--time", "0"]));
    }
}

/// Returns the path of a program.
pub fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(program));
    found.find(|path| path.is_file()).expect("the program")
}
