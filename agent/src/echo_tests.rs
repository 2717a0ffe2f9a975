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
const AWHILE: Duration = Duration::from_millis(500);

/// One datagram from the one to the other: were it answered, the two would go on for ever.
#[tokio::test]
async fn two_that_answer_do_not_talk_to_each_other() {
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
    assert_eq!(received(&socket, AWHILE).await, None);
    first.abort();
    second.abort();
}

#[tokio::test]
async fn what_is_no_question_gets_nothing() {
    let (address, task) = start("u-1");
    let socket = to(address).await;
    for bytes in [b"who".as_slice(), b"", &[b'x'; 1400]] {
        socket.send(bytes).await.unwrap();
    }
    assert_eq!(received(&socket, AWHILE).await, None);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&vec![b'x'; 70_000]).await.unwrap();
    let mut back = Vec::new();
    // Closed with a reset: what was written is not read.
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut back))
        .await
        .unwrap();
    assert_eq!(back, b"");
    task.abort();
}

#[tokio::test]
async fn one_that_floods_is_named_to_those_that_ask_by_either_protocol() {
    let (address, task) = start("u-1");
    let flooder = to(address).await;
    let asker = Asker::new().unwrap();
    let question = message::question(asker.nonce(0), LEAST);
    for _ in 0..flood::MOST_OF_ONE * 2 {
        // A full buffer loses some, as a flood does.
        let _ = flooder.send(&question).await;
        tokio::task::yield_now().await;
    }
    let deadline = Instant::now() + SOON;
    let source: IpAddr = Ipv4Addr::LOCALHOST.into();
    loop {
        let reply = ask(address, &question).await.unwrap();
        if asker.read(&reply).unwrap().flooded_by == Some(source) {
            break;
        }
        assert!(Instant::now() < deadline, "it is not named");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In the next second its share is there again, and the flood is told still.
    let reply = loop {
        let socket = to(address).await;
        socket.send(&question).await.unwrap();
        if let Some(reply) = received(&socket, AWHILE).await {
            break reply;
        }
        assert!(Instant::now() < deadline, "it is not answered any more");
    };
    assert_eq!(asker.read(&reply).unwrap().flooded_by, Some(source));
    task.abort();
}

#[tokio::test]
async fn silent_connections_keep_no_other_one_out_and_come_to_an_end() {
    let (address, task) = start("u-1");
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS.own {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    let question = message::question(Asker::new().unwrap().nonce(0), LEAST);
    ask(address, &question).await.unwrap();
    let mut byte = [0];
    let first = held.swap_remove(0).read(&mut byte).await;
    assert!(matches!(first, Ok(0) | Err(_)), "{first:?}: the oldest one ends");
    // Those that say nothing are closed.
    for mut silent in held {
        let ended = tokio::time::timeout(SILENCE + SOON, silent.read(&mut byte)).await;
        assert!(matches!(ended.unwrap(), Ok(0) | Err(_)));
    }
    task.abort();
}
