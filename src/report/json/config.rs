//! JSON document of `layersweep config`.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::parts::Header;
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
    pub problems: Vec<ConfigProblemDoc>,
    /// Valid settings that do not do what they seem to: rules that never decide, and a declared set that cannot be read.
    pub warnings: Vec<ConfigProblemDoc>,
    /// Effective value of every key.
    pub settings: Vec<SettingDoc>,
}

/// A problem of the configuration.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConfigProblemDoc {
    pub origin: OriginDoc,
    /// The key; empty if the problem concerns a whole file or a flag.
    pub key: String,
    pub message: String,
    /// The fix; empty if the message already says it.
    pub remedy: String,
}

impl From<&ConfigProblem> for ConfigProblemDoc {
    fn from(problem: &ConfigProblem) -> Self {
        Self {
            origin: (&problem.origin).into(),
            key: problem.field.clone(),
            message: problem.message.clone(),
            remedy: problem.remedy.clone(),
        }
    }
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
    pub origins: Vec<OriginDoc>,
    /// Meaning of the key.
    pub meaning: &'static str,
}

/// Origin of a value: the built-in default, a file, or a flag.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OriginDoc {
    /// `default`, `file:line`, the flag, or the environment variable.
    pub text: String,
    pub file: Option<PathBuf>,
    /// Line in the file, from 1.
    pub line: Option<usize>,
}

impl OriginDoc {
    /// Builds the origin of a value that is not from a file.
    pub fn named(text: impl Into<String>) -> Self {
        Self { text: text.into(), file: None, line: None }
    }
}

impl From<&ConfigOrigin> for OriginDoc {
    fn from(origin: &ConfigOrigin) -> Self {
        let (file, line) = match origin {
            ConfigOrigin::Default | ConfigOrigin::Flag(_) => (None, None),
            ConfigOrigin::File(file) => (Some(file.clone()), None),
            ConfigOrigin::Place { file, line, .. } => (Some(file.clone()), Some(*line)),
        };
        Self { text: origin.short(), file, line }
    }
}

/// Value that a global flag or the environment overrides.
#[derive(Clone, Debug)]
pub struct Override {
    pub key: &'static str,
    pub value: Value,
    pub origin: OriginDoc,
}

/// Builds the document of `config`.
pub fn config(
    now: Timestamp,
    config: &Config,
    problems: &[ConfigProblem],
    warnings: &[ConfigProblem],
    overrides: &[Override],
) -> ConfigDoc {
    let settings = KEYS.iter().map(|key| {
        let overriding = overrides.iter().find(|overriding| overriding.key == key.name);
        let set = config.origins.get(key.name).into_iter().flatten().map(OriginDoc::from);
        let (value, origins) = match overriding {
            Some(Override { value, origin, .. }) => (value.clone(), vec![origin.clone()]),
            None => ((key.value)(config), set.collect()),
        };
        let origins = if origins.is_empty() { vec![(&ConfigOrigin::Default).into()] } else { origins };
        SettingDoc { key: key.name, value, origins, meaning: key.meaning }
    });
    ConfigDoc {
        header: Header::new("config", now),
        valid: problems.is_empty(),
        files: config.files.iter().map(|file| file.display().to_string()).collect(),
        problems: problems.iter().map(ConfigProblemDoc::from).collect(),
        warnings: warnings.iter().map(ConfigProblemDoc::from).collect(),
        settings: settings.collect(),
    }
}
