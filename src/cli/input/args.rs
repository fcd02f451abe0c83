//! Arguments of all commands, as clap parses them.

mod deleting;
mod metrics;

use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub(crate) use deleting::{GcArgs, PolicyFlags, RmArgs, SweepArgs};
pub(crate) use metrics::MetricsArgs;

use crate::cli::input::filter::{Filter, SortKey};
use crate::cli::input::values::{Since, one_of};
use crate::config::{Flag, Via};
use crate::history::runs::TargetKind;
use crate::model::refs::GroupBy;
use crate::sys::ioprio::IoPriority;

/// Shows exactly how many bytes each container image holds on this node's disk.
#[derive(Debug, Parser)]
#[command(name = "layersweep", version, max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    pub global: GlobalFlags,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that are allowed before and after every command.
#[derive(Clone, Debug, ClapArgs)]
pub struct GlobalFlags {
    /// Read this containers/storage graphroot and no other store; may be repeated
    #[arg(long, global = true, value_name = "DIR", help_heading = "Stores")]
    pub graphroot: Vec<PathBuf>,

    /// The runroot that belongs to the graphroot; with several, once for each --graphroot, in order
    #[arg(long, global = true, value_name = "DIR", help_heading = "Stores")]
    pub runroot: Vec<PathBuf>,

    /// Read this containerd root and no other store; may be repeated
    #[arg(long, global = true, value_name = "DIR", help_heading = "Stores")]
    pub containerd_root: Vec<PathBuf>,

    /// Read Docker's own store (driver overlay2) in this data root and no other store; may be repeated
    #[arg(long, global = true, value_name = "DIR", help_heading = "Stores")]
    pub docker_root: Vec<PathBuf>,

    /// CRI socket of the runtime that deletes images. Without it, nothing is deleted through a runtime from stores
    /// that --graphroot or --containerd-root names
    #[arg(long, global = true, value_name = "URI", help_heading = "Stores")]
    pub cri_endpoint: Option<String>,

    /// Read the disk of another machine that is mounted here; nothing is written to it
    #[arg(long, global = true, value_name = "DIR", help_heading = "Stores")]
    pub sysroot: Option<PathBuf>,

    /// Read only this configuration file [default: /usr/lib/layersweep/layersweep.toml,
    /// /etc/layersweep/layersweep.toml, /etc/layersweep/layersweep.toml.d/*.toml]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Configuration and records")]
    pub config: Option<PathBuf>,

    /// Directory of layersweep's records [default: LAYERSWEEP_STATE_DIR, else /var/lib/layersweep]; with
    /// --sysroot, a path inside it, and the variable is ignored
    #[arg(long, global = true, value_name = "DIR", help_heading = "Configuration and records")]
    pub state_dir: Option<PathBuf>,

    /// Output format
    #[arg(long, global = true, value_enum, default_value_t = Format::Table, help_heading = "Output")]
    pub format: Format,

    /// When to use bold and colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, help_heading = "Output")]
    pub color: Color,

    /// Show whole names, all names of an image and all columns, even if lines are wider than the terminal; in a
    /// pipe or file, also columns wider than 60
    #[arg(long, global = true, help_heading = "Output")]
    pub no_trunc: bool,

    /// Do not show progress (shown only on a terminal)
    #[arg(long, global = true, help_heading = "Output")]
    pub no_progress: bool,

    /// Print results alone, without notes, footers and progress: ids (images, layers), patterns (pin list),
    /// problems (scan, doctor, config check); gc and sweep print nothing if there is nothing to do
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,

    /// Delete without asking; required where no terminal can answer, for example in a timer
    #[arg(short, long, global = true, help_heading = "Deleting")]
    pub yes: bool,

    /// Log to stderr; repeat for more detail
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,

    /// Measure everything; use no size from an earlier scan
    #[arg(long, global = true, help_heading = "Measuring")]
    pub full: bool,

    /// Number of threads that read directories [default: chosen for a disk whose data is not in memory]
    #[arg(long, global = true, value_name = "N", help_heading = "Measuring", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// I/O priority of disk reads, for busy nodes
    #[arg(long, global = true, value_enum, default_value_t = Priority::Normal, help_heading = "Measuring")]
    pub io_priority: Priority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables and text
    Table,
    /// One JSON document, see docs/schema
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Priority {
    /// Same as other programs
    Normal,
    /// Below programs of normal priority
    Low,
    /// Only when the disk is otherwise idle
    Idle,
}

impl From<Priority> for IoPriority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Normal => Self::Normal,
            Priority::Low => Self::BestEffort,
            Priority::Idle => Self::Idle,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure every store and list its contents
    Scan(ScanArgs),
    /// Show what uses the disk, and how much can be freed
    Usage(UsageArgs),
    /// List the images with their total, shared, exclusive and fair bytes
    Images(ImagesArgs),
    /// List the layers, or show them as a tree
    Layers(LayersArgs),
    /// Explain one image, layer, container or path
    Explain(ExplainArgs),
    /// Show bytes that no container can see: files that upper layers hide, and files that layers have in common
    Waste(WasteArgs),
    /// Walk through what fills the disk on a full screen, mark images, and see what they free together
    Explore(ExploreArgs),
    /// Tell whether images that are to come fit on the disk, and what gc would delete for them
    Fits(FitsArgs),
    /// List leaks and inconsistencies; delete or repair them if asked
    #[command(after_help = SWEEP_HELP)]
    Sweep(SweepArgs),
    /// Delete unused images by age and until enough is free, measuring each deletion
    Gc(GcArgs),
    /// Delete these images, unless they are in use or protected
    Rm(RmArgs),
    /// Show past runs and what they deleted, or how full the filesystems were
    History(HistoryArgs),
    /// Tell what thresholds and ages would have done to the past of this node, or of a fleet
    #[command(after_help = REPLAY_HELP)]
    Replay(ReplayArgs),
    /// Diagnose a disk: how full it is, what fills it, what can be done
    #[command(after_help = REPORT_HELP)]
    Report(ReportArgs),
    /// Print metrics for Prometheus, write them to a file, or serve them
    Metrics(MetricsArgs),
    /// Show what was added, removed or resized between two scans
    #[command(after_help = DIFF_HELP)]
    Diff(DiffArgs),
    /// Manage the keep-list of images that are never deleted
    Pin(PinArgs),
    /// Check the configuration, or show the effective values and their origins
    Config(ConfigArgs),
    /// Check stores, runtime, the kubelet's thresholds and layersweep's own state
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// Print shell completions
    Completions(CompletionsArgs),
    /// Write the man pages, one for each command, to a directory
    Man(ManArgs),
}

#[derive(Debug, ClapArgs)]
pub struct ScanArgs {
    /// Do not record this scan
    #[arg(long)]
    pub no_record: bool,

    /// Also create the emergency reserve file for a full disk if it is missing: in the state directory, or
    /// beside the store if that is on another filesystem
    #[arg(long, conflicts_with = "no_record")]
    pub reserve: bool,

    /// Only record which images containers use now: measure nothing and print nothing (for layersweep-uses.path)
    #[arg(long, conflicts_with_all = ["no_record", "reserve"])]
    pub uses: bool,
}

const GROUPS: &[GroupBy] =
    &[GroupBy::Repository, GroupBy::Namespace, GroupBy::Owner, GroupBy::Registry, GroupBy::Container];

#[derive(Debug, ClapArgs)]
pub struct UsageArgs {
    /// Show the fair shares of images and containers by group
    #[arg(long, value_name = "GROUP", value_parser = one_of(GROUPS, group_help))]
    pub by: Option<GroupBy>,

    /// Show what grew since the kept scan of this time instead, the largest growth first; by container if no
    /// group is named
    #[arg(long, value_name = "DURATION|TIME", value_parser = Since::parse)]
    pub since: Option<Since>,

    /// Give every row a line: without it, those below 1 MiB and below 0.1 % are one
    #[arg(long)]
    pub all: bool,
}

fn group_help(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Repository => "Repositories of the images' names",
        GroupBy::Namespace => "Namespaces of the pods that use them",
        GroupBy::Owner => "Programs that made the containers that use them",
        GroupBy::Registry => "Registries of the images' names",
        GroupBy::Container => "Containers that use them",
    }
}

#[derive(Debug, ClapArgs)]
pub struct ImagesArgs {
    /// Sort key: largest, newest or alphabetically first on top
    #[arg(long, value_enum, value_name = "KEY", default_value_t = SortKey::Exclusive)]
    pub sort: SortKey,

    /// Only images that match; may be repeated, all must match. in-use=BOOL, pinned=BOOL,
    /// dangling=BOOL, name=GLOB (on the full reference), store=DIR, owner=OWNER,
    /// older-than=DURATION, newer-than=DURATION, larger-than=SIZE
    #[arg(long, value_name = "KEY=VALUE")]
    pub filter: Vec<Filter>,
}

#[derive(Debug, ClapArgs)]
pub struct LayersArgs {
    /// Show a tree: each layer below its parent
    #[arg(long)]
    pub tree: bool,
}

#[derive(Debug, ClapArgs)]
pub struct ExplainArgs {
    /// An image (name, digest, id or the start of one; of one that is gone, the records tell
    /// what happened), a layer or container (id or the start of one, container name), or a
    /// path: the owners of the bytes at and below it
    pub reference: String,

    /// Give every owner of bytes below a path a line: without it, those below 1 MiB and below 0.1 % are one
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, ClapArgs)]
pub struct WasteArgs {
    /// Only this image, with its layers: a name, digest, id or the start of one
    pub image: Option<String>,

    /// List the files that the image does not show, the largest first
    #[arg(long, requires = "image")]
    pub files: bool,

    /// List all of these files (at most 100,000): without it, the largest 50
    #[arg(long, requires = "files")]
    pub all: bool,
}

#[derive(Debug, ClapArgs)]
pub struct ExploreArgs {
    /// Show a saved scan instead: a file that `scan --format json` or `report --format json` has written.
    /// Nothing is deleted
    #[arg(value_name = "FILE")]
    pub file: Option<String>,

    /// Delete nothing, whatever is typed
    #[arg(long)]
    pub read_only: bool,
}

#[derive(Debug, ClapArgs)]
pub struct FitsArgs {
    /// Images: references, or files with manifests (skopeo inspect --raw), references (one a
    /// line), a PinnedImageSet or an ImageStream; `-` reads such a file from standard input.
    /// No registry is contacted
    #[arg(required = true, value_name = "REF|FILE")]
    pub images: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub struct DoctorArgs {
    /// Print ages and thresholds for this node instead, with reasons from the replay of its own past: drop-ins for
    /// layersweep and the kubelet
    #[arg(long)]
    pub suggest: bool,
}

const DOCTOR_HELP: &str = "\
Read-only: changes nothing, not even the state directory. With --sysroot it checks that disk, and contacts no socket. Exits with 1 if there is an error, else with 3 if something could not be read, else with 0: warnings and notes are not failures. -q prints only errors and warnings.";

const SWEEP_HELP: &str = "\
Changes nothing without --delete or --repair. Each deletion is proven safe again just before it, under the store's locks, and measured after it; runtimes may keep running. Nothing is deleted from containerd stores: containerd collects its own garbage, and a finding that it does not collect says what to do. docs/leaks.md describes every class.";

impl Command {
    /// Returns true if the command writes records.
    pub fn records(&self) -> bool {
        match self {
            Self::Scan(args) => !args.no_record,
            Self::Gc(args) => !args.dry_run,
            Self::Rm(args) => !args.dry_run,
            Self::Sweep(args) => (args.delete || !args.repair.is_empty()) && !args.dry_run,
            Self::Pin(args) => !matches!(args.command, PinCommand::List),
            _ => false,
        }
    }

    /// Returns true if the command must not run with the defaults in place of an invalid configuration: it deletes, or
    /// changes the keep-list of the configured state directory.
    pub fn needs_configuration(&self) -> bool {
        match self {
            Self::Gc(_) | Self::Rm(_) => true,
            Self::Sweep(args) => args.delete || !args.repair.is_empty(),
            Self::Pin(args) => !matches!(args.command, PinCommand::List),
            _ => false,
        }
    }

    /// Returns the flags of the command that set keys of the configuration.
    pub fn settings(&self, global: &GlobalFlags) -> Vec<Flag> {
        let mut flags = match self {
            Self::Gc(args) => {
                let mut flags = args.policy_flags.settings();
                let inodes_high = deleting::percent(args.inodes_high.as_ref());
                flags.push(("images.inodes_high_percent", "--inodes-high", inodes_high));
                flags.push(("images.via", "--via", args.via.map(Via::as_str)));
                flags
            }
            Self::Replay(args) => args.policy_flags.settings(),
            Self::Sweep(args) => vec![("leaks.min_age", "--min-age", args.min_age.as_deref())],
            Self::Rm(args) => vec![
                ("images.min_age", "--min-age", args.min_age.as_deref()),
                // `rm` deletes nothing by age: its minimum age contradicts no maximum age.
                ("images.max_age", "--min-age", args.min_age.as_ref().map(|_| "off")),
                ("images.via", "--via", args.via.map(Via::as_str)),
            ],
            _ => Vec::new(),
        };
        flags.push(("stores.cri_endpoint", "--cri-endpoint", global.cri_endpoint.as_deref()));
        let given = flags.into_iter();
        given.filter_map(|(key, flag, text)| Some(Flag { key, flag, text: text?.to_owned() })).collect()
    }
}

const DELETED_KINDS: &[TargetKind] = {
    use TargetKind::{Container, Image, Leak, Log, Sandbox};
    &[Image, Container, Sandbox, Log, Leak]
};

#[derive(Debug, ClapArgs)]
pub struct HistoryArgs {
    #[command(subcommand)]
    pub command: Option<HistoryCommand>,

    /// Show what happened to this image, also if it is gone: a name it has or had, a digest, an id or
    /// the start of one
    #[arg(conflicts_with_all = ["kind", "all", "scans", "repull"])]
    pub image: Option<String>,

    /// Only runs since this time: 36h, 7d, or a time like 2026-11-21 or
    /// 2026-11-21T13:00 (local unless it has an offset)
    #[arg(long, value_name = "DURATION|TIME", value_parser = Since::parse)]
    pub since: Option<Since>,

    /// Show the newest N runs; 0 for all [default: 50]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,

    /// Only deletions of this kind
    #[arg(long, value_parser = one_of(DELETED_KINDS, |_| ""))]
    pub kind: Option<TargetKind>,

    /// Include scans, and runs of gc with nothing to do
    #[arg(long)]
    pub all: bool,

    /// List the scans that `layersweep diff` can compare, instead of runs
    #[arg(long, conflicts_with_all = ["limit", "kind", "all", "repull"])]
    pub scans: bool,

    /// Print what this run deleted as references to pull, one a line, by digest where it is known. RUN is the
    /// id of a run, or `last`: the last that deleted images. If it deleted in several stores, name one, for
    /// example with --graphroot. Exits with 3 if an image cannot be pulled again
    #[arg(long, value_name = "RUN", conflicts_with_all = ["limit", "kind", "all", "since"])]
    pub repull: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum HistoryCommand {
    /// Show how full the filesystems were: a chart on a terminal, else a table
    Usage(HistoryUsageArgs),
    /// Write the past of this node for `layersweep replay`: a JSON object a line
    Export(HistoryExportArgs),
}

#[derive(Debug, ClapArgs)]
pub struct HistoryExportArgs {
    /// Only the past since this time: 36h, 100w, or a time like 2026-11-21 [default: 30d]
    #[arg(long, value_name = "DURATION|TIME", value_parser = Since::parse)]
    pub since: Option<Since>,

    /// Replace names and ids by hashes, the same on every node; leave out the name of the node
    #[arg(long)]
    pub hash_names: bool,
}

const REPLAY_HELP: &str = "\
Deletes nothing. Without FILE it plays the records of this node; with files, the traces that `history export` wrote on \
other nodes. The planner and the rules are those of gc, and so are the flags. What a policy deleted and the past wanted \
again is pulled again and counted. Compared are the deletions on record, the kubelet's algorithm with the same settings, and \
a policy that knows the future: no choice of images does much better.";

#[derive(Debug, ClapArgs)]
pub struct ReplayArgs {
    /// Files with traces of any number of nodes, from `history export`; `-` is standard input [default: the records of
    /// this node]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) policy_flags: PolicyFlags,

    /// Time between two runs of gc [default: 5m, as the packaged timer]
    #[arg(long, value_name = "DURATION", value_parser = crate::cli::input::values::duration)]
    pub every: Option<jiff::SignedDuration>,

    /// Only the past of this node since this time: 36h, 100w, or a time like 2026-11-21 [default: 30d]
    #[arg(long, value_name = "DURATION|TIME", value_parser = Since::parse, conflicts_with = "files")]
    pub since: Option<Since>,

    /// Replay once for each value: max-age=1d,3d,7d,off; also min-age, high, low and min-free
    #[arg(long, value_name = "SETTING=VALUE,…")]
    pub vary: Option<String>,

    /// Write the result as one self-contained HTML page, with --vary with curves; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct HistoryUsageArgs {
    /// Only readings since this time: 36h, 100w, or a time like 2026-11-21 [default: 7d]
    #[arg(long, value_name = "DURATION|TIME", value_parser = Since::parse)]
    pub since: Option<Since>,

    /// Only the filesystem that is mounted here, or that held this path
    #[arg(long, value_name = "MOUNT")]
    pub filesystem: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub struct CompletionsArgs {
    /// Shell that reads the completions
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, ClapArgs)]
pub struct ManArgs {
    /// Output directory; created if it does not exist
    pub dir: PathBuf,
}

const REPORT_HELP: &str = "\
Measures the stores and all other users of their filesystems, and reads layersweep's records and the \
    kubelet's settings. Changes nothing, and records nothing. With --sysroot DIR it reports on the disk \
    mounted there, from \
that disk's own records: see docs/post-mortem.md.";

#[derive(Debug, ClapArgs)]
pub struct ReportArgs {
    /// Write the report as one self-contained HTML page; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Instead of this node, add up the documents of many nodes: output of `scan --format json` or
    /// `report --format json`, in a file each or many in one; `-` is standard input
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "since")]
    pub merge: Vec<PathBuf>,

    /// Only readings and runs since this time: 36h, 7d, or a time like 2026-11-21 [default: 30d]
    #[arg(long, value_name = "DURATION|TIME", value_parser = Since::parse)]
    pub since: Option<Since>,
}

const DIFF_HELP: &str = "\
A scan is named by
  last, last~1             the newest kept scan, the one before it
  20261120T100000Z-12ab3c  its id or the start of it: `history --scans` has them
  2026-11-20T10:00, 36h    the last one before that time
  now                      the current state: scans, and records nothing
  FILE, -                  output of `scan --format json`; a file called last is ./last
The last two scans are kept; of older ones the oldest of each ten minutes for two hours, the newest of each \
hour for a day, the newest of each day for 30. If a scan reads only named stores (--graphroot), the other stores count as unchanged. CHANGE is bytes on the \
disk: an image whose layers another image still uses frees nothing.";

#[derive(Debug, ClapArgs)]
pub struct DiffArgs {
    /// The earlier scan [default: last~1]
    #[arg(value_name = "BEFORE")]
    pub before: Option<String>,

    /// The later scan, or `now` [default: last]
    #[arg(value_name = "AFTER")]
    pub after: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report each problem with its file and line, in one line; exits with 2 if there is one
    Check,
    /// Show the effective value of every key, and the file and line, or the flag, that sets it
    Show,
}

const PATTERNS: &str = "\
A pattern is a glob (*, ?, [a-z], {a,b}; * crosses /) and keeps an image if it matches
  one of its names in full        docker.io/library/nginx:1.27, docker.io/library/nginx:*, quay.io/*
  the repository of a name        docker.io/library/nginx: all its tags
  one of its manifest digests     sha256:<digits>, docker.io/library/nginx@sha256:<digits>
  its id                          <digits>, sha256:<digits>; the first 12 digits are enough
Names are matched as `layersweep images` shows them, case-sensitively. Quote patterns, or the shell expands them.";

#[derive(Debug, ClapArgs)]
pub struct PinArgs {
    #[command(subcommand)]
    pub command: PinCommand,
}

#[derive(Debug, Subcommand)]
pub enum PinCommand {
    /// Keep the images that match; adding a pattern twice is not an error
    #[command(after_help = PATTERNS)]
    Add {
        /// Patterns, see below
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<String>,

        /// Reason, shown in the list
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Remove patterns from the keep-list
    #[command(visible_alias = "rm")]
    Remove {
        /// Patterns as `layersweep pin list` shows them
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<String>,
    },
    /// Show the keep-list
    List,
}
