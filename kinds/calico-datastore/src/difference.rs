//! Where this conversion differs on purpose from Calico's own.

/// One difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// `/calico/ipam/v2/config` is copied.
    IpamConfig,
    /// A value that is no JSON, or has a field of another type, is an error.
    UnparsableValue,
    /// A key whose address or network cannot be read is an error.
    UnreadableKey,
    /// A bad AS number for all nodes is an error like every other.
    GlobalAsNumber,
    /// A node's address, network or AS number that cannot be read is an error.
    NodeValue,
    /// The address of a node's tunnel is checked.
    TunnelAddress,
    /// A node mesh that cannot be read is an error.
    NodeMesh,
    /// A peer's AS number may be dotted, or stand without quotes.
    PeerAsNumber,
    /// A bad time is one line.
    DurationOnce,
    /// A time has to fit.
    DurationRange,
    /// A mark mask may be hexadecimal.
    MarkMask,
    /// What Felix does with a packet is written as v3 writes it.
    FelixAction,
    /// The interval of XDP's refresh is written under its right name.
    XdpName,
    /// Protocols of a workload's ports are written as v3 writes them.
    WorkloadPorts,
    /// The protocol of an endpoint's port is written by its name.
    PortNumber,
    /// A block without its network, or a claim of a host without a letter in its name, is an error.
    LateFailure,
    /// A namespace that no key can hold is an error.
    Namespace,
    /// What makes Calico's own tool crash is converted, or an error.
    Crash,
}

impl Difference {
    /// Every one.
    pub const ALL: [Self; 18] = [
        Self::IpamConfig,
        Self::UnparsableValue,
        Self::UnreadableKey,
        Self::GlobalAsNumber,
        Self::NodeValue,
        Self::TunnelAddress,
        Self::NodeMesh,
        Self::PeerAsNumber,
        Self::DurationOnce,
        Self::DurationRange,
        Self::MarkMask,
        Self::FelixAction,
        Self::XdpName,
        Self::WorkloadPorts,
        Self::PortNumber,
        Self::LateFailure,
        Self::Namespace,
        Self::Crash,
    ];

    /// What is otherwise, and why.
    pub fn reason(self) -> &'static str {
        match self {
            Self::IpamConfig => {
                "Calico's own tool leaves the IPAM config behind: strict affinity would be off without a word, and nodes would borrow addresses"
            }
            Self::UnparsableValue => {
                "Calico's own tool leaves out what it cannot read, with success and no line in a report: a policy would be gone"
            }
            Self::UnreadableKey => {
                "Calico's own tool leaves out a peer or a pool with such a key, and crashes at such a block"
            }
            Self::GlobalAsNumber => {
                "Calico's own tool stops at a bad AS number for all nodes and writes no report: other errors would come to light one by one"
            }
            Self::NodeValue => {
                "Calico's own tool leaves out what it cannot read of a node, with a line in its log: the node would lose its address"
            }
            Self::TunnelAddress => {
                "Calico's own tool copies the address of a node's tunnel after its checks: v3 would refuse every later write of the Node"
            }
            Self::NodeMesh => {
                "Calico's own tool takes a node mesh that it cannot read for one that is off: every route between nodes would go"
            }
            Self::PeerAsNumber => {
                "Calico's own tool leaves out a peer whose AS number is dotted or stands without quotes, though it reads both elsewhere"
            }
            Self::DurationOnce => {
                "Calico's own tool says two lines for one bad time, the second of which asks for an issue on GitHub"
            }
            Self::DurationRange => {
                "a time of more than 292 years, or one that is no number, is the least of all times in Calico's own tool"
            }
            Self::MarkMask => {
                "Felix documents its mark mask as hexadecimal (0xff000000), and Calico's own tool reads decimal alone"
            }
            Self::FelixAction => {
                "Calico's own tool copies RETURN, as v2's nodes wrote it: v3 refuses to write such an object again, and a calico-node that has to add a default to it ends at its start"
            }
            Self::XdpName => {
                "a slip in that version's struct tag writes XDPRefreshInterval; v3 calls it xdpRefreshInterval and reads that"
            }
            Self::WorkloadPorts => {
                "Calico's own tool leaves protocols of a workload's ports in lower case and then refuses them, though it converts those of host endpoints"
            }
            Self::PortNumber => {
                "Calico's own tool copies the number of a protocol to an endpoint's port: Felix of v3 takes names alone there, and treats the whole endpoint as missing"
            }
            Self::LateFailure => {
                "Calico's own tool finds out in the middle of writing, after it has stopped the nodes, and leaves half a store behind"
            }
            Self::Namespace => {
                "Calico's own tool writes an endpoint without a namespace, or with a slash in it, under a key that nobody reads"
            }
            Self::Crash => {
                "Calico's own tool crashes there, after it has stopped the nodes, and tells nobody which value it was"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_has_a_reason_of_its_own() {
        let reasons: BTreeSet<&str> = Difference::ALL
            .iter()
            .map(|difference| difference.reason())
            .collect();
        assert_eq!(reasons.len(), Difference::ALL.len());
    }
}
