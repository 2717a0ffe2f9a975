//! Parts of a host for the tests of its decisions and checks.

use super::facts::VxlanDevice;
use super::host::{AdoptionSettings, HostSettings};
use engine::cni::CniDirectory;

/// Settings with the defaults of flannel.
pub(super) fn settings() -> HostSettings {
    HostSettings {
        vni: 1,
        port: 8472,
        mtu: 1450,
        cni_configuration_directory: "/etc/cni/net.d".to_owned(),
        block_size: 26,
        node_range_length: 24,
        ipv6: None,
        adopt_pods: false,
        write_firewall_twins: false,
        adoption: AdoptionSettings::default(),
    }
}

/// The CNI directory with these files.
pub(super) fn folder(files: &[(&str, &str)]) -> CniDirectory {
    let files = files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
        .collect();
    CniDirectory::read("/etc/cni/net.d", files)
}

/// A VXLAN device as flannel creates it, with this name.
pub(super) fn device(name: &str) -> VxlanDevice {
    VxlanDevice {
        name: name.to_owned(),
        vni: 1,
        port: 8472,
        mtu: 1450,
        local: None,
        parent: Some("eth0".to_owned()),
        learning: false,
        mac: "02:00:00:00:00:01".to_owned(),
        up: true,
        addresses: vec!["10.244.1.0/32".parse().unwrap()],
        routes: 2,
        block_routes: 0,
        neighbours: 2,
        forwarding_entries: 2,
    }
}
