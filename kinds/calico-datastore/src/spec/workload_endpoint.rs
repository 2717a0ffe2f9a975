//! The spec of a workload endpoint.

use serde::Serialize;

use crate::endpoint_port::EndpointPort;

/// An endpoint in v3.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub orchestrator: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workload: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_networks: Vec<String>,
    #[serde(rename = "ipNATs", skip_serializing_if = "Vec::is_empty")]
    pub ip_nats: Vec<Translation>,
    #[serde(rename = "ipv4Gateway", skip_serializing_if = "String::is_empty")]
    pub ipv4_gateway: String,
    #[serde(rename = "ipv6Gateway", skip_serializing_if = "String::is_empty")]
    pub ipv6_gateway: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}

/// A NAT from an external address to an internal one.
#[derive(Debug, Serialize)]
pub struct Translation {
    #[serde(rename = "internalIP")]
    pub internal_ip: String,
    #[serde(rename = "externalIP")]
    pub external_ip: String,
}
