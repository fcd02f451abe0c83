//! The keys of the configuration: one table for `config show`, the man page layersweep.toml(5) and the suggestions
//! for a misspelt key. `docs/configuration.md` is tested against it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::fragment::{Label, Textfile};
use super::settings::Config;
use super::values;
use crate::model::Pattern;
use crate::policy::image_rules::ImageRule;

/// Minimum similarity, from 0 to 1, of a suggestion; the same as clap's for commands and flags.
const SIMILAR: f64 = 0.7;

/// Minimum similarity of a key in another table.
const ALMOST_EQUAL: f64 = 0.9;

#[derive(Debug)]
pub struct Key {
    /// Name with its table, for example `images.high_percent`.
    pub name: &'static str,
    /// Default, in the words of the documentation.
    pub default: &'static str,
    /// Meaning, with names of keys and values in backquotes.
    pub meaning: &'static str,
    /// Returns the value in a configuration; null: it is found automatically.
    pub value: fn(&Config) -> Value,
}

/// All keys, in the order of the documentation.
pub const KEYS: [Key; 37] = [
    Key {
        name: "state_dir",
        default: "`\"/var/lib/layersweep\"`",
        meaning: "directory of the database",
        value: |config| path(&config.state_dir),
    },
    Key {
        name: "trust_pid_namespace",
        default: "false",
        meaning: "all processes that can use the stores are in layersweep's PID namespace, though it is not the initial one: true on a node that is itself a container (LXC, nspawn). Without it, direct deletion is refused where not every process of the machine is visible",
        value: |config| config.trust_pid_namespace.into(),
    },
    Key {
        name: "stores.graphroot",
        default: "found",
        meaning: "graphroots of containers/storage to read, as a list; if any store is named, layersweep does not search for others",
        value: |config| paths(&config.stores.graphroots),
    },
    Key {
        name: "stores.runroot",
        default: "found",
        meaning: "the runroots that belong to the graphroots, as a list in the same order",
        value: |config| paths(&config.stores.runroots),
    },
    Key {
        name: "stores.containerd_root",
        default: "found",
        meaning: "roots of containerd to read, as a list",
        value: |config| paths(&config.stores.containerd_roots),
    },
    Key {
        name: "stores.docker_root",
        default: "found",
        meaning: "data roots of Docker whose own store (driver overlay2) is read, as a list",
        value: |config| paths(&config.stores.docker_roots),
    },
    Key {
        name: "stores.cri_endpoint",
        default: "found",
        meaning: "the runtime's socket, like `\"unix:///run/crio/crio.sock\"`; needed for `gc` and `rm` where the stores of a runtime are named",
        value: |config| config.stores.cri_endpoint.clone().into(),
    },
    Key {
        name: "images.via",
        default: "`\"auto\"`",
        meaning: "how images are deleted: by the runtime through its socket (`\"cri\"`), by layersweep in the store itself (`\"direct\"`), or `\"auto\"`: by the runtime where a runtime owns a store, by layersweep otherwise",
        value: |config| config.via.as_str().into(),
    },
    Key {
        name: "images.high_percent",
        default: "75",
        meaning: "start deleting at this usage (percent of bytes); `\"off\"` disables this target",
        value: |config| or_off(config.images.targets.used.map(|used| used.high)),
    },
    Key {
        name: "images.low_percent",
        default: "70",
        meaning: "stop deleting at this usage; if only a high threshold below 75 is set, 5 below it",
        value: |config| or_off(config.images.targets.used.map(|used| used.low)),
    },
    Key {
        name: "images.min_free",
        default: "`\"off\"`",
        meaning: "start deleting if less than this is available",
        value: |config| or_off(config.images.targets.free.map(|floor| values::size_text(floor.start_below))),
    },
    Key {
        name: "images.free_until",
        default: "`images.min_free`",
        meaning: "stop deleting when this much is available",
        value: |config| or_off(config.images.targets.free.map(|floor| values::size_text(floor.until))),
    },
    Key {
        name: "images.inodes_high_percent",
        default: "90",
        meaning: "start deleting at this usage of inodes (`gc --inodes-high`); `\"off\"` disables this target",
        value: |config| or_off(config.images.targets.inodes.map(|inodes| inodes.high)),
    },
    Key {
        name: "images.inodes_low_percent",
        default: "5 below",
        meaning: "stop deleting at this usage of inodes",
        value: |config| or_off(config.images.targets.inodes.map(|inodes| inodes.low)),
    },
    Key {
        name: "images.min_age",
        default: "`\"2m\"`",
        meaning: "never delete an image first detected less than this ago",
        value: |config| values::duration_text(config.images.min_age).into(),
    },
    Key {
        name: "images.max_age",
        default: "`\"off\"`",
        meaning: "delete images idle for longer than this, even on an empty disk; `\"0s\"` is off, as for the kubelet",
        value: |config| or_off(config.images.max_age.map(values::duration_text)),
    },
    Key {
        name: "images.order",
        default: "`\"idle\"`",
        meaning: "order in which images are deleted for space: the longest idle first (`\"idle\"`), or the images that are expected to cost least to pull again (`\"cheapest\"`)",
        value: |config| config.images.order.as_str().into(),
    },
    Key {
        name: "images.rule",
        default: "none",
        meaning: "ages for images by name: each `[[images.rule]]` has a `match`, a pattern as in `protect.names`, and `min_age`, `max_age` and `keep_newest` for the images that it matches; the first rule that matches decides",
        value: |config| config.images.rules.iter().map(rule).collect(),
    },
    Key {
        name: "protect.names",
        default: "none",
        meaning: "patterns; an image is kept if one matches a full name of it, its repository (all tags), a digest or its id, as in the keep-list. `*` matches slashes too: `\"quay.io/*\"` is all of that registry",
        value: |config| config.images.protect.names.iter().map(Pattern::text).collect(),
    },
    Key {
        name: "protect.labels",
        default: "none",
        meaning: "`\"key\"` or `\"key=value\"`; an image that has one of these labels is kept, and so is an image whose labels cannot be read",
        value: |config| config.images.protect.labels.iter().map(label).collect(),
    },
    Key {
        name: "protect.keep_newest",
        default: "0",
        meaning: "number of images of each repository to keep: those first detected last",
        value: |config| config.images.protect.keep_newest.into(),
    },
    Key {
        name: "protect.not_repullable",
        default: "`\"kubernetes\"`",
        meaning: "keep named images that were built, loaded or imported here and never pulled, since no registry may have them: in the stores of a Kubernetes runtime (`\"kubernetes\"`), in all (`\"always\"`), or in none (`\"never\"`); also images of unknown origin",
        value: |config| config.images.protect.not_repullable.as_str().into(),
    },
    Key {
        name: "protect.static_pods",
        default: "`\"/etc/kubernetes/manifests\"`",
        meaning: "images named by the pods defined here are kept, and those of the pod manifests that the kubelet's settings name; `\"off\"` disables both",
        value: |config| or_off(config.static_pods.as_deref().map(path)),
    },
    Key {
        name: "protect.references_file",
        default: "`\"off\"`",
        meaning: "file with images to keep: references, digests or ids, one a line, `#` begins a comment; if it cannot be read in full, nothing is deleted",
        value: |config| or_off(config.references_file.as_deref().map(path)),
    },
    Key {
        name: "containers.enabled",
        default: "false",
        meaning: "collect dead containers and sandboxes too; the kubelet does so itself. Not with `--via direct`",
        value: |config| config.containers.enabled.into(),
    },
    Key {
        name: "containers.logs",
        default: "`containers.enabled`",
        meaning: "collect logs of pods that are gone and of removed containers, and dangling links to logs; not with `--via direct`",
        value: |config| config.containers.logs.into(),
    },
    Key {
        name: "containers.min_age",
        default: "`\"5m\"`",
        meaning: "minimum time since a container died; younger ones are kept",
        value: |config| values::duration_text(config.containers.policy.min_age).into(),
    },
    Key {
        name: "containers.max_per_unit",
        default: "1",
        meaning: "number of dead containers to keep for each container of a pod, the newest; `\"off\"` keeps all",
        value: |config| or_off(config.containers.policy.max_per_unit),
    },
    Key {
        name: "containers.max_total",
        default: "`\"off\"`",
        meaning: "number of dead containers to keep on the node",
        value: |config| or_off(config.containers.policy.max_total),
    },
    Key {
        name: "kubelet.root_dir",
        default: "found",
        meaning: "the kubelet's own directory (`--root-dir`): a pod without a directory in its `pods` counts as deleted",
        value: |config| optional_path(config.kubelet.root_dir.as_deref()),
    },
    Key {
        name: "kubelet.pod_logs_dir",
        default: "`\"/var/log/pods\"`",
        meaning: "logs of pods, if the kubelet's configuration does not set `podLogsDir`",
        value: |config| optional_path(config.kubelet.pod_logs_dir.as_deref()),
    },
    Key {
        name: "kubelet.container_logs_dir",
        default: "`\"/var/log/containers\"`",
        meaning: "links to logs of containers",
        value: |config| optional_path(config.kubelet.container_logs_dir.as_deref()),
    },
    Key {
        name: "leaks.delete",
        default: "false",
        meaning: "delete leaks that are proven safe to delete",
        value: |config| config.leaks.delete.into(),
    },
    Key {
        name: "leaks.min_age",
        default: "`\"24h\"`",
        meaning: "minimum age of leaks to delete",
        value: |config| values::duration_text(config.leaks.min_age).into(),
    },
    Key {
        name: "metrics.textfile",
        default: "`\"auto\"`",
        meaning: "file to which `scan`, `gc`, `sweep` and `rm` write metrics for node_exporter, or a directory in which they create `layersweep.prom`; `\"auto\"` is the first of node_exporter's usual directories that exists, `\"off\"` disables it",
        value: |config| textfile(&config.textfile),
    },
    Key {
        name: "metrics.namespaces",
        default: "0",
        meaning: "number of namespaces of pods with a metric of their own, those with the most bytes; at most 100. All others are one value, so that many namespaces do not become many series",
        value: |config| config.metric_namespaces.into(),
    },
    Key {
        name: "metrics.places",
        default: "5",
        meaning: "number of containers, volumes, logs and paths outside the stores of each filesystem with metrics of their own: those with the most bytes, and as many with the most inodes; at most 20, 0 for none. The metrics contain their names",
        value: |config| config.metric_places.into(),
    },
];

pub(super) fn similar(name: &str) -> Option<&'static str> {
    let (table, last) = name.rsplit_once('.').unwrap_or(("", name));
    // The keys of a rule are not in the table of keys.
    if table == "images.rule" {
        return None;
    }
    let keys = KEYS.iter().map(|key| key.name);
    let tables = keys.clone().filter_map(|key| key.split_once('.')).map(|(table, _)| table);
    let candidates = keys.chain(tables).filter_map(|candidate| {
        let (candidate_table, candidate_last) = candidate.rsplit_once('.').unwrap_or(("", candidate));
        let similarity = strsim::jaro_winkler(last, candidate_last);
        // Of two equally similar keys, the one in the same table.
        let (least, bonus) = if candidate_table == table { (SIMILAR, 0.01) } else { (ALMOST_EQUAL, 0.0) };
        (similarity > least).then_some((candidate, similarity + bonus))
    });
    // The first of equally similar ones.
    let nearest = candidates.reduce(|a, b| if b.1 > a.1 { b } else { a });
    nearest.map(|(candidate, _)| candidate)
}

fn or_off(value: Option<impl Into<Value>>) -> Value {
    value.map_or_else(|| "off".into(), Into::into)
}

fn path(path: &Path) -> Value {
    path.to_string_lossy().into()
}

fn paths(paths: &[PathBuf]) -> Value {
    if paths.is_empty() { Value::Null } else { paths.iter().map(|each| path(each)).collect() }
}

fn optional_path(value: Option<&Path>) -> Value {
    value.map_or(Value::Null, path)
}

fn label((key, value): &Label) -> String {
    value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}={value}"))
}

/// Returns a rule as it is written, with only the values that it sets.
fn rule(rule: &ImageRule) -> Value {
    let mut values = serde_json::Map::new();
    values.insert("match".to_owned(), rule.pattern.text().into());
    let set = [
        ("min_age", rule.min_age.map(|age| values::duration_text(age).into())),
        ("max_age", rule.max_age.map(|age| or_off(age.map(values::duration_text)))),
        ("keep_newest", rule.keep_newest.map(Value::from)),
    ];
    values.extend(set.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    values.into()
}

fn textfile(textfile: &Textfile) -> Value {
    match textfile {
        Textfile::Auto => "auto".into(),
        Textfile::Off => "off".into(),
        Textfile::At(file) => path(file),
    }
}
