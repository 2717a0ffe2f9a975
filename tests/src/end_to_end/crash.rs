//! Some crashes of the matrix of `cargo lab crash`: agent, coordinator and API server, during the migration and the rollback.

use anyhow::{Context, Result, anyhow};
use api::migration::LegacyPods;
use crash_point::Edge;

use super::Tally;
use crate::cluster::Cluster;
use crate::crash::matrix::{self, Cell, Leg, Round, Victim};
use crate::crash::{Bench, Matrix, shorten_restart_delay};
use crate::demo::Tools;
use crate::demo::operator::Operator;

/// Runs the crashes. Requires three nodes and a test build.
pub async fn crash(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let ready = async {
        shorten_restart_delay(cluster).await?;
        round()
    };
    let Some(round) = tally.count("crash: begin", ready.await) else {
        return tally;
    };
    let operator = Operator::new(cluster, &tools.command_line);
    let mut bench = Bench::new(cluster, operator, LegacyPods::Adopt);
    let matrix = Matrix::run(&mut bench, &[round], &tools.calico).await;
    println!("{}", matrix.text());
    for outcome in &matrix.cells {
        let result = match outcome.problems.as_slice() {
            [] => Ok(()),
            problems => Err(anyhow!("{}", problems.join("; "))),
        };
        tally.count(format_args!("crash: {}", outcome.cell.words()), result);
    }
    let ended = match &matrix.broken_off {
        None => Ok(()),
        Some(why) => Err(anyhow!("{why}")),
    };
    tally.count("crash: every round ended", ended);
    tally
}

/// One round, without an undisturbed round before it: each takes minutes. Only the whole matrix compares the hosts on Calico;
/// here Calico's IPAM is compared, and the whole state after the rollback.
fn round() -> Result<Round> {
    Ok(Round {
        prepare: Some(cell(Leg::Prepare, "SelectNodes", Victim::Coordinator)?),
        there: vec![
            cell(Leg::There, "RenameVxlanDevice", Victim::Agent)?,
            cell(Leg::There, "Import", Victim::Coordinator)?,
            cell(Leg::There, "DetachPodLinks", Victim::ApiServer)?,
        ],
        back: vec![
            cell(Leg::Back, "ReturnVxlanDevice", Victim::Agent)?,
            cell(Leg::Back, "GoalFlannel", Victim::Coordinator)?,
            cell(Leg::Back, "AttachPodLinks", Victim::Agent)?,
        ],
        undo: Some(cell(Leg::Undo, "ForgetNode", Victim::Coordinator)?),
    })
}

fn cell(leg: Leg, name: &str, victim: Victim) -> Result<Cell> {
    let step = matrix::steps(false, true)
        .into_iter()
        .find(|step| step.leg == leg && step.name == name)
        .with_context(|| format!("{leg:?} has no step {name}"))?;
    let edge = if step.single {
        Edge::Recorded
    } else {
        Edge::Changed
    };
    Ok(Cell { step, edge, victim })
}
