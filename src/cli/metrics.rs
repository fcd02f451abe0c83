//! `layersweep metrics`, and the metrics that other commands leave at their end.

use std::io;
use std::path::{Path, PathBuf};

use super::args::{Args, Command, Format, MetricsArgs};
use super::global::Global;
use super::outfile::{self, Unfit};
use super::{output, serve, settings};
use crate::app::database;
use crate::app::error::{Error, Exit};
use crate::app::metrics::{self as app, Gathered};
use crate::app::observer::{Audience, Observer as _};
use crate::app::request::Request;
use crate::config::{Config, Textfile};
use crate::policy::Targets;
use crate::report::metrics::{self, WriteError};
use crate::stores;
use crate::sys::new_file::directory_of;

/// Where node_exporter's textfile collector usually looks: its own documentation, and Debian.
const DIRECTORIES: [&str; 2] =
    ["/var/lib/node_exporter/textfile_collector", "/var/lib/prometheus/node-exporter"];

/// What names the file where no flag does.
const KEY: &str = "metrics.textfile";

pub(super) fn run(global: &Global, config: &Config, own: &MetricsArgs) -> Result<Exit, Error> {
    check(global, own)?;
    let (request, targets, top) = (&global.request, config.images.targets, own.top);
    if let Some(address) = &own.listen {
        let request = request.clone();
        return serve::serve(global, address, move || {
            Ok(metrics::text(&app::gather(&request, targets, top)?.facts))
        });
    }
    if let Some(path) = &own.textfile {
        return Ok(write(request, targets, top, path, "--textfile")?.1.report(global));
    }
    let gathered = app::gather(request, targets, top)?;
    output::script(&metrics::text(&gathered.facts))?;
    Ok(gathered.report(global))
}

/// At the end of a command: writes the metrics where node_exporter reads them, if it has changed
/// them. A failure is a warning, and changes nothing else.
pub(super) fn after(global: &Global, config: &Config, args: &Args, done: &Result<Exit, Error>) {
    // A pin shows in the metrics with the next scan.
    let records = args.command.records() && !matches!(args.command, Command::Pin(_));
    if !records || !may_have_changed(done) {
        return;
    }
    let Some(path) = textfile(global, &config.textfile) else { return };
    // What is configured: a threshold that one run was given ends with it.
    let configured =
        settings::without_flags(&args.global).map_or(config.images.targets, |it| it.images.targets);
    if matches!(done, Err(error) if error.proves_no_store()) && !metrics::file(&path).exists() {
        return;
    }
    match write(&global.request, configured, 0, &path, KEY) {
        Ok((path, _)) => tracing::info!("metrics written to {}", path.display()),
        Err(error) => {
            global.warn(Audience::Always, &error.message, error.hint.as_deref().unwrap_or_default());
        }
    }
}

/// Writes them to a file that `named_by` names.
fn write(
    request: &Request,
    targets: Targets,
    top: u16,
    path: &Path,
    named_by: &str,
) -> Result<(PathBuf, Gathered), Error> {
    let path = metrics::file(path);
    let unfit = |unfit: Unfit| unfit.of(named_by, &path);
    match outfile::check(&path) {
        // Writing it says so, with the remedy.
        Ok(()) | Err(Unfit::Io(_)) => {}
        Err(other) => return Err(unfit(other)),
    }
    let roots = request.stores().map(|request| stores::directories(&request));
    outfile::outside(&path, roots.unwrap_or_default()).map_err(unfit)?;
    let mut last = None;
    let written = metrics::write(&path, &database::state_directory(request).dir, || {
        let gathered = app::gather(request, targets, top)?;
        // Nor into a store that no configuration names, but that somebody has scanned.
        outfile::outside(&path, gathered.stores()).map_err(unfit)?;
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

/// Refuses flags that would change nothing here.
fn check(global: &Global, own: &MetricsArgs) -> Result<(), Error> {
    let bad = |message: &str, hint: &str| Err(Error::usage(message).hint(hint));
    if global.request.names_stores {
        return bad(
            "metrics prints what is recorded and reads no store",
            "leave out --graphroot and --containerd-root; --state-dir DIR names other records",
        );
    }
    if global.format == Format::Json {
        return bad(
            "metrics are printed only in Prometheus's format",
            "`layersweep scan --format json` has the figures as JSON",
        );
    }
    if global.request.sysroot.is_some() && (own.listen.is_some() || own.textfile.is_some()) {
        return bad(
            "--sysroot: metrics of another disk can only be printed",
            "leave out --listen and --textfile",
        );
    }
    Ok(())
}

/// Whether it has come far enough.
fn may_have_changed(done: &Result<Exit, Error>) -> bool {
    match done {
        Ok(_) => true,
        // The last store has gone; where there never was one, there is no file.
        Err(error) => error.exit == Exit::Refused || error.is_output() || error.proves_no_store(),
    }
}

/// Where the metrics of this node go; `None`: this run does not speak for the node, or nobody wants
/// them.
fn textfile(global: &Global, configured: &Textfile) -> Option<PathBuf> {
    // Other records than those configured are a second set of the same node, with counters of their own.
    if global.request.sysroot.is_some() || global.request.names_stores || global.other_state {
        return None;
    }
    // The stores and records of another user are not the node's; but who brings a configuration has one.
    if !rustix::process::geteuid().is_root() && !global.config_named {
        return None;
    }
    match configured {
        Textfile::Off => None,
        Textfile::At(path) => Some(path.clone()),
        Textfile::Auto => DIRECTORIES.iter().map(PathBuf::from).find(|dir| dir.is_dir()),
    }
}

/// What helps.
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
