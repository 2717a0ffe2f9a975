//! UDP sockets that buffer datagrams while their program does not run, and return their arrival times.

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

/// Size in bytes. The kernel's default holds some hundred small datagrams: on a machine with busy cores a pod may not
/// run for half a second, and overflowing datagrams would be counted as lost by the network.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Number of bytes in the buffer.
    pub length: usize,
    /// The sender; `None` on a connected socket.
    pub from: Option<SocketAddr>,
    /// Time of arrival in the kernel, independent of the time of reading.
    pub at: Timestamp,
}

/// Binds a socket with a buffer that is large enough for a busy machine.
pub async fn bind(address: impl ToSocketAddrs) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).await?;
    // Beyond the machine's limit if permitted, otherwise up to the limit.
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER))
        .context("enlarge the receive buffer of a UDP socket")?;
    stamp(&socket).context("enable arrival times on a UDP socket")?;
    Ok(socket)
}

/// Lets the kernel store the arrival time of each datagram.
pub fn stamp(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::ReceiveTimestampns, &true)?)
}

/// Waits for a datagram. A datagram without an arrival time has the present time.
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
    async fn the_arrival_time_is_that_of_the_kernel_not_of_the_reader() {
        let receiver = bind("127.0.0.1:0").await.unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut buffer = [0; 16];
        // The kernel starts to store times a moment after the first socket of the machine enables them; until then it
        // returns the reader's time.
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
        panic!("the time was that of the reader fifty times");
    }
}
