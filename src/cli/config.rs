//! `layersweep config check|show`

use jiff::Timestamp;

use super::global::Global;
use super::settings;
use crate::cli::input::args::{ConfigArgs, ConfigCommand, Format, GlobalFlags};
use crate::cli::screen::{output, terminal};
use crate::config::{ConfigOrigin, Invalid};
use crate::report::json::{self, Override};
use crate::report::text;
use crate::services::database::state_directory;
use crate::services::error::{Error, Exit};
use crate::services::protect;

pub(super) fn run(flags: &GlobalFlags, args: &ConfigArgs) -> Result<Exit, Error> {
    let (global, config, problems) = settings::read_anyway(flags)?;
    let warnings = protect::warnings(&global.request, &config)?;
    let document = json::config(Timestamp::now(), &config, &problems, &warnings, &overrides(flags, &global));
    match (global.format, &args.command) {
        (Format::Json, _) => output::json(&document)?,
        (Format::Table, ConfigCommand::Check) => {
            output::text(&text::config_check(&document, global.quiet))?;
            return Ok(if document.valid { Exit::Done } else { Exit::Usage });
        }
        (Format::Table, ConfigCommand::Show) => {
            output::text(&text::config_show(&document, &terminal::screen()))?;
        }
    }
    if problems.is_empty() { Ok(Exit::Done) } else { Err(Invalid(problems).into()) }
}

/// Returns the settings that global flags, the environment or the user override.
fn overrides(flags: &GlobalFlags, global: &Global) -> Vec<Override> {
    fn overriding(key: &'static str, value: impl Into<serde_json::Value>, origin: &'static str) -> Override {
        Override { key, value: value.into(), origin: ConfigOrigin::Flag(origin) }
    }
    fn paths(paths: &[std::path::PathBuf]) -> Vec<String> {
        paths.iter().map(|path| path.display().to_string()).collect()
    }
    let request = &global.request;
    let mut found = Vec::new();
    let origin = match &flags.state_dir {
        Some(_) => Some("--state-dir"),
        None if global.other_state => Some(settings::STATE_DIR),
        None if request.state_dir.is_none() => Some("default"),
        None => None,
    };
    if let Some(origin) = origin {
        let dir = state_directory(request).dir.display().to_string();
        found.push(overriding("state_dir", dir, origin));
    }
    if request.names_stores {
        // A flag that names a store excludes all configured stores and sockets.
        let origin = match (flags.graphroot.is_empty(), flags.containerd_root.is_empty()) {
            (false, _) => "--graphroot",
            (true, false) => "--containerd-root",
            (true, true) => "--docker-root",
        };
        found.push(overriding("stores.graphroot", paths(&request.graphroots), origin));
        found.push(overriding("stores.containerd_root", paths(&request.containerd_roots), origin));
        found.push(overriding("stores.docker_root", paths(&request.docker_roots), origin));
        found.push(overriding("stores.runroot", paths(&request.runroots), origin));
        found.push(overriding("stores.cri_endpoint", request.cri_endpoint.clone(), origin));
    } else if let Some(endpoint) = &flags.cri_endpoint {
        found.push(overriding("stores.cri_endpoint", endpoint.as_str(), "--cri-endpoint"));
    }
    found
}
