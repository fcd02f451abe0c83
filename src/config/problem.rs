//! Problems of a configuration, each with its place.

use std::fmt;
use std::path::PathBuf;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigOrigin {
    Default,
    /// A file as a whole, by its path inside the root.
    File(PathBuf),
    /// A position in a file; line and column count from 1.
    Place {
        file: PathBuf,
        line: usize,
        column: usize,
    },
    /// A flag, or a variable of the environment.
    Flag(&'static str),
}

impl ConfigOrigin {
    pub(super) fn line(&self) -> usize {
        match self {
            Self::Place { line, .. } => *line,
            Self::Default | Self::File(_) | Self::Flag(_) => 0,
        }
    }

    /// Returns `default`, `file:line`, or the flag.
    #[must_use]
    pub fn short(&self) -> String {
        match self {
            Self::Default => "default".into(),
            Self::Flag(flag) => (*flag).to_owned(),
            Self::File(file) => file.display().to_string(),
            Self::Place { file, line, .. } => format!("{}:{line}", file.display()),
        }
    }
}

impl Serialize for ConfigOrigin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (file, line) = match self {
            Self::Default | Self::Flag(_) => (None, None),
            Self::File(file) => (Some(file), None),
            Self::Place { file, line, .. } => (Some(file), Some(line)),
        };
        let mut fields = serializer.serialize_struct("ConfigOrigin", 3)?;
        fields.serialize_field("text", &self.short())?;
        fields.serialize_field("file", &file)?;
        fields.serialize_field("line", &line)?;
        fields.end()
    }
}

#[cfg(test)]
impl schemars::JsonSchema for ConfigOrigin {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OriginDoc".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Origin of a value: the built-in default, a file, or a flag.",
            "type": "object",
            "properties": {
                "text": {
                    "description": "`default`, `file:line`, the flag, or the environment variable.",
                    "type": "string",
                },
                "file": { "type": ["string", "null"] },
                "line": { "description": "Line in the file, from 1.", "type": ["integer", "null"] },
            },
            "required": ["text", "file", "line"],
        })
    }
}

impl fmt::Display for ConfigOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the built-in defaults"),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Place { file, line, column } => {
                write!(f, "{}, line {line}, column {column}", file.display())
            }
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A problem of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ConfigProblemDoc"))]
pub struct ConfigProblem {
    pub origin: ConfigOrigin,
    /// The key; empty if the problem concerns a whole file or a flag.
    #[serde(rename = "key")]
    pub field: String,
    pub message: String,
    /// The fix; empty if the message already says it.
    pub remedy: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// An invalid configuration. It has at least one problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Invalid(pub Vec<ConfigProblem>);
