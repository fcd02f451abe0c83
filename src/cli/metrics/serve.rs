//! Metrics over HTTP: one answer a connection, made anew from the records, until a signal ends it.
//! Whoever asks together gets the same answer; nobody waits for who is silent, nor `/healthz` for a disk.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinSet, LocalSet};

use super::Source;
use super::address::{Address, Masked, Socket};
use super::connections::{Connections, Heard};
use super::shared::{Missing, Shared};
use crate::app::error::{Error, Exit};
use crate::app::observer::Observer as _;
use crate::report::metrics;

/// Connections at a time; one more ends the one that has been silent for longest.
const CONNECTIONS: usize = 128;
/// How long the metrics may be in the making: as long as Prometheus waits.
const MAKING: Duration = Duration::from_secs(10);
/// How long a request may be in coming.
const REQUEST: Duration = Duration::from_secs(5);
/// How long a connection may last.
const CONNECTION: Duration = Duration::from_secs(20);
/// How long answers under way are waited for at the end.
const FAREWELL: Duration = Duration::from_secs(3);
/// Pause where no connection can be taken, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes of a request's head, at most.
const HEAD_BYTES: usize = 16 << 10;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves until SIGTERM, SIGINT or SIGHUP.
pub(super) fn serve(source: Source, address: &Address) -> Result<Exit, Error> {
    let failed = |error: io::Error| failure(address, &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let serving = async {
        // Before anything can be connected to: whoever sees us listen may end us.
        let mut signals = Vec::new();
        for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
            signals.push(signal(kind).map_err(failed)?);
        }
        let listener = Listener::bind(address).map_err(failed)?;
        source.global.note(&format!("serving /metrics on {}", listener.address()));
        if address.is_open() {
            source.global.note("whoever reaches this address can read the metrics; 127.0.0.1 or a unix socket keeps them here",
            );
        }
        let page = Shared::new(MAKING, move || {
            source
                .gather()
                .map(|gathered| Bytes::from(metrics::text(&gathered.facts)))
                .map_err(|failure| failure.to_string())
        });
        accept(&listener, &mut signals, &Rc::new(page)).await;
        Ok(Exit::Done)
    };
    let done = LocalSet::new().block_on(&runtime, serving);
    // Not waiting for a filesystem that does not answer.
    runtime.shutdown_background();
    done
}

/// The metrics.
type Page = Shared<Bytes>;

fn failure(address: &Address, error: &io::Error) -> Error {
    let (place, hint) = match address {
        Address::Tcp(address) => (address.to_string(), "name another address or port"),
        Address::Unix(path) => (
            path.display().to_string(),
            match error.kind() {
                io::ErrorKind::AlreadyExists => "remove it, or name another path",
                io::ErrorKind::NotFound => "make its directory first",
                _ => "name another path",
            },
        ),
    };
    Error::failed(format!("cannot listen on {place}: {error}")).hint(hint)
}

enum Listener {
    Tcp(TcpListener),
    /// With the socket's file, which goes with it.
    Unix(UnixListener, Socket),
}

impl Listener {
    fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let listener = StdTcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(TcpListener::from_std(listener)?))
            }
            Address::Unix(path) => {
                // There is no thread yet beside this one.
                let masked = Masked::for_socket();
                let (listener, socket) = Socket::bind(path)?;
                drop(masked);
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(UnixListener::from_std(listener)?, socket))
            }
        }
    }

    /// Where it listens: the port that was chosen if none was named.
    fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}"),
                Err(error) => error.to_string(),
            },
            Self::Unix(_, socket) => format!("unix:{}", socket.path().display()),
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener, _) => listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

enum Event {
    Stop,
    Connected(io::Result<Stream>),
}

async fn accept(listener: &Listener, signals: &mut [Signal], page: &Rc<Page>) {
    let mut tasks = JoinSet::new();
    let mut connections = Connections::default();
    loop {
        let event = poll_fn(|cx| {
            if signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
                return Poll::Ready(Event::Stop);
            }
            while let Poll::Ready(Some(ended)) = tasks.poll_join_next(cx) {
                note_end(ended);
            }
            listener.poll_accept(cx).map(Event::Connected)
        });
        let heard = Heard::default();
        let (page, flag) = (Rc::clone(page), Rc::clone(&heard));
        let task = match event.await {
            Event::Stop => break,
            Event::Connected(Ok(Stream::Tcp(stream))) => {
                tasks.spawn_local(converse(TokioIo::new(stream), page, flag))
            }
            Event::Connected(Ok(Stream::Unix(stream))) => {
                tasks.spawn_local(converse(TokioIo::new(stream), page, flag))
            }
            Event::Connected(Err(error)) => {
                tracing::warn!("taking a connection: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        connections.make_room(CONNECTIONS);
        connections.add(task, heard);
    }
    let ending = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(FAREWELL, ending).await.is_err() {
        tracing::debug!("connections were left behind");
    }
}

fn note_end(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && !error.is_cancelled()
    {
        tracing::error!("answering: {error}");
    }
}

/// One request and its answer.
async fn converse(io: impl Read + Write + Unpin, page: Rc<Page>, heard: Heard) {
    let service = service_fn(|request: Request<Incoming>| {
        heard.set(true);
        let page = Rc::clone(&page);
        async move { Ok::<_, Infallible>(answer(&page, request.method(), request.uri().path()).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(io, service);
    match tokio::time::timeout(CONNECTION, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection: {error}"),
        Err(_) => tracing::debug!("a connection took too long"),
    }
}

async fn answer(page: &Page, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let is_get = matches!(*method, Method::GET | Method::HEAD);
    match path {
        "/metrics" | "/healthz" if !is_get => {
            let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET and HEAD only\n".into());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        "/metrics" => match page.get().await {
            Ok(page) => respond(StatusCode::OK, TEXT, page),
            Err(missing) => {
                tracing::warn!("answering: {missing}");
                // Its words may name files; they are for whoever reads our log.
                let (status, words) = match missing {
                    Missing::Late(_) => {
                        (StatusCode::SERVICE_UNAVAILABLE, "the records or a disk do not answer\n")
                    }
                    Missing::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the records cannot be read\n"),
                };
                respond(status, PLAIN, words.into())
            }
        },
        "/healthz" => respond(StatusCode::OK, PLAIN, "ok\n".into()),
        _ => respond(StatusCode::NOT_FOUND, PLAIN, "there are /metrics and /healthz\n".into()),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
