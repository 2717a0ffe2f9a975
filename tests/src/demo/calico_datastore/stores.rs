//! Both stores as another client than ours sees them: the flags without pause, and everything of Calico's before and after.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::cluster::Cluster;
use crate::datastore::wire;

/// Both flags are read so often.
const INTERVAL: Duration = Duration::from_millis(100);
/// The flag of v2.
const READY: &str = "/calico/v1/Ready";
/// Where objects of v3 stand.
const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";
/// What Kubernetes' policies became, in v2.
pub const POLICIES: &str = "/calico/v1/policy/tier/default/policy/knp.default.";
/// The object with the flag of v3.
const INFORMATION: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";
/// Everything of Calico's.
const ROOT: &str = "/calico/";

/// Where both are: one etcd with both APIs.
#[derive(Clone, Copy, Debug)]
pub struct Etcd {
    at: SocketAddrV4,
}

/// Which stores Calico was let work with, as it was seen.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flags {
    /// How often both flags were read.
    pub looks: usize,
    /// How often both were true.
    pub both_open: usize,
    /// For how long none was, in milliseconds.
    pub paused_ms: i64,
    /// Since when none was, the first time.
    pub paused_since: Option<Timestamp>,
    /// Until when, the last time.
    pub paused_until: Option<Timestamp>,
    /// What Felix of v3 found incomplete when v3 was seen open for the first time; `None` when it never was.
    pub incomplete_at_opening: Option<Vec<String>>,
}

impl Etcd {
    /// Of this lab.
    pub async fn of(cluster: &Cluster) -> Result<Self> {
        let url = cluster.calico_etcd().await?;
        let authority = url
            .strip_prefix("http://")
            .context("etcd of the lab speaks http")?;
        Ok(Self {
            at: authority
                .parse()
                .with_context(|| format!("{url} names an address"))?,
        })
    }

    async fn ask(self, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
        let (status, body) = wire::ask(self.at, method, path, JSON, body).await?;
        let value = serde_json::from_str(&body)
            .with_context(|| format!("{method} {path} is answered with {status} {body}"))?;
        Ok((status, value))
    }

    /// One request that has to be taken. A body is a form to v2, and JSON to v3.
    pub async fn tell(self, method: &str, path: &str, body: &str) -> Result<()> {
        let kind = if path.starts_with("/v2/") { FORM } else { JSON };
        let (status, answer) = wire::ask(self.at, method, path, kind, body).await?;
        ensure!(
            (200..300).contains(&status),
            "{method} {path} is answered with {status} {answer}"
        );
        Ok(())
    }

    /// Whether each flag is true: v2's, v3's.
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

    /// Everything of Calico's in v2, but for its flag.
    pub async fn v2(self) -> Result<BTreeMap<String, String>> {
        let (status, tree) = self
            .ask("GET", "/v2/keys/calico?recursive=true&quorum=true", "")
            .await?;
        ensure!(status == 200, "etcd v2 answers {status}: {tree}");
        let mut all = BTreeMap::new();
        let mut open = vec![&tree["node"]];
        while let Some(node) = open.pop() {
            open.extend(node["nodes"].as_array().into_iter().flatten());
            if let (Some(key), Some(value)) = (node["key"].as_str(), node["value"].as_str())
                && key != READY
            {
                all.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(all)
    }

    /// Everything of Calico's in v3.
    pub async fn v3(self) -> Result<BTreeMap<String, String>> {
        let mut end = ROOT.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        self.entries(ROOT, Some(end)).await
    }

    /// Endpoints whose profile is not there, which Felix cuts off, and policies of v2 that are not there.
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
            let (namespace, name) = policy.split_once('.').context("a policy of a namespace")?;
            if !v3.contains_key(&format!(
                "{RESOURCES}networkpolicies/{namespace}/knp.default.{name}"
            )) {
                found.push(format!("policy {namespace}/{name}"));
            }
        }
        Ok(found)
    }

    async fn entries(self, from: &str, to: Option<Vec<u8>>) -> Result<BTreeMap<String, String>> {
        let mut question = json!({ "key": STANDARD.encode(from) });
        if let Some(to) = to {
            question["range_end"] = json!(STANDARD.encode(to));
        }
        let (status, answer) = self.ask("POST", "/v3/kv/range", &question.to_string()).await?;
        ensure!(status == 200, "etcd v3 answers {status}: {answer}");
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

/// Who reads both flags without pause.
#[derive(Debug)]
pub struct Watcher {
    etcd: Etcd,
    seen: Mutex<Flags>,
}

impl Watcher {
    /// Nothing was seen yet.
    pub fn new(etcd: Etcd) -> Self {
        Self {
            etcd,
            seen: Mutex::default(),
        }
    }

    /// What was seen.
    pub fn seen(&self) -> Flags {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether Calico is paused, as it was seen last.
    pub fn is_paused(&self) -> bool {
        let seen = self.seen();
        seen.paused_since.is_some() && seen.paused_until.is_none()
    }

    /// Reads, until whoever waits for this ends.
    pub async fn watch(&self) -> Result<std::convert::Infallible> {
        let mut beat = tokio::time::interval(INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        let mut was_paused = false;
        loop {
            beat.tick().await;
            let [v2, v3] = self.etcd.flags().await?;
            if v3 && self.seen().incomplete_at_opening.is_none() {
                let incomplete = self.etcd.incomplete().await?;
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.incomplete_at_opening = Some(incomplete);
            }
            let now = Instant::now();
            let passed = i64::try_from((now - last).as_millis()).unwrap_or(i64::MAX);
            last = now;
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.looks += 1;
            seen.both_open += usize::from(v2 && v3);
            let is_paused = !v2 && !v3;
            if is_paused && was_paused {
                seen.paused_ms += passed;
            }
            match (was_paused, is_paused) {
                (false, true) => {
                    seen.paused_since.get_or_insert_with(Timestamp::now);
                    seen.paused_until = None;
                }
                (true, false) => seen.paused_until = Some(Timestamp::now()),
                (true, true) | (false, false) => {}
            }
            was_paused = is_paused;
        }
    }
}
