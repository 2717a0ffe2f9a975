//! Uses of source addresses: what has to end before these addresses are released.

use std::net::IpAddr;

use api::MigrationStatus;
use api::migration::ServiceCidrStatus;
use api::traffic::SoakGate;
use engine::decision::{Wait, WaitReason};
use engine::found::Found;
use engine::words;
use service_cidr::mentions::AddressUses;
use service_cidr::ranges::joined;
use service_cidr::side::Side;
use service_cidr::step::{Missing, Stage};

use super::super::answers::Answers;
use super::super::pass::{Pass, direction};
use super::super::read_cache::ReadCache;
use super::load_balancers::LoadBalancer;
use crate::memory::Memory;
use crate::read_cache::Pace;
use crate::read_error::ReadError;

/// The uses of source addresses, for a view. Empty once source addresses are released.
#[derive(Default)]
pub(super) struct SourceUses {
    pub(super) follow_up: Option<Wait>,
    pub(super) with_old_addresses: Option<Missing>,
    pub(super) soak: Option<Wait>,
    /// Changes that tenants have to make: the namespace, and the text.
    pub(super) of_tenants: Vec<(String, String)>,
}

/// The wait for changes that only the user can make; `None` without any.
fn follow_ups(lines: impl IntoIterator<Item = String>) -> Option<Wait> {
    let lines: Vec<String> = lines.into_iter().collect();
    (!lines.is_empty()).then(|| Wait {
        reason: WaitReason::ConfigurationFollowUp,
        message: format!("waiting for changes by the user: {}", words::lines(&lines)),
        until: None,
    })
}

impl Pass<'_> {
    /// Finds the uses of source addresses.
    pub(super) async fn source_uses(
        &self,
        memory: &mut Memory,
        answers: &Answers<'_>,
        known: &mut ServiceCidrStatus,
        status: &MigrationStatus,
        pace: Pace,
    ) -> Result<SourceUses, ReadError> {
        let changed = known.settings.changed();
        let ranges = [changed.old.as_slice(), changed.new.as_slice()].concat();
        let mentions = memory
            .kinds
            .of::<ReadCache>()
            .mentions(self.context, pace, &ranges)
            .await?;
        let mut said = AddressUses::of(&mentions, &changed, self.goal);
        if self.allocates_nothing(known) && self.is_released(known) {
            // No range allocates these addresses again: a use that is reported now changes nothing.
            return Ok(SourceUses {
                of_tenants: match self.goal {
                    Side::Old => said.warnings,
                    // Each was changed before.
                    Side::New => Vec::new(),
                },
                ..SourceUses::default()
            });
        }
        let of_the_cluster = std::mem::take(&mut said.follow_up).into_iter();
        let follow_up = follow_ups(of_the_cluster.chain(self.changes_before_restart(answers, known)));
        let is_closed = self.is_closed(known);
        known.target_announced_since = if is_closed && follow_up.is_none() {
            known.target_announced_since.or(Some(self.now))
        } else {
            None
        };
        let with_old_addresses = self
            .with_old_addresses(memory, answers, known, status, &mut said)
            .await?;
        let may_be_in_use = match &with_old_addresses {
            // A silent agent reports no use: earlier reports hold, and nothing ends before its report.
            Some(Missing::Answer(wait)) => wait.reason != WaitReason::AgentSilent,
            Some(Missing::Evict(_)) => true,
            None => false,
        };
        known.soak_started_at = if is_closed && follow_up.is_none() {
            known
                .soak_started_at
                .or_else(|| with_old_addresses.is_none().then_some(self.now))
        } else {
            None
        };
        let is_unused = is_closed && follow_up.is_none() && !may_be_in_use;
        let soak = self.soak(answers, known, is_unused);
        // Changes by tenants are waited for only at the end.
        let awaited = self.awaited_load_balancers(known);
        for balancer in &awaited {
            said.warn(&balancer.service.namespace, &balancer.line(), self.goal);
        }
        let release = match self.migration.spec.gates.soak {
            SoakGate::Unused => said.release,
            SoakGate::Elapsed => Vec::new(),
        };
        let of_tenants = awaited.iter().map(LoadBalancer::line).chain(release);
        Ok(SourceUses {
            follow_up,
            with_old_addresses,
            soak: soak.or_else(|| follow_ups(of_tenants)),
            of_tenants: said.warnings,
        })
    }

    /// Whether the source addresses are being released, or have been.
    pub(super) fn is_released(&self, known: &ServiceCidrStatus) -> bool {
        let stage = known.stage.as_ref();
        stage.is_some_and(|stage| stage.name >= Stage::Release && stage.direction == direction(self.goal))
    }

    /// Kubelets that have a source address, and load balancers that had to be changed before.
    fn changes_before_restart(&self, answers: &Answers<'_>, known: &ServiceCidrStatus) -> Vec<String> {
        let changed = known.settings.changed();
        let (left, target) = (changed.of(self.goal.other()), changed.of(self.goal));
        let is_left = |address: &IpAddr| left.iter().any(|range| range.contains(address));
        let mut lines = Vec::new();
        for (node, answer) in answers {
            match answer.as_ref().map(|answer| &answer.said.cluster_dns) {
                Some(Found::Present(said)) => lines.extend(said.iter().filter(|said| is_left(said)).map(|said| {
                    format!(
                        "kubelet of Node {node}: clusterDNS: found {said}, needed an address of {}. Fix: change it in the \
                         kubelet's configuration (/var/lib/kubelet/config.yaml, or --cluster-dns), then `systemctl restart \
                         kubelet`",
                        joined(target)
                    )
                })),
                // A node without a report is waited for once the pods of the other nodes have restarted. Its former report holds
                // for that time.
                Some(Found::Absent | Found::Malformed(_)) | None => {}
            }
        }
        if !self.keeps_load_balancers() {
            let found = self.load_balancers(known).into_iter();
            let of_the_cluster = found.filter(|found| !self.ends_the_soak(found.service, known));
            lines.extend(of_the_cluster.map(|found| found.line()));
        }
        lines
    }
}
