//! Maps of kube-proxy in mode nftables, in the words of `nft -j list map`. Pure.

use plan::service_cidr::host::ServicePort;
use serde_json::Value;

/// Protocols with their numbers: `nft` prints the number where the image has no /etc/protocols.
const PROTOCOLS: [(u64, &str); 3] = [(6, "TCP"), (17, "UDP"), (132, "SCTP")];

/// Every port of a Service that a map leads from; the words say what is not understood of it.
pub(super) fn ports(text: &str) -> Result<Vec<ServicePort>, String> {
    let listed: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let objects = listed["nftables"].as_array().ok_or("no list \"nftables\"")?;
    let map = objects
        .iter()
        .find_map(|object| object.get("map"))
        .ok_or("no map")?;
    // An empty one has no list of elements.
    let elements = map["elem"].as_array().into_iter().flatten();
    elements
        .map(|element| port(element).ok_or_else(|| format!("element {element}")))
        .collect()
}

/// `[{"concat": ["10.96.0.1", "tcp", 443]}, {"goto": …}]`; with a comment, or a time, the key is one level deeper.
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
    fn elements_with_and_without_a_comment() {
        let text = map(&json!([
            [{ "concat": ["10.96.0.1", "tcp", 443] }, { "goto": { "target": "service-2QRHZV4L-default/kubernetes/tcp/https" } }],
            [{ "elem": { "val": { "concat": ["fd00:96::a", "udp", 53] }, "comment": "kube-system/kube-dns:dns" } }, { "drop": null }],
            [{ "concat": ["10.96.0.2", 132, 7] }, { "goto": { "target": "service-X" } }],
        ]));
        let texts: Vec<String> = ports(&text).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["10.96.0.1:443/TCP", "[fd00:96::a]:53/UDP", "10.96.0.2:7/SCTP"]
        );
        assert_eq!(ports(&map(&Value::Null)), Ok(Vec::new()));
    }

    #[rstest]
    #[case::no_json("Error: No such file", "expected value")]
    #[case::another_answer("{}", "no list")]
    #[case::no_map(r#"{"nftables": [{"metainfo": {}}]}"#, "no map")]
    #[case::another_key(&map(&json!([["10.96.0.1", { "drop": null }]])), "element [\"10.96.0.1\"")]
    #[case::another_protocol(&map(&json!([[{ "concat": ["10.96.0.1", 1, 0] }, { "drop": null }]])), "element")]
    fn what_is_not_understood_is_not_nothing(#[case] text: &str, #[case] words: &str) {
        let problem = ports(text).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }
}
