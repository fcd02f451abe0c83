//! Finds the configured stores of a node: `storage.conf`, CRI-O's configuration, rootless stores.
//!
//! Configuration files are untrusted. A file that cannot be read or parsed becomes a problem in the result; the other
//! files are used.
//!
//! Several libraries with different lookup rules can share a node, so every possible interpretation is a candidate (see
//! `storage_conf.rs`). A returned store need not exist on the disk.

mod containers_conf;
mod crio;
mod files;
mod merge;
mod paths;
mod pins;
mod rootless;
mod storage_conf;
mod systemd;
mod types;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::model::StoreKind;
use crate::stores::environment::Environment;
use crate::stores::running::RunningPrograms;
use crate::sys::sysroot::Sysroot;
use containers_conf::{IMAGE_COPY_TMP_DIR, STATIC_DIR};
use crio::Crio;
pub use crio::CrioStart;
use files::Files;
use merge::MergedStores;
use paths::{Defaults, StoreOwner, tidy};
pub use pins::{pin_matches, pin_matches_image, pinned_by};
use rootless::User;
pub use types::{GraphrootDiscovery, Pin, StoreConfig, UnreadConfig};
use types::{Problems, StorageSettings};

/// Finds the stores that the configuration names, each graphroot once:
///
/// * the store of the calling user, unless that is root;
/// * root's store, once as libraries up to 1.62 read `storage.conf`, and once as later libraries read it;
/// * CRI-O's store, whose files override `storage.conf`;
/// * stores that `running` runtimes report, because flags and variables override files;
/// * for root: the existing stores of all users.
///
/// The paths in `environment` are paths inside the root, too.
#[must_use]
pub fn discover(
    sysroot: &Sysroot,
    environment: &Environment,
    running: &RunningPrograms,
) -> GraphrootDiscovery {
    let mut configuration = NodeConfiguration::read(sysroot, environment);
    configuration.add_reported(running);
    configuration.search_homes();
    configuration.into()
}

/// Returns the configuration of the stores named on the command line, in their order, and the rest of the configuration.
///
/// A named graphroot that belongs to a configured store gets the configuration of that store. Any other graphroot is
/// configured as by `podman --root`:
///
/// * Runroot, `transient_store` and additional stores are those of `storage.conf`. They can only add containers and
///   parents, and both only protect images from deletion.
/// * The other named stores become additional image stores, for the same reason: the configuration that says so may be
///   in a file that was not found.
/// * The driver is not taken over, since the graphroot shows it.
/// * The imagestore is not taken over. An imagestore belongs to one graphroot, and its bytes would be counted for this
///   store.
#[must_use]
pub fn named(
    sysroot: &Sysroot,
    environment: &Environment,
    running: &RunningPrograms,
    graphroots: &[PathBuf],
) -> GraphrootDiscovery {
    let mut configuration = NodeConfiguration::read(sysroot, environment);
    configuration.add_reported(running);
    let graphroots: Vec<_> = graphroots.iter().map(|graphroot| configuration.absolute(graphroot)).collect();
    let stores: Vec<_> =
        graphroots.iter().map(|graphroot| configuration.named_store(graphroot, &graphroots)).collect();
    if graphroots.is_empty() {
        return GraphrootDiscovery { stores: Vec::new(), ..configuration.into() };
    }
    let problems = configuration.problems.found.clone();
    configuration.search_homes();
    let found = GraphrootDiscovery::from(configuration);
    GraphrootDiscovery { stores, others: found.stores, problems, ..found }
}

#[derive(Clone, Debug)]
pub struct UserStores {
    pub uid: u32,
    /// Configuration directory: `~/.config`, or `$XDG_CONFIG_HOME` of the calling user.
    pub config: PathBuf,
    pub stores: Vec<StoreConfig>,
}

/// Returns the users other than root that have stores: all of them if root calls, else only the calling user.
///
/// Problems are not returned, since [`discover`] finds the same ones.
#[must_use]
pub fn users_stores(sysroot: &Sysroot, environment: &Environment) -> Vec<UserStores> {
    let files = Files::new(sysroot);
    let mut problems = Problems::default();
    let users = rootless::users(&files, &mut problems);
    let environment = complete(environment, &users);
    if environment.uid != 0 {
        let stores = rootless::stores(&files, &owner(&environment, &users), &mut problems);
        let home = environment.home.clone().unwrap_or_default();
        let config = environment.xdg_config_home.clone().unwrap_or_else(|| home.join(".config"));
        return vec![UserStores { uid: environment.uid, config, stores }];
    }
    let all = users.iter().filter(|user| user.uid != 0).map(|user| {
        let stores = rootless::existing_stores(&files, user, &mut problems);
        UserStores { uid: user.uid, config: user.home.join(".config"), stores }
    });
    all.filter(|user| !user.stores.is_empty()).collect()
}

/// Returns the images that pod sandboxes are created from: CRI-O's `pause_image`, or its built-in ones.
///
/// Also returns the first file that cannot be read or parsed, with the reason. Such a file may pin any image, or set any
/// image as `pause_image`.
#[must_use]
pub fn sandboxes(sysroot: &Sysroot) -> (Vec<Pin>, Option<(PathBuf, String)>) {
    let mut problems = Problems::default();
    let crio = Crio::read(&Files::new(sysroot), &mut problems);
    (crio.map(|crio| crio.sandboxes()).unwrap_or_default(), problems.found.into_iter().next())
}

/// Returns the actions of CRI-O on its store at startup, or `None` if CRI-O is not configured.
///
/// Problems are not returned, since [`discover`] finds the same ones.
#[must_use]
pub fn crio_start(sysroot: &Sysroot) -> Option<CrioStart> {
    Crio::read(&Files::new(sysroot), &mut Problems::default()).map(|crio| crio.start)
}

#[must_use]
pub fn crio_socket(sysroot: &Sysroot) -> Option<(PathBuf, PathBuf)> {
    Crio::read(&Files::new(sysroot), &mut Problems::default())?.socket
}

/// Returns the graphroots and imagestores that CRI-O's configuration names; those of its defaults, if no file configures
/// it and it `has_run`.
///
/// Problems are not returned, since [`discover`] finds the same ones.
#[must_use]
pub fn crio_roots(sysroot: &Sysroot, environment: &Environment, has_run: bool) -> Vec<PathBuf> {
    let (files, mut problems) = (Files::new(sysroot), Problems::default());
    let crio = Crio::read(&files, &mut problems).filter(|crio| crio.has_file);
    let Some(crio) = crio.or_else(|| has_run.then(Crio::default)) else { return Vec::new() };
    let users = rootless::users(&files, &mut problems);
    let system = system_environment(&complete(environment, &users), &users);
    let bases = system_stores(&files, &owner(&system, &users), &mut problems);
    let stores = bases.iter().map(|(base, image_stores)| crio.store(base, image_stores, &mut problems));
    stores.flat_map(|store| [Some(store.graphroot), store.imagestore]).flatten().collect()
}

struct NodeConfiguration<'a> {
    files: Rc<Files<'a>>,
    /// Environment, with the home from the user database if no variable sets it.
    environment: Environment,
    users: Vec<User>,
    stores: MergedStores<'a>,
    crio: Option<Crio>,
    problems: Problems,
    temporary: Vec<PathBuf>,
    has_homes: bool,
}

impl<'a> NodeConfiguration<'a> {
    /// Reads all configuration files, but not those in the homes of other users.
    fn read(sysroot: &'a Sysroot, environment: &Environment) -> Self {
        let files = Rc::new(Files::new(sysroot));
        let [mut problems, mut of_users, mut of_root]: [Problems; 3] = Default::default();
        let mut stores = MergedStores::new(&files);
        let users = rootless::users(&files, &mut of_users);
        // If the user database cannot be read, a user is missing who may use images of any store. Uid 0 represents that
        // user, since root can read every store.
        problems.note_unread(0, &of_users);
        problems.note_all(of_users);
        let environment = complete(environment, &users);
        if environment.uid != 0 {
            let owner = owner(&environment, &users);
            let mut of_caller = Problems::default();
            let podman_dirs = containers_conf::directories(&files, &environment, STATIC_DIR, &mut of_caller);
            for store in rootless::stores(&files, &owner, &mut of_caller) {
                stores.add(StoreConfig { podman_dirs: podman_dirs.clone(), ..store });
            }
            problems.note_unread(environment.uid, &of_caller);
            problems.note_all(of_caller);
        }
        let system = system_environment(&environment, &users);
        let bases = system_stores(&files, &owner(&system, &users), &mut of_root);
        bases.iter().for_each(|(base, _)| stores.add(base.clone()));
        let crio = Crio::read(&files, &mut of_root);
        if let Some(crio) = &crio {
            for (base, image_stores) in &bases {
                stores.add(crio.store(base, image_stores, &mut of_root));
            }
        }
        if environment.uid == 0 {
            problems.note_unread(0, &of_root);
        } else {
            // Other users cannot read root's home: that is not a problem.
            let home = system.home.as_deref();
            of_root.found.retain(|(file, _)| home.is_none_or(|home| !file.starts_with(home)));
        }
        let mut temporary =
            containers_conf::directories(&files, &environment, IMAGE_COPY_TMP_DIR, &mut problems);
        temporary.extend(crio.iter().filter_map(|crio| crio.temporary.clone()));
        temporary.extend(systemd::temporary_directories(&files));
        problems.note_all(of_root);
        Self { files, environment, users, stores, crio, problems, temporary, has_homes: false }
    }

    /// Adds the stores of all users if root calls. Stores with a known graphroot are not changed.
    fn search_homes(&mut self) {
        if self.environment.uid != 0 || std::mem::replace(&mut self.has_homes, true) {
            return;
        }
        for user in &self.users {
            let mut stores = MergedStores::new(&self.files);
            for store in rootless::existing_stores(&self.files, user, &mut self.problems) {
                stores.add(store);
            }
            stores.into_list().into_iter().for_each(|store| self.stores.add_new(store));
        }
    }

    /// Makes a path of the command line absolute. Below a mounted root, relative paths start at that root.
    fn absolute(&self, graphroot: &Path) -> PathBuf {
        let graphroot = if self.files.sysroot.is_foreign() {
            Path::new("/").join(graphroot)
        } else {
            std::path::absolute(graphroot).unwrap_or_else(|_| graphroot.to_path_buf())
        };
        tidy(&graphroot)
    }

    /// Returns the configuration of a store named on the command line. Searches the homes first if no known store has
    /// this graphroot.
    fn named_store(&mut self, graphroot: &Path, all_named: &[PathBuf]) -> StoreConfig {
        let (graphroot, origin) = (graphroot.to_path_buf(), "--graphroot".to_owned());
        if self.stores.get(&graphroot).is_none() {
            self.search_homes();
        }
        if let Some(store) = self.stores.get(&graphroot) {
            return StoreConfig { graphroot, origin, ..store.clone() };
        }
        let mut store = self.unconfigured(graphroot.clone(), origin);
        store.additional_image_stores.extend(all_named.iter().filter(|other| **other != graphroot).cloned());
        store
    }

    /// Returns the configuration of a store that no file names. It is that of the first store, which belongs to the
    /// caller and was found by the rule of libraries up to 1.62; driver and imagestores are left out.
    fn unconfigured(&self, graphroot: PathBuf, origin: String) -> StoreConfig {
        StoreConfig {
            graphroot,
            origin,
            driver: None,
            imagestore: None,
            other_imagestores: Vec::new(),
            ..self.stores.first().cloned().unwrap_or_default()
        }
    }

    fn add_reported(&mut self, running: &RunningPrograms) {
        for store in running.stores.iter().filter(|store| store.kind == StoreKind::ContainersStorage) {
            let config = self.unconfigured(store.root.clone(), store.origin.clone());
            self.stores.add_new(StoreConfig { imagestore: store.image_root.clone(), ..config });
        }
    }
}

impl From<NodeConfiguration<'_>> for GraphrootDiscovery {
    fn from(read: NodeConfiguration<'_>) -> Self {
        let crio = read.crio.as_ref();
        Self {
            pins: crio.map(Crio::pins).unwrap_or_default(),
            artifact_stores: crio.map(|crio| crio.artifact_stores.clone()).unwrap_or_default(),
            stores: read.stores.into_list(),
            others: Vec::new(),
            problems: read.problems.found,
            unread: read.problems.unread,
            temporary: read.temporary,
        }
    }
}

/// Returns root's candidates: by the rule of libraries up to 1.62, then by the rule of later ones.
///
/// Each comes with the additional image stores that the files name, unfiltered: the graphroot of one program can be an
/// additional store of another.
fn system_stores(
    files: &Files<'_>,
    owner: &StoreOwner<'_>,
    problems: &mut Problems,
) -> [(StoreConfig, Vec<String>); 2] {
    let legacy = storage_conf::legacy_file(files, owner.environment);
    let later = storage_conf::drop_in_files(files, owner.environment, problems);
    let podman_dirs = containers_conf::directories(files, owner.environment, STATIC_DIR, problems);
    [legacy.into_iter().collect(), later].map(|conf_files: Vec<PathBuf>| {
        let settings = StorageSettings::read(files, &conf_files, problems);
        let podman_dirs = podman_dirs.clone();
        let store = StoreConfig { podman_dirs, ..owner.store(&settings, Defaults::system(), problems) };
        (store, settings.image_stores.values)
    })
}

/// Adds the home from the user database to an environment without `$HOME`.
fn complete(environment: &Environment, users: &[User]) -> Environment {
    let user = users.iter().find(|user| user.uid == environment.uid);
    let home = environment.home.clone().or_else(|| user.map(|user| user.home.clone()));
    Environment { home, ..environment.clone() }
}

/// Returns the environment of root's programs: that of this process if it runs as root, else one without variables.
fn system_environment(environment: &Environment, users: &[User]) -> Environment {
    if environment.uid == 0 {
        return environment.clone();
    }
    complete(&Environment::default(), users)
}

fn owner<'a>(environment: &'a Environment, users: &'a [User]) -> StoreOwner<'a> {
    let user = users.iter().find(|user| user.uid == environment.uid);
    StoreOwner { environment, name: user.map(|user| user.name.as_str()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_directory_of_crio_names_no_store() {
        let disk = tempfile::tempdir().unwrap();
        let roots = |has_run| {
            let found = crio_roots(&Sysroot::at(disk.path()), &Environment::default(), has_run);
            found.iter().map(|root| root.display().to_string()).collect::<std::collections::BTreeSet<_>>()
        };
        let write = |file: &str, text: &str| {
            let path = disk.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let set = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        let usual = set(&["/var/lib/containers/storage"]);
        std::fs::create_dir_all(disk.path().join("etc/crio/crio.conf.d")).unwrap();
        assert_eq!(roots(false), set(&[]));
        assert_eq!(roots(true), usual, "CRI-O with its defaults");
        write("etc/crio/crio.conf.d/50-pinned-images", "[crio.image]\npinned_images = [\"x\"]\n");
        assert_eq!(roots(false), usual);
        write("etc/crio/crio.conf", "[crio]\nroot = \"/of/crio\"\nimagestore = \"/of/images\"\n");
        assert_eq!(roots(false), set(&["/of/crio", "/of/images"]));
    }
}
