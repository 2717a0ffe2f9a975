//! Changes to the bridge that adopted pods leave, and to its addresses.

use std::net::IpAddr;

use flannel_to_calico::host::{BRIDGE, KEPT_LABEL};

use super::super::back;
use super::super::context::StepContext;
use super::super::error::ApplyError;
use crate::host::sysctl;
use crate::kinds::flannel_to_calico::facts;
use crate::kinds::flannel_to_calico::journal::Before;

impl StepContext<'_> {
    /// Prepares the bridge for pods that leave it.
    pub(in crate::kinds::flannel_to_calico::apply) async fn open_bridge(&self) -> Result<(), ApplyError> {
        if let Some(bridge) = self.bridge() {
            let kept = self.netlink.keep_mac(bridge).await;
            kept.map_err(ApplyError::netlink(self.step))?;
        }
        self.write(&sysctl::reverse_path_filter_of(BRIDGE), sysctl::LOOSE)?;
        self.accept(&[BRIDGE.to_owned()]).await
    }

    /// The reverse of [`Self::open_bridge`].
    pub(in crate::kinds::flannel_to_calico::apply) async fn close_bridge(
        &self,
        saved: &Before,
    ) -> Result<(), ApplyError> {
        back::restore_parameters(self.step, saved)?;
        self.stop_accepting(&[BRIDGE.to_owned()]).await
    }

    /// Creates the bridge again as it was when its last port left it: adopted pods find it as they remember it.
    pub(in crate::kinds::flannel_to_calico::apply) async fn restore_bridge(
        &self,
        saved: &Before,
    ) -> Result<(), ApplyError> {
        let network = saved.network.as_ref();
        let Some((network, link)) = network.and_then(|network| Some((network, network.links.first()?)))
        else {
            return Err(ApplyError::Lost {
                step: self.step,
                problem: format!(
                    "the journal has no record of link {BRIDGE}: restart the pods that were adopted on this node"
                ),
            });
        };
        let netlink_error = ApplyError::netlink(self.step);
        let created = self.netlink.create_bridge(link).await;
        let bridge = created.map_err(&netlink_error)?;
        back::restore_parameters(self.step, saved)?;
        let speaks_ipv6 = facts::speaks_ipv6(network, BRIDGE);
        if speaks_ipv6 {
            // Otherwise the host sends no neighbour solicitation through the bridge for one or two seconds.
            self.write(&sysctl::duplicate_address_detection_of(BRIDGE), "0")?;
        }
        let restored = self
            .netlink
            .restore_bridge(&bridge, link, &network.addresses)
            .await;
        restored.map_err(&netlink_error)?;
        for (parameter, value) in sysctl::answering(BRIDGE, speaks_ipv6) {
            self.write(&parameter, value)?;
        }
        self.open_bridge().await?;
        for pod in self.seen.facts.legacy_pods.iter().filter(|pod| pod.is_adopted()) {
            let delivered = self.netlink.deliver_frames(&bridge, &pod.mac).await;
            delivered.map_err(&netlink_error)?;
            for address in pod.ipv6_addresses() {
                let answered = self.netlink.add_proxy(bridge.index, address).await;
                answered.map_err(&netlink_error)?;
            }
        }
        Ok(())
    }

    /// Puts addresses of the bridge on the loopback interface.
    pub(in crate::kinds::flannel_to_calico::apply) async fn keep_addresses(
        &self,
        addresses: &[IpAddr],
    ) -> Result<(), ApplyError> {
        for address in addresses {
            let kept = self.netlink.keep_address(*address, KEPT_LABEL).await;
            kept.map_err(ApplyError::netlink(self.step))?;
        }
        Ok(())
    }

    /// The reverse of [`Self::keep_addresses`].
    pub(in crate::kinds::flannel_to_calico::apply) async fn drop_addresses(
        &self,
        addresses: &[IpAddr],
    ) -> Result<(), ApplyError> {
        for address in addresses {
            let dropped = self.netlink.drop_address(*address, KEPT_LABEL).await;
            dropped.map_err(ApplyError::netlink(self.step))?;
        }
        Ok(())
    }
}
