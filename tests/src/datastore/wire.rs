//! One request over HTTP/1.0: the answer ends with the connection, and is not chunked. This client is independent of replumb.

use std::net::SocketAddrV4;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_mins(1);

/// The status and the body.
pub async fn ask(
    at: SocketAddrV4,
    method: &str,
    path: &str,
    content_type: &str,
    body: &str,
) -> Result<(u16, String)> {
    let what = format!("{method} http://{at}{path}");
    let fetch = async {
        let mut stream = TcpStream::connect(at).await?;
        let request = format!(
            "{method} {path} HTTP/1.0\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = tokio::time::timeout(LIMIT, fetch)
        .await
        .with_context(|| format!("{what} did not answer"))?
        .with_context(|| what.clone())?;
    let text = String::from_utf8(bytes).with_context(|| format!("{what}: the answer is not text"))?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .with_context(|| format!("{what} answered {text:?}"))?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.with_context(|| format!("{what} answered {head:?}"))?;
    Ok((status, body.to_owned()))
}

/// An answer that must be JSON and no error.
pub async fn json(
    at: SocketAddrV4,
    method: &str,
    path: &str,
    content_type: &str,
    body: &str,
) -> Result<Value> {
    let (status, body) = ask(at, method, path, content_type, body).await?;
    ensure!((200..300).contains(&status), "{method} {path}: {status} {body}");
    serde_json::from_str(&body).with_context(|| format!("{method} {path}: parse {body:?}"))
}
