//! Asks on a thread of its own: a file of somebody else's process may never answer, and the agent itself has one thread.

use std::io;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::oneshot;

/// How old an answer may be.
const PACE: Duration = Duration::from_secs(2);
/// How long an answer is waited for; a few thousand processes take some tenths of a second.
const LIMIT: Duration = Duration::from_secs(2);
/// How old an answer may be that came later: where everything is slow, late answers are the only ones.
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

    /// The answer to this question, two seconds old at most unless it came late. As long as a thread has not answered there is no
    /// second one.
    pub async fn ask(
        &mut self,
        question: &Question,
        read: impl FnOnce(&Question) -> Answer + Send + 'static,
    ) -> Result<Answer, ApartError> {
        let what = self.what;
        if let Some((at, asked, answer)) = &self.answer
            && asked == question
            && at.elapsed() < PACE
        {
            return Ok(answer.clone());
        }
        if let Some(mut earlier) = self.asked.take() {
            match earlier.answer.try_recv() {
                // It came after nobody waited for it any more.
                Ok(answer) if earlier.question == *question && earlier.at.elapsed() < LATE => {
                    return Ok(answer);
                }
                Err(oneshot::error::TryRecvError::Empty) => {
                    let seconds = earlier.at.elapsed().as_secs();
                    self.asked = Some(earlier);
                    return Err(ApartError::Busy { what, seconds });
                }
                // Another question, too old, or a thread that has ended without one.
                Ok(_) | Err(oneshot::error::TryRecvError::Closed) => {}
            }
        }
        let asked = self.asked.insert(start(what, question.clone(), read)?);
        let answer = match tokio::time::timeout(LIMIT, &mut asked.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                self.asked = None;
                return Err(ApartError::Ended { what });
            }
            Err(_) => {
                let seconds = asked.at.elapsed().as_secs();
                return Err(ApartError::Busy { what, seconds });
            }
        };
        self.answer = Some((asked.at, question.clone(), answer.clone()));
        self.asked = None;
        Ok(answer)
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
    let (sender, answer) = oneshot::channel();
    let asked = question.clone();
    std::thread::Builder::new()
        .name("reads-apart".to_owned())
        .spawn(move || {
            // Nobody waits for it any more where the agent ends meanwhile.
            let _ = sender.send(read(&question));
        })
        .map_err(|source| ApartError::Start { what, source })?;
    Ok(Asked {
        at: Instant::now(),
        question: asked,
        answer,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

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
        let (ends, waits) = mpsc::channel::<()>();
        let began = Instant::now();
        let error = apart.ask(&1, move |_| waits.recv().is_ok()).await.unwrap_err();
        assert!(
            error.to_string().starts_with("reading a pipe has not ended for"),
            "{error}"
        );
        assert!(began.elapsed() < LIMIT * 2);
        let error = apart.ask(&1, |_| true).await.unwrap_err();
        assert!(matches!(error, ApartError::Busy { .. }), "{error}");
        assert!(began.elapsed() < LIMIT * 2, "the second is not waited for at all");
        ends.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match apart.ask(&1, |_| false).await {
                Ok(late) => break assert!(late, "the answer that came late counts"),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!apart.ask(&2, |_| false).await.unwrap());
    }

    #[tokio::test]
    async fn a_thread_that_ends_is_no_answer() {
        let mut apart: Apart<u8, u8> = Apart::new("nothing");
        let error = apart.ask(&1, |_| panic!("as it should be")).await.unwrap_err();
        assert!(matches!(error, ApartError::Ended { .. }), "{error}");
        assert_eq!(apart.ask(&1, |_| 7).await.unwrap(), 7);
    }
}
