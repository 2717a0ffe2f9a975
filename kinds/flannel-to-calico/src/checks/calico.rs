//! Calico's side: is it installed as the migration needs it, and do its objects fit?

mod addresses;

use addresses::{blocks, pool};
use serde_json::Value;

use super::CheckName;
use crate::cluster::ClusterFacts;
use crate::detect::{NETWORK_LABEL, flannel_nodes};
use crate::settings::Settings;
use calico::{calico_node, looks_like_calico, variable};
use engine::check::{Check, Finding, Report, names};
use engine::cluster::DaemonSet;

/// Custom resources without which Calico's data cannot be written.
const RESOURCES: [&str; 7] = [
    "blockaffinities",
    "clusterinformations",
    "felixconfigurations",
    "ipamblocks",
    "ipamconfigs",
    "ipamhandles",
    "ippools",
];
/// What Felix takes for true in its environment; an empty variable is none.
const IS_TRUE: [&str; 9] = ["true", "True", "TRUE", "1", "t", "T", "y", "Y", ""];
/// The conflist that install-cni writes when it is told no other name.
const CONFLIST: &str = "10-calico.conflist";
const MANIFEST: &str = "apply Calico's manifest for this migration (manifests/flannel-migration/calico.yaml of the \
                        Calico release that you want)";

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, calico: Option<&DaemonSet>) -> Vec<Check> {
    [
        manifests(settings, facts, calico),
        pool(settings, facts),
        blocks(settings, facts),
    ]
    .concat()
}

fn manifests(settings: &Settings, facts: &ClusterFacts, calico: Option<&DaemonSet>) -> Vec<Check> {
    let mut report = Report::new(CheckName::CalicoManifests);
    let missing: Vec<&str> = RESOURCES
        .into_iter()
        .filter(|resource| !facts.calico_resources.contains(*resource))
        .collect();
    if !missing.is_empty() {
        report.fail(
            "API group",
            "crd.projectcalico.org",
            Finding::new(
                "",
                format!("not served: {}", names(&missing)),
                "every custom resource of Calico's",
                MANIFEST,
            ),
        );
    }
    let key = format!(
        "{}/{}",
        settings.calico_daemon_set_namespace.value, settings.calico_daemon_set_name.value
    );
    match calico {
        None => absent(facts, &key, &mut report),
        Some(set) => {
            selector(set, &mut report);
            node_container(settings, facts, set, &mut report);
            conflist(facts, set, &mut report);
            if settings.ipv6.is_some() {
                ipv6(facts, set, &mut report);
            }
        }
    }
    report.finish(
        format!("DaemonSet {key}"),
        format!("waits for nodes with label {NETWORK_LABEL}=calico"),
    )
}

fn absent(facts: &ClusterFacts, key: &str, report: &mut Report) {
    let others: Vec<String> = facts
        .daemon_sets
        .values()
        .filter(|set| looks_like_calico(set))
        .map(DaemonSet::key)
        .collect();
    let (found, fix) = if others.is_empty() {
        ("not there".to_owned(), MANIFEST.to_owned())
    } else {
        (
            format!("not there; Calico is in {}", names(&others)),
            "set calicoDaemonSetName and calicoDaemonSetNamespace in spec.flannelToCalico.options".to_owned(),
        )
    };
    report.fail(
        "DaemonSet",
        key,
        Finding::new("", found, "Calico's DaemonSet", fix),
    );
}

fn selector(set: &DaemonSet, report: &mut Report) {
    let found = set.node_selector.get(NETWORK_LABEL);
    if found.map(String::as_str) != Some("calico") {
        report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                "node selector of the pod template",
                found.map_or_else(
                    || format!("no {NETWORK_LABEL}"),
                    |value| format!("{NETWORK_LABEL}={value}"),
                ),
                format!("{NETWORK_LABEL}=calico"),
                "without it calico-node starts on every node at once, beside flannel: use the manifest for this \
                 migration, which has it",
            ),
        );
    }
    if set.on_delete {
        report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                "spec.updateStrategy.type",
                "OnDelete",
                "RollingUpdate",
                "the last step takes the node selector away and waits for the roll: set RollingUpdate",
            ),
        );
    }
}

/// Felix takes its environment before its `FelixConfiguration`: what contradicts the settings there would win.
fn node_container(settings: &Settings, facts: &ClusterFacts, set: &DaemonSet, report: &mut Report) {
    let Some(container) = calico_node(set) else {
        let images: Vec<&str> = set
            .containers
            .iter()
            .map(|container| container.image.as_str())
            .collect();
        report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                "containers",
                format!("no container calico-node (images: {})", names(&images)),
                "Calico's node agent",
                MANIFEST,
            ),
        );
        return;
    };
    let vni = settings.flannel_vni.value.to_string();
    let port = settings.flannel_port.value.to_string();
    let mtu = settings.flannel_mtu.value.to_string();
    // Variable, accepted values; a variable that is not set is fine.
    let mtu_of_ipv6 = settings.flannel_ipv6_mtu().to_string();
    let accepted: [(&str, &[&str]); 7] = [
        ("DATASTORE_TYPE", &["kubernetes"]),
        ("CALICO_NETWORKING_BACKEND", &["vxlan", "bird"]),
        ("FELIX_VXLANENABLED", &IS_TRUE),
        ("FELIX_VXLANVNI", &[&vni, ""]),
        ("FELIX_VXLANPORT", &[&port, ""]),
        // 0 lets Felix compute it as flannel does: the uplink's MTU less 50.
        ("FELIX_VXLANMTU", &[&mtu, "0", ""]),
        ("FELIX_VXLANMTUV6", &[&mtu_of_ipv6, "0", ""]),
    ];
    for (name, values) in accepted {
        let Some(found) = variable(&facts.config_maps, set, container, name) else {
            continue;
        };
        if !values.contains(&found) {
            report.fail(
                "DaemonSet",
                set.key(),
                Finding::new(
                    &format!("environment {name} of calico-node"),
                    format!("{found:?}"),
                    if name == "FELIX_VXLANENABLED" { "true" } else { values[0] },
                    "calico-node would not understand flannel's packets: correct the variable, or the ConfigMap \
                     that it comes from",
                ),
            );
        }
    }
}

/// Where pods have IPv6 addresses, Calico has to be told to give them some.
fn ipv6(facts: &ClusterFacts, set: &DaemonSet, report: &mut Report) {
    let node = calico_node(set);
    let mut refuse = |name: &str, found: &str, needed: &str, fix: &str| {
        report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(name, format!("{found:?}"), needed, fix),
        );
    };
    let value = |name: &str| node.and_then(|container| variable(&facts.config_maps, set, container, name));
    if let Some(found) = value("FELIX_IPV6SUPPORT").filter(|found| !IS_TRUE.contains(found)) {
        refuse(
            "environment FELIX_IPV6SUPPORT of calico-node",
            found,
            "true",
            "pods on Calico would have no way to IPv6 addresses: set it to true, or take it away",
        );
    }
    if let Some(found) = value("IP6").filter(|found| *found == "none") {
        refuse(
            "environment IP6 of calico-node",
            found,
            "autodetect",
            "the node would lose its end of the IPv6 tunnel: set it to autodetect",
        );
    }
    let installer = set
        .containers
        .iter()
        .find(|container| container.name == "install-cni");
    let configuration =
        installer.and_then(|container| variable(&facts.config_maps, set, container, "CNI_NETWORK_CONFIG"));
    match configuration.map(assigns_ipv6) {
        Some(Some(true)) => {}
        Some(Some(false)) => report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                "CNI_NETWORK_CONFIG of install-cni",
                "ipam.assign_ipv6 is not \"true\"",
                "\"assign_ipv6\": \"true\"",
                "new pods would have no IPv6 address: write it beside \"type\": \"calico-ipam\"",
            ),
        ),
        Some(None) | None => report.unknown(
            "DaemonSet",
            set.key(),
            Finding::new(
                "CNI_NETWORK_CONFIG of install-cni",
                "not there, or not understood",
                "a CNI configuration whose ipam has \"assign_ipv6\": \"true\"",
                "give it by a ConfigMap's key, as Calico's manifest does",
            ),
        ),
    }
}

/// Whether Calico's plugin gives pods IPv6 addresses by this configuration; `None` if it is not understood.
fn assigns_ipv6(configuration: &str) -> Option<bool> {
    // The installer fills these in, one of them where a number stands.
    let filled = configuration.replace("__CNI_MTU__", "0");
    let configuration: Value = serde_json::from_str(&filled).ok()?;
    let plugins = match configuration["plugins"].as_array() {
        Some(plugins) => plugins.as_slice(),
        None => std::slice::from_ref(&configuration),
    };
    let calico = plugins.iter().find(|plugin| plugin["type"] == "calico")?;
    Some(calico["ipam"]["assign_ipv6"] == "true")
}

/// Calico's conflist must win over flannel's the moment it is written.
fn conflist(facts: &ClusterFacts, set: &DaemonSet, report: &mut Report) {
    let installer = set
        .containers
        .iter()
        .find(|container| container.name == "install-cni")
        .or_else(|| {
            set.containers
                .iter()
                .find(|container| container.environment.contains_key("CNI_CONF_NAME"))
        });
    let Some(installer) = installer else {
        report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                "containers",
                "no container install-cni",
                "Calico's installer of its conflist",
                MANIFEST,
            ),
        );
        return;
    };
    let name = variable(&facts.config_maps, set, installer, "CNI_CONF_NAME").unwrap_or(CONFLIST);
    for node in flannel_nodes(facts) {
        let Some(host) = facts.hosts.get(&node.name) else {
            continue;
        };
        for file in host.cni.flannel_files().filter(|file| file.name.as_str() < name) {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "CNI configuration",
                    format!("{} sorts before Calico's {name}", file.name),
                    format!("a name after {name}"),
                    "the runtime would go on with flannel's: set CNI_CONF_NAME of install-cni to a name that sorts \
                     first",
                ),
            );
        }
    }
}

#[cfg(test)]
#[path = "calico_tests.rs"]
mod tests;
