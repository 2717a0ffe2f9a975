//! Parsers of flannel's texts: `subnet.env`, `net-conf.json`, node annotations.

mod annotations;
mod document;
mod error;
mod value;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use annotations::annotation_key;
pub use error::ParseError;

use document::Document;
use value::{LARGEST_VNI, NEEDED_MTU, from_text, mtu};

/// Default UDP port of VXLAN in the kernel.
pub const DEFAULT_PORT: u16 = 8472;
/// Default VXLAN network identifier of flannel.
pub const DEFAULT_VNI: u32 = 1;

/// `SubnetEnvironment` is the content of `/run/flannel/subnet.env`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetEnvironment {
    /// `network` is `FLANNEL_NETWORK`: the IPv4 network of flannel, in CIDR notation.
    #[schemars(with = "String")]
    pub network: Ipv4Net,
    /// `subnet` is `FLANNEL_SUBNET`: the IPv4 address of the bridge with the prefix length of the subnet of the node.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// `mtu` is `FLANNEL_MTU`, in bytes.
    pub mtu: u32,
    /// `ipMasquerade` is `FLANNEL_IPMASQ`.
    pub ip_masquerade: bool,
    /// `ipv6` is what the file contains about IPv6. Unset if pods have IPv4 addresses only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Subnet>,
}

/// `Ipv6Subnet` is what `subnet.env` contains about IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6Subnet {
    /// `network` is `FLANNEL_IPV6_NETWORK`: the IPv6 network of flannel, in CIDR notation.
    #[schemars(with = "String")]
    pub network: Ipv6Net,
    /// `subnet` is `FLANNEL_IPV6_SUBNET`: the IPv6 address of the bridge with the prefix length of the subnet of the node.
    #[schemars(with = "String")]
    pub subnet: Ipv6Net,
}

/// `NetworkConfiguration` is the content of `net-conf.json` in flannel's ConfigMap. Unknown keys are ignored, and missing keys
/// have the defaults of flannel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of flannel's own document"
)]
pub struct NetworkConfiguration {
    /// `Network`.
    #[schemars(with = "String")]
    pub network: Ipv4Net,
    /// `SubnetLen`. `None` if the key is missing: the podCIDRs of the Nodes apply then.
    pub subnet_length: Option<u8>,
    /// `IPv6Network`, if `EnableIPv6` is true.
    #[schemars(with = "Option<String>")]
    pub ipv6_network: Option<Ipv6Net>,
    /// `EnableNFTables`.
    pub nftables: bool,
    /// `Backend.Type`, as written.
    pub backend: String,
    /// `Backend.VNI`. 1 if the key is missing.
    pub vni: u32,
    /// `Backend.Port`. 8472, the default of the kernel, if the key is missing or 0.
    pub port: u16,
    /// `Backend.DirectRouting`.
    pub direct_routing: bool,
    /// `Backend.Learning`.
    pub learning: bool,
    /// `Backend.GBP`: whether the tunnel carries the id of a group policy.
    pub group_policy: bool,
    /// `Backend.MTU`. `None` if the key is missing or 0.
    pub mtu: Option<u32>,
}

/// `NodeAnnotations` are flannel's annotations on a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeAnnotations {
    /// `backend-type`.
    pub backend: String,
    /// `VtepMAC` of `backend-data`, in lower case.
    pub vtep_mac: String,
    /// `VNI` of `backend-data`.
    pub vni: Option<u32>,
    /// `public-ip`.
    #[schemars(with = "String")]
    pub public_address: IpAddr,
    /// `kube-subnet-manager`.
    pub kube_subnet_manager: bool,
    /// The IPv6 end of the tunnel. `None` if pods have IPv4 addresses only.
    pub ipv6: Option<Ipv6Annotations>,
}

/// `Ipv6Annotations` are flannel's annotations on a Node about IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6Annotations {
    /// `VtepMAC` of `backend-v6-data`, in lower case.
    pub vtep_mac: String,
    /// `public-ipv6`.
    #[schemars(with = "String")]
    pub public_address: Ipv6Addr,
}

impl SubnetEnvironment {
    /// Parses the text of the file. Lines that flannel's CNI plugin does not use are ignored.
    ///
    /// # Errors
    ///
    /// A line is not an assignment, or a needed value is missing or malformed.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        const TEXT: &str = "subnet.env";
        let mut values: BTreeMap<&str, &str> = BTreeMap::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                return Err(ParseError::NotAssignment {
                    text: TEXT.to_owned(),
                    line: index + 1,
                    found: line.to_owned(),
                });
            };
            values.insert(key.trim(), value.trim());
        }
        let value = |key: &str, needed| {
            values.get(key).copied().ok_or_else(|| ParseError::Missing {
                text: TEXT.to_owned(),
                key: key.to_owned(),
                needed,
            })
        };
        let network: Ipv4Net = from_text(
            TEXT,
            "FLANNEL_NETWORK",
            value("FLANNEL_NETWORK", NEEDED_NETWORK)?,
            NEEDED_NETWORK,
        )?;
        Ok(Self {
            network: network.trunc(),
            subnet: from_text(
                TEXT,
                "FLANNEL_SUBNET",
                value("FLANNEL_SUBNET", NEEDED_NETWORK)?,
                NEEDED_NETWORK,
            )?,
            mtu: mtu(TEXT, "FLANNEL_MTU", value("FLANNEL_MTU", NEEDED_MTU)?)?,
            ip_masquerade: from_text(
                TEXT,
                "FLANNEL_IPMASQ",
                value("FLANNEL_IPMASQ", "true or false")?,
                "true or false",
            )?,
            ipv6: match values.get("FLANNEL_IPV6_NETWORK") {
                None => None,
                Some(network) => {
                    let network: Ipv6Net =
                        from_text(TEXT, "FLANNEL_IPV6_NETWORK", network, NEEDED_IPV6_NETWORK)?;
                    Some(Ipv6Subnet {
                        network: network.trunc(),
                        subnet: from_text(
                            TEXT,
                            "FLANNEL_IPV6_SUBNET",
                            value("FLANNEL_IPV6_SUBNET", NEEDED_IPV6_NETWORK)?,
                            NEEDED_IPV6_NETWORK,
                        )?,
                    })
                }
            },
        })
    }
}

impl NetworkConfiguration {
    /// Parses the text as flannel does: keys in any case, flannel's defaults for missing keys.
    ///
    /// # Errors
    ///
    /// The text is not a JSON object, or a field is missing or malformed.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let document = Document::parse("net-conf.json", "", text)?;
        if !document.boolean("EnableIPv4", true)? {
            return Err(ParseError::Ipv6Only {
                text: "net-conf.json".to_owned(),
            });
        }
        let backend = match document.one("Backend")? {
            Some(Value::Object(map)) => Document::of("net-conf.json", "Backend.", map.clone()),
            Some(other) => return Err(document.wrong("Backend", other, "an object with a Type")),
            // Without a backend, flannel uses its oldest backend.
            None => Document::of(
                "net-conf.json",
                "Backend.",
                Map::from_iter([("Type".to_owned(), Value::from("udp"))]),
            ),
        };
        let network: Ipv4Net = match document.one("Network")? {
            Some(Value::String(network)) => from_text("net-conf.json", "Network", network, NEEDED_NETWORK)?,
            Some(other) => return Err(document.wrong("Network", other, NEEDED_NETWORK)),
            None => return Err(document.missing("Network", NEEDED_NETWORK)),
        };
        let subnet_length = document.number("SubnetLen", 0, 30, "a prefix length up to 30")?;
        let vni = backend.number("VNI", 0, LARGEST_VNI, "a number from 0 to 16777215")?;
        let port = backend.number("Port", 0, u32::from(u16::MAX), "a UDP port from 1 to 65535")?;
        let mtu = backend.number("MTU", 0, u32::from(u16::MAX), NEEDED_MTU)?;
        Ok(Self {
            network: network.trunc(),
            subnet_length: subnet_length
                .filter(|length| *length > 0)
                .and_then(|length| length.try_into().ok()),
            ipv6_network: if document.boolean("EnableIPv6", false)? {
                let network = document.string("IPv6Network", NEEDED_IPV6_NETWORK)?;
                let network: Ipv6Net =
                    from_text("net-conf.json", "IPv6Network", &network, NEEDED_IPV6_NETWORK)?;
                Some(network.trunc())
            } else {
                None
            },
            nftables: document.boolean("EnableNFTables", false)?,
            backend: backend.string("Type", "the name of a backend, such as vxlan")?,
            vni: vni.unwrap_or(DEFAULT_VNI),
            port: port
                .filter(|port| *port > 0)
                .and_then(|port| port.try_into().ok())
                .unwrap_or(DEFAULT_PORT),
            direct_routing: backend.boolean("DirectRouting", false)?,
            learning: backend.boolean("Learning", false)?,
            group_policy: backend.boolean("GBP", false)?,
            mtu: mtu.filter(|mtu| *mtu > 0),
        })
    }

    /// Whether the backend is VXLAN. flannel ignores the case of the name.
    pub fn is_vxlan(&self) -> bool {
        self.backend.eq_ignore_ascii_case("vxlan")
    }
}

const NEEDED_NETWORK: &str = "one IPv4 network such as 10.244.0.0/16";
const NEEDED_IPV6_NETWORK: &str = "one IPv6 network such as fd00:10:244::/56";

#[cfg(test)]
mod tests;
