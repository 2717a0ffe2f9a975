//! Second pods for name servers and admission webhooks while pods move.

use std::collections::BTreeMap;
use std::time::Instant;

use api::migration::PodCidrStatus;
use engine::decision::{Wait, WaitReason};
use engine::moves::{Resident, Role, Workload, WorkloadFacts};
use pod_cidr::decide::{Step, Unmet};

use super::super::REDUNDANT_REPLICAS;
use super::super::pass::Pass;
use crate::drift::Restores;
use crate::facts;

impl Pass<'_> {
    /// The step or wait until every Deployment of name servers and admission webhooks has more than one Ready pod.
    pub(super) fn redundancy(
        &self,
        residents: &[Resident<'_>],
        workloads: &BTreeMap<Workload, WorkloadFacts>,
        known: &PodCidrStatus,
        restores: &mut Restores,
    ) -> Option<Unmet> {
        let places = self
            .snapshot
            .nodes
            .values()
            .filter(|node| facts::nodes::takes_pods(node))
            .count();
        if places < 2 {
            return None;
        }
        let wanted = usize::try_from(REDUNDANT_REPLICAS).unwrap_or(usize::MAX);
        let mut ready_of: BTreeMap<&Workload, usize> = BTreeMap::new();
        for resident in residents {
            if let Some(workload) = resident.workload
                && resident.pod.ready
                && resident.pod.deleted_at.is_none()
            {
                *ready_of.entry(workload).or_default() += 1;
            }
        }
        for resident in residents {
            match resident.role {
                Role::NameServer | Role::Admission => {}
                Role::Coordinator | Role::Any => continue,
            }
            let Some(workload) = resident.workload.filter(|workload| workload.kind == "Deployment") else {
                continue;
            };
            let key = format!("{}/{}", workload.namespace, workload.name);
            let has = workloads.get(workload).map_or(0, |facts| facts.wanted);
            let is_raised = known.raised_replicas.contains_key(&key);
            let answer = |message: String| {
                Some(Unmet::Answer(Wait {
                    reason: WaitReason::MovedPodsNotReady,
                    message,
                    until: None,
                }))
            };
            if has < wanted && has > 0 {
                if !is_raised || restores.allows(&key, Instant::now()) {
                    return Some(Unmet::Step(Step::Scale(key, REDUNDANT_REPLICAS)));
                }
                return answer(format!(
                    "Deployment {key}: replicas is {has}, needed {wanted} while pods move: another program scales it back"
                ));
            }
            let ready = ready_of.get(workload).copied().unwrap_or_default();
            if is_raised && ready < wanted {
                return answer(format!("Deployment {key}: {ready} of {wanted} pods are Ready"));
            }
        }
        None
    }
}
