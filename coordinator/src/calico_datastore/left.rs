//! What the conversion leaves to calico-kube-controllers, of what this cluster still has, and whether those of v3 have written it.

use std::collections::BTreeSet;

use api::migration::CalicoDatastoreStatus;
use datastore::stores::Stores;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use plan::calico_datastore::cluster::calico::Calico;
use plan::calico_datastore::cluster::view::{ControllersView, ControllersWork, StoresView};
use plan::calico_datastore::left::{self, Left, PolicyName};
use plan::calico_datastore::run::record::Phase;
use runtime::error::chain;

use super::drive::Pass;
use crate::context::Context;
use crate::memory::Memory;
use crate::read;
use crate::write::WriteError;

/// What the cluster has of what the controllers make something of.
pub(super) struct Sources {
    namespaces: BTreeSet<String>,
    policies: BTreeSet<PolicyName>,
    /// Labels of Namespaces that keep the controllers of v3 from writing their profiles.
    pub(super) too_long: Vec<(String, String)>,
}

impl Sources {
    /// Reads all of it.
    pub(super) async fn read(context: &Context) -> Result<Self, WriteError> {
        let (namespaces, policies) = tokio::try_join!(
            read::each(context, "Namespaces", |namespace: Namespace| {
                let keys = namespace.labels().keys().filter(|key| left::is_too_long(key));
                Some((namespace.name_any(), keys.cloned().collect::<Vec<_>>()))
            }),
            read::each(context, "NetworkPolicies", |policy: NetworkPolicy| {
                Some(PolicyName {
                    namespace: policy.namespace().unwrap_or_default(),
                    name: policy.name_any(),
                })
            }),
        )?;
        let too_long = namespaces.iter().flat_map(|(name, keys)| {
            let keys = keys.iter();
            keys.map(|key| (name.clone(), key.clone()))
        });
        Ok(Self {
            too_long: too_long.collect(),
            namespaces: namespaces.into_iter().map(|(name, _)| name).collect(),
            policies: policies.into_iter().collect(),
        })
    }

    /// What of it the controllers make in this cluster.
    pub(super) fn left(&self, left: Left) -> Left {
        left.in_cluster(&self.namespaces, &self.policies)
    }
}

impl Pass<'_> {
    /// Whether the controllers of v3 have written theirs. Looked at when they run, and v3 is not open: nobody asks otherwise.
    pub(super) async fn controllers_work(
        &self,
        memory: &mut Memory,
        known: &CalicoDatastoreStatus,
        stores: &Result<StoresView, String>,
        controllers: Option<&ControllersView>,
    ) -> ControllersWork {
        let is_verified = matches!(stores, Ok(stores) if stores.phase == Some(Phase::Verified));
        let is_theirs = controllers.is_none_or(|controllers| controllers.template.is(Calico::V3));
        if !is_verified || !is_theirs {
            return ControllersWork::Unknown("they do not run yet".to_owned());
        }
        match self.missing(memory, known).await {
            Ok(left) if left.is_empty() => ControllersWork::There,
            Ok(left) => ControllersWork::Missing(left),
            Err(why) => ControllersWork::Unknown(why),
        }
    }

    async fn missing(&self, memory: &mut Memory, known: &CalicoDatastoreStatus) -> Result<Left, String> {
        let left = self.ask(memory, known, Stores::left).await?;
        // What has come to the cluster by now first: what the controllers write meanwhile counts. Nothing is asked where nothing is left.
        let left = if left.is_empty() {
            left
        } else {
            let sources = Sources::read(self.context).await;
            sources.map_err(|error| chain(&error))?.left(left)
        };
        self.ask(memory, known, async |stores| stores.missing(left).await)
            .await
    }
}
