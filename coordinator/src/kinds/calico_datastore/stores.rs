//! Connections to both stores, from the settings and the Secrets.

use std::sync::Arc;

use calico::etcd_access::Etcd;
use calico::etcd_access::StoreProblem;
use calico_datastore::cluster::facts::{Converted, NotConverted, StoreFacts};
use calico_datastore::run::decide::ReadyV3;
use datastore::access::Side;
use datastore::error::StoreError;
use datastore::run::prepared::{NotConvertible, Prepared};
use datastore::run::status;
use datastore::stores::Stores;

use crate::clock;
use crate::context::Context;
use crate::etcd_access::{SettingsSource, access};

pub use crate::etcd_access::problem;

const ASKER: SettingsSource = SettingsSource {
    field: "spec.calicoDatastore",
    component: "deploy/calico-datastore",
};

/// Behaviour when a store does not answer for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The request waits for the store.
    Wait,
    /// The request fails at once, because the next pass reads again.
    FailFast,
}

/// Connects to both stores. An error names the store and has a hint.
pub async fn connect(
    context: &Context,
    v2: &Etcd,
    v3: &Etcd,
    patience: Patience,
) -> Result<Arc<Stores>, StoreProblem> {
    let v2 = access(context, ASKER, Side::V2, v2).await?;
    let v3 = access(context, ASKER, Side::V3, v3).await?;
    let stores = match patience {
        Patience::Wait => Stores::connect(&v2, &v3).await,
        Patience::FailFast => Stores::connect_for_observation(&v2, &v3).await,
    };
    Ok(Arc::new(stores.map_err(|error| problem(&error))?))
}

/// Prefix of nodes in etcd v3.
const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes/";

/// The facts of both stores that the checks need. Converts all data in memory, and writes nothing.
pub async fn facts(stores: &Stores) -> Result<StoreFacts, StoreError> {
    let (glance, ready_v2, information) = tokio::try_join!(
        status(stores, clock::now()),
        stores.ready_v2(),
        stores.cluster_information(),
    )?;
    let ready_v3 = datastore::stores::ready_v3(information.as_ref().map(|(_, value)| value))?;
    let tree = stores.v2.tree().await?;
    // The conversion of many thousand keys takes some seconds of a processor.
    let converted = tokio::task::spawn_blocking(move || Prepared::of(&tree)).await;
    let conversion = match converted {
        Ok(Ok(prepared)) => Ok(converted_of(&prepared)),
        Ok(Err(error)) => Err(not_converted(&error)),
        Err(error) => Err(NotConverted {
            message: format!("the conversion task failed: {error}"),
            hint: "check the coordinator's log".to_owned(),
            lines: Vec::new(),
        }),
    };
    let [etcd_v2, etcd_v3] = glance.etcd;
    Ok(StoreFacts {
        etcd_v2,
        etcd_v3,
        calico_version: glance.version_v2.unwrap_or_else(|| "unknown version".to_owned()),
        ready_v2,
        ready_v3: if glance.keys_v3 == 0 {
            ReadyV3::Missing
        } else {
            ready_v3
        },
        keys_v3: glance.keys_v3,
        phase: glance.record.map(|record| record.phase),
        lock_holder: glance.at_work,
        conversion,
    })
}

fn converted_of(prepared: &Prepared) -> Converted {
    let mut converted = Converted::default();
    if let Some(conversion) = &prepared.conversion {
        for object in &conversion.objects {
            *converted.keys.entry(object.kind.name().to_owned()).or_default() += 1;
        }
        converted.notes = conversion.notes.iter().map(ToString::to_string).collect();
        converted.renamed = conversion.renamed.len();
        converted.hosts = conversion
            .objects
            .iter()
            .filter_map(|object| object.key.strip_prefix(NODES))
            .map(str::to_owned)
            .collect();
        converted.remaining = prepared.remaining.clone();
    }
    converted
}

fn not_converted(error: &NotConvertible) -> NotConverted {
    let lines = match error {
        NotConvertible::Values(conversion) => {
            let errors = conversion.conversion_errors.iter().map(ToString::to_string);
            let refused = conversion.validation_errors.iter().map(ToString::to_string);
            let clashes = conversion.clashes.iter().map(ToString::to_string);
            errors.chain(refused).chain(clashes).collect()
        }
        NotConvertible::Empty | NotConvertible::Version(_) => Vec::new(),
    };
    NotConverted {
        message: error.to_string(),
        hint: error.hint().to_owned(),
        lines,
    }
}
