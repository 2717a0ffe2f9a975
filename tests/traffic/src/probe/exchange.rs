//! One probe from its own port, so that each probe is routed like a new client.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::connection::Event;
use super::{Answer, names};
use crate::packet::Packet;
use crate::socket;

/// Contents, target and source of a probe.
#[derive(Debug)]
pub struct Exchange {
    /// The probe.
    pub packet: Packet,
    /// The name to resolve; without one, the target returns the packet itself.
    pub name: Option<String>,
    /// The target.
    pub address: SocketAddr,
    /// The source port, unless another program has it.
    pub port: u16,
    /// Time limit for an answer.
    pub timeout: Duration,
}

impl Exchange {
    /// Sends the probe and reports the result. Without an answer in time, or after an error, the probe is counted as
    /// lost when its time is over.
    pub async fn make(self, events: mpsc::UnboundedSender<Event>) {
        let mut from = None;
        let ended = match tokio::time::timeout(self.timeout, self.attempt(&mut from)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer in {} ms", self.timeout.as_millis())),
        };
        let Packet { flow, number } = self.packet;
        let event = match (ended, usize::try_from(flow)) {
            (Ok(answer), _) => Event::Answered(answer),
            (Err(why), Ok(flow)) => {
                let from = from.map_or_else(|| format!("port {}", self.port), |from| from.to_string());
                let reason = format!("probe {number} from {from} at {}: {why}", Timestamp::now());
                Event::Failed { flow, reason }
            }
            // No flow has such a number.
            (Err(_), Err(_)) => return,
        };
        events.send(event).ok();
    }

    async fn attempt(&self, from: &mut Option<SocketAddr>) -> io::Result<Answer> {
        let own: IpAddr = match self.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = match UdpSocket::bind((own, self.port)).await {
            Ok(socket) => socket,
            // Another program on this node has the port.
            Err(_) => UdpSocket::bind((own, 0)).await?,
        };
        *from = socket.local_addr().ok();
        socket.connect(self.address).await?;
        *from = socket.local_addr().ok();
        socket::stamp(&socket)?;
        match &self.name {
            None => self.echo(&socket).await,
            Some(name) => self.resolve(&socket, name).await,
        }
    }

    async fn echo(&self, socket: &UdpSocket) -> io::Result<Answer> {
        socket.send(&self.packet.encode(Timestamp::now())).await?;
        let mut buffer = [0; 2048];
        loop {
            let arrival = socket::receive(socket, &mut buffer).await?;
            if let Some(answer) = Packet::decode_answer(&buffer[..arrival.length]) {
                return Ok(Answer::of(&answer, &arrival));
            }
        }
    }

    async fn resolve(&self, socket: &UdpSocket, name: &str) -> io::Result<Answer> {
        // The part that fits into the field; the socket receives no answers of other probes.
        let [.., high, low] = self.packet.number.to_be_bytes();
        let id = u16::from_be_bytes([high, low]);
        let question = names::question(id, name, self.address.is_ipv6()).map_err(io::Error::other)?;
        socket.send(&question).await?;
        let mut buffer = [0; 2048];
        loop {
            let arrival = socket::receive(socket, &mut buffer).await?;
            if names::answer(id, &buffer[..arrival.length]).map_err(io::Error::other)? {
                return Ok(Answer {
                    packet: self.packet,
                    at: Instant::now(),
                    // A name server does not report its own delay.
                    in_the_network: None,
                });
            }
        }
    }
}
