//! The etcd of a Calico with an etcd datastore: one with both APIs, on the control plane's machine beside the API
//! server's etcd, as in many clusters. The data are deleted with the machine's disk.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use datastore::etcd2;
use serde_json::{Value, json};

use super::Cluster;
use super::control_plane::service;
use super::pod_network::PodNetwork;
use super::state::CONTROL_PLANE;
use super::wait::{Observation, until};
use crate::machine::Service;

/// The service name.
const NAME: &str = "calico-etcd";
/// Path of the program on the machine.
const PROGRAM: &str = "opt/calico-etcd/etcd";
/// The port: 2379 belongs to the API server's etcd.
const PORT: u16 = 2479;
const START_LIMIT: Duration = Duration::from_mins(1);

/// The URL for every machine of the lab and for the host.
pub fn url(address: Ipv4Addr) -> String {
    format!("http://{address}:{PORT}")
}

fn etcd(address: Ipv4Addr) -> Service {
    let url = url(address);
    // The lab's data need not survive the machine under the lab: no fsync.
    let command = format!(
        "/{PROGRAM} --name=calico --data-dir=/var/lib/calico-etcd --unsafe-no-fsync --enable-v2=true --logger=zap \
        --log-level=warn --listen-client-urls={url} --advertise-client-urls={url} \
        --listen-peer-urls=http://127.0.0.1:2480 --initial-advertise-peer-urls=http://127.0.0.1:2480 \
        --initial-cluster=calico=http://127.0.0.1:2480"
    );
    service(NAME, &command, &[])
}

impl Cluster {
    /// Starts this program, and waits until it answers.
    pub(super) async fn start_calico_etcd(&self, program: &Path) -> Result<()> {
        let target = self.disk(CONTROL_PLANE).join(PROGRAM);
        let folder = target.parent().context("find the folder of the program")?;
        std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        std::fs::copy(program, &target)
            .with_context(|| format!("copy {} to {}", program.display(), target.display()))?;
        let address = self.control_plane_address().await;
        self.control(CONTROL_PLANE).start(etcd(address)).await?;
        let logs = self.directory.machine_logs(CONTROL_PLANE);
        until("Calico's etcd to answer", START_LIMIT, &logs, async || {
            let answer = crate::http::ask(address, PORT, "GET", "/health", "").await?;
            Ok(if answer.status == 200 {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{} {}", answer.status, answer.body))
            })
        })
        .await?;
        self.progress.say("Calico's etcd is started");
        Ok(())
    }

    /// The URL of the etcd that has Calico's data, both of v2 and of v3.
    pub async fn calico_etcd(&self) -> Result<String> {
        match self.pod_network().await {
            PodNetwork::CalicoV2 | PodNetwork::CalicoEtcd => Ok(url(self.control_plane_address().await)),
            other @ (PodNetwork::Flannel | PodNetwork::Calico) => bail!(
                "find Calico's etcd: the pod network of this lab is {}, which has none \
                 (use `cargo lab up --network calico-v2`, or calico-etcd)",
                other.name()
            ),
        }
    }

    /// The keys of v3 with this prefix and their values, read through etcd's own gateway, not through the tool's client.
    pub async fn calico_keys(&self, prefix: &str) -> Result<Vec<(String, Value)>> {
        self.calico_etcd().await?;
        let address = self.control_plane_address().await;
        // End of the range of this prefix: no key of Calico has a larger byte.
        let end = format!("{prefix}\u{7f}");
        let ask = json!({ "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end) }).to_string();
        let answer = crate::http::ask(address, PORT, "POST", "/v3/kv/range", &ask).await?;
        if answer.status != 200 {
            bail!(
                "read the keys below {prefix}: etcd answers {} {}",
                answer.status,
                answer.body
            );
        }
        let found: Value = serde_json::from_str(&answer.body).context("parse etcd's answer")?;
        let pairs = found["kvs"].as_array().into_iter().flatten();
        pairs
            .map(|pair| {
                let part = |name: &str| -> Result<Vec<u8>> {
                    let text = pair[name].as_str().unwrap_or_default();
                    STANDARD
                        .decode(text)
                        .with_context(|| format!("decode {name} of {pair}"))
                };
                let key = String::from_utf8(part("key")?).context("read a key of Calico as text")?;
                let value =
                    serde_json::from_slice(&part("value")?).with_context(|| format!("parse {key}"))?;
                Ok((key, value))
            })
            .collect()
    }

    /// Pauses or resumes Calico v2: the first step of a conversion, and the last step of a cancelled one.
    pub async fn set_calico_v2_ready(&self, ready: bool) -> Result<()> {
        self.put_calico_v2("/calico/v1/Ready", &ready.to_string()).await
    }

    /// Writes one value of Calico v2.
    pub async fn put_calico_v2(&self, key: &str, value: &str) -> Result<()> {
        self.calico_etcd().await?;
        let address = self.control_plane_address().await;
        let path = format!("{}?value={}", etcd2::url(key), etcd2::encode(value));
        let answer = crate::http::ask(address, PORT, "PUT", &path, "").await?;
        if ![200, 201].contains(&answer.status) {
            bail!(
                "set Calico's {key} to {value}: etcd answers {} {}",
                answer.status,
                answer.body
            );
        }
        Ok(())
    }
}
