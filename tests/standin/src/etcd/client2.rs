//! etcd's v2 API with all requests of Calico v2: [`datastore::etcd2`] reads, and sets one key.

use anyhow::{Context, Result, bail};
use datastore::access::Access;
use datastore::etcd2::{encode, url};
use datastore::http::{Body, Http, Repeat, Reply};
use http::Method;
use serde::Deserialize;

use super::store::Entry;

/// etcd's error codes.
const KEY_NOT_FOUND: u32 = 100;
const COMPARE_FAILED: u32 = 101;
const NOT_A_FILE: u32 = 102;
const EXISTS: u32 = 105;
const NOT_EMPTY: u32 = 108;

/// The condition for a write of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// No condition.
    None,
    /// The key does not exist.
    Absent,
    /// The last write of the key was at this index.
    At(u64),
}

/// The store of Calico v2.
#[derive(Debug)]
pub struct Client2 {
    http: Http,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    #[serde(default)]
    key: String,
    #[serde(default)]
    dir: bool,
    #[serde(default)]
    modified_index: u64,
    #[serde(default)]
    value: String,
    #[serde(default)]
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Found {
    node: Node,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Refused {
    error_code: u32,
}

impl Client2 {
    /// Checks that the v2 API exists.
    pub async fn connect(access: &Access) -> Result<Self> {
        let mut client = Self {
            http: Http::new(access)?,
        };
        client
            .ask("check etcd's v2 API", Method::GET, "/v2/keys/", None, &[])
            .await?;
        client.http.wait_for_recovery();
        Ok(client)
    }

    /// One key; `None` if it does not exist, or is a directory.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>> {
        let path = format!("{}?quorum=true", url(key));
        let found = self.read(&format!("read {key}"), &path).await?;
        Ok(found.filter(|node| !node.dir).map(entry))
    }

    /// Every key below a directory, in order.
    pub async fn list(&self, directory: &str) -> Result<Vec<Entry>> {
        let path = format!("{}?recursive=true&sorted=true&quorum=true", url(directory));
        let root = self.read(&format!("list {directory}"), &path).await?;
        let mut entries = Vec::new();
        let mut open: Vec<Node> = root.into_iter().collect();
        while let Some(node) = open.pop() {
            if node.dir {
                open.extend(node.nodes);
            } else {
                entries.push(entry(node));
            }
        }
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(entries)
    }

    /// Writes a key; `false` if the condition does not hold.
    pub async fn set(&self, key: &str, value: &str, guard: Guard) -> Result<bool> {
        let query = match guard {
            Guard::None => String::new(),
            Guard::Absent => "?prevExist=false".to_owned(),
            Guard::At(index) => format!("?prevExist=true&prevIndex={index}"),
        };
        let path = format!("{}{query}", url(key));
        let refusals = [KEY_NOT_FOUND, COMPARE_FAILED, EXISTS];
        let body = format!("value={}", encode(value));
        let attempt = format!("write {key}");
        let written = self
            .ask(&attempt, Method::PUT, &path, Some(body), &refusals)
            .await?;
        Ok(written.is_some())
    }

    /// Creates a directory, if it does not exist.
    pub async fn make_directory(&self, key: &str) -> Result<()> {
        let path = format!("{}?dir=true&prevExist=false", url(key));
        let attempt = format!("create the directory {key}");
        let body = Some(String::new());
        self.ask(&attempt, Method::PUT, &path, body, &[EXISTS, NOT_A_FILE])
            .await?;
        Ok(())
    }

    /// Deletes a key that was last written at this index; `false` if it was written since, or deleted.
    pub async fn delete(&self, key: &str, index: u64) -> Result<bool> {
        let path = format!("{}?prevIndex={index}", url(key));
        let refusals = [KEY_NOT_FOUND, COMPARE_FAILED];
        let attempt = format!("delete {key}");
        let deleted = self.ask(&attempt, Method::DELETE, &path, None, &refusals).await?;
        Ok(deleted.is_some())
    }

    /// Deletes an empty directory; `false` if it is not empty.
    pub async fn delete_empty(&self, directory: &str) -> Result<bool> {
        let path = format!("{}?dir=true", url(directory));
        let refusals = [KEY_NOT_FOUND, NOT_EMPTY];
        let attempt = format!("delete the empty directory {directory}");
        let deleted = self.ask(&attempt, Method::DELETE, &path, None, &refusals).await?;
        Ok(deleted.is_some())
    }

    async fn read(&self, attempt: &str, path: &str) -> Result<Option<Node>> {
        let reply = self
            .ask(attempt, Method::GET, path, None, &[KEY_NOT_FOUND])
            .await?;
        let Some(reply) = reply else { return Ok(None) };
        let found: Found = serde_json::from_slice(&reply.body)
            .with_context(|| format!("{attempt}: {} is not an answer of etcd", reply.text()))?;
        Ok(Some(found.node))
    }

    /// The answer; `None` if etcd refuses with one of these codes.
    async fn ask(
        &self,
        attempt: &str,
        method: Method,
        path: &str,
        form: Option<String>,
        refusals: &[u32],
    ) -> Result<Option<Reply>> {
        let repeat = if method == Method::GET {
            Repeat::Always
        } else {
            Repeat::BeforeSend
        };
        let body = form.map(|form| Body {
            content_type: "application/x-www-form-urlencoded",
            bytes: form.into_bytes(),
        });
        let reply = self
            .http
            .send(attempt, method, path, body.as_ref(), repeat)
            .await?;
        if reply.status.is_success() {
            return Ok(Some(reply));
        }
        let refused: Option<Refused> = serde_json::from_slice(&reply.body).ok();
        if refused.is_some_and(|refused| refusals.contains(&refused.error_code)) {
            return Ok(None);
        }
        bail!("{attempt}: {} answers {}", reply.endpoint, reply.text())
    }
}

fn entry(node: Node) -> Entry {
    Entry {
        key: node.key,
        value: node.value,
        version: node.modified_index,
    }
}
