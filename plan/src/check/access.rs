//! Was every object understood, and may everything be done?

use std::collections::BTreeMap;

use super::{Check, Finding, Permission, Report};
use crate::cluster::Malformed;

/// Objects that were read and not understood.
pub fn malformed(name: impl Into<&'static str>, objects: &[Malformed]) -> Vec<Check> {
    let mut report = Report::new(name);
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

/// What the API server answered, by [`Permission::key`].
pub fn permissions(
    name: impl Into<&'static str>,
    needed: &[Permission],
    answers: &BTreeMap<String, bool>,
) -> Vec<Check> {
    let mut report = Report::new(name);
    for key in needed.iter().map(Permission::key) {
        match answers.get(&key) {
            Some(true) => {}
            Some(false) => report.fail(
                "permission",
                key,
                Finding::new(
                    "",
                    "denied by the API server",
                    "allowed",
                    "apply the coordinator's roles again (deploy/base; for calicoDatastore deploy/calico-datastore, too), and see who else decides (webhook authorizer)",
                ),
            ),
            None => report.unknown(
                "permission",
                key,
                Finding::new("", "not asked", "an answer of the API server", "see the coordinator's log"),
            ),
        }
    }
    report.finish(
        "the coordinator's permissions",
        format!("{} allowed", needed.len()),
    )
}
