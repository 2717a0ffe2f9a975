//! Waits for a condition, with a deadline and the last value seen.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Time between two observations.
const INTERVAL: Duration = Duration::from_millis(200);

/// Result of one observation.
#[derive(Debug)]
pub enum Observation<T> {
    /// The condition holds.
    Done(T),
    /// The condition does not hold yet; the text says the present state.
    NotYet(String),
    /// The condition will never hold, for this reason.
    Never(anyhow::Error),
}

/// Observes again and again until the condition holds. An error of an observation is a value like any other: the API
/// server may be unavailable for a while. `Never`: an error at once. After the limit: an error with the last value
/// and the path of the logs.
pub async fn until<T, L>(what: &str, limit: Duration, logs: &Path, mut observe: L) -> Result<T>
where
    L: AsyncFnMut() -> Result<Observation<T>>,
{
    let started = Instant::now();
    let mut last = String::from("no observation");
    while started.elapsed() < limit {
        let left = limit.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, observe()).await {
            Ok(Ok(Observation::Done(value))) => return Ok(value),
            Ok(Ok(Observation::NotYet(seen))) => last = seen,
            Ok(Ok(Observation::Never(why))) => return Err(why.context(format!("waited for {what}"))),
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => last = format!("{last} (the last attempt got no answer)"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
    bail!(
        "waited {} s for {what}; last seen: {last}; logs: {}",
        limit.as_secs(),
        logs.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_is_retried_until_the_value_is_returned() {
        let mut observations = 0;
        let value = until("three", Duration::from_secs(5), Path::new("/logs"), async || {
            observations += 1;
            match observations {
                1 => bail!("away"),
                2 => Ok(Observation::NotYet("two".into())),
                _ => Ok(Observation::Done(observations)),
            }
        })
        .await
        .unwrap();
        assert_eq!(value, 3);
    }

    #[tokio::test]
    async fn the_timeout_error_has_the_last_value_and_the_logs() {
        let observe =
            async || Ok::<Observation<()>, anyhow::Error>(Observation::NotYet("1 of 3 nodes".into()));
        let error = until(
            "the nodes",
            Duration::from_millis(300),
            Path::new("/logs"),
            observe,
        )
        .await
        .unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("the nodes") && message.contains("1 of 3 nodes") && message.contains("/logs"),
            "{message}"
        );
    }
}
