//! Notes on a conversion that are not errors: lost values, values with another meaning, and values that only this tool converts.

use std::fmt;

use super::difference::Difference;
use super::key::V2Key;
use super::report::Problem;

/// A note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A setting that v3 does not have, which is not copied.
    UnknownSetting {
        /// The setting.
        key: V2Key,
        /// A known setting that differs only in case. Felix of v2 reads names in any case.
        like: Option<&'static str>,
    },
    /// A setting whose later writes v3 would refuse.
    RefusedLater {
        /// The setting.
        key: V2Key,
        /// The value.
        found: String,
        /// Values that v3 accepts.
        needed: &'static str,
    },
    /// A setting that is written in the form of v3.
    FelixAction {
        /// The setting.
        key: V2Key,
        /// The value.
        found: String,
        /// The form in v3.
        written: &'static str,
    },
    /// A log that was off.
    SilencedLog {
        /// The setting.
        key: V2Key,
        /// The value.
        found: String,
    },
    /// A mask in hexadecimal.
    MarkMask {
        /// The setting.
        key: V2Key,
        /// The value.
        found: String,
        /// The number.
        mask: u32,
    },
    /// A setting that Calico's own tool writes under another name.
    XdpName {
        /// The setting.
        key: V2Key,
    },
    /// A setting that makes Calico's own tool crash.
    CrashingSetting {
        /// The setting.
        key: V2Key,
    },
    /// Settings of several hosts that become one node.
    MergedHosts {
        /// The node.
        node: String,
        /// The hosts. Of equal settings, that of the last host is used.
        hosts: Vec<String>,
    },
    /// The address of a tunnel on a node without BGP.
    TunnelAddressLost {
        /// The setting.
        key: V2Key,
        /// The address.
        address: String,
    },
    /// A host that has only settings of BGP.
    NoNode {
        /// The host.
        host: String,
    },
    /// A value that is not read.
    NotRead {
        /// The key.
        path: String,
        /// The reason.
        what: &'static str,
    },
    /// A peer whose AS number has another form.
    PeerAsNumber {
        /// The peer.
        key: V2Key,
        /// The value.
        found: String,
        /// The number.
        number: u32,
    },
    /// A value whose address or network differs from its key.
    OtherAddress {
        /// The object, by its key.
        key: V2Key,
        /// The address or network in the value, which is used.
        found: String,
    },
    /// The namespace label of v2 on a host endpoint.
    NamespaceLabel {
        /// The endpoint.
        key: V2Key,
    },
    /// A pool without allocation in v2.
    PoolBecomesUsable {
        /// The pool.
        key: V2Key,
    },
    /// A selector that contains the old label inside another word.
    Selector {
        /// The policy or the profile.
        key: V2Key,
        /// The field.
        field: String,
        /// The selector.
        selector: String,
    },
    /// The log prefix of a rule.
    LogPrefix {
        /// The policy or the profile.
        key: V2Key,
        /// The field.
        field: String,
        /// The value.
        found: String,
    },
    /// A port of a workload with its protocol in lower case.
    WorkloadPort {
        /// The endpoint.
        key: V2Key,
        /// The port's name.
        port: String,
    },
    /// A port of an endpoint with its protocol as a number.
    PortNumber {
        /// The endpoint.
        key: V2Key,
        /// The port's name.
        port: String,
    },
    /// Objects that Calico's controllers write again.
    WrittenByControllers {
        /// Kinds of the objects.
        what: &'static str,
        /// Number of the objects.
        count: usize,
    },
    /// A policy of Kubernetes whose name is too long for v3.
    LongPolicyName {
        /// The policy.
        key: V2Key,
    },
    /// The settings of the IPAM, which are copied.
    IpamConfig {
        /// Whether a node uses only addresses of its own blocks.
        strict_affinity: bool,
    },
    /// Two keys of v2 that become one.
    Overwritten {
        /// The key in v3.
        key: String,
        /// The overwritten key of v2.
        earlier: V2Key,
        /// The key of v2 that is used.
        later: V2Key,
    },
    /// An inconsistency of blocks and handles, which is copied.
    Ipam(Problem),
}

impl Note {
    /// The difference from Calico's own tool, if there is one.
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
            | Self::WrittenByControllers { .. }
            | Self::LongPolicyName { .. }
            | Self::Overwritten { .. }
            | Self::Ipam(_) => None,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSetting { key, like } => unknown_setting(formatter, key, like.as_deref()),
            Self::RefusedLater { key, found, needed } => write!(
                formatter,
                "{key}: {found:?} is copied unchanged; for later writes, v3 accepts only {needed}"
            ),
            Self::FelixAction { key, found, written } => {
                write!(formatter, "{key}: {found:?} is written as {written}")
            }
            Self::SilencedLog { key, found } => write!(
                formatter,
                "{key}: {found:?} is not a level of v3; the log level becomes Info"
            ),
            Self::MarkMask { key, found, mask } => write!(formatter, "{key}: {found:?} is written as {mask}"),
            Self::XdpName { key } => write!(formatter, "{key}: written as xdpRefreshInterval"),
            Self::CrashingSetting { key } => {
                write!(formatter, "{key}: unknown to Felix of v2; it takes effect in v3")
            }
            Self::MergedHosts { node, hosts } => write!(
                formatter,
                "Node({node}): settings of the hosts {} are merged; of equal settings, the last one is used",
                hosts.join(", ")
            ),
            Self::TunnelAddressLost { key, address } => write!(
                formatter,
                "{key}: {address} is not copied, because the node has no address for BGP; v3 assigns another one"
            ),
            Self::NoNode { host } => write!(
                formatter,
                "host {host}: not a Node in v3, because it has only settings of BGP; delete them if the host does not exist"
            ),
            Self::NotRead { path, what } => write!(formatter, "{path}: not copied: {what}"),
            Self::PeerAsNumber { key, found, number } => {
                write!(formatter, "{key}: the AS number {found} is written as {number}")
            }
            Self::OtherAddress { key, found } => write!(
                formatter,
                "{key}: the value has {found}, which is used instead of the key"
            ),
            Self::NamespaceLabel { key } => write!(
                formatter,
                "{key}: the label calico/k8s_ns stays, but selectors use projectcalico.org/namespace in v3"
            ),
            Self::PoolBecomesUsable { key } => pool_becomes_usable(formatter, key),
            Self::Selector { key, field, selector } => write!(
                formatter,
                "{key}: {field} is {selector:?}: calico/k8s_ns is also replaced inside a text or a longer label; check that the \
                 selector is correct"
            ),
            Self::LogPrefix { key, field, found } => write!(
                formatter,
                "{key}: {field} is {found:?}, which is not copied: rules of v3 have no log prefix"
            ),
            Self::WorkloadPort { key, port } => write!(
                formatter,
                "{key}: the protocol of port {port:?} is written in the form of v3"
            ),
            Self::PortNumber { key, port } => write!(
                formatter,
                "{key}: the protocol of port {port:?} is written as a name, the only form that Felix of v3 accepts"
            ),
            Self::WrittenByControllers { what, count } => write!(
                formatter,
                "{what}: {count} not copied: their controllers write them again in v3"
            ),
            Self::LongPolicyName { key } => long_policy_name(formatter, key),
            Self::IpamConfig { strict_affinity } => write!(
                formatter,
                "IPAMConfigKey(): copied, strict affinity {}",
                if *strict_affinity { "on" } else { "off" }
            ),
            Self::Overwritten { key, earlier, later } => {
                write!(formatter, "{key}: {later} overwrites {earlier}")
            }
            Self::Ipam(problem) => write!(formatter, "{problem}; copied unchanged"),
        }
    }
}

fn unknown_setting(formatter: &mut fmt::Formatter<'_>, key: &V2Key, like: Option<&str>) -> fmt::Result {
    match like {
        None => write!(formatter, "{key}: not copied: v3 has no such setting"),
        Some(like) => write!(
            formatter,
            "{key}: not copied, because names of settings are case-sensitive; if it is needed, write it as {like}"
        ),
    }
}

fn pool_becomes_usable(formatter: &mut fmt::Formatter<'_>, key: &V2Key) -> fmt::Result {
    write!(
        formatter,
        "{key}: without allocation in v2 (\"ipam\": false), and v3 has no such setting: in v3, pods get addresses from it; \
         set \"disabled\": true to prevent this"
    )
}

fn long_policy_name(formatter: &mut fmt::Formatter<'_>, key: &V2Key) -> fmt::Result {
    write!(
        formatter,
        "{key}: name too long for v3, which cannot have this policy: create the NetworkPolicy again with a shorter name, or it \
         restricts nothing when v3 is open"
    )
}
