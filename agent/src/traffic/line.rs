//! What a traffic pod and its agent say to each other: one JSON object a line.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use engine::traffic::stream::{Recent, Totals};
use engine::traffic::{Flow, Protocol};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Name of the socket in the folder that both have.
pub const SOCKET: &str = "traffic.sock";
/// How often a pod says what it counted.
pub const REPORT: Duration = Duration::from_millis(250);
/// More than any honest line has.
const LONGEST_LINE: u64 = 1024 * 1024;

/// The pod's first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// UID of the pod.
    pub pod_uid: String,
}

/// The agent's lines: what to send from now on, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Whom to send to.
    pub flows: Vec<Flow>,
    /// Another one than before: everything is counted from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_since: Option<Timestamp>,
    /// Bytes of the largest IP packet that the pod network carries.
    pub mtu: u32,
    /// A probe without an answer is lost after this time, in milliseconds.
    pub patience_milliseconds: u32,
}

/// The pod's lines after the first one: every stream of its task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Of the task that this belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_since: Option<Timestamp>,
    /// One for each flow and protocol that something was sent on.
    pub streams: Vec<StreamCount>,
}

/// One stream as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamCount {
    /// The flow.
    pub flow: Flow,
    /// What is sent on it.
    pub protocol: Protocol,
    /// Since the pod began to send on it.
    pub totals: Totals,
    /// The last seconds.
    pub recent: Recent,
    /// What the kernel said last, or whoever else answered; empty where the answers just did not come.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// From where the pod that answers gets more than it answers, by its own word, if it did lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flooded_by: Option<IpAddr>,
}

/// Reads one line; `None` when the other side has closed.
pub async fn read<T: DeserializeOwned>(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let length = from.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    if length == 0 {
        return Ok(None);
    }
    if !line.ends_with(b"\n") {
        let problem = format!("a line has no end within {LONGEST_LINE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// Writes one line.
pub async fn write(to: &mut (impl AsyncWrite + Unpin), what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line).await
}
