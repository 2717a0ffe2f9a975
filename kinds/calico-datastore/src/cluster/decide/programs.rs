//! The changes of calico-node and of the controllers to one version of Calico.

use engine::decision::{Decision, HaltReason, WaitReason};

use super::next::{halt, run, wait};
use crate::cluster::calico::{Calico, Content};
use crate::cluster::nodes;
use crate::cluster::step::{Stage, Step};
use crate::cluster::view::{ControllersView, Next, Policy, View};

pub(super) fn missing_object(object: &str) -> String {
    format!(
        "{object} is missing: its object was deleted. Apply it again, of v2 or v3; status.savedState has the former content"
    )
}

/// Stops the controllers, and waits for the end of their pods.
pub(super) fn stopped(controllers: ControllersView, stage: Stage) -> Option<Next> {
    if !controllers.is_stopped {
        return Some(run(stage, Step::StopControllers));
    }
    (controllers.pods > 0).then(|| {
        let message = format!(
            "calico-kube-controllers: pods still terminating: {}",
            controllers.pods
        );
        wait(stage, WaitReason::CalicoControllers, message)
    })
}

/// Changes every calico-node to this version.
pub(super) fn calico_node(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    configured(view, calico).or_else(|| on_every_node(view, calico, policy))
}

/// Changes the objects of calico-node to this version.
pub(super) fn configured(view: &View<'_>, calico: Calico) -> Option<Next> {
    match view.configuration {
        Some(Content::Missing) => {
            return Some(halt(
                Some(Stage::Nodes),
                HaltReason::Drift,
                missing_object("the ConfigMap of calico-node"),
            ));
        }
        Some(says) if !says.is(calico) => return Some(run(Stage::Nodes, Step::WriteConfiguration(calico))),
        Some(_) | None => {}
    }
    // When no pod has to change, the DaemonSet may roll with its own strategy.
    let is_to_be_held = nodes::is_to_change(view.nodes, calico) && !view.daemon_set.is_held;
    if !view.daemon_set.template.is(calico) || is_to_be_held {
        return Some(run(Stage::Nodes, Step::WriteDaemonSet(calico)));
    }
    None
}

pub(super) fn on_every_node(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    match nodes::next(view.nodes, calico, policy.at_once) {
        nodes::Next::Restart(pods) => return Some(run(Stage::Nodes, Step::Restart(pods))),
        nodes::Next::Wait(found) => {
            return Some(Next {
                stage: Some(Stage::Nodes),
                decision: Decision::Wait(found),
            });
        }
        nodes::Next::NotReady(_) | nodes::Next::Done => {}
    }
    let missing = view.daemon_set.missing;
    (missing > 0).then(|| {
        let message = format!("the DaemonSet of calico-node lacks pods: {missing}");
        wait(Stage::Nodes, WaitReason::DaemonSetRollout, message)
    })
}

/// Waits for NotReady nodes: they do not delay the opening of a store, but the end of the migration.
pub(super) fn not_ready_nodes(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    match nodes::next(view.nodes, calico, policy.at_once) {
        nodes::Next::NotReady(found) => Some(Next {
            stage: Some(Stage::Nodes),
            decision: Decision::Wait(found),
        }),
        nodes::Next::Restart(_) | nodes::Next::Wait(_) | nodes::Next::Done => None,
    }
}

/// Changes the controllers to this version, with their number of replicas.
pub(super) fn controllers(view: &View<'_>, calico: Calico, stage: Stage) -> Option<Next> {
    let controllers = view.controllers?;
    if controllers.template == Content::Missing {
        return Some(halt(
            Some(stage),
            HaltReason::Drift,
            missing_object("calico-kube-controllers"),
        ));
    }
    let is_written = controllers.template.is(calico) && controllers.is_scaled;
    (!is_written).then(|| run(stage, Step::WriteControllers(calico)))
}

/// Gives the `DaemonSet` its own update strategy again, and waits for the controllers.
pub(super) fn cleaned(view: &View<'_>, calico: Calico) -> Option<Next> {
    if !view.daemon_set.strategy.is(calico) {
        return Some(run(Stage::CleanUp, Step::WriteStrategy(calico)));
    }
    let controllers = view.controllers?;
    (!controllers.is_available).then(|| {
        let message = "calico-kube-controllers is not Available".to_owned();
        wait(Stage::CleanUp, WaitReason::CalicoControllers, message)
    })
}
