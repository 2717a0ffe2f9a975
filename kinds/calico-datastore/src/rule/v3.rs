//! A rule in v3. Empty fields are omitted, except for source and destination.

use serde::Serialize;

use super::super::protocol::{Port, Protocol};

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    pub action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmp: Option<Icmp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_protocol: Option<Protocol>,
    #[serde(rename = "notICMP", skip_serializing_if = "Option::is_none")]
    pub not_icmp: Option<Icmp>,
    pub source: Entity,
    pub destination: Entity,
}

/// Type and code of ICMP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Icmp {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
}

/// One end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entity {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nets: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_nets: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub not_selector: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ports: Vec<Port>,
}
