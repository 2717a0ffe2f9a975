//! Checks of Calico's controllers: writers of v2 besides calico-node, and writers of the objects in v3 that are not converted.

use serde_json::Value;

use super::CheckName;
use crate::cluster::facts::{ClusterFacts, Workload};
use crate::cluster::manifest::{self, CONTROLLERS, Manifest, Name};
use crate::cluster::settings::Settings;
use engine::check::{Check, Finding, Report, Verdict};
use engine::owner::Owner;

/// Checks that the controllers are known, of v3, and able to write while Calico is paused.
pub(super) fn check(settings: &Settings, facts: &ClusterFacts, manifest: &Manifest) -> Vec<Check> {
    let mut report = Report::new(CheckName::KubeControllers);
    let fix =
        "add it to the manifest: calico-kube-controllers of v2 writes to etcd v2 even while Calico is paused";
    match (&manifest.controllers, &facts.controllers) {
        (Some(wanted), None) => report.fail(
            "",
            Name::of(wanted).display(),
            Finding::new(
                "",
                "only in the manifest",
                "in the manifest and in the cluster, or in neither",
                "apply the one of v2 first, or remove it from the manifest and apply it after the migration",
            ),
        ),
        (None, Some(found)) => report.fail(
            "Deployment",
            found.object.key(),
            Finding::new(
                "",
                "only in the cluster",
                "in the manifest and in the cluster, or in neither",
                fix,
            ),
        ),
        (Some(wanted), Some(found)) => compare(wanted, found, &mut report),
        (None, None) => {}
    }
    unwritten(facts, manifest, &mut report);
    others(facts, &mut report);
    let object = match settings.controllers.value.as_str() {
        "" => "no calico-kube-controllers".to_owned(),
        name => format!("Deployment {name}"),
    };
    report.finish(object, "known; stopped while the stores change")
}

/// Checks that the controllers of the manifest fit the ones of the cluster.
fn compare(wanted: &Value, found: &Workload, report: &mut Report) {
    let name = Name::of(wanted).display();
    let image = manifest::image(&wanted["spec"]["template"]);
    if image == manifest::image(&found.template) {
        report.fail(
            "",
            name.clone(),
            Finding::new(
                "image",
                format!("{image}, the same as in the cluster"),
                "the image of v3",
                "check that the manifest is of v3, and that it was not applied already",
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
                "a selector is immutable: copy that of the cluster to the manifest, and its labels to the pod template",
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
                "set it in the manifest: the controllers start while Calico is paused, and no pod gets a network",
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
                "all pods Ready",
                "find out why: changed policies may be missing in etcd v2",
            ),
        );
    }
}

/// Checks that the controllers of v3 will write the objects that are not converted, before Calico is paused for that.
fn unwritten(facts: &ClusterFacts, manifest: &Manifest, report: &mut Report) {
    let Some(converted) = facts
        .read_stores()
        .and_then(|stores| stores.conversion.as_ref().ok())
        .filter(|converted| !converted.remaining.is_empty())
    else {
        return;
    };
    let left = &converted.remaining;
    for (origin, flaw) in &converted.flawed {
        let verdict = if flaw.is_certain() {
            Verdict::Fail
        } else {
            Verdict::Warn
        };
        report.add(verdict, origin.kind(), origin.name(), flaw.finding());
    }
    let needed = "controllers of v3 that write these before etcd v3 is opened: without a profile, pods lose new connections";
    let Some(controllers) = &manifest.controllers else {
        report.fail(
            "",
            "manifest",
            Finding::new(
                CONTROLLERS,
                format!("missing, and etcd v2 has {left}"),
                needed,
                "add it to the manifest, and apply the one of v2 to the cluster",
            ),
        );
        return;
    };
    // Without this variable, all controllers run.
    let Some(enabled) = enabled_controllers(controllers) else {
        return;
    };
    // Calico does not trim spaces: a name with a space is unknown, and the process exits.
    let is_off = |names: &[&str]| !enabled.split(',').any(|name| names.contains(&name));
    for (is_needed, names) in [
        (!left.profiles.is_empty(), &["profile", "namespace"][..]),
        (!left.policies.is_empty(), &["policy"]),
    ] {
        if is_needed && is_off(names) {
            report.fail(
                "",
                Name::of(controllers).display(),
                Finding::new(
                    "ENABLED_CONTROLLERS",
                    format!("{enabled}, and etcd v2 has {left}"),
                    needed,
                    format!(
                        "add {} in the manifest, with commas and no spaces between the names",
                        names[0]
                    ),
                ),
            );
        }
    }
}

/// The controllers that run, where the manifest has this as a plain value.
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

/// Checks for other controllers than the one of the manifest.
fn others(facts: &ClusterFacts, report: &mut Report) {
    for (other, owner) in &facts.other_controllers {
        match owner {
            Owner::Cluster => report.fail(
                "",
                other.clone(),
                Finding::new(
                    "",
                    "a running controller that writes to etcd v2",
                    "calico-kube-controllers in its place",
                    "scale it down first (`kubectl scale --replicas=0`): calico-kube-controllers of v2.6 does the same work",
                ),
            ),
            // Only a warning: writing to etcd needs certificates that a tenant does not have.
            Owner::Tenant(_) => report.warn(
                "",
                other.clone(),
                Finding::new(
                    "",
                    "an image of Calico v2's controllers",
                    "no such image in a tenant's namespace",
                    "ask its owner: if it can reach etcd, scale it down first (`kubectl scale --replicas=0`)",
                ),
            ),
        }
    }
}
