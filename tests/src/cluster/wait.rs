//! Waiting for a condition, with a deadline and the value that was seen last.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// What one look has found.
#[derive(Debug)]
pub enum Look<T> {
    /// The condition holds.
    Done(T),
    /// It does not yet; this is what there is instead.
    NotYet(String),
    /// It will not, for this reason.
    Never(anyhow::Error),
}

/// Looks again and again until the condition holds. An error of a look is a value like any other: the API server may be
/// away for a while. Once it will never hold: an error at once. After the limit: an error with the value seen last and where the logs are.
pub async fn until<T, L>(what: &str, limit: Duration, logs: &Path, mut look: L) -> Result<T>
where
    L: AsyncFnMut() -> Result<Look<T>>,
{
    let started = Instant::now();
    let mut last = String::from("nothing was seen");
    while started.elapsed() < limit {
        let left = limit.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(Look::Done(value))) => return Ok(value),
            Ok(Ok(Look::NotYet(seen))) => last = seen,
            Ok(Ok(Look::Never(why))) => return Err(why.context(format!("waited for {what}"))),
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => last = format!("{last} (the last look got no answer)"),
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
    async fn an_error_is_waited_out_and_the_value_returned() {
        let mut looks = 0;
        let value = until("three", Duration::from_secs(5), Path::new("/logs"), async || {
            looks += 1;
            match looks {
                1 => bail!("away"),
                2 => Ok(Look::NotYet("two".into())),
                _ => Ok(Look::Done(looks)),
            }
        })
        .await
        .unwrap();
        assert_eq!(value, 3);
    }

    #[tokio::test]
    async fn the_deadline_names_what_was_seen_last_and_the_logs() {
        let look = async || Ok::<Look<()>, anyhow::Error>(Look::NotYet("1 of 3 nodes".into()));
        let error = until("the nodes", Duration::from_millis(300), Path::new("/logs"), look)
            .await
            .unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("the nodes") && message.contains("1 of 3 nodes") && message.contains("/logs"),
            "{message}"
        );
    }
}
