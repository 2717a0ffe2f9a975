//! Time since the last new report of an agent, while the checks wait for all agents. Thousands of agents report one after the
//! other, at a rate that the API server sets.

use std::time::{Duration, Instant};

/// UID of the Migration, fewest silent agents so far, and the time of that. Lost at a restart: the time then starts
/// again.
#[derive(Debug, Default)]
pub struct Silence(Option<(String, usize, Instant)>);

impl Silence {
    /// Time without a new report for this Migration; `silent` agents have not reported. A new node or an ended agent does not
    /// restart it.
    pub fn observe(&mut self, migration: &str, silent: usize) -> Duration {
        match &self.0 {
            Some((of, fewest, since)) if of == migration && *fewest <= silent => since.elapsed(),
            Some(_) | None => {
                self.0 = Some((migration.to_owned(), silent, Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Adds this to the time.
    #[cfg(test)]
    pub(crate) fn age(&mut self, time: Duration) {
        if let Some((_, _, since)) = &mut self.0 {
            *since = since.checked_sub(time).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_report_restarts_the_time_and_a_new_node_does_not() {
        const LONG: Duration = Duration::from_mins(1);
        let mut silence = Silence::default();
        assert_eq!(silence.observe("a", 5000), Duration::ZERO);
        silence.age(LONG);
        assert!(silence.observe("a", 5000) >= LONG);
        assert_eq!(
            silence.observe("a", 4999),
            Duration::ZERO,
            "one agent has reported"
        );
        silence.age(LONG);
        assert!(silence.observe("a", 5001) >= LONG, "two nodes have joined");
        assert!(
            silence.observe("a", 4999) >= LONG,
            "the new agents have reported, the others have not"
        );
        assert_eq!(silence.observe("a", 0), Duration::ZERO);
        silence.age(LONG);
        assert!(
            silence.observe("a", 1) >= LONG,
            "an agent that reported has ended"
        );
        assert_eq!(silence.observe("b", 1), Duration::ZERO, "another Migration");
    }
}
