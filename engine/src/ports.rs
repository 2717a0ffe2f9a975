//! Ports that containers declare, shared by the pods of a workload.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP.
    Icmp,
    /// `ICMPv6`, with its type.
    Icmpv6(u8),
    /// IP in IP.
    Ipip,
    /// Another one, by its number.
    Other(u8),
}

impl Protocol {
    /// The protocol with this number. The type of `ICMPv6` counts for neighbor discovery only; 0 is none of its types.
    pub fn of_number(number: u8) -> Self {
        match number {
            1 => Self::Icmp,
            4 => Self::Ipip,
            6 => Self::Tcp,
            17 => Self::Udp,
            58 => Self::Icmpv6(0),
            132 => Self::Sctp,
            other => Self::Other(other),
        }
    }

    /// The name for users: `TCP`, `protocol 47`.
    pub fn name(self) -> String {
        match self {
            Self::Tcp => "TCP".to_owned(),
            Self::Udp => "UDP".to_owned(),
            Self::Sctp => "SCTP".to_owned(),
            Self::Icmp => "ICMP".to_owned(),
            Self::Icmpv6(_) => "ICMPv6".to_owned(),
            Self::Ipip => "IPIP".to_owned(),
            Self::Other(number) => format!("protocol {number}"),
        }
    }
}

/// A port that a container declares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerPort {
    /// Its name; policies may use it in place of a number.
    pub name: Option<Arc<str>>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
    /// An init container declares it. Calico reads these since v3.30, those of init containers that do not restart included.
    pub is_init: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_the_numbers_of_iana() {
        let named = [1, 4, 6, 17, 58, 132].map(Protocol::of_number);
        let expected = [
            Protocol::Icmp,
            Protocol::Ipip,
            Protocol::Tcp,
            Protocol::Udp,
            Protocol::Icmpv6(0),
            Protocol::Sctp,
        ];
        assert_eq!(named, expected);
        assert_eq!(Protocol::of_number(47), Protocol::Other(47));
        let names = [6, 58, 47].map(|number| Protocol::of_number(number).name());
        assert_eq!(names, ["TCP", "ICMPv6", "protocol 47"]);
    }
}
