//! The configuration that the files and the flags make together.

use std::path::PathBuf;

use super::args::Global;
use super::failure::Failure;
use super::records::STATE_DIR;
use super::surveying;
use crate::config::{self, Config, Flag, Invalid, Problem};
use crate::model::Finding;
use crate::sys::sysroot::Sysroot;

/// What flags and the environment name in place of what is configured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Named {
    /// Stores, which may not be all that the node has.
    pub(super) stores: bool,
    /// Another state directory.
    pub(super) other_state: bool,
}

/// Reads the configuration and fills in the global flags that were not given from it.
///
/// Below `--sysroot` it is that disk's configuration. What is wrong with one there is told as a
/// warning, and the defaults hold: whoever looks at a dead node's disk cannot mend it.
pub(super) fn settle(global: &mut Global, flags: &[Flag]) -> Result<Config, Failure> {
    let config = match load(global, flags)? {
        Ok(config) => config,
        Err(invalid) if global.sysroot.is_some() && global.config.is_none() => {
            let config = Config::defaults(flags).map_err(Failure::Config)?;
            let findings = invalid.0.into_iter().map(|problem| Finding {
                path: PathBuf::new(),
                message: format!("{problem}; the disk's configuration is left aside"),
                incomplete: false,
            });
            surveying::warn(&findings.collect::<Vec<_>>());
            config
        }
        Err(invalid) => return Err(Failure::Config(invalid)),
    };
    fill_in(global, &config);
    Ok(config)
}

/// The same for who is to tell what is wrong: then the defaults hold.
pub(super) fn settle_anyway(global: &mut Global) -> Result<(Config, Vec<Problem>), Failure> {
    let (config, problems) = match load(global, &[])? {
        Ok(config) => (config, Vec::new()),
        Err(invalid) => (Config::defaults(&[]).map_err(Failure::Config)?, invalid.0),
    };
    fill_in(global, &config);
    Ok((config, problems))
}

/// What the files say alone; `None` where they cannot be used.
pub(super) fn without_flags(global: &Global) -> Option<Config> {
    load(global, &[]).ok()?.ok()
}

fn load(global: &Global, flags: &[Flag]) -> Result<Result<Config, Invalid>, Failure> {
    let root = global.sysroot.as_deref().map_or_else(Sysroot::live, Sysroot::at);
    let only = global.config.as_deref().map(std::path::absolute).transpose();
    let only = only.map_err(|error| Failure::BadArgument {
        message: format!("--config: {error}"),
        hint: String::new(),
    })?;
    Ok(Config::load(&root, only.as_deref(), flags))
}

fn fill_in(global: &mut Global, config: &Config) {
    let by_variable = std::env::var_os(STATE_DIR).filter(|dir| !dir.is_empty() && global.sysroot.is_none());
    let named = global.state_dir.clone().or_else(|| by_variable.clone().map(PathBuf::from));
    let is_configured = |dir: PathBuf| std::path::absolute(dir).is_ok_and(|dir| dir == config.state_dir);
    global.named.other_state = named.is_some_and(|dir| !is_configured(dir));
    global.trust_pid_namespace = config.trust_pid_namespace;
    global.kubelet_root.clone_from(&config.kubelet.root_dir);
    global.named.stores = !global.graphroot.is_empty() || !global.containerd_root.is_empty();
    // Whoever names a store or a socket means that one and nothing of what is configured.
    if !global.named.stores {
        let stores = &config.stores;
        global.graphroot.clone_from(&stores.graphroots);
        global.containerd_root.clone_from(&stores.containerd_roots);
        if global.runroot.is_none() {
            global.runroot.clone_from(&stores.runroot);
        }
        if global.cri_endpoint.is_none() {
            global.cri_endpoint.clone_from(&stores.cri_endpoint);
        }
    }
    if global.state_dir.is_none() && by_variable.is_none() && config.state_dir != *config::STATE_DIR {
        global.state_dir = Some(config.state_dir.clone());
    }
}
