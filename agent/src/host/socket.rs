//! UDP and TCP sockets of the probes: dual-stack, and with "do not fragment" regardless of the path MTU that the kernel has
//! learned. Opens sockets in the network namespace of the calling thread.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use thiserror::Error;
use tokio::net::{TcpListener, UdpSocket};

/// A socket could not be opened.
#[derive(Debug, Error)]
#[error("could not open {kind} {address}")]
pub struct SocketError {
    kind: &'static str,
    address: SocketAddr,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

/// A UDP socket whose datagrams are never fragmented, neither on this host nor on the path. The kernel's learned path MTU is
/// ignored: a probe tests the path.
///
/// # Errors
///
/// The address is in use or not one of the host, or the kernel refuses an option.
pub fn datagrams(address: SocketAddr) -> Result<UdpSocket, SocketError> {
    let open = || -> io::Result<UdpSocket> {
        let socket = StdUdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        // A dual-stack socket also sends IPv4, which needs the option of that family.
        set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
        if address.is_ipv6() {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
        }
        UdpSocket::from_std(socket)
    };
    open().map_err(|source| SocketError {
        kind: "UDP socket",
        address,
        source,
    })
}

/// A listening TCP socket.
///
/// # Errors
///
/// The address is in use or not one of the host.
pub fn listener(address: SocketAddr) -> Result<TcpListener, SocketError> {
    let open = || -> io::Result<TcpListener> {
        let socket = StdTcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        TcpListener::from_std(socket)
    };
    open().map_err(|source| SocketError {
        kind: "TCP socket",
        address,
        source,
    })
}
