//! Text of the stopped containers in `usage` and `explain`. `report` and `gc` have the same removals in their ranked lists.

use super::format::{bytes, safe, wrapped};
use super::screen::Screen;
use super::table::heading;
use crate::services::diagnosis::{StoppedHolders, StoppedRemoval};

/// Width if the output is not a terminal.
const WIDTH: usize = 110;
/// Indentation below the figure.
const INDENT: &str = "            ";

/// Formats the stopped containers of a filesystem: what their own layers hold, the command, and what it lets `gc` free.
pub(super) fn stopped(holders: &StoppedHolders, mount: &str, screen: &Screen) -> String {
    let here = holders.removals.iter().filter(|removal| removal.filesystem == mount);
    let rows: String = here.map(|removal| row(removal, screen)).collect();
    if rows.is_empty() {
        return rows;
    }
    format!("\n{}{rows}", heading("Stopped containers, if nothing needs what they hold"))
}

fn row(removal: &StoppedRemoval, screen: &Screen) -> String {
    let width = screen.width.unwrap_or(WIDTH);
    let text = wrapped(&safe(&removal.text), width, INDENT);
    format!("{:>10}  {}{}", bytes(removal.own_bytes), text.trim_start(), command_and_effect(removal, width))
}

/// Formats the stopped containers that alone keep an image, or the one that is explained.
pub(super) fn removals(holders: &StoppedHolders, screen: &Screen) -> String {
    let width = screen.width.unwrap_or(WIDTH);
    let rows: String = holders.removals.iter().map(|removal| command_and_effect(removal, width)).collect();
    if rows.is_empty() { rows } else { format!("\n{}{rows}", heading("Only stopped containers keep it")) }
}

/// Formats a command, which is never wrapped, so that it can be copied, and its effect.
fn command_and_effect(removal: &StoppedRemoval, width: usize) -> String {
    let command = removal.command.as_ref();
    let command = command.map_or_else(String::new, |command| format!("{INDENT}{}\n", safe(command.text())));
    let effect = match removal.effect.as_str() {
        "" => String::new(),
        effect => wrapped(&safe(effect), width, INDENT),
    };
    command + &effect
}
