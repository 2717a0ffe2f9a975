//! UDP sockets that keep what comes while their program does not run.

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{ToSocketAddrs, UdpSocket};

/// Bytes. The kernel's default holds some hundred small datagrams: on a machine whose cores are busy a pod may not run for
/// half a second, and what overflows then would be counted as lost by the network.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Binds a socket with room for what a busy machine keeps waiting.
pub async fn bind(address: impl ToSocketAddrs) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).await?;
    // Past the machine's own limit where the right to that is there, else up to it.
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER))
        .context("enlarge the receive buffer of a UDP socket")?;
    Ok(socket)
}
