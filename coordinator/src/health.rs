//! What health of the coordinator is judged by. No I/O.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runtime::admin::{self, Turns};

/// A loop that has not turned for this long is stuck: the kubelet restarts the process.
const STUCK: Duration = Duration::from_mins(2);

/// What health is judged by.
#[derive(Debug)]
pub struct Health {
    turns: Turns,
    filled: AtomicBool,
}

impl Health {
    /// Health of a process that starts now.
    pub fn starting() -> Self {
        Self {
            turns: Turns::starting(),
            filled: AtomicBool::new(false),
        }
    }

    /// The loop turned.
    pub fn turned(&self) {
        self.turns.turned();
    }

    /// The stores are filled.
    pub fn filled(&self) {
        self.filled.store(true, Ordering::Relaxed);
    }
}

impl admin::Health for Health {
    fn alive(&self) -> Result<(), String> {
        self.turns.within(STUCK)
    }

    fn ready(&self) -> Result<(), String> {
        if !self.filled.load(Ordering::Relaxed) {
            return Err("the API has not been read yet".to_owned());
        }
        Ok(())
    }
}
