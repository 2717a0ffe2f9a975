//! Which pods have to move, and the words of their kind of migration about them.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::drain::Pod;

/// Which pods have to move, with the words of their kind.
#[derive(Clone, Copy, Debug)]
pub struct Movers<'facts> {
    /// Which pods.
    pub chosen: Chosen<'facts>,
    /// Words for messages.
    pub words: &'static MoverWords,
}

/// Which pods have to move: by the range of their addresses, or one by one.
#[derive(Clone, Copy, Debug)]
pub enum Chosen<'facts> {
    /// Pods with an address outside these ranges, in a family of these ranges. The ranges are those of every pool that stays: the
    /// target pool, and pools that the migration does not touch.
    OutOf(&'facts [IpNet]),
    /// Pods with an address in this range, the source range: while the range of a pool that stays is not known, a pod with
    /// another address may be of that pool.
    Within(&'facts IpNet),
    /// These pods, by UID. Pods of the host's network may be among them.
    These(&'facts BTreeSet<String>),
}

/// The words of a kind about the pods that have to move, for messages.
#[derive(Debug)]
pub struct MoverWords {
    /// The source that the pods leave.
    pub source: &'static str,
    /// Why pods have to move, after "pods".
    pub why: &'static str,
    /// Why a pod has to move that was created when no new pod was to need it, with the fix, after "pod NAME was created after".
    pub created_after_close: &'static str,
    /// The field of the spec that allows to delete pods without a controller.
    pub bare_pods_field: &'static str,
}

impl Movers<'_> {
    /// Whether this pod has to move.
    pub fn has(self, pod: &Pod) -> bool {
        self.counts(pod)
            && match self.chosen {
                Chosen::OutOf(targets) => is_out_of(pod, targets),
                Chosen::Within(range) => pod.addresses.iter().any(|address| range.contains(address)),
                Chosen::These(uids) => uids.contains(&pod.uid),
            }
    }

    /// Whether this pod counts among the pods of its workload that have to be Ready.
    pub(super) fn counts(self, pod: &Pod) -> bool {
        match self.chosen {
            Chosen::OutOf(_) | Chosen::Within(_) => pod.uses_pod_network() && !pod.mirror,
            Chosen::These(_) => !pod.finished && !pod.mirror,
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
