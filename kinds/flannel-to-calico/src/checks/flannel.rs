//! Checks of flannel: `DaemonSet`, version, subnet manager and backend.

use super::CheckName;
use crate::detect::{
    argument, flannel_nodes, flanneld, has_switch, looks_like_canal, looks_like_flannel,
    network_configuration,
};
use crate::facts::ClusterFacts;
use crate::flannel::{NetworkConfiguration, NodeAnnotations};
use crate::settings::Settings;
use crate::version::Version;
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::cluster::DaemonSet;

/// The oldest version of flannel that Calico's own migration supports.
const OLDEST: Version = Version::new(0, 9, 1);

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, flannel: Option<&DaemonSet>) -> Vec<Check> {
    let Some(flannel) = flannel else {
        return vec![missing(settings)];
    };
    let (configuration, mut checks) = match network_configuration(flannel, facts) {
        Ok(found) => (found, Vec::new()),
        Err(check) => (None, vec![*check]),
    };
    if checks.is_empty() {
        checks.push(network_configuration_check(flannel, configuration.as_ref()));
    }
    checks.extend(daemon_set(facts, flannel));
    checks.push(canal(facts, flannel));
    checks.push(version(settings, facts, flannel));
    checks.push(subnet_manager(flannel));
    // A configuration that says enough about its backend to refuse it needs no other evidence.
    if checks
        .iter()
        .all(|check| check.name != CheckName::FlannelBackend.as_str())
    {
        checks.extend(backend(settings, facts, configuration.as_ref()));
    }
    checks
}

/// The result for a `DaemonSet` that existed when the settings were detected and is missing now.
fn missing(settings: &Settings) -> Check {
    CheckName::FlannelDaemonSet.not_pass(
        Verdict::Fail,
        format!(
            "DaemonSet {}/{}",
            settings.flannel_daemon_set_namespace.value, settings.flannel_daemon_set_name.value
        ),
        "not found",
        "flannel's DaemonSet",
        "apply flannel's manifest again, or correct flannelDaemonSetName and flannelDaemonSetNamespace",
    )
}

fn network_configuration_check(
    flannel: &DaemonSet,
    configuration: Option<&(NetworkConfiguration, String)>,
) -> Check {
    match configuration {
        Some((configuration, object)) => Check::pass(
            CheckName::NetworkConfiguration.as_str(),
            object,
            format!(
                "Network {}, VNI {}, Port {}",
                configuration.network, configuration.vni, configuration.port
            ),
        ),
        None => CheckName::NetworkConfiguration.not_pass(
            Verdict::Warn,
            format!("DaemonSet {}", flannel.key()),
            "no referenced ConfigMap contains net-conf.json",
            "flannel's configuration",
            "other checks compare each value with the devices of the hosts; correct the options if they fail",
        ),
    }
}

fn daemon_set(facts: &ClusterFacts, flannel: &DaemonSet) -> Vec<Check> {
    let mut report = Report::new(CheckName::FlannelDaemonSet);
    let key = flannel.key();
    let mut fail = |found: String, needed: &str, fix: &str| {
        report.fail("DaemonSet", &key, Finding::new("", found, needed, fix));
    };
    if flanneld(flannel).is_none() {
        let images: Vec<&str> = flannel
            .containers
            .iter()
            .map(|container| container.image.as_str())
            .collect();
        let others: Vec<String> = facts
            .daemon_sets
            .values()
            .filter(|set| looks_like_flannel(set))
            .map(DaemonSet::key)
            .collect();
        fail(
            format!("no container that runs flanneld (images: {})", names(&images)),
            "flannel's DaemonSet",
            &if others.is_empty() {
                "correct flannelDaemonSetName and flannelDaemonSetNamespace in spec.flannelToCalico.options"
                    .to_owned()
            } else {
                format!(
                    "set flannelDaemonSetName and flannelDaemonSetNamespace to {}",
                    names(&others)
                )
            },
        );
    }
    if flannel.desired == 0 {
        fail(
            "0 desired pods".to_owned(),
            "flannel on every node",
            "correct the node selector and affinity of the DaemonSet: without flannel there is nothing to migrate",
        );
    } else if flannel.ready < flannel.desired {
        fail(
            format!("{} of {} pods Ready", flannel.ready, flannel.desired),
            "every pod Ready",
            "repair flannel first: `kubectl get pods -o wide` in its namespace shows where it does not run",
        );
    } else if !flannel.rolled_out {
        fail(
            "rollout in progress".to_owned(),
            "every pod updated to the newest template",
            "wait until `kubectl rollout status` reports success",
        );
    }
    if flannel.on_delete {
        fail(
            "updateStrategy OnDelete".to_owned(),
            "updateStrategy RollingUpdate",
            "the migration adds a node selector to the pod template and waits for the rollout: set \
             spec.updateStrategy.type to RollingUpdate",
        );
    }
    let others: Vec<String> = facts
        .daemon_sets
        .values()
        .filter(|set| looks_like_flannel(set) && set.desired > 0 && set.key() != key)
        .map(DaemonSet::key)
        .collect();
    if !others.is_empty() {
        fail(
            format!("flannel also runs in {}", names(&others)),
            "one DaemonSet that runs flannel",
            "the other DaemonSets would continue to configure flannel's devices: use one DaemonSet for all nodes first",
        );
    }
    report.finish(
        format!("DaemonSet {key}"),
        format!("{} of {} pods Ready", flannel.ready, flannel.desired),
    )
}

fn canal(facts: &ClusterFacts, flannel: &DaemonSet) -> Check {
    let canal: Vec<String> = facts
        .daemon_sets
        .values()
        .filter(|set| looks_like_canal(set))
        .map(DaemonSet::key)
        .collect();
    if canal.is_empty() {
        return Check::pass(
            CheckName::Canal.as_str(),
            format!("DaemonSet {}", flannel.key()),
            "flannel without Calico in the same pod",
        );
    }
    CheckName::Canal.not_pass(
        Verdict::Fail,
        format!("DaemonSet {}", names(&canal)),
        "Canal: flannel and Calico in one pod",
        "flannel alone",
        "replumb does not migrate Canal: its pods already use Calico's plugin",
    )
}

fn version(settings: &Settings, facts: &ClusterFacts, flannel: &DaemonSet) -> Check {
    let name = CheckName::FlannelVersion;
    let image = flanneld(flannel)
        .map(|container| container.image.as_str())
        .unwrap_or_default();
    let object = format!("DaemonSet {}: image {image}", flannel.key());
    match Version::of_image(image) {
        Some(version) if version >= OLDEST => Check::pass(name.as_str(), object, version.to_string()),
        Some(version) => name.not_pass(
            Verdict::Fail,
            object,
            version.to_string(),
            format!("{OLDEST} or later"),
            "update flannel first",
        ),
        // Only later versions write the VNI to the annotations of a node.
        None if every_node_has_vni(settings, facts) => Check::pass(
            name.as_str(),
            object,
            format!("later than {OLDEST}: backend-data of every Node contains a VNI"),
        ),
        None => name.not_pass(
            Verdict::Unknown,
            object,
            "no version in the image's tag",
            format!("{OLDEST} or later"),
            "use an image tag that starts with the version",
        ),
    }
}

fn every_node_has_vni(settings: &Settings, facts: &ClusterFacts) -> bool {
    let prefix = &settings.flannel_annotation_prefix.value;
    let mut nodes = flannel_nodes(facts)
        .map(|node| {
            NodeAnnotations::read(&node.annotations, prefix)
                .ok()
                .flatten()
                .is_some_and(|annotations| annotations.vni.is_some())
        })
        .peekable();
    nodes.peek().is_some() && nodes.all(|has_vni| has_vni)
}

fn subnet_manager(flannel: &DaemonSet) -> Check {
    let name = CheckName::FlannelSubnetManager;
    let object = format!("DaemonSet {}: arguments of flanneld", flannel.key());
    let Some(container) = flanneld(flannel) else {
        return name.not_pass(
            Verdict::Unknown,
            object,
            "no container that runs flanneld",
            "--kube-subnet-mgr",
            "see check FlannelDaemonSet",
        );
    };
    if has_switch(container, "kube-subnet-mgr") {
        return Check::pass(name.as_str(), object, "--kube-subnet-mgr");
    }
    name.not_pass(
        Verdict::Fail,
        object,
        match argument(container, "etcd-endpoints") {
            Some(endpoints) => format!("--etcd-endpoints {endpoints}"),
            None => "no --kube-subnet-mgr: flannel keeps its subnets in etcd".to_owned(),
        },
        "--kube-subnet-mgr",
        "let flannel use the Kubernetes API as its datastore first (--kube-subnet-mgr)",
    )
}

fn backend(
    settings: &Settings,
    facts: &ClusterFacts,
    configuration: Option<&(NetworkConfiguration, String)>,
) -> Vec<Check> {
    let mut report = Report::new(CheckName::FlannelBackend);
    let fix = "the migration needs flannel's VXLAN network while nodes change: set Backend.Type to vxlan and restart \
               flannel's pods first";
    let Some((configuration, object)) = configuration else {
        let prefix = &settings.flannel_annotation_prefix.value;
        let mut seen = 0;
        for node in flannel_nodes(facts) {
            // The check NodeAnnotations names malformed annotations.
            let Ok(Some(annotations)) = NodeAnnotations::read(&node.annotations, prefix) else {
                continue;
            };
            seen += 1;
            if !annotations.backend.eq_ignore_ascii_case("vxlan") {
                let finding = Finding::new("annotation backend-type", annotations.backend, "vxlan", fix);
                report.fail("Node", &node.name, finding);
            }
        }
        if seen == 0 {
            let finding = Finding::new(
                "",
                "no net-conf.json, and no Node with flannel's annotations",
                "backend vxlan",
                "see checks NetworkConfiguration and NodeAnnotations",
            );
            report.unknown("flannel's", "backend", finding);
        }
        return report.finish("annotations of the Nodes", format!("vxlan on all Nodes ({seen})"));
    };
    if !configuration.is_vxlan() {
        report.fail(
            "",
            object,
            Finding::new("Backend.Type", &configuration.backend, "vxlan", fix),
        );
    }
    if configuration.group_policy {
        report.fail(
            "",
            object,
            Finding::new(
                "Backend.GBP",
                "true",
                "false",
                "Calico's tunnel carries no id of a group policy, so that rules that read it would no longer match: remove \
                 the key and restart flannel's pods, which create their tunnels again",
            ),
        );
    }
    report.finish(object, "Backend.Type vxlan")
}

#[cfg(test)]
mod tests;
