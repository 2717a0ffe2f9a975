//! A real etcd from Debian, 3.4 with its v2 API, on the loopback; its contents are read with a client that is
//! independent of replumb.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use datastore::etcd2::{encode, url};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use tokio::process::Command;

use super::wire;
use crate::cluster::wait::{Observation, until};
use crate::ports::Port;
use crate::started::{Process, on_free_ports};

const START_LIMIT: Duration = Duration::from_mins(1);
/// Number of simultaneous writes.
const AT_ONCE: usize = 32;
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

/// How etcd is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program.
    pub program: PathBuf,
    /// Whether the v2 API is enabled: the option is omitted for versions without this API.
    pub v2: Option<bool>,
    /// Certificate authority, certificate and key: with them etcd uses TLS, and requests a certificate.
    pub tls: Option<[PathBuf; 3]>,
}

/// An etcd that runs until it is dropped.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    port: Port,
    _peers: Port,
    scheme: &'static str,
    has_v2: bool,
}

impl Etcd {
    /// Starts etcd with an empty store in its own folder.
    pub async fn start(folder: &Path, options: &Options) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        on_free_ports(async || Self::begin(folder, options).await).await
    }

    async fn begin(folder: &Path, options: &Options) -> Result<Self> {
        let claimed = Port::claim_all::<2>()?;
        let [port, peers] = claimed.each_ref().map(Port::number);
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let mut command = std::process::Command::new(&options.program);
        command
            .arg("--name=store")
            .arg(format!("--data-dir={}", folder.join("data").display()))
            .arg("--unsafe-no-fsync")
            .arg(format!("--listen-client-urls={scheme}://127.0.0.1:{port}"))
            .arg(format!("--advertise-client-urls={scheme}://127.0.0.1:{port}"))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peers}"))
            .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{peers}"))
            .arg(format!("--initial-cluster=store=http://127.0.0.1:{peers}"));
        if let Some(v2) = options.v2 {
            command.arg(format!("--enable-v2={v2}"));
        }
        if let Some([authority, certificate, key]) = &options.tls {
            command
                .arg("--client-cert-auth")
                .arg(format!("--trusted-ca-file={}", authority.display()))
                .arg(format!("--cert-file={}", certificate.display()))
                .arg(format!("--key-file={}", key.display()));
        }
        command.env_remove("ETCDCTL_API");
        let [port, peers] = claimed;
        let mut etcd = Self {
            process: Process::start("etcd", folder.join("etcd.log"), &mut command)?,
            port,
            _peers: peers,
            scheme,
            has_v2: options.v2 == Some(true),
        };
        etcd.answers(folder).await?;
        Ok(etcd)
    }

    async fn answers(&mut self, logs: &Path) -> Result<()> {
        until("etcd to answer", START_LIMIT, logs, async || {
            if let Some(ended) = self.process.ended()? {
                return Ok(Observation::Never(ended.into()));
            }
            if self.scheme == "https" {
                // A client without a certificate may connect, but has no other rights.
                tokio::net::TcpStream::connect(self.at()).await?;
                return Ok(Observation::Done(()));
            }
            let (status, body) = wire::ask(self.at(), "GET", "/health", JSON, "").await?;
            Ok(if status == 200 && body.contains("true") {
                Observation::Done(())
            } else {
                Observation::NotYet(body)
            })
        })
        .await
    }

    fn at(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.port())
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port())
    }

    /// Whether etcd has the v2 API.
    pub fn has_v2(&self) -> bool {
        self.has_v2
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Writes one key of v2.
    pub async fn put_v2(&self, key: &str, value: &str) -> Result<()> {
        let body = format!("value={}", encode(value));
        wire::json(self.at(), "PUT", &url(key), FORM, &body).await?;
        Ok(())
    }

    /// Empties both stores, and writes these keys of v2.
    pub async fn seed(&self, store: &BTreeMap<String, String>) -> Result<()> {
        self.wipe().await?;
        let puts = store.iter().map(|(key, value)| self.put_v2(key, value));
        futures::stream::iter(puts)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await
    }

    /// Creates an empty directory of v2.
    pub async fn directory_v2(&self, key: &str) -> Result<()> {
        wire::json(self.at(), "PUT", &format!("{}?dir=true", url(key)), FORM, "").await?;
        Ok(())
    }

    /// Every value of v2 below `/calico`.
    pub async fn dump_v2(&self) -> Result<BTreeMap<String, String>> {
        let mut values = BTreeMap::new();
        for node in self.nodes_v2().await? {
            if let (Some(key), Some(value)) = (node["key"].as_str(), node["value"].as_str()) {
                values.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(values)
    }

    /// Every directory of v2 below `/calico`.
    pub async fn directories_v2(&self) -> Result<Vec<String>> {
        let all = self.tree_v2().await?.into_iter();
        let directories = all.filter(|node| node["dir"] == true);
        Ok(directories
            .filter_map(|node| Some(node["key"].as_str()?.to_owned()))
            .collect())
    }

    /// Every key of v2 below `/calico` that has a value, as etcd lists it.
    async fn nodes_v2(&self) -> Result<Vec<Value>> {
        let mut all = self.tree_v2().await?;
        all.retain(|node| node["dir"] != true);
        Ok(all)
    }

    async fn tree_v2(&self) -> Result<Vec<Value>> {
        let (status, body) = wire::ask(
            self.at(),
            "GET",
            "/v2/keys/calico?recursive=true&quorum=true",
            JSON,
            "",
        )
        .await?;
        let mut found = Vec::new();
        if status == 404 {
            return Ok(found);
        }
        let mut answer: Value = serde_json::from_str(&body).with_context(|| format!("parse {body:?}"))?;
        let mut open = vec![answer["node"].take()];
        while let Some(mut node) = open.pop() {
            if let Value::Array(nodes) = node["nodes"].take() {
                open.extend(nodes);
            }
            found.push(node);
        }
        Ok(found)
    }

    /// The index of the last write of each key of v2 below `/calico`: a write of the same value has a new index.
    pub async fn indices_v2(&self) -> Result<BTreeMap<String, u64>> {
        let mut indices = BTreeMap::new();
        for node in self.nodes_v2().await? {
            if let (Some(key), Some(index)) = (node["key"].as_str(), node["modifiedIndex"].as_u64()) {
                indices.insert(key.to_owned(), index);
            }
        }
        Ok(indices)
    }

    /// Writes one key of v3.
    pub async fn put_v3(&self, key: &str, value: &str) -> Result<()> {
        let body = json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) });
        wire::json(self.at(), "POST", "/v3/kv/put", JSON, &body.to_string()).await?;
        Ok(())
    }

    /// Deletes every key of v3 with this prefix.
    pub async fn delete_v3(&self, prefix: &str) -> Result<()> {
        let body = range(prefix)?.to_string();
        wire::json(self.at(), "POST", "/v3/kv/deleterange", JSON, &body).await?;
        Ok(())
    }

    /// Every key of v3 with this prefix.
    pub async fn dump_v3(&self, prefix: &str) -> Result<BTreeMap<String, String>> {
        let answer = wire::json(
            self.at(),
            "POST",
            "/v3/kv/range",
            JSON,
            &range(prefix)?.to_string(),
        )
        .await?;
        let mut all = BTreeMap::new();
        for pair in answer["kvs"].as_array().into_iter().flatten() {
            let text = |field: &str| -> Result<String> {
                let bytes = STANDARD.decode(pair[field].as_str().unwrap_or_default())?;
                String::from_utf8(bytes).with_context(|| format!("{field} of a key is not text"))
            };
            all.insert(text("key")?, text("value")?);
        }
        Ok(all)
    }

    /// Empties both stores.
    pub async fn wipe(&self) -> Result<()> {
        let (status, body) = wire::ask(
            self.at(),
            "DELETE",
            "/v2/keys/calico?recursive=true&dir=true",
            JSON,
            "",
        )
        .await?;
        ensure!(status == 200 || status == 404, "empty etcd v2: {status} {body}");
        let everything = json!({ "key": STANDARD.encode([0]), "range_end": STANDARD.encode([0]) });
        wire::json(
            self.at(),
            "POST",
            "/v3/kv/deleterange",
            JSON,
            &everything.to_string(),
        )
        .await?;
        Ok(())
    }
}

/// All keys with this prefix.
fn range(prefix: &str) -> Result<Value> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().context("an empty prefix")? += 1;
    Ok(json!({ "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end) }))
}

/// Checks that the program has this version: another program may have the same name.
pub async fn version(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .await
        .with_context(|| format!("run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(version) = text.lines().find_map(|line| line.strip_prefix("etcd Version: ")) else {
        bail!("{} --version says {text:?}", program.display());
    };
    Ok(version.trim().to_owned())
}
