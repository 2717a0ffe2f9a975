//! Objects that the conversion leaves to calico-kube-controllers in this cluster, and whether the controllers of v3 have written
//! them.

use api::migration::CalicoDatastoreStatus;
use calico_datastore::cluster::calico::Calico;
use calico_datastore::cluster::view::{ControllersView, ControllersWork, StoresView};
use calico_datastore::controller_objects::{ControllerObjects, PolicyName};
use calico_datastore::run::record::Phase;
use calico_datastore::sources::{Peer, PolicyShape, RuleShape, Source, warnings};
use datastore::stores::Stores;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer};
use kube::ResourceExt;
use runtime::error::chain;

use super::ReadCache;
use super::pass::Pass;
use crate::context::Context;
use crate::facts::pods::selector;
use crate::memory::Memory;
use crate::read;
use crate::read_error::ReadError;

/// Namespaces and policies of the cluster from which the controllers write objects, of the kinds that v2 has.
pub(super) async fn sources(context: &Context, left: &ControllerObjects) -> Result<Vec<Source>, ReadError> {
    let (namespaces, policies) = tokio::try_join!(
        read::each(context, "Namespaces", |namespace: Namespace| {
            let source = Source::of_namespace(
                namespace.name_any(),
                namespace.uid().unwrap_or_default(),
                namespace.labels(),
            );
            left.contains_kind(&source.origin).then_some(source)
        }),
        read::each(context, "NetworkPolicies", |policy: NetworkPolicy| {
            let name = PolicyName {
                namespace: policy.namespace().unwrap_or_default(),
                name: policy.name_any(),
            };
            let source = Source::of_policy(name, policy.uid().unwrap_or_default(), &shape(policy));
            left.contains_kind(&source.origin).then_some(source)
        }),
    )?;
    Ok([namespaces, policies].concat())
}

/// The fields that decide whether v3 accepts the policy made from this one.
fn shape(policy: NetworkPolicy) -> PolicyShape {
    let spec = policy.spec.unwrap_or_default();
    let rule = |peers: Option<Vec<NetworkPolicyPeer>>, ports: Option<usize>| RuleShape {
        peers: peers.iter().flatten().map(peer).collect(),
        ports: ports.unwrap_or_default(),
    };
    let ingress = spec.ingress.into_iter().flatten();
    let ingress = ingress.map(|found| rule(found.from, found.ports.map(|ports| ports.len())));
    let egress = spec.egress.into_iter().flatten();
    let egress = egress.map(|found| rule(found.to, found.ports.map(|ports| ports.len())));
    PolicyShape {
        selector: spec.pod_selector.as_ref().map(selector).unwrap_or_default(),
        rules: ingress.chain(egress).collect(),
    }
}

fn peer(found: &NetworkPolicyPeer) -> Peer {
    let selectors = [&found.pod_selector, &found.namespace_selector]
        .into_iter()
        .flatten();
    let networks = found.ip_block.iter().flat_map(|block| {
        let excepted = block.except.iter().flatten();
        std::iter::once(&block.cidr).chain(excepted).cloned()
    });
    Peer {
        selectors: selectors.map(selector).collect(),
        networks: networks.collect(),
    }
}

impl Pass<'_> {
    /// Whether the controllers of v3 have written their objects. Read only while the controllers run and v3 is closed.
    pub(super) async fn controllers_progress(
        &self,
        memory: &mut Memory,
        known: &CalicoDatastoreStatus,
        stores: &Result<StoresView, String>,
        controllers: Option<&ControllersView>,
    ) -> ControllersWork {
        let is_verified = matches!(stores, Ok(stores) if stores.phase == Some(Phase::Verified));
        let is_theirs = controllers.is_none_or(|controllers| controllers.template.is(Calico::V3));
        if !is_verified || !is_theirs {
            return ControllersWork::Unknown("the controllers do not run yet".to_owned());
        }
        match self.missing(memory, known).await {
            Ok(left) if left.is_empty() => ControllersWork::Complete,
            Ok(left) => ControllersWork::Missing(left),
            Err(why) => ControllersWork::Unknown(why),
        }
    }

    async fn missing(
        &self,
        memory: &mut Memory,
        known: &CalicoDatastoreStatus,
    ) -> Result<ControllerObjects, String> {
        let left = self.ask(memory, known, Stores::remaining).await?;
        // Without such objects the cluster is not read.
        if left.is_empty() {
            return Ok(left);
        }
        // The cluster is read first: objects that the controllers write meanwhile count.
        let sources = sources(self.context, &left)
            .await
            .map_err(|error| chain(&error))?;
        let system = [self.context.namespace.as_str()];
        let migration = self.migration.name_any();
        memory.warnings.of_kind(&migration, warnings(&sources, &system));
        let reads = memory.kinds.of::<ReadCache>();
        reads.awaited.begin(known.record.as_deref());
        let awaited = reads.awaited.remaining_of(&sources, &system);
        let made = ControllerObjects::of_sources(awaited.iter().copied());
        let missing = self
            .ask(memory, known, async |stores| stores.missing(made).await)
            .await?;
        memory
            .kinds
            .of::<ReadCache>()
            .awaited
            .remember(&awaited, &missing);
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use calico_datastore::sources::{Flaw, Origin};
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::FakeApi;

    fn put_namespace(api: &FakeApi, name: &str, labels: &Value) {
        api.put(
            &format!("/api/v1/namespaces/{name}"),
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } }),
        );
    }

    fn put_policy(api: &FakeApi, name: &str, spec: &Value) {
        api.put(
            &format!("/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/{name}"),
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": name, "namespace": "shop", "uid": name }, "spec": spec,
            }),
        );
    }

    fn of_both_kinds() -> ControllerObjects {
        ControllerObjects {
            profiles: ["kns.default".to_owned()].into(),
            policies: [PolicyName {
                namespace: "default".to_owned(),
                name: "deny".to_owned(),
            }]
            .into(),
        }
    }

    /// Every field from which a policy of v3 is made.
    #[tokio::test]
    async fn sources_that_v3_refuses_have_a_flaw() {
        let api = FakeApi::default();
        put_namespace(&api, "shop", &json!({ ("a".repeat(59)): "b" }));
        put_namespace(&api, "bank", &json!({ "team": "b" }));
        let long = "a".repeat(242);
        put_policy(&api, &long, &json!({}));
        let odd = json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["it's"] }] });
        put_policy(&api, "odd-pods", &json!({ "podSelector": odd }));
        put_policy(
            &api,
            "odd-peer",
            &json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {}, "namespaceSelector": odd }] }] }),
        );
        let blocks: Vec<Value> = (0..200)
            .map(|number| json!({ "ipBlock": { "cidr": format!("192.0.2.{number}/32") } }))
            .collect();
        let ports: Vec<Value> = (1..200)
            .map(|port| json!({ "port": port, "protocol": "TCP" }))
            .collect();
        put_policy(
            &api,
            "huge",
            &json!({ "podSelector": {}, "egress": [{ "to": blocks, "ports": ports }] }),
        );
        put_policy(
            &api,
            "plain",
            &json!({ "podSelector": {}, "egress": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.0/24", "except": ["192.0.2.1/32"] } }] }, {}] }),
        );
        let found = sources(&api.context(), &of_both_kinds()).await.unwrap();
        let flaw_of = |name: &str| {
            let source = found.iter().find(|source| source.origin.name() == name);
            source
                .unwrap_or_else(|| panic!("no {name}: {found:?}"))
                .flaw
                .clone()
        };
        assert_eq!(flaw_of("shop"), Some(Flaw::Labels("a".repeat(59))));
        assert_eq!(flaw_of("bank"), None);
        assert_eq!(flaw_of(&format!("shop/{long}")), Some(Flaw::Name(242)));
        for name in ["shop/odd-pods", "shop/odd-peer"] {
            assert!(matches!(flaw_of(name), Some(Flaw::Selector(_))), "{name}");
        }
        assert!(matches!(flaw_of("shop/huge"), Some(Flaw::Size(_))));
        assert_eq!(flaw_of("shop/plain"), None);
        let plain = found.iter().find(|source| source.origin.name() == "shop/plain");
        assert_eq!(plain.unwrap().uid, "plain");
    }

    #[tokio::test]
    async fn without_policies_in_v2_only_namespaces_are_sources() {
        let api = FakeApi::default();
        put_namespace(&api, "shop", &json!({}));
        put_policy(&api, "plain", &json!({}));
        let without_policies = ControllerObjects {
            policies: [].into(),
            ..of_both_kinds()
        };
        let found = sources(&api.context(), &without_policies).await.unwrap();
        let origins: Vec<Origin> = found.into_iter().map(|source| source.origin).collect();
        assert_eq!(origins, [Origin::Namespace("shop".to_owned())]);
    }
}
