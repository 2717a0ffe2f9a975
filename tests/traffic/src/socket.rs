//! UDP sockets that buffer datagrams while their program does not run, return their arrival times, and answer from the address that was
//! asked.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use jiff::Timestamp;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrLike, SockaddrStorage, recvmsg, sendmsg,
    setsockopt, sockopt,
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
    /// The own address to which the datagram was sent, if the kernel returns it.
    pub to: Option<IpAddr>,
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
    let of_ipv6 = socket.local_addr()?.is_ipv6();
    let addressed = if of_ipv6 {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)
    };
    addressed.context("let the kernel return the destinations of datagrams")?;
    Ok(socket)
}

/// Answers a datagram, from the address to which it was sent: on a socket for all addresses, the kernel would choose one by the route.
pub async fn answer(socket: &UdpSocket, arrival: &Arrival, bytes: &[u8]) -> io::Result<()> {
    let Some(to) = arrival.from else { return Ok(()) };
    let send = || send_now(socket, bytes, to, arrival.to);
    socket.async_io(Interest::WRITABLE, send).await
}

fn send_now(socket: &UdpSocket, bytes: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
    let (four, six);
    let control = match from {
        Some(IpAddr::V4(from)) => {
            four = in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr {
                    s_addr: u32::from_ne_bytes(from.octets()),
                },
                ipi_addr: in_addr { s_addr: 0 },
            };
            Some(ControlMessage::Ipv4PacketInfo(&four))
        }
        // The address of the sender names the link of a link-local address.
        Some(IpAddr::V6(from)) => {
            six = in6_pktinfo {
                ipi6_addr: in6_addr {
                    s6_addr: from.octets(),
                },
                ipi6_ifindex: 0,
            };
            Some(ControlMessage::Ipv6PacketInfo(&six))
        }
        None => None,
    };
    sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        control.as_slice(),
        MsgFlags::MSG_DONTWAIT,
        Some(&SockaddrStorage::from(to)),
    )?;
    Ok(())
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
    let mut control = nix::cmsg_space!(TimeSpec, in_pktinfo, in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let (mut stamped, mut to) = (None, None);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::ScmTimestampns(time) => stamped = Some(time),
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                to = Some(Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into());
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                to = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
            }
            _ => {}
        }
    }
    let at = stamped.and_then(|time| {
        let part = i32::try_from(time.tv_nsec()).ok()?;
        Timestamp::new(time.tv_sec(), part).ok()
    });
    Ok(Arrival {
        length: message.bytes,
        from: message.address.as_ref().and_then(address),
        to,
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

    /// All of 127.0.0.0/8 is local; the kernel would answer from 127.0.0.1 (to a client at an address of the same host).
    #[tokio::test]
    async fn an_answer_comes_from_the_address_that_was_asked() {
        for (own, asked, client) in [
            ("0.0.0.0", "127.0.0.9", "127.0.0.5"),
            ("::", "127.0.0.9", "127.0.0.5"),
            ("::", "::1", "::1"),
        ] {
            let server = bind((own, 0)).await.unwrap();
            let port = server.local_addr().unwrap().port();
            let client = UdpSocket::bind((client, 0)).await.unwrap();
            let asked = SocketAddr::new(asked.parse().unwrap(), port);
            client.send_to(b"hello", asked).await.unwrap();
            let mut buffer = [0; 16];
            let arrival = receive(&server, &mut buffer).await.unwrap();
            answer(&server, &arrival, b"me").await.unwrap();
            let (length, from) = client.recv_from(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..length], from), (&b"me"[..], asked), "socket at {own}");
        }
    }
}
