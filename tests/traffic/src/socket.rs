//! UDP sockets that keep what comes while their program does not run, and know when it came.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use jiff::Timestamp;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrLike, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use tokio::io::Interest;
use tokio::net::{ToSocketAddrs, UdpSocket};

/// Bytes. The kernel's default holds some hundred small datagrams: on a machine whose cores are busy a pod may not run for
/// half a second, and what overflows then would be counted as lost by the network.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A datagram that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// How many bytes of the buffer it has.
    pub length: usize,
    /// By whom; of a connected socket nobody says.
    pub from: Option<SocketAddr>,
    /// When the kernel had it, whoever was to read it then.
    pub at: Timestamp,
}

/// Binds a socket with room for what a busy machine keeps waiting.
pub async fn bind(address: impl ToSocketAddrs) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).await?;
    // Past the machine's own limit where the right to that is there, else up to it.
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER))
        .context("enlarge the receive buffer of a UDP socket")?;
    stamp(&socket).context("ask for the time of arrival on a UDP socket")?;
    Ok(socket)
}

/// Lets the kernel note when each datagram came.
pub fn stamp(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::ReceiveTimestampns, &true)?)
}

/// Waits for a datagram. One without a time of arrival came now.
pub async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Arrival> {
    socket
        .async_io(Interest::READABLE, || receive_now(socket, buffer))
        .await
}

fn receive_now(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Arrival> {
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let stamped = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(time) => Some(time),
        _ => None,
    });
    let at = stamped.and_then(|time| {
        let part = i32::try_from(time.tv_nsec()).ok()?;
        Timestamp::new(time.tv_sec(), part).ok()
    });
    Ok(Arrival {
        length: message.bytes,
        from: message.address.as_ref().and_then(address),
        at: at.unwrap_or_else(Timestamp::now),
    })
}

fn address(from: &SockaddrStorage) -> Option<SocketAddr> {
    from.family()?;
    let four = from.as_sockaddr_in().map(|from| SocketAddr::V4((*from).into()));
    four.or_else(|| from.as_sockaddr_in6().map(|from| SocketAddr::V6((*from).into())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_time_of_arrival_is_the_kernels_and_not_the_readers() {
        let receiver = bind("127.0.0.1:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut buffer = [0; 16];
        // The kernel begins to note times a moment after the first socket of the machine asks for it; until then it tells the
        // reader's.
        for _ in 0..50 {
            let before = Timestamp::now();
            sender
                .send_to(b"hello", receiver.local_addr().unwrap())
                .await
                .unwrap();
            let sent = Timestamp::now();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let arrival = receive(&receiver, &mut buffer).await.unwrap();
            assert_eq!(&buffer[..arrival.length], b"hello");
            assert_eq!(arrival.from, Some(sender.local_addr().unwrap()));
            assert!(arrival.at >= before, "{before} {arrival:?}");
            if arrival.at <= sent {
                return;
            }
        }
        panic!("the time was the reader's fifty times");
    }
}
