//! Files of flannel and of Calico in the CNI configuration directory.

use engine::cni::{CniDirectory, CniFile};

/// Whether a plugin of flannel is in the file.
pub fn is_flannel(file: &CniFile) -> bool {
    file.has_plugin("flannel")
}

/// Whether a plugin of Calico is in the file.
pub fn is_calico(file: &CniFile) -> bool {
    file.has_plugin("calico")
}

/// Plugins that attach a pod to the network of another file, and to more networks.
const META_PLUGINS: [&str; 7] = [
    "multus",
    "multus-shim",
    "meshnet",
    "danm",
    "genie",
    "knitter",
    "kactus",
];

/// The plugin of the file that calls the plugins of other files, if there is one.
pub fn meta_plugin(file: &CniFile) -> Option<&'static str> {
    META_PLUGINS.into_iter().find(|plugin| file.has_plugin(plugin))
}

/// The files of flannel.
pub fn flannel_files(directory: &CniDirectory) -> impl Iterator<Item = &CniFile> {
    directory.files.iter().filter(|file| is_flannel(file))
}
