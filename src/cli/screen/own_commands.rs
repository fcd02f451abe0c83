//! layersweep's own commands in its output. Each gets the global flags that named the stores, the records and the
//! configuration in this invocation, so that a copied command acts on the same ones.
//!
//! The texts are made in modules that do not know the flags, so the flags are added where the output is written: to a
//! command in backquotes, to an indented line that is a command, and to a field of a JSON document that is a command. A
//! flag that the command has already is not added again, so the same text may pass here twice.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use crate::cli::input::args::{Args, GlobalFlags};
use crate::model::text::display::shell_word;
use crate::report::text::{LABELS, safe};

const PROGRAM: &str = "layersweep";

/// Beginnings of a command in a text, before the name of the program.
const IN_BACKQUOTES: [&str; 3] = ["`", "`sudo ", "| "];
/// Fields with a command in a JSON document.
const IN_JSON: [&str; 3] = ["\"command\":", "\"deletes\":", "\"shows\":"];

/// Flags that name a store. A command with one of them means that store alone.
const STORES: [&str; 3] = ["graphroot", "containerd-root", "docker-root"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    Text,
    /// A JSON document, whose strings have escapes.
    Json,
}

#[derive(Clone, Debug)]
struct StoreFlag {
    name: &'static str,
    word: String,
}

impl StoreFlag {
    fn new(name: &'static str, value: &str) -> Self {
        Self { name, word: safe(&shell_word(value)) }
    }

    fn path(name: &'static str, path: &Path) -> Self {
        Self::new(name, &path.to_string_lossy())
    }

    /// Returns true if a command has the flag with this value.
    fn is_in(&self, command: &str, notation: Notation) -> bool {
        let text = self.text(notation);
        let mut rests = command.split(text.as_str()).skip(1);
        rests.any(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
    }

    fn text(&self, notation: Notation) -> String {
        let text = format!(" --{} {}", self.name, self.word);
        match notation {
            Notation::Text => text,
            Notation::Json => text.replace('\\', "\\\\").replace('"', "\\\""),
        }
    }
}

/// The global flags of this invocation that a printed command needs.
#[derive(Clone, Debug, Default)]
pub struct StoreFlags {
    flags: Vec<StoreFlag>,
    /// Names of layersweep's commands; empty without flags.
    commands: Vec<String>,
    /// True if the flags name another root (`--sysroot`).
    is_foreign: bool,
    /// True if a containerd is named without its socket, through which alone its images are deleted.
    lacks_socket: bool,
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

impl StoreFlags {
    pub fn of(global: &GlobalFlags) -> Self {
        let is_foreign = global.sysroot.is_some();
        // Below a sysroot, a path is that of the other node.
        let of_node: fn(&Path) -> PathBuf = if is_foreign { Path::to_path_buf } else { absolute };
        let mut flags = Vec::new();
        flags.extend(global.graphroot.iter().map(|path| StoreFlag::path("graphroot", &of_node(path))));
        let containerd_roots = global.containerd_root.iter();
        flags.extend(containerd_roots.map(|path| StoreFlag::path("containerd-root", &of_node(path))));
        flags.extend(global.docker_root.iter().map(|path| StoreFlag::path("docker-root", &of_node(path))));
        flags.extend(global.cri_endpoint.iter().map(|uri| StoreFlag::new("cri-endpoint", uri)));
        flags.extend(global.sysroot.iter().map(|path| StoreFlag::path("sysroot", &absolute(path))));
        flags.extend(global.runroot.iter().map(|path| StoreFlag::path("runroot", &of_node(path))));
        flags.extend(global.config.iter().map(|path| StoreFlag::path("config", &absolute(path))));
        flags.extend(global.state_dir.iter().map(|path| StoreFlag::path("state-dir", &of_node(path))));
        let commands = if flags.is_empty() {
            Vec::new()
        } else {
            Args::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
        };
        let lacks_socket = !global.containerd_root.is_empty() && global.cri_endpoint.is_none();
        Self { flags, commands, is_foreign, lacks_socket }
    }

    /// Adds the flags to the commands in a text.
    pub fn complete<'a>(&self, text: &'a str, notation: Notation) -> Cow<'a, str> {
        if self.flags.is_empty() || !text.contains(PROGRAM) {
            return text.into();
        }
        let mut out = String::with_capacity(text.len());
        let mut written = 0;
        for (position, _) in text.match_indices(PROGRAM) {
            let end = position + PROGRAM.len();
            let Some(closing) = closing(&text[..position], notation) else { continue };
            let command = text[end..].split(closing).next().unwrap_or_default();
            out.push_str(&text[written..end]);
            written = end;
            out.push_str(&self.missing(command, notation, is_of_user(&text[..position])));
        }
        out.push_str(&text[written..]);
        out.into()
    }

    /// Returns the flags that a command lacks. `command` begins after the name of the program. `of_user`: another user
    /// runs it, with records of their own.
    fn missing(&self, command: &str, notation: Notation, of_user: bool) -> String {
        let words: Vec<_> = command.split_whitespace().collect();
        let Some(name) = words.iter().find(|word| self.commands.iter().any(|name| name == *word)) else {
            return String::new();
        };
        // The program of the node itself has to delete: it is on its own disk.
        if !command.starts_with(char::is_whitespace) || self.is_foreign && acts(name, &words) {
            return String::new();
        }
        let names_store = STORES.iter().any(|name| has_flag(&words, name));
        // A command may name one of the stores of this invocation: it then needs what belongs to that store.
        let stores = self.flags.iter().filter(|flag| STORES.contains(&flag.name));
        let names_ours = stores.into_iter().any(|flag| flag.is_in(command, notation));
        let lacks = self.flags.iter().filter(|flag| match flag.name {
            "graphroot" | "containerd-root" | "docker-root" => !names_store,
            "runroot" if names_store => {
                !has_flag(&words, "runroot")
                    && self.graphroot_of(flag).is_some_and(|graphroot| graphroot.is_in(command, notation))
            }
            // The runtime does not use the store of another user.
            "cri-endpoint" if of_user => false,
            "runroot" | "cri-endpoint" => (!names_store || names_ours) && !has_flag(&words, flag.name),
            name => !of_user && !has_flag(&words, name),
        });
        let socket = self.lacks_socket && matches!(*name, "gc" | "rm") && !has_flag(&words, "cri-endpoint");
        lacks
            .map(|flag| flag.text(notation))
            .chain(socket.then(|| " --cri-endpoint URI".to_owned()))
            .collect()
    }

    fn graphroot_of(&self, runroot: &StoreFlag) -> Option<&StoreFlag> {
        let mut runroots = self.flags.iter().filter(|flag| flag.name == "runroot");
        let position = runroots.position(|flag| std::ptr::eq(flag, runroot))?;
        self.flags.iter().filter(|flag| flag.name == "graphroot").nth(position)
    }

    /// Returns a writer that adds the flags to the commands of a JSON document with line breaks.
    pub fn writer<W: Write>(&self, out: W) -> Completing<'_, W> {
        Completing { flags: self, out, line: Vec::new() }
    }
}

fn has_flag(words: &[&str], name: &str) -> bool {
    words.iter().any(|word| word.strip_prefix("--") == Some(name))
}

/// Returns true if another user runs the command after `before`, as in `podman unshare` or `as alice: podman unshare`.
fn is_of_user(before: &str) -> bool {
    let Some(before) = before.strip_suffix("podman unshare ") else { return false };
    let user = before.strip_suffix(": ").and_then(|before| before.rsplit_once("`as "));
    before.ends_with('`') || user.is_some_and(|(_, name)| !name.contains('`'))
}

/// Returns true for a command that changes a store or the keep-list, which never happens on a mounted disk.
fn acts(name: &str, words: &[&str]) -> bool {
    let acting: &[&str] = match name {
        "gc" | "rm" => return true,
        "sweep" => &["--delete", "--repair"],
        "pin" => &["add", "remove"],
        "scan" => &["--reserve"],
        _ => return false,
    };
    words.iter().any(|word| acting.contains(word))
}

/// Returns the sign that ends a command which begins after `before`; `None` if no command begins there.
fn closing(before: &str, notation: Notation) -> Option<char> {
    if IN_BACKQUOTES.iter().any(|beginning| before.ends_with(beginning)) || is_of_user(before) {
        return Some('`');
    }
    if notation == Notation::Json {
        let field = before.strip_suffix('"')?.trim_end_matches(' ');
        return IN_JSON.iter().any(|name| field.ends_with(name)).then_some('"');
    }
    // The lists of a report have commands on lines of their own.
    let line = before.rsplit('\n').next().unwrap_or_default();
    let is_blank = line.starts_with(' ') && line.trim_start_matches(' ').is_empty();
    (is_blank || LABELS.contains(&line)).then_some('\n')
}

/// Writer that completes the commands on each line. JSON has no line break within a string.
pub struct Completing<'a, W: Write> {
    flags: &'a StoreFlags,
    out: W,
    line: Vec<u8>,
}

impl<W: Write> Completing<'_, W> {
    /// Writes what remains.
    pub fn finish(mut self) -> io::Result<()> {
        self.write_line()?;
        self.out.flush()
    }

    fn write_line(&mut self) -> io::Result<()> {
        match std::str::from_utf8(&self.line) {
            Ok(line) => self.out.write_all(self.flags.complete(line, Notation::Json).as_bytes())?,
            Err(_) => self.out.write_all(&self.line)?,
        }
        self.line.clear();
        Ok(())
    }
}

impl<W: Write> Write for Completing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.write_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn flags(words: &[&str]) -> StoreFlags {
        let words = [&["layersweep", "usage"], words].concat();
        StoreFlags::of(&Args::parse_from(words).global)
    }

    /// Completes a text, and completes the result again.
    fn completed(flags: &StoreFlags, text: &str) -> String {
        let once = flags.complete(text, Notation::Text).into_owned();
        assert_eq!(flags.complete(&once, Notation::Text), once, "a second pass changes nothing");
        once
    }

    #[test]
    fn command_names_the_stores_once() {
        let named = flags(&["--graphroot", "/x y", "--runroot", "/r", "--state-dir", "/s"]);
        let all = "layersweep --graphroot '/x y' --runroot /r --state-dir /s";
        for (text, expected) in [
            ("layersweep: see `layersweep usage`, `x`.", format!("layersweep: see `{all} usage`, `x`.")),
            ("`layersweep\n    scan` and `layersweep gc`", format!("`{all}\n    scan` and `{all} gc`")),
            ("run `sudo layersweep pin add x`", format!("run `sudo {all} pin add x`")),
            (
                "`podman unshare layersweep gc`",
                "`podman unshare layersweep --graphroot '/x y' --runroot /r gc`".into(),
            ),
            (
                "`as alice: podman unshare layersweep gc`",
                "`as alice: podman unshare layersweep --graphroot '/x y' --runroot /r gc`".into(),
            ),
            (
                "`as alice: podman unshare layersweep gc --graphroot /of/alice`",
                "`as alice: podman unshare layersweep gc --graphroot /of/alice`".into(),
            ),
            ("`zcat a | layersweep report -`", format!("`zcat a | {all} report -`")),
            // A list of a report.
            (
                "layersweep deletes, because nothing uses it:\n   1 GiB\n      layersweep gc --via direct\n",
                format!(
                    "layersweep deletes, because nothing uses it:\n   1 GiB\n      {all} gc --via direct\n"
                ),
            ),
            // A finding of `sweep`.
            ("  command  layersweep rm aa\n", format!("  command  {all} rm aa\n")),
            // Another store, and one of these.
            (
                "`layersweep --containerd-root /c usage`",
                "`layersweep --state-dir /s --containerd-root /c usage`".into(),
            ),
            (
                "`layersweep gc --via direct --graphroot '/x y'`",
                "`layersweep --runroot /r --state-dir /s gc --via direct --graphroot '/x y'`".into(),
            ),
            ("`layersweep --version`, layersweep gc", "`layersweep --version`, layersweep gc".into()),
        ] {
            assert_eq!(completed(&named, text), expected);
        }
    }

    #[test]
    fn deleting_command_does_not_name_a_sysroot() {
        let foreign = flags(&["--sysroot", "/mnt"]);
        for (text, expected) in [
            ("`layersweep gc` or `layersweep scan`", "`layersweep gc` or `layersweep --sysroot /mnt scan`"),
            ("`layersweep sweep --delete`", "`layersweep sweep --delete`"),
            ("`layersweep sweep`", "`layersweep --sysroot /mnt sweep`"),
            ("   layersweep gc --via direct\n", "   layersweep gc --via direct\n"),
            ("`layersweep usage --sysroot /mnt`", "`layersweep usage --sysroot /mnt`"),
        ] {
            assert_eq!(completed(&foreign, text), expected);
        }
    }

    #[test]
    fn deletion_from_containerd_needs_its_socket() {
        let named = flags(&["--containerd-root", "/c"]);
        let (deletion, scan) = (
            "`layersweep --containerd-root /c --cri-endpoint URI rm aa`",
            "`layersweep --containerd-root /c scan`",
        );
        assert_eq!(completed(&named, "`layersweep rm aa`"), deletion);
        assert_eq!(completed(&named, "`layersweep scan`"), scan);
        let with_socket = flags(&["--containerd-root", "/c", "--cri-endpoint", "unix:///s"]);
        assert!(!completed(&with_socket, "`layersweep rm aa`").contains("URI"));
    }

    #[test]
    fn commands_of_a_document_are_completed() {
        let named = flags(&["--state-dir", "/a \"b\\"]);
        let document = serde_json::json!({
            "command": "layersweep gc --via direct",
            "steps": [{ "command": { "deletes": "layersweep rm aa" } }, { "command": { "shows": "layersweep layers" } }],
            "remedy": "see `layersweep doctor`",
            "name": "layersweep usage",
        });
        let mut pretty = Vec::new();
        let mut writer = named.writer(&mut pretty);
        serde_json::to_writer_pretty(&mut writer, &document).unwrap();
        writer.finish().unwrap();
        let compact = named.complete(&document.to_string(), Notation::Json).into_owned();
        for text in [String::from_utf8(pretty).unwrap(), compact] {
            let back: serde_json::Value = serde_json::from_str(&text).unwrap();
            let all = "layersweep --state-dir '/a \"b\\'";
            assert_eq!(back["command"], format!("{all} gc --via direct"));
            assert_eq!(back["steps"][0]["command"]["deletes"], format!("{all} rm aa"));
            assert_eq!(back["steps"][1]["command"]["shows"], format!("{all} layers"));
            assert_eq!(back["remedy"], format!("see `{all} doctor`"));
            assert_eq!(back["name"], "layersweep usage");
        }
    }
}
