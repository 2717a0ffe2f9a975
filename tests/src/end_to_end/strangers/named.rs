//! Whether an operator is told: `kubectl replumb status` names an object within ten seconds.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::demo::operator::Operator;

/// From when the object matters to when the status names it.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks.
const BEAT: Duration = Duration::from_millis(300);

/// Waits until the status says all of these words, on whatever lines. Returns how long that took.
pub async fn named(operator: &Operator, words: &[&str]) -> Result<Duration> {
    let began = Instant::now();
    loop {
        let output = operator.run(&["status"]).await?;
        let said = joined(&output.text);
        let missing: Vec<&str> = words
            .iter()
            .copied()
            .filter(|word| !said.contains(word))
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
                "`kubectl replumb status` does not say {} after {} s; it says:\n{}",
                missing.join(", "),
                NAMED_WITHIN.as_secs(),
                output.text
            );
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// The text on one line: the status wraps long texts.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_wrapped_is_found() {
        assert_eq!(
            joined("Message    pod a\n           is refused\n"),
            "Message pod a is refused"
        );
    }
}
