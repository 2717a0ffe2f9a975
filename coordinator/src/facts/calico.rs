//! Calico's objects, read as JSON: their schema belongs to another project and changes with its version.

use std::net::IpAddr;

use engine::cluster::{IpPool, Malformed};
use ipnet::IpNet;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::Value;

/// The fields of an `IPPool` that are used here.
///
/// # Errors
///
/// A used field has another type than in the API of Calico, or `cidr` is not a range.
pub fn ip_pool(pool: &DynamicObject) -> Result<IpPool, Malformed> {
    let reader = Reader::of("IPPool", pool);
    let cidr: IpNet = reader.network("cidr")?;
    let defaults = pool_of_range(reader.name.clone(), cidr);
    Ok(IpPool {
        block_size: reader
            .number("blockSize", u64::from(cidr.max_prefix_len()))?
            .unwrap_or(defaults.block_size),
        vxlan_mode: reader.text("vxlanMode")?.unwrap_or(defaults.vxlan_mode),
        ipip_mode: reader.text("ipipMode")?.unwrap_or(defaults.ipip_mode),
        nat_outgoing: reader.flag("natOutgoing")?,
        disabled: reader.flag("disabled")?,
        node_selector: reader.text("nodeSelector")?.unwrap_or(defaults.node_selector),
        name: defaults.name,
        cidr,
    })
}

/// A pool with this range and Calico's defaults otherwise.
pub fn pool_of_range(name: String, cidr: IpNet) -> IpPool {
    IpPool {
        name,
        block_size: if matches!(cidr, IpNet::V4(_)) { 26 } else { 122 },
        cidr,
        vxlan_mode: "Never".to_owned(),
        ipip_mode: "Never".to_owned(),
        nat_outgoing: false,
        disabled: false,
        node_selector: "all()".to_owned(),
    }
}

/// The ranges of an `IPReservation`, and its first malformed entry. Calico ignores such an entry (libcalico-go,
/// `ipam.getReservedIPs`), and the others hold.
pub fn reserved(object: &DynamicObject) -> (Vec<IpNet>, Option<Malformed>) {
    let found = &object.data["spec"]["reservedCIDRs"];
    let (ranges, odd): (Vec<IpNet>, Option<&Value>) = match found {
        Value::Null => (Vec::new(), None),
        Value::Array(list) => {
            let of = |entry: &Value| range_of(entry.as_str()?);
            let odd = list.iter().find(|entry| of(entry).is_none());
            (list.iter().filter_map(of).collect(), odd)
        }
        other => (Vec::new(), Some(other)),
    };
    let malformed = odd.map(|odd| Malformed {
        object: format!("IPReservation {}", object.name_any()),
        problem: format!(
            "spec.reservedCIDRs: found {}, needed a list of ranges",
            super::shown(&odd.to_string())
        ),
    });
    (ranges, malformed)
}

/// A range, or an address as a range of one.
fn range_of(text: &str) -> Option<IpNet> {
    let of_address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(of_address)
}

/// The range of an object that cannot be parsed otherwise.
pub fn range(object: &DynamicObject) -> Option<IpNet> {
    let text = object.data["spec"]["cidr"].as_str()?;
    text.parse::<IpNet>().ok().map(|range| range.trunc())
}

/// An `IPAMBlock`'s range and affinity (`host:<node>`).
///
/// # Errors
///
/// `affinity` is not a text, or `cidr` is not a range.
pub fn ipam_block(block: &DynamicObject) -> Result<(IpNet, Option<String>), Malformed> {
    let reader = Reader::of("IPAMBlock", block);
    Ok((reader.network("cidr")?, reader.text("affinity")?))
}

/// Reads fields of an object's spec with errors that name them.
struct Reader<'object> {
    kind: &'static str,
    name: String,
    spec: &'object Value,
}

impl<'object> Reader<'object> {
    fn of(kind: &'static str, object: &'object DynamicObject) -> Self {
        Self {
            kind,
            name: object.metadata.name.clone().unwrap_or_default(),
            spec: &object.data["spec"],
        }
    }

    fn error(&self, field: &str, needed: &str) -> Malformed {
        Malformed {
            object: format!("{} {}", self.kind, self.name),
            problem: format!(
                "spec.{field}: found {}, needed {needed}",
                super::shown(&self.spec[field].to_string())
            ),
        }
    }

    /// An empty string counts as missing, as in Calico's types.
    fn text(&self, field: &str) -> Result<Option<String>, Malformed> {
        match &self.spec[field] {
            Value::Null => Ok(None),
            Value::String(text) if text.is_empty() => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                Err(self.error(field, "a string"))
            }
        }
    }

    fn flag(&self, field: &str) -> Result<bool, Malformed> {
        match &self.spec[field] {
            Value::Null => Ok(false),
            other => other.as_bool().ok_or_else(|| self.error(field, "true or false")),
        }
    }

    /// A number up to `most`; 0 counts as missing.
    fn number(&self, field: &str, most: u64) -> Result<Option<u8>, Malformed> {
        match &self.spec[field] {
            Value::Null => Ok(None),
            other => other
                .as_u64()
                .filter(|number| *number <= most)
                .and_then(|number| u8::try_from(number).ok())
                .map(|number| (number > 0).then_some(number))
                .ok_or_else(|| self.error(field, &format!("a number up to {most}"))),
        }
    }

    fn network(&self, field: &str) -> Result<IpNet, Malformed> {
        self.spec[field]
            .as_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| self.error(field, "a network such as 10.244.0.0/16"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "every caller has a literal")]
    fn from(spec: Value) -> DynamicObject {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "X", "metadata": {"name": "x"}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn a_pool_with_every_field() {
        let found = ip_pool(&from(serde_json::json!({
            "cidr": "10.244.0.0/16", "blockSize": 24, "vxlanMode": "Always", "ipipMode": "CrossSubnet",
            "natOutgoing": true, "disabled": true, "nodeSelector": "zone == 'a'",
        })))
        .unwrap();
        assert_eq!(
            found,
            IpPool {
                name: "x".to_owned(),
                cidr: "10.244.0.0/16".parse().unwrap(),
                block_size: 24,
                vxlan_mode: "Always".to_owned(),
                ipip_mode: "CrossSubnet".to_owned(),
                nat_outgoing: true,
                disabled: true,
                node_selector: "zone == 'a'".to_owned(),
            }
        );
    }

    #[test]
    fn a_pool_with_calicos_defaults() {
        let found = ip_pool(&from(
            serde_json::json!({"cidr": "10.244.0.0/16", "vxlanMode": ""}),
        ))
        .unwrap();
        assert_eq!(
            (
                found.block_size,
                found.vxlan_mode.as_str(),
                found.ipip_mode.as_str()
            ),
            (26, "Never", "Never")
        );
        assert_eq!(
            (found.nat_outgoing, found.disabled, found.node_selector.as_str()),
            (false, false, "all()")
        );
        assert_eq!(
            ip_pool(&from(serde_json::json!({"cidr": "fd00::/48"})))
                .unwrap()
                .block_size,
            122
        );
    }

    #[test]
    fn unreadable_fields_of_a_pool_are_errors() {
        for (spec, problem) in [
            (
                serde_json::json!({}),
                "spec.cidr: found null, needed a network such as 10.244.0.0/16",
            ),
            (
                serde_json::json!({"cidr": "x"}),
                "spec.cidr: found \"x\", needed a network such as 10.244.0.0/16",
            ),
            (
                serde_json::json!({"cidr": "10.244.0.0/16", "blockSize": 33}),
                "spec.blockSize: found 33, needed a number up to 32",
            ),
            (
                serde_json::json!({"cidr": "10.244.0.0/16", "natOutgoing": "yes"}),
                "spec.natOutgoing: found \"yes\", needed true or false",
            ),
            (
                serde_json::json!({"cidr": "10.244.0.0/16", "vxlanMode": 1}),
                "spec.vxlanMode: found 1, needed a string",
            ),
        ] {
            let error = ip_pool(&from(spec)).unwrap_err();
            assert_eq!(
                (error.object.as_str(), error.problem.as_str()),
                ("IPPool x", problem)
            );
        }
    }

    #[test]
    fn blocks() {
        let found = ipam_block(&from(
            serde_json::json!({"cidr": "10.244.1.0/26", "affinity": "host:a"}),
        ));
        assert_eq!(
            found,
            Ok(("10.244.1.0/26".parse().unwrap(), Some("host:a".to_owned())))
        );
        let found = ipam_block(&from(serde_json::json!({"cidr": "10.244.1.0/26"})));
        assert_eq!(found, Ok(("10.244.1.0/26".parse().unwrap(), None)));
        assert!(ipam_block(&from(serde_json::json!({"cidr": 1}))).is_err());
    }
}
