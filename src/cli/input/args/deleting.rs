//! Arguments of the commands that delete.

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::input::values::one_of;
use crate::config::Via;
use crate::model::{LeakClass, Recipe};
use crate::policy::{DeletionOrder, PolicyKind};
use crate::services::gc_request::Only;

#[derive(Debug, ClapArgs)]
pub(crate) struct SweepArgs {
    /// Only findings of this class; may be repeated
    #[arg(long, value_name = "CLASS", hide_possible_values = true, value_parser = class_of(|_| true))]
    pub(crate) class: Vec<LeakClass>,

    /// Skip findings younger than this [default: 24h]
    #[arg(long, value_name = "DURATION")]
    pub(crate) min_age: Option<String>,

    /// Delete what is proven safe to delete (verdict `reclaim`)
    #[arg(long)]
    pub(crate) delete: bool,

    /// Repair findings of this class (verdict `repair`: the driver's short names of layers); may be
    /// repeated
    #[arg(long, value_name = "CLASS", value_parser = class_of(is_repairable))]
    pub(crate) repair: Vec<LeakClass>,

    /// Show what --delete (and --repair) would do, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Returns true if layersweep repairs leaks of this class by editing the store.
fn is_repairable(class: LeakClass) -> bool {
    class.recipe() == Some(Recipe::RepairLink)
}

/// Returns a parser for some of the classes; its errors list their names.
fn class_of(is_allowed: fn(LeakClass) -> bool) -> impl TypedValueParser<Value = LeakClass> {
    let names = LeakClass::ALL.iter().filter(|class| is_allowed(**class)).map(|class| class.as_str());
    PossibleValuesParser::new(names).try_map(|name| LeakClass::find(&name).ok_or("no such class"))
}

/// Flags that override thresholds, ages and the order of the configuration.
#[derive(Debug, ClapArgs)]
pub(crate) struct PolicyFlags {
    /// Start deleting at this usage [default: 75]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) high: Option<String>,

    /// Stop at this usage [default: 70]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) low: Option<String>,

    /// Start deleting if less than this is available, at any usage [default: off]
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_free: Option<String>,

    /// Keep images first detected less than this ago [default: 2m]
    #[arg(long, value_name = "DURATION")]
    pub(crate) min_age: Option<String>,

    /// Delete images unused for longer than this [default: off]
    #[arg(long, value_name = "DURATION")]
    pub(crate) max_age: Option<String>,

    /// Order in which images are deleted for space [default: idle]
    #[arg(long, value_name = "ORDER", value_parser = one_of(DeletionOrder::ALL, order_help))]
    pub(crate) order: Option<DeletionOrder>,
}

impl PolicyFlags {
    /// Returns the keys of the configuration that the flags set, with their texts.
    pub(crate) fn settings(&self) -> Vec<(&'static str, &'static str, Option<&str>)> {
        vec![
            ("images.high_percent", "--high", percent(self.high.as_ref())),
            ("images.low_percent", "--low", percent(self.low.as_ref())),
            ("images.min_free", "--min-free", self.min_free.as_deref()),
            ("images.min_age", "--min-age", self.min_age.as_deref()),
            ("images.max_age", "--max-age", self.max_age.as_deref()),
            ("images.order", "--order", self.order.map(DeletionOrder::as_str)),
        ]
    }
}

/// Removes the `%` of a percentage.
pub(super) fn percent(text: Option<&String>) -> Option<&str> {
    text.map(|text| text.strip_suffix('%').unwrap_or(text))
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GcArgs {
    /// Show what would be deleted, in which order and why, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) policy_flags: PolicyFlags,

    /// Start deleting at this usage of inodes; stop 5 percentage points lower [default: 90]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) inodes_high: Option<String>,

    /// Collect only these kinds, regardless of the configuration [default: images, and what is enabled]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = one_of(Only::ALL, kind_help))]
    pub(crate) only: Vec<Only>,

    /// Rules that decide: layersweep's, or with --dry-run the kubelet's [default: exact]
    #[arg(long, value_name = "POLICY", value_parser = one_of(PolicyKind::ALL, policy_help))]
    pub(crate) policy: Option<PolicyKind>,

    /// With --dry-run: show the kubelet and both orders side by side
    #[arg(long)]
    pub(crate) compare: bool,

    /// Program that deletes the images [default: auto]
    #[arg(long, value_name = "REMOVER", value_parser = one_of(Via::ALL, remover_help))]
    pub(crate) via: Option<Via>,

    /// With --via direct: delete even if the runtime that owns the store is running. The store's locks keep
    /// it consistent, but a container that is just being created may lose its image
    #[arg(long)]
    pub(crate) while_runtime_runs: bool,
}

fn kind_help(kind: Only) -> &'static str {
    match kind {
        Only::Images => "Images",
        Only::Containers => "Dead containers, and sandboxes without containers",
        Only::Logs => "Logs of deleted pods, and dangling links to logs",
        Only::Leaks => "Leaks that are proven safe to delete",
    }
}

fn remover_help(via: Via) -> &'static str {
    match via {
        Via::Auto => {
            "Each store in its way: the runtime that owns it; layersweep itself where none does, as in podman's"
        }
        Via::Cri => "The container runtime, through its CRI socket",
        Via::Direct => "layersweep itself, in the graphroot: when no runtime can, for example on a full disk",
    }
}

fn order_help(order: DeletionOrder) -> &'static str {
    match order {
        DeletionOrder::Idle => "Longest idle first",
        DeletionOrder::Cheapest => "The images that are expected to cost least to pull again",
    }
}

fn policy_help(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Exact => "By measured space, in the order of --order",
        PolicyKind::Kubelet => "The kubelet's algorithm, side by side with exact; only with --dry-run",
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RmArgs {
    /// Images: names, digests, ids or the start of one. An image with other names is deleted by id or digest,
    /// or with --all-tags
    #[arg(required_unless_present = "file", value_name = "REF")]
    pub(crate) references: Vec<String>,

    /// Delete the images of this list, too: a reference, whole digest or whole id a line, # begins a comment. Those
    /// that are not on this node are skipped. `-` reads standard input; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<String>,

    /// Delete the named images with all their names
    #[arg(long)]
    pub(crate) all_tags: bool,

    /// Show what would be deleted, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Keep images first detected less than this ago [default: 2m]
    #[arg(long, value_name = "DURATION")]
    pub(crate) min_age: Option<String>,

    /// Program that deletes the images [default: auto]
    #[arg(long, value_name = "REMOVER", value_parser = one_of(Via::ALL, remover_help))]
    pub(crate) via: Option<Via>,

    /// With --via direct: delete even if the runtime that owns the store is running. The store's locks keep
    /// it consistent, but a container that is just being created may lose its image
    #[arg(long)]
    pub(crate) while_runtime_runs: bool,
}
