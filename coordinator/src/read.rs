//! Reads of objects without a watch, for checks. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::NodeMigration;
use api::node_migration::NodeMigrationStatus;
use calico::API_VERSION;
use engine::check::Permission;
use engine::check::policies::{POLICIES, PolicyState};
use engine::cluster::Webhook;
use engine::pods::Pods;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::api::{ListParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, ResourceExt};

use crate::cache::Cache;
use crate::context::Context;
use crate::facts;
use crate::facts::workloads::NAME_SERVERS;
use crate::lenient_requests::{self, pages};
use crate::read_error::ReadError;
use crate::snapshot::has_agent;

/// Calico's native custom resources, and the API of its own API server.
const NATIVE_VERSION: &str = "projectcalico.org/v3";
/// Number of concurrent reads by name.
const AT_ONCE: usize = 16;

/// `NodeMigration`s whose agent is Ready: reports of an agent that is gone are not facts.
pub fn reports<'objects>(
    context: &Context,
    cache: &Cache,
    node_migrations: &'objects [Arc<NodeMigration>],
) -> Vec<&'objects NodeMigration> {
    let pods = cache.pods.index();
    node_migrations
        .iter()
        .map(AsRef::as_ref)
        .filter(|object| has_agent(pods.on(&object.spec.node_name), &context.namespace))
        .collect()
}

/// One part of every report, by node; without nodes whose agent has not reported it.
pub fn from_reports<T>(
    reports: &[&NodeMigration],
    part: impl Fn(&NodeMigrationStatus) -> Option<T>,
) -> BTreeMap<String, T> {
    reports
        .iter()
        .filter_map(|object| Some((object.spec.node_name.clone(), part(object.status.as_ref()?)?)))
        .collect()
}

/// The existing `ConfigMap`s of these namespaces and names.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn config_maps(
    context: &Context,
    wanted: BTreeSet<(String, String)>,
) -> Result<Vec<ConfigMap>, ReadError> {
    by_name(context, wanted).await
}

/// The existing objects of a kind with these namespaces and names, in this order.
async fn by_name<K>(
    context: &Context,
    names: impl IntoIterator<Item = (String, String)>,
) -> Result<Vec<K>, ReadError>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let read = stream::iter(names).map(|(namespace, name)| async move {
        let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
        let found = lenient_requests::get_opt(&api, &name).await;
        let object = || format!("{} {namespace}/{name}", K::kind(&()));
        found.map_err(|source| ReadError::of("reading", object(), source))
    });
    let found: Vec<Option<K>> = read.buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// The Node of this name, if it exists.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn node(client: &Client, name: &str) -> Result<Option<Node>, ReadError> {
    lenient_requests::get_opt(&Api::<Node>::all(client.clone()), name)
        .await
        .map_err(|source| ReadError::of("reading", format!("Node {name}"), source))
}

/// Every object of a kind; `what` names the kind in errors. For kinds of which most fields are used.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn list<K>(context: &Context, what: &str) -> Result<Vec<K>, ReadError>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    each(context, what, Some).await
}

/// Collects what `choose` returns for each object of a kind; `what` names the kind in errors. One page of objects is in memory at
/// a time.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn each<K, T>(
    context: &Context,
    what: &str,
    choose: impl FnMut(K) -> Option<T>,
) -> Result<Vec<T>, ReadError>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(context.client.clone());
    pages(&api, ListParams::default(), choose)
        .await
        .map_err(|source| ReadError::of("listing", what, source))
}

/// The Services of the name servers.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn name_services(context: &Context) -> Result<Vec<Service>, ReadError> {
    let (label, value) = NAME_SERVERS;
    let api: Api<Service> = Api::namespaced(context.client.clone(), "kube-system");
    let labelled = ListParams::default().labels(&format!("{label}={value}"));
    let list = pages(&api, labelled, Some).await;
    list.map_err(|source| ReadError::of("listing", "Services of the name servers", source))
}

/// Every object of a kind that some clusters do not serve: empty there.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn list_if_served<K>(context: &Context, what: &str) -> Result<Vec<K>, ReadError>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(context.client.clone());
    match pages(&api, ListParams::default(), Some).await {
        // An unknown resource is answered with plain text, without the reason NotFound.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        list => list.map_err(|source| ReadError::of("listing", what, source)),
    }
}

/// Every webhook configuration, and the Services behind those that fail closed.
#[derive(Clone, Debug, Default)]
pub struct Webhooks {
    validating: Vec<ValidatingWebhookConfiguration>,
    mutating: Vec<MutatingWebhookConfiguration>,
    services: Vec<Service>,
}

impl Webhooks {
    /// Webhooks that fail closed, with the pods behind them. `pods` are all pods of the cluster.
    pub fn behind(&self, pods: &Pods) -> Vec<Webhook> {
        facts::webhooks::webhooks(&self.validating, &self.mutating, &self.services, pods)
    }
}

/// Every webhook configuration, and the Services behind those that fail closed. A cluster may have thousands of Services, so
/// these are read by name.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn webhooks(context: &Context) -> Result<Webhooks, ReadError> {
    let (validating, mutating) = tokio::try_join!(
        list(context, "ValidatingWebhookConfigurations"),
        list(context, "MutatingWebhookConfigurations"),
    )?;
    let services = by_name(context, facts::webhooks::services(&validating, &mutating)).await?;
    Ok(Webhooks {
        validating,
        mutating,
        services,
    })
}

/// Plural names that Calico's group serves; empty without the group.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn calico_resources(context: &Context) -> Result<BTreeSet<String>, ReadError> {
    resources(context, API_VERSION).await
}

/// Whether Calico's native custom resources are served, or those of its own API server.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn serves_native_resources(context: &Context) -> Result<bool, ReadError> {
    match resources(context, NATIVE_VERSION).await {
        Ok(resources) => Ok(!resources.is_empty()),
        // An API server of its own that does not answer at the moment serves the group.
        Err(ReadError {
            source: kube::Error::Api(status),
            ..
        }) if status.code == 503 => Ok(true),
        Err(error) => Err(error),
    }
}

async fn resources(context: &Context, api_version: &'static str) -> Result<BTreeSet<String>, ReadError> {
    match context.client.list_api_group_resources(api_version).await {
        Ok(list) => Ok(list.resources.into_iter().map(|resource| resource.name).collect()),
        // An unknown group is answered with plain text, without the reason NotFound.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        Err(source) => Err(ReadError::of("listing", api_version, source)),
    }
}

/// The state of the admission policies that restrict coordinator and agents.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn policies(context: &Context) -> Result<BTreeMap<String, PolicyState>, ReadError> {
    let (policies, bindings) = tokio::try_join!(
        list_if_served::<ValidatingAdmissionPolicy>(context, "ValidatingAdmissionPolicies"),
        list_if_served::<ValidatingAdmissionPolicyBinding>(context, "ValidatingAdmissionPolicyBindings"),
    )?;
    let existing: BTreeSet<String> = policies.iter().map(ResourceExt::name_any).collect();
    let denied: BTreeSet<&str> = bindings
        .iter()
        .filter_map(|binding| binding.spec.as_ref())
        .filter(|spec| {
            spec.validation_actions
                .iter()
                .flatten()
                .any(|action| action == "Deny")
        })
        .filter_map(|spec| spec.policy_name.as_deref())
        .collect();
    let state = |name: &str| match (existing.contains(name), denied.contains(name)) {
        (false, _) => PolicyState::Absent,
        (true, false) => PolicyState::Unbound,
        (true, true) => PolicyState::Bound,
    };
    Ok(POLICIES.map(|name| (name.to_owned(), state(name))).into())
}

/// Permissions of the coordinator in every namespace, as the API server reports them.
///
/// # Errors
///
/// The API server refuses a review or does not answer.
pub async fn permissions(
    context: &Context,
    wanted: &[Permission],
) -> Result<BTreeMap<String, bool>, ReadError> {
    permissions_in(context, wanted, "").await
}

/// Permissions of the coordinator in this namespace.
///
/// # Errors
///
/// The API server refuses a review or does not answer.
pub async fn permissions_in(
    context: &Context,
    wanted: &[Permission],
    namespace: &str,
) -> Result<BTreeMap<String, bool>, ReadError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(context.client.clone());
    let mut answers = BTreeMap::new();
    for permission in wanted {
        let name = permission.key();
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(namespace.to_owned()).filter(|name| !name.is_empty()),
                    verb: Some(permission.verb.to_owned()),
                    group: Some(permission.group.to_owned()),
                    resource: Some(permission.resource.to_owned()),
                    subresource: Some(permission.subresource.to_owned()).filter(|text| !text.is_empty()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = reviews
            .create(&PostParams::default(), &review)
            .await
            .map_err(|source| ReadError::of("checking permission to", &name, source))?;
        answers.insert(name, answer.status.is_some_and(|status| status.allowed));
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;
    use crate::lenient_requests::PAGE;

    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";

    async fn names(api: &FakeApi) -> Vec<String> {
        each(&api.context(), "Deployments", |object: Deployment| {
            Some(object.name_any())
        })
        .await
        .unwrap()
    }

    #[tokio::test]
    async fn a_long_list_is_paged_and_restarted_after_its_token_expired() {
        let api = FakeApi::default();
        let all: Vec<String> = (0..=2 * PAGE).map(|number| format!("web-{number:03}")).collect();
        for name in &all {
            let metadata = json!({ "namespace": "shop", "name": name });
            api.put(
                &format!("{DEPLOYMENTS}/{name}"),
                json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata }),
            );
        }
        assert_eq!(names(&api).await, all);
        assert_eq!(api.take_reads().len(), 3);
        api.expire_pages(2);
        assert_eq!(names(&api).await, all);
        let read = api.take_reads();
        assert_eq!(
            read.len(),
            7,
            "two attempts of one page and an expired one, then three pages"
        );
        assert!(read.iter().all(|read| read.contains("limit=")), "{read:?}");
        api.expire_pages(usize::MAX);
        let refused = each(&api.context(), "Deployments", |object: Deployment| {
            Some(object.name_any())
        })
        .await;
        assert!(format!("{:?}", refused.unwrap_err()).contains("Expired"));
        assert_eq!(api.take_reads().len(), 8);
    }

    /// 40 objects of 1 MiB each in a list of small ones: no page has more than a few of them.
    #[tokio::test]
    async fn large_objects_are_read_in_small_pages() {
        let api = FakeApi::default();
        let all: Vec<String> = (0..60).map(|number| format!("web-{number:03}")).collect();
        for (number, name) in all.iter().enumerate() {
            let size = if (10..50).contains(&number) { 1 << 20 } else { 1 };
            let metadata =
                json!({ "namespace": "shop", "name": name, "annotations": { "large": "x".repeat(size) } });
            api.put(&format!("{DEPLOYMENTS}/{name}"), json!({ "metadata": metadata }));
        }
        assert_eq!(names(&api).await, all);
        let read = api.take_reads();
        assert!(read.iter().any(|read| read.contains("limit=3&")), "{read:?}");
        assert!(read.len() < 40, "{read:?}");
    }

    #[tokio::test]
    async fn objects_with_unreadable_times_are_listed() {
        let api = FakeApi::default();
        for (name, time) in [
            ("early", "-0001-12-31T23:00:00Z"),
            ("late", "10000-01-01T00:59:59Z"),
            ("web", "2026-01-01T00:00:00Z"),
        ] {
            let metadata = json!({ "namespace": "shop", "name": name, "managedFields": [{ "time": time }] });
            let template = json!({ "metadata": { "creationTimestamp": time, "deletionTimestamp": time } });
            api.put(
                &format!("{DEPLOYMENTS}/{name}"),
                json!({ "metadata": metadata, "spec": { "replicas": 2, "template": template } }),
            );
        }
        assert_eq!(names(&api).await, ["early", "late", "web"]);
    }
}
