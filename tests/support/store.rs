//! Real stores, made and changed by podman, buildah and containers-storage, without a network and without changes to
//! the machine's own storage.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::program::{self, Run};
use super::{archive, made};

/// Table of container-libs (`image/pkg/blobinfocache/sqlite/sqlite.go`).
const KNOWN_LOCATIONS: &str = "CREATE TABLE IF NOT EXISTS KnownLocations(
    transport TEXT NOT NULL, scope TEXT NOT NULL, digest TEXT NOT NULL, location TEXT NOT NULL,
    time TEXT NOT NULL, PRIMARY KEY (transport, scope, digest, location))";

/// Row of a layer that was pulled long ago.
const PULLED: &str = "INSERT OR REPLACE INTO KnownLocations
    VALUES ('docker', 'registry.example', ?1, 'registry.example/pulled', '2024-03-01T12:00:00Z')";

/// A graphroot and the tools for it.
#[derive(Debug)]
pub struct Store {
    driver: String,
    root: PathBuf,
    scratch: TempDir,
    /// True while containers run in the store.
    at_work: AtomicBool,
}

/// Returns whether the programs that make stores are installed; skips, or fails under CI.
pub fn require_tools() -> bool {
    super::require_root()
        && ["podman", "buildah", "containers-storage", "busybox", "openssl"]
            .iter()
            .all(|program| super::require_program(program))
}

/// Returns the path of a script in `tests/rigs`.
pub fn rig(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rigs").join(name)
}

impl Store {
    /// Prepares tools for a graphroot at `root`, which need not exist yet. The runroot and all temporary files are
    /// elsewhere, so that only the store's own bytes are on its filesystem.
    pub fn at(root: &Path, driver: &str) -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("layersweep-store-")
            .tempdir()
            .expect("making a scratch directory");
        let dir = scratch.path();
        for name in ["run", "tmp", "libpod"] {
            std::fs::create_dir(dir.join(name)).expect("making a scratch directory");
        }
        // Locks in files: podman's shared memory lock exists once for the whole machine.
        let engine = format!(
            "[engine]\nlock_type = \"file\"\ntmp_dir = \"{0}/libpod\"\n\
             image_copy_tmp_dir = \"{0}/tmp\"\ncgroup_manager = \"cgroupfs\"\n\
             events_logger = \"none\"\n[network]\nnetwork_config_dir = \"{0}/net\"\n",
            dir.display()
        );
        std::fs::write(dir.join("containers.conf"), engine).expect("writing containers.conf");
        let storage = format!(
            "[storage]\ndriver = \"{driver}\"\ngraphroot = \"{}\"\nrunroot = \"{}/run\"\n",
            root.display(),
            dir.display()
        );
        std::fs::write(dir.join("storage.conf"), storage).expect("writing storage.conf");
        let at_work = AtomicBool::new(false);
        Self { driver: driver.to_owned(), root: root.to_path_buf(), scratch, at_work }
    }

    /// Creates the small store of `mkstore.sh`: 13 images, 3 containers, every kind of relation.
    pub fn rig(root: &Path, driver: &str) -> Self {
        let store = Self::at(root, driver);
        let script = std::fs::read_to_string(rig("mkstore.sh")).expect("the script");
        made::copy(&script, driver, root, |root| {
            let store = Self::at(root, driver);
            store.part_of_rig("images");
            store.unmount();
        });
        store.part_of_rig("containers");
        store
    }

    fn part_of_rig(&self, part: &str) {
        let mut command = self.command(rig("mkstore.sh"));
        command
            .arg(self.scratch.path().join("rig"))
            .arg(&self.driver)
            .env("GRAPHROOT", &self.root)
            .env("RUNROOT", self.runroot())
            .env("PART", part);
        succeed(&mut command);
    }

    /// Creates the store of [`archive::forest`] with podman.
    pub fn forest(root: &Path, driver: &str) -> Self {
        Self::of(root, driver, &archive::forest())
    }

    /// Creates a store of these images, as if podman had just loaded them. Equal images are loaded once for all tests.
    pub fn of(root: &Path, driver: &str, images: &[archive::ImageSpec]) -> Self {
        let store = Self::unopened(root, driver, images);
        // Podman creates its own files, and mounts what it mounts after loading.
        store.podman(["images", "--quiet"]);
        store
    }

    /// Creates the same store without podman's own files, for a caller that runs podman next.
    pub fn unopened(root: &Path, driver: &str, images: &[archive::ImageSpec]) -> Self {
        let store = Self::at(root, driver);
        made::copy(&format!("{images:?}"), driver, root, |root| {
            let store = Self::at(root, driver);
            store.load(images);
            store.unmount();
        });
        store.record_as_pulled();
        store
    }

    /// Notes a registry of each layer and configuration in the blob-info cache of root's tools, as a push of uncompressed
    /// layers does: the tests load archives, and images that no registry has are kept.
    fn record_as_pulled(&self) {
        let read = |name: &str| -> Vec<Value> {
            let records = std::fs::read(self.record(name)).expect(name);
            serde_json::from_slice(&records).expect(name)
        };
        let (layers, images) = (read("layers.json"), read("images.json"));
        let cache = Path::new("/var/lib/containers/cache");
        std::fs::create_dir_all(cache).expect("making the directory of the cache");
        let cache = rusqlite::Connection::open(cache.join("blob-info-cache-v1.sqlite")).expect("the cache");
        cache.busy_timeout(Duration::from_secs(60)).expect("waiting for another test");
        cache.execute_batch("PRAGMA synchronous = OFF; BEGIN IMMEDIATE").expect("the cache");
        cache.execute_batch(KNOWN_LOCATIONS).expect("making the table");
        // Layers of containers have no digest.
        let layers = layers.iter().filter_map(|layer| layer["diff-digest"].as_str().map(str::to_owned));
        let configurations =
            images.iter().filter_map(|image| Some(format!("sha256:{}", image["id"].as_str()?)));
        for digest in layers.chain(configurations) {
            cache.execute(PULLED, [digest]).expect("noting a location");
        }
        cache.execute_batch("COMMIT").expect("the cache");
    }

    /// Loads `images` with podman.
    pub fn load(&self, images: &[archive::ImageSpec]) {
        let path = self.scratch.path().join("images.tar");
        archive::write(&path, images).expect("writing an archive of images");
        self.podman([OsStr::new("load"), "-q".as_ref(), "-i".as_ref(), path.as_ref()]);
        std::fs::remove_file(path).expect("removing the archive of images");
        self.record_as_pulled();
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn driver(&self) -> &str {
        &self.driver
    }

    pub fn runroot(&self) -> PathBuf {
        self.scratch.path().join("run")
    }

    /// Returns a directory for files of the test, outside the store.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns the path of a record file of `layers`, `images` or `containers`, or of its lock, by its file name.
    pub fn record(&self, name: &str) -> PathBuf {
        let kind = name.trim_start_matches("volatile-");
        let kind = kind.split('.').next().expect("a file name");
        self.root.join(format!("{}-{kind}", self.driver)).join(name)
    }

    /// Returns a command in the environment of this store.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let dir = self.scratch.path();
        let mut command = Command::new(program);
        program::hermetic(&mut command);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .env("HOME", dir)
            .env("TMPDIR", dir.join("tmp"))
            .env("CONTAINERS_CONF", dir.join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", dir.join("storage.conf"))
            .env("BUILDAH_ISOLATION", "chroot")
            .env("BUILDAH_FORMAT", "oci");
        command
    }

    /// Returns podman with its flags for this store, without a subcommand.
    pub fn podman_command(&self) -> Command {
        self.tool("podman")
    }

    /// Returns buildah with its flags for this store, without a subcommand.
    pub fn buildah_command(&self) -> Command {
        self.tool("buildah")
    }

    fn tool(&self, program: &str) -> Command {
        let mut command = self.command(program);
        command.arg("--root").arg(&self.root);
        command.arg("--runroot").arg(self.runroot());
        command.args(["--storage-driver", &self.driver]);
        command
    }

    /// Runs podman, which must succeed; returns its standard output.
    pub fn podman<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        succeed(self.podman_command().args(args))
    }

    /// Runs podman, which must succeed; returns its standard output as JSON.
    pub fn podman_json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        let text = self.podman(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Runs buildah, which must succeed; returns its standard output.
    pub fn buildah<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        succeed(self.buildah_command().args(args))
    }

    /// Runs the library's own tool, which must succeed; returns its standard output.
    pub fn storage<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        succeed(self.command("containers-storage").args(args))
    }

    /// Removes one image and nothing else, like `podman rmi --no-prune` with all its names, in a tenth of the time.
    pub fn remove_image(&self, image: &Value) {
        self.storage(["delete-image", program::text(image, "/id")]);
    }

    /// Starts a container of `image`, which may be empty: the container writes 300 KiB into its own layer and runs
    /// until the store is dropped.
    pub fn start(&self, image: &str, name: &str) {
        if !super::require_program("runc") {
            return;
        }
        let mut podman = self.podman_command();
        self.at_work.store(true, Ordering::Relaxed);
        // Limits that any user may set, and the one runtime that accepts every arrangement of cgroups.
        podman.args(["--runtime", "runc", "run", "-d", "--name", name, "--network", "none"]);
        podman.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--log-driver", "none"]);
        podman.arg("--volume").arg(format!("{}:/busybox:ro", super::containers::which("busybox").display()));
        let script = format!(
            "/busybox dd if=/dev/zero of=/written bs=1k count=300; /busybox touch /ready-{name}; \
             exec /busybox sleep 900"
        );
        succeed(podman.args([image, "/busybox", "sh", "-c", &script]));
        let (layers, content) = match self.driver.as_str() {
            "vfs" => (self.root.join("vfs/dir"), ""),
            driver => (self.root.join(driver), "diff"),
        };
        let ready = Path::new(content).join(format!("ready-{name}"));
        let began = Instant::now();
        while !std::fs::read_dir(&layers)
            .expect("the layers")
            .flatten()
            .any(|layer| layer.path().join(&ready).exists())
        {
            assert!(began.elapsed() < Duration::from_secs(60), "the container {name} writes nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes the mount of the driver's directory on itself, which podman makes and sometimes leaves. With it, the
    /// filesystem below cannot be unmounted and the store cannot be deleted. The mount also carries the root
    /// filesystems of containers, so it is kept while a container runs.
    pub fn unmount(&self) {
        if self.at_work.load(Ordering::Relaxed) {
            return;
        }
        let directory = self.root.join(&self.driver);
        // Lazily, as podman itself does: another process may just be closing a file there.
        while nix::mount::umount2(&directory, nix::mount::MntFlags::MNT_DETACH).is_ok() {}
    }

    /// Makes a container that keeps an image in use; returns its id, for [`Store::unpin`].
    pub fn pin(&self, image: &str) -> String {
        let made = self.storage(["create-container", image]);
        let id = made.split_whitespace().next();
        id.expect("the container's id").to_owned()
    }

    /// Makes a manifest list of these images and removes their names: `podman build --manifest` gives them none.
    /// Returns their ids.
    pub fn manifest_list(&self, name: &str, members: &[&str]) -> Vec<String> {
        self.podman(["manifest", "create", name]);
        let mut ids = Vec::new();
        for member in members {
            let id = self.podman(["image", "inspect", "--format", "{{.Id}}", member]).trim().to_owned();
            self.podman(["untag", member]);
            self.podman(["manifest", "add", name, &format!("containers-storage:{id}")]);
            ids.push(id);
        }
        ids
    }

    /// Removes a container made by [`Store::pin`].
    pub fn unpin(&self, container: &str) {
        self.storage(["delete-container", container]);
    }

    /// Removes every container of podman and buildah.
    pub fn remove_containers(&self) {
        self.podman(["rm", "--all", "--force"]);
        self.buildah(["rm", "--all"]);
    }

    /// Returns the document of a command, which must exit with 0.
    pub fn json(&self, command: &str) -> Value {
        program::json_of(command, &self.root, &self.runroot())
    }

    /// Runs a command of the program on this store.
    pub fn run(&self, command: &str) -> Run {
        program::store_run(command, &self.root, &self.runroot())
    }

    /// Returns `images[]` without the fields that change between scans.
    pub fn images(&self) -> Vec<Value> {
        program::timeless(program::list(&self.json("images"), "/images"))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.at_work.swap(false, Ordering::Relaxed) {
            let mut podman = self.podman_command();
            program::run(podman.args(["--runtime", "runc", "rm", "--all", "--force", "--time", "0"]));
        }
        self.unmount();
    }
}

/// Runs a command that must succeed; returns its standard output.
pub fn succeed(command: &mut Command) -> String {
    let run = program::run(command);
    assert_eq!(run.code, 0, "{command:?}: {run:?}");
    run.stdout
}
