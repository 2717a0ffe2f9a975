//! How kube-proxy recognizes connections of pods of this cluster, as its rules in the kernel show it.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `LocalTraffic` is how kube-proxy recognizes connections of pods (`detectLocalMode`). If both lists are empty, it does not
/// recognize them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalTraffic {
    /// `ranges` is the list of ranges, in CIDR notation, that pods have their addresses from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub ranges: Vec<IpNet>,
    /// `links` is the list of names of links of pods on the host. A `+` or `*` at the end of a name matches any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
}

impl LocalTraffic {
    /// Whether connections of pods of these ranges are recognized.
    pub fn recognizes_pods<'range>(&self, pods: impl IntoIterator<Item = &'range IpNet>) -> bool {
        let is_known = |pods: &IpNet| self.ranges.iter().any(|range| range.contains(pods));
        !self.links.is_empty() || (!self.ranges.is_empty() && pods.into_iter().all(is_known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_recognized_by_all_their_ranges_or_by_links() {
        let nets =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let by = |ranges: &[&str], links: &[&str]| LocalTraffic {
            ranges: nets(ranges),
            links: links.iter().map(|link| (*link).to_owned()).collect(),
        };
        let pods = nets(&["10.244.1.0/24", "10.244.2.0/24"]);
        assert!(by(&["10.244.0.0/16"], &[]).recognizes_pods(&pods));
        assert!(!by(&["10.244.1.0/24"], &[]).recognizes_pods(&pods));
        assert!(by(&[], &["cali+"]).recognizes_pods(&pods));
        assert!(!by(&[], &[]).recognizes_pods(&pods));
        assert!(!by(&[], &[]).recognizes_pods(&[]), "no ranges and no links");
    }
}
