//! Plugins that flannel's conflist chains, and Calico's does not: new pods lose what they do.

use std::collections::BTreeSet;

use serde_json::Value;

use super::CheckName;
use super::network::hosts;
use crate::cni;
use crate::facts::ClusterFacts;
use calico::variable;
use engine::check::{Check, Finding, Report, names};
use engine::cluster::DaemonSet;
use engine::words::number;

/// The plugin of flannel itself: Calico's own replaces it.
const FLANNEL: &str = "flannel";

pub(super) fn check(facts: &ClusterFacts, calico: Option<&DaemonSet>) -> Vec<Check> {
    let mut report = Report::new(CheckName::ChainedPlugins);
    let of_calico = calico.and_then(|set| plugins_of_calico(facts, set));
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        // The check ConflistMalformed names a file of another network that comes first.
        let Some(file) = host.cni.winner().filter(|file| cni::is_flannel(file)) else {
            continue;
        };
        let chained = file
            .plugins
            .iter()
            .map(String::as_str)
            .filter(|plugin| *plugin != FLANNEL);
        let lost: Vec<&str> = match &of_calico {
            Some(kept) => chained.filter(|plugin| !kept.contains(*plugin)).collect(),
            // The check CalicoManifests names a missing configuration; portmap is in Calico's own.
            None => chained.filter(|plugin| *plugin != "portmap").collect(),
        };
        if lost.is_empty() {
            continue;
        }
        report.warn(
            "Node",
            &node.name,
            Finding::new(
                &file.name,
                format!("chains {}", names(&lost)),
                "the same plugins in cni_network_config of Calico",
                "pods that are created on Calico do not get what these plugins do (bandwidth limits, sysctls, more interfaces): \
                 add the plugins to cni_network_config in Calico's ConfigMap, or accept that they end",
            ),
        );
    }
    report.finish(
        format!("CNI configuration of {}", number(hosts.len(), "host", "hosts")),
        "Calico chains the same plugins",
    )
}

/// The types of the plugins in the configuration that Calico's installer writes; `None` if it is not known.
fn plugins_of_calico(facts: &ClusterFacts, set: &DaemonSet) -> Option<BTreeSet<String>> {
    let mut containers = set.containers.iter();
    let installer = containers.find(|container| container.name == "install-cni")?;
    let text = variable(&facts.config_maps, set, installer, "CNI_NETWORK_CONFIG").known()?;
    // The installer replaces the placeholder, which is in the place of a number.
    let configuration: Value = serde_json::from_str(&text.replace("__CNI_MTU__", "0")).ok()?;
    let plugins = configuration["plugins"].as_array()?;
    Some(
        plugins
            .iter()
            .filter_map(|plugin| plugin["type"].as_str().map(str::to_owned))
            .collect(),
    )
}
