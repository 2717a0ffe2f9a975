//! Retries of reads during a wait: an API server that is unavailable for a short time is normal during a migration.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::CliError;
use crate::say;

/// The interval of reads during a wait.
pub const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Reads until the API server answers, or the deadline has passed. A refusal is an answer.
pub async fn read_with_retries<T>(
    deadline: Instant,
    mut read: impl AsyncFnMut() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let mut is_reported = false;
    loop {
        match read().await {
            Err(error) if error.is_unanswered() && Instant::now() < deadline => {
                if !is_reported {
                    say::note(&format!("{error}; trying again"));
                }
                is_reported = true;
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            ended => {
                if is_reported && ended.is_ok() {
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
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        CliError::api(
            "reading",
            "Migration a".to_owned(),
            kube::Error::Service(refused.into()),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_unavailable_api_server_is_retried_until_the_deadline() {
        let mut calls = 0;
        let deadline = Instant::now() + Duration::from_secs(5);
        let found = read_with_retries(deadline, async || {
            calls += 1;
            if calls < 4 { Err(refused()) } else { Ok(calls) }
        });
        assert_eq!(found.await.unwrap(), 4);

        let started = Instant::now();
        let found: Result<(), _> = read_with_retries(deadline, async || Err(refused())).await;
        assert!(found.unwrap_err().is_unanswered());
        assert!(started.elapsed() < Duration::from_secs(6));
    }

    #[tokio::test]
    async fn a_refusal_is_not_retried() {
        let mut calls = 0;
        let found: Result<(), _> = read_with_retries(Instant::now() + Duration::from_secs(5), async || {
            calls += 1;
            Err(CliError::Gone { name: "a".to_owned() })
        })
        .await;
        assert!(found.is_err());
        assert_eq!(calls, 1);
    }
}
