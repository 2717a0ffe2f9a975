//! Health of the coordinator. No I/O.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runtime::admin::{self, LoopTurns};

/// Time without a pass after which the loop counts as stuck: the kubelet restarts the process.
const STUCK: Duration = Duration::from_mins(2);

/// Inputs of the health check.
#[derive(Debug)]
pub struct Health {
    turns: LoopTurns,
    filled: AtomicBool,
}

impl Health {
    /// Health of a process that starts now.
    pub fn starting() -> Self {
        Self {
            turns: LoopTurns::starting(),
            filled: AtomicBool::new(false),
        }
    }

    /// Records that the loop turned.
    pub fn turned(&self) {
        self.turns.turned();
    }

    /// Records that the stores are filled.
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
            return Err("objects of the API are not read yet".to_owned());
        }
        Ok(())
    }
}
