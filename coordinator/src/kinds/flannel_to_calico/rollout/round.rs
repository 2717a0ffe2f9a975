//! One round over the nodes that are in progress or finished, with the next step of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::flannel_to_calico::api::LabelRecord;
use ::flannel_to_calico::api::OrEmpty as _;
use api::NodeMigration;
use api::migration::Strategy;
use api::node_migration::NodeMigrationSpec;
use crash_point::Edge;
use engine::decision::{Decision, Wait};
use engine::reason::Reason;
use flannel_to_calico::node::{
    NetworkLabel, NodeStep, NodeView, Policy, Stage, at_deadline, decide, is_unchanged, release_reason,
    upkeep,
};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::super::apply::node::StepExecutor;
use super::super::node_objects::Outcome;
use super::super::pass::Pass;
use super::super::report::{is_written, publish_event, record};
use super::super::view::view;
use crate::cordon;
use crate::drafts::Drafts;
use crate::failure::Failure as _;
use crate::memory::Memory;
use crate::node_migrations::{update_spec, write_spec};
use crate::obstacles::refusal;
use crate::pass_error::PassError;
use crate::probe::Probes;
use crate::snapshot::Snapshot;
use crate::summary::WaitReport;
use crate::write::{WriteError, describe};

/// Context of a round.
pub(super) struct Round<'pass> {
    pub(super) pass: &'pass Pass<'pass>,
    pub(super) snapshot: &'pass Snapshot,
    pub(super) probes: &'pass Probes,
    pub(super) policy: &'pass Policy,
}

/// Result of a round.
#[derive(Default)]
pub(super) struct RoundResult {
    /// Why each of these nodes does not progress.
    pub(super) waits: BTreeMap<String, WaitReport>,
    /// Finished nodes whose objects of Calico are not up to date yet.
    pub(super) blocked: BTreeMap<String, String>,
}

/// Name of the obstacle for the first step of a released node.
pub(super) fn first_step(node: &Node) -> String {
    format!("first step of {}", describe(node))
}

/// Name of the obstacle for the next step of a node.
fn obstacle(node: &Node, is_unchanged: bool) -> String {
    if is_unchanged {
        first_step(node)
    } else {
        describe(node)
    }
}

impl Round<'_> {
    /// Takes the next step of each of these nodes that was ever admitted.
    pub(super) async fn work(
        &self,
        memory: &mut Memory,
        drafts: &mut Drafts,
        nodes: impl Iterator<Item = &String>,
    ) -> Result<RoundResult, PassError> {
        let mut worked = RoundResult::default();
        // A copy: an eviction below adds to them.
        let refusals = memory.refusals.clone();
        for node in nodes {
            let Some((object, node_object)) = self.admitted(node).await? else {
                continue;
            };
            let probers = self.probes.probers.get(node).cloned().unwrap_or_default();
            let name = self.pass.migration.name_any();
            let view = view(self.snapshot, self.pass.settings, node, &name, &refusals, probers);
            let Some(view) = view else {
                continue;
            };
            let unchanged = is_unchanged(&view);
            let key = obstacle(node_object, unchanged);
            if let Some(message) = self.pass.context.obstacles.reason_to_wait(&key, self.pass.now) {
                worked
                    .waits
                    .insert(node.clone(), WaitReport::waiting(&refusal(message)));
                continue;
            }
            if self.pass.context.obstacles.postpone_if_over() {
                continue;
            }
            let mut executor = StepExecutor {
                pass: self.pass,
                memory,
                node: node_object,
                object: Arc::clone(object),
                policy: self.policy,
            };
            let draft = drafts.take(object);
            let obstacles = &self.pass.context.obstacles;
            obstacles.set_current_object(Some(&describe(node_object.as_ref())));
            let result = work_on(&mut executor, &view, NodeMigrationSpec::clone(&draft)).await;
            obstacles.set_current_object(None);
            let object = executor.object;
            // A label is announced before it is written.
            let draft = || {
                let mut draft = NodeMigrationSpec::clone(&draft);
                let announced = object.spec.flannel_to_calico.or_empty().label.clone();
                draft.flannel_to_calico.get_or_insert_default().label = announced;
                draft
            };
            match result {
                Ok(StepResult::Held(held)) => worked.waits.extend(held.map(|held| (node.clone(), held))),
                Ok(StepResult::Blocked(message)) => {
                    worked.blocked.insert(node.clone(), message);
                }
                Ok(StepResult::GivenBack(held)) => {
                    let held = self.release(&object, draft(), &view, held).await?;
                    worked.waits.insert(node.clone(), held);
                }
                Err(error) if unchanged => {
                    if !error.concerns_one_object() {
                        return Err(error);
                    }
                    if !error.is_conflict() {
                        let held = WaitReport::waiting(&refusal(error.message()));
                        let held = self.release(&object, draft(), &view, held).await?;
                        worked.waits.insert(node.clone(), held);
                    }
                }
                Err(error) => {
                    let refused = self.pass.context.obstacles.note(&key, error, self.pass.now)?;
                    let Some(message) = refused else { continue };
                    let held = self.refused(&object, draft(), &view, message).await?;
                    worked.waits.insert(node.clone(), held);
                    continue;
                }
            }
            if !unchanged {
                self.pass.context.obstacles.clear(&key);
            }
        }
        Ok(worked)
    }

    /// The objects of a node that was admitted; `None` for any other node.
    async fn admitted(&self, node: &str) -> Result<Option<(&Arc<NodeMigration>, &Arc<Node>)>, WriteError> {
        let (Some(object), Some(node_object)) = (
            self.snapshot.node_migrations.get(node),
            self.snapshot.nodes.get(node),
        ) else {
            return Ok(None);
        };
        // Most nodes wait: no view is built for them.
        if !object.spec.started && !object.spec.skipped {
            return Ok(None);
        }
        if !object.spec.started || object.spec.finished_at.is_some() {
            self.remove_leftover_cordon(node_object).await?;
        }
        Ok(object.spec.started.then_some((object, node_object)))
    }

    /// Removes the cordon of a node that is not in progress: its earlier write may have succeeded without an answer.
    async fn remove_leftover_cordon(&self, node: &Node) -> Result<(), WriteError> {
        if cordon::is_by(node, &self.pass.migration.name_any()) {
            let lift = cordon::uncordon(self.pass.context, self.pass.migration, node);
            self.pass.context.obstacles.attempt(&describe(node), lift).await?;
        }
        Ok(())
    }

    /// Records that the API server refuses a write of this node: a wait with the deadline of its stage.
    pub(super) async fn refused(
        &self,
        object: &NodeMigration,
        mut spec: NodeMigrationSpec,
        view: &NodeView<'_>,
        message: String,
    ) -> Result<WaitReport, WriteError> {
        let stage = decide(view, self.policy, self.pass.now).stage;
        let decision = at_deadline(view, self.policy, stage, refusal(message), self.pass.now);
        record(
            self.pass.context,
            &mut spec,
            stage,
            &decision,
            self.policy,
            self.pass.now,
        );
        if let Some(node) = self.snapshot.nodes.get(&object.spec.node_name) {
            publish_event(self.pass.context, node, &decision, &spec).await;
        }
        // If this write is refused, too, the status of the Migration reports it.
        update_spec(self.pass.context, object, &spec).await?;
        Ok(WaitReport::of(&decision).unwrap_or_else(|| WaitReport::waiting(&refusal(String::new()))))
    }
}

/// Result of one step of a node.
enum StepResult {
    /// Why it does not progress, or `None`.
    Held(Option<WaitReport>),
    /// The node is finished, and its objects of Calico are not up to date yet.
    Blocked(String),
    /// Only its cordon has changed, and its agent or a pod blocks every other change.
    GivenBack(WaitReport),
}

/// Takes the next step of one node, or the upkeep of a finished one. `spec` is the pending draft.
async fn work_on(
    executor: &mut StepExecutor<'_>,
    view: &NodeView<'_>,
    mut spec: NodeMigrationSpec,
) -> Result<StepResult, PassError> {
    settle_label(&mut spec, &view.network);
    if let Some(step) = &mut spec.step {
        step.since = executor.memory.clock.since(step.since);
    }
    let kept_up = upkeep(view).filter(|_| executor.policy.strategy == Strategy::InPlace);
    let mut made = None;
    let worked = match (kept_up, spec.finished_at) {
        (Some(step), Some(_)) => match executor.run(&step, &mut spec).await? {
            Outcome::Written => {
                made = Some(step.name());
                StepResult::Held(None)
            }
            Outcome::Blocked(message) => StepResult::Blocked(message),
        },
        (Some(step), None) => {
            let stage = view.stage.map_or(Stage::Import, |(stage, _)| stage);
            let decision = executor
                .apply(view, stage, Decision::Run(step), &mut spec)
                .await?;
            made = name_of(&decision);
            StepResult::Held(hold_in_spec(&decision, &spec))
        }
        (None, Some(_)) => StepResult::Held(None),
        (None, None) => {
            let next = decide(view, executor.policy, executor.pass.now);
            if let Some((reason, words)) = release_reason(view, executor.policy, &next.decision) {
                return Ok(StepResult::GivenBack(WaitReport {
                    reason,
                    message: words.to_owned(),
                    needs_user: true,
                }));
            }
            record(
                executor.pass.context,
                &mut spec,
                next.stage,
                &next.decision,
                executor.policy,
                executor.pass.now,
            );
            publish_event(executor.pass.context, executor.node, &next.decision, &spec).await;
            let decision = executor.apply(view, next.stage, next.decision, &mut spec).await?;
            made = name_of(&decision);
            StepResult::Held(hold_in_spec(&decision, &spec).or_else(|| previous_refusal(&decision, &spec)))
        }
    };
    // The label may have been announced in between.
    write_spec(executor.pass.context, &executor.object, &spec).await?;
    if let Some(step) = made {
        crash_point::reach(step, Edge::Recorded, Some(&spec.node_name)).await;
    }
    Ok(worked)
}

/// Marks an announced label as written if the Node has it, independent of errors in between.
fn settle_label(spec: &mut NodeMigrationSpec, label: &NetworkLabel) {
    let record = &mut spec.flannel_to_calico.get_or_insert_default().label;
    if record.pending.is_some() && record.pending.as_deref() == label.value() {
        *record = LabelRecord {
            current: record.pending.take(),
            pending: None,
        };
    }
}

/// Why a node with this decision does not progress, if its spec has that.
fn hold_in_spec(decision: &Decision<NodeStep>, spec: &NodeMigrationSpec) -> Option<WaitReport> {
    match decision {
        Decision::Wait(wait) if !is_written(wait, spec) => None,
        Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => {
            WaitReport::of(decision)
        }
    }
}

/// The previous refusal of a repeated eviction: the message stays until the API server answers.
fn previous_refusal(decision: &Decision<NodeStep>, spec: &NodeMigrationSpec) -> Option<WaitReport> {
    let step = spec.step.as_ref().filter(|step| !step.reason.is_empty())?;
    let Some(Reason::Wait(reason)) = Reason::read(&step.reason) else {
        return None;
    };
    let is_eviction = matches!(decision, Decision::Run(NodeStep::Evict(_)));
    is_eviction.then(|| {
        WaitReport::waiting(&Wait {
            reason,
            message: step.message.clone(),
            until: None,
        })
    })
}

/// The name of the step that was performed.
fn name_of(decision: &Decision<NodeStep>) -> Option<&'static str> {
    match decision {
        Decision::Run(step) => Some(step.name()),
        Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => None,
    }
}
