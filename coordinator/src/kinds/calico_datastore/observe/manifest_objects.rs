//! Reads the cluster's objects that the manifest has, for the checks and the plan. Changes nothing: writes are dry runs.

use std::collections::{BTreeMap, BTreeSet};

use calico::NODE_CONTAINER;
use calico::etcd_access::ConfigMaps;
use calico_datastore::cluster::facts::{ClusterFacts, NodePod, Workload};
use calico_datastore::cluster::manifest::{self, CONTROLLERS, Manifest, Name};
use engine::cluster::{self, Malformed};
use engine::owner::Owner;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Node, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::objects::{current, get, patch, spec_change};
use super::super::{pods, saved};
use crate::cache::Cache;
use crate::context::Context;
use crate::failure::Failure as _;
use crate::pass_error::PassError;
use crate::read_error::ReadError;
use crate::write::WriteError;
use crate::{facts, node_migrations, read};

/// Parts of the image names of the controllers that write to etcd v2: calico-kube-controllers and its predecessor.
const CONTROLLER_IMAGES: [&str; 2] = ["calico/kube-controllers", "calico/kube-policy-controller"];
/// State of an object of the manifest.
const MISSING: &str = "not in the cluster";
/// A longer object in a refusal is omitted, in bytes.
const LONGEST: usize = 200;

/// Reads the cluster's objects that the manifest has.
pub async fn read_manifest_objects(
    context: &Context,
    cache: &Cache,
    manifest: &Manifest,
    cluster: &mut ClusterFacts,
) -> Result<(), PassError> {
    let name = current(&Name::of(&manifest.daemon_set));
    let key = format!("{}/{}", name.namespace, name.name);
    cluster.other_daemon_sets = other_daemon_sets(context, &name).await?;
    cluster.other_controllers = other_controllers(context, &name.namespace).await?;
    cluster.without_image = without_images(context, cache, &manifest.images()).await?;
    let Some(there) = get(context, &name).await? else {
        return Ok(());
    };
    match parse_daemon_set(&there) {
        Ok(found) => cluster.daemon_set = Some(found),
        Err(malformed) => cluster.malformed.push(malformed),
    }
    let pods = cache.pods.index();
    cluster.pods = pods::of_daemon_set(&pods, &key)
        .into_iter()
        .map(|pod| NodePod {
            name: pod.name.clone(),
            node: pod.node.clone(),
            image: pods::image(&pods, pod),
            ready: pod.ready,
        })
        .collect();
    let wanted = saved::wanted_daemon_set(manifest, &there);
    let change = spec_change(
        &there,
        &[
            ("template", &wanted.template),
            ("updateStrategy", &wanted.strategy),
        ],
    );
    let made = try_patch(context, &there, change.clone(), cluster).await?;
    let again = try_patch(context, &there, change, cluster).await?;
    if made.map(|made| made["spec"].clone()) != again.map(|made| made["spec"].clone()) {
        let why =
            "an admission webhook changes it in another way each time, so that its state cannot be verified";
        cluster.refused.push((name.display(), why.to_owned()));
    }
    let controllers = Name {
        kind: "Deployment".to_owned(),
        name: CONTROLLERS.to_owned(),
        ..name.clone()
    };
    if let Some(there) = get(context, &controllers).await? {
        match parse_deployment(&there) {
            Ok(found) => cluster.controllers = Some(found),
            Err(malformed) => cluster.malformed.push(malformed),
        }
        if let Some(wanted) = &manifest.controllers {
            let change = spec_change(&there, &[("template", &wanted["spec"]["template"])]);
            try_patch(context, &there, change, cluster).await?;
        }
    }
    cluster.config_maps = config_maps(context, &name.namespace, cluster.daemon_set.as_ref()).await?;
    if let Some(wanted) = &manifest.configuration {
        let name = Name::of(wanted);
        match get(context, &current(&name)).await? {
            Some(there) => {
                let change = json!({ "data": manifest::texts(wanted) });
                try_patch(context, &there, change, cluster).await?;
            }
            None => cluster.differing.push((name.display(), MISSING.to_owned())),
        }
    }
    for wanted in &manifest.others {
        let name = Name::of(wanted);
        match get(context, &name).await {
            Ok(None) => cluster.differing.push((name.display(), MISSING.to_owned())),
            Ok(Some(there)) => {
                let otherwise = manifest::difference(wanted, &there);
                cluster
                    .differing
                    .extend(otherwise.map(|what| (name.display(), what)));
            }
            // After a missing permission the other objects are read all the same.
            Err(error) if error.refusal().is_some() => cluster.unreadable.push(name.display()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Asks the API server by a dry run whether it accepts the change, and returns the result.
async fn try_patch(
    context: &Context,
    there: &Value,
    change: Value,
    cluster: &mut ClusterFacts,
) -> Result<Option<Value>, WriteError> {
    match patch(context, there, change, true).await {
        Ok(made) => Ok(Some(made)),
        // An object that changed meanwhile is tried again by the next read.
        Err(error) if error.is_conflict() => Ok(None),
        Err(error) => match error.refusal() {
            Some(why) => {
                cluster
                    .refused
                    .push((Name::of(there).display(), without_object(why)));
                Ok(None)
            }
            None => Err(error),
        },
    }
}

/// The refusal without the object: an API server that cannot read a patched object prints all of it before the reason.
fn without_object(why: &str) -> String {
    let (Some(start), Some(end)) = (why.find('{'), why.rfind('}')) else {
        return why.to_owned();
    };
    match (why.get(..start), why.get(end + 1..)) {
        (Some(before), Some(after)) if end > start + LONGEST => format!("{before}{{…}}{after}"),
        (_, _) => why.to_owned(),
    }
}

fn parse_daemon_set(there: &Value) -> Result<Workload, Malformed> {
    let object: DaemonSet = parse(there)?;
    Ok(Workload {
        object: facts::daemon_sets::daemon_set(&object),
        template: there["spec"]["template"].clone(),
        selector: there["spec"]["selector"].clone(),
    })
}

fn parse<T: serde::de::DeserializeOwned>(there: &Value) -> Result<T, Malformed> {
    serde_json::from_value(there.clone()).map_err(|error| Malformed {
        object: Name::of(there).display(),
        problem: error.to_string(),
    })
}

fn parse_deployment(there: &Value) -> Result<Workload, Malformed> {
    let object: Deployment = parse(there)?;
    let status = object.status.unwrap_or_default();
    Ok(Workload {
        object: cluster::DaemonSet {
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
            labels: object.metadata.labels.clone().unwrap_or_default(),
            annotations: object.metadata.annotations.clone().unwrap_or_default(),
            managers: facts::managers(&object.metadata),
            desired: object.spec.and_then(|spec| spec.replicas).unwrap_or(1),
            ready: status.ready_replicas.unwrap_or(0),
            ..cluster::DaemonSet::default()
        },
        template: there["spec"]["template"].clone(),
        selector: there["spec"]["selector"].clone(),
    })
}

/// `ConfigMap`s from which calico-node gets its environment.
async fn config_maps(
    context: &Context,
    namespace: &str,
    daemon_set: Option<&Workload>,
) -> Result<ConfigMaps, ReadError> {
    let names: BTreeSet<(String, String)> = daemon_set
        .iter()
        .flat_map(|found| found.object.referred_config_maps())
        .map(|name| (namespace.to_owned(), name.to_owned()))
        .collect();
    let maps = read::config_maps(context, names).await?;
    let texts = |map: &k8s_openapi::api::core::v1::ConfigMap| map.data.clone().unwrap_or_default();
    Ok(maps.iter().map(|map| (map.name_any(), texts(map))).collect())
}

/// Other running controllers of Calico v2, by their images: they would write to a store that is being converted.
async fn other_controllers(context: &Context, namespace: &str) -> Result<Vec<(String, Owner)>, ReadError> {
    let name = |object: &ObjectMeta| {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}/{}", part(&object.namespace), part(&object.name))
    };
    let owner = |object: &ObjectMeta| Owner::of(object.namespace.as_deref(), &[namespace]);
    let known = format!("{namespace}/{CONTROLLERS}");
    let deployment = |object: Deployment| {
        let (name, owner) = (name(&object.metadata), owner(&object.metadata));
        let spec = object.spec.unwrap_or_default();
        let runs = name != known && spec.replicas != Some(0) && runs_v2_controller(Some(spec.template));
        runs.then(|| (format!("Deployment {name}"), owner))
    };
    let replica_set = |object: ReplicaSet| {
        let is_its_own = object.owner_references().is_empty();
        let spec = object.spec.unwrap_or_default();
        let runs = is_its_own && spec.replicas != Some(0) && runs_v2_controller(spec.template);
        runs.then(|| {
            (
                format!("ReplicaSet {}", name(&object.metadata)),
                owner(&object.metadata),
            )
        })
    };
    let (deployments, replica_sets) = tokio::try_join!(
        read::each(context, "Deployments", deployment),
        read::each(context, "ReplicaSets", replica_set),
    )?;
    Ok([deployments, replica_sets].concat())
}

/// Whether a pod of this template runs a controller of Calico v2.
fn runs_v2_controller(template: Option<PodTemplateSpec>) -> bool {
    let spec = template.and_then(|template| template.spec);
    let containers = spec.into_iter().flat_map(|spec| spec.containers);
    let mut images = containers.filter_map(|container| container.image);
    images.any(|image| CONTROLLER_IMAGES.iter().any(|part| image.contains(part)))
}

/// Other `DaemonSet`s that run calico-node.
async fn other_daemon_sets(context: &Context, known: &Name) -> Result<Vec<String>, ReadError> {
    let runs_node = |object: DaemonSet| {
        let name = (object.namespace().unwrap_or_default(), object.name_any());
        let pod = object.spec?.template.spec?;
        let mut names = pod.containers.iter().map(|container| container.name.as_str());
        // A pod with this container name and a pod network is a tenant's.
        let runs = pod.host_network == Some(true) && names.any(|name| name == NODE_CONTAINER);
        let is_another = (&name.0, &name.1) != (&known.namespace, &known.name);
        (runs && is_another).then(|| format!("DaemonSet {}/{}", name.0, name.1))
    };
    read::each(context, "DaemonSets", runs_node).await
}

/// Images that at least one kubelet does not report, each with those Nodes.
async fn without_images(
    context: &Context,
    cache: &Cache,
    images: &BTreeSet<String>,
) -> Result<BTreeMap<String, Vec<String>>, ReadError> {
    // The kubelets' lists are long, and no other read needs them: of each Node only the missing images are kept.
    let linux = node_migrations::linux_nodes(cache);
    let lacking = |node: Node| {
        let name = Some(node.name_any()).filter(|name| linux.contains_key(name))?;
        let lacking: Vec<&String> = images.iter().filter(|image| !has_image(&node, image)).collect();
        (!lacking.is_empty()).then_some((name, lacking))
    };
    let mut without: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node, lacking) in read::each(context, "Nodes", lacking).await? {
        for image in lacking {
            without.entry(image.clone()).or_default().push(node.clone());
        }
    }
    Ok(without)
}

/// Whether the Node's kubelet reports this image.
fn has_image(node: &Node, image: &str) -> bool {
    let images = node.status.as_ref().and_then(|status| status.images.as_ref());
    let mut names = images
        .into_iter()
        .flatten()
        .filter_map(|image| image.names.as_ref())
        .flatten();
    names.any(|name| name == image || name.strip_suffix(image).is_some_and(|rest| rest.ends_with('/')))
}

#[cfg(test)]
mod tests;
