//! Messages between a traffic pod and its agent: one JSON object per line.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use engine::traffic::stream::{Recent, Totals};
use engine::traffic::{Flow, Protocol};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Name of the socket in the folder that both share.
pub const SOCKET: &str = "traffic.sock";
/// Period of a pod's reports.
pub const REPORT: Duration = Duration::from_millis(250);
/// Limit of a line; no valid line is as long.
const LONGEST_LINE: u64 = 1024 * 1024;

/// The pod's first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// UID of the pod.
    pub pod_uid: String,
}

/// The agent's lines: the flows to send from now on; all others end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Flows to send.
    pub flows: Vec<Flow>,
    /// Start of judging. A changed value restarts all counts.
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
    /// `judged_since` of the task that these counts belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_since: Option<Timestamp>,
    /// One for each flow and protocol on which probes were sent.
    pub streams: Vec<StreamCount>,
}

/// Current counts of one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamCount {
    /// The flow.
    pub flow: Flow,
    /// Protocol of the probes.
    pub protocol: Protocol,
    /// Counts since the pod started the stream.
    pub totals: Totals,
    /// Counts of the last seconds.
    pub recent: Recent,
    /// Last error of the kernel, or an unexpected answer; empty if answers are only missing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Source that floods the answering pod according to its recent answers, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flooded_by: Option<IpAddr>,
    /// Address that recent probes came from at the answering pod, if that is not the address of this pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masqueraded_as: Option<IpAddr>,
}

/// Reads one line; `None` when the other side has closed.
///
/// # Errors
///
/// The connection fails, or the line is too long or not the expected JSON.
pub async fn read<T: DeserializeOwned>(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let length = from.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    if length == 0 {
        return Ok(None);
    }
    if !line.ends_with(b"\n") {
        let problem = format!("line is longer than {LONGEST_LINE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// Writes one line.
///
/// # Errors
///
/// The connection fails.
pub async fn write(to: &mut (impl AsyncWrite + Unpin), what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line).await
}
