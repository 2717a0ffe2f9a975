//! Calico's controllers: who writes to v2 beside calico-node, and to v3 what the conversion leaves.

use serde_json::Value;

use super::CheckName;
use crate::cluster::facts::ClusterFacts;
use crate::cluster::manifest::{self, CONTROLLERS, Manifest, Name};
use crate::cluster::settings::Settings;
use engine::check::{Check, Finding, Report, Verdict};
use engine::owner::Owner;

/// Known, of v3, stopped while the stores change, and able to write while Calico is paused.
pub(super) fn check(settings: &Settings, facts: &ClusterFacts, manifest: &Manifest) -> Vec<Check> {
    let mut report = Report::new(CheckName::KubeControllers);
    let fix =
        "calico-kube-controllers of v2 writes to etcd v2 as long as it runs, whether Calico is paused or not";
    match (&manifest.controllers, &facts.controllers) {
        (Some(wanted), None) => report.fail(
            "",
            Name::of(wanted).words(),
            Finding::new(
                "",
                "it is in the manifest, and not in the cluster",
                "in both, or in none",
                "apply that of v2 first, or take it out of the manifest and apply it afterwards",
            ),
        ),
        (None, Some(found)) => report.fail(
            "Deployment",
            found.object.key(),
            Finding::new(
                "",
                "it is in the cluster, and not in the manifest",
                "in both, or in none",
                fix,
            ),
        ),
        (Some(wanted), Some(found)) => {
            let name = Name::of(wanted).words();
            let image = manifest::image(&wanted["spec"]["template"]);
            if image == manifest::image(&found.template) {
                report.fail(
                    "",
                    name.clone(),
                    Finding::new(
                        "image",
                        format!("{image}, the same as in the cluster"),
                        "that of v3",
                        "is the manifest the one of v3, and was it not applied already?",
                    ),
                );
            }
            if wanted["spec"]["selector"] != found.selector {
                report.fail(
                    "",
                    name.clone(),
                    Finding::new(
                        "selector",
                        wanted["spec"]["selector"].to_string(),
                        found.selector.to_string(),
                        "a selector cannot be changed: write the one of the cluster into the manifest, and its labels into the pod template",
                    ),
                );
            }
            if wanted["spec"]["template"]["spec"]["hostNetwork"] != true {
                report.fail(
                    "",
                    name.clone(),
                    Finding::new(
                        "hostNetwork",
                        wanted["spec"]["template"]["spec"]["hostNetwork"].to_string(),
                        "true, as in Calico's own manifests for etcd",
                        "it starts, and writes, while Calico is paused and no pod gets a network: set it in the manifest",
                    ),
                );
            }
            if found.object.ready < found.object.desired {
                report.warn(
                    "",
                    name,
                    Finding::new(
                        "",
                        format!("{} of {} pods Ready", found.object.ready, found.object.desired),
                        "all of them",
                        "see why: policies that were changed may not have come to etcd v2",
                    ),
                );
            }
        }
        (None, None) => {}
    }
    unwritten(facts, manifest, &mut report);
    others(facts, &mut report);
    let object = match settings.controllers.value.as_str() {
        "" => "no calico-kube-controllers".to_owned(),
        name => format!("Deployment {name}"),
    };
    report.finish(object, "known, and stopped while the stores change")
}

/// Who writes to v3 what the conversion leaves. Found out now, and not when Calico is paused for it.
fn unwritten(facts: &ClusterFacts, manifest: &Manifest, report: &mut Report) {
    let Some(converted) = facts
        .read_stores()
        .and_then(|stores| stores.conversion.as_ref().ok())
        .filter(|converted| !converted.left.is_empty())
    else {
        return;
    };
    let left = &converted.left;
    for (origin, flaw) in &converted.flawed {
        let verdict = if flaw.is_certain() {
            Verdict::Fail
        } else {
            Verdict::Warn
        };
        report.add(verdict, origin.kind(), origin.name(), flaw.finding());
    }
    let needed = "those of v3 write them anew before etcd v3 is opened: pods without their profile lose what they begin";
    let Some(controllers) = &manifest.controllers else {
        report.fail(
            "",
            "manifest",
            Finding::new(
                CONTROLLERS,
                format!("not there, and etcd v2 has {left} of them"),
                needed,
                "add it to the manifest, and apply that of v2 to the cluster",
            ),
        );
        return;
    };
    // Where it says nothing, all of them run.
    let Some(enabled) = enabled_controllers(controllers) else {
        return;
    };
    // As Calico reads it: a space beside a comma is a name of no controller, at which it ends.
    let is_off = |names: &[&str]| !enabled.split(',').any(|name| names.contains(&name));
    for (is_left, names) in [
        (!left.profiles.is_empty(), &["profile", "namespace"][..]),
        (!left.policies.is_empty(), &["policy"]),
    ] {
        if is_left && is_off(names) {
            report.fail(
                "",
                Name::of(controllers).words(),
                Finding::new(
                    "ENABLED_CONTROLLERS",
                    format!("{enabled}, and etcd v2 has {left}"),
                    needed,
                    format!(
                        "add {} in the manifest, with commas alone between the names",
                        names[0]
                    ),
                ),
            );
        }
    }
}

/// Which controllers run, where the manifest says it outright.
fn enabled_controllers(deployment: &Value) -> Option<&str> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array()?;
    let container = containers
        .iter()
        .find(|container| container["name"] == CONTROLLERS)?;
    let variables = container["env"].as_array()?;
    let variable = variables
        .iter()
        .find(|variable| variable["name"] == "ENABLED_CONTROLLERS")?;
    variable["value"].as_str()
}

/// Controllers beside the one of the manifest.
fn others(facts: &ClusterFacts, report: &mut Report) {
    for (other, owner) in &facts.other_controllers {
        match owner {
            Owner::Cluster => report.fail(
                "",
                other.clone(),
                Finding::new(
                    "",
                    "it runs, and writes to etcd v2",
                    "calico-kube-controllers in its place",
                    "`kubectl scale --replicas=0` it first: calico-kube-controllers of v2.6 does what it did",
                ),
            ),
            // It can write there only with certificates that a tenant does not have.
            Owner::Tenant(_) => report.warn(
                "",
                other.clone(),
                Finding::new(
                    "",
                    "its image is one of Calico v2's controllers",
                    "none in a tenant's namespace",
                    "ask its owner: if it can reach etcd, `kubectl scale --replicas=0` it first",
                ),
            ),
        }
    }
}
