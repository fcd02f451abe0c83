//! One connection for each call, or for a few queries in a row.
//!
//! A call opens the socket, sends its request, reads the answer and closes the socket. Connecting to a unix socket
//! takes less time than any answer, and in return:
//!
//! - nothing runs in the background between calls;
//! - a runtime that was restarted meanwhile needs no special case;
//! - an error of connecting is never mistaken for an error of the call;
//! - the runtime notices an abandoned call, because its connection closes.
//!
//! The queries that prove one deletion follow each other within milliseconds: they share a [`Connection`]. An action
//! never does.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::transport::{Channel, Uri};

use super::deadlines::Options;
use super::endpoint::Endpoint;
use super::error::CriProblem;

/// Interval at which an abandonable call checks for a signal.
const CANCEL_POLL: Duration = Duration::from_millis(100);
/// Number of further checks, after a signal, for a call that completes an action: half a second.
const COMPLETION_POLLS: u32 = 5;
/// HTTP/2 flow control: number of bytes of an answer that the runtime may send before they are read.
const WINDOW_BYTES: u32 = 4 << 20;

/// Kind of a call, which decides the effect of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A query. It is not sent after a signal, and abandoned when a signal arrives.
    Query,
    /// An action. It is not started after a signal. When a signal arrives it is abandoned, and its outcome is
    /// then unknown.
    Action,
    /// A call that completes an action. It is always sent, but after a signal its answer is not awaited for long.
    Completion,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) options: &'a Options,
    pub(super) kind: CallKind,
    pub(super) deadline: Duration,
}

/// An open connection. Nothing runs on it between calls.
#[derive(Debug)]
pub(super) struct Connection {
    channel: Channel,
    /// Dropping it closes the connection.
    runtime: tokio::runtime::Runtime,
}

impl Call<'_> {
    /// Connects, and waits for the answer to the request that `ask` sends.
    pub(super) fn run<T>(
        self,
        ask: impl AsyncFnOnce(Channel) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, CriProblem> {
        self.run_on(&self.connect()?, ask)
    }

    pub(super) fn connect(self) -> Result<Connection, CriProblem> {
        if self.is_cancelled() {
            return Err(CriProblem::Cancelled);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| internal(format!("starting a tokio runtime: {error}")))?;
        let channel = runtime.block_on(async {
            let stream = self.socket().await?;
            self.in_time(channel(stream)).await
        })?;
        Ok(Connection { channel, runtime })
    }

    /// Sends the request of `ask` on an open connection, and waits for the answer.
    pub(super) fn run_on<T>(
        self,
        connection: &Connection,
        ask: impl AsyncFnOnce(Channel) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, CriProblem> {
        if self.is_cancelled() {
            return Err(CriProblem::Cancelled);
        }
        let answer = async {
            let answer = ask(connection.channel.clone()).await;
            answer.map_err(|status| CriProblem::of(&status, self.kind == CallKind::Action))
        };
        connection.runtime.block_on(self.in_time(answer)).map(tonic::Response::into_inner)
    }

    /// Waits for `work` until the deadline or a signal.
    async fn in_time<T>(self, work: impl Future<Output = Result<T, CriProblem>>) -> Result<T, CriProblem> {
        let ended = self.unless_cancelled(timeout(self.deadline, work)).await?;
        ended.unwrap_or(Err(CriProblem::Deadline(self.deadline)))
    }

    fn is_cancelled(self) -> bool {
        self.kind != CallKind::Completion && self.options.is_cancelled()
    }

    fn left(self) -> CriProblem {
        if self.kind == CallKind::Query { CriProblem::Cancelled } else { CriProblem::Left }
    }

    async fn unless_cancelled<T>(self, work: impl Future<Output = T>) -> Result<T, CriProblem> {
        let mut work = pin!(work);
        let mut after_signal = match self.kind {
            CallKind::Query | CallKind::Action => 0,
            CallKind::Completion => COMPLETION_POLLS,
        };
        loop {
            match timeout(CANCEL_POLL, work.as_mut()).await {
                Ok(done) => return Ok(done),
                Err(_) if !self.options.is_cancelled() => {}
                Err(_) if after_signal == 0 => return Err(self.left()),
                Err(_) => after_signal -= 1,
            }
        }
    }

    /// Opens the socket, with retries. Retrying is safe here because the request has not been sent.
    async fn socket(self) -> Result<UnixStream, CriProblem> {
        let path = self.endpoint.path();
        let end = Instant::now() + self.options.connecting;
        let mut pause = Duration::from_millis(50);
        loop {
            let problem = match UnixStream::connect(path).await {
                Ok(stream) => return Ok(stream),
                Err(error) => self.refusal(&error),
            };
            // A full queue of connections (`EAGAIN`) is treated like a socket that is not served.
            if problem != CriProblem::NotListening || Instant::now() + pause > end {
                return Err(problem);
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            if self.is_cancelled() {
                return Err(CriProblem::Cancelled);
            }
        }
    }

    fn refusal(self, error: &io::Error) -> CriProblem {
        let path = self.endpoint.path();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                CriProblem::NotRunning(format!("there is no {}", path.display()))
            }
            io::ErrorKind::PermissionDenied => CriProblem::Denied,
            io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock => {
                let is_socket = std::fs::metadata(path).map(|facts| facts.file_type().is_socket());
                match is_socket {
                    Ok(false) => CriProblem::NotRunning(format!("{} is not a socket", path.display())),
                    _ => CriProblem::NotListening,
                }
            }
            _ => internal(format!("connecting: {error}")),
        }
    }
}

/// Creates a gRPC channel over one stream.
async fn channel(stream: UnixStream) -> Result<Channel, CriProblem> {
    // tonic would reconnect whenever it likes. It gets this one stream.
    let stream = Mutex::new(Some(stream));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.lock().ok().and_then(|mut stream| stream.take()).map(TokioIo::new);
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    // HTTP/2 requires a host name in the header; it is never resolved.
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost")
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| CriProblem::hung_up(&error))
}

fn internal(message: String) -> CriProblem {
    CriProblem::Other { code: tonic::Code::Internal, message }
}
