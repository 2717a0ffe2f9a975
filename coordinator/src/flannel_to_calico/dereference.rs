//! Reads everything that the checks and the plan need. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::node_migration::NodeMigrationStatus;
use api::{NodeMigration, names};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::Api;
use kube::api::{ListParams, PostParams};
use plan::flannel_to_calico::checks::PERMISSIONS;
use plan::flannel_to_calico::cluster::ClusterFacts;
use plan::flannel_to_calico::objects;

use super::calico;
use crate::cache::Cache;
use crate::context::Context;
use crate::facts;
use crate::write::WriteError;

/// Reads the cluster.
pub async fn dereference(
    context: &Context,
    cache: &Cache,
    node_migrations: &[Arc<NodeMigration>],
) -> Result<ClusterFacts, WriteError> {
    let client = &context.client;
    let daemon_sets = cache.daemon_sets.state();
    let wanted = facts::config_maps_to_read(&daemon_sets);
    let (config_maps, webhooks, services, calico_resources, ip_pools, ipam_blocks, permissions) = tokio::try_join!(
        config_maps(context, wanted),
        webhooks(context),
        list::<Service>(context, "Services"),
        calico_resources(context),
        calico::IP_POOL.list(client),
        calico::IPAM_BLOCK.list(client),
        permissions(context),
    )?;
    let (validating_webhooks, mutating_webhooks) = webhooks;
    let reports = reports(context, cache, node_migrations);
    Ok(facts::cluster(&facts::Objects {
        nodes: cache.nodes.state(),
        pods: cache.pods.state(),
        daemon_sets,
        budgets: cache.budgets.state(),
        config_maps,
        validating_webhooks,
        mutating_webhooks,
        services,
        calico_resources,
        ip_pools,
        ipam_blocks,
        permissions,
        hosts: said_by_agents(&reports, |status| status.facts.clone()),
        host_checks: said_by_agents(&reports, |status| Some(status.checks.clone())),
    }))
}

/// `NodeMigration`s whose agent is Ready: what an agent said before it died is no fact any more.
fn reports<'objects>(
    context: &Context,
    cache: &Cache,
    node_migrations: &'objects [Arc<NodeMigration>],
) -> Vec<&'objects NodeMigration> {
    let alive: BTreeSet<String> = cache
        .pods
        .state()
        .iter()
        .filter_map(|pod| facts::pods::pod(pod).ok())
        .filter(|pod| {
            let ours = pod
                .controller
                .as_ref()
                .is_some_and(|(kind, name)| kind == "DaemonSet" && name == names::AGENT);
            ours && pod.namespace == context.namespace && pod.ready && pod.deleted_at.is_none()
        })
        .map(|pod| pod.node)
        .collect();
    node_migrations
        .iter()
        .map(AsRef::as_ref)
        .filter(|object| alive.contains(&object.spec.node_name))
        .collect()
}

/// One part of every report, by node; an agent that has not said it is not in it.
fn said_by_agents<T>(
    reports: &[&NodeMigration],
    part: impl Fn(&NodeMigrationStatus) -> Option<T>,
) -> BTreeMap<String, T> {
    reports
        .iter()
        .filter_map(|object| Some((object.spec.node_name.clone(), part(object.status.as_ref()?)?)))
        .collect()
}

/// The `ConfigMap`s of these namespaces and names, as far as they exist.
async fn config_maps(
    context: &Context,
    wanted: BTreeSet<(String, String)>,
) -> Result<Vec<ConfigMap>, WriteError> {
    let mut found = Vec::new();
    for (namespace, name) in wanted {
        let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
        let map = maps
            .get_opt(&name)
            .await
            .map_err(|source| WriteError::of("reading", format!("ConfigMap {namespace}/{name}"), source))?;
        found.extend(map);
    }
    Ok(found)
}

async fn list<K>(context: &Context, what: &str) -> Result<Vec<K>, WriteError>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(context.client.clone());
    let list = api
        .list(&ListParams::default())
        .await
        .map_err(|source| WriteError::of("listing", what, source))?;
    Ok(list.items)
}

async fn webhooks(
    context: &Context,
) -> Result<
    (
        Vec<ValidatingWebhookConfiguration>,
        Vec<MutatingWebhookConfiguration>,
    ),
    WriteError,
> {
    tokio::try_join!(
        list(context, "ValidatingWebhookConfigurations"),
        list(context, "MutatingWebhookConfigurations"),
    )
}

/// Plural names that Calico's group serves; none when the group is not there.
async fn calico_resources(context: &Context) -> Result<BTreeSet<String>, WriteError> {
    match context
        .client
        .list_api_group_resources(objects::API_VERSION)
        .await
    {
        Ok(list) => Ok(list.resources.into_iter().map(|resource| resource.name).collect()),
        // A group that nobody serves is answered with a plain text, without the reason NotFound.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        Err(source) => Err(WriteError::of("listing", objects::API_VERSION, source)),
    }
}

/// What the API server says that we may do.
async fn permissions(context: &Context) -> Result<BTreeMap<String, bool>, WriteError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(context.client.clone());
    let mut answers = BTreeMap::new();
    for permission in PERMISSIONS {
        let name = permission.key();
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
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
            .map_err(|source| WriteError::of("asking for permission to", &name, source))?;
        answers.insert(name, answer.status.is_some_and(|status| status.allowed));
    }
    Ok(answers)
}
