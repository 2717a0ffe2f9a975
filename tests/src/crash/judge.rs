//! Checks the end of a round. A problem is added to the crashes that may have caused it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;

use super::matrix::Round;
use super::round::Outcome;
use super::state::{self, Hosts};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::host::Host;
use crate::demo::ipam;
use crate::demo::same::without_pods;
use crate::demo::untouched::{self, Fingerprint};
use crate::end_to_end::MigrationReader;

/// Time limit for a node on Calico that has been powered on again until nothing of flannel remains on it.
const CLEAN: Duration = Duration::from_mins(2);

/// The host settings of the network on Calico, after a migration without crashes; `None` if there was none.
#[derive(Debug, Default)]
pub struct Undisturbed(Option<BTreeMap<String, BTreeSet<String>>>);

impl Undisturbed {
    /// Checks that every node is on Calico: Calico's IPAM matches the pods, and hosts are as after the round without
    /// crashes. If there was no such round (see `end_to_end::crash`), hosts are compared only after the rollback,
    /// with their state before.
    pub async fn judge_on_calico(
        &mut self,
        cluster: &Cluster,
        round: &Round,
        outcomes: &mut [Outcome],
    ) -> Result<()> {
        ipam::agrees(cluster).await?;
        let hosts = state::hosts(cluster).await?;
        if round.cells().next().is_none() {
            let lines = |(node, host): (&String, &Host)| (node.clone(), without_pods(&host.everything()));
            self.0 = Some(hosts.iter().map(lines).collect());
        }
        for outcome in outcomes.iter_mut() {
            let node = &outcome.node;
            let undisturbed = self.0.as_ref().and_then(|all| all.get(node));
            outcome
                .problems
                .extend(match (hosts.get(node), undisturbed, round.loses_power()) {
                    (_, _, true) => clean_after_power(cluster, node).await?,
                    (Some(host), Some(lines), false) => state::differences_on_calico(lines, host),
                    (Some(_), None, false) => Vec::new(),
                    (None, _, false) => vec![state::missing_node(node)],
                });
        }
        Ok(())
    }
}

/// The state before a round.
#[derive(Debug)]
pub struct Before {
    hosts: Hosts,
    objects: Fingerprint,
    pods: BTreeMap<String, (String, i32)>,
}

impl Before {
    /// Reads the state.
    pub async fn read(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            hosts: state::hosts(cluster).await?,
            objects: state::objects(cluster).await?,
            pods: state::pods(cluster).await?,
        })
    }

    /// Checks that everything is rolled back: hosts, objects and pods are as before.
    pub async fn judge_back(&self, cluster: &Cluster, round: &Round, outcomes: &mut [Outcome]) -> Result<()> {
        let hosts = state::hosts(cluster).await?;
        let objects = untouched::differences(&self.objects, &state::objects(cluster).await?);
        let moved = state::moved(&self.pods, &state::pods(cluster).await?);
        for outcome in outcomes.iter_mut() {
            let node = &outcome.node;
            outcome.problems.extend(
                match (self.hosts.get(node), hosts.get(node), round.loses_power()) {
                    (Some(_), Some(is), true) => state::problems_on_flannel_after_power_failure(is),
                    (Some(was), Some(is), false) => state::differs_back(was, is),
                    (None, _, _) | (_, None, _) => vec![state::missing_node(node)],
                },
            );
            if !round.loses_power() {
                outcome.problems.extend(moved.iter().cloned());
            }
            // Only changes of the migration count: a host recreates its own end of the tunnel after a power failure.
            let ours = objects
                .iter()
                .filter(|line| !round.loses_power() || !line.contains("backend-data"));
            outcome.problems.extend(ours.cloned());
        }
        Ok(())
    }
}

/// The pods of flannel are deleted after the power failure, and their remains are removed once new pods run. A node
/// that lost its power before its turn has new pods of flannel.
async fn clean_after_power(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let reader = MigrationReader::new(cluster);
    let logs = cluster.directory().logs();
    let clean = until(
        "the remains of flannel's pods to be removed",
        CLEAN,
        &logs,
        async || {
            if !reader.facts(node).await?.legacy_pods.is_empty() {
                return Ok(Observation::Done(()));
            }
            let wrong = state::problems_on_calico_after_power_failure(&Host::observe(cluster, node).await?);
            Ok(match wrong.as_slice() {
                [] => Observation::Done(()),
                some => Observation::NotYet(some.join("; ")),
            })
        },
    );
    Ok(match clean.await {
        Ok(()) => Vec::new(),
        Err(error) => vec![format!("{error:#}")],
    })
}
