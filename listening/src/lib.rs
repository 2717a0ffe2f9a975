//! Listeners with limits. A client that connects and sends nothing, or connects a thousand times, costs a fixed amount of memory
//! and nothing else: [`http`] serves one request per connection, optionally with TLS and a [`certificate`], and [`slots`] counts
//! the open connections of each client.

pub mod certificate;
pub mod http;
pub mod slots;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use slots::{ConnectionSlot, ConnectionSlots};

/// Pause after a failed accept (no free file descriptor): the next succeeds once another connection has ended.
const AGAIN: Duration = Duration::from_millis(100);

/// The next connection, the address of its client, and its slot. A connection above the limits takes the slot of another one,
/// which ends.
pub async fn accept(
    listener: &TcpListener,
    slots: &ConnectionSlots,
) -> (TcpStream, SocketAddr, ConnectionSlot) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        // A connection that has already ended has no address.
        if let Ok(local) = stream.local_addr() {
            let slot = slots.take(peer.ip(), local.ip());
            return (stream, peer, slot);
        }
    }
}

/// Opens the port of metrics and health: at the given address; otherwise at the address of the node, which the kubelet probes, of
/// either family; otherwise at every address of both families.
///
/// # Errors
///
/// The port is in use, the address is not one of the host, or the process may not open the port.
pub async fn bind(given: Option<SocketAddr>, node: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    if let Some(address) = given.or_else(|| node.map(|address| SocketAddr::new(address, port))) {
        return TcpListener::bind(address).await;
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(both) => Ok(both),
        // A kernel without IPv6 has no socket of both families. If the port is in use, this call returns the error.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    }
}

/// Opens another port where [`bind`] opens its own.
///
/// # Errors
///
/// The other port cannot be opened, as in [`bind`].
pub async fn bind_beside(
    given: Option<SocketAddr>,
    node: Option<IpAddr>,
    port: u16,
) -> io::Result<TcpListener> {
    bind(
        given.map(|address| SocketAddr::new(address.ip(), port)),
        node,
        port,
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_given_address_wins_over_the_address_of_the_node() {
        let node: IpAddr = Ipv4Addr::LOCALHOST.into();
        let listener = bind(None, Some(node), 0).await.unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), node);
        let given: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let listener = bind(Some(given), Some(node), 0).await.unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), given.ip());
    }

    #[tokio::test]
    async fn without_an_address_both_families_are_answered() {
        let port = bind(None, None, 0).await.unwrap().local_addr().unwrap().port();
        // The port can be opened again at once: nothing was accepted on it.
        let listener = bind(None, None, port).await.unwrap();
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        listener.accept().await.unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            tokio::net::TcpStream::connect((Ipv6Addr::LOCALHOST, port))
                .await
                .unwrap();
            listener.accept().await.unwrap();
        }
    }
}
