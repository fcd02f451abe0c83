//! All settings with their defaults, checked against each other.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::SignedDuration;

use super::fragment::{Bytes, Fragment, Percent, Textfile, Value, Via};
use super::problem::{ConfigOrigin, ConfigProblem};
use super::source::{RULES, Sources};
use super::values;
use crate::history::figures::{MAX_NAMESPACES, MAX_PLACES};
use crate::model::space::INODES_HIGH_PERCENT;
use crate::node::places::ConfiguredPlaces;
use crate::policy::containers;
use crate::policy::image_rules::ImageRule;
use crate::policy::{FreeFloor, Policy, Protect, Targets, Thresholds};

pub const STATE_DIR: &str = "/var/lib/layersweep";
/// Below the kubelet's own thresholds (85 and 80 by default, eviction at 85), so that layersweep acts before
/// the kubelet does.
const HIGH_PERCENT: u8 = 75;
const LOW_PERCENT: u8 = 70;
/// Default distance, in percentage points, of the low threshold below a configured high threshold.
const DISTANCE: u8 = 5;
const MIN_AGE: SignedDuration = SignedDuration::from_mins(2);
const LEAK_MIN_AGE: SignedDuration = SignedDuration::from_hours(24);
/// Default number of places of a filesystem with metrics of their own.
const METRIC_PLACES: usize = 5;
const STATIC_PODS: &str = "/etc/kubernetes/manifests";

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub state_dir: PathBuf,
    /// The stores to read. If the configuration names no store, discovery finds them.
    pub stores: Stores,
    pub via: Via,
    /// Settings for images. The caller adds the images of static pods and sandboxes.
    pub images: Policy,
    /// Directory of the static pod manifests; `None`: their images are not protected.
    pub static_pods: Option<PathBuf>,
    pub references_file: Option<PathBuf>,
    pub containers: Containers,
    pub kubelet: ConfiguredPlaces,
    pub leaks: Leaks,
    /// Destination of the metrics, written at the end of each command that changes them.
    pub textfile: Textfile,
    /// Maximum number of namespaces with a metric of their own.
    pub metric_namespaces: usize,
    /// Maximum number of places of a filesystem with a metric of their own.
    pub metric_places: usize,
    /// All processes that can use the stores are in this PID namespace, although it is not the initial one:
    /// the node is itself a container.
    pub trust_pid_namespace: bool,
    pub files: Vec<PathBuf>,
    /// Origins of the keys that a file or flag sets.
    pub origins: BTreeMap<String, Vec<ConfigOrigin>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stores {
    pub graphroots: Vec<PathBuf>,
    /// Runroots of the graphroots, in their order.
    pub runroots: Vec<PathBuf>,
    pub containerd_roots: Vec<PathBuf>,
    pub docker_roots: Vec<PathBuf>,
    /// The runtime's socket, for example `unix:///run/crio/crio.sock`.
    pub cri_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Containers {
    pub enabled: bool,
    pub logs: bool,
    pub policy: containers::ContainerPolicy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaks {
    pub delete: bool,
    pub min_age: SignedDuration,
}

impl Config {
    /// Fills in the defaults. Contradictions are added to the problems of `sources`; the result must then not
    /// be used.
    pub(super) fn of(sources: &mut Sources, files: Vec<PathBuf>) -> Self {
        check_rules(sources);
        let of_reading = sources.problems.len();
        let images = Policy {
            targets: targets(sources),
            min_age: sources.last(|set| set.images.min_age).unwrap_or(MIN_AGE),
            // 0 means off, as in the kubelet.
            max_age: sources.last(|set| set.images.max_age).flatten().filter(|age| !age.is_zero()),
            rules: rules(sources),
            order: sources.last(|set| set.images.order).unwrap_or_default(),
            protect: Protect {
                names: sources.all(|set| &set.protect.names),
                labels: sources.all(|set| &set.protect.labels),
                keep_newest: sources.last(|set| set.protect.keep_newest).unwrap_or_default(),
                not_repullable: sources.last(|set| set.protect.not_repullable).unwrap_or_default(),
                ..Protect::default()
            },
        };
        check_ages(sources, &images);
        let metric_namespaces = sources.last(|set| set.metrics.namespaces).unwrap_or_default();
        if metric_namespaces > MAX_NAMESPACES {
            let message = format!("{metric_namespaces} is more than {MAX_NAMESPACES}");
            sources.wrong("metrics.namespaces", message, String::new());
        }
        let metric_places = sources.last(|set| set.metrics.places).unwrap_or(METRIC_PLACES);
        if metric_places > MAX_PLACES {
            let message = format!("{metric_places} is more than {MAX_PLACES}");
            sources.wrong("metrics.places", message, String::new());
        }
        // A value that could not be read contradicts nothing: the default in its place does.
        let mut read = sources.problems[..of_reading].iter();
        if read.any(|problem| matches!(problem.origin, ConfigOrigin::Flag(_))) {
            sources.problems.truncate(of_reading);
        }
        let default_static_pods = Some(PathBuf::from(STATIC_PODS));
        Self {
            state_dir: sources.last(|set| set.state_dir.clone()).unwrap_or_else(|| STATE_DIR.into()),
            stores: Stores {
                graphroots: paths(sources, |set| set.stores.graphroot.clone()),
                runroots: paths(sources, |set| set.stores.runroot.clone()),
                containerd_roots: paths(sources, |set| set.stores.containerd_root.clone()),
                docker_roots: paths(sources, |set| set.stores.docker_root.clone()),
                cri_endpoint: sources
                    .last(|set| set.stores.cri_endpoint.clone())
                    .map(|endpoint| endpoint.to_string()),
            },
            via: sources.last(|set| set.images.via).unwrap_or(Via::Auto),
            images,
            static_pods: sources.last(|set| set.protect.static_pods.clone()).unwrap_or(default_static_pods),
            references_file: sources.last(|set| set.protect.references_file.clone()).flatten(),
            containers: containers(sources),
            kubelet: ConfiguredPlaces {
                root_dir: sources.last(|set| set.kubelet.root_dir.clone()),
                pod_logs_dir: sources.last(|set| set.kubelet.pod_logs_dir.clone()),
                container_logs_dir: sources.last(|set| set.kubelet.container_logs_dir.clone()),
            },
            leaks: Leaks {
                delete: sources.last(|set| set.leaks.delete).unwrap_or_default(),
                min_age: sources.last(|set| set.leaks.min_age).unwrap_or(LEAK_MIN_AGE),
            },
            textfile: sources.last(|set| set.metrics.textfile.clone()).unwrap_or(Textfile::Auto),
            metric_namespaces,
            metric_places,
            trust_pid_namespace: sources.last(|set| set.trust_pid_namespace).unwrap_or_default(),
            files,
            origins: sources.origins(),
        }
    }
}

impl Config {
    /// Returns the rules for images that never decide, since an earlier rule matches all of their images.
    #[must_use]
    pub fn shadowed_rules(&self) -> Vec<ConfigProblem> {
        let rules = &self.images.rules;
        let origins = self.origins.get(RULES).into_iter().flatten();
        let shadowed = rules.iter().zip(origins).enumerate().filter_map(|(position, (rule, origin))| {
            let earlier = rules[..position].iter().find(|earlier| earlier.pattern.includes(&rule.pattern))?;
            let file = file_of(earlier);
            let (text, earlier_text) = (rule.pattern.text(), earlier.pattern.text());
            Some(ConfigProblem {
                origin: origin.clone(),
                field: RULES.to_owned(),
                message: format!(
                    "{text:?} never decides: {earlier_text:?} ({}) matches first",
                    earlier.place
                ),
                remedy: if rule.pattern == earlier.pattern {
                    "remove one of them".to_owned()
                } else if file == file_of(rule) {
                    "move it above".to_owned()
                } else {
                    format!("move it to {file}, above that rule")
                },
            })
        });
        shadowed.collect()
    }
}

fn file_of(rule: &ImageRule) -> &str {
    rule.place.rsplit_once(':').map_or("", |(file, _)| file)
}

fn paths(sources: &Sources, pick: impl Fn(&Fragment) -> Option<Vec<Value<PathBuf>>>) -> Vec<PathBuf> {
    let paths = sources.last_list(pick).unwrap_or_default();
    paths.into_iter().map(|path| path.0).collect()
}

/// Returns the rules for images, those of the last file first, so that a drop-in overrides. An age that a flag sets
/// overrides those of the rules.
fn rules(sources: &Sources) -> Vec<ImageRule> {
    let is_flag = |key| matches!(sources.origin(key), Some(ConfigOrigin::Flag(_)));
    let (min_by_flag, max_by_flag) = (is_flag("images.min_age"), is_flag("images.max_age"));
    let rules = sources.rules().map(|(rule, origin)| ImageRule {
        pattern: rule.pattern.0.clone(),
        min_age: rule.min_age.filter(|_| !min_by_flag).map(|age| age.0),
        max_age: rule.max_age.filter(|_| !max_by_flag).map(|age| age.0.filter(|age| !age.is_zero())),
        keep_newest: rule.keep_newest.map(|count| count.0),
        place: origin.short(),
    });
    rules.collect()
}

/// Reports rules that set no value. Rules of a file with other mistakes may have lost a value.
fn check_rules(sources: &mut Sources) {
    if !sources.problems.is_empty() {
        return;
    }
    let rules = sources
        .rules()
        .filter(|(rule, _)| rule.min_age.is_none() && rule.max_age.is_none() && rule.keep_newest.is_none());
    let problems: Vec<_> = rules
        .map(|(rule, origin)| ConfigProblem {
            origin: origin.clone(),
            field: RULES.to_owned(),
            message: format!("the rule for {:?} sets nothing", rule.pattern.0.text()),
            remedy: "set min_age, max_age or keep_newest in it, or remove it".into(),
        })
        .collect();
    sources.problems.extend(problems);
}

/// Reports a minimum age above the maximum age of the same images. The default minimum age is not reported: it applies
/// to any maximum age.
fn check_ages(sources: &mut Sources, policy: &Policy) {
    const KEYS: [&str; 2] = ["images.min_age", "images.max_age"];
    fn inherited(sources: &Sources, key: &str, age: SignedDuration) -> String {
        let origin = sources.origin(key).unwrap_or(ConfigOrigin::Default);
        format!("{key}, {} ({})", values::duration_text(age), origin.short())
    }
    let [min_key, max_key] = KEYS;
    let min_age = sources.origin(min_key).map(|_| policy.min_age);
    if let Some((min, max)) = min_age.zip(policy.max_age).filter(|(min, max)| min > max) {
        let message =
            format!("{} is longer than {}", values::duration_text(min), inherited(sources, max_key, max));
        sources.wrong(min_key, message, remedy_of_ages(KEYS, min, max));
    }
    let rules = policy.rules.iter().zip(sources.rules()).filter_map(|(rule, (_, origin))| {
        let min = rule.min_age.or(min_age)?;
        let max = rule.max_age.unwrap_or(policy.max_age)?;
        // A rule that inherits both ages repeats the contradiction of these.
        if min <= max || (rule.min_age.is_none() && rule.max_age.is_none()) {
            return None;
        }
        let min_text = match rule.min_age {
            Some(_) => format!("min_age, {}", values::duration_text(min)),
            None => inherited(sources, min_key, min),
        };
        let max_text = match rule.max_age {
            Some(_) => format!("max_age, {}", values::duration_text(max)),
            None => inherited(sources, max_key, max),
        };
        Some(ConfigProblem {
            origin: origin.clone(),
            field: RULES.to_owned(),
            message: format!("the rule for {:?}: {min_text}, is longer than {max_text}", rule.pattern.text()),
            remedy: format!("in this rule, {}", remedy_of_ages(["min_age", "max_age"], min, max)),
        })
    });
    let problems: Vec<_> = rules.collect();
    sources.problems.extend(problems);
}

fn remedy_of_ages([min_key, max_key]: [&str; 2], min: SignedDuration, max: SignedDuration) -> String {
    let [min, max] = [min, max].map(values::duration_text);
    format!("set {min_key} to {max} or less, or {max_key} to {min} or more")
}

fn containers(sources: &Sources) -> Containers {
    let enabled = sources.last(|set| set.containers.enabled).unwrap_or_default();
    let default = containers::ContainerPolicy::default();
    Containers {
        enabled,
        logs: sources.last(|set| set.containers.logs).unwrap_or(enabled),
        policy: containers::ContainerPolicy {
            min_age: sources.last(|set| set.containers.min_age).unwrap_or(default.min_age),
            max_per_unit: sources.last(|set| set.containers.max_per_unit).unwrap_or(default.max_per_unit),
            max_total: sources.last(|set| set.containers.max_total).unwrap_or(default.max_total),
        },
    }
}

fn targets(sources: &mut Sources) -> Targets {
    let high = sources.last(|set| set.images.high_percent).unwrap_or(Some(Percent(HIGH_PERCENT)));
    let low = sources.last(|set| set.images.low_percent);
    let used = thresholds(sources, ["images.high_percent", "images.low_percent"], high, low, LOW_PERCENT);
    let high =
        sources.last(|set| set.images.inodes_high_percent).unwrap_or(Some(Percent(INODES_HIGH_PERCENT)));
    let low = sources.last(|set| set.images.inodes_low_percent);
    let names = ["images.inodes_high_percent", "images.inodes_low_percent"];
    let inodes = thresholds(sources, names, high, low, u8::MAX);
    Targets { used, free: free_floor(sources), inodes }
}

/// Returns the two thresholds. A high threshold below the default low one gets a low one [`DISTANCE`] below it.
fn thresholds(
    sources: &mut Sources,
    [high_key, low_key]: [&str; 2],
    high: Option<Percent>,
    low: Option<Percent>,
    default_low: u8,
) -> Option<Thresholds> {
    let Some(Percent(high)) = high else {
        if low.is_some() {
            let message = format!("without {high_key} it has no effect");
            sources.wrong(low_key, message, format!("set {high_key}, or remove {low_key}"));
        }
        return None;
    };
    let below = high.saturating_sub(DISTANCE);
    let low = low.map_or(default_low.min(below), |low| low.0);
    if low > high {
        let message = format!("the low threshold {low} is above the high threshold {high}");
        let key = if sources.origin(low_key).is_some() { low_key } else { high_key };
        sources.wrong(key, message, format!("set {low_key} to {below} or {high_key} to {low}"));
    }
    Some(Thresholds { high, low })
}

fn free_floor(sources: &mut Sources) -> Option<FreeFloor> {
    let until = sources.last(|set| set.images.free_until).flatten();
    let start_below = sources.last(|set| set.images.min_free).flatten();
    let Some(Bytes(start_below)) = start_below.filter(|bytes| bytes.0 > 0) else {
        if until.is_some_and(|bytes| bytes.0 > 0) {
            let message = "without images.min_free it has no effect".to_owned();
            let remedy = "set images.min_free, or remove images.free_until".to_owned();
            sources.wrong("images.free_until", message, remedy);
        }
        return None;
    };
    let until = until.map_or(start_below, |bytes| bytes.0);
    if until < start_below {
        let message = format!("{until} bytes are less than images.min_free, {start_below}");
        sources.wrong("images.free_until", message, "set it higher, or remove it".into());
    }
    Some(FreeFloor { start_below, until })
}
