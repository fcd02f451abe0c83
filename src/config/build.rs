//! From what was set to a configuration that holds together.

use std::path::PathBuf;

use jiff::SignedDuration;

use super::keys::{Settings, Value};
use super::{
    Config, Containers, Decides, Kubelet, Leaks, Metrics, Origin, Problem, STATE_DIR, Stores, Textfile,
};
use crate::policy::FreeFloor;
use crate::policy::Marks;
use crate::policy::Policy;
use crate::policy::Protect;
use crate::policy::Targets;
use crate::policy::containers;
use crate::policy::kubelet::{ConfigFault, KubeletConfig};

/// Below the kubelet's own thresholds (85 and 80 by default, eviction at 85), so that we act
/// before it does.
const HIGH_PERCENT: u8 = 75;
const LOW_PERCENT: u8 = 70;
/// How far the low mark is below a high mark that stands alone.
const APART: u8 = 5;
const MIN_AGE: SignedDuration = SignedDuration::from_mins(2);
const LEAK_MIN_AGE: SignedDuration = SignedDuration::from_hours(24);
const STATIC_PODS: &str = "/etc/kubernetes/manifests";

/// Fills in defaults and checks what values say together. What is wrong is noted, and the
/// configuration then of no use.
pub(super) fn build(settings: &Settings, files: Vec<PathBuf>, problems: &mut Vec<Problem>) -> Config {
    let set = Set { settings, problems };
    set.build(files)
}

struct Set<'a> {
    settings: &'a Settings,
    problems: &'a mut Vec<Problem>,
}

impl Set<'_> {
    fn build(mut self, files: Vec<PathBuf>) -> Config {
        let used = self.marks("images.high_percent", "images.low_percent", Some((HIGH_PERCENT, LOW_PERCENT)));
        let inodes = self.marks("images.inodes_high_percent", "images.inodes_low_percent", None);
        let targets = Targets { used, free: self.floor(), inodes };
        let decides = match self.text("images.policy").as_deref() {
            Some("kubelet") => Decides::Kubelet,
            _ => Decides::Exact,
        };
        let images = Policy {
            targets,
            min_age: self.duration("images.min_age", Some(MIN_AGE)).unwrap_or_default(),
            // The kubelet's 0 is off too.
            max_age: self.duration("images.max_age", None).filter(|age| !age.is_zero()),
            protect: Protect {
                names: match self.value("protect.names") {
                    Some(Value::Patterns(names)) => names,
                    _ => vec![],
                },
                labels: match self.value("protect.labels") {
                    Some(Value::Labels(labels)) => labels,
                    _ => vec![],
                },
                keep_newest: match self.value("protect.keep_newest") {
                    Some(Value::Count(count)) => count,
                    _ => 0,
                },
                ..Protect::default()
            },
        };
        if decides == Decides::Kubelet {
            self.check_for_kubelet(&images);
        }
        Config {
            state_dir: self.path("state_dir", Some(STATE_DIR)).unwrap_or_default(),
            stores: Stores {
                graphroots: self.paths("stores.graphroot"),
                runroot: self.path("stores.runroot", None),
                containerd_roots: self.paths("stores.containerd_root"),
                cri_endpoint: self.text("stores.cri_endpoint"),
            },
            decides,
            images,
            static_pods: self.path("protect.static_pods", Some(STATIC_PODS)),
            containers: self.containers(decides),
            kubelet: Kubelet {
                root_dir: self.path("kubelet.root_dir", None),
                pod_logs_dir: self.path("kubelet.pod_logs_dir", None),
                container_logs_dir: self.path("kubelet.container_logs_dir", None),
            },
            leaks: Leaks {
                delete: self.truth("leaks.delete"),
                min_age: self.duration("leaks.min_age", Some(LEAK_MIN_AGE)).unwrap_or_default(),
            },
            metrics: Metrics {
                textfile: match self.value("metrics.textfile") {
                    Some(Value::Path(None)) => Textfile::Off,
                    Some(Value::Path(Some(path))) => Textfile::At(path),
                    _ => Textfile::Auto,
                },
            },
            trust_pid_namespace: self.truth("trust_pid_namespace"),
            files,
        }
    }

    /// Two marks. A high mark that somebody set below the default low mark brings its own.
    fn marks(&mut self, high_key: &str, low_key: &str, default: Option<(u8, u8)>) -> Option<Marks> {
        let high = match self.value(high_key) {
            Some(Value::Percent(high)) => high,
            _ => default.map(|(high, _)| high),
        };
        let low = match self.value(low_key) {
            Some(Value::Percent(low)) => low,
            _ => None,
        };
        let Some(high) = high else {
            if low.is_some() {
                let message = "a low mark without a high mark ends what never starts";
                self.problem(low_key, message.into(), format!("set {high_key}, or leave {low_key} out"));
            }
            return None;
        };
        let below = high.saturating_sub(APART);
        let low = low.unwrap_or_else(|| default.map_or(below, |(_, low)| low.min(below)));
        if low > high {
            let message = format!("the low mark {low} is above the high mark {high}");
            let at = if self.origin(low_key) == Origin::Default { high_key } else { low_key };
            self.problem(at, message, format!("set {low_key} to {below} or {high_key} to {}", low.min(100)));
        }
        Some(Marks { high, low })
    }

    /// Each policy has the minimum age of its own; the limits are the kubelet's for both.
    fn containers(&self, decides: Decides) -> Containers {
        let enabled = self.truth("containers.enabled");
        let default = match decides {
            Decides::Exact => containers::Policy::default(),
            Decides::Kubelet => containers::Policy::kubelet(),
        };
        let limit = |name, default| match self.value(name) {
            Some(Value::Limit(limit)) => limit,
            _ => default,
        };
        let min_age = self.duration("containers.min_age", Some(default.min_age)).unwrap_or_default();
        Containers {
            enabled,
            logs: match self.value("containers.logs") {
                Some(Value::Truth(logs)) => logs,
                _ => enabled,
            },
            policy: containers::Policy {
                min_age,
                max_per_unit: limit("containers.max_per_unit", default.max_per_unit),
                max_total: limit("containers.max_total", default.max_total),
                ..default
            },
        }
    }

    fn floor(&mut self) -> Option<FreeFloor> {
        let size = |value| match value {
            Some(Value::Size(bytes)) => bytes,
            _ => None,
        };
        let until = size(self.value("images.free_until"));
        let Some(start_below) = size(self.value("images.min_free")).filter(|bytes| *bytes > 0) else {
            if until.is_some_and(|bytes| bytes > 0) {
                let message = "without images.min_free nothing ever starts";
                let remedy = "set images.min_free, or leave images.free_until out";
                self.problem("images.free_until", message.into(), remedy.into());
            }
            return None;
        };
        let until = until.unwrap_or(start_below);
        if until < start_below {
            let message = format!("{until} bytes are less than images.min_free, {start_below}");
            self.problem("images.free_until", message, "set it higher, or leave it out".into());
        }
        Some(FreeFloor { start_below, until })
    }

    /// Policy `kubelet` accepts what the kubelet accepts.
    fn check_for_kubelet(&mut self, images: &Policy) {
        let Some(marks) = images.targets.used else {
            let remedy = "set images.high_percent, or images.policy to \"exact\"";
            let message = "policy kubelet knows no other target than percent used";
            return self.problem("images.policy", message.into(), remedy.into());
        };
        let theirs = KubeletConfig {
            high_percent: marks.high.into(),
            low_percent: marks.low.into(),
            min_age: images.min_age,
            max_age: images.max_age.unwrap_or_default(),
            max_age_gate: true,
        };
        for fault in theirs.check() {
            // Told already, for every policy.
            if fault == ConfigFault::LowNotBelowHigh && marks.low > marks.high {
                continue;
            }
            let field = match fault {
                ConfigFault::HighOutOfRange => "images.high_percent",
                ConfigFault::LowOutOfRange | ConfigFault::LowNotBelowHigh => "images.low_percent",
                ConfigFault::MaxAgeGateRequired
                | ConfigFault::MaxAgeNegative
                | ConfigFault::MaxAgeNotAboveMinAge => "images.max_age",
            };
            let message = format!("policy kubelet does not accept it: {fault}");
            self.problem(field, message, "change it, or set images.policy to \"exact\"".into());
        }
        for (field, set) in [
            ("images.min_free", images.targets.free.is_some()),
            ("images.inodes_high_percent", images.targets.inodes.is_some()),
        ] {
            if set {
                let message = "policy kubelet knows no other target than percent used";
                self.problem(field, message.into(), "leave it out, or set images.policy to \"exact\"".into());
            }
        }
    }

    fn value(&self, name: &str) -> Option<Value> {
        self.settings.get(name).map(|(value, _)| value.clone())
    }

    fn origin(&self, name: &str) -> Origin {
        self.settings.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    fn problem(&mut self, name: &str, message: String, remedy: String) {
        let origin = self.origin(name);
        self.problems.push(Problem { origin, field: name.to_owned(), message, remedy });
    }

    fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn truth(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Truth(true)))
    }

    fn path(&self, name: &str, default: Option<&str>) -> Option<PathBuf> {
        match self.value(name) {
            Some(Value::Path(path)) => path,
            _ => default.map(PathBuf::from),
        }
    }

    fn paths(&self, name: &str) -> Vec<PathBuf> {
        match self.value(name) {
            Some(Value::Paths(paths)) => paths,
            _ => vec![],
        }
    }

    fn duration(&self, name: &str, default: Option<SignedDuration>) -> Option<SignedDuration> {
        match self.value(name) {
            Some(Value::Duration(duration)) => duration,
            _ => default,
        }
    }
}
