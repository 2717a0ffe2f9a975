//! Reads the ConfigMap and the reports of the agents. Changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::NodeMigration;
use example::api::Spec;
use example::checks::ClusterFacts;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};

use crate::context::Context;
use crate::read_error::ReadError;

/// The facts that the checks and the plan need.
pub(super) async fn cluster(
    context: &Context,
    spec: &Spec,
    node_migrations: &[Arc<NodeMigration>],
) -> Result<ClusterFacts, ReadError> {
    let object = config_map(context, &spec.config_map).await?;
    Ok(ClusterFacts {
        labelled: object.map(|object| object.labels().contains_key(example::LABEL)),
        kernels: kernels(node_migrations.iter().map(AsRef::as_ref)),
    })
}

/// The ConfigMap, if it exists.
pub(super) async fn config_map(context: &Context, name: &str) -> Result<Option<ConfigMap>, ReadError> {
    let objects: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let read = objects.get_opt(name).await;
    read.map_err(|error| {
        ReadError::of(
            "reading",
            format!("ConfigMap {}/{name}", context.namespace),
            error,
        )
    })
}

/// The kernel of each node, as its agent has reported it.
pub(super) fn kernels<'object>(
    objects: impl Iterator<Item = &'object NodeMigration>,
) -> BTreeMap<String, Option<String>> {
    objects
        .map(|object| {
            let report = object.status.as_ref().and_then(|status| status.example.as_ref());
            (
                object.spec.node_name.clone(),
                report.map(|report| report.kernel.clone()),
            )
        })
        .collect()
}
