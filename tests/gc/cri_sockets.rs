//! The CRI client on sockets without a runtime, or with a broken one.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::cri_server;
use cri_server::Broken;
use layersweep::cri::discover::{Candidate, probe};
use layersweep::cri::{Client, CriError, CriProblem, Endpoint, Options};

fn quick() -> Options {
    Options {
        connecting: Duration::from_millis(200),
        asking: Duration::from_millis(400),
        ..Options::default()
    }
}

/// Returns the error of connecting, which must be one line that names the socket, within three seconds.
fn refusal(path: &Path) -> CriError {
    let started = Instant::now();
    let error = Client::connect(Endpoint::at(path).unwrap(), quick()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("unix://{}: Version: ", path.display())), "{text}");
    assert!(!text.contains('\n'), "{text}");
    assert!(started.elapsed() < Duration::from_secs(3), "{text}");
    error
}

#[test]
fn sockets_without_runtime_are_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let nothing = scratch.path().join("none.sock");
    assert!(matches!(refusal(&nothing).problem, CriProblem::NotRunning(_)));
    let below_nothing = scratch.path().join("none/none.sock");
    assert!(matches!(refusal(&below_nothing).problem, CriProblem::NotRunning(_)));

    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = refusal(&file);
    assert!(matches!(&error.problem, CriProblem::NotRunning(why) if why.contains("not a socket")), "{error}");

    let abandoned = Broken::abandoned();
    assert_eq!(refusal(&abandoned.socket()).problem, CriProblem::NotListening);

    let silent = Broken::silent();
    assert_eq!(refusal(&silent.socket()).problem, CriProblem::Deadline(quick().asking));

    let web = Broken::web_server();
    let error = refusal(&web.socket());
    assert!(matches!(&error.problem, CriProblem::NotGrpc(why) if why.contains("HTTP/1.1")), "{error:?}");

    let rude = Broken::hanging_up();
    let error = refusal(&rude.socket());
    assert!(matches!(error.problem, CriProblem::HungUp(_)), "{error:?}");

    let other = Broken::without_cri();
    let error = refusal(&other.socket());
    assert!(matches!(error.problem, CriProblem::NoCri(_)), "{error:?}");

    let old = Broken::v1alpha2();
    assert_eq!(refusal(&old.socket()).problem, CriProblem::OldApi("containerd 1.5.9".into()));
}

#[test]
fn forbidden_socket_is_denied() {
    let silent = Broken::silent();
    std::fs::set_permissions(silent.socket(), std::fs::Permissions::from_mode(0o600)).unwrap();
    // In another thread: root may use every socket. The directory must be open to all.
    let directory = silent.socket().parent().unwrap().to_path_buf();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    if !nix::unistd::geteuid().is_root() {
        std::fs::set_permissions(silent.socket(), std::fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(refusal(&silent.socket()).problem, CriProblem::Denied);
        return;
    }
    let socket = silent.socket();
    let thread = std::thread::spawn(move || {
        // The file-system ids belong to the thread.
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
        refusal(&socket).problem
    });
    assert_eq!(thread.join().unwrap(), CriProblem::Denied);
}

#[test]
fn late_socket_is_awaited() {
    let abandoned = Broken::abandoned();
    let path = abandoned.socket();
    let server = {
        let path = path.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150));
            // In one step, so that no client sees a half-made socket.
            let fresh = path.with_extension("fresh");
            let listener = std::os::unix::net::UnixListener::bind(&fresh).unwrap();
            std::fs::rename(&fresh, &path).unwrap();
            listener.accept().map(drop)
        })
    };
    let patient = Options { connecting: Duration::from_secs(5), ..quick() };
    let error = Client::connect(Endpoint::at(&path).unwrap(), patient).unwrap_err();
    // The socket accepted the connection and hung up, which is more than refusing it.
    assert!(matches!(error.problem, CriProblem::HungUp(_)), "{error:?}");
    server.join().unwrap().unwrap();
}

#[test]
fn signal_ends_the_wait() {
    let silent = Broken::silent();
    let cancel = Arc::new(AtomicBool::new(false));
    let options =
        Options { cancel: Some(Arc::clone(&cancel)), asking: Duration::from_secs(60), ..Options::default() };
    let setter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        cancel.store(true, Ordering::Relaxed);
    });
    let started = Instant::now();
    let error = Client::connect(Endpoint::at(&silent.socket()).unwrap(), options).unwrap_err();
    assert_eq!(error.problem, CriProblem::Cancelled);
    assert!(started.elapsed() < Duration::from_secs(5));
    setter.join().unwrap();
}

#[test]
fn silent_candidates_are_named() {
    let (old, silent) = (Broken::v1alpha2(), Broken::abandoned());
    let candidates: Vec<_> = [&old, &silent]
        .into_iter()
        .map(|broken| Candidate {
            endpoint: Endpoint::at(&broken.socket()).unwrap(),
            origin: "test".into(),
            configured: true,
        })
        .collect();
    let answers = probe(candidates.clone(), &quick());
    assert!(answers.runtimes.is_empty());
    let silent: Vec<_> = answers.silent.iter().map(|(candidate, _)| candidate.clone()).collect();
    assert_eq!(silent, candidates);
    assert_eq!(answers.silent[1].1.problem, CriProblem::NotListening);
}
