//! One long-lived TCP connection to a pod or a Service, for probes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::Answer;
use crate::packet::{FRAME, Packet};

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

/// An event on a connection.
#[derive(Debug)]
pub enum Event {
    /// A probe has returned.
    Answered(Answer),
    /// A probe to a Service could not be sent, or received an error.
    Failed {
        /// The flow.
        flow: usize,
        /// Time, port and reason.
        reason: String,
    },
    /// The connection of this flow could not be made, or ended unexpectedly.
    Broken {
        /// The flow.
        flow: usize,
        /// Whether the connection existed before.
        was_open: bool,
        /// The reason.
        reason: String,
    },
}

/// Sends probes from the channel and reports events, until the channel closes. A broken connection is made again;
/// probes sent meanwhile are lost.
pub async fn hold(
    flow: usize,
    address: SocketAddr,
    timeout: Duration,
    mut probes: UnboundedReceiver<Packet>,
    events: UnboundedSender<Event>,
) {
    let mut had_one = false;
    while !probes.is_closed() {
        let (was_open, reason) = match tokio::time::timeout(timeout, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Probes that waited for the first connection are its first traffic. Probes that waited after a break are lost.
                while had_one && probes.try_recv().is_ok() {}
                had_one = true;
                match talk(stream, timeout, &mut probes, &events).await {
                    Ok(()) => return,
                    Err(error) => (true, error.to_string()),
                }
            }
            Ok(Err(error)) => (false, format!("connect: {error}")),
            Err(_) => (false, format!("connect: no answer in {} ms", timeout.as_millis())),
        };
        if events
            .send(Event::Broken {
                flow,
                was_open,
                reason,
            })
            .is_err()
        {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Returns without an error when the channel is closed and all probes have returned.
async fn talk(
    stream: TcpStream,
    timeout: Duration,
    probes: &mut UnboundedReceiver<Packet>,
    events: &UnboundedSender<Event>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut from, mut to) = stream.into_split();
    tokio::select! {
        result = read(&mut from, events) => result,
        result = write(&mut to, probes) => {
            result?;
            drop(to);
            // The other side closes after it has returned all data.
            match tokio::time::timeout(timeout, read(&mut from, events)).await {
                Ok(Err(error)) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error),
                _ => Ok(()),
            }
        }
    }
}

async fn write(to: &mut OwnedWriteHalf, probes: &mut UnboundedReceiver<Packet>) -> std::io::Result<()> {
    while let Some(packet) = probes.recv().await {
        to.write_all(&*packet.frame(Timestamp::now())).await?;
    }
    to.shutdown().await
}

/// Never returns without an error: the end of the stream is one.
async fn read(from: &mut OwnedReadHalf, events: &UnboundedSender<Event>) -> std::io::Result<()> {
    let mut frame = vec![0; FRAME];
    loop {
        from.read_exact(&mut frame).await?;
        let Some(packet) = Packet::decode(&frame) else {
            return Err(std::io::Error::other("received data that was never sent"));
        };
        events
            .send(Event::Answered(Answer {
                packet,
                at: Instant::now(),
                in_the_network: None,
            }))
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// A connection task, and its events.
    fn start(address: SocketAddr) -> (UnboundedSender<Packet>, UnboundedReceiver<Event>) {
        let (probe_sender, probes) = mpsc::unbounded_channel();
        let (events, event_receiver) = mpsc::unbounded_channel();
        tokio::spawn(hold(3, address, TIMEOUT, probes, events));
        (probe_sender, event_receiver)
    }

    async fn next(events: &mut UnboundedReceiver<Event>) -> Option<Event> {
        tokio::time::timeout(TIMEOUT, events.recv())
            .await
            .expect("an event in time")
    }

    async fn accept_and_echo(listener: &TcpListener, frames: usize) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut frame = vec![0; FRAME];
        for _ in 0..frames {
            stream.read_exact(&mut frame).await.unwrap();
            stream.write_all(&frame).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_broken_connection_is_reported_and_made_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (probes, mut events) = start(listener.local_addr().unwrap());
        // The first connection echoes one frame and ends; the task reports a break.
        let (first, ()) = tokio::join!(
            async {
                loop {
                    probes.send(Packet { flow: 3, number: 0 }).unwrap();
                    if let Ok(event) = tokio::time::timeout(Duration::from_millis(50), events.recv()).await {
                        break event.unwrap();
                    }
                }
            },
            accept_and_echo(&listener, 1)
        );
        assert!(
            matches!(
                first,
                Event::Answered(Answer {
                    packet: Packet { flow: 3, number: 0 },
                    ..
                })
            ),
            "{first:?}"
        );
        loop {
            match next(&mut events).await.unwrap() {
                Event::Broken { flow, was_open, .. } => {
                    assert!((flow, was_open) == (3, true));
                    break;
                }
                Event::Answered(_) => {}
                Event::Failed { .. } => panic!("there is no Service"),
            }
        }
        listener.accept().await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_the_probes_is_not_a_break() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (probes, mut events) = start(listener.local_addr().unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(probes);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        drop(stream);
        let event = next(&mut events).await;
        assert!(event.is_none(), "{event:?}");
    }
}
