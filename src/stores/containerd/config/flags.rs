//! Flags on the command lines of containerd, k3s and RKE2.

use std::path::{Path, PathBuf};

use crate::node::kubelet::DataDir;

/// Paths on a command line. Relative ones are ignored, because the working directory is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) config: Option<PathBuf>,
    pub(super) root: Option<PathBuf>,
    pub(super) state: Option<PathBuf>,
    pub(super) address: Option<PathBuf>,
    /// Data directory of k3s or RKE2.
    pub(super) data_dir: Option<DataDir>,
}

impl Flags {
    /// Parses a program and its arguments. Go's flags may start with one dash or two. k3s overwrites its arguments
    /// with its name after reading them, but its containerd has the paths.
    pub(super) fn parse(words: &[String]) -> Self {
        let mut flags = Self::default();
        let [program, words @ ..] = words else { return flags };
        let program = Path::new(program).file_name().unwrap_or_default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix('-') else { continue };
            let (name, value) = match flag.trim_start_matches('-').split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag.trim_start_matches('-'), None),
            };
            let known = match (program == "containerd", name) {
                (true, "c" | "config") => &mut flags.config,
                (true, "root") => &mut flags.root,
                (true, "state") => &mut flags.state,
                (true, "a" | "address") => &mut flags.address,
                (false, "d" | "data-dir") => {
                    let path = value.or_else(|| words.next()).map(PathBuf::from);
                    let origin = "a command line's data-dir".to_owned();
                    flags.data_dir =
                        path.filter(|path| path.is_absolute()).map(|path| DataDir { path, origin });
                    continue;
                }
                _ => continue,
            };
            let value = value.or_else(|| words.next()).map(PathBuf::from);
            *known = value.filter(|path| path.is_absolute());
        }
        flags
    }

    pub(super) fn names_paths(&self) -> bool {
        [&self.config, &self.root, &self.state, &self.address].into_iter().any(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed() {
        fn parse(line: &str) -> [String; 5] {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let flags = Flags::parse(&words);
            let data_dir = flags.data_dir.map(|dir| dir.path);
            let all = [flags.config, flags.root, flags.state, data_dir, flags.address];
            all.map(|path| path.map_or_else(String::new, |path| path.display().to_string()))
        }
        for (line, expected) in [
            ("", ["", "", "", "", ""]),
            ("/usr/bin/containerd", ["", "", "", "", ""]),
            ("containerd -c /c.toml -a /a.sock --state /s --root /r", ["/c.toml", "/r", "/s", "", "/a.sock"]),
            ("containerd --config=/c.toml -root=/r -state /s", ["/c.toml", "/r", "/s", "", ""]),
            ("containerd --address=/b.sock", ["", "", "", "", "/b.sock"]),
            ("containerd --root r --state", ["", "", "", "", ""]),
            ("containerd --root /a --root /b -d /c", ["", "/b", "", "", ""]),
            (
                "/usr/local/bin/k3s server -c /etc/rancher/k3s/config.yaml --data-dir /d",
                ["", "", "", "/d", ""],
            ),
            ("rke2 agent -d /d", ["", "", "", "/d", ""]),
            ("k3s agent --data-dir=d --root /r", ["", "", "", "", ""]),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
