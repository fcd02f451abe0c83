//! Names that a shell completes: from the records of the last scan alone.

use super::database::Database;
use super::request::Request;
use crate::history::{Access, known, pins};

/// What is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// Names of the images of the last scan.
    Images,
    /// Patterns of the keep-list.
    Pins,
}

/// Sorted, each once. None where there are no records, or they cannot be read. Names are foreign: those with
/// characters that a shell could act on are left out.
#[must_use]
pub fn candidates(request: &Request, what: Candidates) -> Vec<String> {
    let Ok(database) = Database::open(request, Access::Read) else { return Vec::new() };
    let found = database.read(|from| {
        Ok(match what {
            Candidates::Images => known::images(from)?.all().flat_map(|life| life.names.clone()).collect(),
            Candidates::Pins => pins::list(from)?.into_iter().map(|pin| pin.pattern).collect::<Vec<_>>(),
        })
    });
    let mut found = found.unwrap_or_default();
    found.retain(|name| is_harmless(name));
    found.sort_unstable();
    found.dedup();
    found
}

/// References and globs consist of these.
fn is_harmless(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"./:@_-+*?[]{},".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_shell_acts_on_a_candidate() {
        for name in ["docker.io/library/nginx:1.27", "reg:5000/a@sha256:00", "quay.io/{a,b}/*:v[0-9]?"] {
            assert!(is_harmless(name), "{name}");
        }
        for name in ["", "-y", "a b", "$(reboot)", "`x`", "a;b", "a\nb", "a'b", "a\\b", "画"] {
            assert!(!is_harmless(name), "{name}");
        }
    }
}
