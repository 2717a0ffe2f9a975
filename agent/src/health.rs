//! What health of the agent is judged by. No I/O.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runtime::admin::{self, Turns};

/// A loop that has not turned for this long is stuck: the kubelet restarts the process.
const STUCK: Duration = Duration::from_mins(3);

/// What health is judged by.
#[derive(Debug)]
pub struct Health {
    turns: Turns,
    host_read: AtomicBool,
    goal_read: AtomicBool,
}

impl Health {
    /// Health of a process that starts now.
    pub fn starting() -> Self {
        Self {
            turns: Turns::starting(),
            host_read: AtomicBool::new(false),
            goal_read: AtomicBool::new(false),
        }
    }

    /// The loop turned.
    pub fn turned(&self) {
        self.turns.turned();
    }

    /// Whether the host could be read in the last turn.
    pub fn set_host_read(&self, read: bool) {
        self.host_read.store(read, Ordering::Relaxed);
    }

    /// The API server has said once whether this node has a goal. An API server that is away afterwards takes
    /// nothing away from the agent.
    pub fn goal_read(&self) {
        self.goal_read.store(true, Ordering::Relaxed);
    }
}

impl admin::Health for Health {
    fn alive(&self) -> Result<(), String> {
        self.turns.within(STUCK)
    }

    fn ready(&self) -> Result<(), String> {
        if !self.host_read.load(Ordering::Relaxed) {
            return Err("the host could not be read; see the log".to_owned());
        }
        if !self.goal_read.load(Ordering::Relaxed) {
            return Err("the API server has not said this node's goal yet".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use runtime::admin::Health as _;

    use super::*;

    #[test]
    fn ready_once_host_and_goal_are_read() {
        let health = Health::starting();
        assert!(health.ready().is_err());
        health.set_host_read(true);
        let missing = health.ready().unwrap_err();
        assert!(missing.contains("API server"), "{missing}");
        health.goal_read();
        assert_eq!(health.ready(), Ok(()));
        health.set_host_read(false);
        assert!(health.ready().is_err());
    }
}
