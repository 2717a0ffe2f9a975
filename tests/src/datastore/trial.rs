//! A conversion that is killed at its writes, continued and rolled back; and the cost of a conversion without interruption.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use super::etcd::Etcd;
use super::proxy::{Moment, Proxy, Strike};
use super::tool::{Tool, ToolOutput};

const READY: &str = "/calico/v1/Ready";
/// Opens v3 in a cluster without Calico's controllers.
pub const COMPLETE: [&str; 3] = ["complete", "--yes", "--despite-missing"];
/// Time limit of one process that is killed.
const LIMIT: Duration = Duration::from_mins(2);

/// A store, and a tool that works on it.
pub struct Trial<'etcd> {
    etcd: &'etcd Etcd,
    program: &'etcd Path,
    folder: &'etcd Path,
    store: BTreeMap<String, String>,
    /// `--batch`.
    batch: String,
}

/// Cost and result of a conversion without interruption.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Undisturbed {
    /// Keys of v2.
    pub keys_v2: usize,
    /// Keys of v3.
    pub keys_v3: usize,
    /// Writes of `start`.
    pub writes: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// The most resident memory in MiB.
    pub memory_mib: f64,
    #[serde(skip)]
    result: BTreeMap<String, Value>,
}

impl<'etcd> Trial<'etcd> {
    /// A trial of a store, with this number of keys in one transaction.
    pub fn new(
        etcd: &'etcd Etcd,
        program: &'etcd Path,
        folder: &'etcd Path,
        store: BTreeMap<String, String>,
        batch: usize,
    ) -> Self {
        Self {
            etcd,
            program,
            folder,
            store,
            batch: batch.to_string(),
        }
    }

    fn tool(&self, url: &str) -> Tool {
        Tool::new(self.program, url, url, self.folder)
    }

    async fn seed(&self) -> Result<()> {
        self.etcd.seed(&self.store).await
    }

    fn start(&self) -> [&str; 7] {
        [
            "start",
            "--yes",
            "--no-hold",
            "--settle",
            "0s",
            "--batch",
            &self.batch,
        ]
    }

    /// Converts the store without interruption.
    pub async fn undisturbed(&self) -> Result<Undisturbed> {
        self.seed().await?;
        let before = self.etcd.indices_v2().await?;
        let proxy = Proxy::start(self.etcd.port(), None).await?;
        let started = Instant::now();
        let child = self.tool(&proxy.url()).spawn(&self.start())?;
        let memory = peak(
            child
                .id()
                .context("read the process number: the tool has already ended")?,
        );
        let (output, memory) = tokio::join!(child.wait_with_output(), memory);
        let output = output.context("wait for the tool")?;
        ensure!(
            output.status.success(),
            "start: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let seconds = started.elapsed().as_secs_f64();
        self.only_ready_was_written(&before).await?;
        let result = self.result().await?;
        Ok(Undisturbed {
            keys_v2: self.store.len(),
            keys_v3: result.len(),
            writes: proxy.writes(),
            seconds,
            memory_mib: memory,
            result,
        })
    }

    /// Kills `start` at a write and continues it; the result is as without the kill. Then aborts.
    pub async fn killed(&self, strike: Strike, undisturbed: &Undisturbed) -> Result<()> {
        self.seed().await?;
        let before = self.etcd.indices_v2().await?;
        ensure!(
            self.kill(strike, &self.start()).await?.is_some(),
            "start has ended before the write"
        );
        let tool = self.tool(&self.etcd.url());
        done(&tool.run(&self.start()).await?, "start again")?;
        self.only_ready_was_written(&before).await?;
        let result = self.result().await?;
        if result != undisturbed.result {
            bail!(
                "v3 differs from the result without a kill: {}",
                differing(&result, &undisturbed.result)
            );
        }
        // A run with fewer writes has ended successfully.
        self.kill(strike, &["abort", "--yes"]).await?;
        done(&tool.run(&["abort", "--yes"]).await?, "abort")?;
        self.is_as_before(&before).await
    }

    /// Kills `start` at a write, then aborts.
    pub async fn kill_and_abort(&self, strike: Strike) -> Result<()> {
        self.seed().await?;
        let before = self.etcd.indices_v2().await?;
        let proxy = self
            .kill(strike, &self.start())
            .await?
            .context("start has ended before the write")?;
        done(
            &self.tool(&self.etcd.url()).run(&["abort", "--yes"]).await?,
            "abort",
        )?;
        self.is_as_before(&before).await?;
        if strike.moment == Moment::Late {
            proxy.deliver().await;
            self.is_as_before(&before)
                .await
                .context("after a delayed write")?;
        }
        Ok(())
    }

    /// Kills `complete` at a write, then continues it.
    pub async fn kill_complete(&self, strike: Strike) -> Result<()> {
        self.seed().await?;
        let tool = self.tool(&self.etcd.url());
        done(&tool.run(&self.start()).await?, "start")?;
        ensure!(
            self.kill(strike, &COMPLETE).await?.is_some(),
            "complete has ended before the write"
        );
        done(&tool.run(&COMPLETE).await?, "complete")?;
        let status = tool.status().await?;
        ensure!(status["worksWith"] == "V3", "after complete: {status}");
        let again = tool.run(&["abort", "--yes"]).await?;
        ensure!(again.code == Some(2), "abort after complete: {}", again.all());
        let status = tool.status().await?;
        ensure!(status["worksWith"] == "V3", "after a refused abort: {status}");
        Ok(())
    }

    /// Kills the tool at a write; `None` if the tool has ended successfully before.
    async fn kill(&self, strike: Strike, arguments: &[&str]) -> Result<Option<Proxy>> {
        let proxy = Proxy::start(self.etcd.port(), Some(strike)).await?;
        let mut child = self.tool(&proxy.url()).spawn(arguments)?;
        let ended = tokio::select! {
            () = proxy.until_kill_point() => None,
            ended = child.wait() => Some(ended.context("wait for the tool")?),
            () = tokio::time::sleep(LIMIT) => bail!("{} did not reach write {}", arguments[0], strike.write),
        };
        match ended {
            None => {
                child.kill().await.context("kill the tool")?;
                Ok(Some(proxy))
            }
            Some(status) => {
                ensure!(
                    status.success(),
                    "{arguments:?} ended with {status} after {} writes",
                    proxy.writes()
                );
                Ok(None)
            }
        }
    }

    /// The contents of v3, without the fields that differ in each run.
    async fn result(&self) -> Result<BTreeMap<String, Value>> {
        let mut all = BTreeMap::new();
        for (key, text) in self.etcd.dump_v3("/calico/").await? {
            let mut value: Value = serde_json::from_str(&text).with_context(|| format!("parse {key}"))?;
            if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                for field in ["uid", "creationTimestamp"] {
                    ensure!(metadata.remove(field).is_some(), "{key} has no {field}");
                }
            }
            all.insert(key, value);
        }
        Ok(all)
    }

    async fn only_ready_was_written(&self, before: &BTreeMap<String, u64>) -> Result<()> {
        let after = self.etcd.indices_v2().await?;
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let written: Vec<&&String> = keys
            .iter()
            .filter(|key| key.as_str() != READY && before.get(**key) != after.get(**key))
            .collect();
        ensure!(written.is_empty(), "keys of v2 were written: {written:?}");
        Ok(())
    }

    async fn is_as_before(&self, before: &BTreeMap<String, u64>) -> Result<()> {
        self.only_ready_was_written(before).await?;
        let ready = self.etcd.dump_v2().await?.remove(READY);
        ensure!(ready.as_deref() == Some("true"), "after abort Ready is {ready:?}");
        let left = self.etcd.dump_v3("/calico/").await?;
        ensure!(
            left.is_empty(),
            "after abort v3 has {:?}",
            left.keys().collect::<Vec<_>>()
        );
        Ok(())
    }
}

/// Both moments of some of the writes, spread over all of them; 0 means all.
pub fn strikes(writes: usize, sampled: usize) -> Vec<Strike> {
    let count = if sampled == 0 { writes } else { sampled.min(writes) };
    let at = |place: usize| 1 + place * (writes - 1) / (count - 1).max(1);
    let of = |place: usize| {
        [Moment::Before, Moment::After].map(|moment| Strike {
            write: at(place),
            moment,
        })
    };
    (0..count).flat_map(of).collect()
}

fn done(said: &ToolOutput, what: &str) -> Result<()> {
    ensure!(said.code == Some(0), "{what}: {}", said.all());
    Ok(())
}

fn differing(one: &BTreeMap<String, Value>, other: &BTreeMap<String, Value>) -> String {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differ: Vec<&&String> = keys
        .iter()
        .filter(|key| one.get(**key) != other.get(**key))
        .take(5)
        .collect();
    format!("{differ:?}")
}

/// The most memory of a process until it ends, in MiB.
async fn peak(process: u32) -> f64 {
    const PACE: Duration = Duration::from_millis(20);
    let mut most: f64 = 0.0;
    while let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/status")) {
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        // A process that has ended and is not reaped yet has no memory any more.
        let Some(kib) = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()) else {
            break;
        };
        most = most.max(kib / 1024.0);
        tokio::time::sleep(PACE).await;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selection_has_the_first_and_the_last_write() {
        let writes = |all: Vec<Strike>| all.iter().map(|strike| strike.write).collect::<Vec<_>>();
        assert_eq!(writes(strikes(3, 0)), [1, 1, 2, 2, 3, 3]);
        assert_eq!(writes(strikes(101, 3)), [1, 1, 51, 51, 101, 101]);
        assert_eq!(writes(strikes(1, 5)), [1, 1]);
    }
}
