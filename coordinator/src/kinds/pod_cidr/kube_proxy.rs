//! The ranges that kube-proxy takes for those of pods, wherever it is told: a configuration in a `ConfigMap`, the arguments of a
//! `DaemonSet`, or those of static pods. Pure.

use std::collections::{BTreeMap, BTreeSet};

use engine::cluster::{Container, DaemonSet};
use engine::command_line::{argument, runs};
use engine::owner::{KUBE_SYSTEM, Owner};
use engine::words::names;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use pod_cidr::hardcoded_range::{Needs, RangeUse, ranges_in};
use serde_json::Value;

use crate::pod_index::Index;

/// The program.
pub const PROGRAM: &str = "kube-proxy";
/// The kind of its configuration.
const CONFIGURATION: &str = "KubeProxyConfiguration";
/// The mode in which it recognizes pods by ranges; it is the default.
const BY_RANGE: &str = "ClusterCIDR";

/// What is known of kube-proxy.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KubeProxies {
    /// Where it is told ranges of pods.
    pub uses: Vec<RangeUse>,
    /// Whether its way to recognize pods was found at all.
    pub is_known: bool,
}

/// `DaemonSet`s of kube-system that run kube-proxy.
fn daemon_sets(sets: &[DaemonSet]) -> impl Iterator<Item = (&DaemonSet, &Container)> {
    sets.iter()
        // One without pods says nothing of the nodes.
        .filter(|set| set.namespace == KUBE_SYSTEM && set.desired > 0)
        .filter_map(|set| {
            let mut containers = set.containers.iter().filter(|container| !container.init);
            Some((set, containers.find(|container| runs(container, PROGRAM))?))
        })
}

/// Namespaces and names of the `ConfigMap`s that may have the configuration.
pub fn config_maps(sets: &[DaemonSet]) -> BTreeSet<(String, String)> {
    let of_sets = daemon_sets(sets).flat_map(|(set, _)| set.referred_config_maps());
    let names = of_sets.chain([PROGRAM]);
    names
        .map(|name| (KUBE_SYSTEM.to_owned(), name.to_owned()))
        .collect()
}

/// Names of the `ConfigMap`s of kube-system that a running kube-proxy mounts.
fn used_maps<'a>(sets: &'a [DaemonSet], pods: &'a Index) -> BTreeSet<&'a str> {
    let of_sets = daemon_sets(sets).flat_map(|(set, _)| set.referred_config_maps());
    let of_pods = pods
        .more()
        .filter(|((namespace, _), more)| {
            *namespace == KUBE_SYSTEM && more.programs.iter().any(|program| runs(program, PROGRAM))
        })
        .flat_map(|(_, more)| more.config_maps.iter().map(String::as_str));
    of_sets.chain(of_pods).collect()
}

/// What kube-proxy is told by these objects.
pub fn observe(maps: &[ConfigMap], sets: &[DaemonSet], pods: &Index) -> KubeProxies {
    let mut found = KubeProxies::default();
    let used = used_maps(sets, pods);
    let is_used = |map: &&ConfigMap| used.contains(map.name_any().as_str());
    let configurations: Vec<(String, Value)> = maps.iter().filter(is_used).flat_map(configurations).collect();
    for (object, configuration) in &configurations {
        found.is_known = true;
        let mode = configuration["detectLocalMode"]
            .as_str()
            .filter(|mode| !mode.is_empty());
        let ranges = ranges_in(configuration["clusterCIDR"].as_str().unwrap_or_default());
        if mode.unwrap_or(BY_RANGE) == BY_RANGE && !ranges.is_empty() {
            found.uses.push(of_configuration(object, ranges));
        }
    }
    let mut by_flags: BTreeMap<Vec<IpNet>, Vec<String>> = BTreeMap::new();
    let of_sets = daemon_sets(sets).map(|(set, container)| (format!("DaemonSet {}", set.key()), container));
    let of_pods = pods
        .more()
        .filter(|((namespace, _), _)| *namespace == KUBE_SYSTEM)
        .filter_map(|((namespace, name), more)| {
            let mut containers = more.programs.iter();
            let container = containers.find(|container| runs(container, PROGRAM))?;
            Some((format!("Pod {namespace}/{name}"), container))
        });
    for (object, container) in of_sets.chain(of_pods) {
        // A file overrides these flags. One that is in no ConfigMap is on the host.
        if argument(container, "config").is_some() {
            continue;
        }
        let mode = argument(container, "detect-local-mode").filter(|mode| !mode.is_empty());
        if mode.is_some_and(|mode| mode != BY_RANGE) {
            found.is_known = true;
            continue;
        }
        let said = argument(container, "cluster-cidr").unwrap_or_default();
        let ranges = ranges_in(&said);
        // A value such as $(CLUSTER_CIDR) is not known.
        if said.split(',').filter(|part| !part.is_empty()).count() != ranges.len() {
            continue;
        }
        found.is_known = true;
        if !ranges.is_empty() {
            by_flags.entry(ranges).or_default().push(object);
        }
    }
    found.uses.extend(
        by_flags
            .into_iter()
            .map(|(ranges, objects)| of_flags(&objects, ranges)),
    );
    found
}

/// The configurations in a `ConfigMap`, under any key, as YAML or JSON.
fn configurations(map: &ConfigMap) -> Vec<(String, Value)> {
    let name = format!("{}/{}", map.namespace().unwrap_or_default(), map.name_any());
    let parse = |(key, text): (&String, &String)| {
        let value: Value = yaml_serde::from_str(text).ok()?;
        (value["kind"] == CONFIGURATION).then(|| (format!("ConfigMap {name}, key {key}"), value))
    };
    map.data.iter().flatten().filter_map(parse).collect()
}

fn of_configuration(object: &str, ranges: Vec<IpNet>) -> RangeUse {
    RangeUse {
        object: format!("{object}: clusterCIDR"),
        owner: Owner::Cluster,
        fix: format!(
            "set clusterCIDR to one range of the family around both while both have pods{}, or detectLocalMode to \
             InterfaceNamePrefix with detectLocal.interfaceNamePrefix cali; then restart kube-proxy. Needed: {{ranges}}",
            beside(&ranges)
        ),
        ranges,
        more: 0,
        needs: Needs::BothThenNew,
        is_of_kube_proxy: true,
    }
}

fn of_flags(objects: &[String], ranges: Vec<IpNet>) -> RangeUse {
    RangeUse {
        object: format!("{}: --cluster-cidr of kube-proxy", names(objects)),
        owner: Owner::Cluster,
        fix: format!(
            "set --cluster-cidr to one range of the family around both while both have pods{}, or replace it by \
             --detect-local-mode=InterfaceNamePrefix and --pod-interface-name-prefix=cali, on every node (kops: \
             spec.kubeProxy.clusterCIDR). Needed: {{ranges}}",
            beside(&ranges)
        ),
        ranges,
        more: 0,
        needs: Needs::BothThenNew,
        is_of_kube_proxy: true,
    }
}

/// kube-proxy has at most one range of each family: the range of the other one stays.
fn beside(ranges: &[IpNet]) -> String {
    if ranges.len() < 2 {
        return String::new();
    }
    let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    format!(" (of {}, change only the one of this family)", texts.join(","))
}

#[cfg(test)]
mod tests;
