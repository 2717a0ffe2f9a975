//! The probe pod: answers on UDP and TCP. It says who it is, and gives back whatever else it is sent.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::host::socket::{self, SocketError};

/// The question that is answered by [`answer`] with the pod's UID.
pub const WHO: &str = "who";
/// The largest UDP payload there is.
const LARGEST_DATAGRAM: usize = 65_535;
/// A line longer than this is no question.
const LONGEST_LINE: u64 = 65_536;
/// How long a TCP connection may stay silent.
const SILENCE: Duration = Duration::from_secs(30);

/// Why the probe pod cannot answer.
#[derive(Debug, Error)]
pub enum EchoError {
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A socket broke.
    #[error("{attempt} port {port}")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// The port.
        port: u16,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
}

/// The sockets of a probe pod, open.
#[derive(Debug)]
pub struct Echo {
    datagrams: UdpSocket,
    connections: TcpListener,
    uid: Arc<str>,
    port: u16,
}

impl Echo {
    /// Opens both sockets on this port, for every address and family of the pod.
    pub fn bind(port: u16, uid: &str) -> Result<Self, EchoError> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let any_v4 = SocketAddr::from(([0, 0, 0, 0], port));
        // A kernel without IPv6 has no dual socket.
        let (datagrams, connections) = match (socket::datagrams(any), socket::listener(any)) {
            (Ok(datagrams), Ok(connections)) => (datagrams, connections),
            _ => (socket::datagrams(any_v4)?, socket::listener(any_v4)?),
        };
        Ok(Self {
            datagrams,
            connections,
            uid: uid.into(),
            port,
        })
    }

    /// Answers until a socket breaks.
    pub async fn serve(self) -> Result<(), EchoError> {
        let Self {
            datagrams,
            connections,
            uid,
            port,
        } = self;
        let io = |attempt| {
            move |source| EchoError::Io {
                attempt,
                port,
                source,
            }
        };
        let connected = async {
            loop {
                let (stream, peer) = connections.accept().await.map_err(io("accepting on TCP"))?;
                let uid = Arc::clone(&uid);
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &uid).await {
                        tracing::debug!(%peer, %error, "a connection ended");
                    }
                });
            }
        };
        let unconnected = async {
            let mut buffer = vec![0; LARGEST_DATAGRAM];
            loop {
                let (length, peer) = datagrams
                    .recv_from(&mut buffer)
                    .await
                    .map_err(io("receiving on UDP"))?;
                let reply = answer(buffer.get(..length).unwrap_or_default(), &uid);
                // A datagram that does not fit the path back is the very thing that a probe looks for.
                if let Err(error) = datagrams.send_to(&reply, peer).await {
                    tracing::debug!(%peer, length, %error, "an answer could not be sent");
                }
            }
        };
        tokio::select! {
            ended = connected => ended,
            ended = unconnected => ended,
        }
    }
}

/// The answer to one datagram or line: `who <rest>` gives `<uid> <rest>`, everything else comes back as it is.
pub fn answer(question: &[u8], uid: &str) -> Vec<u8> {
    match question.strip_prefix(WHO.as_bytes()) {
        Some(rest) if rest.first().is_none_or(u8::is_ascii_whitespace) => [uid.as_bytes(), rest].concat(),
        _ => question.to_vec(),
    }
}

async fn converse(stream: TcpStream, uid: &str) -> std::io::Result<()> {
    use tokio::io::AsyncReadExt;
    let (read, mut write) = stream.into_split();
    let mut reader = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut reader).take(LONGEST_LINE);
        let length = tokio::time::timeout(SILENCE, limited.read_until(b'\n', &mut line)).await??;
        if length == 0 {
            return Ok(());
        }
        write.write_all(&answer(&line, uid)).await?;
    }
}

/// A port on which nobody listens, of both protocols, until somebody binds it: below those that the kernel gives to whoever asks for none
/// (from 32768 on), of which one is another test's socket a moment later.
#[cfg(test)]
pub(crate) fn free_port() -> u16 {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::sync::atomic::{AtomicU16, Ordering};

    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Another process begins elsewhere.
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    let is_free = |port: &u16| {
        let all = (Ipv4Addr::UNSPECIFIED, *port);
        UdpSocket::bind(all).is_ok() && TcpListener::bind(all).is_ok()
    };
    (0..COUNT)
        .map(|_| FIRST + (start + GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .find(is_free)
        .unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_answered_with_the_uid_and_the_rest_comes_back() {
        assert_eq!(answer(b"who", "u-1"), b"u-1");
        assert_eq!(answer(b"who 42\n", "u-1"), b"u-1 42\n");
        assert_eq!(answer(b"whole", "u-1"), b"whole");
        assert_eq!(answer(&[0xff; 1400], "u-1"), [0xff; 1400]);
    }
}
