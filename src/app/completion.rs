//! Names that a shell completes, read from the records of the last scan.

use crate::history::{Access, known, pins};
use crate::services::database::Database;
use crate::services::request::Request;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    Images,
    Pins,
}

/// Returns the names, sorted and without duplicates; none if there are no records or they cannot be read. Names
/// come from registries and users: those with characters that a shell could interpret are left out.
#[must_use]
pub fn candidates(request: &Request, kind: Candidates) -> Vec<String> {
    let Ok(database) = Database::open(request, Access::Read) else { return Vec::new() };
    let mut found = database
        .read(|connection| {
            Ok(match kind {
                Candidates::Images => {
                    known::images(connection)?.all().flat_map(|life| life.names.clone()).collect()
                }
                Candidates::Pins => {
                    pins::list(connection)?.into_iter().map(|pin| pin.pattern).collect::<Vec<_>>()
                }
            })
        })
        .unwrap_or_default();
    found.retain(|name| is_harmless(name));
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns true if the name consists of the characters of references and globs, and is not an option.
fn is_harmless(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./:@_-+*?[]{},".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_a_shell_interprets_is_left_out() {
        for name in ["docker.io/library/nginx:1.27", "reg:5000/a@sha256:00", "quay.io/{a,b}/*:v[0-9]?"] {
            assert!(is_harmless(name), "{name}");
        }
        for name in ["", "-y", "a b", "$(reboot)", "`x`", "a;b", "a\nb", "a'b", "a\\b", "画"] {
            assert!(!is_harmless(name), "{name}");
        }
    }
}
