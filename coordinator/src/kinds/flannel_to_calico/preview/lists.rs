//! Reads the lists that the preview needs: network policies of every kind, and namespaces. Changes nothing.

use std::sync::Arc;

use engine::labels::Labels;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt};
use policy::{AdminPolicy, ObjectKind, Policy};
use serde_json::{Value, json};

use crate::calico;
use crate::failure::Failure as _;
use crate::lenient::Lenient;
use crate::lenient_requests;
use crate::read_error::ReadError;

/// The most policies that are kept, and their most bytes as JSON. In memory a policy is smaller.
const MOST: usize = 50_000;
const MOST_BYTES: usize = 64 << 20;

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Lists {
    /// Policies of Kubernetes.
    pub policies: Vec<Policy>,
    /// Policies of administrators, and Calico's own.
    pub admin_policies: Vec<AdminPolicy>,
    /// Namespaces with their labels.
    pub namespaces: Vec<(Arc<str>, Labels)>,
    /// `spec` of `FelixConfiguration` `default`; null without one.
    pub felix: Value,
    /// Lists that could not be read, each with its error.
    pub unread: Vec<String>,
    /// The number of policies that were left out.
    pub unjudged: usize,
}

/// Kinds of policies beside `NetworkPolicy`: version of the API, kind in it, plural name.
const OTHERS: [(ObjectKind, [&str; 4]); 5] = [
    (
        ObjectKind::AdminNetworkPolicy,
        [
            "policy.networking.k8s.io",
            "v1alpha1",
            "AdminNetworkPolicy",
            "adminnetworkpolicies",
        ],
    ),
    (
        ObjectKind::BaselineAdminNetworkPolicy,
        [
            "policy.networking.k8s.io",
            "v1alpha1",
            "BaselineAdminNetworkPolicy",
            "baselineadminnetworkpolicies",
        ],
    ),
    (
        ObjectKind::ClusterNetworkPolicy,
        [
            "policy.networking.k8s.io",
            "v1alpha2",
            "ClusterNetworkPolicy",
            "clusternetworkpolicies",
        ],
    ),
    (
        ObjectKind::CalicoNetworkPolicy,
        ["crd.projectcalico.org", "v1", "NetworkPolicy", "networkpolicies"],
    ),
    (
        ObjectKind::GlobalNetworkPolicy,
        [
            "crd.projectcalico.org",
            "v1",
            "GlobalNetworkPolicy",
            "globalnetworkpolicies",
        ],
    ),
];

/// Policies are kept up to a number and a size.
#[derive(Debug, Default)]
struct Room {
    kept: usize,
    bytes: usize,
    left_out: usize,
}

impl Room {
    /// Whether there is room for one more object.
    fn takes(&mut self, object: &impl serde::Serialize) -> bool {
        let bytes = serde_json::to_vec(object).map_or(usize::MAX, |json| json.len());
        let fits = self.kept < MOST && self.bytes.saturating_add(bytes) <= MOST_BYTES;
        if fits {
            self.kept += 1;
            self.bytes += bytes;
        } else {
            self.left_out += 1;
        }
        fits
    }
}

impl Lists {
    /// Reads all lists.
    pub async fn read(client: &Client) -> Self {
        let mut lists = Self::default();
        let mut room = Room::default();
        let read = policies(client, &mut room).await;
        lists.policies = lists.kept(read);
        for (kind, names) in OTHERS {
            let read = others(client, kind, names, &mut room).await;
            let read = lists.kept(read);
            lists.admin_policies.extend(read);
        }
        lists.unjudged = room.left_out;
        // Without a policy the rest is not needed.
        if !lists.is_empty() {
            let read = namespaces(client).await;
            lists.namespaces = lists.kept(read);
            let read = felix(client).await;
            lists.felix = lists.kept(read);
        }
        lists
    }

    /// Whether there is no policy.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.admin_policies.is_empty()
    }

    /// What was read, or nothing and the error among the lists that are not read.
    fn kept<T: Default>(&mut self, read: Result<T, ReadError>) -> T {
        read.unwrap_or_else(|error| {
            self.unread.push(error.message());
            T::default()
        })
    }
}

async fn policies(client: &Client, room: &mut Room) -> Result<Vec<Policy>, ReadError> {
    let api: Api<NetworkPolicy> = Api::all(client.clone());
    let choose = |read: Lenient<NetworkPolicy>| room.takes(&read.object.spec).then(|| policy(&read));
    let read = lenient_requests::lenient_pages(&api, ListParams::default(), choose).await;
    read.map_err(|source| ReadError::of("listing", "NetworkPolicies", source))
}

/// A policy with a field that cannot be read may mean anything for the pods of its namespace.
fn policy(read: &Lenient<NetworkPolicy>) -> Policy {
    let is_of_spec = |field: &str| field.is_empty() || field.starts_with("spec");
    if read.unreadable.iter().any(|field| is_of_spec(&field.field)) {
        let namespace = read.object.namespace().unwrap_or_default();
        return Policy::unreadable(&namespace, &read.object.name_any());
    }
    Policy::read(&read.object)
}

/// Policies of another kind; none where the kind is not served.
async fn others(
    client: &Client,
    kind: ObjectKind,
    [group, version, name, plural]: [&str; 4],
    room: &mut Room,
) -> Result<Vec<AdminPolicy>, ReadError> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, name), plural);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let choose = |object: DynamicObject| {
        let metadata = json!({ "name": object.metadata.name, "namespace": object.metadata.namespace });
        let mut value = object.data;
        value["metadata"] = metadata;
        let read = room.takes(&value).then(|| AdminPolicy::read(kind, &value));
        read.flatten()
    };
    match lenient_requests::pages(&api, ListParams::default(), choose).await {
        // An unknown resource is answered with plain text, without the reason NotFound.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        read => read.map_err(|source| ReadError::of("listing", format!("{plural}.{group}"), source)),
    }
}

async fn namespaces(client: &Client) -> Result<Vec<(Arc<str>, Labels)>, ReadError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let choose = |namespace: Namespace| {
        let labels = namespace.labels().iter();
        let labels = labels
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        Some((Arc::from(namespace.name_any()), labels))
    };
    let read = lenient_requests::pages(&api, ListParams::default(), choose).await;
    read.map_err(|source| ReadError::of("listing", "Namespaces", source))
}

/// `spec` of `FelixConfiguration` `default`; null without one.
async fn felix(client: &Client) -> Result<Value, ReadError> {
    let found = calico::FELIX_CONFIGURATION.get(client, "default").await?;
    Ok(found.map_or(Value::Null, |mut found| found.data["spec"].take()))
}
