//! Reads the same of many things, one after another. One that does not answer is left to its thread, and the next thread goes on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::thread;

/// How long one answer may take: the kernel has those of a living process within microseconds.
const LIMIT: Duration = Duration::from_secs(2);
/// How long all of them may take together. What has not been read by then is not known.
const ALL: Duration = Duration::from_secs(6);
/// Threads that wait for an answer at the same time. Each has a stack, and the agent has a memory limit.
const MOST_STUCK: usize = 32;

/// Why something was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unread {
    /// It does not answer. It is not asked again before it has answered.
    #[error("no answer within {} s", LIMIT.as_secs())]
    Stuck,
    /// The time was over before its turn came.
    #[error("others did not answer, and its turn did not come")]
    Late,
    /// There is no thread for it: too many wait already, or the kernel gives none.
    #[error("no thread was left to read it")]
    NoThread,
    /// The thread that read it has ended.
    #[error("the thread that read it ended without an answer")]
    Ended,
}

/// What does not answer at the moment. Cloning shares it.
#[derive(Debug)]
pub struct Each<Key> {
    stuck: Arc<Mutex<BTreeMap<Key, JoinHandle<()>>>>,
}

impl<Key> Clone for Each<Key> {
    fn clone(&self) -> Self {
        Self {
            stuck: Arc::clone(&self.stuck),
        }
    }
}

impl<Key> Default for Each<Key> {
    fn default() -> Self {
        Self {
            stuck: Arc::default(),
        }
    }
}

impl<Key: Clone + Ord + Send + 'static> Each<Key> {
    /// What was read of each of these, in their order. Blocks the calling thread for a few seconds at most.
    pub fn read<Answer: Send + 'static>(
        &self,
        keys: Vec<Key>,
        read: impl Fn(&Key) -> Answer + Send + Sync + 'static,
    ) -> Vec<(Key, Result<Answer, Unread>)> {
        self.read_in_parts(keys, move |key, _| read(key))
    }

    /// The same of what is read part by part: no further part is begun once the answer is given up, and half an answer is then none.
    pub fn read_in_parts<Answer: Send + 'static>(
        &self,
        keys: Vec<Key>,
        read: impl Fn(&Key, &GivenUp) -> Answer + Send + Sync + 'static,
    ) -> Vec<(Key, Result<Answer, Unread>)> {
        let began = Instant::now();
        let read = Arc::new(read);
        // A poisoned map is still a map of whole entries.
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.retain(|_, thread| !thread.is_finished());
        let mut found = Vec::with_capacity(keys.len());
        let mut left = VecDeque::with_capacity(keys.len());
        for key in keys {
            if stuck.contains_key(&key) {
                found.push((key, Err(Unread::Stuck)));
            } else {
                left.push_back(key);
            }
        }
        while !left.is_empty() {
            let give_up = |found: &mut Vec<_>, left: VecDeque<Key>, why| {
                found.extend(left.into_iter().map(|key| (key, Err(why))));
            };
            if began.elapsed() >= ALL {
                give_up(&mut found, left, Unread::Late);
                break;
            }
            if stuck.len() >= MOST_STUCK {
                give_up(&mut found, left, Unread::NoThread);
                break;
            }
            let Ok(reader) = Reader::start(left.iter().cloned().collect(), Arc::clone(&read)) else {
                give_up(&mut found, left, Unread::NoThread);
                break;
            };
            let ended = reader.follow(began + ALL, &mut left, &mut found);
            let Some(why) = ended else { break };
            if let Some(key) = left.pop_front() {
                found.push((key.clone(), Err(why)));
                // Its thread reads still. One that has ended is forgotten the next time.
                stuck.insert(key, reader.thread);
            }
        }
        found
    }
}

/// Whether an answer is waited for no longer.
#[derive(Clone, Debug, Default)]
pub struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    /// Whether it is so.
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn give_up(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that reads one after another.
struct Reader<Answer> {
    answers: mpsc::Receiver<Answer>,
    /// What it does when it has an answer at last: nothing more.
    given_up: GivenUp,
    thread: JoinHandle<()>,
}

impl<Answer: Send + 'static> Reader<Answer> {
    fn start<Key: Send + 'static>(
        keys: Vec<Key>,
        read: Arc<impl Fn(&Key, &GivenUp) -> Answer + Send + Sync + 'static>,
    ) -> std::io::Result<Self> {
        let (sender, answers) = mpsc::channel();
        let given_up = GivenUp::default();
        let ends = given_up.clone();
        let thread = thread(move || {
            for key in keys {
                if ends.is_so() || sender.send(read(&key, &ends)).is_err() {
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

    /// Takes its answers; `None` when it has answered for everything, else why it has not for the first that is left.
    fn follow<Key>(
        &self,
        until: Instant,
        left: &mut VecDeque<Key>,
        found: &mut Vec<(Key, Result<Answer, Unread>)>,
    ) -> Option<Unread> {
        let mut since = Instant::now();
        while !left.is_empty() {
            let deadline = (since + LIMIT).min(until.max(since));
            match self
                .answers
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(answer) => {
                    since = Instant::now();
                    found.extend(left.pop_front().map(|key| (key, Ok(answer))));
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
    use crate::host::clock_tests::takes_less;

    type Gate = Arc<Mutex<mpsc::Receiver<()>>>;

    /// What waits until the sender is dropped.
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
    async fn one_that_does_not_answer_costs_its_own_answer_and_is_not_asked_twice() {
        let mut each = Each::default();
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
        takes_less(LIMIT * 2, async || {
            each = Each::default();
            asked.lock().unwrap().clear();
            let found = each.read(keys.clone(), read.clone());
            assert_eq!(answers(&found), expected);
            assert_eq!(found[1], (2, Err(Unread::Stuck)));
            assert_eq!(*asked.lock().unwrap(), [1, 2, 3, 4]);
        })
        .await;

        // The second time nothing is waited for.
        takes_less(LIMIT, async || {
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
            assert!(
                Instant::now() < deadline,
                "it has answered and is not asked again"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn many_that_do_not_answer_are_given_up_together_after_a_few_seconds() {
        let each = Each::default();
        let (ends, gate) = gate();
        let began = Instant::now();
        let found = each.read((0..100).collect(), move |key: &u32| {
            waits(&gate);
            *key
        });
        assert_eq!(found.len(), 100, "each has its word");
        let are = |why: Unread| found.iter().filter(|(_, answer)| *answer == Err(why)).count();
        assert!(are(Unread::Late) >= 90);
        // Each of them was waited for as long as one answer may take, and no more of them than that makes.
        let most = ALL.as_secs().div_ceil(LIMIT.as_secs());
        let waited_for = u64::try_from(are(Unread::Stuck)).unwrap();
        assert!(waited_for <= most, "{waited_for} of {most}");
        assert!(began.elapsed() < ALL * 10, "{:?}", began.elapsed());
        drop(ends);
    }

    #[test]
    fn what_is_read_in_parts_ends_once_it_is_given_up() {
        let each = Each::default();
        let (says, ended) = mpsc::channel();
        let found = each.read_in_parts(vec![1, 2], move |key: &u32, given_up: &GivenUp| {
            if *key == 1 {
                while !given_up.is_so() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                says.send(()).unwrap();
            }
            *key
        });
        assert_eq!(found, [(1, Err(Unread::Stuck)), (2, Ok(2))]);
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn a_thread_that_ends_is_no_answer() {
        let each = Each::default();
        let found = each.read(vec![1, 2], |key: &u32| {
            assert_ne!(*key, 1, "as it should be");
            *key
        });
        assert_eq!(found, [(1, Err(Unread::Ended)), (2, Ok(2))]);
    }
}
