//! Places that contain addresses of Services, as far as the API shows them: objects come in, mentions go out.

use engine::owner::{KUBE_SYSTEM, Owner};
use ipnet::IpNet;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use service_cidr::facts::Mention;
use service_cidr::mentions::{addresses_in, few};

use crate::context::Context;
use crate::read;
use crate::read_error::ReadError;

/// `ConfigMap`s of `kube-system` that contain addresses of Services, with the fix for each.
const CONFIG_MAPS: [(&str, &str); 4] = [
    (
        "kubelet-config",
        "run `kubectl edit configmap kubelet-config -n kube-system`: set clusterDNS to the name servers' address of {new}; a \
         kubelet reads it when its node joins, or by `kubeadm upgrade node`",
    ),
    (
        "kubeadm-config",
        "run `kubectl edit configmap kubeadm-config -n kube-system`: set networking.serviceSubnet to {new}",
    ),
    (
        "node-local-dns",
        "run `kubectl edit configmap node-local-dns -n kube-system`: set the name servers' address to theirs of {new}; then \
         restart its DaemonSet, with the same address in its arguments",
    ),
    (
        "coredns",
        "run `kubectl edit configmap coredns -n kube-system`: replace the Service address that it forwards to by the one of \
         {new}",
    ),
];

/// Reads every known place that contains addresses of these ranges.
pub async fn read(context: &Context, ranges: &[IpNet]) -> Result<Vec<Mention>, ReadError> {
    let named = CONFIG_MAPS
        .iter()
        .map(|(name, _)| (KUBE_SYSTEM.to_owned(), (*name).to_owned()));
    let own = context.namespace.as_str();
    let of_deployment = |object: Deployment| {
        let spec = object.spec.as_ref()?.template.spec.as_ref()?;
        workload("Deployment", &object, spec, own, ranges)
    };
    let of_stateful_set = |object: StatefulSet| {
        let spec = object.spec.as_ref()?.template.spec.as_ref()?;
        workload("StatefulSet", &object, spec, own, ranges)
    };
    let of_policy = |object: NetworkPolicy| network_policy(&object, own, ranges);
    let of_daemon_set = |object: DaemonSet| {
        let spec = object.spec.as_ref()?.template.spec.as_ref()?;
        workload("DaemonSet", &object, spec, own, ranges)
    };
    let (maps, of_policies, of_deployments, of_stateful_sets, of_daemon_sets) = tokio::try_join!(
        read::config_maps(context, named.collect()),
        read::each(context, "NetworkPolicies", of_policy),
        read::each(context, "Deployments", of_deployment),
        read::each(context, "StatefulSets", of_stateful_set),
        read::each(context, "DaemonSets", of_daemon_set),
    )?;
    let mut mentions: Vec<Mention> = maps.iter().filter_map(|map| config_map(map, ranges)).collect();
    mentions.extend(of_policies);
    mentions.extend(
        of_deployments
            .into_iter()
            .chain(of_stateful_sets)
            .chain(of_daemon_sets),
    );
    Ok(mentions)
}

fn config_map(map: &ConfigMap, ranges: &[IpNet]) -> Option<Mention> {
    let name = map.name_any();
    let (_, fix) = CONFIG_MAPS.iter().find(|(known, _)| *known == name)?;
    let texts = map.data.iter().flatten().map(|(_, text)| text.as_str());
    mention(
        format!("ConfigMap kube-system/{name}"),
        Owner::Cluster,
        texts,
        fix,
        ranges,
    )
}

/// `own` is the namespace of replumb.
fn network_policy(policy: &NetworkPolicy, own: &str, ranges: &[IpNet]) -> Option<Mention> {
    // The whole spec may contain a range: `ipBlock` in either direction.
    let text = serde_json::to_string(policy.spec.as_ref()?).ok()?;
    let namespace = policy.namespace().unwrap_or_default();
    mention(
        format!("NetworkPolicy {namespace}/{}", policy.name_any()),
        Owner::of(Some(&namespace), &[own]),
        [text.as_str()].into_iter(),
        "replace it by the address or range of {new}",
        ranges,
    )
}

/// A pod template that contains addresses: in variables, arguments, or as name servers.
fn workload(
    kind: &str,
    object: &impl ResourceExt,
    spec: &PodSpec,
    own: &str,
    ranges: &[IpNet],
) -> Option<Mention> {
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let mut texts: Vec<&str> = Vec::new();
    for container in containers {
        let words = container.command.iter().chain(&container.args).flatten();
        texts.extend(words.map(String::as_str));
        let variables = container.env.iter().flatten();
        texts.extend(variables.filter_map(|variable| variable.value.as_deref()));
    }
    let dns = spec
        .dns_config
        .iter()
        .flat_map(|dns| dns.nameservers.iter().flatten());
    texts.extend(dns.map(String::as_str));
    let namespace = object.namespace().unwrap_or_default();
    mention(
        format!("{kind} {namespace}/{}: its pod template", object.name_any()),
        Owner::of(Some(&namespace), &[own]),
        texts.into_iter(),
        "replace it by the name of the Service, or by the address of {new}; its pods restart then",
        ranges,
    )
}

fn mention<'text>(
    object: String,
    owner: Owner,
    texts: impl Iterator<Item = &'text str>,
    fix: &str,
    ranges: &[IpNet],
) -> Option<Mention> {
    let (says, more) = few(texts.flat_map(addresses_in), ranges);
    (!says.is_empty()).then(|| Mention {
        object,
        owner,
        addresses: says,
        more,
        fix: fix.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    fn ranges() -> [IpNet; 1] {
        ["10.96.0.0/12".parse().unwrap()]
    }

    #[test]
    fn addresses_in_a_pod_template_are_found() {
        let spec: PodSpec = serde_json::from_value(json!({
            "containers": [{
                "name": "web", "args": ["--resolver=10.96.0.10:53"],
                "env": [{ "name": "no_proxy", "value": "localhost,10.96.0.0/12,.svc" }],
            }],
            "dnsConfig": { "nameservers": ["10.96.0.10"] },
        }))
        .unwrap();
        let web: Deployment =
            serde_json::from_value(json!({ "metadata": { "namespace": "shop", "name": "web" } })).unwrap();
        let found = workload("Deployment", &web, &spec, "replumb-system", &ranges()).unwrap();
        let says: Vec<String> = found.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(says, ["10.96.0.0/12", "10.96.0.10/32"]);
        assert_eq!(found.object, "Deployment shop/web: its pod template");
        assert_eq!(found.owner, Owner::Tenant("shop".to_owned()));
    }

    #[test]
    fn an_unknown_config_map_is_no_mention() {
        let map = |name: &str| -> ConfigMap {
            serde_json::from_value(
                json!({ "metadata": { "name": name }, "data": { "kubelet": "clusterDNS:\n- 10.96.0.10\n" } }),
            )
            .unwrap()
        };
        assert_eq!(
            config_map(&map("kubelet-config"), &ranges())
                .unwrap()
                .addresses
                .len(),
            1
        );
        assert_eq!(config_map(&map("shop"), &ranges()), None);
    }

    /// The store keeps no template of this size: a `DaemonSet` is read from the API server.
    #[tokio::test]
    async fn a_large_daemon_set_is_read_whole() {
        let api = FakeApi::default();
        api.put(
            "/apis/apps/v1/namespaces/shop/daemonsets/log",
            json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "namespace": "shop", "name": "log" },
                "spec": { "selector": {}, "template": { "spec": { "containers": [
                    { "name": "log", "args": ["x".repeat(1 << 20), "--to=10.96.0.10"] }] } } },
            }),
        );
        let found = read(&api.context(), &ranges()).await.unwrap();
        let [mention] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(mention.object, "DaemonSet shop/log: its pod template");
        assert_eq!(mention.addresses, ["10.96.0.10/32".parse().unwrap()]);
    }
}
