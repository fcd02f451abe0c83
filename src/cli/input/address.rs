//! Address of the metrics server, and the socket file that it creates.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Socket file.
    Unix(PathBuf),
    /// IP address and port of this machine.
    Tcp(SocketAddr),
}

impl Address {
    /// Parses `unix:PATH`, `IP:PORT`, or `PORT` for the loopback interface. Host names are rejected, because
    /// their addresses may change.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // The same form as in `unix:///run/crio/crio.sock`.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if Path::new(path).is_absolute() {
                Ok(Self::Unix(path.into()))
            } else {
                Err("the socket path must be absolute, as in unix:/run/layersweep.sock".into())
            };
        }
        if let Ok(port) = text.parse() {
            return Ok(Self::Tcp((IpAddr::from(Ipv4Addr::LOCALHOST), port).into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            "use unix:PATH, IP:PORT or PORT, as in 127.0.0.1:9753 or [::1]:9753; PORT alone listens on \
                127.0.0.1"
                .to_owned()
        })
    }

    /// Returns true if other machines can reach the address.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().to_canonical().is_loopback())
    }
}

/// Socket file, removed on drop if it is still the one that was created.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    id: (u64, u64),
}

/// Permissions that a socket does not get: only the owner of the process and its group can connect.
const MASK: Mode = Mode::from_raw_mode(0o117);

/// Keeps the umask [`MASK`] for the whole process, and restores the earlier umask on drop. A process has only one
/// umask: until the drop, other threads must not create files.
pub struct Masked(Mode);

impl Masked {
    /// Sets the umask before a socket is created: a later chmod could change another file under the same
    /// name.
    pub fn for_socket() -> Self {
        Self(rustix::process::umask(MASK))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

impl Socket {
    /// Creates the socket file with the permissions that the umask leaves. A file left by a killed process is
    /// replaced; no other file is removed.
    pub fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        clear(path)?;
        let listener = UnixListener::bind(path)?;
        let facts = fs::symlink_metadata(path)?;
        Ok((listener, Self { path: path.to_path_buf(), id: (facts.dev(), facts.ino()) }))
    }
}

/// Removes the file of a socket without a listener.
fn clear(path: &Path) -> io::Result<()> {
    let facts = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !facts.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Another process may have created a socket with the same name since.
            let now = fs::symlink_metadata(path)?;
            if (now.dev(), now.ino(), now.ctime_nsec()) != (facts.dev(), facts.ino(), facts.ctime_nsec()) {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process is creating it right now",
                ));
            }
            fs::remove_file(path)
        }
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(error) => Err(error),
    }
}

impl Socket {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let still = fs::symlink_metadata(&self.path).is_ok_and(|facts| (facts.dev(), facts.ino()) == self.id);
        if still && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("removing {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_without_host_names() {
        fn tcp(text: &str) -> Result<Address, String> {
            Ok(Address::Tcp(text.parse().unwrap()))
        }
        for (text, expected) in [
            ("9753", tcp("127.0.0.1:9753")),
            ("127.0.0.1:0", tcp("127.0.0.1:0")),
            ("[::1]:9753", tcp("[::1]:9753")),
            ("unix:/run/x.sock", Ok(Address::Unix("/run/x.sock".into()))),
            ("unix:///run/x.sock", Ok(Address::Unix("/run/x.sock".into()))),
        ] {
            assert_eq!(Address::parse(text), expected, "{text}");
        }
        for text in ["", "unix:", "unix:x.sock", "localhost:9753", ":9753", "127.0.0.1", "1.2.3.4:70000"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        for (text, open) in [
            ("9753", false),
            ("127.1.2.3:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.0.2.1:1", true),
            ("unix:/x", false),
        ] {
            assert_eq!(Address::parse(text).unwrap().is_open(), open, "{text}");
        }
    }

    #[test]
    fn only_a_socket_without_listener_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (listener, socket) = Socket::bind(&path).unwrap();
        assert_eq!(Socket::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // A killed process leaves its socket file.
        std::mem::forget(socket);
        drop(listener);
        let (_listener, socket) = Socket::bind(&path).unwrap();
        // A file that another process creates there is not removed.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        drop(socket);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(Socket::bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
