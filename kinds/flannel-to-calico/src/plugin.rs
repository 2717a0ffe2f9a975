//! What a conflist sets for flannel's CNI plugin and for the plugin that it delegates to.

use engine::cni::go_value;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Name of the bridge of flannel's CNI plugin.
pub const BRIDGE: &str = "cni0";
/// The plugin that attaches pods, unless the conflist names another one.
const DELEGATE: &str = "bridge";
/// The folder of the delegate's configurations, unless the conflist names another one.
const DATA_DIRECTORY: &str = "/var/lib/cni/flannel";
/// flanneld's file, unless the conflist names another one.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
/// The plugin that gives addresses, unless the conflist names another one.
const IPAM: &str = "host-local";
/// The folder of host-local's leases, unless the conflist names another one.
const LEASE_DIRECTORY: &str = "/var/lib/cni/networks";
/// Most characters kept of a value.
const LONGEST: usize = 256;
/// Options of the bridge plugin under which the bridge does not forward as replumb expects: key, and the value that changes
/// nothing.
const FORWARDING: [(&str, Value); 7] = [
    ("vlan", Value::Null),
    ("vlanTrunk", Value::Null),
    ("promiscMode", Value::Bool(false)),
    ("macspoofchk", Value::Bool(false)),
    ("portIsolation", Value::Bool(false)),
    ("disableContainerInterface", Value::Bool(false)),
    ("enabledad", Value::Bool(false)),
];

/// `FlannelPlugin` is what the conflist of flannel sets for flannel's CNI plugin and for the plugin that it delegates to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelPlugin {
    /// `file` is the name of the conflist.
    pub file: String,
    /// `delegate` is the type of the plugin that attaches pods. Defaults to `bridge`.
    pub delegate: String,
    /// `bridge` is the name of the bridge. Defaults to `cni0`.
    pub bridge: String,
    /// `dataDirectory` is the folder in which the configuration of the delegate is kept for each pod. Defaults to
    /// `/var/lib/cni/flannel`.
    pub data_directory: String,
    /// `subnetFile` is the file of flanneld that the plugin reads. Defaults to `/run/flannel/subnet.env`.
    pub subnet_file: String,
    /// `ipam` is the type of the plugin that gives addresses. Defaults to `host-local`.
    pub ipam: String,
    /// `leaseDirectory` is the folder of the leases of host-local. Defaults to `/var/lib/cni/networks`.
    pub lease_directory: String,
    /// `options` is the list of other options that change how the bridge forwards, such as `vlan 5`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl FlannelPlugin {
    /// The plugin with its defaults.
    pub fn usual(file: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            delegate: DELEGATE.to_owned(),
            bridge: BRIDGE.to_owned(),
            data_directory: DATA_DIRECTORY.to_owned(),
            subnet_file: SUBNET_FILE.to_owned(),
            ipam: IPAM.to_owned(),
            lease_directory: LEASE_DIRECTORY.to_owned(),
            options: Vec::new(),
        }
    }

    /// Reads the bytes of a conflist, or of the configuration of a single plugin. `None` without flannel's plugin.
    pub fn read(file: &str, bytes: &[u8]) -> Option<Self> {
        let configuration: Value = serde_json::from_slice(bytes).ok()?;
        let plugins = match configuration["plugins"].as_array() {
            Some(plugins) => plugins.as_slice(),
            None => std::slice::from_ref(&configuration),
        };
        let is_flannel = |plugin: &&Map<String, Value>| {
            go_value(plugin, "type").and_then(Value::as_str) == Some("flannel")
        };
        let plugin = plugins.iter().filter_map(Value::as_object).find(is_flannel)?;
        let mut found = Self::usual(file);
        set(&mut found.data_directory, plugin, "dataDir");
        set(&mut found.subnet_file, plugin, "subnetFile");
        let delegate = go_value(plugin, "delegate").and_then(Value::as_object);
        // An `ipam` beside the delegate is merged into it.
        let mut ipam = vec![go_value(plugin, "ipam")];
        if let Some(delegate) = delegate {
            set(&mut found.delegate, delegate, "type");
            set(&mut found.bridge, delegate, "bridge");
            ipam.push(go_value(delegate, "ipam"));
            found.options = options(delegate);
        }
        for ipam in ipam.into_iter().flatten().filter_map(Value::as_object) {
            set(&mut found.ipam, ipam, "type");
            set(&mut found.lease_directory, ipam, "dataDir");
        }
        Some(found)
    }

    /// Settings that replumb does not follow: the field, the value found, the value needed.
    pub fn deviations(&self) -> Vec<(&'static str, String, String)> {
        let needed = Self::usual(String::new());
        let fields = [
            ("delegate.type", &self.delegate, &needed.delegate),
            ("delegate.bridge", &self.bridge, &needed.bridge),
            ("dataDir", &self.data_directory, &needed.data_directory),
            ("subnetFile", &self.subnet_file, &needed.subnet_file),
            ("ipam.type", &self.ipam, &needed.ipam),
            ("ipam.dataDir", &self.lease_directory, &needed.lease_directory),
        ];
        let same = |found: &str, needed: &str| found.trim_end_matches('/') == needed;
        let mut deviations: Vec<(&'static str, String, String)> = fields
            .into_iter()
            .filter(|(_, found, needed)| !same(found, needed))
            .map(|(field, found, needed)| (field, found.clone(), needed.clone()))
            .collect();
        let options = self.options.iter();
        deviations.extend(options.map(|option| ("delegate", option.clone(), "no such option".to_owned())));
        deviations
    }
}

fn set(field: &mut String, map: &Map<String, Value>, key: &str) {
    if let Some(text) = go_value(map, key)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
    {
        *field = cut(text);
    }
}

/// A file may have values of any length, and each status has them.
fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

fn options(delegate: &Map<String, Value>) -> Vec<String> {
    let mut options: Vec<String> = FORWARDING
        .iter()
        .filter_map(|(key, harmless)| {
            let value = go_value(delegate, key).filter(|value| !value.is_null() && *value != harmless)?;
            (value.as_u64() != Some(0)).then(|| cut(&format!("{key} {value}")))
        })
        .collect();
    // flannel's plugin adds isGateway, unless the key is there. Without an address on the bridge, pods have another gateway.
    let is = |key: &str, expected: bool| go_value(delegate, key) == Some(&Value::Bool(expected));
    if is("isGateway", false) && !is("isDefaultGateway", true) {
        options.push("isGateway false".to_owned());
    }
    options
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(plugin: &str) -> FlannelPlugin {
        let list = format!(r#"{{"name":"cbr0","plugins":[{plugin},{{"type":"portmap"}}]}}"#);
        FlannelPlugin::read("10-flannel.conflist", list.as_bytes()).unwrap()
    }

    #[test]
    fn the_manifest_of_flannel_has_the_defaults() {
        let found = read(r#"{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}}"#);
        assert_eq!(found, FlannelPlugin::usual("10-flannel.conflist"));
        assert_eq!(found.deviations(), []);
        assert_eq!(FlannelPlugin::read("x", br#"{"type":"calico"}"#), None);
    }

    /// cilium/cilium#11456.
    #[test]
    fn a_single_plugin_with_another_bridge_is_read() {
        let text = br#"{"name":"flannel","type":"flannel","delegate":{"bridge":"docker0","isDefaultGateway":true,"mtu":1400}}"#;
        let found = FlannelPlugin::read("10-flannel.conf", text).unwrap();
        assert_eq!(
            found.deviations(),
            [("delegate.bridge", "docker0".to_owned(), "cni0".to_owned())]
        );
    }

    #[rstest]
    #[case(r#"{"type":"flannel","Delegate":{"Type":"ptp"}}"#, "delegate.type", "ptp")]
    #[case(r#"{"type":"flannel","dataDir":"/data/cni"}"#, "dataDir", "/data/cni")]
    #[case(
        r#"{"type":"flannel","subnetFile":"/run/other/subnet.env"}"#,
        "subnetFile",
        "/run/other/subnet.env"
    )]
    #[case(
        r#"{"type":"flannel","ipam":{"type":"whereabouts"}}"#,
        "ipam.type",
        "whereabouts"
    )]
    #[case(
        r#"{"type":"flannel","delegate":{"ipam":{"dataDir":"/leases"}}}"#,
        "ipam.dataDir",
        "/leases"
    )]
    #[case(r#"{"type":"flannel","delegate":{"vlan":5}}"#, "delegate", "vlan 5")]
    #[case(
        r#"{"type":"flannel","delegate":{"macspoofchk":true}}"#,
        "delegate",
        "macspoofchk true"
    )]
    #[case(
        r#"{"type":"flannel","delegate":{"isGateway":false}}"#,
        "delegate",
        "isGateway false"
    )]
    fn each_deviation_is_named(#[case] plugin: &str, #[case] field: &str, #[case] value: &str) {
        let [(found, is, _)] = &read(plugin).deviations()[..] else {
            panic!("{plugin}")
        };
        assert_eq!((*found, is.as_str()), (field, value));
    }

    #[test]
    fn values_that_change_nothing_are_no_deviation() {
        let found = read(
            r#"{"type":"flannel","dataDir":"/var/lib/cni/flannel/","delegate":{"vlan":0,"promiscMode":false,"bridge":""}}"#,
        );
        assert_eq!(found.deviations(), []);
    }
}
