//! The container runtime's CNI configuration: which plugin assigns addresses, and from which pools.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use engine::cni::{CniDirectory, Contents, go_value};
use engine::found::Found;
use engine::go_json;

/// `Conflist` is the CNI configuration that the container runtime uses for new pods. The first plugin assigns the addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Conflist {
    /// `path` is the path of the file on the host.
    pub path: String,
    /// `network` is the name of the network. Unset if the file has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// `plugin` is the `type` of the first plugin.
    pub plugin: String,
    /// `ipam` is `ipam.type` of the first plugin.
    pub ipam: Found<String>,
    /// `ipv4Pools` is `ipam.ipv4_pools` of the first plugin: the IPv4 `IPPools`, by name or range, that new pods must use.
    pub ipv4_pools: Found<Vec<String>>,
    /// `ipv6Pools` is `ipam.ipv6_pools` of the first plugin: the IPv6 `IPPools`, by name or range, that new pods must use.
    pub ipv6_pools: Found<Vec<String>>,
}

/// Finds the file that the runtime uses among the files of the directory (name and bytes), and parses it.
pub fn conflist(folder: &str, files: &[(String, Contents)]) -> Found<Conflist> {
    let directory = CniDirectory::of(folder, files.to_vec());
    let path = |name: &str| format!("{folder}/{name}");
    if let Some(broken) = directory.broken() {
        let problem = broken.error.as_deref().unwrap_or_default();
        return Found::Malformed(format!("{}: {problem}", path(&broken.name)));
    }
    let Some(winner) = directory.winner() else {
        return Found::Absent;
    };
    let bytes = files.iter().find(|(name, _)| *name == winner.name);
    // The directory has parsed these bytes before.
    let bytes = bytes.and_then(|(_, contents)| contents.as_deref().ok());
    let text = String::from_utf8_lossy(bytes.unwrap_or_default());
    let value: Value = match serde_json::from_str(&text) {
        Ok(value) => value,
        Err(error) => return Found::Malformed(format!("{}: {error}", path(&winner.name))),
    };
    let plugin = if winner.name.ends_with(".conflist") {
        &value["plugins"][0]
    } else {
        &value
    };
    let ipam = plugin
        .as_object()
        .and_then(|plugin| go_value(plugin, "ipam"))
        .and_then(Value::as_object);
    Found::Present(Conflist {
        path: path(&winner.name),
        network: winner.network.clone(),
        plugin: winner.plugins.first().cloned().unwrap_or_default(),
        ipam: read(
            ipam,
            "type",
            |value| value.as_str().map(str::to_owned),
            "a string",
        ),
        ipv4_pools: pools(ipam, "ipv4_pools"),
        ipv6_pools: pools(ipam, "ipv6_pools"),
    })
}

/// The pools of this key. An empty list pins to nothing.
fn pools(ipam: Option<&Map<String, Value>>, key: &str) -> Found<Vec<String>> {
    let texts = |value: &Value| -> Option<Vec<String>> {
        let texts = value.as_array()?.iter();
        texts.map(|text| text.as_str().map(str::to_owned)).collect()
    };
    match read(ipam, key, texts, "a list of strings") {
        Found::Present(pools) if pools.is_empty() => Found::Absent,
        found => found,
    }
}

fn read<T>(
    ipam: Option<&Map<String, Value>>,
    key: &str,
    understand: impl Fn(&Value) -> Option<T>,
    needed: &str,
) -> Found<T> {
    let value = ipam.and_then(|ipam| go_value(ipam, key));
    match value.filter(|value| !value.is_null()) {
        None => Found::Absent,
        Some(value) => match understand(value) {
            Some(value) => Found::Present(value),
            None => Found::Malformed(format!(
                "ipam.{key}: found {}, needed {needed}",
                go_json::kind(value)
            )),
        },
    }
}
