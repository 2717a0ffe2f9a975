//! The texts of a stage.

use api::migration::Direction;
use jiff::Timestamp;

use crate::age::age;

/// The row of the status for the current stage; `None` before the first stage and after the last.
pub fn stage_row(
    stage: Option<&str>,
    direction: Option<Direction>,
    since: Option<Timestamp>,
    now: Timestamp,
) -> Option<(&'static str, String)> {
    let stage = stage_text(stage?, direction?);
    Some(("Stage", format!("{stage} for {}", age(since?, now))))
}

/// The stage, and whether it belongs to a rollback.
pub fn stage_text(stage: &str, direction: Direction) -> String {
    match direction {
        Direction::Forward => stage.to_owned(),
        Direction::Rollback => format!("{stage} (rollback)"),
    }
}
