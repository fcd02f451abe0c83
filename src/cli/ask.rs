//! The question before deleting. It is asked on a terminal; elsewhere nobody can answer, and `--yes` has to
//! be given.

use std::io::{self, IsTerminal, Write};

use super::global::Global;
use crate::app::error::Error;

/// Whether there will be a question.
///
/// # Errors
/// Bad usage where it can be neither asked nor skipped. `command` is named in the message.
pub(super) fn asks(global: &Global, command: &str) -> Result<bool, Error> {
    // On a mounted disk nothing is deleted at all, and the command says so.
    if global.yes || global.request.sysroot.is_some() {
        return Ok(false);
    }
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        return Ok(true);
    }
    Err(Error::usage(format!("{command} deletes, and there is no terminal to ask on: nothing was deleted"))
        .hint("add -y to delete without a question, or --dry-run to see what would be deleted"))
}

/// Whether to go on. `y` and `yes` are a yes; anything else, and an end of the input, a no.
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
    fn only_a_yes_is_a_yes() {
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
