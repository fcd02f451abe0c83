//! `layersweep metrics`, and the metrics file that other commands update at their end.

use std::io;
use std::path::{Path, PathBuf};

use super::global::Global;
use super::{serve, settings};
use crate::app::metrics::{self as app, Gathered, Named};
use crate::cli::input::args::{Args, Command, Format, MetricsArgs};
use crate::cli::screen::outfile::{self, Unfit};
use crate::cli::screen::output;
use crate::config::{Config, Textfile};
use crate::policy::Targets;
use crate::report::metrics::{self, WriteError};
use crate::services::database;
use crate::services::error::{Error, Exit};
use crate::services::observer::{Audience, Observer as _};
use crate::services::request::Request;
use crate::stores;
use crate::sys::new_file::directory_of;

/// Usual directories of node_exporter's textfile collector: in its own documentation, and in Debian.
const DIRECTORIES: [&str; 2] =
    ["/var/lib/node_exporter/textfile_collector", "/var/lib/prometheus/node-exporter"];

/// Configuration key that names the file without a flag.
const KEY: &str = "metrics.textfile";

pub(super) fn run(global: &Global, config: &Config, args: &MetricsArgs) -> Result<Exit, Error> {
    check(global, args)?;
    let (request, targets) = (&global.request, config.images.targets);
    let named =
        Named { images: args.top, namespaces: config.metric_namespaces, places: config.metric_places };
    if let Some(address) = &args.listen {
        let request = request.clone();
        return serve::serve(global, address, move || {
            Ok(metrics::text(&app::gather(&request, targets, named)?.facts))
        });
    }
    if let Some(path) = &args.textfile {
        return Ok(write(request, targets, named, path, "--textfile")?.1.report(global));
    }
    let gathered = app::gather(request, targets, named)?;
    output::script(&metrics::text(&gathered.facts))?;
    Ok(gathered.report(global))
}

/// Writes the metrics file at the end of a command, if the command can have changed the metrics. A failure is
/// only a warning.
pub(super) fn after(global: &Global, config: &Config, args: &Args, done: &Result<Exit, Error>) {
    // The next scan includes a new pin, and new uses, in the metrics.
    let is_left_to_scan =
        matches!(&args.command, Command::Pin(_)) || matches!(&args.command, Command::Scan(scan) if scan.uses);
    if !args.command.records() || is_left_to_scan || !may_have_changed(done) {
        return;
    }
    let Some(path) = textfile(global, &config.textfile) else { return };
    // Configured thresholds: a flag changes only this run.
    let configured = settings::without_flags(&args.global)
        .map_or(config.images.targets, |configured| configured.images.targets);
    if matches!(done, Err(error) if error.proves_no_store()) && !metrics::file(&path).exists() {
        return;
    }
    let named = Named { images: 0, namespaces: config.metric_namespaces, places: config.metric_places };
    match write(&global.request, configured, named, &path, KEY) {
        Ok((path, _)) => tracing::info!("metrics written to {}", path.display()),
        Err(error) => {
            global.warn(Audience::Always, &error.message, error.hint.as_deref().unwrap_or_default());
        }
    }
}

/// Writes the metrics to `path`, which the flag or key `named_by` contains.
fn write(
    request: &Request,
    targets: Targets,
    named: Named,
    path: &Path,
    named_by: &str,
) -> Result<(PathBuf, Gathered), Error> {
    let path = metrics::file(path);
    let refuse = |unfit: Unfit| unfit.of(named_by, &path);
    match outfile::check(&path) {
        // The write fails with the same error and a remedy.
        Ok(()) | Err(Unfit::Io(_)) => {}
        Err(other) => return Err(refuse(other)),
    }
    let roots = request.stores().map(|request| stores::directories(&request));
    outfile::outside(&path, roots.unwrap_or_default()).map_err(refuse)?;
    let mut last = None;
    let written = metrics::write(&path, &database::state_directory(request).dir, || {
        let gathered = app::gather(request, targets, named)?;
        // Check also the stores that were scanned before without being configured.
        outfile::outside(&path, gathered.stores()).map_err(refuse)?;
        let text = metrics::text(&gathered.facts);
        last = Some(gathered);
        Ok::<_, Error>(text)
    });
    match (written, last) {
        (Ok(path), Some(gathered)) => Ok((path, gathered)),
        (Err(WriteError::Content(error)), _) => Err(error),
        (Err(error), _) => Err(Error::failed(error.to_string()).hint(remedy(&error))),
        (Ok(path), None) => Err(Error::failed(format!("{}: nothing was written", path.display()))),
    }
}

/// Returns an error for flags without an effect on this command.
fn check(global: &Global, args: &MetricsArgs) -> Result<(), Error> {
    if global.request.names_stores {
        return unused(
            "metrics prints what is recorded and reads no store",
            "leave out --graphroot, --containerd-root and --docker-root; --state-dir DIR names other records",
        );
    }
    if global.format == Format::Json {
        return unused(
            "metrics are printed only in Prometheus's format",
            "`layersweep scan --format json` has the figures as JSON",
        );
    }
    if global.request.sysroot.is_some() && (args.listen.is_some() || args.textfile.is_some()) {
        return unused(
            "--sysroot: metrics of another disk can only be printed",
            "leave out --listen and --textfile",
        );
    }
    Ok(())
}

fn unused(message: &str, hint: &str) -> Result<(), Error> {
    Err(Error::usage(message).hint(hint))
}

/// Returns true if the command got far enough to change the metrics.
fn may_have_changed(done: &Result<Exit, Error>) -> bool {
    match done {
        Ok(_) => true,
        // The last store is gone. If there never was one, there is no metrics file.
        Err(error) => error.exit == Exit::Refused || error.is_output() || error.proves_no_store(),
    }
}

/// Returns the metrics file of this node; `None` if this run is not about the node, or the file is not
/// configured.
fn textfile(global: &Global, configured: &Textfile) -> Option<PathBuf> {
    // Other records than the configured ones are a second history of the node, with other counters.
    if global.request.sysroot.is_some() || global.request.names_stores || global.other_state {
        return None;
    }
    // The stores and records of another user are not those of the node, unless `--config` says so.
    if !rustix::process::geteuid().is_root() && !global.config_named {
        return None;
    }
    match configured {
        Textfile::Off => None,
        Textfile::At(path) => Some(path.clone()),
        Textfile::Auto => DIRECTORIES.iter().map(PathBuf::from).find(|dir| dir.is_dir()),
    }
}

fn remedy<E>(error: &WriteError<E>) -> String {
    let WriteError::Io { path, source } = error else { return String::new() };
    let dir = directory_of(path).display();
    match source.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "let root's group write there: chgrp root {dir} && chmod g+w {dir} (docs/metrics.md), \
             or set metrics.textfile in the configuration"
        ),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            format!("make the directory {dir}, or set metrics.textfile in the configuration")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("in a unit of systemd, name {dir} in ReadWritePaths=; else make it writable")
        }
        io::ErrorKind::StorageFull => format!("make room on the filesystem of {dir}"),
        io::ErrorKind::WouldBlock => "nothing to do: the next run writes them".into(),
        _ => "set metrics.textfile in the configuration to another file, or to \"off\"".into(),
    }
}
