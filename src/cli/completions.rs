//! `layersweep completions SHELL`, and the names that its scripts query.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap_complete::Shell;

use super::settings;
use crate::app::completion::{Candidates, candidates};
use crate::cli::input::args::{Args, CompletionsArgs};
use crate::cli::input::help;
use crate::cli::screen::output;
use crate::services::error::{Error, Exit};
use crate::services::user_records;

const NAME: &str = "layersweep";

/// First argument of the call by which the scripts query names; it is not in the help.
pub(super) const ARGUMENT: &str = "__candidates";

/// bash splits image names at their colons, so the part before the last colon is removed.
const BASH: &str = r#"
_layersweep_names() {
    local line=${COMP_LINE:0:COMP_POINT} kind= word name command= action= value=
    local -i at
    for ((at = 1; at < COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        [[ $word == = ]] && continue
        if [[ -n $value ]]; then value=; continue; fi
        case $word in
            --graphroot | --runroot | --containerd-root | --docker-root | --cri-endpoint | --sysroot | --config | --state-dir) value=1 ;;
            --format | --color | --threads | --io-priority | --min-age | --via | --note) value=1 ;;
            -* | :) ;;
            *) if [[ -z $command ]]; then command=$word; elif [[ -z $action ]]; then action=$word; fi ;;
        esac
    done
    word=${line##*[[:space:]]}
    case $command/$action in
        explain/* | rm/* | pin/add | history/* | waste/*) kind=images ;;
        pin/remove | pin/rm) kind=pins ;;
    esac
    if [[ -z $kind || $word == -* || -n $value ]]; then
        _layersweep "$@"
        return
    fi
    COMPREPLY=()
    while IFS= read -r name; do
        [[ $name == "$word"* ]] && printf -v name %q "$name" && COMPREPLY+=("${name#"${word%"${word##*:}"}"}")
    done < <(layersweep __candidates "$kind" 2>/dev/null)
    [[ $command/$action == history/ && usage == "$word"* ]] && COMPREPLY+=(usage)
}
complete -F _layersweep_names -o bashdefault -o default layersweep
"#;

const ZSH: &str = r#"
_layersweep_names() {
    local -a names
    # _arguments inserts options of compadd before the kind of names.
    names=(${(f)"$(layersweep __candidates ${@[-1]} 2>/dev/null)"})
    compadd "${@[1,-2]}" -a names
}
"#;

const FISH: &str = r#"
complete -c layersweep -n "__fish_layersweep_using_subcommand explain history waste" -a "(layersweep __candidates images 2>/dev/null)"
complete -c layersweep -n "__fish_layersweep_using_subcommand rm" -f -a "(layersweep __candidates images 2>/dev/null)"
complete -c layersweep -n "__fish_layersweep_using_subcommand pin; and __fish_seen_subcommand_from add" -f -a "(layersweep __candidates images 2>/dev/null)"
complete -c layersweep -n "__fish_layersweep_using_subcommand pin; and __fish_seen_subcommand_from remove rm" -f -a "(layersweep __candidates pins 2>/dev/null)"
"#;

pub(super) fn run(args: &CompletionsArgs) -> Result<Exit, Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut help::command(), NAME, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let script = match args.shell {
        Shell::Bash => script + BASH,
        Shell::Fish => script + FISH,
        Shell::Zsh => with_names(&script),
        _ => script,
    };
    output::script(&script)?;
    Ok(Exit::Done)
}

/// Inserts the functions that complete names into the zsh script, which names them in the description of each
/// argument.
fn with_names(script: &str) -> String {
    let mut out = String::with_capacity(script.len());
    for (position, line) in script.lines().enumerate() {
        let names = match line {
            _ if line.contains("::references -- ") || line.contains(":reference -- ") => Some("images"),
            _ if line.contains("::image -- ") => Some("images"),
            _ if line.contains("::patterns -- Patterns as") => Some("pins"),
            _ if line.contains("::patterns -- ") => Some("images"),
            _ => None,
        };
        match names.and_then(|names| Some((line.strip_suffix(":_default' \\")?, names))) {
            Some((line, names)) => out.push_str(&format!("{line}:_layersweep_names {names}' \\")),
            None => out.push_str(line),
        }
        out.push('\n');
        if position == 0 {
            out.push_str(ZSH);
        }
    }
    out
}

/// Prints one name on each line. It never fails and never scans, because a shell waits for it.
pub(super) fn names(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let candidate_kind = match arguments.next().as_deref().and_then(|kind| kind.to_str()) {
        Some("images") => Candidates::Images,
        Some("pins") => Candidates::Pins,
        _ => return ExitCode::SUCCESS,
    };
    let no_flags = Args::try_parse_from([NAME, "usage"]).ok();
    if let Some((mut global, ..)) = no_flags.and_then(|args| settings::read_anyway(&args.global).ok()) {
        if let Some(choice) = user_records::choose(&global.request, false) {
            global.request.state_dir = choice.dir;
        }
        // A shell that has exited needs no names: ignore the error.
        let _ = output::ids(candidates(&global.request, candidate_kind).iter().map(String::as_str));
    }
    ExitCode::SUCCESS
}
