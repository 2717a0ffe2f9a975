//! Clusters of simulated nodes, one for each kind of migration: the coordinator's costs, by counts that do not depend on the
//! machine.

use std::fmt::Display;

use anyhow::{Result, bail};

use super::Tally;
use crate::progress::Progress;
use crate::scale::{self, Kind, Size};

/// Largest size of an object of replumb, however large the cluster is.
const LARGEST_OBJECT: usize = 256 << 10;
/// Largest anonymous memory of the coordinator, with some hundred pods.
const MEMORY: u64 = 30 << 20;

/// The most writes of the coordinator per node: a quarter more than was measured at these sizes. The target of 20 is not reached;
/// docs/limits.md lists the writes.
fn most_writes(migration: Kind) -> f64 {
    match migration {
        // Mostly Calico's handles, blocks and affinities of running pods.
        Kind::FlannelToCalico => 100.0,
        Kind::PodCidr => 55.0,
        // Mostly Services and their helpers.
        Kind::ServiceCidr => 60.0,
    }
}

/// Migrates the cluster and compares the counts with their limits.
pub async fn scale(size: &Size, progress: &Progress) -> Tally {
    let mut tally = Tally::default();
    let what = size.description();
    let name = format!("{what}: migrates {} nodes and {} pods", size.nodes, size.pods);
    let migrated = async {
        let report = Box::pin(scale::run(size, progress)).await?;
        print!("{report}");
        match &report.unfinished {
            None => Ok(report),
            Some(words) => bail!("the migration has not ended in time: {words}"),
        }
    };
    let Some(report) = tally.count(name, migrated.await) else {
        return tally;
    };
    tally.count(
        format!("{what}: every object has at most 256 KiB"),
        at_most("bytes", &report.largest(), &LARGEST_OBJECT),
    );
    let most = most_writes(size.migration);
    tally.count(
        format!("{what}: the coordinator writes at most {most} times per node"),
        at_most("writes per node", &report.writes_per_node(), &most),
    );
    tally.count(
        format!("{what}: the coordinator's memory is bounded"),
        at_most("anonymous bytes", &report.peak_anonymous_bytes, &MEMORY),
    );
    tally
}

fn at_most<T: PartialOrd + Display>(what: &str, found: &T, most: &T) -> Result<()> {
    if found > most {
        bail!("{what}: found {found}, needed at most {most}");
    }
    Ok(())
}
