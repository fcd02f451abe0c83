//! `layersweep metrics`, and the metrics that other commands leave at their end.

mod address;
mod args;
mod connections;
mod serve;
mod shared;

use std::io;
use std::path::{Path, PathBuf};

pub(super) use args::MetricsArgs;

use super::args::{Args, Command, Format};
use super::global::Global;
use super::outfile::{self, Unfit};
use super::{output, settings};
use crate::app::database;
use crate::app::error::{Error, Exit};
use crate::app::observer::{Observer as _, Weight};
use crate::config::{Config, Textfile};
use crate::disk::filesystem;
use crate::history::{Access, Degraded, Note, checkup, counters, figures};
use crate::policy::Targets;
use crate::report::metrics::{self, Database, Facts, Remembered, WriteError};
use crate::stores;

/// Where node_exporter's textfile collector usually looks: its own documentation, and Debian.
const DIRECTORIES: [&str; 2] =
    ["/var/lib/node_exporter/textfile_collector", "/var/lib/prometheus/node-exporter"];

/// What names the file where no flag does.
const KEY: &str = "metrics.textfile";

pub(super) fn run(global: &Global, config: &Config, own: &MetricsArgs) -> Result<Exit, Error> {
    let source = Source { global: global.clone(), targets: config.images.targets, top: own.top };
    source.check(own)?;
    if let Some(address) = &own.listen {
        return serve::serve(source, address);
    }
    if let Some(path) = &own.textfile {
        let path = &metrics::file(path);
        fit(&source, path).map_err(|unfit| unfit.of("--textfile", path))?;
        let mut told = None;
        let written = metrics::write(path, &state_dir(global), || {
            let gathered = source.gather()?;
            gathered.outside(path).map_err(|unfit| unfit.of("--textfile", path))?;
            let text = metrics::text(&gathered.facts);
            told = Some(gathered);
            Ok::<_, Error>(text)
        });
        return match (written, told) {
            (Ok(_), Some(gathered)) => Ok(gathered.tell(global)),
            (Err(WriteError::Content(failure)), _) => Err(failure),
            (Err(error @ WriteError::Io { .. }), _) => {
                Err(Error::failed(error.to_string()).hint(remedy(&error)))
            }
            (Ok(_), None) => Ok(Exit::Done),
        };
    }
    let gathered = source.gather()?;
    output::text(&metrics::text(&gathered.facts))?;
    Ok(gathered.tell(global))
}

/// At the end of a command: writes the metrics where node_exporter reads them, if it has changed
/// them. That it cannot is told, and changes nothing else.
pub(super) fn after(global: &Global, config: &Config, args: &Args, done: &Result<Exit, Error>) {
    if !changes(&args.command) || !may_have_changed(done) {
        return;
    }
    let Some(path) = textfile(global, &config.metrics.textfile) else { return };
    // What is configured: a mark that one run was given is gone with it.
    let configured =
        settings::without_flags(&args.global).map_or(config.images.targets, |it| it.images.targets);
    let source = Source { global: global.clone(), targets: configured, top: 0 };
    let path = metrics::file(&path);
    if matches!(done, Err(failure) if failure.proves_no_store()) && !path.exists() {
        return;
    }
    let written = fit(&source, &path).map_err(|unfit| unfit.of(KEY, &path)).and_then(|()| {
        let written = metrics::write(&path, &state_dir(global), || {
            let gathered = source.gather()?;
            gathered.outside(&path).map_err(|unfit| unfit.of(KEY, &path))?;
            Ok::<_, Error>(metrics::text(&gathered.facts))
        });
        written.map_err(|error| match error {
            WriteError::Content(failure) => failure,
            WriteError::Io { .. } => Error::failed(error.to_string()).hint(remedy(&error)),
        })
    });
    let failure = match written {
        Ok(path) => return tracing::info!("metrics written to {}", path.display()),
        Err(failure) => failure,
    };
    global.warn(Weight::Always, &failure.message, failure.hint.as_deref().unwrap_or_default());
}

/// Whether a command records something that the metrics tell.
fn changes(command: &Command) -> bool {
    match command {
        Command::Scan(own) => !own.no_record,
        Command::Gc(own) => !own.dry_run,
        Command::Rm(own) => !own.dry_run,
        Command::Sweep(own) => !own.dry_run && (own.delete || !own.repair.is_empty()),
        _ => false,
    }
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

/// Where the records lie.
fn state_dir(global: &Global) -> PathBuf {
    database::place(&global.request).dir
}

/// Refuses what is no file of metrics: a device, a link, a place in a store.
fn fit(source: &Source, path: &Path) -> Result<(), Unfit> {
    match outfile::check(path) {
        // Writing it says so, with the remedy.
        Err(Unfit::Io(_)) => {}
        other => other?,
    }
    let roots = source.global.request.stores().map(|request| stores::directories(&request));
    outfile::outside(path, roots.unwrap_or_default())
}

/// What helps.
fn remedy<E>(error: &WriteError<E>) -> String {
    let WriteError::Io { path, source } = error else { return String::new() };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.display();
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

/// What metrics are made from, each time anew.
struct Source {
    global: Global,
    targets: Targets,
    top: u16,
}

/// Metrics, and what is wrong with their source.
struct Gathered {
    facts: Facts,
    degraded: Vec<Degraded>,
    notes: Vec<Note>,
    /// So many stores whose figures cannot be read.
    unreadable: usize,
    /// There are records that cannot be read.
    blind: bool,
    dir: PathBuf,
}

impl Source {
    /// Refuses flags that would change nothing here.
    fn check(&self, own: &MetricsArgs) -> Result<(), Error> {
        let bad = |message: &str, hint: &str| Err(Error::usage(message).hint(hint));
        let global = &self.global;
        if global.request.names_stores {
            return bad(
                "metrics tells what the records know, and reads no store",
                "name other records with --state-dir DIR",
            );
        }
        if global.format == Format::Json {
            return bad(
                "metrics has a format of its own, Prometheus's",
                "`layersweep scan --format json` has the figures as JSON",
            );
        }
        if global.request.sysroot.is_some() && (own.listen.is_some() || own.textfile.is_some()) {
            return bad(
                "--sysroot: metrics of another disk are printed only",
                "leave out --listen and --textfile",
            );
        }
        Ok(())
    }

    fn gather(&self) -> Result<Gathered, Error> {
        let (mut open, degraded) = database::Database::open_quietly(&self.global.request, Access::Read)?;
        let (_, notes) = open.apply_waiting()?;
        let (remembered, unreadable) = open.read(|from| {
            let all = figures::all(from)?;
            let remembered = Remembered {
                stores: all.stores,
                biggest: if self.top > 0 { figures::biggest(from, self.top)? } else { Vec::new() },
                counters: if open.unreadable { None } else { Some(counters::all(from)?) },
                last_runs: counters::last_runs(from)?,
            };
            Ok((remembered, all.unreadable))
        })?;
        // On another machine's disk nothing is mounted where it was.
        let here = self.global.request.sysroot.is_none();
        let filesystem = |root: &Path| filesystem::at(root).ok().filter(|_| here);
        let filesystems = remembered.stores.iter().map(|store| filesystem(store.key.root())).collect();
        let place = &open.place;
        let database = Database {
            ok: degraded.is_empty() && unreadable == 0,
            bytes: checkup::bytes(place),
            set_aside: checkup::set_aside(&place.dir).ok().map(|found| found.len() as u64),
            waiting: checkup::waiting(place).ok().map(|(count, _)| count as u64).filter(|_| here),
        };
        let facts = Facts {
            version: env!("CARGO_PKG_VERSION"),
            remembered,
            filesystems,
            targets: self.targets,
            database,
        };
        Ok(Gathered { facts, degraded, notes, unreadable, blind: open.unreadable, dir: place.dir.clone() })
    }
}

impl Gathered {
    /// Refuses a file in a store that no configuration names, but that somebody has scanned.
    fn outside(&self, path: &Path) -> Result<(), Unfit> {
        outfile::outside(path, self.facts.remembered.stores.iter().map(|store| store.key.root()))
    }

    /// Tells what is wrong or missing, and says how to exit.
    fn tell(&self, global: &Global) -> Exit {
        database::warn_of_saving(global, &self.degraded, &self.notes);
        let dir = self.dir.display();
        if self.unreadable > 0 {
            let stores = match self.unreadable {
                1 => "one store".to_owned(),
                many => format!("{many} stores"),
            };
            let message = format!("the figures of {stores} in {dir} cannot be read");
            global.warn(Weight::Usual, &message, "`layersweep scan` writes them anew");
        } else if self.facts.remembered.stores.is_empty() && !self.blind {
            global.note(&format!("no scan is recorded in {dir}; `layersweep scan` records one"));
        }
        if self.blind || self.unreadable > 0 { Exit::Incomplete } else { Exit::Done }
    }
}
