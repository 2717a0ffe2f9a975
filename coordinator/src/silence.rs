//! For how long no further agent has reported, while the checks wait for all of them. Thousands of agents report one after the other, and
//! the API server says how fast.

use std::time::{Duration, Instant};

/// Of which Migration, by UID, how many agents were silent when the last one reported, and since when. Lost at a restart: then the time
/// counts again.
#[derive(Debug, Default)]
pub struct Silence(Option<(String, usize, Instant)>);

impl Silence {
    /// For how long no agent more has reported for this Migration; `silent` have not. A node that joins, or an agent that ends, begins no time.
    pub fn look(&mut self, migration: &str, silent: usize) -> Duration {
        match &self.0 {
            Some((of, fewest, since)) if of == migration && *fewest <= silent => since.elapsed(),
            Some(_) | None => {
                self.0 = Some((migration.to_owned(), silent, Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// It has lasted for so much longer.
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
    fn each_agent_that_reports_begins_the_time_again_and_none_that_comes_or_goes() {
        const LONG: Duration = Duration::from_mins(1);
        let mut silence = Silence::default();
        assert_eq!(silence.look("a", 5000), Duration::ZERO);
        silence.age(LONG);
        assert!(silence.look("a", 5000) >= LONG);
        assert_eq!(silence.look("a", 4999), Duration::ZERO, "one has reported");
        silence.age(LONG);
        assert!(silence.look("a", 5001) >= LONG, "two nodes have joined");
        assert!(
            silence.look("a", 4999) >= LONG,
            "they have reported, and the others have not"
        );
        assert_eq!(silence.look("a", 0), Duration::ZERO);
        silence.age(LONG);
        assert!(silence.look("a", 1) >= LONG, "one that reported has ended");
        assert_eq!(silence.look("b", 1), Duration::ZERO, "another Migration");
    }
}
