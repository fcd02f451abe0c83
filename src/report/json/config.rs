//! JSON document of `layersweep config`.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::parts::{DocumentKind, Header};
use crate::config::keys::KEYS;
use crate::config::{Config, ConfigOrigin, ConfigProblem};

/// Document of `layersweep config show` and `config check`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConfigDoc {
    /// Common fields of all documents; the kind is `config`.
    #[serde(flatten)]
    pub header: Header,
    /// The configuration has no problem. If false, `settings` has the built-in defaults.
    pub valid: bool,
    /// Files that were read, in this order; later ones override earlier ones.
    pub files: Vec<String>,
    pub problems: Vec<ConfigProblem>,
    /// Valid settings that do not do what they seem to: rules that never decide, and a declared set that cannot be read.
    pub warnings: Vec<ConfigProblem>,
    /// Effective value of every key.
    pub settings: Vec<SettingDoc>,
}

/// Effective value of a key.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SettingDoc {
    /// Name with its table, for example `images.high_percent`.
    pub key: &'static str,
    /// Value as in a configuration file; null: it is found automatically.
    pub value: Value,
    /// Origins of the value; several for a list that adds up.
    pub origins: Vec<ConfigOrigin>,
    /// Meaning of the key.
    pub meaning: &'static str,
}

/// Value that a global flag or the environment overrides.
#[derive(Clone, Debug)]
pub struct Override {
    pub key: &'static str,
    pub value: Value,
    pub origin: ConfigOrigin,
}

pub fn config(
    now: Timestamp,
    config: &Config,
    problems: &[ConfigProblem],
    warnings: &[ConfigProblem],
    overrides: &[Override],
) -> ConfigDoc {
    let settings = KEYS.iter().map(|key| {
        let overriding = overrides.iter().find(|overriding| overriding.key == key.name);
        let set = config.origins.get(key.name).into_iter().flatten().cloned();
        let (value, origins) = match overriding {
            Some(Override { value, origin, .. }) => (value.clone(), vec![origin.clone()]),
            None => ((key.value)(config), set.collect()),
        };
        let origins = if origins.is_empty() { vec![ConfigOrigin::Default] } else { origins };
        SettingDoc { key: key.name, value, origins, meaning: key.meaning }
    });
    ConfigDoc {
        header: Header::new(DocumentKind::Config, now),
        valid: problems.is_empty(),
        files: config.files.iter().map(|file| file.display().to_string()).collect(),
        problems: problems.to_vec(),
        warnings: warnings.to_vec(),
        settings: settings.collect(),
    }
}
