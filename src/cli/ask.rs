//! The question before deleting. It is asked on a terminal only: a timer has nobody to ask, and
//! does what the policy or the arguments say.

use std::io::{self, IsTerminal, Write};

use super::global::Global;
use crate::app::error::Error;

/// Whether anybody is there to be asked.
pub(super) fn somebody_is_there(global: &Global) -> bool {
    !global.yes && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Whether to go on. `y` and `yes` are a yes; anything else, and an end of the input, a no.
pub(super) fn confirm(global: &Global, question: &str) -> Result<bool, Error> {
    if !somebody_is_there(global) {
        return Ok(true);
    }
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
