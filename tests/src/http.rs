//! One HTTP request to a process of the lab, without the waits and retries of a client library.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(5);

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Sends one request. `body` is JSON, or empty.
pub async fn ask(address: Ipv4Addr, port: u16, method: &str, path: &str, body: &str) -> Result<Answer> {
    let fetch = async {
        let mut stream = TcpStream::connect((address, port)).await?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let what = format!("{method} http://{address}:{port}{path}");
    let text = tokio::time::timeout(LIMIT, fetch)
        .await
        .with_context(|| format!("{what} did not answer"))?
        .with_context(|| what.clone())?;
    parse(&text).with_context(|| format!("{what} answered {text:?}"))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()?;
    let is_chunked = head
        .lines()
        .any(|line| line.to_lowercase().replace(' ', "") == "transfer-encoding:chunked");
    Some(Answer {
        status,
        head: head.to_owned(),
        body: if is_chunked { whole(body)? } else { body.to_owned() },
    })
}

/// Joins a body that arrives in parts, each after its length.
fn whole(mut parts: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, rest) = parts.split_once("\r\n")?;
        let length = usize::from_str_radix(length.split(';').next()?.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.push_str(rest.get(..length)?);
        parts = rest.get(length..)?.strip_prefix("\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_parsed_into_status_head_and_body() {
        let answer = parse("HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (409, "{}"));
        assert!(answer.head.contains("content-length"));
        let parts = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{\n\r\n9;x=1\r\n  \"a\": 1}\r\n0\r\n\r\n";
        assert_eq!(parse(parts).unwrap().body, "{\n  \"a\": 1}");
        assert_eq!(parse("SSH-2.0-OpenSSH\r\n\r\n"), None);
        assert_eq!(parse("HTTP/1.1 200 OK\r\n"), None);
    }
}
