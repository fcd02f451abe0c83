//! Code blocks of a page, and the rule for each.

use std::path::{Path, PathBuf};

/// A code block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Path of the page.
    pub page: PathBuf,
    /// Line of its fence, from 1.
    pub line: usize,
    /// First word after the fence.
    pub language: String,
    /// Content of the block.
    pub text: String,
    /// Words of the marker above the block.
    pub marker: Vec<String>,
    /// Number of spaces before the fence.
    indent: usize,
}

/// Check for a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Commands to run on the prepared node.
    Run(Run),
    /// Commands after `$ `, each with its output.
    Screen(Run),
    /// Commands whose form is checked.
    Parse,
    /// A configuration of layersweep.
    Toml,
    /// Other TOML, JSON or YAML.
    Data,
    /// Text without commands.
    Text,
}

/// Options of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Exit code of the last command.
    pub exit: i32,
    /// True without a container runtime.
    pub no_runtime: bool,
    /// True on a filesystem without a free byte.
    pub full_disk: bool,
    /// True on a filesystem without a free inode.
    pub no_inodes: bool,
    /// A new node, without records of layersweep and without leaks.
    pub bare: Option<Bare>,
    /// True if a new image can be pulled and run afterwards.
    pub works: bool,
    /// True on a new node, whatever the earlier blocks did.
    pub fresh: bool,
    /// True if the output must be as shown, except for figures; else only the headlines of tables are compared.
    pub exact: bool,
    /// Words to replace.
    pub replace: Vec<(String, String)>,
}

/// Owner of a bare node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    CriO,
    Podman,
    /// With a build container, an image without a name and a volume.
    PodmanBuilds,
    Containerd,
    /// With images of a second namespace.
    ContainerdNamespaces,
    ContainerdOnBtrfs,
    /// The disk of a node that does not run, mounted on `/mnt/node-7`.
    Dead,
}

/// Commands that change the machine, or need more than a node has: a cluster, or a file of the reader. They are only
/// parsed.
const OF_THE_MACHINE: &[&str] = &[
    "apk",
    "apt",
    "apt-get",
    "awk",
    "butane",
    "cargo",
    "cat",
    "chmod",
    "cosign",
    "cp",
    "crictl",
    "crontab",
    "cryptsetup",
    "ctr",
    "curl",
    "dd",
    "dmesg",
    "dnf",
    "docker",
    "dpkg",
    "echo",
    "export",
    "git",
    "gpg",
    "grafana-cli",
    "helm",
    "install",
    "journalctl",
    "jq",
    "kubectl",
    "lintian",
    "ln",
    "logger",
    "losetup",
    "lsblk",
    "make",
    "mkdir",
    "mount",
    "mv",
    "oc",
    "podman-compose",
    "printf",
    "promtool",
    "restorecon",
    "rm",
    "rpm",
    "rpm-ostree",
    "rpmlint",
    "scp",
    "sed",
    "semanage",
    "sha256sum",
    "sqlite3",
    "ssh",
    "sudo",
    "systemctl",
    "systemd-analyze",
    "tar",
    "tee",
    "touch",
    "umount",
    "vgchange",
    "vi",
    "wget",
    "xdg-open",
    "yum",
    "zypper",
];

impl Block {
    /// Returns page and line, for messages.
    pub fn place(&self) -> String {
        format!("{}:{}", self.page.display(), self.line)
    }

    /// Returns the commands: the whole text, or the lines of a screen after `$ `.
    pub fn commands(&self) -> String {
        if !self.is_screen() {
            return self.text.clone();
        }
        let steps = self.steps().into_iter().map(|(command, _)| command);
        steps.collect::<Vec<_>>().join("\n") + "\n"
    }

    /// Returns the commands of a screen, each with its output.
    pub fn steps(&self) -> Vec<(String, Vec<String>)> {
        let mut steps: Vec<(String, Vec<String>)> = Vec::new();
        let prompt = self.prompt();
        for line in self.text.lines() {
            match (line.strip_prefix(prompt), steps.last_mut()) {
                (Some(command), _) => steps.push((command.to_owned(), Vec::new())),
                (None, Some((command, _))) if command.ends_with('\\') => {
                    command.push('\n');
                    command.push_str(line);
                }
                (None, Some((_, output))) => output.push(line.to_owned()),
                (None, None) => {}
            }
        }
        steps
    }

    fn is_screen(&self) -> bool {
        self.found_prompt().is_some()
    }

    /// Returns the prompt before the commands.
    pub fn prompt(&self) -> &'static str {
        self.found_prompt().unwrap_or("$ ")
    }

    /// Finds `$ `, or root's `# ` unless it begins a comment of a script.
    fn found_prompt(&self) -> Option<&'static str> {
        let first = self.text.lines().next().unwrap_or_default();
        let no_script = matches!(self.language.as_str(), "" | "console");
        match first.strip_prefix("# ") {
            Some(command) if no_script && command.starts_with(|c: char| c.is_ascii_lowercase()) => Some("# "),
            _ => self.text.lines().any(|line| line.starts_with("$ ")).then_some("$ "),
        }
    }

    /// Returns the rule for the block.
    ///
    /// # Errors
    /// If no rule covers it, the message says what to do.
    pub fn rule(&self) -> Result<Rule, String> {
        let words: Vec<&str> = self.marker.iter().map(String::as_str).collect();
        match words.as_slice() {
            [] => {}
            ["parse" | "text", rest @ ..] if rest.len() < 2 => {
                return Err("the marker has to say why: <!-- test: parse since it needs a cluster -->".into());
            }
            ["parse", ..] => return Ok(Rule::Parse),
            ["text", ..] => return Ok(Rule::Text),
            ["run", options @ ..] => {
                let run = run(options)?;
                return Ok(if self.is_screen() { Rule::Screen(run) } else { Rule::Run(run) });
            }
            other => return Err(format!("no marker begins with {:?}: run, parse or text", other[0])),
        }
        match self.language.as_str() {
            "sh" | "bash" | "shell" | "console" | "" if self.is_only_parsed() => Ok(Rule::Parse),
            "sh" | "bash" | "shell" | "console" | "" if self.is_screen() => Ok(Rule::Screen(Run::default())),
            "sh" | "bash" | "shell" => Ok(Rule::Run(Run::default())),
            "" if self.text.lines().all(|line| line.is_empty() || line.starts_with("layersweep ")) => {
                Ok(Rule::Run(Run::default()))
            }
            "toml" => Ok(Rule::Toml),
            "json" | "yaml" => Ok(Rule::Data),
            "text" | "ini" | "dockerfile" | "promql" | "sql" => Ok(Rule::Text),
            other => Err(format!(
                "no rule covers a block of {other:?}: call it sh, console, toml, json, yaml, ini or text"
            )),
        }
    }

    /// Returns whether any command is never run here, is about a disk of another node, needs a registry, or does not
    /// end by itself.
    fn is_only_parsed(&self) -> bool {
        let commands = self.commands();
        let mut words = commands.lines().map(|line| line.split_whitespace().next().unwrap_or_default());
        words.any(|word| OF_THE_MACHINE.contains(&word))
            || ["--sysroot ", "--listen ", "podman build ", "podman pull ", "podman push "]
                .iter()
                .any(|words| commands.contains(words))
    }
}

fn run(options: &[&str]) -> Result<Run, String> {
    let mut run = Run::default();
    for option in options {
        match option.split_once('=') {
            Some(("exit", code)) => {
                run.exit = code.parse().map_err(|_| format!("exit={code} is no exit code"))?
            }
            Some(("runtime", "off")) => run.no_runtime = true,
            Some(("disk", "full")) => run.full_disk = true,
            Some(("disk", "inodes")) => run.no_inodes = true,
            Some((word, by)) if word.chars().all(|c| c.is_ascii_uppercase()) => {
                run.replace.push((word.to_owned(), by.to_owned()));
            }
            None if *option == "exact" => run.exact = true,
            None if *option == "fresh" => run.fresh = true,
            None if *option == "works" => run.works = true,
            Some(("bare", name)) => {
                let bare = match name {
                    "cri-o" => Bare::CriO,
                    "podman" => Bare::Podman,
                    "podman-builds" => Bare::PodmanBuilds,
                    "containerd" => Bare::Containerd,
                    "containerd-namespaces" => Bare::ContainerdNamespaces,
                    "dead" => Bare::Dead,
                    "containerd-btrfs" => Bare::ContainerdOnBtrfs,
                    _ => return Err(format!("no bare node is {name:?}")),
                };
                (run.fresh, run.bare) = (true, Some(bare));
            }
            _ => {
                return Err(format!(
                    "no option of `run` is {option:?}: exact, fresh, works, bare=NODE, exit=N, runtime=off, disk=full, disk=inodes, WORD=TEXT"
                ));
            }
        }
    }
    Ok(run)
}

/// Returns the code blocks of a page, or an error if a fence is not closed.
pub fn of_page(page: &Path, text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut marker = Vec::new();
    let mut open: Option<(String, Block)> = None;
    for (line_ix, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        if let Some((fence, block)) = &mut open {
            if bare.trim_end() == fence.as_str() {
                blocks.extend(open.take().map(|(_, block)| block));
            } else {
                // In a list a block has the indentation of its fence.
                let indent = (line.len() - bare.len()).min(block.indent);
                block.text.push_str(&line[indent..]);
                block.text.push('\n');
            }
            continue;
        }
        if let Some(words) =
            bare.strip_prefix("<!-- test:").and_then(|rest| rest.trim_end().strip_suffix("-->"))
        {
            marker = words.split_whitespace().map(str::to_owned).collect();
        } else if bare.starts_with("```") {
            let fence: String = bare.chars().take_while(|c| *c == '`').collect();
            let language = bare[fence.len()..].split_whitespace().next().unwrap_or_default().to_owned();
            let (page, marker) = (page.to_path_buf(), std::mem::take(&mut marker));
            let indent = line.len() - bare.len();
            open = Some((
                fence,
                Block { page, line: line_ix + 1, language, text: String::new(), marker, indent },
            ));
        } else if !bare.is_empty() && !marker.is_empty() {
            return Err(format!("{}:{}: a marker without a block behind it", page.display(), line_ix + 1));
        }
    }
    match open {
        Some((_, block)) => Err(format!("{}: the block is never closed", block.place())),
        None => Ok(blocks),
    }
}
