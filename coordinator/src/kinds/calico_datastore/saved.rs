//! State of the objects before the first change, and their target state. `status.savedState` has both, so that a pass after a
//! crash and a rollback know both.

use std::collections::{BTreeMap, BTreeSet};

use api::migration::CalicoDatastore;
use calico_datastore::cluster::calico::{Calico, PerVersion};
use calico_datastore::cluster::manifest::{self, Manifest, Name};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::manifest::manifest;
use super::objects::{current, get, patch, spec_change};
use super::pods;
use crate::cache::Cache;
use crate::context::Context;
use crate::pass_error::PassError;
use crate::read_error::ReadError;
use crate::write::WriteError;

/// Key of `status.savedState`.
const KEY: &str = "Calico's objects";
/// The attempt, in errors.
const SAVING: &str = "saving the former state of";
/// Update strategy of a `DaemonSet` that restarts none of its pods.
pub fn on_delete() -> Value {
    json!({ "type": "OnDelete" })
}

/// The saved state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    /// The `DaemonSet` of calico-node.
    pub daemon_set: PerVersion<DaemonSetParts>,
    /// The Deployment of the controllers.
    pub controllers: Option<PerVersion<ControllersParts>>,
    /// The data of the `ConfigMap`.
    pub configuration: Option<PerVersion<BTreeMap<String, String>>>,
    /// UIDs of pods that had no network before, for any reason.
    pub without_network: Vec<String>,
    /// Nodes that had a pod of calico-node.
    pub nodes: BTreeSet<String>,
}

/// The fields of the `DaemonSet` that this kind writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DaemonSetParts {
    /// `spec.template`.
    pub template: Value,
    /// `spec.updateStrategy`.
    pub strategy: Value,
}

/// The fields of the Deployment that this kind writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControllersParts {
    /// `spec.template`.
    pub template: Value,
    /// `spec.replicas`.
    pub replicas: i64,
}

impl Saved {
    /// The image of calico-node.
    pub fn image(&self, calico: Calico) -> String {
        manifest::image(&self.daemon_set.of(calico).template)
    }
}

/// Reads the present state, and gets the target state from dry runs: the API server adds the defaults that a manifest omits.
pub async fn read(
    context: &Context,
    cache: &Cache,
    kind: &CalicoDatastore,
) -> Result<BTreeMap<String, String>, PassError> {
    let Ok(manifest) = manifest(&kind.manifest) else {
        return Err(ReadError::of(SAVING, "the manifest", gone()).into());
    };
    let daemon_set = existing(context, &manifest.daemon_set).await?;
    let wanted = wanted_daemon_set(&manifest, &daemon_set);
    let rolled = patch(
        context,
        &daemon_set,
        spec_change(
            &daemon_set,
            &[
                ("template", &wanted.template),
                ("updateStrategy", &wanted.strategy),
            ],
        ),
        true,
    )
    .await?;
    let controllers = match &manifest.controllers {
        None => None,
        Some(wanted) => Some(controllers_parts(context, wanted).await?),
    };
    let configuration = match &manifest.configuration {
        None => None,
        Some(wanted) => {
            let there = existing(context, wanted).await?;
            let before = manifest::texts(&there);
            // Keys of other writers stay.
            let mut after = before.clone();
            after.extend(manifest::texts(wanted));
            Some(PerVersion {
                v2: before,
                v3: after,
            })
        }
    };
    let name = Name::of(&manifest.daemon_set);
    let pods = cache.pods.index();
    let of_calico = pods::of_daemon_set(&pods, &format!("{}/{}", name.namespace, name.name));
    let saved = Saved {
        nodes: of_calico
            .iter()
            .filter(|pod| !pod.node.is_empty())
            .map(|pod| pod.node.clone())
            .collect(),
        daemon_set: PerVersion {
            v2: parts(&daemon_set),
            v3: parts(&rolled),
        },
        controllers,
        configuration,
        without_network: pods::without_network(cache)
            .into_iter()
            .map(|pod| pod.uid)
            .collect(),
    };
    // Texts and values always serialize.
    let text = serde_json::to_string(&saved).unwrap_or_default();
    Ok(BTreeMap::from([(KEY.to_owned(), text)]))
}

/// The fields of the Deployment now, and with the manifest applied.
async fn controllers_parts(
    context: &Context,
    wanted: &Value,
) -> Result<PerVersion<ControllersParts>, WriteError> {
    let there = existing(context, wanted).await?;
    let template = &wanted["spec"]["template"];
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(1);
    let made = patch(
        context,
        &there,
        spec_change(&there, &[("template", template)]),
        true,
    )
    .await?;
    Ok(PerVersion {
        v2: ControllersParts {
            template: there["spec"]["template"].clone(),
            replicas: there["spec"]["replicas"].as_i64().unwrap_or(1),
        },
        v3: ControllersParts {
            template: made["spec"]["template"].clone(),
            replicas,
        },
    })
}

/// The saved state; an error names the missing part.
pub fn parse(before: &BTreeMap<String, String>) -> Result<Saved, String> {
    let gone = || format!("status.savedState[\"{KEY}\"]");
    let text = before.get(KEY).ok_or_else(gone)?;
    serde_json::from_str(text).map_err(|_| gone())
}

async fn existing(context: &Context, wanted: &Value) -> Result<Value, ReadError> {
    let name = current(&Name::of(wanted));
    get(context, &name)
        .await?
        .ok_or_else(|| ReadError::of(SAVING, name.display(), gone()))
}

/// An error in place of the API server's `NotFound`.
fn gone() -> kube::Error {
    kube::Error::Service("not found".into())
}

/// The fields of the `DaemonSet` in the manifest. A manifest without an update strategy keeps the present one.
pub fn wanted_daemon_set(manifest: &Manifest, there: &Value) -> DaemonSetParts {
    let spec = &manifest.daemon_set["spec"];
    let strategy = match &spec["updateStrategy"] {
        Value::Null => there["spec"]["updateStrategy"].clone(),
        said => said.clone(),
    };
    DaemonSetParts {
        template: spec["template"].clone(),
        strategy,
    }
}

/// The present fields of the `DaemonSet`.
pub fn parts(daemon_set: &Value) -> DaemonSetParts {
    DaemonSetParts {
        template: daemon_set["spec"]["template"].clone(),
        strategy: daemon_set["spec"]["updateStrategy"].clone(),
    }
}
