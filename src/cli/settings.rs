//! Settings of a command: configuration files, overridden by flags.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use super::global::Global;
use crate::cli::input::args::GlobalFlags;
use crate::config::{self, Config, ConfigProblem, Flag, Invalid};
use crate::services::error::Error;
use crate::services::observer::{Audience, Observer as _};
use crate::services::request::Request;
use crate::sys::sysroot::Sysroot;

/// Environment variable for the state directory, used without `--state-dir`.
pub(super) const STATE_DIR: &str = "LAYERSWEEP_STATE_DIR";

/// Reads the configuration and overrides it with the flags.
///
/// An error in a file stops only a command that needs the configuration, because it deletes; other commands warn and
/// use the built-in defaults: the operator needs them on a broken node most. A file that `--config` names must be
/// valid. With `--sysroot`, the configuration is the one on that disk, which the operator cannot repair.
pub(super) fn read(
    flags: &GlobalFlags,
    command_flags: &[Flag],
    is_needed: bool,
) -> Result<(Global, Config), Error> {
    let (config, problems) = load(flags, command_flags)?;
    let is_strict = flags.config.is_some() || is_needed && flags.sysroot.is_none();
    if is_strict && !problems.is_empty() {
        return Err(Invalid(problems).into());
    }
    let global = global(flags, &config);
    for problem in problems {
        let message = format!("{problem}; the built-in defaults are used");
        global.warn(Audience::Always, &message, &problem.remedy);
    }
    Ok((global, config))
}

/// Reads the configuration with other flags of the command; any problem is an error.
pub(super) fn with_flags(flags: &GlobalFlags, command_flags: &[Flag]) -> Result<Config, Error> {
    let (config, problems) = load(flags, command_flags)?;
    if problems.is_empty() { Ok(config) } else { Err(Invalid(problems).into()) }
}

/// Reads the configuration for a command that reports the problems itself; with any problem, the defaults are used.
pub(super) fn read_anyway(flags: &GlobalFlags) -> Result<(Global, Config, Vec<ConfigProblem>), Error> {
    let (config, problems) = load(flags, &[])?;
    Ok((global(flags, &config), config, problems))
}

/// Reads the configuration without any flags; `None` if it is invalid.
pub(super) fn without_flags(flags: &GlobalFlags) -> Option<Config> {
    let (config, problems) = load(flags, &[]).ok()?;
    problems.is_empty().then_some(config)
}

fn load(flags: &GlobalFlags, command_flags: &[Flag]) -> Result<(Config, Vec<ConfigProblem>), Error> {
    let root = flags.sysroot.as_deref().map_or_else(Sysroot::live, Sysroot::at);
    let only = flags
        .config
        .as_deref()
        .map(std::path::absolute)
        .transpose()
        .map_err(|error| Error::usage(format!("--config: {error}")))?;
    Ok(Config::load_or_defaults(&root, only.as_deref(), command_flags)?)
}

fn global(flags: &GlobalFlags, config: &Config) -> Global {
    // The variable describes this machine, not a mounted disk.
    let by_variable = std::env::var_os(STATE_DIR).filter(|dir| !dir.is_empty() && flags.sysroot.is_none());
    let named = flags.state_dir.clone().or_else(|| by_variable.map(PathBuf::from));
    let is_configured =
        named.as_ref().is_none_or(|dir| std::path::absolute(dir).is_ok_and(|dir| dir == config.state_dir));
    let configured = Some(config.state_dir.clone()).filter(|dir| dir != config::STATE_DIR);
    let roots = [&flags.graphroot, &flags.containerd_root, &flags.docker_root];
    let names_stores = roots.iter().any(|roots| !roots.is_empty());
    // A flag that names a store excludes all configured stores and sockets.
    let configured_stores = Some(&config.stores).filter(|_| !names_stores);
    let stores = &config.stores;
    let request = Request {
        graphroots: if names_stores { &flags.graphroot } else { &stores.graphroots }.clone(),
        containerd_roots: if names_stores { &flags.containerd_root } else { &stores.containerd_roots }
            .clone(),
        docker_roots: if names_stores { &flags.docker_root } else { &stores.docker_roots }.clone(),
        runroots: if flags.runroot.is_empty() {
            configured_stores.map(|stores| stores.runroots.clone()).unwrap_or_default()
        } else {
            flags.runroot.clone()
        },
        names_stores,
        cri_endpoint: flags.cri_endpoint.clone().or_else(|| configured_stores?.cri_endpoint.clone()),
        sysroot: flags.sysroot.clone(),
        state_dir: named.or(configured),
        kubelet: config.kubelet.clone(),
        trust_pid_namespace: config.trust_pid_namespace,
        full: flags.full,
        threads: flags.threads,
        io_priority: flags.io_priority.into(),
        running: Arc::default(),
    };
    Global {
        request,
        format: flags.format,
        quiet: flags.quiet,
        yes: flags.yes,
        no_progress: flags.no_progress,
        config_named: flags.config.is_some(),
        other_state: !is_configured,
        line: RefCell::default(),
    }
}
