//! Reads Calico's allocations, and the objects that contain a range. Changes nothing.

use ::calico::runs_calico_node;
use api::migration::PodCidr;
use engine::cluster::DaemonSet;
use engine::owner::KUBE_SYSTEM;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::DynamicObject;
use pod_cidr::hardcoded_range::RangeUse;
use pod_cidr::ipam::{Block, Ipam};
use pod_cidr::unclear::Unclear;

use super::kube_proxy::{self, KubeProxies};
use super::malformed::{self, Claims};
use super::{objects, places};
use crate::cache::Cache;
use crate::calico::error::CalicoStoreError;
use crate::calico::store::Store;
use crate::calico::{self, Kind};
use crate::context::Context;
use crate::pass_error::PassError;
use crate::read_error::ReadError;
use crate::{facts, read};

/// Calico's kinds that contain ranges for policies.
const POLICIES: [Kind; 4] = [
    Kind("GlobalNetworkPolicy", "globalnetworkpolicies"),
    Kind("NetworkPolicy", "networkpolicies"),
    Kind("GlobalNetworkSet", "globalnetworksets"),
    Kind("NetworkSet", "networksets"),
];

/// The allocations and reservations of Calico's IPAM.
pub async fn ipam(store: &Store) -> Result<Ipam, CalicoStoreError> {
    let (claims, reservations) = tokio::try_join!(
        store.each(calico::BLOCK_AFFINITY, |object| Some(malformed::claim(&object))),
        store.each(calico::IP_RESERVATION, |object| Some(facts::calico::reserved(
            &object
        ))),
    )?;
    // The claims give the range of a malformed block.
    let claims = Claims::of(claims);
    let blocks = blocks(store, &claims).await?;
    Ok(malformed::ipam(blocks, claims, reservations))
}

/// Every block, reduced to the fields that decisions need.
pub async fn blocks(store: &Store, claims: &Claims) -> Result<Vec<Result<Block, Unclear>>, CalicoStoreError> {
    let kept = |object: DynamicObject| Some(malformed::block(&object, claims));
    store.each(calico::IPAM_BLOCK, kept).await
}

/// Objects that contain a range, with those that kube-proxy is told. `begun_with`: namespace and name of Calico's `DaemonSet`, once
/// the migration has started.
pub async fn mentions(
    context: &Context,
    cache: &Cache,
    store: &Store,
    kind: &PodCidr,
    begun_with: Option<(&str, &str)>,
    of_proxies: Vec<RangeUse>,
) -> Result<Vec<RangeUse>, PassError> {
    let (daemon_sets, config_maps) = calicos_daemon_sets(context, cache).await?;
    let daemon_set = ::calico::saved_daemon_set(&daemon_sets, begun_with);
    let detected = daemon_set.map(|set| set.namespace.as_str());
    let known = begun_with.map(|(namespace, _)| namespace);
    let system: Vec<&str> = [Some(context.namespace.as_str()), known.or(detected)]
        .into_iter()
        .flatten()
        .collect();
    let kubeadm = (KUBE_SYSTEM.to_owned(), "kubeadm-config".to_owned());
    let of_policy = |object: NetworkPolicy| places::network_policy(&object, &system, kind);
    let (maps, of_policies) = tokio::try_join!(
        read::config_maps(context, [kubeadm].into()),
        read::each(context, "NetworkPolicies", of_policy),
    )?;
    let mut mentions: Vec<RangeUse> = daemon_set
        .into_iter()
        .flat_map(|set| places::calico(set, &config_maps, &system))
        .collect();
    mentions.extend(maps.iter().filter_map(places::kubeadm));
    mentions.extend(of_proxies);
    mentions.extend(of_policies);
    for policies in POLICIES {
        let of_policy = |object: DynamicObject| places::calico_policy(policies.0, &object, &system, kind);
        mentions.extend(store.each(policies, of_policy).await?);
    }
    let managers = objects::controller_managers(&cache.pods.index());
    mentions.extend(managers.iter().filter_map(places::controller_manager));
    Ok(mentions)
}

/// What kube-proxy is told of the ranges of pods.
pub async fn kube_proxies(context: &Context, cache: &Cache) -> Result<KubeProxies, ReadError> {
    let sets: Vec<DaemonSet> = cache
        .daemon_sets
        .state()
        .iter()
        .map(|found| facts::daemon_sets::daemon_set(found))
        .collect();
    let maps = read::config_maps(context, kube_proxy::config_maps(&sets)).await?;
    Ok(kube_proxy::observe(&maps, &sets, &cache.pods.index()))
}

/// Calico's `DaemonSet`s, and the data of the `ConfigMap`s that they refer to.
pub async fn calicos_daemon_sets(
    context: &Context,
    cache: &Cache,
) -> Result<(Vec<DaemonSet>, ::calico::ConfigMaps), ReadError> {
    let sets: Vec<DaemonSet> = cache
        .daemon_sets
        .state()
        .iter()
        .map(|found| facts::daemon_sets::daemon_set(found))
        .filter(runs_calico_node)
        .collect();
    let wanted = sets
        .iter()
        .flat_map(|set| {
            let names = set.referred_config_maps().into_iter();
            names.map(|name| (set.namespace.clone(), name.to_owned()))
        })
        .collect();
    let maps: Vec<ConfigMap> = read::config_maps(context, wanted).await?;
    let maps = maps.iter().map(facts::daemon_sets::config_map).collect();
    Ok((sets, maps))
}
