//! The parts that a step of several calls needs. Its methods are in `adopt` and `tunnel`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::error::ApplyError;
use crate::host::connections::{self, Change};
use crate::host::netlink::Netlink;
use crate::host::paths::Paths;
use crate::host::snapshot::Link;
use crate::kinds::flannel_to_calico::observe::Observation;

/// The parts that a step needs.
pub(super) struct StepContext<'step> {
    /// Name of the step.
    pub(super) step: &'static str,
    /// The host before the step.
    pub(super) seen: &'step Observation,
    /// Paths of the host.
    pub(super) paths: &'step Paths,
    /// Netlink.
    pub(super) netlink: &'step Netlink,
}

impl<'step> StepContext<'step> {
    pub(super) fn new(
        step: &'static str,
        seen: &'step Observation,
        paths: &'step Paths,
        netlink: &'step Netlink,
    ) -> Self {
        Self {
            step,
            seen,
            paths,
            netlink,
        }
    }

    /// Makes a change after which packets to these destinations leave through other links than `links`. Connections continue, with the
    /// addresses of `source` if the host translates their source. Not on a kernel without `nf_tables`, by which packets are held back.
    pub(super) async fn keep_connections(
        &self,
        links: Vec<String>,
        source: Option<&Link>,
        destinations: Vec<IpNet>,
        make: impl AsyncFnOnce() -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        if self.seen.facts.lacks_nf_tables {
            tracing::warn!(
                "the kernel has no nf_tables: connections whose source this host translates may end"
            );
            return make().await;
        }
        let all = &self.seen.snapshot.addresses;
        let of_source = all
            .iter()
            .filter(|own| source.is_some_and(|link| link.index == own.link));
        let change = Change {
            own: all.iter().map(|own| own.address.addr()).collect::<Vec<IpAddr>>(),
            links,
            source: of_source.map(|own| own.address.addr()).collect(),
            destinations,
        };
        let made = connections::keep(change, &self.paths.proc, make).await;
        made.map_err(ApplyError::connections(self.step))?
    }
}
