//! A flood of another owner: datagrams without a request, and connections without data.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::MissedTickBehavior;

/// Bytes of a datagram.
const SIZE: usize = 1000;
/// Time between two bursts of datagrams.
const BURST_INTERVAL: Duration = Duration::from_millis(10);
/// Pause before an ended connection is made again.
const PAUSE: Duration = Duration::from_secs(1);

/// Targets and amounts of the flood.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Addresses and ports that get datagrams
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub datagrams_to: Vec<SocketAddr>,
    /// Datagrams a second to each address
    #[arg(long, default_value_t = 2000)]
    pub rate: u32,
    /// Addresses and ports of idle connections
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub connections_to: Vec<SocketAddr>,
    /// Connections to each address
    #[arg(long, default_value_t = 200)]
    pub connections: u32,
}

/// Floods until the program ends.
pub async fn run(options: Options) -> Result<()> {
    for address in &options.connections_to {
        for _ in 0..options.connections {
            tokio::spawn(hold(*address));
        }
    }
    let socket = UdpSocket::bind("0.0.0.0:0").await.context("bind a UDP socket")?;
    let bursts_a_second = 1000 / u32::try_from(BURST_INTERVAL.as_millis()).context("the interval")?;
    let burst = options.rate.div_ceil(bursts_a_second);
    let mut tick = tokio::time::interval(BURST_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let datagram = [0; SIZE];
    loop {
        tick.tick().await;
        for address in &options.datagrams_to {
            for _ in 0..burst {
                // A full buffer, or an error because no program listens there, loses a datagram, as in any flood.
                let _ = socket.send_to(&datagram, address).await;
            }
        }
    }
}

/// Holds one connection, and makes it again when it ends.
async fn hold(address: SocketAddr) {
    loop {
        if let Ok(connection) = TcpStream::connect(address).await {
            let _ = connection.readable().await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn datagrams_and_connections_reach_their_targets() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let options = Options {
            datagrams_to: vec![socket.local_addr().unwrap()],
            rate: 100,
            connections_to: vec![listener.local_addr().unwrap()],
            connections: 2,
        };
        let seen = async {
            let mut buffer = [0; SIZE];
            let (length, _) = socket.recv_from(&mut buffer).await.unwrap();
            let _first = listener.accept().await.unwrap();
            let _second = listener.accept().await.unwrap();
            length
        };
        tokio::select! {
            length = seen => assert_eq!(length, SIZE),
            ended = run(options) => panic!("the flood has ended: {ended:?}"),
        }
    }
}
