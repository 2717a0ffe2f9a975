//! Reads the same of many objects, one after another. A read that does not end stays with its thread, and a new thread continues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::thread::thread;

/// Timeout of one answer: the kernel answers for a living process within microseconds.
const LIMIT: Duration = Duration::from_secs(2);
/// Timeout of all answers together. Objects that have not been read by then are unknown.
const ALL: Duration = Duration::from_secs(6);
/// Threads that wait for an answer at the same time. Each has a stack, and the agent has a memory limit.
const MOST_STUCK: usize = 32;

/// Reason why an object was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unread {
    /// The read has not ended. The object is not read again before this read has ended.
    #[error("no answer within {} s", LIMIT.as_secs())]
    Stuck,
    /// The time limit was reached before this object was read.
    #[error("not read within the time limit, since other reads did not end")]
    Late,
    /// No thread is available: too many threads wait already, or the kernel could not start one.
    #[error("no thread available to read it")]
    NoThread,
    /// The thread that read it has ended without an answer.
    #[error("the reading thread ended without an answer")]
    Ended,
}

/// Reader that remembers the reads that have not ended. Clones share the state.
#[derive(Debug)]
pub struct BoundedReads<Key> {
    stuck: Arc<Mutex<BTreeMap<Key, JoinHandle<()>>>>,
}

impl<Key> Clone for BoundedReads<Key> {
    fn clone(&self) -> Self {
        Self {
            stuck: Arc::clone(&self.stuck),
        }
    }
}

impl<Key> Default for BoundedReads<Key> {
    fn default() -> Self {
        Self {
            stuck: Arc::default(),
        }
    }
}

impl<Key: Clone + Ord + Send + 'static> BoundedReads<Key> {
    /// Reads each of these objects in this order. Blocks the calling thread for a few seconds at most.
    pub fn read<Answer: Send + 'static>(
        &self,
        keys: Vec<Key>,
        read: impl Fn(&Key) -> Answer + Send + Sync + 'static,
    ) -> Vec<(Key, Result<Answer, Unread>)> {
        self.read_in_parts(keys, move |key, _| read(key))
    }

    /// The same for objects that are read in parts: no further part is read after the timeout, and a partial answer does not
    /// count.
    pub fn read_in_parts<Answer: Send + 'static>(
        &self,
        keys: Vec<Key>,
        read: impl Fn(&Key, &Cancelled) -> Answer + Send + Sync + 'static,
    ) -> Vec<(Key, Result<Answer, Unread>)> {
        let began = Instant::now();
        let read = Arc::new(read);
        // A poisoned map still contains only complete entries.
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.retain(|_, thread| !thread.is_finished());
        let mut found = Vec::with_capacity(keys.len());
        let mut remaining = VecDeque::with_capacity(keys.len());
        for key in keys {
            if stuck.contains_key(&key) {
                found.push((key, Err(Unread::Stuck)));
            } else {
                remaining.push_back(key);
            }
        }
        while !remaining.is_empty() {
            let give_up = |found: &mut Vec<_>, remaining: VecDeque<Key>, why| {
                found.extend(remaining.into_iter().map(|key| (key, Err(why))));
            };
            if began.elapsed() >= ALL {
                give_up(&mut found, remaining, Unread::Late);
                break;
            }
            if stuck.len() >= MOST_STUCK {
                give_up(&mut found, remaining, Unread::NoThread);
                break;
            }
            let Ok(reader) = Reader::start(remaining.iter().cloned().collect(), Arc::clone(&read)) else {
                give_up(&mut found, remaining, Unread::NoThread);
                break;
            };
            let ended = reader.follow(began + ALL, &mut remaining, &mut found);
            let Some(why) = ended else { break };
            if let Some(key) = remaining.pop_front() {
                found.push((key.clone(), Err(why)));
                // The thread is still reading. Ended threads are removed at the next call.
                stuck.insert(key, reader.thread);
            }
        }
        found
    }
}

/// Whether the reader has stopped waiting for an answer.
#[derive(Clone, Debug, Default)]
pub struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// Whether the reader has stopped waiting.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn give_up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that reads one object after another.
struct Reader<Answer> {
    answers: mpsc::Receiver<Answer>,
    /// Tells the thread to end after its current read.
    given_up: Cancelled,
    thread: JoinHandle<()>,
}

impl<Answer: Send + 'static> Reader<Answer> {
    fn start<Key: Send + 'static>(
        keys: Vec<Key>,
        read: Arc<impl Fn(&Key, &Cancelled) -> Answer + Send + Sync + 'static>,
    ) -> std::io::Result<Self> {
        let (sender, answers) = mpsc::channel();
        let given_up = Cancelled::default();
        let ends = given_up.clone();
        let thread = thread(move || {
            for key in keys {
                if ends.is_cancelled() || sender.send(read(&key, &ends)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            answers,
            given_up,
            thread,
        })
    }

    /// Receives the answers; `None` when all objects are read, else the reason why the first remaining object is not.
    fn follow<Key>(
        &self,
        until: Instant,
        remaining: &mut VecDeque<Key>,
        found: &mut Vec<(Key, Result<Answer, Unread>)>,
    ) -> Option<Unread> {
        let mut since = Instant::now();
        while !remaining.is_empty() {
            let deadline = (since + LIMIT).min(until.max(since));
            match self
                .answers
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(answer) => {
                    since = Instant::now();
                    found.extend(remaining.pop_front().map(|key| (key, Ok(answer))));
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.given_up.give_up();
                    return Some(if since.elapsed() >= LIMIT {
                        Unread::Stuck
                    } else {
                        Unread::Late
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Some(Unread::Ended),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;
    use crate::host::fixture::assert_takes_less;

    type Gate = Arc<Mutex<mpsc::Receiver<()>>>;

    /// A gate that opens when the sender is dropped.
    fn gate() -> (Sender<()>, Gate) {
        let (sender, receiver) = mpsc::channel();
        (sender, Arc::new(Mutex::new(receiver)))
    }

    fn waits(gate: &Gate) {
        let _ = gate.lock().unwrap().recv();
    }

    fn answers(found: &[(u32, Result<u32, Unread>)]) -> Vec<(u32, Option<u32>)> {
        let mut answers: Vec<_> = found.iter().map(|(key, answer)| (*key, answer.ok())).collect();
        answers.sort_unstable();
        answers
    }

    #[tokio::test]
    async fn a_stuck_read_loses_only_its_own_answer_and_is_not_repeated() {
        let mut each = BoundedReads::default();
        let (ends, gate) = gate();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let read = {
            let asked = Arc::clone(&asked);
            move |key: &u32| {
                asked.lock().unwrap().push(*key);
                if *key == 2 {
                    waits(&gate);
                }
                key * 10
            }
        };
        let keys = vec![1, 2, 3, 4];
        let expected = [(1, Some(10)), (2, None), (3, Some(30)), (4, Some(40))];
        assert_takes_less(LIMIT * 2, async || {
            each = BoundedReads::default();
            asked.lock().unwrap().clear();
            let found = each.read(keys.clone(), read.clone());
            assert_eq!(answers(&found), expected);
            assert_eq!(found[1], (2, Err(Unread::Stuck)));
            assert_eq!(*asked.lock().unwrap(), [1, 2, 3, 4]);
        })
        .await;

        // The second call does not wait.
        assert_takes_less(LIMIT, async || {
            asked.lock().unwrap().clear();
            let again = each.read(keys.clone(), read.clone());
            assert_eq!(answers(&again), expected);
            assert_eq!(*asked.lock().unwrap(), [1, 3, 4]);
        })
        .await;

        drop(ends);
        let deadline = Instant::now() + Duration::from_secs(10);
        while each.read(keys.clone(), read.clone()).len() != 4
            || each
                .read(keys.clone(), read.clone())
                .iter()
                .any(|(_, answer)| answer.is_err())
        {
            assert!(Instant::now() < deadline, "the ended read is not repeated");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_hundred_stuck_reads_end_after_the_total_timeout() {
        let each = BoundedReads::default();
        let (ends, gate) = gate();
        let began = Instant::now();
        let found = each.read((0..100).collect(), move |key: &u32| {
            waits(&gate);
            *key
        });
        assert_eq!(found.len(), 100, "each object has a result");
        let count = |why: Unread| found.iter().filter(|(_, answer)| *answer == Err(why)).count();
        assert!(count(Unread::Late) >= 90);
        // Each stuck read took the timeout of one answer, so that only a few fit into the total time.
        let most = ALL.as_secs().div_ceil(LIMIT.as_secs());
        let waited_for = u64::try_from(count(Unread::Stuck)).unwrap();
        assert!(waited_for <= most, "{waited_for} of {most}");
        assert!(began.elapsed() < ALL * 10, "{:?}", began.elapsed());
        drop(ends);
    }

    #[test]
    fn a_read_in_parts_ends_after_the_timeout() {
        let each = BoundedReads::default();
        let (sender, ended) = mpsc::channel();
        let found = each.read_in_parts(vec![1, 2], move |key: &u32, given_up: &Cancelled| {
            if *key == 1 {
                while !given_up.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                sender.send(()).unwrap();
            }
            *key
        });
        assert_eq!(found, [(1, Err(Unread::Stuck)), (2, Ok(2))]);
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn a_thread_that_panics_is_an_error() {
        let each = BoundedReads::default();
        let found = each.read(vec![1, 2], |key: &u32| {
            assert_ne!(*key, 1, "expected by the test");
            *key
        });
        assert_eq!(found, [(1, Err(Unread::Ended)), (2, Ok(2))]);
    }
}
