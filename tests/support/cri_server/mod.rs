//! A CRI v1 server in front of a real podman store. **A fake**, and where it is one matters:
//!
//! * No package of CRI-O exists for the systems that these tests run on, so its place at the
//!   socket is taken by this; the store behind it, its records and every byte in it are
//!   podman's and containers-storage's, and images are removed by the library's own tool.
//! * It answers as CRI-O 1.30 does where we know how (ids in bare hex, `image_id` filled, `/info`
//!   on the same socket, refusal of images in use before anything is untagged), and in the ways
//!   of [`Behaviour`] where a test wants it to misbehave. It cannot show how CRI-O itself behaves.
//! * Containers are records of containers-storage with the metadata that CRI-O writes. No
//!   process runs in them; what they are doing stands in `userdata/state.json`, as with CRI-O.
//!   Containers of podman and buildah are in the store too, and it does not list them.

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

/// A server on a socket of its own. It ends when dropped.
pub struct CriServer {
    shared: Arc<Shared>,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

/// What the server's thread and the test both see.
struct Shared {
    podman: Podman,
    behaviour: Mutex<Behaviour>,
    /// Every call that came in, with the id it is about.
    calls: Mutex<Vec<String>>,
    /// Removals that go on after their answer.
    late: Mutex<Vec<JoinHandle<()>>>,
    /// Ends the server that runs now, connections and all.
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

    /// Starts it again after [`Self::stop`], or after it has died.
    pub fn restart(&mut self) {
        self.stop();
        let listener = UnixListener::bind(&self.socket).expect("binding the socket");
        let shared = Arc::clone(&self.shared);
        let end = Arc::new(Notify::new());
        *shared.end.lock().unwrap() = Arc::clone(&end);
        self.thread = Some(std::thread::spawn(move || serve(listener, &shared, &end)));
    }

    /// Ends it and takes the socket away.
    pub fn stop(&mut self) {
        self.shared.end.lock().unwrap().notify_one();
        self.wait_for_death();
        let _ = std::fs::remove_file(&self.socket);
        self.finish_late();
    }

    /// Waits until it has died by itself; its socket stays, as after a crash.
    pub fn wait_for_death(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server's thread");
        }
    }

    /// Waits for the removals that go on behind their answers.
    pub fn finish_late(&self) {
        let late = std::mem::take(&mut *self.shared.late.lock().unwrap());
        late.into_iter().for_each(|thread| thread.join().expect("a late removal"));
    }

    /// Changes how it behaves from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.behaviour.lock().unwrap());
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The socket as `--cri-endpoint` takes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The store behind it.
    pub fn podman(&self) -> &Podman {
        &self.shared.podman
    }

    /// The calls since the last time that this was asked, for example `RemoveImage <id>`.
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
    // Not gracefully: calls in flight lose their connection, as when a runtime is killed.
    runtime.shutdown_background();
}
