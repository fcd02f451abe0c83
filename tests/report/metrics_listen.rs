//! `metrics --listen`: answers, clients that do not get one, and existing sockets.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::metrics::Scrape;
use support::{past, program};

/// Timeout for an answer on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server, which is killed when the test ends.
struct Server {
    child: Child,
    /// Address that it reports.
    address: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(state: &Path, listen: &str) -> Self {
        Self::start_as(program::command(), state, listen)
    }

    fn start_as(mut command: Command, state: &Path, listen: &str) -> Self {
        command.args(["metrics", "--listen", listen, "--state-dir"]).arg(state);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.strip_prefix("note: serving /metrics on ");
        let address = address.unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        Self { child, address, stderr }
    }

    fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn get(&self, path: &str) -> Answer {
        ask(self.tcp(), &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }

    /// Ends the server as systemd does; returns the rest of its messages.
    fn stop(mut self, signal: Signal) -> String {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "a signal is not a failure");
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn ask(mut stream: impl Read + Write, request: &str) -> Answer {
    // The server may answer before it has read everything, and hang up.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

fn state() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), jiff::Timestamp::now());
    dir
}

#[test]
fn every_answer_is_current() {
    let state = state();
    let server = Server::start(state.path(), "0");
    assert!(server.address.starts_with("http://127.0.0.1:"), "a port alone means the loopback device");
    let answer = server.get("/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{answer:?}");
    assert!(answer.head.contains("connection: close"), "{answer:?}");
    fn scans(answer: &Answer) -> f64 {
        Scrape::read(&answer.body).sum("scans_total", &[])
    }
    let before = scans(&answer);
    rusqlite::Connection::open(state.path().join("layersweep.db"))
        .unwrap()
        .execute("UPDATE counters SET value = value + 1 WHERE name = 'runs' AND label = 'done'", [])
        .unwrap();
    assert_eq!(scans(&server.get("/metrics?x=1")), before + 1.0);
    assert_eq!(server.get("/healthz").body, "ok\n");
    assert_eq!(server.get("/").status, 404);
    assert_eq!(server.get("/metrics/../etc").status, 404);
    let post = ask(server.tcp(), "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(post.status, 405);
    assert!(post.head.contains("allow: get, head"));
    let head = ask(server.tcp(), "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    // Damaged records are reported, not hidden behind an error.
    std::fs::write(state.path().join("layersweep.db"), "no database").unwrap();
    let _ = std::fs::remove_file(state.path().join("layersweep.db-wal"));
    let damaged = server.get("/metrics");
    assert_eq!((damaged.status, Scrape::read(&damaged.body).one("database_ok", &[])), (200, 0.0));
    assert_eq!(server.stop(Signal::SIGTERM), "");
}

#[test]
fn slow_clients_do_not_block_answers() {
    let state = state();
    let server = Server::start(state.path(), "[::1]:0");
    fn rss(server: &Server) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim();
        line.trim_end_matches(" kB").parse::<u64>().unwrap()
    }
    fn open(server: &Server) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count()
    }
    server.get("/metrics");
    let (memory, files) = (rss(&server), open(&server));
    // More clients that send nothing, or too little, than the server talks to at a time.
    let mut idle: Vec<_> = (0..300).map(|_| server.tcp()).collect();
    for (number, stream) in idle.iter_mut().enumerate() {
        let _ = stream.write_all(&b"GET /metrics HTTP/1.1\r\nX: "[..number % 20]);
    }
    let began = Instant::now();
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/metrics").status, 200);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    drop(idle);
    // Many requests at once, as after an hour without a network.
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| assert_eq!(server.get("/metrics").status, 200));
        }
    });
    // A head without end, and a request that is not HTTP.
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert!(matches!(ask(server.tcp(), &long).status, 400 | 431));
    let many: String = (0..2000).map(|number| format!("X-{number}: y\r\n")).collect();
    assert!(matches!(ask(server.tcp(), &format!("GET / HTTP/1.1\r\n{many}\r\n")).status, 400 | 431));
    assert_eq!(ask(server.tcp(), "\u{16}\u{3}\u{1} hello\r\n\r\n").status, 400);
    for _ in 0..100 {
        assert_eq!(server.get("/metrics").status, 200);
    }
    let end = Instant::now() + PATIENCE;
    while open(&server) > files && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(open(&server) <= files, "{} files are open, and {files} were", open(&server));
    assert!(rss(&server) < memory + (32 << 10), "{} KiB, and {memory} before", rss(&server));
    server.stop(Signal::SIGINT);
}

#[test]
fn socket_belongs_to_server() {
    let state = state();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    let listen = format!("unix:{}", path.display());
    fn get(path: &Path) -> u16 {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").status
    }
    fn refused(listen: &str, state: &tempfile::TempDir) -> String {
        let mut command = program::command();
        command.args(["metrics", "--listen", listen, "--state-dir"]).arg(state.path());
        let run = program::run(&mut command).expect_code(1);
        assert!(
            run.stderr.starts_with("error: cannot listen on ") && run.stderr.contains("hint: "),
            "{run:?}"
        );
        run.stderr
    }
    let server = Server::start(state.path(), &listen);
    assert_eq!(get(&path), 200);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    assert!(refused(&listen, &state).contains("another process listens there"));
    assert_eq!(get(&path), 200, "the first one is not affected");
    server.stop(Signal::SIGTERM);
    assert!(!path.exists(), "the socket is removed with its process");
    // A killed server leaves the socket, and the next one replaces it.
    drop(Server::start(state.path(), &listen));
    assert!(path.exists());
    let server = Server::start(state.path(), &listen);
    assert_eq!(get(&path), 200);
    server.stop(Signal::SIGHUP);
    // A file that is not a socket is not changed.
    std::fs::write(&path, "mine").unwrap();
    assert!(refused(&listen, &state).contains("the path exists and is not a socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

/// Other users may write to its directory: a mode that is set by name would be set on a file that they put there.
#[test]
fn socket_has_its_mode_from_start() {
    if !support::require_program("strace") {
        return;
    }
    let (state, dir) = (state(), tempfile::tempdir().unwrap());
    let (path, traced) = (dir.path().join("metrics.sock"), dir.path().join("trace"));
    let mut strace = Command::new("strace");
    program::hermetic(&mut strace);
    // The child is the program; strace traces it from outside.
    strace.args(["-D", "-f", "-e", "trace=bind,umask,chmod,fchmod,fchmodat,?fchmodat2", "-o"]).arg(&traced);
    strace.arg(env!("CARGO_BIN_EXE_layersweep"));
    let server = Server::start_as(strace, state.path(), &format!("unix:{}", path.display()));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    server.stop(Signal::SIGTERM);
    assert_eq!(mode & 0o777, 0o660);
    let end = Instant::now() + PATIENCE;
    let mut calls = String::new();
    while !calls.contains("+++ exited") && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        calls = std::fs::read_to_string(&traced).unwrap();
    }
    assert!(calls.contains("metrics.sock") && calls.contains("umask(0117)"), "{calls}");
    assert!(!calls.contains("chmod"), "{calls}");
    assert_eq!(calls.matches("umask(").count(), 2, "it is taken back: {calls}");
}

#[test]
fn public_address_is_warned_about() {
    let state = tempfile::tempdir().unwrap();
    let server = Server::start(state.path(), "0.0.0.0:0");
    let rest = server.stop(Signal::SIGTERM);
    assert!(rest.starts_with("note: anyone who can reach this address can read the metrics"), "{rest}");
}
