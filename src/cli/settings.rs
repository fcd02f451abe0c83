//! The configuration that the files and the flags make together.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use super::args::GlobalFlags;
use super::global::Global;
use super::observer;
use crate::app::error::Error;
use crate::app::request::Request;
use crate::config::{self, Config, ConfigProblem, Flag, Invalid};
use crate::model::Finding;
use crate::sys::sysroot::Sysroot;

/// Names the state directory where no flag does.
const STATE_DIR: &str = "LAYERSWEEP_STATE_DIR";

/// Reads the configuration, and fills in what the flags leave open.
///
/// Below `--sysroot` it is that disk's configuration. What is wrong with one there is a warning, and
/// the defaults hold: whoever looks at a dead node's disk cannot repair it.
pub(super) fn read(flags: &GlobalFlags, own: &[Flag]) -> Result<(Global, Config), Error> {
    let config = match load(flags, own)? {
        Ok(config) => config,
        Err(invalid) if flags.sysroot.is_some() && flags.config.is_none() => {
            for problem in invalid.0 {
                observer::warn_of(&Finding {
                    path: PathBuf::new(),
                    message: format!("{problem}; the disk's configuration is ignored"),
                    incomplete: false,
                });
            }
            Config::defaults(own)?
        }
        Err(invalid) => return Err(invalid.into()),
    };
    Ok((global(flags, &config), config))
}

/// The same for `doctor`, which reports what is wrong: then the defaults hold.
pub(super) fn read_anyway(flags: &GlobalFlags) -> Result<(Global, Config, Vec<ConfigProblem>), Error> {
    let (config, problems) = match load(flags, &[])? {
        Ok(config) => (config, Vec::new()),
        Err(invalid) => (Config::defaults(&[])?, invalid.0),
    };
    Ok((global(flags, &config), config, problems))
}

/// What the files say alone; `None` where they cannot be used.
pub(super) fn without_flags(flags: &GlobalFlags) -> Option<Config> {
    load(flags, &[]).ok()?.ok()
}

fn load(flags: &GlobalFlags, own: &[Flag]) -> Result<Result<Config, Invalid>, Error> {
    let root = flags.sysroot.as_deref().map_or_else(Sysroot::live, Sysroot::at);
    let only = flags.config.as_deref().map(std::path::absolute).transpose();
    let only = only.map_err(|error| Error::usage(format!("--config: {error}")))?;
    Ok(Config::load(&root, only.as_deref(), own))
}

fn global(flags: &GlobalFlags, config: &Config) -> Global {
    // The variable describes this machine, not a disk that is looked at.
    let by_variable = std::env::var_os(STATE_DIR).filter(|dir| !dir.is_empty() && flags.sysroot.is_none());
    let named = flags.state_dir.clone().or_else(|| by_variable.map(PathBuf::from));
    let is_configured = |dir: &PathBuf| std::path::absolute(dir).is_ok_and(|dir| dir == config.state_dir);
    let other_state = named.as_ref().is_some_and(|dir| !is_configured(dir));
    let configured = || Some(config.state_dir.clone()).filter(|dir| dir != config::STATE_DIR);
    let names_stores = !flags.graphroot.is_empty() || !flags.containerd_root.is_empty();
    // Naming a store or a socket means that one, and nothing of what is configured.
    let unless_named = |set: &Option<PathBuf>| set.clone().filter(|_| !names_stores);
    let stores = &config.stores;
    let request = Request {
        graphroots: if names_stores { &flags.graphroot } else { &stores.graphroots }.clone(),
        containerd_roots: if names_stores { &flags.containerd_root } else { &stores.containerd_roots }
            .clone(),
        runroot: flags.runroot.clone().or_else(|| unless_named(&stores.runroot)),
        names_stores,
        cri_endpoint: (flags.cri_endpoint.clone())
            .or_else(|| stores.cri_endpoint.clone().filter(|_| !names_stores)),
        sysroot: flags.sysroot.clone(),
        state_dir: named.or_else(configured),
        kubelet_root: config.kubelet.root_dir.clone(),
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
        other_state,
        line: RefCell::default(),
    }
}
