//! Reads on a thread of its own what may never answer: a file of another process, or a list that takes long. [`Each`] reads the same of
//! many processes, and one that does not answer costs what is asked of that one alone; [`Apart`] reads one thing again and again.

mod each;

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::oneshot;

pub use each::{Each, GivenUp, Unread};

/// How old an answer may be.
const PACE: Duration = Duration::from_secs(2);
/// How long an answer is waited for; a few thousand processes take some tenths of a second.
const LIMIT: Duration = Duration::from_secs(2);
/// How old an answer may be while there is no newer one: on a busy host a look that takes a little longer is not one that failed.
const LATE: Duration = Duration::from_secs(15);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ApartError {
    /// There is no thread for it.
    #[error("could not start a thread that reads {what}")]
    Start {
        /// What was to be read.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// It goes on reading.
    #[error("reading {what} has not ended for {seconds} s")]
    Busy {
        /// What is read.
        what: &'static str,
        /// Since when.
        seconds: u64,
    },
    /// The thread ended without an answer.
    #[error("reading {what} ended without an answer")]
    Ended {
        /// What was read.
        what: &'static str,
    },
}

/// A question that is asked again and again, and its newest answer.
#[derive(Debug)]
pub struct Apart<Question, Answer> {
    what: &'static str,
    asked: Option<Asked<Question, Answer>>,
    answer: Option<(Instant, Question, Answer)>,
}

/// What a thread is busy with. It is not waited for when the agent ends: whoever hangs in the kernel cannot be ended.
#[derive(Debug)]
struct Asked<Question, Answer> {
    at: Instant,
    question: Question,
    answer: oneshot::Receiver<Answer>,
}

impl<Question, Answer> Apart<Question, Answer>
where
    Question: Clone + PartialEq + Send + 'static,
    Answer: Clone + Send + 'static,
{
    /// Nothing has been asked yet; `what` names what is read.
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            asked: None,
            answer: None,
        }
    }

    /// The answer to this question: two seconds old at most, and up to fifteen while a newer one is waited for. As long as a thread has
    /// not answered there is no second one.
    pub async fn ask(
        &mut self,
        question: &Question,
        read: impl FnOnce(&Question) -> Answer + Send + 'static,
    ) -> Result<Answer, ApartError> {
        if let Some(answer) = self.known(question, PACE) {
            return Ok(answer);
        }
        // An earlier one may have been another question, or is too old to be an answer now.
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
        self.known(question, LATE).ok_or_else(|| ApartError::Busy {
            what: self.what,
            seconds: self
                .asked
                .as_ref()
                .map_or(0, |asked| asked.at.elapsed().as_secs()),
        })
    }

    /// Waits for the thread, each only once: one that hangs keeps no later look waiting.
    async fn wait(&mut self) -> Result<(), ApartError> {
        let Some(mut asked) = self.asked.take() else {
            return Ok(());
        };
        let left = LIMIT.saturating_sub(asked.at.elapsed());
        match tokio::time::timeout(left, &mut asked.answer).await {
            Ok(Ok(answer)) => self.answer = Some((asked.at, asked.question, answer)),
            Ok(Err(_)) => return Err(ApartError::Ended { what: self.what }),
            Err(_) => self.asked = Some(asked),
        }
        Ok(())
    }

    /// What was answered to this question no longer ago than this.
    fn known(&self, question: &Question, age: Duration) -> Option<Answer> {
        let (at, asked, answer) = self.answer.as_ref()?;
        (asked == question && at.elapsed() < age).then(|| answer.clone())
    }
}

fn start<Question, Answer>(
    what: &'static str,
    question: Question,
    read: impl FnOnce(&Question) -> Answer + Send + 'static,
) -> Result<Asked<Question, Answer>, ApartError>
where
    Question: Clone + Send + 'static,
    Answer: Send + 'static,
{
    let asked = question.clone();
    Ok(Asked {
        at: Instant::now(),
        question: asked,
        answer: begin(what, move || read(&question))?,
    })
}

/// Reads on a thread of its own and waits for the answer. The reading has to end after a time that it sets itself, as [`Each`] does.
pub async fn read<Answer: Send + 'static>(
    what: &'static str,
    read: impl FnOnce() -> Answer + Send + 'static,
) -> Result<Answer, ApartError> {
    begin(what, read)?.await.map_err(|_| ApartError::Ended { what })
}

fn begin<Answer: Send + 'static>(
    what: &'static str,
    read: impl FnOnce() -> Answer + Send + 'static,
) -> Result<oneshot::Receiver<Answer>, ApartError> {
    let (sender, answer) = oneshot::channel();
    thread(move || {
        // Without a receiver the agent has ended meanwhile, and the answer is of no use.
        let _ = sender.send(read());
    })
    .map_err(|source| ApartError::Start { what, source })?;
    Ok(answer)
}

/// A thread that nothing waits for when the agent ends: one that hangs in the kernel cannot be ended.
fn thread(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("reads-apart".to_owned())
        .spawn(run)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::host::clock_tests::takes_less;

    #[tokio::test]
    async fn an_answer_is_kept_for_its_question_alone() {
        let mut apart = Apart::new("numbers");
        assert_eq!(apart.ask(&1, |number| number * 10).await.unwrap(), 10);
        assert_eq!(apart.ask(&1, |_| 0).await.unwrap(), 10, "young enough");
        assert_eq!(apart.ask(&2, |number| number * 10).await.unwrap(), 20);
    }

    #[tokio::test]
    async fn who_never_answers_keeps_nobody_waiting_and_is_not_asked_twice() {
        let mut apart = Apart::new("a pipe");
        let (mut ends, mut earlier) = (mpsc::channel::<()>().0, Vec::new());
        takes_less(LIMIT * 2, async || {
            let (sender, waits) = mpsc::channel::<()>();
            earlier.push(std::mem::replace(&mut ends, sender));
            apart = Apart::new("a pipe");
            let error = apart.ask(&1, move |_| waits.recv().is_ok()).await.unwrap_err();
            assert!(
                error.to_string().starts_with("reading a pipe has not ended for"),
                "{error}"
            );
        })
        .await;
        // The second and the third are not waited for at all.
        takes_less(LIMIT, async || {
            for question in [1, 2] {
                let error = apart.ask(&question, |_| false).await.unwrap_err();
                assert!(matches!(error, ApartError::Busy { .. }), "{error}");
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
        assert!(late, "the answer that came late counts");
        assert!(
            !apart.ask(&2, |_| false).await.unwrap(),
            "and for its question alone"
        );
    }

    #[tokio::test]
    async fn what_was_known_a_moment_ago_counts_while_the_next_look_takes_longer() {
        let mut apart = Apart::new("a pipe");
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
        assert!(matches!(error, ApartError::Busy { .. }), "{error}");
        drop(ends);
    }

    #[tokio::test]
    async fn a_thread_that_ends_is_no_answer() {
        let mut apart: Apart<u8, u8> = Apart::new("nothing");
        let error = apart.ask(&1, |_| panic!("as it should be")).await.unwrap_err();
        assert!(matches!(error, ApartError::Ended { .. }), "{error}");
        assert_eq!(apart.ask(&1, |_| 7).await.unwrap(), 7);
    }
}
