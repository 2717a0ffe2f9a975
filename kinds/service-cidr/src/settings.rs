//! What the migration works with: what the user wrote, what the cluster shows, the default.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::objects::BridgePolicy;
use super::ranges::afterwards;
use super::side::{Side, Sides};
use engine::sourced::Sourced;

/// Start of the name of every `ServiceCIDR` that we make.
const OURS: &str = "replumb-";

/// `Settings` are the settings of a change of the Service range, each with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// `from` is the list of ranges of `ServiceCIDR` `kubernetes` before the migration, in their order: at most one of each
    /// address family.
    #[schemars(with = "Sourced<Vec<String>>")]
    pub from: Sourced<Vec<IpNet>>,
    /// `to` is the list of new ranges: one of each address family that changes.
    #[schemars(with = "Sourced<Vec<String>>")]
    pub to: Sourced<Vec<IpNet>>,
    /// `domain` is the DNS domain of the cluster, such as `cluster.local`.
    pub domain: Sourced<String>,
    /// `bridgePolicy` is the `externalTrafficPolicy` of the bridges: Services that answer at the address of another Service while
    /// that address changes.
    pub bridge_policy: Sourced<BridgePolicy>,
}

impl Settings {
    /// Ranges of the default `ServiceCIDR` before and after, and so the API servers' flag.
    pub fn defaults(&self) -> Sides<Vec<IpNet>> {
        Sides {
            old: self.from.value.clone(),
            new: afterwards(&self.from.value, &self.to.value),
        }
    }

    /// Those of them that change.
    pub fn changed(&self) -> Sides<Vec<IpNet>> {
        let defaults = self.defaults();
        Sides::each(|side| {
            let others = defaults.of(side.other());
            let own = defaults.of(side).iter();
            own.filter(|range| !others.contains(range)).copied().collect()
        })
    }
}

/// Names of the `ServiceCIDR` that gives addresses of a side as long as the default one does not. The second one is for who turns
/// around while the first is being deleted: that one goes only when another holds its addresses.
pub fn range_names(side: Side) -> [String; 2] {
    let first = format!("{OURS}{}", side.as_str());
    let second = format!("{first}-again");
    [first, second]
}

/// Name of the `ServiceCIDR` that holds addresses of load balancers: the same at each look.
pub fn cover_name(range: &IpNet) -> String {
    let address: String = range
        .addr()
        .to_string()
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    format!("{OURS}keep-{}-{}", address.trim_matches('-'), range.prefix_len())
}

/// Whether we have made the `ServiceCIDR` of this name.
pub fn is_ours(name: &str) -> bool {
    let mut ours = Side::ALL.into_iter().flat_map(range_names);
    is_cover(name) || ours.any(|ours| ours == name)
}

/// Whether a `ServiceCIDR` of this name holds some addresses alone: of load balancers, or of Services that came late.
pub fn is_cover(name: &str) -> bool {
    name.starts_with(&format!("{OURS}keep-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sourced<T: Clone>(value: T) -> Sourced<T> {
        Sourced::choose(Some(value.clone()), None, value)
    }

    fn ranges(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_family_of_two_may_change() {
        let settings = Settings {
            from: sourced(ranges(&["10.96.0.0/12", "fd00:96::/112"])),
            to: sourced(ranges(&["172.30.0.0/16"])),
            domain: sourced("cluster.local".to_owned()),
            bridge_policy: sourced(BridgePolicy::Local),
        };
        assert_eq!(
            settings.defaults().new,
            ranges(&["172.30.0.0/16", "fd00:96::/112"])
        );
        assert_eq!(settings.changed().old, ranges(&["10.96.0.0/12"]));
        assert_eq!(settings.changed().new, ranges(&["172.30.0.0/16"]));
    }

    #[test]
    fn covers_have_names_of_kubernetes() {
        let name = cover_name(&"10.96.0.8/30".parse().unwrap());
        assert_eq!(name, "replumb-keep-10-96-0-8-30");
        let others = range_names(Side::New)
            .into_iter()
            .chain(["kubernetes".to_owned()]);
        assert!(is_cover(&name) && others.into_iter().all(|name| !is_cover(&name)));
        assert_eq!(
            cover_name(&"fd00::/126".parse().unwrap()),
            "replumb-keep-fd00-126"
        );
    }
}
