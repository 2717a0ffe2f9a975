//! Intended differences between this conversion and Calico's own.

use strum::VariantArray;

/// One difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray)]
pub enum Difference {
    /// `/calico/ipam/v2/config` is copied.
    IpamConfig,
    /// A value that is not JSON, or has a field of a wrong type, is an error.
    UnparsableValue,
    /// A key whose address or network cannot be read is an error.
    UnreadableKey,
    /// An invalid AS number for all nodes is an error like every other.
    GlobalAsNumber,
    /// An invalid address, network or AS number of a node is an error.
    NodeValue,
    /// The address of a node's tunnel is validated.
    TunnelAddress,
    /// An invalid node mesh is an error.
    NodeMesh,
    /// The AS number of a peer may be dotted or unquoted.
    PeerAsNumber,
    /// An invalid duration is one line.
    DurationOnce,
    /// A duration has to be within the range.
    DurationRange,
    /// A mark mask may be hexadecimal.
    MarkMask,
    /// An action of Felix is written in the form of v3.
    FelixAction,
    /// The refresh interval of XDP is written under its correct name.
    XdpName,
    /// Protocols of a workload's ports are written in the form of v3.
    WorkloadPorts,
    /// The protocol of an endpoint's port is written as a name.
    PortNumber,
    /// A block without its network, or an affinity of a host without a letter in its name, is an error.
    LateFailure,
    /// A namespace that no key can hold is an error.
    Namespace,
    /// A value that makes Calico's own tool crash is converted, or is an error.
    Crash,
}

impl Difference {
    /// All differences.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The difference and its reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::IpamConfig => {
                "Calico's own tool does not copy the IPAM config: strict affinity would be off without a message, and nodes would borrow addresses"
            }
            Self::UnparsableValue => {
                "Calico's own tool omits values that it cannot read, with success and no line in a report: a policy would be lost"
            }
            Self::UnreadableKey => {
                "Calico's own tool omits a peer or a pool with such a key, and crashes at such a block"
            }
            Self::GlobalAsNumber => {
                "Calico's own tool stops at an invalid AS number for all nodes and writes no report: other errors would be found one by one"
            }
            Self::NodeValue => {
                "Calico's own tool omits values of a node that it cannot read, with a line in its log: the node would lose its address"
            }
            Self::TunnelAddress => {
                "Calico's own tool copies the address of a node's tunnel after its validation: v3 would refuse every later write of the Node"
            }
            Self::NodeMesh => {
                "Calico's own tool takes a node mesh that it cannot read for disabled: every route between nodes would be lost"
            }
            Self::PeerAsNumber => {
                "Calico's own tool omits a peer whose AS number is dotted or unquoted, although it reads both forms elsewhere"
            }
            Self::DurationOnce => {
                "Calico's own tool writes two lines for one invalid duration; the second asks for an issue on GitHub"
            }
            Self::DurationRange => {
                "Calico's own tool converts a duration of more than 292 years, or one that is not a number, to the smallest duration"
            }
            Self::MarkMask => {
                "Felix documents its mark mask as hexadecimal (0xff000000), but Calico's own tool reads only decimal numbers"
            }
            Self::FelixAction => {
                "Calico's own tool copies RETURN, as v2's nodes wrote it: v3 refuses later writes of such an object, and a calico-node that has to add a default exits at its start"
            }
            Self::XdpName => {
                "Calico's own tool writes XDPRefreshInterval, because of an error in a struct tag; v3 reads xdpRefreshInterval"
            }
            Self::WorkloadPorts => {
                "Calico's own tool keeps protocols of a workload's ports in lower case and then refuses them, although it converts those of host endpoints"
            }
            Self::PortNumber => {
                "Calico's own tool copies the number of a protocol to an endpoint's port: Felix of v3 accepts only names there, and treats the whole endpoint as missing"
            }
            Self::LateFailure => {
                "Calico's own tool fails in the middle of writing, after it has paused the nodes, and leaves an incomplete store"
            }
            Self::Namespace => {
                "Calico's own tool writes an endpoint without a namespace, or with a slash in it, under a key that no program reads"
            }
            Self::Crash => {
                "Calico's own tool crashes, after it has paused the nodes, and does not name the value"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_difference_has_a_unique_reason() {
        let reasons: BTreeSet<&str> = Difference::ALL
            .iter()
            .map(|difference| difference.reason())
            .collect();
        assert_eq!(reasons.len(), Difference::ALL.len());
    }
}
