//! A proxy between the tool and its etcd: counts the writes, and kills the tool at one of them, before or after etcd has it.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Time of the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// etcd never receives the write.
    Before,
    /// etcd has the write, but the answer is not delivered.
    After,
    /// The write is delayed: etcd receives it with [`Proxy::deliver`].
    Late,
}

/// The write at which the tool is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// The number of the write, from 1.
    pub write: usize,
    /// The time of the kill.
    pub moment: Moment,
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    writes: Arc<AtomicUsize>,
    struck: Arc<Notify>,
    deliver: Arc<Notify>,
    delivered: Arc<Notify>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// A proxy in front of an etcd.
    pub async fn start(etcd: u16, strike: Option<Strike>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen before etcd")?;
        let port = listener.local_addr().context("listen before etcd")?.port();
        let writes = Arc::new(AtomicUsize::new(0));
        let [struck, deliver, delivered] = [(); 3].map(|()| Arc::new(Notify::new()));
        let shared = Shared {
            writes: Arc::clone(&writes),
            struck: Arc::clone(&struck),
            deliver: Arc::clone(&deliver),
            delivered: Arc::clone(&delivered),
        };
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                tokio::spawn(async move {
                    // A broken connection is for the tool to handle.
                    let _ = serve(stream, etcd, strike, &shared).await;
                });
            }
        });
        Ok(Self {
            port,
            writes,
            struck,
            deliver,
            delivered,
            serving,
        })
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Number of writes so far.
    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    /// Completes at the chosen write: the tool then waits before or after it.
    pub async fn until_kill_point(&self) {
        self.struck.notified().await;
    }

    /// Sends the delayed write to etcd, and completes after the answer.
    pub async fn deliver(&self) {
        self.deliver.notify_one();
        self.delivered.notified().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// State shared by all connections.
#[derive(Clone)]
struct Shared {
    writes: Arc<AtomicUsize>,
    struck: Arc<Notify>,
    deliver: Arc<Notify>,
    delivered: Arc<Notify>,
}

/// Whether the request changes stored data. The lock and its lease are not converted, and every run creates them again.
fn is_write(head: &str, body: &[u8]) -> bool {
    let line = head.lines().next().unwrap_or_default();
    if line.starts_with("PUT /v2/") {
        return true;
    }
    let text = String::from_utf8_lossy(body);
    line.starts_with("POST /v3/kv/txn") && text.contains("request_put") && !text.contains("\"lease\"")
        || line.starts_with("POST /v3/kv/txn") && text.contains("request_delete_range")
}

async fn serve(
    mut client: TcpStream,
    etcd: u16,
    strike: Option<Strike>,
    shared: &Shared,
) -> std::io::Result<()> {
    let Shared {
        writes,
        struck,
        deliver,
        delivered,
    } = shared;
    let mut server = TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, etcd)).await?;
    // A head that waits for its body waits for 40 ms, at each request.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    loop {
        let Some((head, body)) = request(&mut client).await? else {
            return Ok(());
        };
        let number = if is_write(&head, &body) {
            writes.fetch_add(1, Ordering::SeqCst) + 1
        } else {
            0
        };
        let now = strike.filter(|strike| strike.write == number);
        match now.map(|strike| strike.moment) {
            Some(Moment::Before) => return wait_for_kill(struck).await,
            Some(Moment::Late) => {
                struck.notify_one();
                deliver.notified().await;
            }
            Some(Moment::After) | None => {}
        }
        server.write_all(head.as_bytes()).await?;
        server.write_all(&body).await?;
        let answer = answer(&mut server).await?;
        match now.map(|strike| strike.moment) {
            Some(Moment::Late) => {
                delivered.notify_one();
                return Ok(());
            }
            Some(Moment::Before | Moment::After) => return wait_for_kill(struck).await,
            None => {}
        }
        client.write_all(&answer).await?;
    }
}

/// Waits until the tool is killed.
async fn wait_for_kill(struck: &Notify) -> std::io::Result<()> {
    struck.notify_one();
    std::future::pending().await
}

/// One request: its head with the empty line, and its body. `None` at the end of the connection.
async fn request(stream: &mut TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let Some(head) = head(stream).await? else {
        return Ok(None);
    };
    let mut body = vec![
        0;
        field(&head, "content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    ];
    stream.read_exact(&mut body).await?;
    Ok(Some((head, body)))
}

/// One answer, unchanged: with a length, or in chunks.
async fn answer(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let head = head(stream).await?.unwrap_or_default();
    let mut bytes = head.clone().into_bytes();
    if let Some(length) = field(&head, "content-length").and_then(|text| text.parse::<usize>().ok()) {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        bytes.extend(body);
        return Ok(bytes);
    }
    if field(&head, "transfer-encoding").is_none() {
        return Ok(bytes);
    }
    loop {
        let line = line(stream).await?;
        bytes.extend(line.as_bytes());
        let length = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
        // The chunk and its line end; after the last, empty chunk possibly fields.
        if length == 0 {
            loop {
                let line = self::line(stream).await?;
                bytes.extend(line.as_bytes());
                if line.trim().is_empty() {
                    return Ok(bytes);
                }
            }
        }
        let mut piece = vec![0; length + 2];
        stream.read_exact(&mut piece).await?;
        bytes.extend(piece);
    }
}

async fn head(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let mut head = String::new();
    loop {
        let line = line(stream).await?;
        if line.is_empty() {
            return Ok(None);
        }
        head.push_str(&line);
        if line.trim().is_empty() {
            return Ok(Some(head));
        }
    }
}

async fn line(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).await? == 1 {
        bytes.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn field<'head>(head: &'head str, name: &str) -> Option<&'head str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
