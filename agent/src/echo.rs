//! The probe pod: answers questions on UDP and TCP with its own UID. Other packets are not answered.

pub mod flood;
pub mod message;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use listening::slots::{ConnectionSlots, Limits};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use self::flood::Sources;
use self::message::LINE;
use crate::host::socket::{self, SocketError};

/// The largest possible UDP payload.
const LARGEST_DATAGRAM: usize = 65_535;
/// Timeout of one question on a TCP connection.
const SILENCE: Duration = Duration::from_secs(5);
/// Questions that one connection may ask: a client with more questions reconnects.
const MOST_QUESTIONS: usize = 16;
/// A traffic pod has a few connections at a time to each other traffic pod; behind a Service many may have the same source
/// address.
const CONNECTIONS: Limits = Limits {
    all: 512,
    per_address: 64,
    own: 64,
};

/// Reason why the probe pod cannot answer.
#[derive(Debug, Error)]
pub enum EchoError {
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A socket failed.
    #[error("{attempt} port {port}")]
    Io {
        /// The operation that failed.
        attempt: &'static str,
        /// The port.
        port: u16,
        /// The kernel's error.
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
    ///
    /// # Errors
    ///
    /// The port is in use, or the kernel refuses a socket.
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

    /// Answers until a socket fails.
    ///
    /// # Errors
    ///
    /// Receiving on UDP fails. A failed connection or answer ends nothing.
    pub async fn serve(self) -> Result<(), EchoError> {
        let Self {
            datagrams,
            connections,
            uid,
            port,
        } = self;
        let sources = Arc::<Mutex<Sources>>::default();
        let unconnected = async {
            let mut buffer = vec![0; LARGEST_DATAGRAM];
            loop {
                let (length, peer) =
                    datagrams
                        .recv_from(&mut buffer)
                        .await
                        .map_err(|source| EchoError::Io {
                            attempt: "receiving on UDP",
                            port,
                            source,
                        })?;
                let now = Instant::now();
                let flooded_by = {
                    let mut sources = lock(&sources);
                    if !sources.may_answer(peer.ip(), now) {
                        continue;
                    }
                    sources.flooded_by(now)
                };
                let question = buffer.get(..length).unwrap_or_default();
                let Some(answer) = message::answer(question, &uid, peer.ip(), flooded_by) else {
                    continue;
                };
                // An answer that does not fit the path back is not an error here: the prober detects it as lost.
                if let Err(error) = datagrams.send_to(&answer, peer).await {
                    tracing::debug!(%peer, length, %error, "sending an answer failed");
                }
            }
        };
        tokio::select! {
            () = accept(&connections, &uid, &sources) => Ok(()),
            ended = unconnected => ended,
        }
    }
}

fn lock(sources: &Mutex<Sources>) -> MutexGuard<'_, Sources> {
    // Each change is complete before a panic is possible.
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(connections: &TcpListener, uid: &Arc<str>, sources: &Arc<Mutex<Sources>>) {
    let slots = ConnectionSlots::new(CONNECTIONS);
    loop {
        let (stream, peer, slot) = listening::accept(connections, &slots).await;
        let (uid, sources) = (Arc::clone(uid), Arc::clone(sources));
        tokio::spawn(async move {
            match slot.hold(converse(stream, peer.ip(), &uid, &sources)).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%peer, %error, "connection failed"),
                None => tracing::debug!(%peer, "connection closed to make room for another one"),
            }
        });
    }
}

/// Answers questions of one size, each with an end of line. Anything else ends the connection.
async fn converse(
    mut stream: TcpStream,
    peer: IpAddr,
    uid: &str,
    sources: &Mutex<Sources>,
) -> std::io::Result<()> {
    let mut line = [0; LINE];
    for _ in 0..MOST_QUESTIONS {
        let one = async {
            if stream.read_exact(&mut line).await.is_err() {
                return Ok(false);
            }
            let flooded_by = lock(sources).flooded_by(Instant::now());
            let answer = line
                .strip_suffix(b"\n")
                .and_then(|question| message::answer(question, uid, peer, flooded_by));
            let Some(mut answer) = answer else {
                return Ok(false);
            };
            answer.push(b'\n');
            stream.write_all(&answer).await?;
            Ok::<_, std::io::Error>(true)
        };
        if !tokio::time::timeout(SILENCE, one).await?? {
            break;
        }
    }
    Ok(())
}

/// A reply over a connection.
#[derive(Debug)]
pub struct Reply {
    /// At most as many bytes as an answer has.
    pub bytes: Vec<u8>,
    /// The own address of the connection.
    pub own_address: IpAddr,
}

/// Asks one question over a new connection, and reads the reply.
///
/// # Errors
///
/// The peer refuses or closes the connection before the whole reply has arrived.
pub async fn ask(peer: SocketAddr, question: &[u8]) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect(peer).await?;
    let own_address = stream.local_addr()?.ip();
    stream.write_all(&[question, b"\n"].concat()).await?;
    let mut line = vec![0; LINE];
    stream.read_exact(&mut line).await?;
    line.truncate(question.len());
    Ok(Reply {
        bytes: line,
        own_address,
    })
}

/// A port without a listener, for both protocols. Its number is below the ephemeral ports (from 32768 on), since the kernel may
/// assign one of those to another test's socket a moment later.
#[cfg(test)]
pub(crate) fn free_port() -> u16 {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::sync::atomic::{AtomicU16, Ordering};

    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static USED: AtomicU16 = AtomicU16::new(0);
    // Another process starts with another port.
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap();
    let is_free = |port: &u16| {
        let all = (Ipv4Addr::UNSPECIFIED, *port);
        UdpSocket::bind(all).is_ok() && TcpListener::bind(all).is_ok()
    };
    (0..COUNT)
        .map(|_| FIRST + (start + USED.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .find(is_free)
        .unwrap()
}

#[cfg(test)]
mod tests;
