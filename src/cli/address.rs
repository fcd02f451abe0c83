//! Where metrics are served, and the socket that is made there.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A socket in the filesystem.
    Unix(PathBuf),
    /// An address of this machine.
    Tcp(SocketAddr),
}

impl Address {
    /// `unix:PATH`, `IP:PORT`, or a port of the loopback alone. No host names: what they mean may
    /// change.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // As in `unix:///run/crio/crio.sock`.
            let path = path.strip_prefix("//").unwrap_or(path);
            return match Path::new(path).is_absolute() {
                true => Ok(Self::Unix(path.into())),
                false => Err("the socket path must be absolute, as in unix:/run/layersweep.sock".into()),
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

    /// Whether others than this machine may reach it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().to_canonical().is_loopback())
    }
}

/// A socket in the filesystem that is removed when it is dropped, if it is still the one we made.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    id: (u64, u64),
}

/// What the socket is not to have: who owns the process may connect, and its group.
const MASK: Mode = Mode::from_raw_mode(0o117);

/// A umask until it is dropped. The process has only one: no other thread may make files meanwhile.
pub(super) struct Masked(Mode);

impl Masked {
    /// For the making of a socket: a mode that is set later would be set on whatever has the name then.
    pub(super) fn for_socket() -> Self {
        Self(rustix::process::umask(MASK))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

impl Socket {
    /// Makes the socket, with the mode that the umask leaves. One that a process left when it was killed
    /// is replaced; nothing else is ever removed.
    pub(super) fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        clear(path)?;
        let listener = UnixListener::bind(path)?;
        let facts = fs::symlink_metadata(path)?;
        Ok((listener, Self { path: path.to_path_buf(), id: (facts.dev(), facts.ino()) }))
    }
}

/// Removes a socket that nobody listens on.
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
            // The name may have been taken since, by a socket that somebody listens on.
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
    /// Its path.
    pub(super) fn path(&self) -> &Path {
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
    fn addresses_are_explicit() {
        let tcp = |text: &str| Ok(Address::Tcp(text.parse().unwrap()));
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
    fn only_a_socket_that_nobody_listens_on_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (listener, socket) = Socket::bind(&path).unwrap();
        assert_eq!(Socket::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // As a kill leaves it.
        std::mem::forget(socket);
        drop(listener);
        let (_listener, socket) = Socket::bind(&path).unwrap();
        // Somebody has put another one there: it is not ours to remove.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        drop(socket);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(Socket::bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
