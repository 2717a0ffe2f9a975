//! Clusters of nodes that are played, one for each kind of migration: what each costs the coordinator, by counts that do not depend on the machine.

use std::fmt::Display;

use anyhow::{Result, bail};

use super::Tally;
use crate::progress::Progress;
use crate::scale::{self, Kind, Size};

/// No object of replumb may be larger, however large the cluster is.
const LARGEST_OBJECT: usize = 256 << 10;
/// Anonymous memory with some hundred pods.
const MEMORY: u64 = 30 << 20;

/// Writes of the coordinator by node: a quarter more than was measured at these sizes. The target of 20 is not reached; docs/limits.md says
/// what the writes are.
fn most_writes(migration: Kind) -> f64 {
    match migration {
        // Calico's handles, blocks and claims of living pods, mostly.
        Kind::FlannelToCalico => 100.0,
        Kind::PodCidr => 55.0,
        // Services and their helpers, mostly.
        Kind::ServiceCidr => 60.0,
    }
}

/// Migrates it and compares what was counted with what may be.
pub async fn scale(size: &Size, progress: &Progress) -> Tally {
    let mut tally = Tally::default();
    let what = size.description();
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
    let most = most_writes(size.migration);
    tally.count(
        format!("{what}: the coordinator writes at most {most} times a node"),
        at_most("writes a node", &report.writes_per_node(), &most),
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
