//! A rule in v2.

use std::collections::BTreeMap;

use super::super::decode::{Decode, Fields};
use super::super::json::Json;
use super::super::mismatch::Mismatch;
use super::super::network::Network;
use super::super::protocol::{Port, Protocol};

/// Fields that the conversion ignores: only their types are checked.
const TEXTS: [&str; 8] = [
    "orig_src_selector",
    "orig_src_namespace_selector",
    "orig_dst_selector",
    "orig_dst_namespace_selector",
    "!orig_src_selector",
    "!orig_dst_selector",
    "orig_src_service_acct_selector",
    "orig_dst_service_acct_selector",
];
const LISTS: [&str; 2] = ["orig_src_service_acct_names", "orig_dst_service_acct_names"];

/// A rule.
#[derive(Debug, Default)]
pub struct Rule {
    pub action: String,
    pub ip_version: Option<i64>,
    pub protocol: Option<Protocol>,
    pub not_protocol: Option<Protocol>,
    pub icmp_type: Option<i64>,
    pub icmp_code: Option<i64>,
    pub not_icmp_type: Option<i64>,
    pub not_icmp_code: Option<i64>,
    pub source: Side,
    pub destination: Side,
    pub not_source: Side,
    pub not_destination: Side,
    pub log_prefix: String,
}

/// Conditions of a rule on one end of a connection.
#[derive(Debug, Default)]
pub struct Side {
    pub tag: String,
    pub net: Option<Network>,
    pub nets: Vec<Listed>,
    pub selector: String,
    pub ports: Vec<Port>,
}

/// A network in a list. Calico's own tool crashes at an empty one.
#[derive(Debug)]
pub struct Listed(pub Network);

impl Decode for Listed {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let network = Network::decode(json)?;
        if network.address.is_none() {
            return Err(Mismatch::new(json, "an address or a network"));
        }
        Ok(Self(network))
    }
}

impl Side {
    fn of(fields: &Fields<'_>, side: &str) -> Result<Self, Mismatch> {
        Ok(Self {
            tag: fields.get(&format!("{side}_tag"))?,
            net: fields.get(&format!("{side}_net"))?,
            nets: fields.get(&format!("{side}_nets"))?,
            selector: fields.get(&format!("{side}_selector"))?,
            ports: fields.get(&format!("{side}_ports"))?,
        })
    }
}

impl Decode for Rule {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        for name in TEXTS {
            fields.get::<String>(name)?;
        }
        for name in LISTS {
            fields.get::<Vec<String>>(name)?;
        }
        fields.get::<Http>("http")?;
        fields.get::<Metadata>("metadata")?;
        Ok(Self {
            action: fields.get("action")?,
            ip_version: fields.get("ip_version")?,
            protocol: fields.get("protocol")?,
            not_protocol: fields.get("!protocol")?,
            icmp_type: fields.get("icmp_type")?,
            icmp_code: fields.get("icmp_code")?,
            not_icmp_type: fields.get("!icmp_type")?,
            not_icmp_code: fields.get("!icmp_code")?,
            source: Side::of(&fields, "src")?,
            destination: Side::of(&fields, "dst")?,
            not_source: Side::of(&fields, "!src")?,
            not_destination: Side::of(&fields, "!dst")?,
            log_prefix: fields.get("log_prefix")?,
        })
    }
}

/// Only its types are checked.
#[derive(Default)]
struct Http;

impl Decode for Http {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        fields.get::<Vec<String>>("methods")?;
        fields.get::<Vec<HttpPath>>("paths")?;
        Ok(Self)
    }
}

/// Only its types are checked.
struct HttpPath;

impl Decode for HttpPath {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        fields.get::<String>("exact")?;
        fields.get::<String>("prefix")?;
        Ok(Self)
    }
}

/// Only its types are checked.
#[derive(Default)]
struct Metadata;

impl Decode for Metadata {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        fields.get::<BTreeMap<String, String>>("annotations")?;
        Ok(Self)
    }
}
