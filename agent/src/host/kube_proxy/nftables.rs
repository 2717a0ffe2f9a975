//! Parses kube-proxy's maps and chains in nftables mode, as printed by `nft -j list`. Pure.

use std::fmt;

use engine::local_traffic::LocalTraffic;
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::Value;
use service_cidr::host::ServicePort;

use super::{Rule, RuleTarget};
use crate::host::nft::each_object;

/// Start of the names of chains for external traffic.
const EXTERNAL: &str = "external-";
/// Start of the names of chains that check the source of external traffic first.
const FIREWALL: &str = "firewall-";
/// Chains for Services without endpoints.
const ENDS: [&str; 1] = ["reject-chain"];

/// Protocols with their numbers: `nft` prints the number if the image has no /etc/protocols.
const PROTOCOLS: [(u64, &str); 3] = [(6, "TCP"), (17, "UDP"), (132, "SCTP")];

/// One object of a listing, if it is a map.
#[derive(Deserialize)]
struct Listed {
    map: Option<Map>,
}

/// A map of ports of Services. An empty map has no list of elements.
#[derive(Deserialize)]
struct Map {
    #[serde(default)]
    elem: Elements,
}

/// The rules from the elements of a map. The elements themselves are held one at a time, since there are some for each Service.
#[derive(Default)]
struct Elements(Vec<Rule>);

impl<'text> Deserialize<'text> for Elements {
    fn deserialize<D: Deserializer<'text>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Self::default())
    }
}

impl<'text> Visitor<'text> for Elements {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of elements")
    }

    fn visit_seq<A: SeqAccess<'text>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while let Some(element) = list.next_element::<Value>()? {
            let port = port(&element).ok_or_else(|| A::Error::custom(format!("element {element}")))?;
            self.0.push((port, rule_target(&element[1])));
        }
        Ok(self)
    }
}

/// All rules of a map of ports of Services.
pub(super) fn rules(text: &str) -> Result<Vec<Rule>, String> {
    let mut found = None;
    each_object(text, |listed: Listed| {
        found = found.take().or(listed.map);
        Ok(())
    })?;
    found.map(|map| map.elem.0).ok_or_else(|| "no map".to_owned())
}

/// How a chain recognizes local pods: all other traffic is marked for masquerading.
pub(super) fn sources(text: &str) -> Result<LocalTraffic, String> {
    let mut found = LocalTraffic::default();
    each_object(text, |object: Value| {
        for part in object["rule"]["expr"].as_array().into_iter().flatten() {
            let (what, but) = (&part["match"]["left"], &part["match"]["right"]);
            if part["match"]["op"] != "!=" {
                continue;
            }
            if what["payload"]["field"] == "saddr" {
                found
                    .ranges
                    .push(network(but).ok_or_else(|| format!("source {but}"))?);
            } else if what["meta"]["key"] == "iifname" {
                let link = but.as_str().ok_or_else(|| format!("link {but}"))?;
                found.links.push(link.to_owned());
            }
        }
        Ok(())
    })?;
    Ok(found)
}

fn network(value: &Value) -> Option<IpNet> {
    let prefix = &value["prefix"];
    let text = format!("{}/{}", prefix["addr"].as_str()?, prefix["len"].as_u64()?);
    text.parse().ok()
}

fn rule_target(verdict: &Value) -> RuleTarget {
    match verdict["goto"]["target"].as_str() {
        Some(chain) if chain.starts_with(EXTERNAL) || chain.starts_with(FIREWALL) => RuleTarget::External,
        Some(chain) if !ENDS.contains(&chain) => RuleTarget::Endpoints(chain.to_owned()),
        Some(_) | None => RuleTarget::NoEndpoints,
    }
}

fn port(element: &Value) -> Option<ServicePort> {
    let key = element.get(0)?;
    let key = if key["elem"].is_object() {
        &key["elem"]["val"]
    } else {
        key
    };
    let [address, protocol, port] = key["concat"].as_array()?.as_slice() else {
        return None;
    };
    let protocol = match protocol.as_u64() {
        None => protocol.as_str()?.to_ascii_uppercase(),
        Some(number) => {
            let (_, name) = PROTOCOLS.iter().find(|(known, _)| *known == number)?;
            (*name).to_owned()
        }
    };
    Some(ServicePort {
        address: address.as_str()?.parse().ok()?,
        protocol,
        port: u16::try_from(port.as_u64()?).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn map(elements: &Value) -> String {
        let mut map = json!({
            "family": "ip", "name": "service-ips", "table": "kube-proxy", "handle": 9, "map": "verdict",
            "type": ["ipv4_addr", "inet_proto", "inet_service"],
        });
        if !elements.is_null() {
            map["elem"] = elements.clone();
        }
        json!({ "nftables": [{ "metainfo": { "version": "1.0.6" } }, { "map": map }] }).to_string()
    }

    #[test]
    fn elements_are_parsed_with_and_without_a_comment() {
        let text = map(&json!([
            [{ "concat": ["10.96.0.1", "tcp", 443] }, { "goto": { "target": "service-2QRHZV4L-default/kubernetes/tcp/https" } }],
            [{ "elem": { "val": { "concat": ["fd00:96::a", "udp", 53] }, "comment": "kube-system/kube-dns:dns" } }, { "drop": null }],
            [{ "concat": ["10.96.0.2", 132, 7] }, { "goto": { "target": "service-X" } }],
        ]));
        let texts: Vec<String> = rules(&text)
            .unwrap()
            .iter()
            .map(|(port, _)| port.to_string())
            .collect();
        assert_eq!(
            texts,
            ["10.96.0.1:443/TCP", "[fd00:96::a]:53/UDP", "10.96.0.2:7/SCTP"]
        );
        assert_eq!(rules(&map(&Value::Null)), Ok(Vec::new()));
    }

    #[rstest]
    #[case(json!({ "goto": { "target": "service-2QRHZV4L-shop/web/tcp/http" } }), RuleTarget::Endpoints("service-2QRHZV4L-shop/web/tcp/http".to_owned()))]
    #[case(json!({ "goto": { "target": "external-2QRHZV4L-shop/web/tcp/http" } }), RuleTarget::External)]
    #[case(json!({ "goto": { "target": "reject-chain" } }), RuleTarget::NoEndpoints)]
    #[case(json!({ "drop": null }), RuleTarget::NoEndpoints)]
    fn the_target_of_an_element_is_recognized(#[case] verdict: Value, #[case] expected: RuleTarget) {
        let text = map(&json!([[{ "concat": ["10.96.0.1", "tcp", 443] }, verdict]]));
        assert_eq!(rules(&text).unwrap()[0].1, expected);
    }

    #[test]
    fn local_pods_are_the_exceptions_from_masquerading() {
        let matches = |op: &str, left: Value, right: Value| json!({ "match": { "op": op, "left": left, "right": right } });
        let source = || json!({ "payload": { "protocol": "ip", "field": "saddr" } });
        let chain = |parts: &[Value]| {
            let rules: Vec<Value> = parts
                .iter()
                .map(|part| json!({ "rule": { "chain": "services", "expr": [part] } }))
                .collect();
            json!({ "nftables": rules }).to_string()
        };
        let found = sources(&chain(&[
            matches(
                "==",
                json!({ "payload": { "protocol": "ip", "field": "daddr" } }),
                json!("@cluster-ips"),
            ),
            matches(
                "!=",
                source(),
                json!({ "prefix": { "addr": "10.244.0.0", "len": 16 } }),
            ),
            matches("!=", json!({ "meta": { "key": "iifname" } }), json!("cali*")),
            matches(
                "==",
                source(),
                json!({ "prefix": { "addr": "10.9.0.0", "len": 16 } }),
            ),
        ]));
        let found = found.unwrap();
        assert_eq!(found.ranges, ["10.244.0.0/16".parse::<IpNet>().unwrap()]);
        assert_eq!(found.links, ["cali*"]);
        assert_eq!(sources(&chain(&[])), Ok(LocalTraffic::default()));
        let problem = sources(&chain(&[matches("!=", source(), json!(["10.244.0.0"]))])).unwrap_err();
        assert!(problem.contains("source"), "{problem}");
    }

    #[rstest]
    #[case::no_json("Error: No such file", "expected value")]
    #[case::another_answer("{}", "no list")]
    #[case::no_map(r#"{"nftables": [{"metainfo": {}}]}"#, "no map")]
    #[case::another_key(&map(&json!([["10.96.0.1", { "drop": null }]])), "element [\"10.96.0.1\"")]
    #[case::another_protocol(&map(&json!([[{ "concat": ["10.96.0.1", 1, 0] }, { "drop": null }]])), "element")]
    fn malformed_output_is_an_error(#[case] text: &str, #[case] words: &str) {
        let problem = rules(text).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }
}
