//! The pods that have to move to the new range.

use engine::moves::{Chosen, MoverWords, Movers};
use ipnet::IpNet;

const WORDS: MoverWords = MoverWords {
    source: "the old range",
    why: "have addresses of the old range",
    created_after_close: "the old pool was closed, and still has an address of it: a new pod would get one, too. Check the \
                          annotations `cni.projectcalico.org/ipAddrs` and `…/ipv4pools` of the pod and of its namespace",
    bare_pods_field: "podCidr.deleteBarePods",
};

/// Pods with an address outside the ranges of the pools that stay, in a family of these ranges.
pub fn out_of(targets: &[IpNet]) -> Movers<'_> {
    Movers {
        chosen: Chosen::OutOf(targets),
        words: &WORDS,
    }
}

/// Pods with an address in the source range, while the range of a pool that stays is not known.
pub fn within(source: &IpNet) -> Movers<'_> {
    Movers {
        chosen: Chosen::Within(source),
        words: &WORDS,
    }
}
