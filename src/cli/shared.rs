//! One answer for all who wait for it. Making it reads a database and asks filesystems, which may take
//! long or for ever; whoever waits must not, and no second one is begun meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    /// The one under way does not end.
    #[error("no answer within {} seconds", .0.as_secs())]
    Late(Duration),
    /// Making it failed.
    #[error("{0}")]
    Failed(String),
}

type Made<T> = Result<T, Missing>;
/// An answer, and when making it began.
type Last<T> = Option<(Instant, Made<T>)>;

/// Makes answers on a thread of its own, one at a time.
pub(super) struct Shared<T> {
    make: Arc<dyn Fn() -> Result<T, String> + Send + Sync>,
    /// Locked by the thread that makes one.
    last: Arc<Mutex<Last<T>>>,
    patience: Duration,
}

impl<T: Clone + Send + 'static> Shared<T> {
    /// `patience`: how long an answer may be in the making for who waits; the making goes on.
    pub(super) fn new(
        patience: Duration,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Self {
        Self { make: Arc::new(make), last: Arc::default(), patience }
    }

    /// An answer whose making began after it was asked for: by us, or by another who waited with us.
    pub(super) async fn get(&self) -> Made<T> {
        let late = Missing::Late(self.patience);
        tokio::time::timeout(self.patience, self.wait()).await.unwrap_or(Err(late))
    }

    async fn wait(&self) -> Made<T> {
        let asked = Instant::now();
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((began, made)) = &*last
            && *began >= asked
        {
            return made.clone();
        }
        let make = Arc::clone(&self.make);
        // The lock goes with the thread: nobody begins another one while it hangs.
        let making = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let made = make().map_err(Missing::Failed);
            *last = Some((began, made.clone()));
            made
        });
        making.await.unwrap_or_else(|error| Err(Missing::Failed(error.to_string())))
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
    fn who_waits_together_shares_and_who_comes_later_gets_a_new_one() {
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
            // These come too late for the one under way.
            let opening = async { [(); 2].map(|()| go.send(()).unwrap()) };
            let (first, others, _) = tokio::join!(first, answers(&shared, 20), opening);
            assert_eq!((first, others), (Ok(1), vec![Ok(2); 20]));
            go.send(()).unwrap();
            assert_eq!(shared.get().await, Ok(3), "not one from before it was asked for");
        });
    }

    /// As many answers, asked for at once.
    async fn answers(shared: &Shared<usize>, count: usize) -> Vec<Made<usize>> {
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
            match answers.iter().all(Option::is_some) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
        answers.into_iter().flatten().collect()
    }

    /// A filesystem that does not answer: no request waits forever, and no thread is added to the first.
    #[test]
    fn what_hangs_is_told_and_not_begun_again() {
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
                assert_eq!(shared.get().await, Err(Missing::Late(Duration::from_millis(50))));
            }
        });
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        drop(go);
        let mut answer = Err(Missing::Late(Duration::ZERO));
        while matches!(answer, Err(Missing::Late(_))) {
            answer = runtime.block_on(shared.get());
        }
        assert_eq!(answer, Err(Missing::Failed("no".into())), "it goes on as soon as that has ended");
    }
}
