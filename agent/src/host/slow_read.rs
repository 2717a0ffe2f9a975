//! Reads on a separate thread: a read may never end (a file of another process), or may take long. [`BoundedReads`]
//! reads the same file of many processes, and a process whose read does not end loses only its own answer; [`SlowRead`] reads one
//! thing repeatedly.

mod each;
mod thread;

use std::io;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::oneshot;

pub use each::{BoundedReads, Cancelled, Unread};
use thread::thread;

/// Maximum age of an answer.
const PACE: Duration = Duration::from_secs(2);
/// Timeout of an answer; a few thousand processes take some tenths of a second.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum age of an answer while a newer one is being read: on a busy host a slow read does not count as failed.
const LATE: Duration = Duration::from_secs(15);

/// Reason why no answer is available.
#[derive(Debug, Error)]
pub enum SlowReadError {
    /// No thread could be started.
    #[error("could not start a thread that reads {what}")]
    Start {
        /// The object to read.
        what: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The read has not ended yet.
    #[error("reading {what} has not ended for {seconds} s")]
    Busy {
        /// The object that is being read.
        what: &'static str,
        /// Time since the start of the read.
        seconds: u64,
    },
    /// The thread ended without an answer.
    #[error("reading {what} ended without an answer")]
    Ended {
        /// The object that was read.
        what: &'static str,
    },
}

/// A repeated question, and its newest answer.
#[derive(Debug)]
pub struct SlowRead<Question, Answer> {
    what: &'static str,
    asked: Option<RunningRead<Question, Answer>>,
    answer: Option<(Instant, Question, Answer)>,
}

/// The current question of a thread. The agent does not wait for the thread when it exits: a thread that hangs in the kernel
/// cannot be ended.
#[derive(Debug)]
struct RunningRead<Question, Answer> {
    at: Instant,
    question: Question,
    answer: oneshot::Receiver<Answer>,
}

impl<Question, Answer> SlowRead<Question, Answer>
where
    Question: Clone + PartialEq + Send + 'static,
    Answer: Clone + Send + 'static,
{
    /// Without a question; `what` names the object that is read.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            asked: None,
            answer: None,
        }
    }

    /// The answer to this question: at most two seconds old, or up to fifteen while a newer one is being read. At most one thread
    /// reads at a time.
    ///
    /// # Errors
    ///
    /// The read has not ended in time, panics, or cannot get a thread.
    pub async fn ask(
        &mut self,
        question: &Question,
        read: impl FnOnce(&Question) -> Answer + Send + 'static,
    ) -> Result<Answer, SlowReadError> {
        if let Some(answer) = self.known(question, PACE) {
            return Ok(answer);
        }
        // The running read may be for another question, or too old.
        if self.asked.is_some() {
            self.wait().await?;
            if let Some(answer) = self.known(question, LATE) {
                return Ok(answer);
            }
        }
        if self.asked.is_none() {
            self.asked = Some(start(self.what, question.clone(), read)?);
            self.wait().await?;
        }
        self.known(question, LATE).ok_or_else(|| SlowReadError::Busy {
            what: self.what,
            seconds: self
                .asked
                .as_ref()
                .map_or(0, |asked| asked.at.elapsed().as_secs()),
        })
    }

    /// Waits for the thread, once for each thread: one that hangs does not delay later reads.
    async fn wait(&mut self) -> Result<(), SlowReadError> {
        let Some(mut asked) = self.asked.take() else {
            return Ok(());
        };
        let remaining = LIMIT.saturating_sub(asked.at.elapsed());
        match tokio::time::timeout(remaining, &mut asked.answer).await {
            Ok(Ok(answer)) => self.answer = Some((asked.at, asked.question, answer)),
            Ok(Err(_)) => return Err(SlowReadError::Ended { what: self.what }),
            Err(_) => self.asked = Some(asked),
        }
        Ok(())
    }

    /// The answer to this question, if it is at most this old.
    fn known(&self, question: &Question, age: Duration) -> Option<Answer> {
        let (at, asked, answer) = self.answer.as_ref()?;
        (asked == question && at.elapsed() < age).then(|| answer.clone())
    }
}

fn start<Question, Answer>(
    what: &'static str,
    question: Question,
    read: impl FnOnce(&Question) -> Answer + Send + 'static,
) -> Result<RunningRead<Question, Answer>, SlowReadError>
where
    Question: Clone + Send + 'static,
    Answer: Send + 'static,
{
    let asked = question.clone();
    Ok(RunningRead {
        at: Instant::now(),
        question: asked,
        answer: begin(what, move || read(&question))?,
    })
}

/// Reads on a separate thread and waits for the answer. `read` has to have its own time limit, as [`BoundedReads`] has.
///
/// # Errors
///
/// No thread can be started, or the read panics.
pub async fn read<Answer: Send + 'static>(
    what: &'static str,
    read: impl FnOnce() -> Answer + Send + 'static,
) -> Result<Answer, SlowReadError> {
    begin(what, read)?
        .await
        .map_err(|_| SlowReadError::Ended { what })
}

fn begin<Answer: Send + 'static>(
    what: &'static str,
    read: impl FnOnce() -> Answer + Send + 'static,
) -> Result<oneshot::Receiver<Answer>, SlowReadError> {
    let (sender, answer) = oneshot::channel();
    thread(move || {
        // Without a receiver the agent has ended, and the answer is not needed.
        let _ = sender.send(read());
    })
    .map_err(|source| SlowReadError::Start { what, source })?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::host::fixture::assert_takes_less;

    #[tokio::test]
    async fn an_answer_is_reused_for_the_same_question_only() {
        let mut apart = SlowRead::new("numbers");
        assert_eq!(apart.ask(&1, |number| number * 10).await.unwrap(), 10);
        assert_eq!(apart.ask(&1, |_| 0).await.unwrap(), 10, "recent enough");
        assert_eq!(apart.ask(&2, |number| number * 10).await.unwrap(), 20);
    }

    #[tokio::test]
    async fn a_read_without_end_is_reported_as_busy_and_not_started_twice() {
        let mut apart = SlowRead::new("a pipe");
        let (mut ends, mut earlier) = (mpsc::channel::<()>().0, Vec::new());
        assert_takes_less(LIMIT * 2, async || {
            let (sender, waits) = mpsc::channel::<()>();
            earlier.push(std::mem::replace(&mut ends, sender));
            apart = SlowRead::new("a pipe");
            let error = apart.ask(&1, move |_| waits.recv().is_ok()).await.unwrap_err();
            assert!(
                error.to_string().starts_with("reading a pipe has not ended for"),
                "{error}"
            );
        })
        .await;
        // The second and the third question do not wait at all.
        assert_takes_less(LIMIT, async || {
            for question in [1, 2] {
                let error = apart.ask(&question, |_| false).await.unwrap_err();
                assert!(matches!(error, SlowReadError::Busy { .. }), "{error}");
            }
        })
        .await;
        ends.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let late = loop {
            match apart.ask(&1, |_| false).await {
                Ok(answer) => break answer,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(late, "the late answer counts");
        assert!(
            !apart.ask(&2, |_| false).await.unwrap(),
            "the late answer counts for its own question only"
        );
    }

    #[tokio::test]
    async fn a_recent_answer_counts_while_the_next_read_is_slow() {
        let mut apart = SlowRead::new("a pipe");
        assert_eq!(apart.ask(&1, |_| 7).await.unwrap(), 7);
        if let Some((at, ..)) = &mut apart.answer {
            *at -= PACE;
        }
        let (ends, waits) = mpsc::channel::<()>();
        let slow = move |_: &i32| {
            let _ = waits.recv();
            8
        };
        assert_eq!(apart.ask(&1, slow).await.unwrap(), 7);
        if let Some((at, ..)) = &mut apart.answer {
            *at -= LATE;
        }
        let error = apart.ask(&1, |_| 9).await.unwrap_err();
        assert!(matches!(error, SlowReadError::Busy { .. }), "{error}");
        drop(ends);
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_an_error() {
        let mut apart: SlowRead<u8, u8> = SlowRead::new("nothing");
        let error = apart
            .ask(&1, |_| panic!("expected by the test"))
            .await
            .unwrap_err();
        assert!(matches!(error, SlowReadError::Ended { .. }), "{error}");
        assert_eq!(apart.ask(&1, |_| 7).await.unwrap(), 7);
    }
}
