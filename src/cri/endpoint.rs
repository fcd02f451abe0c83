//! Socket address of a runtime.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum length of the path of a socket address (`sun_path` on Linux, without its final zero).
const MAX_PATH_BYTES: usize = 107;

/// Unix socket of a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    path: PathBuf,
}

/// A text that is not an endpoint, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a runtime endpoint: {reason}")]
pub struct BadEndpoint {
    text: String,
    reason: String,
}

impl Endpoint {
    /// Returns the endpoint with the absolute `path`.
    ///
    /// # Errors
    /// If the path is not absolute, or is longer than a socket address can be.
    pub fn at(path: &Path) -> Result<Self, BadEndpoint> {
        let text = path.display().to_string();
        if !path.is_absolute() {
            return Err(BadEndpoint { text, reason: "it must be `unix:///path` or an absolute path".into() });
        }
        let length = path.as_os_str().len();
        if length > MAX_PATH_BYTES {
            let reason = format!("its path has {length} bytes; a socket path has at most {MAX_PATH_BYTES}");
            return Err(BadEndpoint { text, reason });
        }
        Ok(Self { path: path.to_path_buf() })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    /// Parses `unix:///path`, `unix:/path` (gRPC treats both alike) or a bare path, as the kubelet and crictl do.
    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        fn bad(text: &str, reason: &str) -> BadEndpoint {
            BadEndpoint { text: text.to_owned(), reason: reason.to_owned() }
        }

        let path = match text.split_once(':') {
            Some((scheme, rest)) if !scheme.contains('/') => {
                if !scheme.eq_ignore_ascii_case("unix") {
                    return Err(bad(text, "only unix sockets are supported, as `unix:///path`"));
                }
                match rest.strip_prefix("//") {
                    Some(path) if !path.starts_with('/') => {
                        return Err(bad(text, "a unix socket has no host: write `unix:///path`"));
                    }
                    Some(path) => path,
                    None => rest,
                }
            }
            _ => text,
        };
        Self::at(Path::new(path)).map_err(|error| BadEndpoint { text: text.to_owned(), ..error })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unix://{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_are_endpoints() {
        for (text, path) in [
            ("unix:///run/crio/crio.sock", "/run/crio/crio.sock"),
            ("unix:/run/crio/crio.sock", "/run/crio/crio.sock"),
            ("UNIX:///run/a", "/run/a"),
            ("/run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
            ("/run/with:colon", "/run/with:colon"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.path(), Path::new(path), "{text}");
            assert_eq!(endpoint.to_string(), format!("unix://{path}"));
        }
    }

    #[test]
    fn other_addresses_are_rejected() {
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        for (text, part) in [
            ("tcp://127.0.0.1:1", "only unix sockets"),
            ("http://localhost", "only unix sockets"),
            ("npipe:////./pipe/containerd", "only unix sockets"),
            ("unix://run/crio.sock", "no host"),
            ("unix:run/crio.sock", "absolute path"),
            ("unix:@abstract", "absolute path"),
            ("crio.sock", "absolute path"),
            ("", "absolute path"),
            (long.as_str(), "108 bytes"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
    }
}
