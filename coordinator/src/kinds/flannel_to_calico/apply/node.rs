//! One step of a node. Each step is idempotent.

use std::sync::Arc;

use ::flannel_to_calico::api::LabelRecord;
use ::flannel_to_calico::api::OrEmpty as _;
use api::node_migration::NodeMigrationSpec;
use api::{Announcement, Migration, NodeMigration, names};
use crash_point::Edge;
use engine::decision::{Decision, Wait, WaitReason};
use flannel_to_calico::node::{NodeStep, NodeView, Policy, Stage, at_deadline};
use flannel_to_calico::phase::Goal;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::super::blocks::Own;
use super::super::node_objects::Outcome;
use super::super::pass::Pass;
use super::super::report::record;
use super::import;
use crate::cordon;
use crate::events::EventLevel;
use crate::evict;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::probe;
use crate::steps::finish_stage;
use crate::write::{self, WriteError};

/// The inputs of a step.
pub(in super::super) struct StepExecutor<'pass> {
    pub(in super::super) pass: &'pass Pass<'pass>,
    pub(in super::super) memory: &'pass mut Memory,
    pub(in super::super) node: &'pass Node,
    /// The object as last read or written.
    pub(in super::super) object: Arc<NodeMigration>,
    pub(in super::super) policy: &'pass Policy,
}

impl StepExecutor<'_> {
    /// Runs the step, if one was decided. A conflicting object of Calico becomes a wait of the node, with the deadline of
    /// its stage; returns the resulting decision.
    pub async fn apply(
        &mut self,
        view: &NodeView<'_>,
        stage: Stage,
        decision: Decision<NodeStep>,
        spec: &mut NodeMigrationSpec,
    ) -> Result<Decision<NodeStep>, PassError> {
        let Decision::Run(step) = &decision else {
            return Ok(decision);
        };
        let Outcome::Blocked(message) = self.run(step, spec).await? else {
            return Ok(decision);
        };
        let wait = Wait {
            reason: WaitReason::CalicoObjects,
            message,
            until: None,
        };
        let decision = at_deadline(view, self.policy, stage, wait, self.pass.now);
        record(
            self.pass.context,
            spec,
            stage,
            &decision,
            self.policy,
            self.pass.now,
        );
        Ok(decision)
    }

    /// Runs one step. Idempotent: after a crash before the write of the spec it is repeated.
    pub async fn run(&mut self, step: &NodeStep, spec: &mut NodeMigrationSpec) -> Result<Outcome, PassError> {
        let node = self.node.metadata.name.as_deref();
        if let NodeStep::Label(value) = step {
            self.announce_label(value, spec).await?;
        }
        crash_point::reach(step.name(), Edge::Announced, node).await;
        let outcome = self.make(step, spec).await?;
        match outcome {
            Outcome::Written => crash_point::reach(step.name(), Edge::Changed, node).await,
            Outcome::Blocked(_) => {}
        }
        Ok(outcome)
    }

    /// Records the value that is about to be written: any other value of the label comes from another writer.
    async fn announce_label(
        &mut self,
        value: &'static str,
        spec: &mut NodeMigrationSpec,
    ) -> Result<(), WriteError> {
        let label = &mut spec.flannel_to_calico.get_or_insert_default().label;
        label.pending = Some(value.to_owned());
        let mut announced = self.object.spec.clone();
        announced.flannel_to_calico.get_or_insert_default().label = label.clone();
        let api: Api<NodeMigration> = Api::all(self.pass.context.client.clone());
        let (read, current) = (self.object.as_ref(), &self.object.spec);
        if let Some(metadata) = write::patch_spec(&api, read, current, &announced).await? {
            self.object = Arc::new(NodeMigration {
                metadata,
                spec: announced,
                status: self.object.status.clone(),
            });
        }
        Ok(())
    }

    async fn make(&mut self, step: &NodeStep, spec: &mut NodeMigrationSpec) -> Result<Outcome, PassError> {
        let Pass {
            context,
            migration,
            settings,
            now,
            ..
        } = *self.pass;
        let node = self.node;
        let memory = &mut *self.memory;
        let name = node.name_any();
        let own = |spec: &NodeMigrationSpec| {
            Own::of(
                &name,
                node,
                settings,
                spec.flannel_to_calico.or_empty().saved_state.as_ref(),
            )
        };
        match step {
            NodeStep::Cordon => cordon::cordon(context, migration, node).await?,
            NodeStep::Evict(pods) => {
                let grace = migration.spec.drain.grace_period_seconds;
                evict::evict(context, pods, grace, memory).await;
            }
            NodeStep::Label(value) => {
                let change = json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: value } } });
                let nodes: Api<Node> = Api::all(context.client.clone());
                write::patch(&nodes, node, "labelling", &change).await?;
                spec.flannel_to_calico.get_or_insert_default().label = LabelRecord {
                    current: Some((*value).to_owned()),
                    pending: None,
                };
            }
            NodeStep::Goal(goal) => set_goal(*goal, migration, spec),
            NodeStep::Import(allocations) => {
                return import::import(context, &own(spec), allocations, spec).await;
            }
            NodeStep::Release(addresses) => {
                return import::release(context, &own(spec), addresses, spec).await;
            }
            NodeStep::Return => {
                if let Outcome::Blocked(message) = import::release_all(context, &own(spec)).await? {
                    return Ok(Outcome::Blocked(message));
                }
                cordon::release_scale_down(context, migration, node).await?;
                if let Some(step) = spec.step.take() {
                    finish_stage(context, spec, step, now);
                }
                *spec = returned(spec, now);
                let note = format!("node {name}: back on flannel, in its previous state");
                context
                    .events
                    .node(node, EventLevel::Normal, Announcement::Returned, &note)
                    .await;
            }
            NodeStep::CreateProbePod => probe::create(context, migration, node).await?,
            NodeStep::Uncordon => cordon::uncordon(context, migration, node).await?,
            NodeStep::Complete => {
                cordon::release_scale_down(context, migration, node).await?;
                if let Some(step) = spec.step.take() {
                    finish_stage(context, spec, step, now);
                }
                spec.finished_at = Some(now);
                spec.flannel_to_calico.get_or_insert_default().label.pending = None;
                context
                    .events
                    .node(
                        node,
                        EventLevel::Normal,
                        Announcement::Migrated,
                        &format!("node {name}: on Calico"),
                    )
                    .await;
            }
        }
        Ok(Outcome::Written)
    }
}

fn set_goal(goal: Goal, migration: &Migration, spec: &mut NodeMigrationSpec) {
    let of_kind = spec.flannel_to_calico.get_or_insert_default();
    of_kind.goal = goal;
    // A resume from before is no reason to adopt pods again that the agent will have returned.
    if let Some(host) = of_kind.host.as_mut().filter(|host| host.adopt_pods) {
        host.adoption.resumed_at = migration.spec.resumed_at;
    }
}

/// The spec of a node that is back on flannel: as before the migration, with the time of the return.
fn returned(spec: &NodeMigrationSpec, now: Timestamp) -> NodeMigrationSpec {
    let mut spec = NodeMigrationSpec {
        rolling_back: false,
        started: false,
        skipped: false,
        started_at: None,
        finished_at: None,
        finished_before_rollback: None,
        returned_at: Some(now),
        ..spec.clone()
    };
    let of_kind = spec.flannel_to_calico.get_or_insert_default();
    of_kind.goal = Goal::Hold;
    of_kind.imported_addresses = Vec::new();
    of_kind.label.pending = None;
    spec
}
