//! The VXLAN links of flannel and of Calico on a host.

use super::{FLANNEL_DEVICES, HostSettings, HostStep, Tunnel};
use crate::facts::HostFacts;

/// The first problem of Calico's devices; `None` if they are as configured.
pub fn calico_device_problem(facts: &HostFacts, settings: &HostSettings) -> Option<String> {
    settings
        .tunnels()
        .iter()
        .find_map(|tunnel| device_problem(facts, settings, tunnel.calico_name))
}

fn device_problem(facts: &HostFacts, settings: &HostSettings, name: &str) -> Option<String> {
    let Some(device) = facts.vxlan(name) else {
        return Some(format!("link {name} does not exist yet"));
    };
    if !device.up {
        return Some(format!("link {name} is down"));
    }
    if device.vni != settings.vni || device.port != settings.port {
        return Some(format!(
            "link {name} has VNI {} port {}, needed VNI {} port {}",
            device.vni, device.port, settings.vni, settings.port
        ));
    }
    if device.addresses.is_empty() {
        return Some(format!("link {name} has no tunnel address yet"));
    }
    None
}

/// Names of flannel's VXLAN links: the link of the configured VNI, and all others with a name of flannel.
pub(super) fn flannel_devices<'facts>(
    facts: &'facts HostFacts,
    settings: &'facts HostSettings,
) -> impl Iterator<Item = String> + 'facts {
    facts.vxlan_devices.iter().filter_map(|device| {
        let is_flannel = device.name == settings.flannel_device()
            || FLANNEL_DEVICES.iter().any(|prefix| {
                device
                    .name
                    .strip_prefix(prefix)
                    .is_some_and(|vni| vni.parse::<u32>().is_ok())
            });
        is_flannel.then(|| device.name.clone())
    })
}

/// The steps that give flannel's tunnels the names of Calico's. A tunnel whose new name is taken is not among them.
pub(super) fn renames(facts: &HostFacts, settings: &HostSettings) -> Vec<HostStep> {
    let of_flannel = |tunnel: &Tunnel| {
        facts.vxlan(&tunnel.flannel_name).is_some() && facts.vxlan(tunnel.calico_name).is_none()
    };
    let tunnels = settings.tunnels().into_iter().filter(of_flannel);
    tunnels
        .map(|tunnel| HostStep::RenameVxlanDevice {
            from: tunnel.flannel_name,
            to: tunnel.calico_name.to_owned(),
            block_size: tunnel.block_size,
        })
        .collect()
}
