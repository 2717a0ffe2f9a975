//! Pods that were given a source address: which of them restart next.

use std::collections::{BTreeSet, HashSet};

use api::MigrationStatus;
use api::migration::ServiceCidrStatus;
use api::traffic::SoakGate;
use engine::decision::{Wait, WaitReason};
use engine::drain::Pod;
use engine::evict;
use engine::found::Found;
use engine::moves::{self, Resident};
use engine::owner::Owner;
use engine::residents::{START_GRACE, health, residents, workloads_of};
use engine::words::{self, names};
use jiff::Timestamp;
use kube::ResourceExt;
use service_cidr::mentions::AddressUses;
use service_cidr::movers::started_with_old_address;
use service_cidr::ranges::joined;
use service_cidr::side::Side;
use service_cidr::step::Missing;

use super::super::answers::{Answer, Answers};
use super::super::pass::Pass;
use super::super::read_cache::ReadCache;
use crate::memory::Memory;
use crate::read_cache::Pace;
use crate::read_error::ReadError;
use crate::{limits, stalls};

/// Default number of pods that restart at the same time.
const PODS_AT_ONCE: u32 = 5;

/// The wait for pods that would get a source address again at each start; `None` without any.
fn restart_later(residents: &[&Resident<'_>]) -> Option<Wait> {
    let pods: Vec<String> = residents.iter().map(|resident| resident.pod.key()).collect();
    (!pods.is_empty()).then(|| Wait {
        reason: WaitReason::ServiceRanges,
        message: format!(
            "late Services still have source addresses. A pod gets the addresses of all Services in its namespace, so these pods \
             restart later: {}",
            names(&pods)
        ),
        until: None,
    })
}

impl Pass<'_> {
    /// UIDs of pods that were given a source address, and the nodes where that is unknown, each with the reason.
    fn pods_with_source_addresses(
        &self,
        answers: &Answers<'_>,
        since: Timestamp,
    ) -> (HashSet<&str>, Vec<String>) {
        let mut told: HashSet<&str> = HashSet::new();
        let mut silent = Vec::new();
        for (node, answer) in answers {
            if let Some(what) = answer.as_ref().and_then(Answer::unknown_cluster_dns) {
                silent.push(format!(
                    "node {node}: clusterDNS of its kubelet is unknown: {what}"
                ));
            }
            match answer.as_ref().and_then(Answer::with_old_addresses) {
                Some(Found::Present(with_old_addresses)) => {
                    let told_here = with_old_addresses.pods_to_restart(self.snapshot.pods_on(node), since);
                    told.extend(told_here);
                }
                Some(Found::Absent) => {}
                Some(Found::Malformed(what)) => silent.push(format!("node {node}: {what}")),
                None => silent.push(format!("node {node}: its agent has not reported")),
            }
        }
        (told, silent)
    }

    /// Whether this pod of a tenant gets a source address at each start: its own manifest contains the address.
    fn has_address_in_manifest(&self, resident: &Resident<'_>) -> bool {
        let owner = Owner::of(Some(&resident.pod.namespace), &[&self.context.namespace]);
        resident.created_after_close && owner.tenant().is_some()
    }

    /// The change that such a pod's owner has to make.
    fn manifest_fix(&self, pod: &Pod, known: &ServiceCidrStatus) -> String {
        let changed = known.settings.changed();
        format!(
            "Pod {}: created after every Service had its new address, and still given one of {}: its own manifest contains it, \
             in a variable or in dnsConfig. Fix: replace it by the name of the Service, or by the address of {}",
            pod.key(),
            joined(changed.of(self.goal.other())),
            joined(changed.of(self.goal))
        )
    }

    /// Pods that were given a source address, and the next step for them.
    pub(super) async fn with_old_addresses(
        &self,
        memory: &mut Memory,
        answers: &Answers<'_>,
        known: &mut ServiceCidrStatus,
        status: &MigrationStatus,
        said: &mut AddressUses,
    ) -> Result<Option<Missing>, ReadError> {
        if !self.is_closed(known) {
            known.pods_with_source_addresses = None;
            return Ok(Some(Missing::Answer(Wait {
                reason: WaitReason::ServiceRanges,
                message: "pods with source addresses are read once no range allocates a source address"
                    .to_owned(),
                until: None,
            })));
        }
        let (told, silent) =
            self.pods_with_source_addresses(answers, known.target_announced_since.unwrap_or(Timestamp::MAX));
        let pods = self.snapshot.pods();
        crate::evict::update(self.context, memory, pods);
        let workloads = workloads_of(pods);
        let needed = memory.needs.read(self.context, pods, Pace::Counted).await?;
        let mut residents = residents(pods, &workloads, &needed, known.target_announced_since);
        let late = self.namespaces_to_wait_for(known);
        let arrived = memory.kinds.of::<ReadCache>().migrated_since(
            self.namespaces_with_late_services(known),
            &late,
            self.now,
        );
        for resident in &mut residents {
            // A pod gets the addresses of all Services in its namespace, late ones included.
            if let Some(arrived) = arrived.get(&resident.pod.namespace) {
                let made_at = resident.pod.made_at;
                resident.created_after_close &= made_at.is_some_and(|made| made > *arrived + START_GRACE);
            }
        }
        let told: Vec<&Resident<'_>> = residents
            .iter()
            .filter(|resident| told.contains(resident.pod.uid.as_str()))
            .filter(|resident| !resident.pod.finished && !resident.pod.mirror)
            .collect();
        if silent.is_empty() {
            known.pods_with_source_addresses = Some(u32::try_from(told.len()).unwrap_or(u32::MAX));
        }
        // A pod gets the addresses of all Services in its namespace: one that restarts now would have to restart again.
        let (later, told): (Vec<&Resident<'_>>, Vec<&Resident<'_>>) = told
            .into_iter()
            .partition(|resident| late.contains(resident.pod.namespace.as_str()));
        // An eviction would give such a pod the same address again. The pod keeps no other pod from restarting.
        let (again, told): (Vec<&Resident<'_>>, Vec<&Resident<'_>>) = told
            .into_iter()
            .partition(|resident| self.has_address_in_manifest(resident));
        for Resident { pod, .. } in again {
            said.add_tenant_change(&pod.namespace, self.manifest_fix(pod, known), self.goal);
        }
        let told: BTreeSet<String> = told.iter().map(|resident| resident.pod.uid.clone()).collect();
        if let Some(missing) = self.next_restart(memory, &residents, &told, status) {
            return Ok(Some(missing));
        }
        if let Some(found) = restart_later(&later) {
            return Ok(Some(Missing::Answer(found)));
        }
        // With soak gate Elapsed the time alone counts.
        if self.goal == Side::New && self.migration.spec.gates.soak == SoakGate::Elapsed {
            return Ok(None);
        }
        // A node without an answer keeps no pod of another node from restarting.
        Ok((!silent.is_empty()).then(|| {
            Missing::Answer(Wait {
                reason: WaitReason::AgentSilent,
                message: format!(
                    "pods that were given source addresses are unknown: {}",
                    words::lines(&silent)
                ),
                until: None,
            })
        }))
    }

    /// The next evictions among these pods, or the wait for pods that move; `None` when all have moved. `told`: UIDs of pods that
    /// were given a source address.
    fn next_restart(
        &self,
        memory: &mut Memory,
        residents: &[Resident<'_>],
        told: &BTreeSet<String>,
        status: &MigrationStatus,
    ) -> Option<Missing> {
        let mut health = health(
            self.workloads,
            self.unready,
            status.started_at.unwrap_or(self.now),
        );
        let (name, movers) = (self.migration.name_any(), started_with_old_address(told));
        let goes_back = self.goal == Side::Old;
        stalls::mark(memory, &name, residents, movers, &mut health, goes_back, self.now);
        let view = moves::View {
            residents,
            movers,
            budgets: &self.snapshot.budgets,
            refusals: &memory.refusals,
            workloads: &health,
            only: None,
        };
        let policy = moves::Policy {
            pods_at_once: usize::try_from(self.kind.pods_at_once.unwrap_or(PODS_AT_ONCE)).unwrap_or(1),
            permissions: limits::permissions(self.migration),
            delete_bare_pods: self.kind.delete_bare_pods,
        };
        if let Some(next) = moves::next(&view, &policy, self.now) {
            return Some(match next {
                evict::Next::Evict(pods) => Missing::Evict(pods),
                evict::Next::Wait(wait) => Missing::Answer(wait),
            });
        }
        // The last pods are not Ready yet.
        moves::moved_not_ready(&view, self.now).map(|found| Missing::Answer(found.wait))
    }
}
