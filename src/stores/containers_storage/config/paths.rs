//! Builds a store from configured values: expands variables and fills in defaults.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::types::{Problems, Sourced, StorageSettings, StoreConfig};
use crate::stores::environment::Environment;

const GRAPHROOT: &str = "/var/lib/containers/storage";

const RUNROOT: &str = "/run/containers/storage";

/// Paths of a store for which no file sets others.
#[derive(Clone, Debug)]
pub(super) struct Defaults {
    pub(super) graphroot: PathBuf,
    pub(super) runroot: PathBuf,
    pub(super) origin: String,
}

impl Defaults {
    pub(super) fn system() -> Self {
        Self { graphroot: GRAPHROOT.into(), runroot: RUNROOT.into(), origin: built_in() }
    }

    /// Returns the paths of a user's store, in the data home and the runtime directory, or `None` without a home.
    pub(super) fn of_user(environment: &Environment) -> Option<Self> {
        let data = match &environment.xdg_data_home {
            Some(data) => data.clone(),
            None => environment.home.as_ref()?.join(".local/share"),
        };
        let runtime = match &environment.xdg_runtime_dir {
            Some(runtime) => runtime.clone(),
            None => PathBuf::from(format!("/run/user/{}", environment.uid)),
        };
        Some(Self {
            graphroot: data.join("containers/storage"),
            runroot: runtime.join("containers"),
            origin: built_in(),
        })
    }
}

fn built_in() -> String {
    "built-in default".to_owned()
}

/// User of a store, with the variables that its configuration may contain.
#[derive(Clone, Debug)]
pub(super) struct StoreOwner<'a> {
    pub(super) environment: &'a Environment,
    /// `$USER`.
    pub(super) name: Option<&'a str>,
}

impl StoreOwner<'_> {
    /// Returns the store that the settings describe. `graphroot` overrides `rootless_storage_path`, which is ignored for
    /// root.
    pub(super) fn store(
        &self,
        settings: &StorageSettings,
        defaults: Defaults,
        problems: &mut Problems,
    ) -> StoreConfig {
        let rootless = (self.environment.uid != 0)
            .then(|| self.path("rootless_storage_path", settings.rootless_storage_path.as_ref(), problems))
            .flatten();
        let graphroot = self.path("graphroot", settings.graphroot.as_ref(), problems).or(rootless);
        let (graphroot, origin) = graphroot.unwrap_or((defaults.graphroot, defaults.origin));
        let runroot = self.path("runroot", settings.runroot.as_ref(), problems);
        // The library does not expand variables in the other values.
        let imagestore = settings.imagestore.as_ref().and_then(|(value, file)| {
            absolute("imagestore", value, file, problems).filter(|imagestore| {
                let differs = *imagestore != graphroot;
                if !differs {
                    problems.note(file, "imagestore is the graphroot; ignored");
                }
                differs
            })
        });
        StoreConfig {
            runroot: runroot.map_or(defaults.runroot, |(path, _)| path),
            driver: driver(self.environment.storage_driver.as_deref())
                .or_else(|| driver(settings.driver.as_deref())),
            additional_image_stores: read_only(
                settings.image_stores.values.iter().map(String::as_str),
                &[Some(&graphroot), imagestore.as_ref()],
            ),
            additional_layer_stores: layer_stores(settings.layer_stores.values.iter().map(String::as_str)),
            transient: settings.transient,
            graphroot,
            imagestore,
            origin,
            ..StoreConfig::default()
        }
    }

    /// Returns a path with its variables expanded, and the file that sets it.
    fn path(&self, key: &str, value: Option<&Sourced>, problems: &mut Problems) -> Option<(PathBuf, String)> {
        let (value, file) = value?;
        let expanded = self.expand(key, value, file, problems);
        let path = absolute(key, &expanded, file, problems)?;
        Some((path, file.display().to_string()))
    }

    /// Expands `$NAME` and `${NAME}` as the library does: first every `$UID`, even at the start of a longer name, then
    /// the others by Go's rules for names. An unset variable is empty.
    fn expand(&self, key: &str, value: &str, file: &Path, problems: &mut Problems) -> String {
        let value = value.replace("$UID", &self.environment.uid.to_string());
        let mut expanded = String::new();
        let mut rest = value.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            expanded.push_str(before);
            let (name, after) = match after.strip_prefix('{').and_then(|name| name.split_once('}')) {
                Some((name, after)) => (name, after),
                None => {
                    let end = after.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
                    after.split_at(end.unwrap_or(after.len()))
                }
            };
            match self.variable(name) {
                Some(text) => expanded.push_str(&text),
                None => problems.note(file, format!("{key}: ${name} is unknown")),
            }
            rest = after;
        }
        expanded + rest
    }

    fn variable(&self, name: &str) -> Option<String> {
        let environment = self.environment;
        let path = match name {
            "HOME" => environment.home.as_ref(),
            "XDG_CONFIG_HOME" => environment.xdg_config_home.as_ref(),
            "XDG_DATA_HOME" => environment.xdg_data_home.as_ref(),
            "XDG_RUNTIME_DIR" => environment.xdg_runtime_dir.as_ref(),
            "USER" => return self.name.map(str::to_owned),
            "UID" => return Some(environment.uid.to_string()),
            _ => None,
        };
        path.and_then(|path| path.to_str()).map(str::to_owned)
    }
}

/// Returns a configured path without `.` and doubled slashes. A relative path is ignored: its meaning depends on the
/// directory that the runtime was started in.
pub(super) fn absolute(key: &str, value: &str, file: &Path, problems: &mut Problems) -> Option<PathBuf> {
    if !value.starts_with('/') {
        problems.note(file, format!("{key}: {value:?} is not an absolute path; ignored"));
        return None;
    }
    Some(tidy(Path::new(value)))
}

/// Removes `.`, doubled and trailing slashes from a path. `..` is kept, since its meaning depends on symlinks.
pub(super) fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Returns a driver's name as it is used for directories of the store.
pub(super) fn driver(name: Option<&str>) -> Option<String> {
    match name {
        None | Some("") => None,
        Some("overlay2") => Some("overlay".to_owned()),
        Some(name) => Some(name.to_owned()),
    }
}

/// Returns additional image stores, each once. Leaves out the `writable` ones, graphroot and imagestore: the library
/// uses these read-write even if they are also configured as additional stores.
pub(super) fn read_only<'a>(
    values: impl Iterator<Item = &'a str>,
    writable: &[Option<&PathBuf>],
) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let paths = values.filter(|value| value.starts_with('/')).map(|value| tidy(Path::new(value)));
    paths.filter(|path| !writable.contains(&Some(path)) && seen.insert(path.clone())).collect()
}

/// Returns additional layer stores, each once. An entry may end in `:ref`.
pub(super) fn layer_stores<'a>(values: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
    read_only(values.map(|value| value.split_once(':').map_or(value, |(path, _)| path)), &[])
}
