//! Question before a deletion. It is asked on a terminal only; elsewhere `--yes` is required.

use std::io::{self, IsTerminal, Write};

use super::global::Global;
use crate::services::error::Error;

/// Returns true if the user must be asked.
///
/// # Errors
/// Returns an error of usage, which names `command`, if the question can be neither asked nor skipped.
pub(super) fn asks(global: &Global, command: &str) -> Result<bool, Error> {
    // Nothing is deleted from a mounted disk, and the command reports that itself.
    if global.yes || global.request.sysroot.is_some() {
        return Ok(false);
    }
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        return Ok(true);
    }
    Err(Error::usage(format!("{command} deletes, and there is no terminal to ask on: nothing was deleted"))
        .hint("add -y to delete without a question, or --dry-run to see what would be deleted"))
}

/// Asks the question and returns true for `y` and `yes`; any other answer and an end of the input mean no.
pub(super) fn confirm(question: &str) -> Result<bool, Error> {
    let mut stderr = io::stderr();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).map_err(Error::output)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Error::output)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    let answer = answer.trim();
    answer.eq_ignore_ascii_case("y") || answer.eq_ignore_ascii_case("yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_y_and_yes_are_accepted() {
        for (answer, yes) in [
            ("y\n", true),
            ("Yes\n", true),
            (" YES ", true),
            ("", false),
            ("\n", false),
            ("yep\n", false),
            ("n\n", false),
        ] {
            assert_eq!(is_yes(answer), yes, "{answer:?}");
        }
    }
}
