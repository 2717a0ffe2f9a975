//! The spec of a host endpoint.

use serde::Serialize;

use crate::endpoint_port::EndpointPort;

/// An endpoint in v3.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
    #[serde(rename = "expectedIPs", skip_serializing_if = "Vec::is_empty")]
    pub expected_ips: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}
