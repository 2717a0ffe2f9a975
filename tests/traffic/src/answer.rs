//! Answers on several ports with its own name: the asked side of a comparison of policies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UdpSocket};
use tokio::signal::unix::{SignalKind, signal};

use crate::socket;

/// Pause after a failure that belongs to the whole program, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Ports and name.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address to answer at; `::` means all addresses of both families
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub address: IpAddr,
    /// TCP ports
    #[arg(long = "tcp", value_name = "PORT")]
    pub tcp: Vec<u16>,
    /// UDP ports
    #[arg(long = "udp", value_name = "PORT")]
    pub udp: Vec<u16>,
    /// Name in the answers
    #[arg(long)]
    pub name: String,
}

/// Answers until the program is told to end.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    for port in &options.tcp {
        let address = SocketAddr::new(options.address, *port);
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on TCP {address}"))?;
        tokio::spawn(connections(listener, options.name.clone()));
    }
    for port in &options.udp {
        let address = SocketAddr::new(options.address, *port);
        let socket = socket::bind(address)
            .await
            .with_context(|| format!("listen on UDP {address}"))?;
        tokio::spawn(datagrams(socket, options.name.clone()));
    }
    println!(
        "{} answers on TCP {:?} and UDP {:?}",
        options.name, options.tcp, options.udp
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Each connection gets the name, and ends.
async fn connections(listener: TcpListener, name: String) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let name = name.clone();
                // A client that went away has its answer, or does not need it.
                tokio::spawn(async move { stream.write_all(name.as_bytes()).await });
            }
            Err(error) => {
                eprintln!("accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn datagrams(socket: UdpSocket, name: String) {
    let mut buffer = [0; 512];
    loop {
        // An error here belongs to one sender (its port was closed): the next one is served.
        if let Ok(arrival) = socket::receive(&socket, &mut buffer).await {
            socket::answer(&socket, &arrival, name.as_bytes()).await.ok();
        }
    }
}
