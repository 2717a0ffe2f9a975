//! Addresses and networks of Calico's v2 model (Go's `net.IP` and `net.IPNet`): an empty text is no address, an IPv4 address in
//! IPv6 form is an IPv4 address, and a network keeps its host bits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::decode::Decode;
use super::json::Json;
use super::mismatch::Mismatch;

/// Go's text for a missing address.
const NOTHING: &str = "<nil>";

/// An optional address: `""` and `null` are no address.
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

/// Parses an address (`net.ParseIP`): without a zone, and without leading zeros in IPv4.
pub fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// An address with a prefix length. The length is in bits of the family of the text: `::ffff:10.0.0.0/120` is 10.0.0.0 with 120
/// of 128 bits, and is written 10.0.0.0/24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The address with its host bits; `None` for an empty text.
    pub address: Option<IpAddr>,
    length: u8,
    bits: u8,
}

impl Network {
    /// The network with a single address.
    pub fn of(address: IpAddr) -> Self {
        let bits = bits_of(&address);
        Self {
            address: Some(address),
            length: bits,
            bits,
        }
    }

    /// This address with the length of a network, as in a node's settings.
    pub fn with_length_of(address: IpAddr, network: &Self) -> Self {
        Self {
            address: Some(address),
            ..*network
        }
    }

    /// Whether the network has a single address.
    pub fn is_one_address(&self) -> bool {
        self.length == self.bits
    }

    /// The length in the family of the text, as Calico compares it with the length of a block.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// 4 or 6; 0 for no address.
    pub fn version(&self) -> u8 {
        match self.address {
            Some(IpAddr::V4(_)) => 4,
            Some(IpAddr::V6(_)) => 6,
            None => 0,
        }
    }

    /// The network without host bits; `None` when it is not a network.
    pub fn masked(&self) -> Option<Self> {
        let (_, network) = cidr(&self.to_string())?;
        Some(network)
    }

    /// Whether the network contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let Some((own, length)) = self.written() else {
            return false;
        };
        own.is_ipv4() == address.is_ipv4() && without_end(own, length) == without_end(address, length)
    }

    /// Whether both networks share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        let holds = |one: &Self, other: &Self| other.address.is_some_and(|address| one.contains(address));
        holds(self, other) || holds(other, self)
    }

    /// The address, and the length in the family of the address; `None` when both do not match.
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

/// No network.
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

/// Parses an address with a length: the address with its host bits, and the network without them.
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

/// Parses an address with an optional length.
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
mod tests;
