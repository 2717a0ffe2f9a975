//! Calico's datastore, as calico-node is configured, and connections to it. Changes nothing.

use std::sync::Arc;

use api::migration::PodCidr;
use calico;
use calico::etcd_access::StoreProblem;
use datastore::access::Side;
use datastore::etcd3::Etcd3;
use datastore::stores::{CLUSTER_INFORMATION, ready_v3};
use engine::cluster::DaemonSet;
use engine::sourced::Sourced;
use pod_cidr::datastore::{Datastore, EtcdFacts, FIELD, Unclear, detect};

use crate::cache::Cache;
use crate::calico::store::Store;
use crate::context::Context;
use crate::etcd_access::{SettingsSource, access, of_spec, problem};
use crate::read_error::ReadError;
use crate::{facts, read};

const ASKER: SettingsSource = SettingsSource {
    field: FIELD,
    component: "deploy/calico-etcd",
};

/// The datastore in calico-node's settings. `begun_with`: namespace and name of the `DaemonSet` with which a migration has
/// started. `None` when there is no `DaemonSet` of calico-node, or more than one: another check reports that.
pub async fn ask(
    context: &Context,
    cache: &Cache,
    kind: &PodCidr,
    begun_with: Option<(&str, &str)>,
) -> Result<Option<Result<Sourced<Datastore>, Unclear>>, ReadError> {
    let sets = cache.daemon_sets.state();
    let known: Vec<DaemonSet> = sets
        .iter()
        .map(|set| facts::daemon_sets::daemon_set(set))
        .collect();
    let Some(set) = calico::saved_daemon_set(&known, begun_with) else {
        return Ok(None);
    };
    let place = known.iter().position(|one| one.key() == set.key());
    // An object of the API server always serializes.
    let object = place.map(|place| serde_json::to_value(&sets[place].spec).unwrap_or_default());
    let template = object.unwrap_or_default()["template"].take();
    let names = set.referred_config_maps().into_iter();
    let wanted = names
        .map(|name| (set.namespace.clone(), name.to_owned()))
        .collect();
    let maps = read::config_maps(context, wanted).await?;
    let maps = maps.iter().map(facts::daemon_sets::config_map);
    let maps = maps.map(|((_, name), texts)| (name, texts)).collect();
    let wish = kind.etcd.as_ref().map(of_spec);
    let object = format!("DaemonSet {}", set.key());
    Ok(Some(detect(
        wish.as_ref(),
        &object,
        &template,
        &set.namespace,
        &maps,
    )))
}

/// Opens a connection.
pub async fn connect(context: &Context, to: &Datastore) -> Result<Store, StoreProblem> {
    let Some(etcd) = &to.etcd else {
        return Ok(Store::Kubernetes(context.client.clone()));
    };
    if !context.asks_other_servers {
        return Err(StoreProblem::of_no_server());
    }
    let access = access(context, ASKER, Side::V3, etcd).await?;
    let mut store = Etcd3::connect(&access).await.map_err(|error| problem(&error))?;
    store.be_impatient();
    Ok(Store::Etcd(Arc::new(store)))
}

/// The versions of etcd and of Calico in it, and Calico's readiness.
pub async fn facts(store: &Etcd3) -> Result<EtcdFacts, StoreProblem> {
    let read = async {
        let entry = store.get(CLUSTER_INFORMATION).await?;
        // An entry that is not JSON is not Calico's, and says nothing.
        let information = entry.and_then(|entry| entry.json().ok());
        Ok(EtcdFacts {
            version: store.version.clone(),
            ready: ready_v3(information.as_ref())?,
            calico: information
                .as_ref()
                .and_then(|value| value["spec"]["calicoVersion"].as_str())
                .map(str::to_owned),
        })
    };
    read.await.map_err(|error| problem(&error))
}
