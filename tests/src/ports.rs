//! Ports for programs that the lab starts on this machine.
//!
//! The next client may take a port that the kernel has chosen and that has been released: the kernel takes the ports
//! of clients from the same range. The ports of this module are below that range, and every lab on this machine
//! claims them here.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context, Result, bail};

/// First port, below the kernel's own range, which begins at 32768 (`net.ipv4.ip_local_port_range`), and below the node ports.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;
/// Distance between the first ports that two processes try: a process that has just ended may have left connections on its port.
const APART: u16 = 97;

/// A port that belongs to this process until it is dropped, also while no program listens on it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// A socket without a file: the socket ends with its process. Its name belongs to the network namespace, as the port does.
    _claim: UnixListener,
}

impl Port {
    /// Claims a port that no other lab has claimed and no program listens on.
    pub fn claim() -> Result<Self> {
        let start = std::process::id().wrapping_mul(APART.into());
        for step in 0..u32::from(COUNT) {
            let place = u16::try_from(start.wrapping_add(step) % u32::from(COUNT))?;
            if let Some(port) = attempt(FIRST + place)? {
                return Ok(port);
            }
        }
        bail!(
            "every port from {FIRST} to {} is in use on this machine",
            FIRST + COUNT - 1
        )
    }

    /// Claims as many ports as there are programs.
    pub fn claim_all<const N: usize>() -> Result<[Self; N]> {
        let all: Vec<Self> = (0..N).map(|_| Self::claim()).collect::<Result<_>>()?;
        all.try_into()
            .map_err(|all: Vec<Self>| anyhow::anyhow!("{} ports were taken, not {N}", all.len()))
    }

    /// The number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

fn attempt(number: u16) -> Result<Option<Port>> {
    let name =
        SocketAddr::from_abstract_name(format!("replumb-lab-port-{number}")).context("name a socket")?;
    let claim = match UnixListener::bind_addr(&name) {
        Ok(claim) => claim,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("claim port {number}")),
    };
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)) {
        Ok(_) => Ok(Some(Port {
            number,
            _claim: claim,
        })),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error).with_context(|| format!("check port {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_free_for_no_client_and_no_other_lab_until_dropped() {
        let clients = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = clients.split_whitespace().next().unwrap().parse().unwrap();
        let [one, other] = Port::claim_all().unwrap();
        assert_ne!(one.number(), other.number());
        assert!(one.number() < first && other.number() < first, "{clients}");
        // No program listens on the port, yet the port is claimed.
        assert!(attempt(one.number()).unwrap().is_none());
        let number = one.number();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(one);
        assert!(
            attempt(number).unwrap().is_none(),
            "another program listens on it"
        );
        drop(listener);
        assert!(attempt(number).unwrap().is_some());
    }
}
