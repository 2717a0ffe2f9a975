//! The answering side.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::signal::unix::{SignalKind, signal};

use crate::packet::{FRAME, Packet};
use crate::socket;

/// Settings of the answering side.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address to answer at; `::` means all addresses of both families
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub address: IpAddr,
    /// Port, for UDP and TCP
    #[arg(long, default_value_t = 7000)]
    pub port: u16,
    /// Name in the answers: the pod's name
    #[arg(long, env = "POD_NAME")]
    pub name: String,
    /// Time of answering after the program was told to end. Senders learn of the end a moment later.
    #[arg(long, default_value_t = 4000, value_name = "MILLISECONDS")]
    pub linger_ms: u64,
}

/// Answers until the program is told to end.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let address = SocketAddr::new(options.address, options.port);
    let udp = socket::bind(address)
        .await
        .with_context(|| format!("listen on UDP {address}"))?;
    let tcp = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on TCP {address}"))?;
    println!("{} answers on UDP and TCP {address}", options.name);
    let name = options.name.clone();
    let answering = tokio::spawn(async move { tokio::join!(datagrams(&udp, &name), connections(&tcp)) });
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    println!("told to end: answering for another {} ms", options.linger_ms);
    tokio::time::sleep(Duration::from_millis(options.linger_ms)).await;
    answering.abort();
    Ok(())
}

async fn datagrams(socket: &UdpSocket, name: &str) {
    let mut buffer = [0; 2048];
    loop {
        // An error here belongs to one sender (its port was closed): the next one is served.
        if let Ok(arrival) = socket::receive(socket, &mut buffer).await
            && let Some(answer) =
                Packet::answer(&buffer[..arrival.length], arrival.at, Timestamp::now(), name)
        {
            socket::answer(socket, &arrival, &answer).await.ok();
        }
    }
}

async fn connections(listener: &TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(echo(stream))),
            // No more files: a connection must end first.
            Err(error) => {
                eprintln!("accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Returns received data until the other side closes.
async fn echo(mut stream: TcpStream) {
    stream.set_nodelay(true).ok();
    let mut buffer = vec![0; FRAME];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn udp_and_tcp_get_an_answer() {
        let udp = socket::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (to_udp, to_tcp) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
        tokio::spawn(async move { tokio::join!(datagrams(&udp, "me"), connections(&tcp)) });

        let asker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let packet = Packet { flow: 1, number: 2 };
        asker.send_to(b"something else", to_udp).await.unwrap();
        asker
            .send_to(&packet.encode(Timestamp::now()), to_udp)
            .await
            .unwrap();
        let mut buffer = [0; 64];
        let length = asker.recv(&mut buffer).await.unwrap();
        let answer = Packet::decode_answer(&buffer[..length]).unwrap();
        assert_eq!((answer.packet, answer.name), (packet, "me"));
        let journey = answer.journey;
        assert!(
            journey.sent <= journey.arrived && journey.arrived <= journey.answered,
            "{journey:?}"
        );

        let mut stream = TcpStream::connect(to_tcp).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"hello");
    }

    #[tokio::test]
    async fn a_dual_stack_address_answers_both_families() {
        let udp = socket::bind("[::]:0").await.unwrap();
        let port = udp.local_addr().unwrap().port();
        tokio::spawn(async move { datagrams(&udp, "me").await });
        for own in ["127.0.0.1", "::1"] {
            let own: IpAddr = own.parse().unwrap();
            let asker = UdpSocket::bind((own, 0)).await.unwrap();
            asker.connect((own, port)).await.unwrap();
            let packet = Packet { flow: 1, number: 2 };
            asker.send(&packet.encode(Timestamp::now())).await.unwrap();
            let mut buffer = [0; 64];
            let length = asker.recv(&mut buffer).await.unwrap();
            assert_eq!(Packet::decode_answer(&buffer[..length]).unwrap().packet, packet);
        }
    }
}
