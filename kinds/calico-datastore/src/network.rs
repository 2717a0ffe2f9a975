//! Addresses and networks as Calico's v2 model holds them (Go's `net.IP` and `net.IPNet`): an empty text is no address, an IPv4
//! address written as IPv6 is the IPv4 one, and a network keeps the bits behind its length.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::decode::{Decode, Mismatch};
use super::json::Json;

/// How Go writes what is not there.
const NOTHING: &str = "<nil>";

/// An address, or none: `""` and `null` are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub Option<IpAddr>);

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(formatter, "{address}"),
            None => formatter.write_str(NOTHING),
        }
    }
}

impl Decode for Address {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let text = String::decode(json)?;
        if text.is_empty() {
            return Ok(Self(None));
        }
        match address(&text) {
            Some(address) => Ok(Self(Some(address))),
            None => Err(Mismatch::new(json, "an address")),
        }
    }
}

/// Reads an address (`net.ParseIP`): without a zone, without zeros before the numbers of IPv4.
pub fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// An address with a length. The length counts bits of the family in which it was written: `::ffff:10.0.0.0/120` is 10.0.0.0
/// with 120 bits of 128, and is written 10.0.0.0/24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The address with every bit; none for an empty text.
    pub address: Option<IpAddr>,
    length: u8,
    bits: u8,
}

impl Network {
    /// The network of one address alone.
    pub fn of(address: IpAddr) -> Self {
        let bits = bits_of(&address);
        Self {
            address: Some(address),
            length: bits,
            bits,
        }
    }

    /// This address with the length of a network, as it stands in a node's settings.
    pub fn with_length_of(address: IpAddr, network: &Self) -> Self {
        Self {
            address: Some(address),
            ..*network
        }
    }

    /// Whether every bit belongs to the network: it holds one address.
    pub fn is_one_address(&self) -> bool {
        self.length == self.bits
    }

    /// The length in the family in which it was written, as Calico compares it with a block's.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// 4 or 6; 0 for none.
    pub fn version(&self) -> u8 {
        match self.address {
            Some(IpAddr::V4(_)) => 4,
            Some(IpAddr::V6(_)) => 6,
            None => 0,
        }
    }

    /// Without the bits behind its length; `None` when it is no network.
    pub fn masked(&self) -> Option<Self> {
        let (_, network) = cidr(&self.to_string())?;
        Some(network)
    }

    /// Whether the address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let Some((own, length)) = self.written() else {
            return false;
        };
        own.is_ipv4() == address.is_ipv4() && without_end(own, length) == without_end(address, length)
    }

    /// Whether they share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        let holds = |one: &Self, other: &Self| other.address.is_some_and(|address| one.contains(address));
        holds(self, other) || holds(other, self)
    }

    /// The address, and the length in the address' own family; `None` when they do not go together.
    fn written(&self) -> Option<(IpAddr, u8)> {
        match (self.address?, self.bits) {
            (address @ IpAddr::V4(_), 32) | (address @ IpAddr::V6(_), 128) => Some((address, self.length)),
            (address @ IpAddr::V4(_), _) => Some((address, self.length.saturating_sub(96))),
            (IpAddr::V6(_), _) => None,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.written() {
            Some((address, length)) => write!(formatter, "{address}/{length}"),
            None => formatter.write_str(NOTHING),
        }
    }
}

/// No network at all.
impl Default for Network {
    fn default() -> Self {
        Self {
            address: None,
            length: 128,
            bits: 128,
        }
    }
}

impl Decode for Network {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let text = String::decode(json)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        match cidr_or_address(&text) {
            Some((address, network)) => Ok(Self::with_length_of(address, &network)),
            None => Err(Mismatch::new(json, "an address or a network")),
        }
    }
}

/// Reads an address with a length: the address with all its bits, and the network without those behind the length.
pub fn cidr(text: &str) -> Option<(IpAddr, Network)> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits = bits_of(&address);
    let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let length: u8 = if digits { length.parse().ok()? } else { return None };
    (length <= bits).then(|| {
        let network = Network {
            address: Some(without_end(address, length).to_canonical()),
            length,
            bits,
        };
        (address.to_canonical(), network)
    })
}

/// Reads an address with a length or without.
pub fn cidr_or_address(text: &str) -> Option<(IpAddr, Network)> {
    cidr(text).or_else(|| address(text).map(|address| (address, Network::of(address))))
}

fn bits_of(address: &IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn without_end(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or_default();
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or_default();
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
