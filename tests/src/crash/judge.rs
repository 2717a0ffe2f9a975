//! What is wrong at the end of a round stands with the crashes that may have done it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;

use super::matrix::Round;
use super::round::Outcome;
use super::state::{self, Hosts};
use crate::cluster::Cluster;
use crate::cluster::wait::{Look, until};
use crate::demo::host::Host;
use crate::demo::ipam;
use crate::demo::untouched::{self, Fingerprint};
use crate::end_to_end::Looker;

/// From a node that has its power again and is on Calico to one that has nothing of flannel.
const CLEAN: Duration = Duration::from_mins(2);

/// What each host has of the network on Calico, after a migration that nobody disturbed; nothing without one.
#[derive(Debug, Default)]
pub struct Undisturbed(Option<BTreeMap<String, BTreeSet<String>>>);

impl Undisturbed {
    /// Every node is on Calico: Calico's IPAM as the pods are, hosts as after the round that nobody disturbed. Where there was
    /// none (see `end_to_end::crash`), what they were before is all that hosts are compared with, after the way back.
    pub async fn judge_there(
        &mut self,
        cluster: &Cluster,
        round: &Round,
        outcomes: &mut [Outcome],
    ) -> Result<()> {
        ipam::agrees(cluster).await?;
        let hosts = state::hosts(cluster).await?;
        if round.cells().next().is_none() {
            let lines = |(node, host): (&String, &_)| (node.clone(), state::of_the_network(host));
            self.0 = Some(hosts.iter().map(lines).collect());
        }
        for outcome in outcomes.iter_mut() {
            let node = &outcome.node;
            let undisturbed = self.0.as_ref().and_then(|all| all.get(node));
            outcome
                .problems
                .extend(match (hosts.get(node), undisturbed, round.loses_power()) {
                    (_, _, true) => clean_after_power(cluster, node).await?,
                    (Some(host), Some(lines), false) => state::differs_there(lines, host),
                    (Some(_), None, false) => Vec::new(),
                    (None, _, false) => vec![state::not_in_the_lab(node)],
                });
        }
        Ok(())
    }
}

/// What was there before a round.
#[derive(Debug)]
pub struct Before {
    hosts: Hosts,
    objects: Fingerprint,
    pods: BTreeMap<String, (String, i32)>,
}

impl Before {
    /// Looks at it.
    pub async fn look(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            hosts: state::hosts(cluster).await?,
            objects: state::objects(cluster).await?,
            pods: state::pods(cluster).await?,
        })
    }

    /// Everything is back: hosts, objects and pods as they were.
    pub async fn judge_back(&self, cluster: &Cluster, round: &Round, outcomes: &mut [Outcome]) -> Result<()> {
        let hosts = state::hosts(cluster).await?;
        let objects = untouched::differences(&self.objects, &state::objects(cluster).await?);
        let moved = state::moved(&self.pods, &state::pods(cluster).await?);
        for outcome in outcomes.iter_mut() {
            let node = &outcome.node;
            outcome.problems.extend(
                match (self.hosts.get(node), hosts.get(node), round.loses_power()) {
                    (Some(_), Some(is), true) => state::wrong_back_after_power(is),
                    (Some(was), Some(is), false) => state::differs_back(was, is),
                    (None, _, _) | (_, None, _) => vec![state::not_in_the_lab(node)],
                },
            );
            if !round.loses_power() {
                outcome.problems.extend(moved.iter().cloned());
            }
            // By nobody but the migration: a host's own end of the tunnel is made anew with its power.
            let ours = objects
                .iter()
                .filter(|line| !round.loses_power() || !line.contains("backend-data"));
            outcome.problems.extend(ours.cloned());
        }
        Ok(())
    }
}

/// The pods of flannel's are gone with the power: what they had goes when their successors are there. A node that was struck
/// before its turn came has successors of flannel's.
async fn clean_after_power(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let look = Looker::new(cluster);
    let logs = cluster.directory().logs();
    let clean = until("what flannel's pods had is gone", CLEAN, &logs, async || {
        if !look.facts(node).await?.legacy_pods.is_empty() {
            return Ok(Look::Done(()));
        }
        let wrong = state::wrong_there_after_power(&Host::look(cluster, node).await?);
        Ok(match wrong.as_slice() {
            [] => Look::Done(()),
            some => Look::NotYet(some.join("; ")),
        })
    });
    Ok(match clean.await {
        Ok(()) => Vec::new(),
        Err(error) => vec![format!("{error:#}")],
    })
}
