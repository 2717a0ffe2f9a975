//! One look at each node that is in work or done, and its next step.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::Strategy;
use api::node_migration::{LabelRecord, NodeMigrationSpec};
use api::{Migration, NodeMigration};
use crash_point::Edge;
use engine::decision::{Decision, Wait, WaitReason};
use flannel_to_calico::node::{
    NetworkLabel, NodeStep, NodeView, Policy, Stage, at_deadline, decide, given_back, is_unchanged, upkeep,
};
use flannel_to_calico::settings::Settings;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::super::node_objects::Outcome;
use super::super::view::view;
use super::aside::first_step;
use super::perform::Act;
use super::record::{is_written, record, tell};
use crate::context::Context;
use crate::cordon;
use crate::drafts::Drafts;
use crate::memory::Memory;
use crate::node_migrations::{bring_to, write_spec};
use crate::obstacles::refusal;
use crate::probe::Probes;
use crate::snapshot::Snapshot;
use crate::summary::Held;
use crate::write::{WriteError, describe};

/// What every node in work, or done, is looked at with.
pub(super) struct Round<'pass> {
    pub(super) context: &'pass Context,
    pub(super) migration: &'pass Migration,
    pub(super) settings: &'pass Settings,
    pub(super) snapshot: &'pass Snapshot,
    pub(super) probes: &'pass Probes,
    pub(super) policy: &'pass Policy,
    pub(super) now: Timestamp,
}

/// What became of the nodes that were looked at.
#[derive(Default)]
pub(super) struct Worked {
    /// Why each of these does not go on.
    pub(super) waits: BTreeMap<String, Held>,
    /// Those that are done, and of which Calico's objects do not say yet what they have to say.
    pub(super) blocked: BTreeMap<String, String>,
}

impl Round<'_> {
    /// Takes the next step of each of these nodes that was ever taken into work.
    pub(super) async fn work(
        &self,
        memory: &mut Memory,
        drafts: &mut Drafts,
        nodes: impl Iterator<Item = &String>,
    ) -> Result<Worked, WriteError> {
        let mut worked = Worked::default();
        // As they are now: an eviction below adds to them.
        let refusals = memory.refusals.clone();
        for node in nodes {
            let (Some(object), Some(node_object)) = (
                self.snapshot.node_migrations.get(node),
                self.snapshot.nodes.get(node),
            ) else {
                continue;
            };
            // Most nodes wait: nothing is made for them.
            if !object.spec.admitted && !object.spec.skipped {
                continue;
            }
            if !object.spec.admitted || object.spec.finished_at.is_some() {
                self.lift_what_was_left(node_object).await?;
            }
            if !object.spec.admitted {
                continue;
            }
            let probers = self.probes.probers.get(node).cloned().unwrap_or_default();
            let name = self.migration.name_any();
            let view = view(self.snapshot, self.settings, node, &name, &refusals, probers);
            let Some(view) = view else {
                continue;
            };
            let unchanged = is_unchanged(&view);
            let key = if unchanged {
                first_step(node_object)
            } else {
                describe(node_object.as_ref())
            };
            if let Some(message) = self.context.obstacles.holds(&key, self.now) {
                worked
                    .waits
                    .insert(node.clone(), Held::waiting(&refusal(message)));
                continue;
            }
            if self.context.obstacles.postpones() {
                continue;
            }
            let mut act = Act {
                context: self.context,
                memory,
                migration: self.migration,
                settings: self.settings,
                node: node_object,
                object: Arc::clone(object),
                policy: self.policy,
                now: self.now,
            };
            let draft = drafts.take(object);
            let obstacles = &self.context.obstacles;
            obstacles.is_at(Some(&describe(node_object.as_ref())));
            let looked = work_on(&mut act, &view, NodeMigrationSpec::clone(&draft)).await;
            obstacles.is_at(None);
            let object = act.object;
            // A label is announced before it is written.
            let draft = || NodeMigrationSpec {
                label: object.spec.label.clone(),
                ..NodeMigrationSpec::clone(&draft)
            };
            match looked {
                Ok(Looked::Held(held)) => worked.waits.extend(held.map(|held| (node.clone(), held))),
                Ok(Looked::Blocked(message)) => {
                    worked.blocked.insert(node.clone(), message);
                }
                Ok(Looked::GivenBack(held)) => {
                    let held = self.give_back(&object, draft(), &view, held).await?;
                    worked.waits.insert(node.clone(), held);
                }
                Err(error) if unchanged => {
                    if !error.is_of_the_object() {
                        return Err(error);
                    }
                    if !error.is_conflict() {
                        let held = Held::waiting(&refusal(error.words()));
                        let held = self.give_back(&object, draft(), &view, held).await?;
                        worked.waits.insert(node.clone(), held);
                    }
                }
                Err(error) => {
                    let refused = self.context.obstacles.note(&key, error, self.now)?;
                    let Some(message) = refused else { continue };
                    let held = self.refused(&object, draft(), &view, message).await?;
                    worked.waits.insert(node.clone(), held);
                    continue;
                }
            }
            if !unchanged {
                self.context.obstacles.clear(&key);
            }
        }
        Ok(worked)
    }

    /// A node that is not in work has no cordon of ours, but one that was made although its answer never came.
    async fn lift_what_was_left(&self, node: &Node) -> Result<(), WriteError> {
        if cordon::is_by(node, &self.migration.name_any()) {
            let lift = cordon::uncordon(self.context, self.migration, node);
            self.context.obstacles.attempt(&describe(node), lift).await?;
        }
        Ok(())
    }

    /// Writes down that the API server refuses a write of this node: a wait like any other, with the deadline of its stage.
    pub(super) async fn refused(
        &self,
        object: &NodeMigration,
        mut spec: NodeMigrationSpec,
        view: &NodeView<'_>,
        message: String,
    ) -> Result<Held, WriteError> {
        let stage = decide(view, self.policy, self.now).stage;
        let decision = at_deadline(view, self.policy, stage, refusal(message), self.now);
        record(self.context, &mut spec, stage, &decision, self.policy, self.now);
        if let Some(node) = self.snapshot.nodes.get(&object.spec.node_name) {
            tell(self.context, node, &decision, &spec).await;
        }
        // Where this one is refused, too, the status of the Migration says so.
        bring_to(self.context, object, &spec).await?;
        Ok(Held::of(&decision).unwrap_or_else(|| Held::waiting(&refusal(String::new()))))
    }
}

/// What became of one look at a node.
enum Looked {
    /// Why it does not go on, if it does not.
    Held(Option<Held>),
    /// It is done, and Calico's objects do not say yet what they have to say of it.
    Blocked(String),
    /// Nothing of it has changed but its cordon, and its agent or a pod lets nothing else be done.
    GivenBack(Held),
}

/// The next step of one node, or what a node that is done needs still. `spec` is the draft of what is written.
async fn work_on(
    act: &mut Act<'_>,
    view: &NodeView<'_>,
    mut spec: NodeMigrationSpec,
) -> Result<Looked, WriteError> {
    settle_label(&mut spec, &view.network);
    if let Some(step) = &mut spec.step {
        step.since = act.memory.clock.since(step.since);
    }
    let kept_up = upkeep(view).filter(|_| act.policy.strategy == Strategy::InPlace);
    let mut made = None;
    let worked = match (kept_up, spec.finished_at) {
        (Some(step), Some(_)) => match act.perform(&step, &mut spec).await? {
            Outcome::Written => {
                made = Some(step.name());
                Looked::Held(None)
            }
            Outcome::Blocked(message) => Looked::Blocked(message),
        },
        (Some(step), None) => {
            let stage = view.stage.map_or(Stage::Import, |(stage, _)| stage);
            let decision = act.decided(view, stage, Decision::Run(step), &mut spec).await?;
            made = name_of(&decision);
            Looked::Held(told(&decision, &spec))
        }
        (None, Some(_)) => Looked::Held(None),
        (None, None) => {
            let next = decide(view, act.policy, act.now);
            if let Some((reason, words)) = given_back(view, act.policy, &next.decision) {
                return Ok(Looked::GivenBack(Held {
                    reason,
                    message: words.to_owned(),
                    needs_a_person: true,
                }));
            }
            record(
                act.context,
                &mut spec,
                next.stage,
                &next.decision,
                act.policy,
                act.now,
            );
            tell(act.context, act.node, &next.decision, &spec).await;
            let decision = act.decided(view, next.stage, next.decision, &mut spec).await?;
            made = name_of(&decision);
            Looked::Held(told(&decision, &spec).or_else(|| refused_still(&decision, &spec)))
        }
    };
    // A label is announced in between.
    write_spec(act.context, &act.object, &spec).await?;
    if let Some(step) = made {
        crash_point::reach(step, Edge::Recorded, Some(&spec.node_name)).await;
    }
    Ok(worked)
}

/// A label that was announced and is there was written, whatever came in between.
fn settle_label(spec: &mut NodeMigrationSpec, label: &NetworkLabel) {
    if spec.label.next.is_some() && spec.label.next.as_deref() == label.value() {
        spec.label = LabelRecord {
            written: spec.label.next.take(),
            next: None,
        };
    }
}

/// Why a node with this decision does not go on, as far as it is written in its spec.
fn told(decision: &Decision<NodeStep>, spec: &NodeMigrationSpec) -> Option<Held> {
    match decision {
        Decision::Wait(wait) if !is_written(wait, spec) => None,
        Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => Held::of(decision),
    }
}

/// Why an eviction that is under way again was refused before: the words stay until it is answered.
fn refused_still(decision: &Decision<NodeStep>, spec: &NodeMigrationSpec) -> Option<Held> {
    let step = spec.step.as_ref().filter(|step| !step.reason.is_empty())?;
    let reason = WaitReason::read(&step.reason)?;
    let is_eviction = matches!(decision, Decision::Run(NodeStep::Evict(_)));
    is_eviction.then(|| {
        Held::waiting(&Wait {
            reason,
            message: step.message.clone(),
            until: None,
        })
    })
}

/// The step that was made, if one was.
fn name_of(decision: &Decision<NodeStep>) -> Option<&'static str> {
    match decision {
        Decision::Run(step) => Some(step.name()),
        Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => None,
    }
}
