//! Health of the agent. No I/O.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runtime::admin::{self, LoopTurns};

/// A loop without a turn for this long is stuck: the kubelet restarts the process.
const STUCK: Duration = Duration::from_mins(3);

/// State from which liveness and readiness follow.
#[derive(Debug)]
pub struct Health {
    turns: LoopTurns,
    host_read: AtomicBool,
    goal_read: AtomicBool,
}

impl Health {
    /// Health of a process that starts now.
    pub fn starting() -> Self {
        Self {
            turns: LoopTurns::starting(),
            host_read: AtomicBool::new(false),
            goal_read: AtomicBool::new(false),
        }
    }

    /// Records a turn of the loop.
    pub fn turned(&self) {
        self.turns.turned();
    }

    /// Records whether the host could be read in the last turn.
    pub fn set_host_read(&self, read: bool) {
        self.host_read.store(read, Ordering::Relaxed);
    }

    /// Records that the API server has answered whether this node has a goal. The agent stays ready if the API server is
    /// unreachable afterwards.
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
            return Err("host state could not be read: see the agent's log".to_owned());
        }
        if !self.goal_read.load(Ordering::Relaxed) {
            return Err("NodeMigration of this node not read from the API server yet".to_owned());
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
