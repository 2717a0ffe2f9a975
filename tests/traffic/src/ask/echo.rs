//! Echo requests of ICMP and `ICMPv6`. A raw socket needs `CAP_NET_RAW`, which pods have unless they drop it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::net::UdpSocket;

/// Types of messages: request and answer.
const ICMP: (u8, u8) = (8, 0);
const ICMPV6: (u8, u8) = (128, 129);

/// One flow of echo requests.
#[derive(Debug)]
pub struct Echo {
    /// Sends and receives messages of ICMP: the runtime does not ask what kind of socket it is.
    socket: UdpSocket,
    request: [u8; 8],
    answer: [u8; 8],
    is_ipv6: bool,
}

impl Echo {
    /// Opens a socket for echo requests with this identifier.
    pub async fn open(server: IpAddr, identifier: u16) -> Result<Self> {
        let is_ipv6 = server.is_ipv6();
        let (family, protocol, (request, answer)) = if is_ipv6 {
            (AddressFamily::Inet6, SockProtocol::IcmpV6, ICMPV6)
        } else {
            (AddressFamily::Inet, SockProtocol::Icmp, ICMP)
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let raw = socket(family, SockType::Raw, flags, protocol).context("open a raw socket")?;
        let socket = UdpSocket::from_std(raw.into()).context("use a raw socket")?;
        socket
            .connect(SocketAddr::new(server, 0))
            .await
            .context("connect a raw socket")?;
        Ok(Self {
            socket,
            request: message(request, identifier),
            answer: message(answer, identifier),
            is_ipv6,
        })
    }

    /// Sends a request. The kernel writes the checksum of `ICMPv6`.
    pub async fn send(&self) -> Result<()> {
        self.socket.send(&self.request).await.context("send")?;
        Ok(())
    }

    /// Waits for the answer. The socket gets every message of ICMP from the server.
    pub async fn answer(&self) -> Result<()> {
        let mut buffer = [0; 512];
        loop {
            let length = self.socket.recv(&mut buffer).await.context("receive")?;
            if self.is_answer(&buffer[..length]) {
                return Ok(());
            }
        }
    }

    fn is_answer(&self, packet: &[u8]) -> bool {
        // A raw socket of IPv4 gets the header of IP, too; its length is in words of four bytes.
        let header = match packet.first() {
            Some(first) if !self.is_ipv6 => usize::from(first & 0x0f) * 4,
            _ => 0,
        };
        let Some(message) = packet.get(header..header + 8) else {
            return false;
        };
        // Type and code, then identifier and number; the checksum between them is the kernel's.
        message[..2] == self.answer[..2] && message[4..] == self.answer[4..]
    }
}

/// A message without data.
fn message(kind: u8, identifier: u16) -> [u8; 8] {
    let [high, low] = identifier.to_be_bytes();
    let mut message = [kind, 0, 0, 0, high, low, 0, 1];
    let sum: u32 = message
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    // The sum of four 16-bit numbers fits after one fold, or one more.
    let folded = (folded & 0xffff) + (folded >> 16);
    let [high, low] = (!u16::try_from(folded).unwrap_or(u16::MAX)).to_be_bytes();
    message[2] = high;
    message[3] = low;
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_internet() {
        // An echo request with identifier 0x1234 and number 1: the sum of all words is 0xffff.
        let message = message(8, 0x1234);
        let sum: u32 = message
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(message[4..], [0x12, 0x34, 0, 1]);
    }

    #[tokio::test]
    #[ignore = "needs CAP_NET_RAW"]
    async fn the_own_host_answers() {
        for server in ["127.0.0.1", "::1"] {
            let echo = Echo::open(server.parse().unwrap(), 77).await.unwrap();
            echo.send().await.unwrap();
            echo.answer().await.unwrap();
        }
    }
}
