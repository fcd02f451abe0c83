//! `layersweep report`

mod marks;
mod page;
mod planned;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::args::{Format, ReportArgs};
use super::global::Global;
use super::values::Since;
use super::{output, terminal};
use crate::app::database::Database;
use crate::app::diagnosis::{self, Disk};
use crate::app::error::{Error, Exit};
use crate::app::observer::Observer as _;
use crate::app::scan;
use crate::config::Config;
use crate::disk::Progress;
use crate::history::{runs, usage};
use crate::model::FilesystemIx;
use crate::model::words::bytes;
use crate::node::places::Places;
use crate::report::json::{self, HistoryDoc, LogDoc, PodDoc, ReportDoc, ReportFacts, SeriesDoc, WarningDoc};
use crate::report::{html, text};
use crate::stores::Survey;
use crate::stores::other_usage::{self as tenants, TenantKind, Tenants};
use crate::sys::processes::Processes;

/// How far back readings and runs are told of unless asked otherwise.
const WINDOW: SignedDuration = SignedDuration::from_hours(30 * 24);
/// So many runs at most.
const RUNS: usize = 100;
/// `/etc/hostname` is no longer.
const NAME_BYTES: u64 = 4096;

pub(super) fn run(global: &Global, config: &Config, own: &ReportArgs) -> Result<Exit, Error> {
    let target = match &own.html {
        Some(path) => Some(page::Target::check(path, global.request.sysroot.as_deref())?),
        None => None,
    };
    if matches!(target, Some(page::Target::Stdout)) && global.format == Format::Json {
        return Err(Error::usage("--html - and --format json both want standard output")
            .hint("name a file for the page; its document is the same"));
    }
    let (document, exit, runroots) = document(global, config, own)?;
    if let Some(target) = target {
        let stores = document.scan.stores.iter().map(|store| Path::new(&store.root));
        target.outside(stores.chain(runroots.iter().map(PathBuf::as_path)))?;
        let page = html::page(&document).map_err(io::Error::from).map_err(Error::output)?;
        target.write(&page)?;
        if let page::Target::File(path) = &target {
            global.note(&format!("the report is in {} ({})", path.display(), bytes(page.len() as u64)));
        }
        if global.format == Format::Table {
            return Ok(exit);
        }
    }
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::report(&document, &terminal::screen()))?,
    }
    Ok(exit)
}

/// The whole story, and where the stores' runroots and imagestores are.
fn document(
    global: &Global,
    config: &Config,
    own: &ReportArgs,
) -> Result<(ReportDoc, Exit, Vec<PathBuf>), Error> {
    let surveyed = scan::scan_for_report(&global.request, global, config)?;
    let survey = &surveyed.survey;
    let places = places(config, survey);
    let known = tenants::Known {
        state_dir: survey.sysroot.display(&surveyed.state.place().dir),
        places,
        threads: global.request.threads.map_or(0, usize::from),
    };
    let progress = Arc::<Progress>::default();
    let shown = global.measuring(&progress);
    let tenants = tenants::measure(survey, &known, &progress);
    drop(shown);
    let inventory = &survey.inventory;
    let all = || (0..inventory.filesystems.len()).map(FilesystemIx::from);
    let divided: Vec<_> = all().map(|at| diagnosis::divide(inventory, &survey.refs, &tenants, at)).collect();
    let plans = planned::plans(global, config, &surveyed)?;
    let context = diagnosis::Context {
        survey,
        tenants: &tenants,
        ages: &surveyed.ages,
        divided: &divided,
        leaks: &plans.leaks,
        min_age: config.leaks.min_age,
        command: plans.command,
    };
    let causes = diagnosis::causes(&context);
    let marks = marks::marks(config, survey);
    let mut warnings: Vec<_> = tenants.findings.iter().map(warning).collect();
    for (filesystem, divided) in inventory.filesystems.iter().zip(&divided) {
        if divided.excess_bytes > 0 {
            warnings.push(WarningDoc {
                path: filesystem.mount.to_string_lossy().into_owned(),
                message: format!(
                    "its users as measured hold {} more than it says is used (it compresses, shares, or was \
                     written to meanwhile); each is shown smaller in proportion",
                    bytes(divided.excess_bytes)
                ),
                incomplete: false,
            });
        }
    }
    warnings.extend(part_of_a_filesystem(global, survey));
    warnings.extend(marks::doubts(config, survey).into_iter().map(|(at, message)| WarningDoc {
        path: inventory.filesystems[at.get()].mount.to_string_lossy().into_owned(),
        message,
        incomplete: false,
    }));
    let disks: Vec<_> = inventory
        .filesystems
        .iter()
        .zip(divided)
        .zip(marks)
        .enumerate()
        .map(|(at, ((facts, divided), marks))| Disk {
            mount: facts.mount.to_string_lossy().into_owned(),
            capacity_bytes: facts.capacity_bytes,
            used_bytes: facts.used_bytes,
            available_bytes: facts.available_bytes,
            used_percent: json::filesystem(facts).used_percent,
            inodes: facts.inodes,
            inodes_free: facts.inodes_free,
            parts: divided.parts,
            marks,
            planned: plans.on(&surveyed, at.into()),
        })
        .collect();
    let complete = survey.is_complete() && !tenants.findings.iter().any(|finding| finding.incomplete);
    let foreign = survey.sysroot.is_foreign();
    let sentences = diagnosis::verdict(&disks, &causes, complete, foreign);
    let Past { history, series, unread } = past(global, own)?;
    let history_complete = unread.is_none();
    let inside = |path: &Path| survey.sysroot.display(path).to_string_lossy().into_owned();
    let facts = ReportFacts {
        sysroot: global
            .request
            .sysroot
            .as_ref()
            .filter(|_| foreign)
            .map(|path| path.to_string_lossy().into_owned()),
        host: host(survey),
        complete,
        sentences,
        causes,
        disks,
        series,
        logs: logs(&tenants, &inside),
        pods: pods(&tenants, &inside),
        how: how(survey, &tenants, history.database.as_deref(), unread.as_deref()),
        history,
        history_complete,
        warnings,
    };
    let exit = match (surveyed.exit(), complete && history_complete) {
        (Exit::Done, false) => Exit::Incomplete,
        (exit, _) => exit,
    };
    let places = survey.places.iter().flatten();
    let besides = places.flat_map(|places| places.runroots.iter().chain(&places.imagestores));
    let besides = besides.map(|root| root.to_path_buf()).collect();
    Ok((json::report(json::scan(&surveyed), facts, &inside), exit, besides))
}

/// A sysroot that is only a directory shares its filesystem with whatever else is on it.
fn part_of_a_filesystem(global: &Global, survey: &Survey) -> Option<WarningDoc> {
    let sysroot = global.request.sysroot.as_deref().filter(|_| survey.sysroot.is_foreign())?;
    let top = survey.sysroot.resolve(Path::new("/")).ok()?;
    let filesystem = tenants::filesystem_of(survey, &top)?;
    let mount = &survey.inventory.filesystems[filesystem.get()].mount;
    (*mount != top).then(|| WarningDoc {
        path: sysroot.to_string_lossy().into_owned(),
        message: format!(
            "nothing is mounted there: figures of the filesystem are those of {}, which has other users",
            mount.display()
        ),
        incomplete: false,
    })
}

/// Where the kubelet keeps what, as far as it is known.
fn places(config: &Config, survey: &Survey) -> Places {
    let mut places = Places::default();
    if let Some(logs) = &config.kubelet.pod_logs_dir {
        places.pod_logs.clone_from(logs);
    }
    if let Some(links) = &config.kubelet.container_logs_dir {
        places.container_logs.clone_from(links);
    }
    if let Some(root) = &config.kubelet.root_dir
        && !places.roots.contains(root)
    {
        places.roots.push(root.clone());
    }
    match Processes::read_with_kubelet() {
        Ok(processes) if !survey.sysroot.is_foreign() => places.with_running(&processes),
        _ => places,
    }
}

/// What the records tell of the past.
#[derive(Debug)]
struct Past {
    history: HistoryDoc,
    series: Vec<SeriesDoc>,
    /// Where there are records that cannot be read: which, and why.
    unread: Option<String>,
}

/// Reads the past. A report whose records cannot be read comes without one, and says so.
fn past(global: &Global, own: &ReportArgs) -> Result<Past, Error> {
    let now = Timestamp::now();
    let since = Some(own.since.unwrap_or(Since::Ago(WINDOW)).at(now));
    let (open, unsaved, unread) = Database::open_with_waiting_for_report(&global.request)?;
    let origin = |open: &Database| json::Origin {
        now,
        database: open.path(),
        complete: !open.unreadable,
        since,
        unsaved: unsaved.clone(),
    };
    let query = runs::Query { since, limit: RUNS, kind: None, quiet: false };
    let (found, quiet, series, acts) = open.read(|connection| {
        Ok((
            runs::list(connection, &query)?,
            runs::quiet(connection, since)?,
            usage::series(connection, since, None)?,
            runs::acts(connection, since)?,
        ))
    })?;
    let history = json::history(origin(&open), found, &quiet);
    let series = json::history_usage(origin(&open), series, acts).filesystems;
    let series = series.into_iter().filter(|one| !one.points.is_empty()).collect();
    let unread = unread.map(|why| format!("{} ({why})", open.place.dir.display()));
    Ok(Past { history, series, unread })
}

/// The node's name, as its disk says.
fn host(survey: &Survey) -> Option<String> {
    let text = survey.sysroot.read(Path::new("/etc/hostname"), NAME_BYTES).ok()?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
    Some(line.to_owned())
}

fn logs(tenants: &Tenants, inside: &dyn Fn(&Path) -> String) -> Vec<LogDoc> {
    let log = |log: &tenants::BigFile| LogDoc {
        path: inside(&log.path),
        pod: log.pod.clone(),
        container: log.container.clone(),
        bytes: log.bytes,
    };
    tenants.logs.iter().filter(|log| log.bytes > 0).map(log).collect()
}

fn pods(tenants: &Tenants, inside: &dyn Fn(&Path) -> String) -> Vec<PodDoc> {
    let pod = |pod: &tenants::PodShare| PodDoc {
        pod: pod.pod.clone(),
        kind: if pod.kind == TenantKind::PodLogs { "logs" } else { "volumes" },
        path: inside(&pod.path),
        bytes: pod.bytes,
    };
    tenants.pods.iter().filter(|pod| pod.bytes > 0).map(pod).collect()
}

fn warning(finding: &crate::model::Finding) -> WarningDoc {
    WarningDoc {
        path: finding.path.to_string_lossy().into_owned(),
        message: finding.message.clone(),
        incomplete: finding.incomplete,
    }
}

fn how(survey: &Survey, tenants: &Tenants, database: Option<&str>, unread: Option<&str>) -> Vec<String> {
    let effort = &survey.effort;
    let mut how = vec![
        format!(
            "Stores: {} inodes examined; sizes of {} layers measured now, of {} taken from an earlier scan that \
             proved them unchanged.",
            effort.inodes, effort.measured_layers, effort.cached_layers
        ),
        format!(
            "Other users of the same filesystems: {} inodes examined, no mount crossed, each hard link once; what \
             a store shares with them counts with the store.",
            tenants.inodes
        ),
        "Bytes are allocated ones (512-byte blocks in use). The parts of a filesystem add up to what it says is \
         used; `other` is the rest: small directories, what could not be read, and the filesystem's own."
            .into(),
    ];
    how.push(match (database, unread) {
        (_, Some(unread)) => format!(
            "The records in {unread} cannot be read: ages are from the disk, and there is no history here."
        ),
        (Some(database), None) => format!("History, ages and uses are from {database}."),
        (None, None) => {
            "There are no records of layersweep: ages are from the disk, and there is no history.".into()
        }
    });
    if survey.sysroot.is_foreign() {
        how.push("The disk is that of a node that does not run; nothing on it was written.".into());
    }
    how
}
