//! Annotations of flannel on a Node.

use std::collections::BTreeMap;

use serde_json::Value;

use super::document::Document;
use super::error::ParseError;
use super::value::{LARGEST_VNI, from_text};
use super::{Ipv6Annotations, NodeAnnotations};

/// The full key of an annotation of flannel, composed from the prefix as in flannel: `a.b` gives `a.b/key`, `a.b/c` gives
/// `a.b/c-key`.
///
/// # Errors
///
/// The prefix is not a domain with lower-case labels and an optional name, as flannel requires.
pub fn annotation_key(prefix: &str, key: &str) -> Result<String, ParseError> {
    let error = || ParseError::Prefix {
        found: prefix.to_owned(),
    };
    let (domain, name) = prefix.split_once('/').unwrap_or((prefix, ""));
    let allowed = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || "_-".contains(character)
    };
    let labels: Vec<&str> = domain.split('.').collect();
    let domain_is_good = labels.len() > 1
        && labels
            .iter()
            .all(|label| !label.is_empty() && label.chars().all(allowed));
    if !domain_is_good || !name.chars().all(allowed) {
        return Err(error());
    }
    let separator = if name.is_empty() || name.ends_with('-') {
        ""
    } else {
        "-"
    };
    Ok(format!("{domain}/{name}{separator}{key}"))
}

impl NodeAnnotations {
    /// Parses flannel's annotations with this prefix. `None` without such annotations: flannel has not run on the node, or
    /// uses another prefix.
    ///
    /// # Errors
    ///
    /// Flannel would not accept the prefix, an annotation is missing, or its value is malformed.
    pub fn read(annotations: &BTreeMap<String, String>, prefix: &str) -> Result<Option<Self>, ParseError> {
        const KEYS: [&str; 6] = [
            "backend-type",
            "backend-data",
            "public-ip",
            "kube-subnet-manager",
            "backend-v6-data",
            "public-ipv6",
        ];
        let value = |key: &str| Ok(annotations.get(&annotation_key(prefix, key)?).map(String::as_str));
        let mut found = Vec::new();
        for key in KEYS {
            found.push(value(key)?);
        }
        if found.iter().all(Option::is_none) {
            return Ok(None);
        }
        let needed = |key: &str, needed| {
            value(key)?.ok_or_else(|| ParseError::Missing {
                text: format!("annotations {prefix}"),
                key: annotation_key(prefix, key).unwrap_or_else(|_| key.to_owned()),
                needed,
            })
        };
        let backend = needed("backend-type", "the name of a backend, such as vxlan")?.to_owned();
        let address_key = annotation_key(prefix, "public-ip")?;
        let public_address = from_text(
            "annotation",
            &address_key,
            needed("public-ip", "the node's address")?,
            "an IP address",
        )?;
        let is_vxlan = backend.eq_ignore_ascii_case("vxlan");
        let (vtep_mac, vni) = if is_vxlan {
            let key = annotation_key(prefix, "backend-data")?;
            let text = needed("backend-data", r#"JSON such as {"VNI":1,"VtepMAC":"…"}"#)?;
            backend_data(&key, text)?
        } else {
            (String::new(), None)
        };
        let ipv6 = match value("public-ipv6")?.filter(|_| is_vxlan) {
            None => None,
            Some(address) => {
                let address_key = annotation_key(prefix, "public-ipv6")?;
                let key = annotation_key(prefix, "backend-v6-data")?;
                let text = needed("backend-v6-data", r#"JSON such as {"VNI":1,"VtepMAC":"…"}"#)?;
                Some(Ipv6Annotations {
                    vtep_mac: backend_data(&key, text)?.0,
                    public_address: from_text("annotation", &address_key, address, "an IPv6 address")?,
                })
            }
        };
        Ok(Some(Self {
            backend,
            vtep_mac,
            vni,
            public_address,
            kube_subnet_manager: value("kube-subnet-manager")? == Some("true"),
            ipv6,
        }))
    }
}

const NEEDED_MAC: &str = "a MAC address of six bytes";

fn backend_data(key: &str, text: &str) -> Result<(String, Option<u32>), ParseError> {
    let document = Document::parse(&format!("annotation {key}"), "", text)?;
    let mac = document.string("VtepMAC", NEEDED_MAC)?;
    let mac = normal_mac(&mac).ok_or_else(|| document.wrong("VtepMAC", &Value::from(mac), NEEDED_MAC))?;
    Ok((
        mac,
        document.number("VNI", 0, LARGEST_VNI, "a number from 0 to 16777215")?,
    ))
}

/// A MAC address of six bytes in lower case with colons. Go also accepts dashes.
fn normal_mac(text: &str) -> Option<String> {
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<&str> = text.split(separator).collect();
    let is_byte = |part: &&str| part.len() == 2 && part.chars().all(|digit| digit.is_ascii_hexdigit());
    (parts.len() == 6 && parts.iter().all(is_byte)).then(|| parts.join(":").to_ascii_lowercase())
}
