//! Reading while something is waited for: an API server that is away for a moment is a normal state on such a night.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::CliError;
use crate::say;

/// How often something is looked at while it is waited for.
pub const LOOK: Duration = Duration::from_millis(300);

/// Reads until the API server answers, or the deadline has passed. An answer that says no is an answer.
pub async fn patiently<T>(
    deadline: Instant,
    mut read: impl AsyncFnMut() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let mut told = false;
    loop {
        match read().await {
            Err(error) if error.is_unanswered() && Instant::now() < deadline => {
                if !told {
                    say::note(&format!("{error}; trying again"));
                }
                told = true;
                tokio::time::sleep(LOOK).await;
            }
            ended => {
                if told && ended.is_ok() {
                    say::note("the API server answers again");
                }
                return ended;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> CliError {
        let away = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        CliError::api(
            "reading",
            "Migration a".to_owned(),
            kube::Error::Service(away.into()),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_away_is_waited_for_until_the_deadline() {
        let mut calls = 0;
        let deadline = Instant::now() + Duration::from_secs(5);
        let found = patiently(deadline, async || {
            calls += 1;
            if calls < 4 { Err(refused()) } else { Ok(calls) }
        });
        assert_eq!(found.await.unwrap(), 4);

        let started = Instant::now();
        let found: Result<(), _> = patiently(deadline, async || Err(refused())).await;
        assert!(found.unwrap_err().is_unanswered());
        assert!(started.elapsed() < Duration::from_secs(6));
    }

    #[tokio::test]
    async fn an_answer_that_says_no_is_not_asked_for_again() {
        let mut calls = 0;
        let found: Result<(), _> = patiently(Instant::now() + Duration::from_secs(5), async || {
            calls += 1;
            Err(CliError::Gone { name: "a".to_owned() })
        })
        .await;
        assert!(found.is_err());
        assert_eq!(calls, 1);
    }
}
