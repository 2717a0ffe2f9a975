//! Runs with a crash in one step.

use std::fmt::{Debug, Display};

/// Runs once without a crash, and once more for each step, with a crash in it. `run` gets the number of that step, and returns
/// the end state and the number of steps. Returns the number of crashes.
///
/// # Panics
///
/// If a run with a crash ends in another state.
pub fn crash_in_each_step<End: PartialEq + Debug>(
    what: impl Display,
    mut run: impl FnMut(Option<usize>) -> (End, usize),
) -> usize {
    let (end, steps) = run(None);
    for crash_at in 0..steps {
        let (after_crash, _) = run(Some(crash_at));
        assert_eq!(after_crash, end, "crash in step {crash_at}, {what}");
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_crashed_in_once() {
        let mut crashes = Vec::new();
        let count = crash_in_each_step("three steps", |crash_at| {
            crashes.push(crash_at);
            ("end", 3)
        });
        assert_eq!(count, 3);
        assert_eq!(crashes, [None, Some(0), Some(1), Some(2)]);
    }

    #[test]
    #[should_panic(expected = "crash in step 1, two steps")]
    fn another_end_after_a_crash_is_named() {
        crash_in_each_step("two steps", |crash_at| (crash_at == Some(1), 2));
    }
}
