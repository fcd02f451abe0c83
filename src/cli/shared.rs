//! One computation shared by all requests that wait for its result.
//!
//! Making the metrics reads a database and queries filesystems, which can take a long time or hang. A request
//! must not wait longer than its timeout, and repeated requests must not start more threads while one hangs.
//! A request also must not get figures from before it arrived. Example: request A starts a computation, then
//! B and C arrive; A gets its result, and B and C share the result of the next one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAnswer {
    /// The current computation has not ended in time.
    #[error("no answer within {} seconds", .0.as_secs())]
    Late(Duration),
    #[error("{0}")]
    Failed(String),
}

type Computed<T> = Result<T, NoAnswer>;
type Last<T> = Option<(Instant, Computed<T>)>;

/// Runs a computation on its own thread, one at a time.
pub(super) struct Shared<T> {
    make: Arc<dyn Fn() -> Result<T, String> + Send + Sync>,
    /// Locked by the thread that computes.
    last: Arc<Mutex<Last<T>>>,
    patience: Duration,
}

impl<T: Clone + Send + 'static> Shared<T> {
    /// `patience` is the maximum time that a request waits; the computation continues after it.
    pub(super) fn new(
        patience: Duration,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Self {
        Self { make: Arc::new(make), last: Arc::default(), patience }
    }

    /// Returns an answer whose computation began after this call, by this request or another one that waits.
    pub(super) async fn get(&self) -> Computed<T> {
        let late = NoAnswer::Late(self.patience);
        tokio::time::timeout(self.patience, self.wait()).await.unwrap_or(Err(late))
    }

    async fn wait(&self) -> Computed<T> {
        let requested = Instant::now();
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((began, answer)) = &*last
            && *began >= requested
        {
            return answer.clone();
        }
        let make = Arc::clone(&self.make);
        // The thread owns the lock: no second computation begins while it hangs.
        let making = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let answer = make().map_err(NoAnswer::Failed);
            *last = Some((began, answer.clone()));
            answer
        });
        making.await.unwrap_or_else(|error| Err(NoAnswer::Failed(error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn waiting_requests_share_the_next_answer() {
        let made = Arc::new(AtomicUsize::new(0));
        let (begin, begun) = mpsc::channel::<()>();
        let (go, gate) = mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        let count = Arc::clone(&made);
        let shared = Shared::new(Duration::from_secs(60), move || {
            begin.send(()).unwrap();
            gate.lock().unwrap().recv().unwrap();
            Ok(count.fetch_add(1, Ordering::SeqCst) + 1)
        });
        runtime().block_on(async {
            let mut first = Box::pin(shared.get());
            std::future::poll_fn(|cx| {
                assert!(first.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            begun.recv().unwrap();
            // These requests arrive after the first computation began.
            let opening = async { [(); 2].map(|()| go.send(()).unwrap()) };
            let (first, others, _) = tokio::join!(first, answers(&shared, 20), opening);
            assert_eq!((first, others), (Ok(1), vec![Ok(2); 20]));
            go.send(()).unwrap();
            assert_eq!(shared.get().await, Ok(3), "not an answer from before the request");
        });
    }

    /// Requests `count` answers at the same time.
    async fn answers(shared: &Shared<usize>, count: usize) -> Vec<Computed<usize>> {
        let mut waiting: Vec<_> = (0..count).map(|_| Some(Box::pin(shared.get()))).collect();
        let mut answers = vec![None; count];
        std::future::poll_fn(|cx| {
            for (future, answer) in waiting.iter_mut().zip(&mut answers) {
                if let Some(pinned) = future
                    && let std::task::Poll::Ready(made) = pinned.as_mut().poll(cx)
                {
                    *answer = Some(made);
                    *future = None;
                }
            }
            if answers.iter().all(Option::is_some) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        answers.into_iter().flatten().collect()
    }

    /// A filesystem that does not respond: requests time out, and no second thread is started.
    #[test]
    fn hanging_computation_is_not_started_again() {
        let begun = Arc::new(AtomicUsize::new(0));
        let (go, gate) = mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        let count = Arc::clone(&begun);
        let shared = Shared::new(Duration::from_millis(50), move || {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = gate.lock().unwrap().recv();
            Err::<usize, _>("no".to_owned())
        });
        let runtime = runtime();
        runtime.block_on(async {
            for _ in 0..3 {
                assert_eq!(shared.get().await, Err(NoAnswer::Late(Duration::from_millis(50))));
            }
        });
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        drop(go);
        let mut answer = Err(NoAnswer::Late(Duration::ZERO));
        while matches!(answer, Err(NoAnswer::Late(_))) {
            answer = runtime.block_on(shared.get());
        }
        assert_eq!(answer, Err(NoAnswer::Failed("no".into())), "a new one starts when the old one has ended");
    }
}
