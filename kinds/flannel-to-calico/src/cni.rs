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

/// The files of flannel.
pub fn flannel_files(directory: &CniDirectory) -> impl Iterator<Item = &CniFile> {
    directory.files.iter().filter(|file| is_flannel(file))
}
