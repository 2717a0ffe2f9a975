//! The state of a cluster before its migration, read with tools other than replumb; the result is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::host::Host;
use super::operator::{Exit, Operator};
use super::report::{Foreign, Pods, restarts};
use super::watch::Watch;
use super::{LIMIT, Tools};
use crate::cluster::Cluster;
use crate::progress::Progress;

/// The cluster, the command line, and the state from before the migration.
pub struct Scene<'cluster> {
    /// The cluster.
    pub cluster: &'cluster Cluster,
    /// The command line.
    pub operator: Operator,
    /// The implementation of Calico.
    pub calico: String,
    hosts: BTreeMap<String, Host>,
    counts: fn(&Pod) -> bool,
    restarts: BTreeMap<String, i32>,
    progress: Progress,
}

impl<'cluster> Scene<'cluster> {
    /// Observes every host. `counts` selects the pods that must not be recreated without need.
    pub async fn observe(
        cluster: &'cluster Cluster,
        tools: &Tools,
        counts: fn(&Pod) -> bool,
    ) -> Result<Self> {
        let progress = Progress::default();
        let mut hosts = BTreeMap::new();
        for node in cluster.node_names().await {
            let host = Host::observe(cluster, &node).await?;
            hosts.insert(node, host);
        }
        progress.say("the state of every host was read with ip, bridge, iptables-save and nft");
        Ok(Self {
            cluster,
            operator: Operator::new(cluster, &tools.command_line),
            calico: tools.calico.clone(),
            hosts,
            counts,
            restarts: restarts(cluster, counts).await?,
            progress,
        })
    }

    /// Every host, as observed before the migration.
    pub fn hosts(&self) -> &BTreeMap<String, Host> {
        &self.hosts
    }

    /// Drops the observation of this host: the machine was switched off since.
    pub fn forget(&mut self, node: &str) {
        self.hosts.remove(node);
    }

    /// Prints a line of progress.
    pub fn say(&self, words: impl std::fmt::Display) {
        self.progress.say(words);
    }

    /// Shows checks and plan, starts the migration, and follows it until it ends.
    pub async fn migrate(&self, manifest: &Value, watch: impl FnOnce() -> Watch) -> Result<Watch> {
        let file = self.operator.write_manifest(manifest)?;
        let file = file.to_string_lossy();
        self.say("kubectl replumb plan");
        self.operator
            .expect(Exit::Done, &["plan", "--filename", &file])
            .await?;
        self.say("kubectl replumb apply --yes --watch");
        let watch = watch();
        self.operator
            .expect_within(
                Exit::Done,
                &["apply", "--filename", &file, "--yes", "--watch"],
                LIMIT,
            )
            .await?;
        Ok(watch)
    }

    /// Rolls everything back, and waits until the rollback ends.
    pub async fn roll_back(&self) -> Result<()> {
        self.roll_back_within(LIMIT).await
    }

    /// Like [`Scene::roll_back`], with another limit.
    pub async fn roll_back_within(&self, limit: Duration) -> Result<()> {
        self.say("kubectl replumb rollback --all --yes --wait");
        self.operator
            .expect_within(Exit::Done, &["rollback", "--all", "--yes", "--wait"], limit)
            .await
            .map(|_| ())
    }

    /// Pods that were recreated or restarted since the first observation, or since the last [`Scene::reset_pod_counts`].
    pub async fn pods(&self) -> Result<Pods> {
        Ok(Pods::between(
            &self.restarts,
            &restarts(self.cluster, self.counts).await?,
        ))
    }

    /// Number of these pods, by UID, that did not exist at the first observation, or at the last [`Scene::reset_pod_counts`].
    pub fn new_pods(&self, uids: &BTreeSet<String>) -> usize {
        uids.iter()
            .filter(|uid| !self.restarts.contains_key(*uid))
            .count()
    }

    /// Resets the count of pods: only later changes count.
    pub async fn reset_pod_counts(&mut self) -> Result<()> {
        self.restarts = restarts(self.cluster, self.counts).await?;
        Ok(())
    }

    /// Observes a host again: the host, and the foreign entries that have changed.
    pub async fn observe_again(&self, node: &str) -> Result<(Host, Foreign)> {
        let after = Host::observe(self.cluster, node).await?;
        // A node that joined midway has no earlier observation.
        let foreign = self
            .hosts
            .get(node)
            .map(|before| Foreign::between(before, &after))
            .unwrap_or_default();
        Ok((after, foreign))
    }
}
