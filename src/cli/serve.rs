//! `metrics --listen`: a small HTTP server for Prometheus.
//!
//! A client, even a hostile one, can make it use only a few connections, bytes and threads. It can delay the
//! answers to others at most for the maximum time of a silent connection.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shared::{NoAnswer, Shared};
use crate::cli::input::address::{Address, Masked, Socket};
use crate::cli::screen::stop;
use crate::services::error::{Error, Exit};
use crate::services::observer::Observer;

/// Maximum number of connections; more wait until one ends.
const CONNECTIONS: u32 = 128;
/// Maximum time to make the metrics: as long as Prometheus waits by default.
const MAKING: Duration = Duration::from_secs(10);
const REQUEST: Duration = Duration::from_secs(5);
/// Maximum duration of a connection.
const CONNECTION: Duration = Duration::from_secs(20);
/// Maximum time to wait for current answers at the end.
const FAREWELL: Duration = Duration::from_secs(3);
/// Pause after a failed accept, for example without free file descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum size of a request's head.
const HEAD_BYTES: usize = 16 << 10;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves the result of `make` until SIGTERM, SIGINT or SIGHUP.
pub(super) fn serve(
    observer: &dyn Observer,
    address: &Address,
    make: impl Fn() -> Result<String, Error> + Send + Sync + 'static,
) -> Result<Exit, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure(address, &error))?;
    let serving = async {
        // Before a client can connect: it could send a signal as soon as the server listens.
        let stop =
            stop::signals().and_then(UnixStream::from_std).map_err(|error| failure(address, &error))?;
        let listener = Listener::bind(address).map_err(|error| failure(address, &error))?;
        observer.note(&format!("serving /metrics on {}", listener.address()));
        if address.is_open() {
            observer.note(
                "anyone who can reach this address can read the metrics; use 127.0.0.1 or a unix socket \
                    to keep them local",
            );
        }
        let page = Arc::new(Shared::new(MAKING, move || make().map_err(|error| error.to_string())));
        let slots = Arc::new(Semaphore::new(CONNECTIONS as usize));
        let accepting = accept(&listener, &page, &slots);
        until(stop.readable(), accepting).await;
        if tokio::time::timeout(FAREWELL, slots.acquire_many(CONNECTIONS)).await.is_err() {
            tracing::debug!("some connections were not closed");
        }
        Ok(Exit::Done)
    };
    let done = runtime.block_on(serving);
    // Do not wait for a filesystem that does not respond.
    runtime.shutdown_background();
    done
}

async fn until<T>(end: impl Future<Output = T>, work: impl Future<Output = Infallible>) {
    let (mut end, mut work) = (std::pin::pin!(end), std::pin::pin!(work));
    std::future::poll_fn(|cx| {
        let _ = work.as_mut().poll(cx);
        end.as_mut().poll(cx).map(drop)
    })
    .await;
}

type Page = Shared<String>;

fn failure(address: &Address, error: &io::Error) -> Error {
    let (place, hint) = match address {
        Address::Tcp(address) => (address.to_string(), "name another address or port"),
        Address::Unix(path) => (
            path.display().to_string(),
            match error.kind() {
                io::ErrorKind::AlreadyExists => "remove it, or name another path",
                io::ErrorKind::NotFound => "create its directory first",
                _ => "name another path",
            },
        ),
    };
    Error::failed(format!("cannot listen on {place}: {error}")).hint(hint)
}

enum Listener {
    Tcp(TcpListener),
    /// With the socket file, which is removed with it.
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
                // At this time, no other thread creates files.
                let masked = Masked::for_socket();
                let (listener, socket) = Socket::bind(path)?;
                drop(masked);
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(UnixListener::from_std(listener)?, socket))
            }
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}"),
                Err(error) => error.to_string(),
            },
            Self::Unix(_, socket) => format!("unix:{}", socket.path().display()),
        }
    }
}

async fn accept(listener: &Listener, page: &Arc<Page>, slots: &Arc<Semaphore>) -> Infallible {
    loop {
        // The semaphore is never closed; without a slot, no connection is accepted.
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { continue };
        let page = Arc::clone(page);
        let taken = match listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(converse(TokioIo::new(stream), page, slot));
            }),
            Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(converse(TokioIo::new(stream), page, slot));
            }),
        };
        if let Err(error) = taken {
            tracing::warn!("taking a connection: {error}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn converse(io: impl Read + Write + Unpin, page: Arc<Page>, _slot: OwnedSemaphorePermit) {
    let service = service_fn(|request: Request<Incoming>| {
        let page = Arc::clone(&page);
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

async fn answer(page: &Page, method: &Method, path: &str) -> Response<String> {
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
                // The error may name files, so it is only in the log.
                let (status, text) = match missing {
                    NoAnswer::Late(_) => {
                        (StatusCode::SERVICE_UNAVAILABLE, "the records or a disk did not answer in time\n")
                    }
                    NoAnswer::Failed(_) => {
                        (StatusCode::INTERNAL_SERVER_ERROR, "the records cannot be read\n")
                    }
                };
                respond(status, PLAIN, text.into())
            }
        },
        "/healthz" => respond(StatusCode::OK, PLAIN, "ok\n".into()),
        _ => respond(StatusCode::NOT_FOUND, PLAIN, "not found; use /metrics or /healthz\n".into()),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
