//! What an operator should know of a conversion that is no error: what is lost, what means another thing, and what is converted
//! although Calico's own tool would not.

use std::fmt;

use super::difference::Difference;
use super::key::V2Key;
use super::report::Problem;

/// One thing to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// v3 has no such setting: it is not copied.
    UnknownSetting {
        /// The setting.
        key: V2Key,
        /// The setting that it is but for its case. Felix of v2 read it in any case.
        like: Option<&'static str>,
    },
    /// A setting that v3 would refuse if somebody wrote it again.
    RefusedLater {
        /// The setting.
        key: V2Key,
        /// What it says.
        found: String,
        /// What v3 takes.
        needed: &'static str,
    },
    /// A setting that is written as v3 writes it.
    FelixAction {
        /// The setting.
        key: V2Key,
        /// What it says.
        found: String,
        /// What v3 calls it.
        written: &'static str,
    },
    /// A log that was off.
    SilencedLog {
        /// The setting.
        key: V2Key,
        /// What it says.
        found: String,
    },
    /// A mask in hexadecimal.
    MarkMask {
        /// The setting.
        key: V2Key,
        /// What it says.
        found: String,
        /// The number.
        mask: u32,
    },
    /// A setting that is written under another name than Calico's own tool writes it.
    XdpName {
        /// The setting.
        key: V2Key,
    },
    /// A setting that makes Calico's own tool crash.
    CrashingSetting {
        /// The setting.
        key: V2Key,
    },
    /// Settings of several hosts became those of one node.
    MergedHosts {
        /// The node.
        node: String,
        /// The hosts; of what several say, the last counts.
        hosts: Vec<String>,
    },
    /// The address of a tunnel of a node without BGP.
    TunnelAddressLost {
        /// The setting.
        key: V2Key,
        /// The address.
        address: String,
    },
    /// A host of which there is nothing but settings of BGP.
    NoNode {
        /// The host.
        host: String,
    },
    /// A value that is not read.
    NotRead {
        /// Where it stands.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// A peer whose AS number is written in another way.
    PeerAsNumber {
        /// The peer.
        key: V2Key,
        /// What it says.
        found: String,
        /// The number.
        number: u32,
    },
    /// The address in a peer's value is not the one in its key.
    OtherAddress {
        /// The peer, or the pool, by its key.
        key: V2Key,
        /// What the value says, which counts.
        found: String,
    },
    /// v2's label of a namespace on a host endpoint.
    NamespaceLabel {
        /// The endpoint.
        key: V2Key,
    },
    /// A pool that gave no addresses.
    PoolBecomesUsable {
        /// The pool.
        key: V2Key,
    },
    /// A selector with the letters of the old label elsewhere.
    Selector {
        /// The policy or the profile.
        key: V2Key,
        /// The field.
        field: String,
        /// What it says.
        selector: String,
    },
    /// What a rule's log lines begin with.
    LogPrefix {
        /// The policy or the profile.
        key: V2Key,
        /// The field.
        field: String,
        /// What it says.
        found: String,
    },
    /// A workload's port with its protocol in lower case.
    WorkloadPort {
        /// The endpoint.
        key: V2Key,
        /// The port's name.
        port: String,
    },
    /// An endpoint's port with its protocol by number.
    PortNumber {
        /// The endpoint.
        key: V2Key,
        /// The port's name.
        port: String,
    },
    /// What Calico's controllers make anew.
    LeftToControllers {
        /// What it is.
        what: &'static str,
        /// How many there are.
        count: usize,
    },
    /// A policy of Kubernetes that v3 cannot have, since its name is too long there.
    LongPolicyName {
        /// The policy.
        key: V2Key,
    },
    /// The settings of the address management are copied.
    IpamConfig {
        /// Whether a node's block is that node's alone.
        strict_affinity: bool,
    },
    /// Two keys became one.
    Overwritten {
        /// The key in v3.
        key: String,
        /// The v2 side that was overwritten.
        earlier: V2Key,
        /// The one that overwrote it.
        later: V2Key,
    },
    /// Blocks and handles do not go together. They are copied so.
    Ipam(Problem),
}

impl Note {
    /// Why Calico's own tool does otherwise, if it does.
    pub fn difference(&self) -> Option<Difference> {
        match self {
            Self::MarkMask { .. } => Some(Difference::MarkMask),
            Self::FelixAction { .. } => Some(Difference::FelixAction),
            Self::XdpName { .. } => Some(Difference::XdpName),
            Self::CrashingSetting { .. } => Some(Difference::Crash),
            Self::PeerAsNumber { .. } => Some(Difference::PeerAsNumber),
            Self::WorkloadPort { .. } => Some(Difference::WorkloadPorts),
            Self::PortNumber { .. } => Some(Difference::PortNumber),
            Self::IpamConfig { .. } => Some(Difference::IpamConfig),
            Self::UnknownSetting { .. }
            | Self::RefusedLater { .. }
            | Self::SilencedLog { .. }
            | Self::MergedHosts { .. }
            | Self::TunnelAddressLost { .. }
            | Self::NoNode { .. }
            | Self::NotRead { .. }
            | Self::OtherAddress { .. }
            | Self::NamespaceLabel { .. }
            | Self::PoolBecomesUsable { .. }
            | Self::Selector { .. }
            | Self::LogPrefix { .. }
            | Self::LeftToControllers { .. }
            | Self::LongPolicyName { .. }
            | Self::Overwritten { .. }
            | Self::Ipam(_) => None,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSetting { key, like: None } => {
                write!(formatter, "{key}: v3 has no such setting; it is not copied")
            }
            Self::UnknownSetting {
                key,
                like: Some(like),
            } => write!(
                formatter,
                "{key}: it is not copied, since settings are read by their exact names; if it counts, write it as {like}"
            ),
            Self::RefusedLater { key, found, needed } => write!(
                formatter,
                "{key}: {found:?} is copied as it is; v3 takes {needed} alone when somebody writes it again"
            ),
            Self::FelixAction { key, found, written } => {
                write!(formatter, "{key}: {found:?} is written as {written}")
            }
            Self::SilencedLog { key, found } => write!(
                formatter,
                "{key}: {found:?} is no level of v3; the log is written from Info on"
            ),
            Self::MarkMask { key, found, mask } => write!(formatter, "{key}: {found:?} is written as {mask}"),
            Self::XdpName { key } => write!(formatter, "{key}: it is written as xdpRefreshInterval"),
            Self::CrashingSetting { key } => {
                write!(
                    formatter,
                    "{key}: Felix of v2 did not know it; from now on it counts"
                )
            }
            Self::MergedHosts { node, hosts } => write!(
                formatter,
                "Node({node}): settings of the hosts {} are put together; where several say one, the last counts",
                hosts.join(", ")
            ),
            Self::TunnelAddressLost { key, address } => write!(
                formatter,
                "{key}: {address} is not copied, since the node has no address for BGP; v3 gives it another"
            ),
            Self::NoNode { host } => write!(
                formatter,
                "host {host}: it has settings of BGP and nothing else, so it becomes no Node; delete them if the host is gone"
            ),
            Self::NotRead { path, what } => write!(formatter, "{path}: {what}; it is not copied"),
            Self::PeerAsNumber { key, found, number } => {
                write!(formatter, "{key}: the AS number {found} is written as {number}")
            }
            Self::OtherAddress { key, found } => write!(
                formatter,
                "{key}: its value says {found}, and that is what becomes of it"
            ),
            Self::NamespaceLabel { key } => write!(
                formatter,
                "{key}: the label calico/k8s_ns stays as it is, while selectors ask for projectcalico.org/namespace from now on"
            ),
            Self::PoolBecomesUsable { key } => write!(
                formatter,
                "{key}: it gave no addresses (\"ipam\": false), and v3 has no such setting: pods get addresses of it from now on; \
                 set \"disabled\": true if they must not"
            ),
            Self::Selector { key, field, selector } => write!(
                formatter,
                "{key}: {field} is {selector:?}: calico/k8s_ns is replaced also inside a text or a longer label; look whether it \
                 selects what it should"
            ),
            Self::LogPrefix { key, field, found } => write!(
                formatter,
                "{key}: {field} is {found:?}; rules of v3 have no prefix of their own, so it is not copied"
            ),
            Self::WorkloadPort { key, port } => write!(
                formatter,
                "{key}: the protocol of port {port:?} is written as v3 writes it"
            ),
            Self::PortNumber { key, port } => write!(
                formatter,
                "{key}: the protocol of port {port:?} is written by its name, the only way in which Felix of v3 takes it"
            ),
            Self::LeftToControllers { what, count } => write!(
                formatter,
                "{count} {what} are not copied: those who made them make them anew in v3"
            ),
            Self::LongPolicyName { key } => write!(
                formatter,
                "{key}: its name is too long for v3, which cannot have this policy: create the NetworkPolicy again with a shorter name, or it \
                 holds nothing back once v3 is open"
            ),
            Self::IpamConfig { strict_affinity } => write!(
                formatter,
                "IPAMConfigKey(): it is copied, strict affinity {}",
                if *strict_affinity { "on" } else { "off" }
            ),
            Self::Overwritten { key, earlier, later } => {
                write!(formatter, "{key}: {later} is written over {earlier}")
            }
            Self::Ipam(problem) => write!(formatter, "{problem}; it is copied so"),
        }
    }
}
