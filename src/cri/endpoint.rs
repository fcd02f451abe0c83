//! The socket of a runtime.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path that fits a socket address (`sun_path` of Linux, less its final zero).
const MAX_PATH_BYTES: usize = 107;

/// A unix socket of a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    path: PathBuf,
}

/// An invalid endpoint, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a runtime endpoint: {why}")]
pub struct BadEndpoint {
    text: String,
    why: String,
}

impl Endpoint {
    /// The socket at an absolute path.
    ///
    /// # Errors
    /// When the path is not absolute, or longer than a socket's address can be.
    pub fn at(path: &Path) -> Result<Self, BadEndpoint> {
        let bad = |why: String| Err(BadEndpoint { text: path.display().to_string(), why });
        if !path.is_absolute() {
            return bad("it must be `unix:///path` or an absolute path".into());
        }
        let length = path.as_os_str().len();
        if length > MAX_PATH_BYTES {
            return bad(format!("its path has {length} bytes; a socket path has at most {MAX_PATH_BYTES}"));
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

    /// `unix:///path`, `unix:/path` (both are one name to gRPC) or a bare path, as the kubelet
    /// and crictl take them.
    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = |why: &str| BadEndpoint { text: text.to_owned(), why: why.to_owned() };
        let path = match text.split_once(':') {
            Some((scheme, rest)) if !scheme.contains('/') => {
                if !scheme.eq_ignore_ascii_case("unix") {
                    return Err(bad("only unix sockets are supported, as `unix:///path`"));
                }
                match rest.strip_prefix("//") {
                    Some(path) if !path.starts_with('/') => {
                        return Err(bad("a unix socket has no host: write `unix:///path`"));
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
    fn what_is_an_endpoint() {
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
    fn what_is_none() {
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
