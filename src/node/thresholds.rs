//! The kubelet's thresholds for collecting images and dead containers and for evicting pods, from its settings and
//! defaults.
//!
//! Sources: `pkg/kubelet/apis/config/v1beta1/defaults.go`, `pkg/kubelet/eviction/{defaults_linux,helpers}.go`;
//! `SetDefaults` of 1.31 to 1.35.

use std::path::PathBuf;

use jiff::SignedDuration;
use serde_json::Value;

use super::kubelet::{Kubelet, Problem};
use crate::model::kubelet_thresholds::{
    Amount, IMAGEFS, IMAGEFS_INODES, KubeletThresholds, NODEFS, NODEFS_INODES, Signals, Sourced,
};

/// Default thresholds of hard eviction (`DefaultEvictionHard`), without those for memory.
const DEFAULT_HARD: [(&str, f64); 4] =
    [(IMAGEFS, 15.0), (NODEFS, 10.0), (IMAGEFS_INODES, 5.0), (NODEFS_INODES, 5.0)];

/// Returns the settings in effect, and the settings that cannot be parsed and are ignored.
#[must_use]
pub fn read(kubelet: &Kubelet) -> (KubeletThresholds, Vec<Problem>) {
    let mut reader = ThresholdReader { kubelet, problems: Vec::new() };
    let image_high = reader.number("imageGCHighThresholdPercent", "--image-gc-high-threshold", 85);
    let image_low = reader.number("imageGCLowThresholdPercent", "--image-gc-low-threshold", 80);
    let minutes = SignedDuration::from_mins;
    let min_age = reader.scalar("imageMinimumGCAge", "--minimum-image-ttl-duration", minutes(2), age);
    let max_age = reader.scalar("imageMaximumGCAge", "", minutes(0), age);
    let container_ttl = reader.scalar("", "--minimum-container-ttl-duration", minutes(0), age);
    let dead_per_container = reader.number("", "--maximum-dead-containers-per-container", 1);
    let dead_in_all = reader.number("", "--maximum-dead-containers", -1);
    let merges = reader
        .scalar("mergeDefaultEvictionSettings", "", false, |value| {
            value.as_bool().ok_or_else(|| "must be true or false".to_owned())
        })
        .value;
    let mut hard = reader.signals("evictionHard", "--eviction-hard");
    let mut soft = reader.signals("evictionSoft", "--eviction-soft");
    let mut dropped = Vec::new();
    for (signal, percent) in DEFAULT_HARD {
        if hard.value.contains_key(signal) {
            continue;
        }
        if hard.by.is_none() || merges {
            hard.value.insert(signal.to_owned(), Amount::Percent(percent));
        } else {
            dropped.push(signal.to_owned());
        }
    }
    // 0% and 100% switch a signal off (`parseThresholdStatement`).
    for signals in [&mut hard.value, &mut soft.value] {
        signals.retain(|_, amount| match amount {
            Amount::Percent(percent) => *percent > 0.0 && *percent < 100.0,
            Amount::Number(_) => true,
        });
    }
    let thresholds = KubeletThresholds {
        image_high,
        image_low,
        min_age,
        max_age,
        hard,
        soft,
        dropped,
        container_ttl,
        dead_per_container,
        dead_in_all,
    };
    reader.problems.sort();
    reader.problems.dedup();
    (thresholds, reader.problems)
}

struct ThresholdReader<'a> {
    kubelet: &'a Kubelet,
    problems: Vec<Problem>,
}

impl ThresholdReader<'_> {
    fn number(&mut self, key: &str, flag: &str, default: i64) -> Sourced<i64> {
        self.scalar(key, flag, default, |value| value.as_i64().ok_or_else(|| "must be a number".to_owned()))
    }

    /// Returns the value of the flag, or else of the last file with the key, or else the default.
    fn scalar<T>(
        &mut self,
        key: &str,
        flag: &str,
        default: T,
        parse: impl Fn(&Value) -> Result<T, String>,
    ) -> Sourced<T> {
        let mut sourced = Sourced::default(default);
        for (value, file) in self.values(key) {
            match parse(&value) {
                Ok(value) => sourced = Sourced { value, by: Some(by(key, &file)) },
                Err(why) => self.problems.push((file, format!("{key} {why}: {value}"))),
            }
        }
        if let Some(setting) = self.flag(flag) {
            let text = setting.value;
            let value = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.clone()));
            match parse(&value) {
                Ok(value) => sourced = Sourced { value, by: Some(by(flag, &setting.file)) },
                Err(why) => self.problems.push((setting.file, format!("{flag} {why}: {text}"))),
            }
        }
        sourced
    }

    /// Reads eviction signals. The kubelet merges the maps of its configuration files key by key, and a flag
    /// replaces all of them.
    fn signals(&mut self, key: &str, flag: &str) -> Sourced<Signals> {
        let mut sourced = Sourced::default(Signals::new());
        for (value, file) in self.values(key) {
            let Value::Object(map) = value else {
                self.problems.push((file, format!("{key} must be a map")));
                continue;
            };
            if !map.is_empty() {
                sourced.by = Some(by(key, &file));
            }
            for (signal, value) in map {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                self.signal(&mut sourced.value, signal, &text, key, &file);
            }
        }
        if let Some(setting) = self.flag(flag) {
            sourced = Sourced { value: Signals::new(), by: Some(by(flag, &setting.file)) };
            // Units of systemd escape a percent sign as `%%`.
            let text = setting.value.replace("%%", "%");
            for statement in text.split(',').filter(|statement| !statement.is_empty()) {
                match statement.split_once('<') {
                    Some((signal, amount)) => {
                        self.signal(&mut sourced.value, signal.to_owned(), amount, flag, &setting.file);
                    }
                    None => {
                        self.problems.push((setting.file.clone(), format!("{flag}: {statement:?} has no <")));
                    }
                }
            }
        }
        sourced
    }

    fn signal(
        &mut self,
        signals: &mut Signals,
        signal: String,
        text: &str,
        name: &str,
        file: &std::path::Path,
    ) {
        match amount(text) {
            Some(amount) => drop(signals.insert(signal, amount)),
            None => {
                let message = format!("{name}: {signal}: {text:?} is not a quantity");
                self.problems.push((file.to_path_buf(), message));
            }
        }
    }

    fn values(&mut self, key: &str) -> Vec<(Value, PathBuf)> {
        if key.is_empty() {
            return Vec::new();
        }
        let (values, problems) = self.kubelet.values(key);
        self.problems.extend(problems);
        values
    }

    fn flag(&self, name: &str) -> Option<super::kubelet::Setting> {
        if name.is_empty() { None } else { self.kubelet.flag_in_effect(name) }
    }
}

fn by(name: &str, file: &std::path::Path) -> String {
    format!("{name} in {}", file.display())
}

/// Parses a duration as Go writes it, `2m0s`, or a bare 0.
fn age(value: &Value) -> Result<SignedDuration, String> {
    let zero = Ok(SignedDuration::ZERO);
    let parsed = match value {
        Value::Number(number) if number.as_i64() == Some(0) => return zero,
        Value::String(text) if text == "0" => return zero,
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    parsed.ok_or_else(|| "must be a duration like 2m0s".to_owned())
}

/// Parses `15%`, or a quantity of Kubernetes: `1Gi`, `500M`, `1.5G`, `1e9`.
fn amount(text: &str) -> Option<Amount> {
    let text = text.trim();
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.trim().parse().ok()?;
        return percent.is_finite().then_some(Amount::Percent(percent)).filter(|_| percent >= 0.0);
    }
    let units = [
        ("Ki", 1024_f64),
        ("Mi", 1024_f64.powi(2)),
        ("Gi", 1024_f64.powi(3)),
        ("Ti", 1024_f64.powi(4)),
        ("Pi", 1024_f64.powi(5)),
        ("Ei", 1024_f64.powi(6)),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let unit = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    let (number, unit) = unit.unwrap_or((text, 1.0));
    let plain = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = number.parse().ok().filter(|_| plain)?;
    let number = (number * unit).ceil();
    // Larger numbers may not fit into a `u64` (its maximum is 1.8e19), and no disk is that large.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the range is checked
    (0.0..=1e19).contains(&number).then_some(Amount::Number(number as u64))
}

#[cfg(test)]
mod tests {
    use super::super::kubelet::SettingsFile;
    use super::*;

    fn file(path: &str, text: &str) -> SettingsFile {
        SettingsFile { path: path.into(), text: text.into() }
    }

    fn config(text: &str) -> (KubeletThresholds, Vec<Problem>) {
        let configs = vec![file("/var/lib/kubelet/config.yaml", text)];
        read(&Kubelet { configs, ..Kubelet::default() })
    }

    #[test]
    fn amounts_are_parsed() {
        use Amount::{Number, Percent};
        for (text, expected) in [
            ("15%", Some(Percent(15.0))),
            ("0.5%", Some(Percent(0.5))),
            (" 5 % ", Some(Percent(5.0))),
            ("1Gi", Some(Number(1 << 30))),
            ("500Mi", Some(Number(500 << 20))),
            ("1.5G", Some(Number(1_500_000_000))),
            ("1e9", Some(Number(1_000_000_000))),
            ("1500m", Some(Number(2))),
            ("4096", Some(Number(4096))),
            ("-5%", None),
            ("-1Gi", None),
            ("NaN%", None),
            ("inf", None),
            ("nan", None),
            ("", None),
            ("%", None),
            ("Gi", None),
            ("10 percent", None),
            ("1e400", None),
        ] {
            assert_eq!(amount(text), expected, "{text:?}");
        }
        assert_eq!(Percent(15.0).used_percent(0), Some(85.0));
        assert_eq!(Number(1 << 30).used_percent(10 << 30), Some(90.0));
        assert_eq!(Number(1).used_percent(0), None);
        assert_eq!(
            [Percent(15.0), Number(1 << 30), Number(1001)].map(|amount| amount.to_string()),
            ["15%", "1Gi", "1001"]
        );
    }

    #[test]
    fn defaults_apply_without_settings() {
        let (found, problems) = read(&Kubelet::default());
        assert!(problems.is_empty());
        assert_eq!((found.image_high.value, found.image_low.value), (85, 80));
        assert_eq!(found.min_age.value, SignedDuration::from_mins(2));
        assert_eq!(found.hard.value[IMAGEFS], Amount::Percent(15.0));
        assert_eq!(found.hard.value.len(), 4);
        assert_eq!((found.dead_per_container.value, found.dead_in_all.value), (1, -1));
        assert!(found.hard.by.is_none() && found.dropped.is_empty() && found.soft.value.is_empty());
    }

    #[test]
    fn configuration_replaces_defaults() {
        let (found, problems) = config(
            "imageGCHighThresholdPercent: 95\nimageGCLowThresholdPercent: 90\nimageMinimumGCAge: 5m0s\n\
             imageMaximumGCAge: 168h0m0s\nevictionHard:\n  imagefs.available: 10%\n  memory.available: 100Mi\n\
             evictionSoft:\n  nodefs.available: 20Gi\n",
        );
        assert_eq!(problems, []);
        assert_eq!((found.image_high.value, found.image_low.value), (95, 90));
        assert_eq!(found.image_high.source(), "imageGCHighThresholdPercent in /var/lib/kubelet/config.yaml");
        assert_eq!(found.max_age.value, SignedDuration::from_hours(168));
        assert_eq!(found.hard.value[IMAGEFS], Amount::Percent(10.0));
        assert_eq!(found.soft.value[NODEFS], Amount::Number(20 << 30));
        // One configured signal removes the defaults of all others.
        assert_eq!(found.dropped, [NODEFS, IMAGEFS_INODES, NODEFS_INODES]);
        let (found, _) =
            config("evictionHard: {imagefs.available: 10%}\nmergeDefaultEvictionSettings: true\n");
        assert!(found.dropped.is_empty() && found.hard.value[NODEFS] == Amount::Percent(10.0));
        let (found, _) = config("evictionHard: {imagefs.available: 0%, nodefs.available: 100%}\n");
        assert!(found.hard.value.is_empty());
    }

    #[test]
    fn invalid_settings_are_reported_and_ignored() {
        for text in [
            "imageGCHighThresholdPercent: \"90\"",
            "imageMinimumGCAge: soon",
            "imageMinimumGCAge: 5",
            "evictionHard: 10%",
            "evictionHard: {imagefs.available: much}",
            "evictionHard: [",
        ] {
            let (found, problems) = config(text);
            assert_eq!(problems.len(), 1, "{text}: {problems:?}");
            assert_eq!(found.image_high.value, 85);
        }
    }

    #[test]
    fn flags_override_drop_ins_override_the_main_file() {
        let configs = vec![
            file(
                "/var/lib/kubelet/config.yaml",
                "imageGCHighThresholdPercent: 70\nevictionHard: {nodefs.available: 5%}",
            ),
            file(
                "/etc/kubernetes/kubelet.conf.d/20.conf",
                "imageGCHighThresholdPercent: 80\nevictionHard: {imagefs.available: 6%}",
            ),
        ];
        let mut kubelet = Kubelet { configs, ..Kubelet::default() };
        let (found, _) = read(&kubelet);
        assert_eq!(found.image_high.value, 80);
        assert_eq!(found.hard.value.len(), 2);
        kubelet.flags = vec![file(
            "/etc/default/kubelet",
            "KUBELET_EXTRA_ARGS=\"--image-gc-high-threshold=90 --eviction-hard=imagefs.available<7%%,memory.available<1Gi --minimum-container-ttl-duration 1h --maximum-dead-containers=20\"",
        )];
        let (found, problems) = read(&kubelet);
        assert_eq!(problems, []);
        assert_eq!(found.image_high.value, 90);
        assert_eq!(found.hard.value[IMAGEFS], Amount::Percent(7.0));
        assert_eq!(found.dropped.len(), 3);
        assert_eq!(found.container_ttl.value, SignedDuration::from_hours(1));
        assert_eq!((found.dead_in_all.value, found.dead_per_container.value), (20, 1));
        // The arguments of a running kubelet replace the flags in files.
        kubelet.running =
            Some(file("/proc/7/cmdline", "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml"));
        let (found, _) = read(&kubelet);
        assert_eq!(found.image_high.value, 80);
    }

    #[test]
    fn main_file_of_another_installation_is_ignored() {
        let configs = vec![
            file("/var/lib/kubelet/config.yaml", "imageGCHighThresholdPercent: 70"),
            file("/etc/kubernetes/kubelet.conf", "imageGCHighThresholdPercent: 60"),
        ];
        let flags = vec![file("/etc/default/kubelet", "A=--config=/var/lib/kubelet/config.yaml")];
        let (found, _) = read(&Kubelet { configs, flags, ..Kubelet::default() });
        assert_eq!(found.image_high.value, 70);
    }
}
