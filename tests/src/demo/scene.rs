//! A cluster before its migration, as other tools than ours see it: what the end is judged by.

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

/// The cluster, the operator's hand, and what was there before.
pub struct Scene<'cluster> {
    /// The cluster.
    pub cluster: &'cluster Cluster,
    /// The operator's hand.
    pub operator: Operator,
    /// Who plays Calico.
    pub calico: String,
    hosts: BTreeMap<String, Host>,
    counts: fn(&Pod) -> bool,
    restarts: BTreeMap<String, i32>,
    progress: Progress,
}

impl<'cluster> Scene<'cluster> {
    /// Looks at every host. `counts` says whose pods are not to be moved without need.
    pub async fn look(cluster: &'cluster Cluster, tools: &Tools, counts: fn(&Pod) -> bool) -> Result<Self> {
        let progress = Progress::default();
        let mut hosts = BTreeMap::new();
        for node in cluster.node_names().await {
            let host = Host::look(cluster, &node).await?;
            hosts.insert(node, host);
        }
        progress.say("every host was looked at with ip, bridge, iptables-save, nft");
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

    /// Every host, as it was.
    pub fn hosts(&self) -> &BTreeMap<String, Host> {
        &self.hosts
    }

    /// What was on this host before does not count: it was switched off meanwhile.
    pub fn forget(&mut self, node: &str) {
        self.hosts.remove(node);
    }

    /// Says what happens.
    pub fn say(&self, words: impl std::fmt::Display) {
        self.progress.say(words);
    }

    /// Shows checks and plan, starts the migration, follows it to its end.
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

    /// Takes everything back, and follows it to its end.
    pub async fn roll_back(&self) -> Result<()> {
        self.roll_back_within(LIMIT).await
    }

    /// The same with another limit.
    pub async fn roll_back_within(&self, limit: Duration) -> Result<()> {
        self.say("kubectl replumb rollback --all --yes --wait");
        self.operator
            .expect_within(Exit::Done, &["rollback", "--all", "--yes", "--wait"], limit)
            .await
            .map(|_| ())
    }

    /// What happened to pods since the first look, or since the last [`Scene::count_pods_anew`].
    pub async fn pods(&self) -> Result<Pods> {
        Ok(Pods::between(
            &self.restarts,
            &restarts(self.cluster, self.counts).await?,
        ))
    }

    /// How many of these pods, by UID, were not there at the first look, or the last [`Scene::count_pods_anew`].
    pub fn new_pods(&self, uids: &BTreeSet<String>) -> usize {
        uids.iter()
            .filter(|uid| !self.restarts.contains_key(*uid))
            .count()
    }

    /// From now on only what happens later counts.
    pub async fn count_pods_anew(&mut self) -> Result<()> {
        self.restarts = restarts(self.cluster, self.counts).await?;
        Ok(())
    }

    /// Looks at a host again: the host, and what of somebody else's has changed.
    pub async fn look_again(&self, node: &str) -> Result<(Host, Foreign)> {
        let after = Host::look(self.cluster, node).await?;
        // One that joined midway was not there before.
        let foreign = self
            .hosts
            .get(node)
            .map(|before| Foreign::between(before, &after))
            .unwrap_or_default();
        Ok((after, foreign))
    }
}
