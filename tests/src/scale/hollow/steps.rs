//! Applies the effect of each agent's step to the model of a host.

use flannel_to_calico::facts::Found;
use flannel_to_calico::host::HostStep;

use super::host::Host;

/// Makes the change.
pub(super) fn perform(host: &mut Host, step: &HostStep) {
    match step {
        HostStep::WithdrawSubnetEnvironment => host.set_environment(false),
        HostStep::RestoreSubnetEnvironment => host.set_environment(true),
        HostStep::RemoveConflist(name) | HostStep::RemoveCalicoConflist(name) => {
            host.set_conflist(name, false);
        }
        HostStep::RestoreConflist(name) => host.set_conflist(name, true),
        HostStep::DeleteVxlanDevice(name) => host.facts.vxlan_devices.retain(|device| device.name != *name),
        HostStep::RestoreVxlanDevice(name) => {
            // The model does not keep deleted links: it adds a similar link under the same name.
            if let Some(device) = host.facts.vxlan_devices.first() {
                let device = flannel_to_calico::facts::VxlanDevice {
                    name: name.clone(),
                    ..device.clone()
                };
                host.facts.vxlan_devices.push(device);
            }
        }
        HostStep::RenameVxlanDevice { from, to, .. } | HostStep::ReturnVxlanDevice { from, to } => {
            for device in host
                .facts
                .vxlan_devices
                .iter_mut()
                .filter(|device| device.name == *from)
            {
                device.name.clone_from(to);
            }
        }
        HostStep::RestoreNodeRoutes { link, .. } => {
            for device in host
                .facts
                .vxlan_devices
                .iter_mut()
                .filter(|device| device.name == *link)
            {
                device.block_routes = 0;
            }
        }
        HostStep::DeleteBridge => host.facts.bridge = Found::Absent,
        HostStep::DeleteFirewallObject(object) => host.facts.firewall.retain(|found| found != object),
        HostStep::RestoreFirewallObject(object) => host.facts.firewall.push(object.clone()),
        HostStep::RouteLegacyPods(addresses) => {
            for pod in &mut host.facts.legacy_pods {
                pod.routed |= pod.addresses.iter().any(|address| addresses.contains(address));
            }
            host.facts.calico.pod_routes = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        }
        HostStep::UnrouteLegacyPods => {
            for pod in &mut host.facts.legacy_pods {
                pod.routed = false;
            }
            host.facts.calico.pod_routes = 0;
        }
        HostStep::AnswerForPods | HostStep::StopAnsweringForPods => {
            if let Found::Present(bridge) = &mut host.facts.bridge {
                bridge.answers_for_pods = *step == HostStep::AnswerForPods;
            }
        }
        HostStep::AnswerForAddresses(networks) => {
            if let Found::Present(bridge) = &mut host.facts.bridge {
                bridge.answered.clone_from(networks);
            }
        }
        HostStep::StopAnsweringForAddresses => {
            if let Found::Present(bridge) = &mut host.facts.bridge {
                bridge.answered.clear();
            }
        }
        HostStep::RouteSubnets { .. } => {
            host.facts.calico.subnet_routes.missing = 0;
            host.facts.calico.subnet_routes.looked_up = true;
        }
        HostStep::UnrouteSubnets => {
            host.facts.calico.subnet_routes = flannel_to_calico::facts::SubnetRoutes::default();
        }
        HostStep::ForgetLegacyPod(sandbox) => host.facts.legacy_pods.retain(|pod| pod.sandbox != *sandbox),
        HostStep::RemoveLeases => {
            host.facts.leases = 0;
            host.facts.delegates = 0;
        }
        // A hollow host reports no links of pods: its pods cannot be adopted, and these steps are not decided.
        HostStep::OpenBridge
        | HostStep::ChangePods(_)
        | HostStep::KeepBridgeAddresses(_)
        | HostStep::RemoveFrameRules(_)
        | HostStep::DropBridgeAddresses(_)
        | HostStep::RestoreBridge
        | HostStep::RevertPods(_)
        | HostStep::CloseBridge => {}
        HostStep::DeleteCalicoFirewall(object) => host.facts.calico.firewall.retain(|found| found != object),
        HostStep::DeleteCalicoSets => host.facts.calico.sets = 0,
        HostStep::DeleteBlackholes => host.facts.calico.blackholes = 0,
        HostStep::RemoveCalicoRecords => host.facts.calico.records = 0,
    }
}
