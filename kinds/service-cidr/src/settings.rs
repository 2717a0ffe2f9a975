//! Settings of the migration: from the spec, or detected in the cluster.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::objects::BridgePolicy;
use super::ranges::afterwards;
use super::side::Sides;
use engine::sourced::Sourced;

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
    /// Ranges of the default `ServiceCIDR` before and after, which are also the value of the API servers' flag.
    pub fn defaults(&self) -> Sides<Vec<IpNet>> {
        Sides {
            old: self.from.value.clone(),
            new: afterwards(&self.from.value, &self.to.value),
        }
    }

    /// The ranges of [`Self::defaults`] that change.
    pub fn changed(&self) -> Sides<Vec<IpNet>> {
        let defaults = self.defaults();
        Sides::each(|side| {
            let others = defaults.of(side.other());
            let own = defaults.of(side).iter();
            own.filter(|range| !others.contains(range)).copied().collect()
        })
    }
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
    fn a_range_of_one_family_changes_and_the_other_stays() {
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
}
