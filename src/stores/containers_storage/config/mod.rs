//! Which stores a node has: `storage.conf`, CRI-O's configuration, rootless stores.
//!
//! Files are untrusted data: whatever cannot be read or parsed becomes a problem in the result,
//! and the rest is used. Several libraries with different rules may share a node, so
//! every possible interpretation is a candidate (see `storage_conf.rs`). A store that is
//! returned need not exist.

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
use crate::stores::running::RunningPrograms;
use crate::sys::sysroot::Sysroot;
use containers_conf::{IMAGE_COPY_TMP_DIR, STATIC_DIR};
use crio::Crio;
pub use crio::CrioStart;
use files::Files;
use merge::Stores;
use paths::{Defaults, Owner, tidy};
pub use pins::{pin_matches, pin_matches_image, pinned_by};
use rootless::User;
pub use types::{Environment, GraphrootDiscovery, Pin, StoreConfig, UnreadConfig};
use types::{Problems, Settings};

/// Finds the stores that the configuration names, each graphroot once:
///
/// * the calling user's own, if that is not root;
/// * root's, by `storage.conf` as libraries up to 1.62 and later ones read it;
/// * CRI-O's, whose files stand over `storage.conf`;
/// * those that `running` runtimes report: flags and variables override files;
/// * for root: those of all users that exist on the disk.
///
/// The paths in `environment` are taken inside the root as well.
#[must_use]
pub fn discover(
    sysroot: &Sysroot,
    environment: &Environment,
    running: &RunningPrograms,
) -> GraphrootDiscovery {
    let mut configuration = Configuration::read(sysroot, environment);
    configuration.add_reported(running);
    configuration.look_through_homes();
    configuration.into()
}

/// The configuration of the stores that were named on the command line, in their order, and
/// what there is to know besides them. Homes are looked through only for a graphroot that is
/// neither the calling user's own nor root's nor CRI-O's, and for the others.
///
/// If a configured store has the same graphroot, it is that one. Else the rest is as for
/// `podman --root`: runroot, `transient_store` and additional stores of `storage.conf`, since
/// they can only add containers and parents, which keep things. For the same reason it may take images from
/// the other stores named: the configuration that says so may be one that was not found. But no driver, which the
/// graphroot itself shows, and no imagestore, since one belongs to one graphroot only and its
/// bytes would be taken for this store's.
#[must_use]
pub fn named(
    sysroot: &Sysroot,
    environment: &Environment,
    running: &RunningPrograms,
    graphroots: &[PathBuf],
) -> GraphrootDiscovery {
    let mut configuration = Configuration::read(sysroot, environment);
    configuration.add_reported(running);
    let graphroots: Vec<_> = graphroots.iter().map(|graphroot| configuration.absolute(graphroot)).collect();
    let stores: Vec<_> =
        graphroots.iter().map(|graphroot| configuration.named(graphroot, &graphroots)).collect();
    if graphroots.is_empty() {
        return GraphrootDiscovery { stores: Vec::new(), ..configuration.into() };
    }
    let problems = configuration.problems.found.clone();
    configuration.look_through_homes();
    let found = GraphrootDiscovery::from(configuration);
    GraphrootDiscovery { stores, others: found.stores, problems, ..found }
}

/// A user with stores.
#[derive(Clone, Debug)]
pub struct UserStores {
    /// Uid.
    pub uid: u32,
    /// The user's configuration directory: `~/.config`, or `$XDG_CONFIG_HOME` of the calling user.
    pub config: PathBuf,
    pub stores: Vec<StoreConfig>,
}

/// The users other than root that have stores: for root all of them, else the calling one. What
/// cannot be read is a problem of every [`GraphrootDiscovery`].
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
    let of = |user: &User| {
        let stores = rootless::existing_stores(&files, user, &mut problems);
        UserStores { uid: user.uid, config: user.home.join(".config"), stores }
    };
    let all = users.iter().filter(|user| user.uid != 0).map(of);
    all.filter(|user| !user.stores.is_empty()).collect()
}

/// What pod sandboxes are made from: CRI-O's `pause_image`, or those that it has built in. Where a file cannot be read
/// or understood, also that file and why: it may pin any image, and name any for sandboxes.
#[must_use]
pub fn sandboxes(sysroot: &Sysroot) -> (Vec<Pin>, Option<(PathBuf, String)>) {
    let mut problems = Problems::default();
    let crio = Crio::read(&Files::new(sysroot), &mut problems);
    (crio.map(|crio| crio.sandboxes()).unwrap_or_default(), problems.found.into_iter().next())
}

/// What CRI-O does to its store when it starts; `None` where no CRI-O is configured. What cannot be
/// read is a problem of every [`GraphrootDiscovery`].
#[must_use]
pub fn crio_start(sysroot: &Sysroot) -> Option<CrioStart> {
    Crio::read(&Files::new(sysroot), &mut Problems::default()).map(|crio| crio.start)
}

/// The configuration as it was read.
struct Configuration<'a> {
    files: Rc<Files<'a>>,
    /// Completed by what the user database says.
    environment: Environment,
    users: Vec<User>,
    stores: Stores<'a>,
    crio: Option<Crio>,
    problems: Problems,
    /// Configured directories for temporary files of the tools.
    temporary: Vec<PathBuf>,
    /// The stores of all users are among those found.
    with_homes: bool,
}

impl<'a> Configuration<'a> {
    /// Reads all but what is in the homes of other users.
    fn read(sysroot: &'a Sysroot, environment: &Environment) -> Self {
        let files = Rc::new(Files::new(sysroot));
        let [mut problems, mut of_users, mut of_root]: [Problems; 3] = Default::default();
        let mut stores = Stores::new(&files);
        let users = rootless::users(&files, &mut of_users);
        // Anybody may be missing, whatever they can read.
        problems.note_unread(0, &of_users);
        problems.note_all(of_users);
        let environment = complete(environment, &users);
        if environment.uid != 0 {
            let owner = owner(&environment, &users);
            let mut own = Problems::default();
            let podman_dirs = containers_conf::directories(&files, &environment, STATIC_DIR, &mut own);
            for store in rootless::stores(&files, &owner, &mut own) {
                stores.add(StoreConfig { podman_dirs: podman_dirs.clone(), ..store });
            }
            problems.note_unread(environment.uid, &own);
            problems.note_all(own);
        }
        let system = system_environment(&environment, &users);
        let bases = system_stores(&files, &owner(&system, &users), &mut of_root);
        bases.iter().for_each(|(base, _)| stores.add(base.clone()));
        let crio = Crio::read(&files, &mut of_root);
        if let Some(crio) = &crio {
            bases.iter().for_each(|(base, named)| stores.add(crio.store(base, named, &mut of_root)));
        }
        if environment.uid == 0 {
            problems.note_unread(0, &of_root);
        } else {
            // What root has at home is not for other users to read.
            let home = system.home.as_deref();
            of_root.found.retain(|(file, _)| home.is_none_or(|home| !file.starts_with(home)));
        }
        let mut temporary =
            containers_conf::directories(&files, &environment, IMAGE_COPY_TMP_DIR, &mut problems);
        temporary.extend(crio.iter().filter_map(|crio| crio.temporary.clone()));
        temporary.extend(systemd::temporary_directories(&files));
        problems.note_all(of_root);
        Self { files, environment, users, stores, crio, problems, temporary, with_homes: false }
    }

    /// For root: adds the stores of all users. A graphroot that is known already stays as it is.
    fn look_through_homes(&mut self) {
        if self.environment.uid != 0 || std::mem::replace(&mut self.with_homes, true) {
            return;
        }
        for user in &self.users {
            let mut own = Stores::new(&self.files);
            for store in rootless::existing_stores(&self.files, user, &mut self.problems) {
                own.add(store);
            }
            own.into_list().into_iter().for_each(|store| self.stores.add_new(store));
        }
    }

    /// A path of the command line, which is absolute inside a mounted root.
    fn absolute(&self, graphroot: &Path) -> PathBuf {
        let graphroot = match self.files.sysroot.is_foreign() {
            true => Path::new("/").join(graphroot),
            false => std::path::absolute(graphroot).unwrap_or_else(|_| graphroot.to_path_buf()),
        };
        tidy(&graphroot)
    }

    fn named(&mut self, graphroot: &Path, all_named: &[PathBuf]) -> StoreConfig {
        let (graphroot, origin) = (graphroot.to_path_buf(), "--graphroot".to_owned());
        if self.stores.get(&graphroot).is_none() {
            self.look_through_homes();
        }
        if let Some(store) = self.stores.get(&graphroot) {
            return StoreConfig { graphroot, origin, ..store.clone() };
        }
        let mut store = self.unconfigured(graphroot.clone(), origin);
        store.additional_image_stores.extend(all_named.iter().filter(|other| **other != graphroot).cloned());
        store
    }

    /// A store that no file names: the rest is as for the first store, which is the calling user's, by the
    /// rule of the libraries in use today.
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
        for store in running.stores.iter().filter(|store| store.store_type == StoreKind::ContainersStorage) {
            let config = self.unconfigured(store.root.clone(), store.origin.clone());
            self.stores.add_new(StoreConfig { imagestore: store.image_root.clone(), ..config });
        }
    }
}

impl From<Configuration<'_>> for GraphrootDiscovery {
    fn from(read: Configuration<'_>) -> Self {
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

/// Root's candidates: by the rule of libraries up to 1.62, then by that of later ones. Each with the
/// additional image stores as they are named: what is the graphroot of one program is another's
/// additional store.
fn system_stores(
    files: &Files<'_>,
    owner: &Owner<'_>,
    problems: &mut Problems,
) -> [(StoreConfig, Vec<String>); 2] {
    let legacy = storage_conf::legacy_file(files, owner.environment);
    let later = storage_conf::drop_in_files(files, owner.environment, problems);
    let podman_dirs = containers_conf::directories(files, owner.environment, STATIC_DIR, problems);
    [legacy.into_iter().collect(), later].map(|named: Vec<PathBuf>| {
        let settings = Settings::read(files, &named, problems);
        let podman_dirs = podman_dirs.clone();
        let store = StoreConfig { podman_dirs, ..owner.store(&settings, Defaults::system(), problems) };
        (store, settings.image_stores.values)
    })
}

/// The environment with the home that the user database has, if no variable names one.
fn complete(environment: &Environment, users: &[User]) -> Environment {
    let in_database = || users.iter().find(|user| user.uid == environment.uid);
    let home = environment.home.clone().or_else(|| in_database().map(|user| user.home.clone()));
    Environment { home, ..environment.clone() }
}

/// In which environment root's programs run: ours if we are root, else one without variables.
fn system_environment(environment: &Environment, users: &[User]) -> Environment {
    if environment.uid == 0 {
        return environment.clone();
    }
    complete(&Environment::default(), users)
}

fn owner<'a>(environment: &'a Environment, users: &'a [User]) -> Owner<'a> {
    let user = users.iter().find(|user| user.uid == environment.uid);
    Owner { environment, name: user.map(|user| user.name.as_str()) }
}
