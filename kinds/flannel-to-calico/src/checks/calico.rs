//! Checks of Calico: installed as the migration needs it, with objects that fit.

mod addresses;

use addresses::{blocks, pool};
use serde_json::Value;

use super::CheckName;
use crate::cni;
use crate::detect::{NETWORK_LABEL, flannel_nodes};
use crate::facts::ClusterFacts;
use crate::settings::Settings;
use calico::{calico_node, runs_calico_node, variable};
use engine::check::{Check, Finding, Report, names};
use engine::cluster::DaemonSet;
use engine::environment::Variable;

/// Custom resources that are needed to write Calico's data.
const RESOURCES: [&str; 7] = [
    "blockaffinities",
    "clusterinformations",
    "felixconfigurations",
    "ipamblocks",
    "ipamconfigs",
    "ipamhandles",
    "ippools",
];
/// Values of environment variables that Felix reads as true; Felix ignores an empty variable.
const IS_TRUE: [&str; 9] = ["true", "True", "TRUE", "1", "t", "T", "y", "Y", ""];
/// Values that Felix reads as false, in any case; Felix ignores an empty variable.
const IS_FALSE: [&str; 6] = ["", "0", "f", "false", "n", "no"];
/// File name of the conflist that install-cni writes by default.
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
    if facts.calico_resources.is_empty() && facts.serves_native_resources {
        report.fail(
            "API group",
            "projectcalico.org",
            Finding::new(
                "",
                "Calico's native custom resources (projectcalico.org/v3), and no crd.projectcalico.org",
                "Calico with custom resources in crd.projectcalico.org/v1",
                "replumb does not write native resources. Do not apply another manifest beside this Calico: remove it, which runs \
                 on no node yet, and install a release of Calico in the mode of crd.projectcalico.org (before v3.33 the default)",
            ),
        );
    } else if !missing.is_empty() {
        report.fail(
            "API group",
            "crd.projectcalico.org",
            Finding::new(
                "",
                format!("not served: {}", names(&missing)),
                "all custom resources of Calico",
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
            data_plane(facts, set, &mut report);
            conflist(facts, set, &mut report);
            if settings.ipv6.is_some() {
                ipv6(facts, set, &mut report);
            }
        }
    }
    report.finish(
        format!("DaemonSet {key}"),
        format!("selects nodes with label {NETWORK_LABEL}=calico"),
    )
}

fn absent(facts: &ClusterFacts, key: &str, report: &mut Report) {
    let others: Vec<String> = facts
        .daemon_sets
        .values()
        .filter(|set| runs_calico_node(set))
        .map(DaemonSet::key)
        .collect();
    let (found, fix) = if others.is_empty() {
        ("not found".to_owned(), MANIFEST.to_owned())
    } else {
        (
            format!("not found; Calico runs in {}", names(&others)),
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
    let found = set.selection.labels.get(NETWORK_LABEL);
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
                "without this selector calico-node starts on all nodes at once, beside flannel: use Calico's manifest \
                 for this migration, which has the selector",
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
                "the last step removes the node selector and waits for the rollout: set RollingUpdate",
            ),
        );
    }
}

/// In Felix, environment variables override `FelixConfiguration`, so they must agree with the settings.
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
    // Variable and accepted values. A variable that is not set passes.
    let mtu_of_ipv6 = settings.flannel_ipv6_mtu().to_string();
    let accepted: [(&str, &[&str]); 7] = [
        ("DATASTORE_TYPE", &["kubernetes"]),
        ("CALICO_NETWORKING_BACKEND", &["vxlan", "bird"]),
        ("FELIX_VXLANENABLED", &IS_TRUE),
        ("FELIX_VXLANVNI", &[&vni, ""]),
        ("FELIX_VXLANPORT", &[&port, ""]),
        // 0 makes Felix compute the MTU as flannel does: the MTU of the uplink minus 50.
        ("FELIX_VXLANMTU", &[&mtu, "0", ""]),
        ("FELIX_VXLANMTUV6", &[&mtu_of_ipv6, "0", ""]),
    ];
    for (name, values) in accepted {
        let found = match variable(&facts.config_maps, set, container, name) {
            Variable::Unset => continue,
            Variable::Known(found) => found,
            Variable::Unknown(place) => {
                unknown_variable(set, "calico-node", name, &place, values[0], report);
                continue;
            }
        };
        if !values.contains(&found) {
            report.fail(
                "DaemonSet",
                set.key(),
                Finding::new(
                    &format!("environment {name} of calico-node"),
                    format!("{found:?}"),
                    if name == "FELIX_VXLANENABLED" { "true" } else { values[0] },
                    "calico-node would not work with flannel's tunnel: correct the variable, or the ConfigMap that \
                     sets it",
                ),
            );
        }
    }
}

/// A variable that is set, and whose value the API does not show.
fn unknown_variable(
    set: &DaemonSet,
    container: &str,
    name: &str,
    place: &str,
    needed: &str,
    report: &mut Report,
) {
    report.unknown(
        "DaemonSet",
        set.key(),
        Finding::new(
            &format!("environment {name} of {container}"),
            format!("from {place}: the value is not known"),
            if needed.is_empty() {
                "a value that can be read"
            } else {
                needed
            },
            "write the value into the pod template, or into a ConfigMap that it names",
        ),
    );
}

/// The data plane that the migration was tried with.
fn data_plane(facts: &ClusterFacts, set: &DaemonSet, report: &mut Report) {
    let Some(container) = calico_node(set) else { return };
    let name = "FELIX_BPFENABLED";
    match variable(&facts.config_maps, set, container, name) {
        Variable::Unset => {}
        Variable::Known(value) if IS_FALSE.iter().any(|off| value.eq_ignore_ascii_case(off)) => {}
        Variable::Known(value) => report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                &format!("environment {name} of calico-node"),
                format!("{value:?}"),
                "false",
                "Felix's eBPF data plane takes over the links and Services of a node at its start, which no migration was tried \
                 with: set false, and enable eBPF once the migration is Completed",
            ),
        ),
        Variable::Unknown(place) => unknown_variable(set, "calico-node", name, &place, "false", report),
    }
}

/// For pods with IPv6 addresses, Calico must be configured to assign IPv6 addresses.
fn ipv6(facts: &ClusterFacts, set: &DaemonSet, report: &mut Report) {
    let node = calico_node(set);
    for name in ["FELIX_IPV6SUPPORT", "IP6"] {
        let found = node.map(|container| variable(&facts.config_maps, set, container, name));
        if let Some(Variable::Unknown(place)) = found {
            unknown_variable(set, "calico-node", name, &place, "", report);
        }
    }
    let mut refuse = |name: &str, found: &str, needed: &str, fix: &str| {
        report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(name, format!("{found:?}"), needed, fix),
        );
    };
    let value =
        |name: &str| node.and_then(|container| variable(&facts.config_maps, set, container, name).known());
    if let Some(found) = value("FELIX_IPV6SUPPORT").filter(|found| !IS_TRUE.contains(found)) {
        refuse(
            "environment FELIX_IPV6SUPPORT of calico-node",
            found,
            "true",
            "pods on Calico could not reach IPv6 addresses: set the variable to true, or remove it",
        );
    }
    if let Some(found) = value("IP6").filter(|found| *found == "none") {
        refuse(
            "environment IP6 of calico-node",
            found,
            "autodetect",
            "the node would lose its IPv6 tunnel address: set the variable to autodetect",
        );
    }
    let installer = set
        .containers
        .iter()
        .find(|container| container.name == "install-cni");
    let configuration = installer
        .and_then(|container| variable(&facts.config_maps, set, container, "CNI_NETWORK_CONFIG").known());
    match configuration.map(assigns_ipv6) {
        Some(Some(true)) => {}
        Some(Some(false)) => report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                "CNI_NETWORK_CONFIG of install-cni",
                "ipam.assign_ipv6 is not \"true\"",
                "\"assign_ipv6\": \"true\"",
                "new pods would have no IPv6 address: add it beside \"type\": \"calico-ipam\"",
            ),
        ),
        Some(None) | None => report.unknown(
            "DaemonSet",
            set.key(),
            Finding::new(
                "CNI_NETWORK_CONFIG of install-cni",
                "missing or invalid",
                "a CNI configuration whose ipam has \"assign_ipv6\": \"true\"",
                "set the variable from a key of a ConfigMap, as Calico's manifest does",
            ),
        ),
    }
}

/// Whether Calico's plugin assigns IPv6 addresses with this configuration; `None` if it cannot be parsed.
fn assigns_ipv6(configuration: &str) -> Option<bool> {
    // install-cni replaces the placeholders. One of them is in the place of a number, which JSON requires.
    let filled = configuration.replace("__CNI_MTU__", "0");
    let configuration: Value = serde_json::from_str(&filled).ok()?;
    let plugins = match configuration["plugins"].as_array() {
        Some(plugins) => plugins.as_slice(),
        None => std::slice::from_ref(&configuration),
    };
    let calico = plugins.iter().find(|plugin| plugin["type"] == "calico")?;
    Some(calico["ipam"]["assign_ipv6"] == "true")
}

/// Calico's conflist must come before flannel's as soon as it is written.
fn conflist(facts: &ClusterFacts, set: &DaemonSet, report: &mut Report) {
    let installer = set
        .containers
        .iter()
        .find(|container| container.name == "install-cni")
        .or_else(|| {
            set.containers
                .iter()
                .find(|container| container.environment.single.contains_key("CNI_CONF_NAME"))
        });
    let Some(installer) = installer else {
        report.fail(
            "DaemonSet",
            set.key(),
            Finding::new(
                "containers",
                "no container install-cni",
                "the init container that writes Calico's conflist",
                MANIFEST,
            ),
        );
        return;
    };
    let name = match variable(&facts.config_maps, set, installer, "CNI_CONF_NAME") {
        Variable::Unset => CONFLIST,
        Variable::Known(name) => name,
        Variable::Unknown(place) => {
            unknown_variable(set, "install-cni", "CNI_CONF_NAME", &place, CONFLIST, report);
            return;
        }
    };
    for node in flannel_nodes(facts) {
        let Some(host) = facts.hosts.get(&node.name) else {
            continue;
        };
        for file in cni::flannel_files(&host.cni).filter(|file| file.name.as_str() < name) {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "CNI configuration",
                    format!("{} comes before Calico's {name}", file.name),
                    format!("a file name after {name}"),
                    "the runtime would continue to use flannel's conflist: set CNI_CONF_NAME of install-cni to a name \
                     that comes before it",
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests;
