//! Checks that every object was understood, and that the coordinator has its permissions.

use std::collections::BTreeMap;

use super::{Check, Finding, Permission, Report};
use crate::cluster::{Malformed, Node};
use crate::drain::Pod;

/// Objects that were read and not understood, and fields of Nodes and Pods that were not understood: only decisions on the field
/// are affected.
pub fn malformed<'facts>(
    name: impl Into<&'static str>,
    objects: &[Malformed],
    nodes: impl IntoIterator<Item = &'facts Node>,
    pods: impl IntoIterator<Item = &'facts Pod>,
) -> Vec<Check> {
    let mut report = Report::new(name);
    let of_nodes = nodes.into_iter().flat_map(|node| {
        node.not_understood
            .iter()
            .map(|field| ("Node", node.name.clone(), field))
    });
    let of_pods = pods
        .into_iter()
        .flat_map(|pod| pod.not_understood.iter().map(|field| ("Pod", pod.key(), field)));
    for (kind, object, field) in of_nodes.chain(of_pods) {
        let fix = format!("correct the value: until then {}", field.needed.effect());
        let finding = Finding::new(&field.field, &field.found, field.needed.to_string(), fix);
        report.warn(kind, object, finding);
    }
    for object in objects {
        report.unknown(
            "object",
            &object.object,
            Finding::new(
                "",
                &object.problem,
                "a value that can be understood",
                "correct the object or delete it",
            ),
        );
    }
    report.finish("every object that was read", "understood")
}

/// The folder with the roles that most kinds need.
pub const BASE_ROLES: &str = "deploy/base";

/// The needed permissions; `answers` has the answers of the API server by [`Permission::key`], and `roles` names the folders with
/// the coordinator's roles.
pub fn permissions(
    name: impl Into<&'static str>,
    needed: &[Permission],
    answers: &BTreeMap<String, bool>,
    roles: &str,
) -> Vec<Check> {
    let mut report = Report::new(name);
    let fix = format!("apply the coordinator's roles again ({roles}), and check other authorizers (webhook)");
    for key in needed.iter().map(Permission::key) {
        match answers.get(&key) {
            Some(true) => {}
            Some(false) => report.fail(
                "permission",
                key,
                Finding::new("", "denied by the API server", "allowed", &fix),
            ),
            None => report.unknown(
                "permission",
                key,
                Finding::new(
                    "",
                    "no answer",
                    "an answer of the API server",
                    "see the coordinator's log",
                ),
            ),
        }
    }
    report.finish(
        "the coordinator's permissions",
        format!("{} allowed", needed.len()),
    )
}
