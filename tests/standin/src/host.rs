//! The kernel's settings: links, routes, neighbours, sysctls, the packet filter, network namespaces.

mod decode;
pub mod firewall;
pub mod namespace;
pub mod netlink;
pub mod sysctl;

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};
use ipnet::Ipv4Net;

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut bytes = [0; 6];
        let parts: Vec<&str> = text.split(':').collect();
        ensure!(
            parts.len() == 6,
            "read the hardware address {text:?}: want six bytes with colons between"
        );
        for (byte, part) in bytes.iter_mut().zip(parts) {
            *byte = u8::from_str_radix(part, 16)
                .with_context(|| format!("read the hardware address {text:?}: byte {part:?}"))?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.map(|byte| format!("{byte:02x}"));
        formatter.write_str(&bytes.join(":"))
    }
}

/// Identifying attributes of a VXLAN device, besides its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// Network identifier.
    pub vni: u32,
    /// Index of the device that carries the packets.
    pub parent: u32,
    /// Source address of the packets.
    pub local: Ipv4Addr,
    /// UDP port.
    pub port: u16,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number.
    pub index: u32,
    /// The name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// MTU.
    pub mtu: u32,
    /// Hardware address, for devices that have one of six bytes.
    pub mac: Option<Mac>,
    /// Attributes of a VXLAN device; `None` for other kinds, and for a device without a local address or parent.
    pub vxlan: Option<Vxlan>,
}

/// Target of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// To a device with the destination on it.
    Device(u32),
    /// To a gateway that counts as on the device, with any address.
    Gateway(u32, Ipv4Addr),
    /// To a gateway that another route reaches.
    Router(u32, Ipv4Addr),
    /// To a blackhole.
    Blackhole,
    /// A target that the stand-in does not create.
    Other,
}

/// A route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The destination.
    pub destination: Ipv4Net,
    /// The target.
    pub target: Target,
    /// The creator: the number behind `proto`.
    pub protocol: u8,
    /// MTU of the path, if the route has one.
    pub mtu: Option<u32>,
}

/// Protocol number of the kernel's own routes.
pub const PROTOCOL_KERNEL: u8 = 2;
/// Protocol number of `boot`, with which Calico marks routes over its own devices.
pub const PROTOCOL_BOOT: u8 = 3;
/// Protocol number of BIRD's routes.
pub const PROTOCOL_BIRD: u8 = 12;
/// Protocol number of Calico's routes without a device of its own: `proto 80`.
pub const PROTOCOL_CALICO: u8 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_address_is_parsed_in_any_case() {
        let mac: Mac = "66:8A:0b:00:ff:1C".parse().unwrap();
        assert_eq!(mac.to_string(), "66:8a:0b:00:ff:1c");
        assert!("66:8a:0b:00:ff".parse::<Mac>().is_err());
        assert!("66:8a:0b:00:ff:xx".parse::<Mac>().is_err());
    }
}
