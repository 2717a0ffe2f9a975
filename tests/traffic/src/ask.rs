//! Tries connections and says which of them got an answer: the asking side of a comparison of policies.
//!
//! The program lives as long as its standard input. Each line is a [`Batch`], and gets a line with one [`Answer`] for each
//! question, in their order.

mod echo;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UdpSocket};

use crate::probe::names;
use echo::Echo;

/// Source ports of datagrams: none of these is a node port, or one that the kernel chooses.
const PORTS: RangeInclusive<u16> = 20_000..=27_999;
/// Time after which a datagram without an answer is sent again.
const AGAIN: Duration = Duration::from_millis(700);
/// Longest name in an answer.
const LONGEST: u64 = 256;
/// The name that a name server is asked for: each cluster has it.
const NAME: &str = "kubernetes.default.svc.cluster.local";

/// Questions that are asked at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Batch {
    /// The questions.
    pub questions: Vec<Question>,
    /// Time for an answer, with all attempts.
    pub wait_ms: u64,
}

/// A connection to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The kind of connection.
    pub means: Means,
    /// Address and port of the server; the port of [`Means::Ping`] has no meaning.
    pub server: SocketAddr,
}

/// A kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Means {
    /// A TCP connection to a server that says its name.
    Tcp,
    /// A TCP connection to a server that waits for a request: it is made, and nothing is sent.
    Connect,
    /// A datagram to a server that answers with its name.
    Udp,
    /// A DNS query.
    Dns,
    /// An echo request of ICMP.
    Ping,
}

/// The result of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The server answered with this name, which is empty for a server that says none.
    Answered(String),
    /// Nothing came back.
    Silent,
    /// Something else came back, or the question could not be asked.
    Failed(String),
}

/// Answers batch after batch.
pub async fn run() -> Result<()> {
    let mut asker = Asker::default();
    // Nothing else runs between two batches, so reading may block the only thread.
    for line in std::io::stdin().lines() {
        let line = line.context("read a batch of questions")?;
        let batch: Batch = serde_json::from_str(&line).context("parse a batch of questions")?;
        println!("{}", serde_json::to_string(&asker.ask(&batch).await)?);
    }
    Ok(())
}

/// Gives each question its own port or number. Connection tracking keeps an answered flow for minutes, and a policy that comes
/// meanwhile does not judge the same flow again.
#[derive(Debug)]
pub struct Asker {
    port: u16,
    number: u16,
}

impl Default for Asker {
    fn default() -> Self {
        Self {
            port: *PORTS.start(),
            number: 0,
        }
    }
}

impl Asker {
    /// Asks all questions of a batch at the same time.
    pub async fn ask(&mut self, batch: &Batch) -> Vec<Answer> {
        let wait = Duration::from_millis(batch.wait_ms);
        let asked = batch.questions.iter().map(|question| {
            let (port, number) = (self.port(), self.number());
            async move {
                match tokio::time::timeout(wait, try_one(*question, port, number)).await {
                    Ok(Ok(name)) => Answer::Answered(name),
                    Ok(Err(error)) => Answer::Failed(format!("{error:#}")),
                    Err(_) => Answer::Silent,
                }
            }
        });
        join_all(asked.collect::<Vec<_>>()).await
    }

    fn port(&mut self) -> u16 {
        let port = self.port;
        self.port = if port == *PORTS.end() {
            *PORTS.start()
        } else {
            port + 1
        };
        port
    }

    fn number(&mut self) -> u16 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

async fn try_one(question: Question, port: u16, number: u16) -> Result<String> {
    let server = question.server;
    match question.means {
        Means::Tcp | Means::Connect => {
            let stream = TcpStream::connect(server).await.context("connect")?;
            if question.means == Means::Connect {
                return Ok(String::new());
            }
            let mut name = String::new();
            stream
                .take(LONGEST)
                .read_to_string(&mut name)
                .await
                .context("read the name")?;
            Ok(name)
        }
        Means::Udp => {
            let answer = datagrams(server, port, b"?").await?;
            String::from_utf8(answer).context("read the name")
        }
        Means::Dns => {
            let query = names::question(number, NAME, false)?;
            let answer = datagrams(server, port, &query).await?;
            if !names::answer(number, &answer)? {
                bail!("the answer is to another question");
            }
            Ok(String::new())
        }
        Means::Ping => {
            let echo = Echo::open(server.ip(), number).await?;
            loop {
                echo.send().await?;
                if let Ok(answered) = tokio::time::timeout(AGAIN, echo.answer()).await {
                    answered?;
                    return Ok(String::new());
                }
            }
        }
    }
}

/// Sends a datagram again and again until one comes back.
async fn datagrams(server: SocketAddr, port: u16, datagram: &[u8]) -> Result<Vec<u8>> {
    let socket = bound(server, port).await?;
    socket.connect(server).await.context("connect")?;
    let mut buffer = [0; 1024];
    loop {
        socket.send(datagram).await.context("send")?;
        if let Ok(received) = tokio::time::timeout(AGAIN, socket.recv(&mut buffer)).await {
            let length = received.context("receive")?;
            return Ok(buffer[..length].to_vec());
        }
    }
}

/// A socket with this source port.
async fn bound(server: SocketAddr, port: u16) -> Result<UdpSocket> {
    let own: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((own, port))
        .await
        .with_context(|| format!("bind UDP port {port}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer;

    const WAIT: u64 = 2_000;

    fn question(means: Means, port: u16) -> Question {
        Question {
            means,
            server: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    /// Ports that no program has at this moment.
    fn free() -> (u16, u16) {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port())
    }

    #[tokio::test]
    async fn a_server_answers_with_its_name_and_a_closed_port_is_no_silence() {
        let (tcp, udp) = free();
        let (closed, _) = free();
        tokio::spawn(answer::run(answer::Options {
            address: Ipv4Addr::LOCALHOST.into(),
            tcp: vec![tcp],
            udp: vec![udp],
            name: "shop/web-0".to_owned(),
        }));
        tokio::task::yield_now().await;
        let questions = vec![
            question(Means::Tcp, tcp),
            question(Means::Connect, tcp),
            question(Means::Udp, udp),
            question(Means::Tcp, closed),
        ];
        let batch = Batch {
            questions,
            wait_ms: WAIT,
        };
        let answers = Asker::default().ask(&batch).await;
        let named = Answer::Answered("shop/web-0".to_owned());
        assert_eq!(
            answers[..3],
            [named.clone(), Answer::Answered(String::new()), named]
        );
        assert!(
            matches!(&answers[3], Answer::Failed(why) if why.contains("refused")),
            "{answers:?}"
        );
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_silent() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let questions = vec![question(Means::Udp, silent.local_addr().unwrap().port())];
        let batch = Batch {
            questions,
            wait_ms: 100,
        };
        assert_eq!(Asker::default().ask(&batch).await, [Answer::Silent]);
    }

    #[test]
    fn each_question_has_its_own_port() {
        let mut asker = Asker {
            port: *PORTS.end(),
            number: u16::MAX,
        };
        assert_eq!([asker.port(), asker.port()], [27_999, 20_000]);
        assert_eq!([asker.number(), asker.number()], [0, 1]);
    }
}
