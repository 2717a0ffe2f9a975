//! The CNI configuration directory: the files that the container runtime reads, and the file that it uses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::go_json;

/// The configuration directory that runtimes read unless another one is configured.
pub const CONFIGURATION_DIRECTORY: &str = "/etc/cni/net.d";
/// Name endings of the files that runtimes read.
const ENDINGS: [&str; 3] = [".conf", ".conflist", ".json"];
/// The largest file that containerd reads, in bytes.
pub const LARGEST_FILE: usize = 2 * 1024 * 1024;

/// Whether a runtime reads a file with this name.
pub fn is_read(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The bytes of a file, or why the file cannot be read.
pub type Contents = Result<Vec<u8>, String>;

/// `CniFile` is a file in the CNI configuration directory that the container runtime reads (`.conf`, `.conflist` or `.json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CniFile {
    /// `name` is the file name.
    pub name: String,
    /// `network` is the `name` of the network in the file. Unset if the file was not understood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// `plugins` is the list of the `type` of each plugin, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<String>,
    /// `error` is why the container runtime does not accept the file. Unset if the file is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `CniDirectory` is the CNI configuration directory as the container runtime reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CniDirectory {
    /// `path` is the path of the directory on the host.
    pub path: String,
    /// `files` is the list of files that the container runtime reads, ordered by name. The runtime uses the first file if it is
    /// valid.
    pub files: Vec<CniFile>,
}

impl CniDirectory {
    /// Reads the files of the directory (name and bytes) as runtimes do: files with a known ending, ordered by name.
    pub fn read(path: impl Into<String>, files: Vec<(String, Vec<u8>)>) -> Self {
        Self::of(path, files.into_iter().map(|(name, bytes)| (name, Ok(bytes))))
    }

    /// The same, with files that cannot be read. Such a file stops a runtime, like a broken file.
    pub fn of(path: impl Into<String>, files: impl IntoIterator<Item = (String, Contents)>) -> Self {
        let mut files: Vec<CniFile> = files
            .into_iter()
            .filter(|(name, _)| is_read(name))
            .map(|(name, contents)| CniFile::read(name, contents))
            .collect();
        files.sort_by(|left, right| left.name.cmp(&right.name));
        Self {
            path: path.into(),
            files,
        }
    }

    /// The file that the runtime uses: the first by name, if it is valid.
    ///
    /// With a broken first file there is no winner: containerd stops there and has no network, while CRI-O continues with the
    /// next file. A directory has to work with both runtimes; [`Self::broken`] names the file.
    pub fn winner(&self) -> Option<&CniFile> {
        self.files.first().filter(|file| file.error.is_none())
    }

    /// The file that stops containerd: the first file, if it is broken.
    pub fn broken(&self) -> Option<&CniFile> {
        self.files.first().filter(|file| file.error.is_some())
    }
}

impl CniFile {
    /// Reads one file. A file that is not understood becomes an entry with its error.
    fn read(name: String, contents: Contents) -> Self {
        let mut file = Self {
            name,
            network: None,
            plugins: Vec::new(),
            error: None,
        };
        if let Err(error) = contents.and_then(|bytes| file.fill(&bytes)) {
            file.error = Some(error);
        }
        file
    }

    fn fill(&mut self, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() > LARGEST_FILE {
            return Err(format!("{} bytes, needed at most {LARGEST_FILE}", bytes.len()));
        }
        // Go reads bytes that are not UTF-8 as replacement characters.
        let value: Value = serde_json::from_str(&String::from_utf8_lossy(bytes))
            .map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(map) = value else {
            return Err(format!("found {}, needed an object", go_json::kind(&value)));
        };
        if self.name.ends_with(".conflist") {
            self.fill_from_list(&map)
        } else {
            self.fill_from_plugin(&map)
        }
    }

    /// Reads a conflist. Its own keys are case-sensitive, keys of its plugins are not.
    fn fill_from_list(&mut self, map: &Map<String, Value>) -> Result<(), String> {
        self.network = Some(text(map.get("name"), "name")?);
        if let Some(version) = map.get("cniVersion") {
            text(Some(version), "cniVersion")?;
        }
        for key in ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"] {
            flag(map.get(key), key)?;
        }
        let plugins = match map.get("plugins") {
            Some(Value::Array(plugins)) if !plugins.is_empty() => plugins,
            Some(Value::Array(_)) => {
                return Err("plugins: found an empty list, needed at least one".to_owned());
            }
            Some(other) => return Err(format!("plugins: found {}, needed a list", go_json::kind(other))),
            None => return Err("plugins: missing, needed a list of at least one".to_owned()),
        };
        for (index, plugin) in plugins.iter().enumerate() {
            let Value::Object(map) = plugin else {
                return Err(format!(
                    "plugins[{index}]: found {}, needed an object",
                    go_json::kind(plugin)
                ));
            };
            self.plugins
                .push(plugin_type(map).map_err(|error| format!("plugins[{index}].{error}"))?);
        }
        Ok(())
    }

    /// Reads the configuration of a single plugin, or refuses a conflist with the wrong ending.
    fn fill_from_plugin(&mut self, map: &Map<String, Value>) -> Result<(), String> {
        if map.contains_key("plugins") {
            return Err(format!(
                "found a list of plugins in {}, needed a file name that ends in .conflist",
                self.name
            ));
        }
        let plugin = plugin_type(map)?;
        self.network = Some(text(go_value(map, "name"), "name")?);
        self.plugins.push(plugin);
        Ok(())
    }

    /// Whether a plugin of this type is in the chain.
    pub fn has_plugin(&self, plugin_type: &str) -> bool {
        self.plugins.iter().any(|plugin| plugin == plugin_type)
    }
}

/// The value of a key in any case, as Go reads it: the last one.
pub fn go_value<'map>(map: &'map Map<String, Value>, key: &str) -> Option<&'map Value> {
    map.get(key)
        .or_else(|| go_json::values(map, key).last().map(|(_, value)| *value))
}

/// The `type` of a plugin, if the other well-known keys have valid values.
fn plugin_type(map: &Map<String, Value>) -> Result<String, String> {
    for key in ["cniVersion", "name"] {
        if let Some(value) = go_value(map, key).filter(|value| !value.is_null())
            && !value.is_string()
        {
            return Err(format!("{key}: found {}, needed a string", go_json::kind(value)));
        }
    }
    for key in ["ipam", "dns", "capabilities"] {
        if let Some(value) = go_value(map, key).filter(|value| !value.is_null())
            && !value.is_object()
        {
            return Err(format!("{key}: found {}, needed an object", go_json::kind(value)));
        }
    }
    text(go_value(map, "type"), "type")
}

fn text(value: Option<&Value>, key: &str) -> Result<String, String> {
    match value {
        Some(Value::String(text)) if text.is_empty() => Err(format!("{key}: empty, needed a name")),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("{key}: found {}, needed a string", go_json::kind(other))),
        None => Err(format!("{key}: missing, needed a string")),
    }
}

fn flag(value: Option<&Value>, key: &str) -> Result<(), String> {
    match value {
        None | Some(Value::Bool(_)) => Ok(()),
        Some(Value::String(text))
            if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") =>
        {
            Ok(())
        }
        Some(other) => Err(format!("{key}: found {other}, needed true or false")),
    }
}

#[cfg(test)]
mod tests;
