//! Both stores, read with another client than replumb's: the flags continuously, and every key of Calico before and after.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::cluster::Cluster;
use crate::datastore::wire;

/// Time between two reads of both flags.
const INTERVAL: Duration = Duration::from_millis(100);
/// The flag of v2.
const READY: &str = "/calico/v1/Ready";
/// Prefix of the objects of v3.
const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";
/// Prefix of the `NetworkPolicy` objects of Kubernetes, in v2.
pub const POLICIES: &str = "/calico/v1/policy/tier/default/policy/knp.default.";
/// The object with the flag of v3.
const INFORMATION: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";
/// Prefix of every key of Calico.
const ROOT: &str = "/calico/";

/// Both stores: one etcd with both APIs.
#[derive(Clone, Copy, Debug)]
pub struct Etcd {
    at: SocketAddrV4,
}

/// Which stores were open for Calico, as observed.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flags {
    /// Number of observations: reads of both flags.
    pub observations: usize,
    /// Number of reads in which both were true.
    pub both_open: usize,
    /// Time in which neither was true, in milliseconds.
    pub paused_ms: i64,
    /// Start of the first time in which neither was true.
    #[schemars(with = "Option<String>")]
    pub paused_since: Option<Timestamp>,
    /// End of the last time in which neither was true.
    #[schemars(with = "Option<String>")]
    pub paused_until: Option<Timestamp>,
    /// Objects missing for Felix of v3 when v3 was first seen open; `None` when v3 never was open.
    pub incomplete_at_opening: Option<Vec<String>>,
}

impl Etcd {
    /// The etcd of this lab.
    pub async fn of(cluster: &Cluster) -> Result<Self> {
        let url = cluster.calico_etcd().await?;
        let authority = url
            .strip_prefix("http://")
            .with_context(|| format!("parse the etcd URL of the lab: found {url}, needed http://…"))?;
        Ok(Self {
            at: authority
                .parse()
                .with_context(|| format!("parse the address in {url}"))?,
        })
    }

    async fn ask(self, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
        let (status, body) = wire::ask(self.at, method, path, JSON, body).await?;
        let value = serde_json::from_str(&body)
            .with_context(|| format!("{method} {path}: the answer is {status} {body}"))?;
        Ok((status, value))
    }

    /// Sends one request that must succeed. The body is a form for v2, and JSON for v3.
    pub async fn send(self, method: &str, path: &str, body: &str) -> Result<()> {
        let kind = if path.starts_with("/v2/") { FORM } else { JSON };
        let (status, answer) = wire::ask(self.at, method, path, kind, body).await?;
        ensure!(
            (200..300).contains(&status),
            "{method} {path}: the answer is {status} {answer}"
        );
        Ok(())
    }

    /// Whether the flags of v2 and of v3 are true.
    async fn flags(self) -> Result<[bool; 2]> {
        let (_, v2) = self
            .ask("GET", &format!("/v2/keys{READY}?quorum=true"), "")
            .await?;
        let v3 = self.entries(INFORMATION, None).await?;
        let information: Value = match v3.get(INFORMATION) {
            Some(text) => serde_json::from_str(text).context("parse ClusterInformation")?,
            None => Value::Null,
        };
        Ok([
            v2["node"]["value"] == "true",
            information["spec"]["datastoreReady"] == true,
        ])
    }

    /// Every key of Calico in v2, except its flag.
    pub async fn v2(self) -> Result<BTreeMap<String, String>> {
        let (status, tree) = self
            .ask("GET", "/v2/keys/calico?recursive=true&quorum=true", "")
            .await?;
        ensure!(status == 200, "etcd v2: the answer is {status}: {tree}");
        let mut all = BTreeMap::new();
        let mut pending = vec![&tree["node"]];
        while let Some(node) = pending.pop() {
            pending.extend(node["nodes"].as_array().into_iter().flatten());
            if let (Some(key), Some(value)) = (node["key"].as_str(), node["value"].as_str())
                && key != READY
            {
                all.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(all)
    }

    /// Every key of Calico in v3.
    pub async fn v3(self) -> Result<BTreeMap<String, String>> {
        let mut end = ROOT.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        self.entries(ROOT, Some(end)).await
    }

    /// Endpoints in v3 whose profile is missing, which Felix disconnects, and policies of v2 that are missing in v3.
    async fn incomplete(self) -> Result<Vec<String>> {
        let (v2, v3) = (self.v2().await?, self.v3().await?);
        let mut found = Vec::new();
        for (key, text) in &v3 {
            let Some(name) = key.strip_prefix(&format!("{RESOURCES}workloadendpoints/")) else {
                continue;
            };
            let endpoint: Value = serde_json::from_str(text).with_context(|| format!("parse {key}"))?;
            let profiles = endpoint["spec"]["profiles"].as_array().into_iter().flatten();
            for profile in profiles.filter_map(Value::as_str) {
                if !v3.contains_key(&format!("{RESOURCES}profiles/{profile}")) {
                    found.push(format!("endpoint {name}: profile {profile}"));
                }
            }
        }
        for policy in v2.keys().filter_map(|key| key.strip_prefix(POLICIES)) {
            let (namespace, name) = policy.split_once('.').context("a policy without a namespace")?;
            if !v3.contains_key(&format!(
                "{RESOURCES}networkpolicies/{namespace}/knp.default.{name}"
            )) {
                found.push(format!("policy {namespace}/{name}"));
            }
        }
        Ok(found)
    }

    async fn entries(self, from: &str, to: Option<Vec<u8>>) -> Result<BTreeMap<String, String>> {
        let mut request = json!({ "key": STANDARD.encode(from) });
        if let Some(to) = to {
            request["range_end"] = json!(STANDARD.encode(to));
        }
        let (status, answer) = self.ask("POST", "/v3/kv/range", &request.to_string()).await?;
        ensure!(status == 200, "etcd v3: the answer is {status}: {answer}");
        let text = |value: &Value| -> Result<String> {
            let bytes = STANDARD.decode(value.as_str().unwrap_or_default())?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let entries = answer["kvs"].as_array().into_iter().flatten();
        entries
            .map(|entry| Ok((text(&entry["key"])?, text(&entry["value"])?)))
            .collect()
    }
}

/// Reads both flags continuously.
#[derive(Debug)]
pub struct Watcher {
    etcd: Etcd,
    flags: Mutex<Flags>,
}

impl Watcher {
    /// A watcher without observations.
    pub fn new(etcd: Etcd) -> Self {
        Self {
            etcd,
            flags: Mutex::default(),
        }
    }

    /// The observations so far.
    pub fn flags(&self) -> Flags {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether Calico is paused, by the last observation.
    pub fn is_paused(&self) -> bool {
        let flags = self.flags();
        flags.paused_since.is_some() && flags.paused_until.is_none()
    }

    /// Reads until an error, or until the caller drops the future.
    pub async fn watch(&self) -> Result<std::convert::Infallible> {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        let mut was_paused = false;
        loop {
            ticks.tick().await;
            let [v2, v3] = self.etcd.flags().await?;
            if v3 && self.flags().incomplete_at_opening.is_none() {
                let incomplete = self.etcd.incomplete().await?;
                let mut flags = self.flags.lock().unwrap_or_else(PoisonError::into_inner);
                flags.incomplete_at_opening = Some(incomplete);
            }
            let now = Instant::now();
            let passed = i64::try_from((now - last).as_millis()).unwrap_or(i64::MAX);
            last = now;
            let mut flags = self.flags.lock().unwrap_or_else(PoisonError::into_inner);
            flags.observations += 1;
            flags.both_open += usize::from(v2 && v3);
            let is_paused = !v2 && !v3;
            if is_paused && was_paused {
                flags.paused_ms += passed;
            }
            match (was_paused, is_paused) {
                (false, true) => {
                    flags.paused_since.get_or_insert_with(Timestamp::now);
                    flags.paused_until = None;
                }
                (true, false) => flags.paused_until = Some(Timestamp::now()),
                (true, true) | (false, false) => {}
            }
            was_paused = is_paused;
        }
    }
}
