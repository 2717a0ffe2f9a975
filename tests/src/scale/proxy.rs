//! Counts the bytes between the coordinator and the API server: the coordinator is the only client of this proxy.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes in each direction on the wire, with the headers of HTTP and TLS.
#[derive(Debug, Default)]
pub struct Counts {
    from_server: AtomicU64,
    to_server: AtomicU64,
}

impl Counts {
    /// Bytes from the API server.
    pub fn received(&self) -> u64 {
        self.from_server.load(Ordering::Relaxed)
    }

    /// Bytes to the API server.
    pub fn sent(&self) -> u64 {
        self.to_server.load(Ordering::Relaxed)
    }
}

/// A counting proxy of the API server. Dropped, it is closed.
#[derive(Debug)]
pub struct Proxy {
    /// The address on which the proxy listens.
    pub address: SocketAddr,
    /// The counts.
    pub counts: Arc<Counts>,
    way: Target,
    _tasks: JoinSet<()>,
}

/// The target of a proxy, as a load balancer in front of several API servers has. Clones share it.
#[derive(Clone, Debug)]
pub struct Target(watch::Sender<SocketAddr>);

impl Target {
    /// Connects new clients to this API server, and ends the connections to the one before.
    pub fn lead_to(&self, server: SocketAddr) {
        self.0.send_replace(server);
    }
}

impl Proxy {
    /// Opens a proxy to the API server at this address.
    pub async fn open(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen for the coordinator")?;
        let address = listener.local_addr().context("read the address of the proxy")?;
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        let (way, targets) = watch::channel(server);
        tasks.spawn(serve(listener, targets, Arc::clone(&counts)));
        Ok(Self {
            address,
            counts,
            way: Target(way),
            _tasks: tasks,
        })
    }

    /// The target of the proxy.
    pub fn way(&self) -> Target {
        self.way.clone()
    }
}

async fn serve(listener: TcpListener, mut targets: watch::Receiver<SocketAddr>, counts: Arc<Counts>) {
    // The connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Ok(()) = targets.changed() => {
                connections.abort_all();
                continue;
            }
        };
        // A connection that fails is for the coordinator to try again.
        let Ok((near, _)) = accepted else {
            continue;
        };
        let server = *targets.borrow();
        let counts = Arc::clone(&counts);
        connections.spawn(async move {
            let Ok(far) = TcpStream::connect(server).await else {
                return;
            };
            // Packets are sent at once, not collected.
            near.set_nodelay(true).ok();
            far.set_nodelay(true).ok();
            let mut near = near;
            let mut far = Counted { stream: far, counts };
            // The side that closes first is reported to the other side. An error ends both.
            copy_bidirectional(&mut near, &mut far).await.ok();
        });
    }
}

struct Counted {
    stream: TcpStream,
    counts: Arc<Counts>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        self.counts.from_server.fetch_add(read as u64, Ordering::Relaxed);
        result
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = result {
            self.counts.to_server.fetch_add(written as u64, Ordering::Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn both_directions_are_counted_and_reach_the_other_side() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::open(server.local_addr().unwrap()).await.unwrap();
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        let (mut far, _) = server.accept().await.unwrap();
        client.write_all(b"question").await.unwrap();
        let mut question = [0; 8];
        far.read_exact(&mut question).await.unwrap();
        far.write_all(b"a long answer").await.unwrap();
        drop(far);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(
            (&question, answer.as_slice()),
            (b"question", b"a long answer".as_slice())
        );
        assert_eq!((proxy.counts.sent(), proxy.counts.received()), (8, 13));
    }

    #[tokio::test]
    async fn after_a_change_of_target_old_connections_end_and_new_ones_use_the_new_target() {
        let [first, second] = [
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(),
        ];
        let proxy = Proxy::open(first.local_addr().unwrap()).await.unwrap();
        let mut before = TcpStream::connect(proxy.address).await.unwrap();
        let (_far, _) = first.accept().await.unwrap();
        proxy.way().lead_to(second.local_addr().unwrap());
        let mut nothing = Vec::new();
        // The end may be an error.
        before.read_to_end(&mut nothing).await.ok();
        let _after = TcpStream::connect(proxy.address).await.unwrap();
        second.accept().await.unwrap();
    }
}
