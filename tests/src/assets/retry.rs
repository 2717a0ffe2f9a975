//! Work that needs the network: a failed attempt is repeated.

use std::time::Duration;

use anyhow::{Context as _, Error, Result};

use crate::progress::Progress;

/// Pauses between the attempts: there is one more attempt than pauses.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];

/// Why an attempt failed.
#[derive(Debug)]
pub enum Failure {
    /// The network may be the reason.
    Again(Error),
    /// The next attempt would fail, too.
    Final(Error),
}

/// Repeats work that needs the network, at most three times.
pub async fn three_times<T>(
    what: &str,
    progress: &Progress,
    mut work: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T> {
    for pause in PAUSES {
        match work().await {
            Ok(value) => return Ok(value),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Again(error)) => {
                progress.say(format_args!(
                    "{what} failed, next attempt in {} s: {error:#}",
                    pause.as_secs()
                ));
                tokio::time::sleep(pause).await;
            }
        }
    }
    match work().await {
        Ok(value) => Ok(value),
        Err(Failure::Final(error)) => Err(error),
        Err(Failure::Again(error)) => Err(error).with_context(|| {
            format!(
                "{what} failed {} times; it needs the network: check the network access of this machine",
                PAUSES.len() + 1
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails this number of times, and returns the number of attempts with the result.
    async fn tried(failures: usize, fail: fn(Error) -> Failure) -> (usize, Result<()>) {
        let mut tries = 0;
        let ended = three_times("fetching", &Progress::default(), async || {
            tries += 1;
            if tries > failures {
                Ok(())
            } else {
                Err(fail(anyhow::anyhow!("no such host")))
            }
        })
        .await;
        (tries, ended)
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_failure_is_retried_and_then_named() {
        for failures in [0, 1, 2] {
            let (tries, ended) = tried(failures, Failure::Again).await;
            assert_eq!(tries, failures + 1);
            ended.unwrap();
        }
        let began = tokio::time::Instant::now();
        let (tries, ended) = tried(9, Failure::Again).await;
        assert_eq!(tries, 3);
        assert_eq!(
            began.elapsed().as_secs(),
            PAUSES.iter().sum::<Duration>().as_secs()
        );
        let error = format!("{:#}", ended.unwrap_err());
        for words in ["fetching failed 3 times", "the network", "no such host"] {
            assert!(error.contains(words), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_failures_are_not_retried() {
        let (tries, ended) = tried(9, Failure::Final).await;
        assert_eq!(tries, 1);
        assert_eq!(ended.unwrap_err().to_string(), "no such host");
    }
}
