//! All hollow agents: their watches, their turns, and their writes, a few at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::status::{self, StatusError};
use anyhow::{Context, Result};
use api::node_migration::NodeMigrationStatus;
use api::{MigrationRecord, NodeMigration};
use futures::StreamExt;
use futures::stream::{BoxStream, FuturesUnordered};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};

use super::agent::{Agent, Known, Turn};
use super::pods::{PodOnHost, SlimPod, seen};
use super::service_cidr;
use crate::scale::calico;
use crate::scale::shape::KUBELET_CONFIGURATION;

/// Time between an agent's observation and its report.
const WORK: Duration = Duration::from_millis(300);
/// The same for routes to the blocks of other nodes: no step waits for such a route.
const ROUTES: Duration = Duration::from_secs(1);
/// Time between two checks for due turns.
const TICK: Duration = Duration::from_millis(50);
/// Number of simultaneous writes.
const WRITES_AT_ONCE: usize = 32;
/// Time until the next attempt after a failed write.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The events of one watch.
type Watch<K> = BoxStream<'static, Result<Event<K>, watcher::Error>>;

/// All hollow agents of a cluster.
pub struct Fleet {
    client: Client,
    api: Api<NodeMigration>,
    network: Ipv4Net,
    agents: BTreeMap<String, Agent>,
    objects: BTreeMap<String, Arc<NodeMigration>>,
    /// By UID: the node, and the pod's effect on the host.
    pods: BTreeMap<String, (String, PodOnHost)>,
    known: Known,
    due: BTreeMap<String, Instant>,
    writing: BTreeSet<String>,
}

impl Fleet {
    /// Agents for a cluster whose pods have addresses of this network.
    pub fn new(client: Client, network: Ipv4Net) -> Self {
        Self {
            api: Api::all(client.clone()),
            client,
            network,
            agents: BTreeMap::new(),
            objects: BTreeMap::new(),
            pods: BTreeMap::new(),
            known: Known::default(),
            due: BTreeMap::new(),
            writing: BTreeSet::new(),
        }
    }

    /// Runs the agents until dropped. An error means that no agent runs any more.
    pub async fn run(mut self) -> Result<()> {
        // A pod that already runs was started with the present configuration.
        self.known.services = service_cidr::Known::read(&self.client).await?;
        let services: Api<Service> = Api::all(self.client.clone());
        let mut services = pin!(watcher(services, watcher::Config::default()).default_backoff());
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let of_kubelets =
            watcher::Config::default().fields(&format!("metadata.name={KUBELET_CONFIGURATION}"));
        let mut maps = pin!(watcher(maps, of_kubelets).default_backoff());
        let records: Api<MigrationRecord> = Api::all(self.client.clone());
        let mut records = pin!(watcher(records, watcher::Config::default()).default_backoff());
        let pods: Api<SlimPod> = Api::all_with(self.client.clone(), &ApiResource::erase::<Pod>(&()));
        let mut pods = pin!(watcher(pods, watcher::Config::default()).default_backoff());
        let mut objects = pin!(watcher(self.api.clone(), watcher::Config::default()).default_backoff());
        let (mut blocks, mut nodes) = self.calico().await?;
        let mut writes = FuturesUnordered::new();
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                // The watcher restarts a broken watch.
                event = pods.next() => if let Some(Ok(event)) = event { self.see_pod(event) },
                event = services.next() => if let Some(Ok(event)) = event { self.see_service(&event) },
                event = records.next() => if let Some(Ok(event)) = event { self.see_record(&event) },
                event = maps.next() => if let Some(Ok(event)) = event { self.see_kubelets(&event) },
                Some(Ok(event)) = blocks.next() => self.see_block(&event),
                Some(Ok(event)) = nodes.next() => self.see_node(&event),
                event = objects.next() => if let Some(Ok(event)) = event { self.see_object(event).await? },
                Some((node, outcome)) = writes.next(), if !writes.is_empty() => self.wrote(node, outcome),
                _ = tick.tick() => {
                    let room = WRITES_AT_ONCE.saturating_sub(writes.len());
                    for (node, object, status) in self.turn(room) {
                        let api = self.api.clone();
                        writes.push(async move {
                            let outcome = status::write(&api, &object, &status).await;
                            (node, outcome)
                        });
                    }
                }
            }
        }
    }

    /// Watches Calico's blocks and the Nodes' annotations, if Calico's objects are served.
    async fn calico(&self) -> Result<(Watch<DynamicObject>, Watch<PartialObjectMeta<Node>>)> {
        let blocks = calico::Kind::Block.api(&self.client);
        match blocks.list_metadata(&ListParams::default().limit(1)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok((
                futures::stream::pending().boxed(),
                futures::stream::pending().boxed(),
            )),
            Err(error) => Err(error).context("list IPAMBlocks"),
            Ok(_) => {
                let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
                Ok((
                    watcher(blocks, watcher::Config::default())
                        .default_backoff()
                        .boxed(),
                    watcher(nodes, watcher::Config::default())
                        .default_backoff()
                        .boxed(),
                ))
            }
        }
    }

    /// Every Felix has another route.
    fn see_block(&mut self, event: &Event<DynamicObject>) {
        let is_new = match event {
            Event::Apply(block) | Event::InitApply(block) => self.known.calico.see_block(block),
            Event::Delete(block) => {
                self.known.calico.forget_block(block);
                true
            }
            Event::Init | Event::InitDone => false,
        };
        if !is_new {
            return;
        }
        let asked = self.objects.iter();
        let asked = asked.filter(|(_, object)| object.spec.pod_cidr.is_some());
        wake(&mut self.due, asked.map(|(node, _)| node), ROUTES);
    }

    /// The end of a tunnel may have changed.
    fn see_node(&mut self, event: &Event<PartialObjectMeta<Node>>) {
        let (Event::Apply(node) | Event::InitApply(node)) = event else {
            return;
        };
        if self.known.calico.see_node(node) {
            wake(&mut self.due, std::iter::once(&node.name_any()), WORK);
        }
    }

    /// Schedules the agents that lack a rule for which the coordinator waits.
    fn see_service(&mut self, event: &Event<Service>) {
        match event {
            Event::Apply(service) | Event::InitApply(service) => self.known.services.see(service),
            Event::Delete(service) => self.known.services.forget(service),
            Event::Init | Event::InitDone => return,
        }
        self.wake_waiting_agents();
    }

    /// Schedules agents whose expected ports have changed.
    fn see_record(&mut self, event: &Event<MigrationRecord>) {
        if let Event::Apply(record) | Event::InitApply(record) = event {
            self.known.services.see_record(record);
            let asked = self.objects.iter();
            let asked = asked.filter(|(_, object)| object.spec.service_cidr.is_some());
            wake(&mut self.due, asked.map(|(node, _)| node), WORK);
        }
    }

    fn wake_waiting_agents(&mut self) {
        let waiting = self.agents.iter().filter(|(_, agent)| agent.waits_for_rules());
        wake(&mut self.due, waiting.map(|(node, _)| node), WORK);
    }

    /// Every kubelet restarts with another configuration.
    fn see_kubelets(&mut self, event: &Event<ConfigMap>) {
        let (Event::Apply(map) | Event::InitApply(map)) = event else {
            return;
        };
        self.known.services.configure(map);
        wake(&mut self.due, self.agents.keys(), WORK);
    }

    fn see_pod(&mut self, event: Event<SlimPod>) {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                let Some(uid) = pod.uid() else { return };
                let before = self.pods.get(&uid).map(|(_, pod)| pod.told);
                match seen(&pod, before, &self.known.services) {
                    Some((node, on_host)) => {
                        if let Some(agent) = self.agents.get_mut(&node) {
                            agent.run(&uid, on_host.clone());
                            wake(&mut self.due, std::iter::once(&node), WORK);
                        }
                        self.pods.insert(uid, (node, on_host));
                    }
                    None => self.forget(&uid),
                }
            }
            Event::Delete(pod) => {
                if let Some(uid) = pod.uid() {
                    self.forget(&uid);
                }
            }
            Event::Init | Event::InitDone => {}
        }
    }

    fn forget(&mut self, uid: &str) {
        let Some((node, _)) = self.pods.remove(uid) else {
            return;
        };
        if let Some(agent) = self.agents.get_mut(&node) {
            agent.end(uid);
            wake(&mut self.due, std::iter::once(&node), WORK);
        }
    }

    async fn see_object(&mut self, event: Event<NodeMigration>) -> Result<()> {
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                let node = object.spec.node_name.clone();
                if !self.agents.contains_key(&node) {
                    self.meet(&node).await?;
                }
                self.keep(node, Arc::new(object));
            }
            Event::Delete(object) => {
                self.objects.remove(&object.spec.node_name);
            }
            Event::Init | Event::InitDone => {}
        }
        Ok(())
    }

    /// Creates the agent of a node that has none yet.
    async fn meet(&mut self, node: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = nodes
            .get(node)
            .await
            .with_context(|| format!("read Node {node}"))?;
        let mut agent = Agent::new(&found, self.network)?;
        for (uid, (_, pod)) in self.pods.iter().filter(|(_, (on, _))| on == node) {
            agent.run(uid, pod.clone());
        }
        self.agents.insert(node.to_owned(), agent);
        Ok(())
    }

    /// The newer of the known version and this one.
    fn keep(&mut self, node: String, object: Arc<NodeMigration>) {
        let newer = self
            .objects
            .get(&node)
            .is_none_or(|known| known.uid() != object.uid() || version(known) < version(&object));
        if newer {
            wake(&mut self.due, std::iter::once(&node), WORK);
            self.objects.insert(node, object);
        }
    }

    /// Runs every agent's turn that is due. Returns the statuses to write, up to the limit.
    fn turn(&mut self, room: usize) -> Vec<(String, Arc<NodeMigration>, Box<NodeMigrationStatus>)> {
        let now = Instant::now();
        let mut wanted = Vec::new();
        let due: Vec<String> = self
            .due
            .iter()
            .filter(|(node, at)| **at <= now && !self.writing.contains(*node))
            .map(|(node, _)| node.clone())
            .collect();
        for node in due {
            if wanted.len() >= room {
                break;
            }
            self.due.remove(&node);
            let (Some(agent), Some(object)) = (self.agents.get_mut(&node), self.objects.get(&node)) else {
                continue;
            };
            match agent.turn(object, &self.known) {
                Turn::Nothing => {}
                Turn::Later(pause) => {
                    self.due.insert(node, now + pause);
                }
                Turn::Write(status) => {
                    self.writing.insert(node.clone());
                    wanted.push((node, Arc::clone(object), status));
                }
            }
        }
        wanted
    }

    fn wrote(&mut self, node: String, outcome: Result<Option<NodeMigration>, StatusError>) {
        self.writing.remove(&node);
        match outcome {
            Ok(Some(object)) => self.keep(node, Arc::new(object)),
            Ok(None) => {}
            Err(error) => {
                eprintln!("hollow: {}; retrying", runtime::error::chain(&error));
                self.due.insert(node, Instant::now() + AFTER_FAILURE);
            }
        }
    }
}

/// Schedules the agents of these nodes after this time, unless they run sooner.
fn wake<'node>(
    due: &mut BTreeMap<String, Instant>,
    nodes: impl Iterator<Item = &'node String>,
    after: Duration,
) {
    let at = Instant::now() + after;
    for node in nodes {
        let due = due.entry(node.clone()).or_insert(at);
        *due = at.min(*due);
    }
}

/// The resource version as a number. An invalid version is older than every other.
fn version(object: &NodeMigration) -> u64 {
    let text = object.metadata.resource_version.as_deref();
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
