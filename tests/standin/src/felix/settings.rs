//! Felix's settings: the environment overrides the node's own `FelixConfiguration`, which overrides `default`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::datastore::types::FelixConfiguration;

/// The settings of this node. Any difference is a reason to restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Every setting by its lower-case name.
    values: BTreeMap<String, String>,
}

/// The address of the node's tunnel device is also a setting of Felix, although a Node has it.
const TUNNEL_ADDRESS: &str = "ipv4vxlantunneladdr";

impl Settings {
    /// Merges the environment and the objects.
    pub fn new<'a>(
        node: &str,
        tunnel_address: Option<&str>,
        configurations: impl IntoIterator<Item = &'a FelixConfiguration>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let own = format!("node.{node}");
        let (mut general, mut special) = (BTreeMap::new(), BTreeMap::new());
        for configuration in configurations {
            let into = match configuration.metadata.name.as_deref() {
                Some("default") => &mut general,
                Some(name) if name == own => &mut special,
                _ => continue,
            };
            into.extend(
                configuration
                    .spec
                    .settings
                    .iter()
                    .map(|(name, value)| (name.to_lowercase(), text(value))),
            );
        }
        let environment = environment.into_iter().filter(|(_, value)| !value.is_empty());
        let environment = environment.filter_map(|(name, value)| {
            let setting = name.to_lowercase();
            setting
                .strip_prefix("felix_")
                .map(|setting| (setting.to_owned(), value))
        });
        general.append(&mut special);
        if let Some(address) = tunnel_address {
            general.insert(TUNNEL_ADDRESS.to_owned(), address.to_owned());
        }
        general.extend(environment);
        Self { values: general }
    }

    fn number<T: std::str::FromStr>(&self, name: &str, fallback: T) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        match self.values.get(name).map(String::as_str) {
            None | Some("") => Ok(fallback),
            Some(value) => value
                .parse()
                .with_context(|| format!("read Felix's setting {name}: {value:?} is not a number")),
        }
    }

    fn truth(&self, name: &str) -> Option<bool> {
        match self.values.get(name)?.to_lowercase().as_str() {
            "true" | "1" | "yes" | "y" | "t" => Some(true),
            "false" | "0" | "no" | "n" | "f" => Some(false),
            _ => None,
        }
    }

    /// Address of the node's tunnel device.
    pub fn tunnel_address(&self) -> Option<&str> {
        self.values.get(TUNNEL_ADDRESS).map(String::as_str)
    }

    /// Network identifier of the tunnel.
    pub fn vni(&self) -> Result<u32> {
        self.number("vxlanvni", 4096)
    }

    /// UDP port of the tunnel.
    pub fn port(&self) -> Result<u16> {
        self.number("vxlanport", 4789)
    }

    /// MTU of the tunnel device; 0 means 50 less than the parent device.
    pub fn mtu(&self) -> Result<u32> {
        self.number("vxlanmtu", 0)
    }

    /// Whether there is a tunnel; `None`: if a pool needs it.
    pub fn vxlan_enabled(&self) -> Option<bool> {
        self.truth("vxlanenabled")
    }

    /// Whether to serve readiness.
    pub fn health_enabled(&self) -> bool {
        self.truth("healthenabled").unwrap_or(false)
    }

    /// Address of the health port.
    pub fn health_address(&self) -> Result<(String, u16)> {
        let host = self.values.get("healthhost").filter(|host| !host.is_empty());
        Ok((
            host.map_or("localhost", String::as_str).to_owned(),
            self.number("healthport", 9099)?,
        ))
    }

    /// Names of the settings that differ, for the log.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> =
            self.values.keys().chain(other.values.keys()).collect();
        let differs = |name: &&&String| self.values.get(**name) != other.values.get(**name);
        let shown = |value: Option<&String>| value.map_or("unset", String::as_str).to_owned();
        names
            .iter()
            .filter(differs)
            .map(|name| {
                format!(
                    "{name}: {} -> {}",
                    shown(self.values.get(*name)),
                    shown(other.values.get(*name))
                )
            })
            .collect()
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configuration(name: &str, settings: Value) -> FelixConfiguration {
        FelixConfiguration::new(name, serde_json::from_value(settings).unwrap())
    }

    #[test]
    fn the_environment_overrides_the_node_and_the_node_overrides_the_default() {
        let objects = [
            configuration("node.n1", json!({"vxlanPort": 8473, "vxlanMTU": 1400})),
            configuration(
                "default",
                json!({"vxlanVNI": 1, "vxlanPort": 8472, "vxlanMTU": 1450}),
            ),
            configuration("node.n2", json!({"vxlanVNI": 9})),
        ];
        let settings = Settings::new(
            "n1",
            None,
            &objects,
            [("FELIX_VXLANMTU".to_owned(), "1300".to_owned())],
        );
        assert_eq!(settings.vni().unwrap(), 1);
        assert_eq!(settings.port().unwrap(), 8473);
        assert_eq!(settings.mtu().unwrap(), 1300);
        assert_eq!(settings.vxlan_enabled(), None);
        let nothing = Settings::new("n1", None, [], []);
        assert_eq!(
            (
                nothing.vni().unwrap(),
                nothing.port().unwrap(),
                nothing.mtu().unwrap()
            ),
            (4096, 4789, 0)
        );
        assert_eq!(nothing.health_address().unwrap(), ("localhost".to_owned(), 9099));
    }

    #[test]
    fn any_changed_setting_is_named() {
        let one = Settings::new(
            "n1",
            None,
            &[configuration("default", json!({"vxlanEnabled": false}))],
            [],
        );
        let other = Settings::new("n1", None, &[configuration("default", json!({}))], []);
        assert_eq!(one.vxlan_enabled(), Some(false));
        assert_ne!(one, other);
        assert_eq!(one.differences(&other), ["vxlanenabled: false -> unset"]);
    }

    #[test]
    fn another_tunnel_address_is_a_change() {
        let with = |address| Settings::new("n1", address, [], []);
        assert_eq!(with(Some("10.244.1.0")), with(Some("10.244.1.0")));
        assert_eq!(
            with(Some("10.244.1.0")).differences(&with(Some("10.200.1.0"))),
            ["ipv4vxlantunneladdr: 10.244.1.0 -> 10.200.1.0"]
        );
        assert_ne!(with(Some("10.244.1.0")), with(None));
    }
}
