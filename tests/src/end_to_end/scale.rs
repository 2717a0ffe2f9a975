//! Clusters of nodes that are played, one for each kind of migration: what each costs the coordinator, by counts that do not depend on the machine.

use std::fmt::Display;

use anyhow::{Result, bail};

use super::Tally;
use crate::progress::Progress;
use crate::scale::{self, Size};

/// No object of replumb may be larger, however large the cluster is.
const LARGEST_OBJECT: usize = 256 << 10;
/// Writes of the coordinator by node.
const WRITES_A_NODE: f64 = 20.0;
/// Anonymous memory of a release build with some thousand pods.
const MEMORY: u64 = 30 << 20;

/// Migrates it and compares what was counted with what may be.
pub async fn scale(size: &Size, progress: &Progress) -> Tally {
    let mut tally = Tally::default();
    let what = size.what();
    let name = format!("{what}: {} nodes and {} pods are migrated", size.nodes, size.pods);
    let migrated = async {
        let report = Box::pin(scale::run(size, progress)).await?;
        print!("{report}");
        match &report.unfinished {
            None => Ok(report),
            Some(words) => bail!("it has not ended in time: {words}"),
        }
    };
    let Some(report) = tally.count(name, migrated.await) else {
        return tally;
    };
    tally.count(
        format!("{what}: no object is larger than 256 KiB"),
        at_most("bytes", &report.largest(), &LARGEST_OBJECT),
    );
    tally.count(
        format!("{what}: the coordinator writes at most 20 times a node"),
        at_most("writes a node", &report.writes_a_node(), &WRITES_A_NODE),
    );
    tally.count(
        format!("{what}: its memory is bounded"),
        at_most("anonymous bytes", &report.peak_anonymous_bytes, &MEMORY),
    );
    tally
}

fn at_most<T: PartialOrd + Display>(what: &str, found: &T, most: &T) -> Result<()> {
    if found > most {
        bail!("{found} {what}, needed at most {most}");
    }
    Ok(())
}
