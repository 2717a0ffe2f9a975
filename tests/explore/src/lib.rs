//! The harness of the walks: every state that a decision can reach, with a crash after each step, and the end that each of them
//! has to reach. Pure; a dev-dependency of the crates with decisions.

#![expect(clippy::panic, reason = "a test says that it failed by a panic")]

mod crash;
mod states;

pub use crash::crash_in_each_step;
pub use states::{Follows, States, states};
