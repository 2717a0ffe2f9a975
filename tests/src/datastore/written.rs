//! Prepares the keys of Calico's own tool for a comparison: omits values that differ in each run, and corrects the
//! intended differences.

use std::collections::BTreeSet;

use calico_datastore::difference::Difference;
use serde_json::{Map, Value, json};

/// Settings of Felix for which v3 accepts only some values, each in one spelling.
const ACTIONS: [&str; 3] = [
    "defaultEndpointToHostAction",
    "iptablesFilterAllowAction",
    "iptablesMangleAllowAction",
];

/// A value of v3 that Calico cannot read.
pub fn is_no_object(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| serde_json::from_str::<Value>(text).is_err())
}

pub fn lines(text: Option<&String>) -> BTreeSet<String> {
    let lines = text.into_iter().flat_map(|text| text.lines());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The key at the beginning of a line of `conversionerrors`.
pub fn key(line: &str) -> String {
    line.split_once("): ")
        .map_or_else(|| line.to_owned(), |(key, _)| format!("{key})"))
}

/// Removes values that differ in each run, and additions of a slip in one version of Calico.
pub fn normalize(value: &mut Value) {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("uid");
        metadata.remove("creationTimestamp");
    }
    if value["kind"] == "FelixConfiguration"
        && let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("XDPRefreshInterval") == Some(&Value::Null)
    {
        spec.remove("XDPRefreshInterval");
    }
}

/// Converts values of Calico's own tool to the form of this tool, and returns the differences.
pub fn put_right(value: &mut Value) -> BTreeSet<Difference> {
    let mut found = BTreeSet::new();
    let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else {
        return found;
    };
    // A slip in one version of Calico gives a field another name than v3 reads.
    if let Some(interval) = spec.remove("XDPRefreshInterval") {
        spec.insert("xdpRefreshInterval".to_owned(), interval);
        found.insert(Difference::XdpName);
    }
    if spell_actions(spec) {
        found.insert(Difference::FelixAction);
    }
    if name_protocols(spec) {
        found.insert(Difference::PortNumber);
    }
    found
}

fn spell_actions(spec: &mut Map<String, Value>) -> bool {
    let mut is_changed = false;
    for (_, action) in spec
        .iter_mut()
        .filter(|(name, _)| ACTIONS.contains(&name.as_str()))
    {
        let known = ["Drop", "Accept", "Return"].into_iter().find(|known| {
            action
                .as_str()
                .is_some_and(|text| text.eq_ignore_ascii_case(known))
        });
        if let Some(known) = known
            && *action != known
        {
            *action = json!(known);
            is_changed = true;
        }
    }
    is_changed
}

/// Applies to ports of endpoints; rules have no `ports` of their own.
fn name_protocols(spec: &mut Map<String, Value>) -> bool {
    let mut is_changed = false;
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for protocol in ports
        .into_iter()
        .flatten()
        .filter_map(|port| port.get_mut("protocol"))
    {
        let name = match protocol.as_u64() {
            Some(6) => "TCP",
            Some(17) => "UDP",
            Some(132) => "SCTP",
            _ => continue,
        };
        *protocol = json!(name);
        is_changed = true;
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intended_difference_is_corrected_and_named() {
        let mut felix =
            json!({ "spec": { "XDPRefreshInterval": "1m30s", "defaultEndpointToHostAction": "RETURN" } });
        assert_eq!(
            put_right(&mut felix),
            BTreeSet::from([Difference::FelixAction, Difference::XdpName])
        );
        assert_eq!(
            felix,
            json!({ "spec": { "xdpRefreshInterval": "1m30s", "defaultEndpointToHostAction": "Return" } })
        );
        let mut endpoint = json!({ "spec": { "ports": [{ "protocol": 17 }, { "protocol": "TCP" }] } });
        assert_eq!(put_right(&mut endpoint), BTreeSet::from([Difference::PortNumber]));
        assert_eq!(
            endpoint,
            json!({ "spec": { "ports": [{ "protocol": "UDP" }, { "protocol": "TCP" }] } })
        );
        assert_eq!(put_right(&mut endpoint), BTreeSet::new());
    }
}
