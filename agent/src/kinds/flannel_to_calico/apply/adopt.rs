//! Adoption of pods: changes to the links of pods. The bridge that the links leave is in `bridge`.

mod bridge;

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use flannel_to_calico::host::{BRIDGE, PodAction, PodChange, PodEnd};
use ipnet::IpNet;

use super::context::StepContext;
use super::error::ApplyError;
use crate::host::firewall::{detour, frames};
use crate::host::netlink::Renamed;
use crate::host::snapshot::{Link, Proxy};
use crate::host::sysctl;
use crate::kinds::flannel_to_calico::facts;
use crate::kinds::flannel_to_calico::journal::Before;

impl StepContext<'_> {
    /// Performs the action for each pod. A pod that has ended meanwhile is left out.
    pub(super) async fn change_pods(&self, change: &PodChange) -> Result<(), ApplyError> {
        match change.action {
            PodAction::Loosen => self.loosen(change),
            PodAction::Route => {
                let links = vec![BRIDGE.to_owned()];
                self.keep(links, &change.pods, async || {
                    for (end, link) in self.links(change) {
                        if link.name == end.calico_link {
                            // The agent was killed while the kernel had the link down to rename it.
                            let existing = self.seen.snapshot.of_link(link.index).proxies;
                            self.answer(end, link, &existing).await?;
                        }
                        self.route(end, link).await?;
                    }
                    Ok(())
                })
                .await
            }
            PodAction::Answer => self.answer_all(change).await,
            PodAction::Accept => self.accept(&rules(change)).await,
            PodAction::Detach => {
                self.around_bridge(change, async |ends| self.detach(ends).await)
                    .await
            }
            PodAction::Rename => self.rename_pods(change, |end| &end.calico_link).await,
        }
    }

    /// Reverts the action for each pod. `saved` is the state before the action.
    pub(super) async fn revert_pods(&self, change: &PodChange, saved: &Before) -> Result<(), ApplyError> {
        match change.action {
            PodAction::Loosen => self.restore_parameters(change, saved),
            PodAction::Route => {
                let links = self.links(change).map(|(_, link)| link.name.clone());
                self.keep(links.collect(), &change.pods, async || {
                    for (end, link) in self.links(change) {
                        self.route_by_bridge(end, link).await?;
                    }
                    Ok(())
                })
                .await
            }
            PodAction::Answer => {
                self.stop_answering(change).await?;
                self.restore_parameters(change, saved)
            }
            PodAction::Accept => self.stop_accepting(&rules(change)).await,
            PodAction::Detach => {
                self.around_bridge(change, async |ends| self.attach(ends, saved).await)
                    .await
            }
            PodAction::Rename => self.rename_pods(change, |end| &end.link).await,
        }
    }

    fn loosen(&self, change: &PodChange) -> Result<(), ApplyError> {
        for (end, link) in self.links(change) {
            self.write(&sysctl::reverse_path_filter_of(&link.name), sysctl::LOOSE)?;
            if end.speaks_ipv6() {
                self.write(&sysctl::ipv6_is_disabled_on(&link.name), "0")?;
            }
        }
        Ok(())
    }

    async fn answer_all(&self, change: &PodChange) -> Result<(), ApplyError> {
        for (end, link) in self.links(change) {
            for (parameter, value) in sysctl::answering_for_all(&link.name, end.speaks_ipv6()) {
                self.write(&parameter, value)?;
            }
            let existing = self.seen.snapshot.of_link(link.index).proxies;
            self.answer(end, link, &existing).await?;
        }
        Ok(())
    }

    /// The entry first: without it, the bridge would send frames for the pod to all its ports.
    async fn detach(&self, ends: &[(&PodEnd, &Link)]) -> Result<(), ApplyError> {
        for (end, link) in ends {
            let netlink_error = ApplyError::netlink(self.step);
            if let Some(bridge) = self.bridge() {
                let delivered = self.netlink.deliver_frames(bridge, &end.mac).await;
                delivered.map_err(&netlink_error)?;
            }
            let detached = self.netlink.detach_port(link).await;
            detached.map_err(netlink_error)?;
        }
        Ok(())
    }

    /// The reverse of [`Self::detach`].
    async fn attach(&self, ends: &[(&PodEnd, &Link)], saved: &Before) -> Result<(), ApplyError> {
        let Some(bridge) = self.bridge() else {
            return Ok(());
        };
        for (end, link) in ends {
            let netlink_error = ApplyError::netlink(self.step);
            let mut ports = saved.network.iter().flat_map(|network| &network.links);
            let was = ports.find(|port| port.mac == link.mac);
            let hairpin = was.and_then(|port| port.hairpin).unwrap_or_default();
            let attached = self.netlink.attach_port(link, bridge, hairpin).await;
            attached.map_err(&netlink_error)?;
            let stopped = self.netlink.stop_delivering_frames(bridge, &end.mac).await;
            stopped.map_err(netlink_error)?;
        }
        Ok(())
    }

    /// Lets the links of pods join or leave the bridge, without a lost packet.
    async fn around_bridge(
        &self,
        change: &PodChange,
        make: impl AsyncFn(&[(&PodEnd, &Link)]) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let all: Vec<(&PodEnd, &Link)> = self.links(change).collect();
        for ends in all.chunks(detour::MOST_LINKS) {
            let links: Vec<&str> = ends.iter().map(|(_, link)| link.name.as_str()).collect();
            detour::around(&links, &self.paths.sysctl, async || make(ends).await)
                .await
                .map_err(ApplyError::firewall(self.step))??;
        }
        Ok(())
    }

    /// Makes a change after which packets to these pods leave through other links than these. Connections continue.
    async fn keep(
        &self,
        links: Vec<String>,
        pods: &[PodEnd],
        make: impl AsyncFnOnce() -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let addresses = pods.iter().flat_map(|end| &end.addresses);
        let destinations = addresses.map(|address| IpNet::from(*address)).collect();
        self.keep_connections(links, self.bridge(), destinations, make)
            .await
    }

    fn restore_parameters(&self, change: &PodChange, saved: &Before) -> Result<(), ApplyError> {
        super::back::restore_parameters(self.step, &parameters_of(saved, change))
    }

    /// Lets the link of a pod answer for the IPv6 addresses that the pod looks for on its own link. Nothing for a pod without IPv6.
    async fn answer(&self, end: &PodEnd, link: &Link, existing: &[Proxy]) -> Result<(), ApplyError> {
        if !end.speaks_ipv6() {
            return Ok(());
        }
        let (snapshot, attachments) = (&self.seen.snapshot, &self.seen.state.attachments);
        let is_missing = |address: &Ipv6Addr| {
            let is_own = end.addresses.contains(&IpAddr::V6(*address));
            !is_own && !existing.iter().any(|proxy| proxy.address == *address)
        };
        for address in facts::on_bridge(snapshot, attachments)
            .into_iter()
            .filter(is_missing)
        {
            let added = self.netlink.add_proxy(link.index, address).await;
            added.map_err(ApplyError::netlink(self.step))?;
        }
        Ok(())
    }

    /// The reverse of [`Self::answer`]. A port of a bridge has no such entries of its own.
    async fn stop_answering(&self, change: &PodChange) -> Result<(), ApplyError> {
        for (_, link) in self.links(change) {
            for proxy in self.seen.snapshot.of_link(link.index).proxies {
                let deleted = self.netlink.delete_proxy(&proxy).await;
                deleted.map_err(ApplyError::netlink(self.step))?;
            }
        }
        Ok(())
    }

    /// Removes rules for frames.
    pub(super) async fn stop_accepting(&self, rules: &[String]) -> Result<(), ApplyError> {
        frames::stop_accepting(rules, &self.seen.facts.calico.frame_rules)
            .await
            .map_err(|source| ApplyError::firewall(self.step)(source.into()))
    }

    async fn accept(&self, rules: &[String]) -> Result<(), ApplyError> {
        let exists = |name: &str| self.seen.snapshot.link(name).is_some();
        frames::accept(rules, exists)
            .await
            .map_err(|source| ApplyError::firewall(self.step)(source.into()))
    }

    /// The neighbour entry first: without it, ARP would have to answer through a port of the bridge.
    async fn route(&self, end: &PodEnd, link: &Link) -> Result<(), ApplyError> {
        for address in &end.addresses {
            let netlink_error = ApplyError::netlink(self.step);
            let added = self.netlink.add_neighbour(link, *address, &end.mac).await;
            added.map_err(&netlink_error)?;
            let routed = self.netlink.add_host_route(*address, link.index).await;
            routed.map_err(netlink_error)?;
        }
        Ok(())
    }

    async fn route_by_bridge(&self, end: &PodEnd, link: &Link) -> Result<(), ApplyError> {
        let Some(bridge) = self.bridge() else {
            return Ok(());
        };
        for address in &end.addresses {
            let netlink_error = ApplyError::netlink(self.step);
            let routed = self.netlink.add_host_route(*address, bridge.index).await;
            routed.map_err(&netlink_error)?;
            let deleted = self.netlink.delete_neighbour(link, *address).await;
            deleted.map_err(netlink_error)?;
        }
        Ok(())
    }

    /// Renames the links. A kernel that does not rename a link that is up needs it down for a moment, which deletes its routes and
    /// ends connections.
    async fn rename_pods(
        &self,
        change: &PodChange,
        name: impl for<'end> Fn(&'end PodEnd) -> &'end str,
    ) -> Result<(), ApplyError> {
        let netlink_error = || ApplyError::netlink(self.step);
        let mut refused = Vec::new();
        for (end, link) in self.links(change).filter(|(end, link)| link.name != name(end)) {
            let renamed = self.netlink.rename_link(link, name(end)).await;
            match renamed.map_err(netlink_error())? {
                Renamed::Yes => {}
                Renamed::Refused => refused.push((end, link)),
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        // Without the route of a pod, its packets leave through the bridge. The kernel looks for connections of the old name later.
        let names = |(end, link): &(&PodEnd, &Link)| [link.name.clone(), name(end).to_owned()];
        let links = refused.iter().flat_map(names).chain([BRIDGE.to_owned()]);
        self.keep(links.collect(), &change.pods, async || {
            for (end, link) in refused {
                let renamed = self.netlink.rename_while_down(link, name(end));
                // The kernel has deleted these entries, too. The routes are the last ones: they show that all is there again.
                self.answer(end, link, &[]).await?;
                self.route(end, link).await?;
                renamed.map_err(netlink_error())?;
            }
            Ok(())
        })
        .await
    }

    fn write(&self, parameter: &str, value: &str) -> Result<(), ApplyError> {
        sysctl::write(&self.paths.sysctl.join(parameter), value).map_err(ApplyError::file(self.step))
    }

    fn bridge(&self) -> Option<&Link> {
        self.seen.snapshot.link(BRIDGE)
    }

    /// The links of the pods that run, under whichever name.
    fn links<'all>(&'all self, change: &'all PodChange) -> impl Iterator<Item = (&'all PodEnd, &'all Link)> {
        change.pods.iter().filter_map(|end| {
            let mut pods = self.seen.facts.legacy_pods.iter();
            let pod = pods.find(|pod| pod.sandbox == end.sandbox)?;
            let link = self.seen.snapshot.link(&pod.pod_link.as_ref()?.name)?;
            Some((end, link))
        })
    }
}

/// The saved parameters of the links of these pods: the change may have named others, too.
fn parameters_of(saved: &Before, change: &PodChange) -> Before {
    let is_named = |path: &Path| {
        let mut parts = path.components();
        parts.any(|part| {
            change
                .pods
                .iter()
                .any(|end| part.as_os_str() == end.link.as_str())
        })
    };
    let texts = saved.texts.iter().filter(|(path, _)| is_named(path));
    Before {
        texts: texts.map(|(path, value)| (path.clone(), value.clone())).collect(),
        ..Before::default()
    }
}

fn rules(change: &PodChange) -> Vec<String> {
    change.pods.iter().map(PodEnd::frame_rule).collect()
}
