//! Checks that `kubectl replumb status` names an object within ten seconds.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::demo::operator::Operator;

/// Longest time from the effect of the object until the status names it.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
/// Time between two reads.
const INTERVAL: Duration = Duration::from_millis(300);

/// Waits until the status contains all of these fragments, on any lines. Returns the duration.
pub async fn named(operator: &Operator, words: &[&str]) -> Result<Duration> {
    let began = Instant::now();
    loop {
        let output = operator.run(&["status"]).await?;
        let text = joined(&output.text);
        let missing: Vec<&str> = words
            .iter()
            .copied()
            .filter(|word| !text.contains(word))
            .collect();
        let took = began.elapsed();
        if missing.is_empty() {
            println!(
                "        named after {:.1} s: {}",
                took.as_secs_f64(),
                words.join(", ")
            );
            return Ok(took);
        }
        if took > NAMED_WITHIN {
            bail!(
                "`kubectl replumb status` does not contain {} after {} s; output:\n{}",
                missing.join(", "),
                NAMED_WITHIN.as_secs(),
                output.text
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The text on one line, because the status wraps long texts.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_text_is_joined_to_one_line() {
        assert_eq!(
            joined("Message    pod a\n           is refused\n"),
            "Message pod a is refused"
        );
    }
}
