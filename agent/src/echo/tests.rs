use std::net::{IpAddr, Ipv4Addr};

use tokio::task::JoinHandle;

use super::message::{Asker, LEAST};
use super::*;

fn start(uid: &str) -> (SocketAddr, JoinHandle<()>) {
    let port = free_port();
    let echo = Echo::bind(port, uid).unwrap();
    let task = tokio::spawn(async move { echo.serve().await.unwrap() });
    (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), task)
}

async fn received(socket: &UdpSocket, within: Duration) -> Option<Vec<u8>> {
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    let length = tokio::time::timeout(within, socket.recv(&mut buffer))
        .await
        .ok()?
        .unwrap();
    buffer.truncate(length);
    Some(buffer)
}

async fn to(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

const SOON: Duration = Duration::from_secs(5);
const NO_ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// An answer of one pod is sent to the other: an answer to it would start an endless exchange.
#[tokio::test]
async fn an_answer_is_not_answered() {
    let (one, first) = start("u-1");
    let (other, second) = start("u-2");
    let asker = Asker::new().unwrap();
    let question = message::question(asker.nonce(1), LEAST);
    let socket = to(one).await;
    socket.send(&question).await.unwrap();
    let answer = received(&socket, SOON).await.unwrap();
    assert_eq!(answer.len(), question.len());
    let socket = to(other).await;
    socket.send(&answer).await.unwrap();
    assert_eq!(received(&socket, NO_ANSWER_WITHIN).await, None);
    first.abort();
    second.abort();
}

#[tokio::test]
async fn a_packet_that_is_no_question_is_not_answered() {
    let (address, task) = start("u-1");
    let socket = to(address).await;
    for bytes in [b"who".as_slice(), b"", &[b'x'; 1400]] {
        socket.send(bytes).await.unwrap();
    }
    assert_eq!(received(&socket, NO_ANSWER_WITHIN).await, None);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&vec![b'x'; 70_000]).await.unwrap();
    let mut back = Vec::new();
    // The connection is closed with a reset, since unread data remains.
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut back))
        .await
        .unwrap();
    assert_eq!(back, b"");
    task.abort();
}

#[tokio::test]
async fn a_flooding_source_is_named_in_answers_on_udp_and_tcp() {
    let (address, task) = start("u-1");
    let flooder = to(address).await;
    let asker = Asker::new().unwrap();
    let question = message::question(asker.nonce(0), LEAST);
    for _ in 0..flood::MOST_OF_ONE * 2 {
        // A full buffer drops some, as with a real flood.
        let _ = flooder.send(&question).await;
        tokio::task::yield_now().await;
    }
    let deadline = Instant::now() + SOON;
    let source: IpAddr = Ipv4Addr::LOCALHOST.into();
    loop {
        let reply = ask(address, &question).await.unwrap();
        if asker.read(&reply.bytes).unwrap().flooded_by == Some(source) {
            break;
        }
        assert!(Instant::now() < deadline, "the source is not named");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In the next second the source is answered again, and the flood is still reported.
    let reply = loop {
        let socket = to(address).await;
        socket.send(&question).await.unwrap();
        if let Some(reply) = received(&socket, NO_ANSWER_WITHIN).await {
            break reply;
        }
        assert!(Instant::now() < deadline, "no more answers");
    };
    assert_eq!(asker.read(&reply).unwrap().flooded_by, Some(source));
    task.abort();
}

#[tokio::test]
async fn silent_connections_time_out_and_do_not_block_others() {
    let (address, task) = start("u-1");
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS.own {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    let question = message::question(Asker::new().unwrap().nonce(0), LEAST);
    ask(address, &question).await.unwrap();
    let mut byte = [0];
    let first = held.swap_remove(0).read(&mut byte).await;
    assert!(
        matches!(first, Ok(0) | Err(_)),
        "{first:?}: the oldest one is closed"
    );
    // Silent connections are closed.
    for mut silent in held {
        let ended = tokio::time::timeout(SILENCE + SOON, silent.read(&mut byte)).await;
        assert!(matches!(ended.unwrap(), Ok(0) | Err(_)));
    }
    task.abort();
}
