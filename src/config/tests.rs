use std::path::PathBuf;

use jiff::SignedDuration;

use super::*;
use crate::node::places::ConfiguredPlaces;
use crate::policy::image_rules::ImageRule;
use crate::policy::{DeletionOrder, FreeFloor, Targets, Thresholds};

fn root(case: &str) -> Sysroot {
    Sysroot::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/config/own").join(case))
}

fn load(case: &str, flags: &[Flag]) -> Result<Config, Invalid> {
    Config::load(&root(case), None, flags)
}

fn flag(key: &'static str, flag: &'static str, text: &str) -> Flag {
    Flag { key, flag, text: text.into() }
}

/// The configuration that consists of one file with this text.
fn config_of(text: &str) -> Result<Config, Vec<String>> {
    let mut sources = Sources::default();
    sources.file(Path::new("/c.toml"), text);
    let (config, problems) = Config::finish(sources, &[], vec![]);
    if problems.is_empty() { Ok(config) } else { Err(problems.iter().map(ToString::to_string).collect()) }
}

fn thresholds(high: u8, low: u8) -> Option<Thresholds> {
    Some(Thresholds { high, low })
}

#[test]
fn without_files_defaults_apply() {
    let config = load("nothing-here", &[]).unwrap();
    let targets = Targets { used: thresholds(75, 70), free: None, inodes: thresholds(90, 85) };
    assert_eq!(config.images.targets, targets);
    assert_eq!(config.images.min_age, SignedDuration::from_mins(2));
    assert_eq!(config.images.max_age, None);
    assert_eq!(config.state_dir, Path::new("/var/lib/layersweep"));
    assert_eq!(config.static_pods, Some("/etc/kubernetes/manifests".into()));
    assert_eq!(config.leaks, Leaks { delete: false, min_age: SignedDuration::from_hours(24) });
    assert_eq!((config.containers.enabled, config.containers.logs), (false, false));
    assert_eq!(config.containers.policy, crate::policy::containers::ContainerPolicy::default());
    assert_eq!(config.kubelet, ConfiguredPlaces::default());
    assert_eq!(config.textfile, Textfile::Auto);
    assert_eq!(config_of("metrics.textfile = \"off\"").unwrap().textfile, Textfile::Off);
    assert_eq!(config.via, Via::Auto);
    assert_eq!(config.stores, Stores::default());
    assert_eq!(config.images.protect, crate::policy::Protect::default());
    assert!(config.files.is_empty());
}

#[test]
fn later_files_win_and_protection_adds_up() {
    let config = load("precedence", &[]).unwrap();
    let read: Vec<_> = config.files.iter().map(|file| file.to_str().unwrap()).collect();
    assert_eq!(
        read,
        [
            VENDOR_FILE,
            FILE,
            "/etc/layersweep/layersweep.toml.d/10-team-a.toml",
            "/etc/layersweep/layersweep.toml.d/20-team-b.toml",
        ]
    );
    assert_eq!(config.images.targets.used, thresholds(80, 65));
    assert_eq!(config.images.min_age, SignedDuration::from_mins(10));
    assert_eq!(config.images.max_age, None);
    assert_eq!(config.stores.graphroots, [PathBuf::from("/team-b")]);
    let names: Vec<_> = config.images.protect.names.iter().map(crate::model::Pattern::text).collect();
    assert_eq!(names, ["registry.k8s.io/*", "quay.io/admin/*", "quay.io/team-a/*"]);
    assert_eq!(
        config.images.protect.labels,
        [("keep".to_owned(), None), ("tier".to_owned(), Some("base".to_owned()))]
    );
}

#[test]
fn flags_win_over_files() {
    let flags = [
        flag("images.high_percent", "--high", "90"),
        flag("images.min_age", "--min-age", "0s"),
        flag("images.min_free", "--min-free", "4096"),
    ];
    let config = load("precedence", &flags).unwrap();
    assert_eq!(config.images.targets.used, thresholds(90, 65));
    assert_eq!(config.images.min_age, SignedDuration::ZERO);
    assert_eq!(config.images.targets.free, Some(FreeFloor { start_below: 4096, until: 4096 }));
    for (text, message) in [
        ("101", "--high: 101 is not a whole number from 0 to 100"),
        ("much", "--high: \"much\" is not a whole number from 0 to 100"),
        (
            "60",
            "/etc/layersweep/layersweep.toml, line 2, column 1: images.low_percent: \
             the low threshold 65 is above the high threshold 60",
        ),
    ] {
        let error = load("precedence", &[flag("images.high_percent", "--high", text)]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    // The default high threshold, in place of the one that was not read, contradicts nothing.
    let both = [flag("images.high_percent", "--high", "89.5"), flag("images.low_percent", "--low", "89")];
    let error = load("precedence", &both).unwrap_err();
    assert_eq!(error.to_string(), "--high: \"89.5\" is not a whole number from 0 to 100");
}

#[test]
fn named_file_replaces_all_others() {
    let only = Path::new("/etc/layersweep/layersweep.toml.d/10-team-a.toml");
    let config = Config::load(&root("precedence"), Some(only), &[]).unwrap();
    assert_eq!(config.files, [only]);
    assert_eq!(config.images.max_age, Some(SignedDuration::from_hours(24 * 7)));
    assert_eq!(config.images.targets.used, thresholds(75, 70));
    let error = Config::load(&root("precedence"), Some(Path::new("/none.toml")), &[]).unwrap_err();
    assert!(error.to_string().starts_with("/none.toml: cannot be read: "), "{error}");
}

#[test]
fn all_mistakes_are_reported_with_their_lines() {
    let Invalid(problems) = load("mistakes", &[]).unwrap_err();
    let messages: Vec<_> = problems.iter().map(|problem| format!("{problem} [{}]", problem.remedy)).collect();
    let expected = [
        "2, column 1: high_percent: unknown key [did you mean images.high_percent?]",
        "3, column 12: images.high_pecent: unknown key [did you mean images.high_percent?]",
        "3, column 44: images.low_percent: \"70\" is not a whole number from 0 to 100 []",
        "5, column 2: gc: unknown key [the keys here are state_dir, trust_pid_namespace, \
         stores, images, protect, containers, kubelet, leaks, metrics]",
        "11, column 5: protect.names: \"quay.io/[\" is not a pattern: unclosed character class; \
         missing ']' []",
        "14, column 10: protect.labels: invalid type: string \"keep\", expected a list []",
        "15, column 15: protect.keep_newest: -1 is less than 0 []",
        "16, column 15: protect.static_pods: \"manifests\" is not an absolute path []",
        "19, column 11: containers.enabled: \"yes\" is not true or false []",
        "22, column 11: leaks.min_age: \"1y\" is not a duration like 90s, 5m30s, 36h, 14d or 2w []",
        "24, column 1: state_dir: invalid type: table, expected an absolute path []",
        "28, column 16: stores.cri_endpoint: \"http://localhost:8080\" is not a runtime endpoint: \
         only unix sockets are supported, as `unix:///path` [give a socket like \"unix:///run/crio/crio.sock\"]",
        "31, column 12: metrics.textfile: \"layersweep.prom\" is not \"auto\", \"off\" or an absolute path []",
    ];
    let file = "/etc/layersweep/layersweep.toml, line";
    for (message, expected) in messages.iter().zip(expected) {
        assert_eq!(*message, format!("{file} {expected}"));
    }
    assert_eq!(messages.len(), expected.len(), "{messages:#?}");
}

#[test]
fn syntax_error_is_reported_with_its_line() {
    let error = load("broken", &[]).unwrap_err().to_string();
    assert!(error.starts_with("/etc/layersweep/layersweep.toml, line 3, column 14: "), "{error}");
}

/// Each key has an effect. The fixture contains every key.
#[test]
fn every_key_changes_the_configuration() {
    let config = load("everything", &[]).unwrap();
    let text = root("everything").read(Path::new(FILE), MAX_FILE_BYTES).unwrap();
    let mut sources = Sources::default();
    sources.file(Path::new(FILE), &text);
    for key in keys() {
        assert!(sources.origin(&key).is_some(), "{key} is not in the file");
    }
    let free = Some(FreeFloor { start_below: 10 << 30, until: 20 << 30 });
    assert_eq!(config.images.targets, Targets { used: thresholds(80, 72), free, inodes: thresholds(90, 82) });
    assert_eq!(config.images.min_age, SignedDuration::from_secs(330));
    assert_eq!(config.images.max_age, Some(SignedDuration::from_hours(14 * 24)));
    assert_eq!(config.images.order, DeletionOrder::Cheapest);
    assert_eq!(config.images.protect.names.len(), 2);
    assert_eq!(config.images.protect.labels.len(), 2);
    assert_eq!(config.images.protect.keep_newest, 2);
    assert_eq!(config.static_pods, Some("/data/manifests".into()));
    assert_eq!(config.references_file, Some("/data/expected.txt".into()));
    assert_eq!(config.images.rules.len(), 1);
    assert_eq!(config.state_dir, Path::new("/data/layersweep"));
    assert_eq!(config.stores.graphroots, [PathBuf::from("/data/storage")]);
    assert_eq!(config.stores.runroots, [PathBuf::from("/data/run")]);
    assert_eq!(config.stores.containerd_roots, [PathBuf::from("/data/containerd")]);
    assert_eq!(config.stores.docker_roots, [PathBuf::from("/data/docker")]);
    assert_eq!(config.stores.cri_endpoint.as_deref(), Some("unix:///run/crio/crio.sock"));
    let policy = crate::policy::containers::ContainerPolicy {
        min_age: SignedDuration::from_hours(1),
        max_per_unit: Some(2),
        max_total: None,
    };
    assert_eq!(config.containers, Containers { enabled: true, logs: false, policy });
    assert_eq!(config.kubelet.root_dir, Some("/data/kubelet".into()));
    assert_eq!(config.kubelet.pod_logs_dir, Some("/data/log/pods".into()));
    assert_eq!(config.kubelet.container_logs_dir, Some("/data/log/containers".into()));
    assert_eq!(config.leaks, Leaks { delete: true, min_age: SignedDuration::from_hours(14 * 24) });
    assert_eq!(config.via, Via::Direct);
    assert_eq!(config.textfile, Textfile::At("/data/metrics/layersweep.prom".into()));
    assert_eq!((config.metric_namespaces, config.metric_places), (20, 9));
}

#[test]
fn containers_have_defaults() {
    let enabled = config_of("containers.enabled = true").unwrap().containers;
    assert!(enabled.enabled && enabled.logs, "logs follow the setting for containers");
    let limits =
        config_of("containers.max_per_unit = \"off\"\ncontainers.max_total = 240").unwrap().containers;
    assert_eq!((limits.policy.max_per_unit, limits.policy.max_total), (None, Some(240)));
    let problems = config_of("containers.max_total = -1").unwrap_err();
    assert_eq!(problems, ["/c.toml, line 1, column 24: containers.max_total: -1 is less than 0"]);
}

/// All keys, taken from the messages about a key that does not exist.
fn keys() -> Vec<String> {
    let mut keys = Vec::new();
    for key in keys_below("") {
        match key.as_str() {
            "state_dir" | "trust_pid_namespace" => keys.push(key),
            table => {
                keys.extend(keys_below(&format!("{table}.")).iter().map(|name| format!("{table}.{name}")));
            }
        }
    }
    keys
}

fn keys_below(table: &str) -> Vec<String> {
    let mut sources = Sources::default();
    // No key is similar to this one.
    sources.file(Path::new("/c.toml"), &format!("{table}0 = 1"));
    let keys = sources.problems[0].remedy.rsplit(" are ").next().unwrap();
    keys.trim_start_matches("the only key here is ").split(", ").map(str::to_owned).collect()
}

#[test]
fn table_of_keys_is_complete() {
    assert!(keys::KEYS.iter().map(|key| key.name).eq(keys()));
}

/// `docs/configuration.md` has the rows of the table of keys; there, links may follow.
#[test]
fn every_key_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| `")).map(without_links).collect();
    let expected =
        keys::KEYS.iter().map(|key| format!("| `{}` | {} | {} |", key.name, key.default, key.meaning));
    for (row, expected) in rows.iter().zip(expected) {
        assert_eq!(*row, expected);
    }
    assert_eq!(rows.len(), keys::KEYS.len());
}

/// Removes the links in parentheses, for example ` ([metrics](metrics.md))`.
fn without_links(line: &str) -> String {
    let mut parts = line.split(" ([");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once("))").map_or(part, |(_, rest)| rest))
}

#[test]
fn misspelt_key_has_a_suggestion() {
    for (name, expected) in [
        ("images.high_pecent", Some("images.high_percent")),
        ("images.high", Some("images.high_percent")),
        ("high_pecent", Some("images.high_percent")),
        ("min_age", Some("images.min_age")),
        ("image", Some("images")),
        ("image.max_age", Some("images.max_age")),
        ("protected", Some("protect")),
        ("statedir", Some("state_dir")),
        ("high_percent", Some("images.high_percent")),
        ("images.keep_newest", Some("protect.keep_newest")),
        ("images.rules", Some("images.rule")),
        ("images.rule.min_agee", None),
        ("gc", None),
        ("leaks.x", None),
    ] {
        assert_eq!(keys::similar(name), expected, "{name}");
    }
}

#[test]
fn broken_file_leaves_defaults_and_state_directory() {
    let text = "state_dir = \"/srv/state\"\n[images]\nhigh_percent = 80\nmax = 1\n";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.toml"), text).unwrap();
    let flags = [flag("images.min_age", "--min-age", "0s")];
    let (config, problems) =
        Config::load_or_defaults(&Sysroot::at(dir.path()), Some(Path::new("/c.toml")), &flags).unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(config.state_dir, Path::new("/srv/state"));
    assert_eq!(
        (config.images.targets.used, config.images.min_age),
        (thresholds(75, 70), SignedDuration::ZERO)
    );
}

#[test]
fn origins_name_line_and_flag() {
    let config = load("precedence", &[flag("images.high_percent", "--high", "90")]).unwrap();
    fn shown(config: &Config, key: &str) -> Vec<String> {
        config.origins.get(key).into_iter().flatten().map(ToString::to_string).collect()
    }
    assert_eq!(shown(&config, "images.high_percent"), ["--high"]);
    assert_eq!(shown(&config, "protect.names").len(), 4, "{:?}", config.origins);
    let low = shown(&config, "images.low_percent");
    assert_eq!(low, ["/etc/layersweep/layersweep.toml, line 2, column 1"]);
    assert_eq!(shown(&config, "images.via"), [""; 0]);
    for (key, expected) in [
        ("images.high_percent", "90"),
        ("images.min_free", "\"off\""),
        ("images.min_age", "\"10m\""),
        ("stores.graphroot", "[\"/team-b\"]"),
        ("stores.runroot", "null"),
        ("protect.labels", "[\"keep\",\"tier=base\"]"),
    ] {
        let key = keys::KEYS.iter().find(|known| known.name == key).unwrap();
        assert_eq!((key.value)(&config).to_string(), expected, "{}", key.name);
    }
}

#[test]
fn thresholds_are_checked_together() {
    for (text, expected) in [
        ("images.high_percent = 90", Ok(thresholds(90, 70))),
        ("images.high_percent = 72", Ok(thresholds(72, 67))),
        ("images.high_percent = 3", Ok(thresholds(3, 0))),
        ("images.low_percent = 75", Ok(thresholds(75, 75))),
        ("images.high_percent = \"off\"", Ok(None)),
        ("images.high_percent = 0x50", Ok(thresholds(80, 70))),
        (
            "images.low_percent = 76",
            Err(
                "/c.toml, line 1, column 8: images.low_percent: the low threshold 76 is above the high threshold 75",
            ),
        ),
        (
            "images.high_percent = \"off\"\nimages.low_percent = 5",
            Err(
                "/c.toml, line 2, column 8: images.low_percent: without images.high_percent it has no effect",
            ),
        ),
        (
            "images.free_until = 5",
            Err("/c.toml, line 1, column 8: images.free_until: without images.min_free it has no effect"),
        ),
        (
            "[images]\nmin_free = 6\nfree_until = 5",
            Err("/c.toml, line 3, column 1: images.free_until: 5 bytes are less than images.min_free, 6"),
        ),
    ] {
        let used = config_of(text).map(|config| config.images.targets.used);
        assert_eq!(used, expected.map_err(|message| vec![message.to_owned()]), "{text}");
    }
    let inodes = config_of("images.inodes_high_percent = 80").unwrap().images.targets.inodes;
    assert_eq!(inodes, thresholds(80, 75));
    let floor = config_of("images.min_free = \"1GiB\"").unwrap().images.targets.free;
    assert_eq!(floor, Some(FreeFloor { start_below: 1 << 30, until: 1 << 30 }));
}

/// The target may not be mounted yet, and with it the protections would be missing.
#[test]
fn link_without_target_is_unreadable() {
    for link in ["etc/layersweep/layersweep.toml", "etc/layersweep/layersweep.toml.d", "etc/layersweep"] {
        let dir = tempfile::tempdir().unwrap();
        let sysroot = Sysroot::at(dir.path());
        assert!(Config::load(&sysroot, None, &[]).unwrap().files.is_empty(), "no file at all");
        let link = dir.path().join(link);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/not-mounted-yet", &link).unwrap();
        let Invalid(problems) = Config::load(&sysroot, None, &[]).unwrap_err();
        // A link to a directory without a configuration is no error.
        std::fs::create_dir(dir.path().join("not-mounted-yet")).unwrap();
        let linked_file = link.extension().is_some_and(|extension| extension == "toml");
        assert_eq!(Config::load(&sysroot, None, &[]).is_ok(), !linked_file, "{}", link.display());
        assert!(problems.iter().all(|problem| problem.message.starts_with("cannot be read")), "{problems:?}");
        assert!(!problems.is_empty(), "{}", link.display());
    }
}

const RULES: &str = "[images]\nmax_age = \"60d\"\n[[images.rule]]\nmatch = \"quay.io/team/*\"\nmin_age = \"1h\"\n\
    max_age = \"30d\"\nkeep_newest = 3\n\n[[images.rule]]\nmatch = \"quay.io/*\"\nmax_age = \"0s\"\n";

/// The rules of a drop-in come before those of the file that it overrides.
#[test]
fn rules_of_later_files_are_first() {
    let dir = tempfile::tempdir().unwrap();
    let etc = dir.path().join("etc/layersweep");
    std::fs::create_dir_all(etc.join("layersweep.toml.d")).unwrap();
    std::fs::write(etc.join("layersweep.toml"), RULES).unwrap();
    let drop_in =
        "images.rule = [{match = \"*/db:*\", max_age = \"off\"}, {match = \"a:*\", keep_newest = 0}]\n";
    std::fs::write(etc.join("layersweep.toml.d/db.toml"), drop_in).unwrap();
    let load = |flags: &[Flag]| Config::load(&Sysroot::at(dir.path()), None, flags).unwrap();
    let config = load(&[]);
    let place = "/etc/layersweep/layersweep.toml";
    let titles: Vec<_> = config.images.rules.iter().map(ImageRule::title).collect();
    assert_eq!(
        titles,
        [
            format!("*/db:* ({place}.d/db.toml:1)"),
            format!("a:* ({place}.d/db.toml:1)"),
            format!("quay.io/team/* ({place}:3)"),
            format!("quay.io/* ({place}:9)"),
        ]
    );
    let origins: Vec<_> = config.origins["images.rule"].iter().map(ConfigOrigin::line).collect();
    assert_eq!(origins, [1, 1, 3, 9]);
    let key = keys::KEYS.iter().find(|key| key.name == "images.rule").unwrap();
    assert_eq!(
        (key.value)(&config).to_string(),
        "[{\"match\":\"*/db:*\",\"max_age\":\"off\"},{\"keep_newest\":0,\"match\":\"a:*\"},{\"keep_newest\":3,\
         \"match\":\"quay.io/team/*\",\"max_age\":\"30d\",\"min_age\":\"1h\"},\
         {\"match\":\"quay.io/*\",\"max_age\":\"off\"}]"
    );
    // A flag overrides the ages of all files.
    let ages = |config: &Config| {
        let ages = config.images.rules.iter().map(|rule| (rule.min_age, rule.max_age.is_some()));
        ages.collect::<Vec<_>>()
    };
    let hour = Some(SignedDuration::from_hours(1));
    assert_eq!(ages(&config), [(None, true), (None, false), (hour, true), (None, true)]);
    let flagged = load(&[flag("images.min_age", "--min-age", "0s")]);
    assert_eq!(ages(&flagged), [(None, true), (None, false), (None, true), (None, true)]);
    let flagged = load(&[flag("images.max_age", "--max-age", "1d")]);
    assert_eq!(ages(&flagged), [(None, false), (None, false), (hour, false), (None, false)]);
}

#[test]
fn mistakes_in_rules_have_their_lines() {
    let text = "[[images.rule]]\nmatch = \"a:*\"\nmax_agee = \"30d\"\n\n[[images.rule]]\nmax_age = \"1d\"\n\n\
        [[images.rule]]\nmatch = \"\"\n\n[[images.rule]]\nmatch = \"[\"\n\n\
        [[images.rule]]\nmatch = \"b:*\"\nmin_age = 5\nkeep_newest = -1\n";
    let mut sources = Sources::default();
    sources.file(Path::new("/c.toml"), text);
    let (_, problems) = Config::finish(sources, &[], vec![]);
    let problems: Vec<_> = problems.iter().map(|problem| format!("{problem} [{}]", problem.remedy)).collect();
    let expected = [
        "3, column 1: images.rule.max_agee: unknown key [the keys here are match, min_age, max_age, keep_newest]",
        "5, column 1: images.rule: a rule needs `match`, the pattern of its images []",
        "9, column 9: images.rule.match: \"\" is not a pattern: an empty pattern matches nothing []",
        "12, column 9: images.rule.match: \"[\" is not a pattern: unclosed character class; missing ']' []",
        "16, column 11: images.rule.min_age: 5 is not a duration like \"5m30s\" []",
        "17, column 15: images.rule.keep_newest: -1 is less than 0 []",
    ];
    assert_eq!(problems, expected.map(|problem| format!("/c.toml, line {problem}")), "{problems:#?}");
    for text in ["images.rule = \"a\"", "images.rule = [\"a\"]", "[images.rule]\nmatch = \"a\""] {
        assert_eq!(config_of(text).unwrap_err().len(), 1, "{text}");
    }
}

#[test]
fn minimum_age_above_maximum_is_refused() {
    let rule =
        |values: &str| format!("[images]\nmax_age = \"30d\"\n[[images.rule]]\nmatch = \"a/*\"\n{values}\n");
    let inherited_max = "line 3, column 1: images.rule: the rule for \"a/*\": min_age, 60d, is longer than \
                         images.max_age, 30d (/c.toml:2)";
    for (text, expected) in [
        ("images.max_age = \"1m\"".to_owned(), None),
        ("[images]\nmin_age = \"60d\"\nmax_age = \"off\"".into(), None),
        ("[images]\nmin_age = \"30d\"\nmax_age = \"30d\"".into(), None),
        (
            "[images]\nmin_age = \"60d\"\nmax_age = \"30d\"".into(),
            Some("line 2, column 1: images.min_age: 60d is longer than images.max_age, 30d (/c.toml:3)"),
        ),
        (rule("max_age = \"1m\""), None),
        (rule("min_age = \"60d\"\nmax_age = \"off\""), None),
        (rule("min_age = \"60d\""), Some(inherited_max)),
        (
            rule("min_age = \"2d\"\nmax_age = \"36h\""),
            Some(
                "line 3, column 1: images.rule: the rule for \"a/*\": min_age, 2d, is longer than max_age, 36h",
            ),
        ),
        (
            "[images]\nmin_age = \"2d\"\n[[images.rule]]\nmatch = \"a/*\"\nmax_age = \"1h\"\n".into(),
            Some(
                "line 3, column 1: images.rule: the rule for \"a/*\": images.min_age, 2d (/c.toml:2), \
                 is longer than max_age, 1h",
            ),
        ),
    ] {
        let problems = config_of(&text).err().unwrap_or_default();
        let expected: Vec<_> = expected.map(|problem| format!("/c.toml, {problem}")).into_iter().collect();
        assert_eq!(problems, expected, "{text}");
    }
    let flags = [flag("images.min_age", "--min-age", "2d"), flag("images.max_age", "--max-age", "1d")];
    let Invalid(problems) = Config::defaults(&flags).unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "--min-age: images.min_age: 2d is longer than images.max_age, 24h (--max-age)"
    );
    assert_eq!(problems[0].remedy, "set images.min_age to 24h or less, or images.max_age to 2d or more");
    assert!(Config::defaults(&flags[..1]).is_ok() && Config::defaults(&flags[1..]).is_ok());
}

#[test]
fn values_without_effect_are_refused() {
    for (text, expected) in [
        ("[metrics]\nnamespaces = 101", "line 2, column 1: metrics.namespaces: 101 is more than 100"),
        ("metrics.places = 21", "line 1, column 9: metrics.places: 21 is more than 20"),
        (
            "[[images.rule]]\nmatch = \"a/*\"",
            "line 1, column 1: images.rule: the rule for \"a/*\" sets nothing",
        ),
        (
            "[[images.rules]]\nmatch = \"a/*\"\n[[images.rules]]\n",
            "line 1, column 10: images.rules: unknown key",
        ),
    ] {
        assert_eq!(config_of(text).unwrap_err(), [format!("/c.toml, {expected}")], "{text}");
    }
    assert!(config_of("metrics.namespaces = 100").is_ok());
}

#[test]
fn rule_behind_a_wider_one_is_reported() {
    let rule = |pattern: &str| format!("[[images.rule]]\nmatch = {pattern:?}\nmax_age = \"1d\"\n");
    for (first, second, expected) in [
        (
            "*",
            "quay.io/team/*",
            Some("\"quay.io/team/*\" never decides: \"*\" (/c.toml:1) matches first [move it above]"),
        ),
        ("a/*", "a/*", Some("\"a/*\" never decides: \"a/*\" (/c.toml:1) matches first [remove one of them]")),
        ("quay.io/team/*", "quay.io/*", None),
    ] {
        let config = config_of(&[first, second].map(rule).concat()).unwrap();
        let found = config.shadowed_rules().into_iter();
        let found: Vec<_> = found.map(|problem| format!("{problem} [{}]", problem.remedy)).collect();
        let expected = expected.map(|problem| format!("/c.toml, line 4, column 1: images.rule: {problem}"));
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }
    let mut sources = Sources::default();
    sources.file(Path::new("/a.toml"), &rule("a/b"));
    sources.file(Path::new("/b.toml"), &rule("a/*"));
    let (config, _) = Config::finish(sources, &[], vec![]);
    assert_eq!(config.shadowed_rules()[0].remedy, "move it to /b.toml, above that rule");
}
