//! The CNI configuration folder: what the runtime reads there, and which file wins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One file of the folder that the runtime would look at (`.conf`, `.conflist`, `.json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CniFile {
    /// File name.
    pub name: String,
    /// The network's `name`, when the file was understood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The `type` of each plugin, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<String>,
    /// Why the runtime skips the file; `None` when it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The folder as the runtime reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CniDirectory {
    /// Path of the folder on the host.
    pub path: String,
    /// Files in the order in which the runtime reads them (by name).
    pub files: Vec<CniFile>,
}

impl CniDirectory {
    /// The file that the runtime uses: the first valid one by name.
    pub fn winner(&self) -> Option<&CniFile> {
        self.files.iter().find(|file| file.error.is_none())
    }

    /// Files that belong to flannel: any plugin of type `flannel`.
    pub fn flannel_files(&self) -> impl Iterator<Item = &CniFile> {
        self.files.iter().filter(|file| file.is_flannel())
    }
}

impl CniFile {
    /// Whether a plugin of type `flannel` is in the chain.
    pub fn is_flannel(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin == "flannel")
    }

    /// Whether a plugin of type `calico` is in the chain.
    pub fn is_calico(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin == "calico")
    }
}
