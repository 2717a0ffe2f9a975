//! Stages of a change of a range, and their history.

use api::migration::{CurrentStage, Direction, FinishedStage};
use jiff::Timestamp;

/// Most stages in the history: after many changes of direction, the first ones are not needed.
const MOST_STAGES: usize = 60;

/// Records the current stage; a finished one is added to the history.
pub fn enter<Stage: Copy + PartialEq>(
    current: &mut Option<CurrentStage<Stage>>,
    history: &mut Vec<FinishedStage<Stage>>,
    stage: Stage,
    direction: Direction,
    now: Timestamp,
) {
    let is_same = |current: &CurrentStage<Stage>| current.name == stage && current.direction == direction;
    if current.as_ref().is_some_and(is_same) {
        return;
    }
    finish(current, history, now);
    *current = Some(CurrentStage {
        name: stage,
        direction,
        since: now,
    });
}

/// Records the end of the stage.
pub fn finish<Stage>(
    current: &mut Option<CurrentStage<Stage>>,
    history: &mut Vec<FinishedStage<Stage>>,
    now: Timestamp,
) {
    if let Some(over) = current.take() {
        history.push(FinishedStage {
            name: over.name,
            direction: over.direction,
            started_at: over.since,
            finished_at: now,
        });
        let surplus = history.len().saturating_sub(MOST_STAGES);
        history.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use api::migration::Stage;

    use super::*;

    #[test]
    fn each_stage_is_recorded_once() {
        let (mut current, mut history) = (None, Vec::new());
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
        for (second, stage) in [
            (0, Stage::Switch),
            (1, Stage::Move),
            (2, Stage::Move),
            (5, Stage::Verify),
        ] {
            enter(&mut current, &mut history, stage, Direction::Forward, at(second));
        }
        enter(
            &mut current,
            &mut history,
            Stage::Verify,
            Direction::Rollback,
            at(6),
        );
        finish(&mut current, &mut history, at(9));
        let history: Vec<(Stage, i64)> = history
            .iter()
            .map(|done| (done.name, (done.finished_at - done.started_at).get_seconds()))
            .collect();
        assert_eq!(
            history,
            [
                (Stage::Switch, 1),
                (Stage::Move, 4),
                (Stage::Verify, 1),
                (Stage::Verify, 3)
            ]
        );
        assert_eq!(current, None);
    }
}
