//! Paths of the host's folders, as the agent's container has them.

use std::path::PathBuf;

/// Paths of the host's folders in this process's file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/run/flannel`.
    pub flannel: PathBuf,
    /// `/var/lib/cni`.
    pub cni_state: PathBuf,
    /// `/etc/cni/net.d`, or the folder in the settings.
    pub cni_configuration: PathBuf,
    /// `/opt/cni/bin`: executables of CNI plugins.
    pub cni_plugins: PathBuf,
    /// `/etc/crio`: configuration of CRI-O; missing on other hosts, and where it is not mounted.
    pub crio: PathBuf,
    /// Writable mount of `/proc/sys/net`.
    pub sysctl: PathBuf,
}

impl Paths {
    /// flannel's `subnet.env`.
    pub fn subnet_environment(&self) -> PathBuf {
        self.flannel.join("subnet.env")
    }
}
