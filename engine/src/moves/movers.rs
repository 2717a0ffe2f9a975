//! Which pods have to move: by the range of their addresses, or because they started with old addresses of Services.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::drain::Pod;

/// Which pods have to move.
#[derive(Clone, Copy, Debug)]
pub enum Movers<'facts> {
    /// Pods with an address outside these ranges, in a family of these ranges. The ranges are those of every pool that stays: the
    /// target pool, and pools that the migration does not touch.
    OutOf(&'facts [IpNet]),
    /// Pods with an address in this range, the source range: while the range of a pool that stays is not known, a pod with
    /// another address may be of that pool.
    Within(&'facts IpNet),
    /// Pods that started with an old address of a Service, by UID.
    StartedWithOldAddress(&'facts BTreeSet<String>),
}

impl Movers<'_> {
    /// Whether this pod has to move.
    pub fn has(self, pod: &Pod) -> bool {
        self.counts(pod)
            && match self {
                Self::OutOf(targets) => is_out_of(pod, targets),
                Self::Within(range) => pod.addresses.iter().any(|address| range.contains(address)),
                Self::StartedWithOldAddress(uids) => uids.contains(&pod.uid),
            }
    }

    /// Whether this pod counts among the pods of its workload that have to be Ready.
    pub(super) fn counts(self, pod: &Pod) -> bool {
        match self {
            Self::OutOf(_) | Self::Within(_) => pod.uses_pod_network() && !pod.mirror,
            // A hostNetwork pod starts with addresses of Services, too.
            Self::StartedWithOldAddress(_) => !pod.finished && !pod.mirror,
        }
    }

    /// The source that the pods leave, for messages.
    pub(super) fn place(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "the old range",
            Self::StartedWithOldAddress(_) => "old Service addresses",
        }
    }

    /// Why the pods have to move, for messages.
    pub(super) fn matter(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "have addresses of the old range",
            Self::StartedWithOldAddress(_) => "have started with addresses of the old range",
        }
    }

    /// The spec field that allows to delete bare pods.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::OutOf(_) | Self::Within(_) => "podCidr.deleteBarePods",
            Self::StartedWithOldAddress(_) => "serviceCidr.deleteBarePods",
        }
    }
}

fn is_out_of(pod: &Pod, targets: &[IpNet]) -> bool {
    let of_a_family = |address: &std::net::IpAddr| {
        targets
            .iter()
            .any(|target| target.addr().is_ipv4() == address.is_ipv4())
    };
    let in_target = |address: &std::net::IpAddr| targets.iter().any(|target| target.contains(address));
    let mut addresses = pod.addresses.iter();
    addresses.any(|address| of_a_family(address) && !in_target(address))
}
