//! The spec of an IP pool.

use serde::Serialize;

/// A pool in v3.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub cidr: String,
    pub vxlan_mode: &'static str,
    pub ipip_mode: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nat_outgoing: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    pub block_size: u8,
    pub node_selector: &'static str,
}
