//! Sockets without a working runtime: no process answers, an old API, other protocols.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use axum::Router;
use axum::routing::post;
use k8s_cri::v1alpha2;
use tempfile::TempDir;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;

/// A socket with something else than a runtime behind it. Its thread ends with the test program.
pub struct Broken {
    scratch: TempDir,
}

impl Broken {
    /// Accepts connections and never answers.
    pub fn silent() -> Self {
        Self::each(|mut stream| {
            // Reads, so that the client can write everything; ends when the client hangs up.
            while stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
        })
    }

    /// Answers as a web server that only supports HTTP 1.
    pub fn web_server() -> Self {
        Self::each(|mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        })
    }

    /// Hangs up at once.
    pub fn hanging_up() -> Self {
        Self::each(drop)
    }

    /// Speaks gRPC without any service, like containerd without its CRI plugin.
    pub fn without_cri() -> Self {
        Self::grpc(Routes::default().into_axum_router())
    }

    /// Offers CRI v1alpha2 only, like containerd 1.5 and CRI-O 1.22.
    pub fn v1alpha2() -> Self {
        Self::grpc(Routes::default().into_axum_router().route(
            "/runtime.v1alpha2.RuntimeService/Version",
            post(|request: axum::extract::Request| async move {
                let codec = tonic_prost::ProstCodec::default();
                tonic::server::Grpc::new(codec).unary(OldVersion, request).await
            }),
        ))
    }

    /// Leaves a socket file that no process listens on any more.
    pub fn abandoned() -> Self {
        let broken = Self::scratch();
        drop(broken.listener());
        broken
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("broken.sock")
    }

    fn scratch() -> Self {
        let scratch = tempfile::Builder::new().prefix("layersweep-broken-").tempdir();
        Self { scratch: scratch.expect("making a scratch directory") }
    }

    fn listener(&self) -> UnixListener {
        UnixListener::bind(self.socket()).expect("binding the socket")
    }

    fn each(serve: fn(UnixStream)) -> Self {
        let broken = Self::scratch();
        let listener = broken.listener();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        broken
    }

    fn grpc(routes: Router) -> Self {
        let broken = Self::scratch();
        let listener = broken.listener();
        std::thread::spawn(move || runtime().block_on(serve(listener, routes)));
        broken
    }
}

/// Returns a tokio runtime for one server.
pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime")
}

/// Serves gRPC (and HTTP 1, as CRI-O's socket does) until the task ends.
pub(super) async fn serve(listener: UnixListener, routes: Router) {
    listener.set_nonblocking(true).expect("a socket");
    let listener = tokio::net::UnixListener::from_std(listener).expect("a socket");
    let server = tonic::transport::Server::builder().accept_http1(true).add_routes(Routes::from(routes));
    server.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("serving");
}

struct OldVersion;

impl tonic::server::UnaryService<v1alpha2::VersionRequest> for OldVersion {
    type Response = v1alpha2::VersionResponse;
    type Future = std::future::Ready<Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, _: tonic::Request<v1alpha2::VersionRequest>) -> Self::Future {
        let answer = v1alpha2::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "containerd".into(),
            runtime_version: "1.5.9".into(),
            runtime_api_version: "v1alpha2".into(),
        };
        std::future::ready(Ok(tonic::Response::new(answer)))
    }
}
