//! A CRI v1 server in front of a real podman store. **It is a fake**, with these limits:
//!
//! * CRI-O is not packaged for the systems that these tests run on, so this server listens on the socket instead. The
//!   store behind it, its records and every byte in it are podman's and containers-storage's, and the library's own
//!   tool removes images.
//! * It answers as CRI-O 1.30 does where that is known (ids in bare hex, `image_id` filled, `/info` on the same socket,
//!   images in use are refused before anything is untagged), and in the ways of [`Behaviour`] where a test wants
//!   misbehaviour. It cannot show how CRI-O itself behaves.
//! * Containers are records of containers-storage with the metadata that CRI-O writes. No process runs in them; their
//!   state is in `userdata/state.json`, as with CRI-O. The store also contains containers of podman and buildah, which
//!   the server does not list.

pub mod article;
mod behaviour;
mod broken;
pub mod gc_node;
pub mod podman;
mod service;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use axum::routing::get;
use k8s_cri::v1::image_service_server::ImageServiceServer;
use k8s_cri::v1::runtime_service_server::RuntimeServiceServer;
use tokio::sync::Notify;
use tonic::service::Routes;

pub use behaviour::{Answers, Behaviour, Listing, Removal};
pub use broken::Broken;
pub use podman::Podman;

use crate::support::store::Store;

/// A server on its own socket. It ends when the value is dropped.
pub struct CriServer {
    shared: Arc<Shared>,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

/// State that the server's thread and the test share.
struct Shared {
    podman: Podman,
    behaviour: Mutex<Behaviour>,
    /// Received calls, each with the id of its object.
    calls: Mutex<Vec<String>>,
    /// Removals that continue after their answer.
    late: Mutex<Vec<JoinHandle<()>>>,
    /// Ends the running server and its connections.
    end: Mutex<Arc<Notify>>,
}

impl CriServer {
    /// Serves `store` on a socket in the store's scratch directory.
    pub fn start(store: &Arc<Store>) -> Self {
        let socket = store.scratch().join("cri.sock");
        let shared = Shared {
            podman: Podman::new(Arc::clone(store)),
            behaviour: Mutex::default(),
            calls: Mutex::default(),
            late: Mutex::default(),
            end: Mutex::default(),
        };
        let mut server = Self { shared: Arc::new(shared), socket, thread: None };
        server.restart();
        server
    }

    /// Starts the server again after [`Self::stop`], or after it has died.
    pub fn restart(&mut self) {
        self.stop();
        let listener = UnixListener::bind(&self.socket).expect("binding the socket");
        let shared = Arc::clone(&self.shared);
        let end = Arc::new(Notify::new());
        *shared.end.lock().unwrap() = Arc::clone(&end);
        self.thread = Some(std::thread::spawn(move || serve(listener, &shared, &end)));
    }

    /// Ends the server and removes the socket.
    pub fn stop(&mut self) {
        self.shared.end.lock().unwrap().notify_one();
        self.wait_for_death();
        let _ = std::fs::remove_file(&self.socket);
        self.finish_late();
    }

    /// Waits until the server has died by itself; its socket stays, as after a crash.
    pub fn wait_for_death(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server's thread");
        }
    }

    /// Waits for the removals that continue after their answers.
    pub fn finish_late(&self) {
        let late = std::mem::take(&mut *self.shared.late.lock().unwrap());
        late.into_iter().for_each(|thread| thread.join().expect("a late removal"));
    }

    /// Changes the behaviour of the server from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.behaviour.lock().unwrap());
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the socket as `--cri-endpoint` accepts it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Returns the store behind the server.
    pub fn podman(&self) -> &Podman {
        &self.shared.podman
    }

    /// Returns the calls since the last time that they were taken, for example `RemoveImage <id>`.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.calls.lock().unwrap())
    }
}

impl Drop for CriServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(listener: UnixListener, shared: &Arc<Shared>, end: &Notify) {
    let runtime = broken::runtime();
    let info = shared.podman.info();
    let routes = Routes::new(RuntimeServiceServer::new(service::Runtime(Arc::clone(shared))))
        .add_service(ImageServiceServer::new(service::Images(Arc::clone(shared))))
        .into_axum_router()
        .route("/info", get(move || std::future::ready(info.clone())));
    runtime.block_on(async {
        tokio::spawn(broken::serve(listener, routes));
        end.notified().await;
    });
    // Not gracefully: calls in progress lose their connection, as when a runtime is killed.
    runtime.shutdown_background();
}
