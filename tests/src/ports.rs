//! Ports for programs that the lab starts on this machine.
//!
//! A port that the kernel chooses and that is let go again may be the next client's: the kernel gives those of clients from the same
//! range. These ports are below that range, and every lab of this machine asks for them here.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context, Result, bail};

/// Below the kernel's own range, which begins at 32768 (`net.ipv4.ip_local_port_range`), and below that of node ports.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;
/// Between the ports that two processes look at first: one that has just ended may have left connections on its own.
const APART: u16 = 97;

/// A port that is this process's until it is dropped, also while no program listens on it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// A socket without a file: it goes with its process. Its name is one of the network namespace's, as the port is.
    _claim: UnixListener,
}

impl Port {
    /// Takes a port that no lab has and on which nothing listens.
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

    /// The same for as many programs as that.
    pub fn claim_all<const N: usize>() -> Result<[Self; N]> {
        let all: Vec<Self> = (0..N).map(|_| Self::claim()).collect::<Result<_>>()?;
        all.try_into()
            .map_err(|all: Vec<Self>| anyhow::anyhow!("{} ports were taken, not {N}", all.len()))
    }

    /// Its number.
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
        Err(error) => Err(error).with_context(|| format!("look at port {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_clients_and_no_other_labs_until_it_is_dropped() {
        let clients = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = clients.split_whitespace().next().unwrap().parse().unwrap();
        let [one, other] = Port::claim_all().unwrap();
        assert_ne!(one.number(), other.number());
        assert!(one.number() < first && other.number() < first, "{clients}");
        // Nothing listens on it, and it is taken all the same.
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
