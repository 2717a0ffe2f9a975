//! What the coordinator reads off the API before it decides: the cluster as facts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::ranges::ServiceCidr;
use crate::cluster::{Malformed, Node};
use crate::kube_proxy::Configuration;

/// The cluster, as far as the checks and the plan need it.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Version of `networking.k8s.io` that has `ServiceCIDR`s, the newest that is served; `None` where none is.
    pub api_version: Option<String>,
    /// Every `ServiceCIDR`.
    pub ranges: Vec<ServiceCidr>,
    /// Every Service, as it is stored.
    pub services: Vec<Value>,
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Ranges that pods have their addresses of, each with the object that says it.
    pub pod_ranges: Vec<(String, IpNet)>,
    /// Every API server behind `default/kubernetes`, by its address.
    pub api_servers: BTreeMap<IpAddr, ApiServer>,
    /// kube-proxy's configuration, or what of it is not understood; `None` where there is none.
    pub kube_proxy: Option<Result<Configuration, String>>,
    /// Corefiles of the name servers, each with the object that has it.
    pub corefiles: Vec<(String, String)>,
    /// Whether the tool may do what it must do: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// Objects that were read and not understood: nobody knows what they say.
    pub malformed: Vec<Malformed>,
}

/// One API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// Its `--service-cluster-ip-range`, or why nobody knows it.
    pub ranges: Result<Vec<IpNet>, String>,
    /// Addresses that its certificate is for, or why nobody knows them.
    pub addresses: Result<Vec<IpAddr>, String>,
}
