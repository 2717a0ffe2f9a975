//! One round of the preview: reads policies, finds the pods that they select, and judges what agents have seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use flannel_to_calico::facts::ClusterFacts;
use flannel_to_calico::policy_facts::{self, FelixSettings};
use flannel_to_calico::preview::{Preview, selected};
use flannel_to_calico::settings::Settings;
use kube::Client;
use policy::dormant::{Restricted, dormant, restricted};
use policy::{Cluster, Facts, ObjectKind};
use tokio::sync::watch;
use tracing::debug;

use super::lists::Lists;
use super::pods::EndedPods;
use super::samples::{self, Owner};
use crate::clock;
use crate::failure::Failure as _;
use crate::pod_index::Index;

/// The most policies that are kept by name.
const POLICIES: usize = 30;

/// What a round leaves to the next one.
pub(super) struct Kept {
    /// Pods that have ended.
    pub pods: EndedPods,
    /// Samples may exist.
    pub may_have_samples: bool,
}

impl Default for Kept {
    /// A coordinator that starts does not know what an earlier one has left.
    fn default() -> Self {
        Self {
            pods: EndedPods::default(),
            may_have_samples: true,
        }
    }
}

/// The result of a round.
#[derive(Clone)]
pub(super) struct Found {
    /// When its round began.
    pub begun: Instant,
    /// Its time.
    pub at: Instant,
    /// The preview.
    pub preview: Arc<Preview>,
}

/// One round, with everything that it needs.
pub(super) struct Round {
    /// The client with a rate of its own.
    pub client: Client,
    /// The Migration.
    pub owner: Owner,
    /// Pods.
    pub index: Arc<Index>,
    /// Linux nodes.
    pub nodes: Vec<policy::Node>,
    /// Settings of the migration.
    pub settings: Settings,
    /// Calico's `DaemonSet` and its `ConfigMap`s.
    pub facts: ClusterFacts,
    /// Whether connections are observed.
    pub observes: bool,
    /// Where the result is published.
    pub found: watch::Sender<Option<Found>>,
}

/// What policies begin to do.
struct Holding {
    cluster: Cluster,
    preview: Preview,
    restricted: BTreeMap<Arc<str>, Restricted>,
}

impl Round {
    /// Reads, judges and publishes.
    pub async fn run(self, mut kept: Kept) -> Kept {
        let begun = Instant::now();
        let lists = Lists::read(&self.client).await;
        kept.pods.observe(&self.index, clock::now());
        let all_pods = if lists.is_empty() {
            Vec::new()
        } else {
            kept.pods.with(&self.index)
        };
        let nodes = self.nodes.len();
        let Holding {
            cluster,
            mut preview,
            restricted,
        } = self.hold(lists, all_pods);
        let is_first = self.found.borrow().is_none();
        if is_first {
            self.publish(begun, preview.clone());
        }
        // What was observed is kept as long as it may count: a list may fail once, and pods may be away for a moment.
        let is_known = preview.unread.is_empty();
        let is_needed = self.observes && preview.policies > 0;
        if is_known && !is_needed && kept.may_have_samples {
            // An agent without a sample samples nothing.
            kept.may_have_samples = !samples::are_deleted(&self.client).await;
        }
        if is_known && is_needed {
            kept.may_have_samples = true;
            let ports = policy_facts::tunnel_ports(&self.settings);
            match samples::judge(&self.client, &self.owner, &cluster, &restricted, nodes, &ports).await {
                Ok(observation) => preview.observation = Some(observation),
                Err(error) => preview.unread.push(error.message()),
            }
        }
        self.publish(begun, preview);
        debug!(took = ?begun.elapsed(), "policy preview");
        kept
    }

    /// The policies that begin to hold, and the pods that they may restrict.
    fn hold(&self, lists: Lists, pods: Vec<policy::Pod>) -> Holding {
        let mut unread = lists.unread;
        let felix = FelixSettings::new(&self.settings, &self.facts, &lists.felix);
        let of_administrators = lists.admin_policies.iter();
        let mut depend_on_version = of_administrators.filter(|policy| {
            !matches!(
                policy.object.kind,
                ObjectKind::CalicoNetworkPolicy | ObjectKind::GlobalNetworkPolicy
            )
        });
        if felix.version().is_none()
            && let Some(policy) = depend_on_version.next()
        {
            unread.push(format!(
                "{}: whether Calico reads it depends on its version, which the image of calico-node does not say",
                policy.object
            ));
        }
        let settings = felix.of_policies(&self.settings);
        let cluster = Cluster::new(Facts {
            settings,
            nodes: self.nodes.clone(),
            namespaces: lists.namespaces,
            pods,
            policies: lists.policies,
            admin_policies: lists.admin_policies,
        });
        let mut dormant = dormant(&cluster);
        let policies = dormant.len();
        dormant.sort_by_key(|policy| std::cmp::Reverse(selected(policy).unwrap_or(usize::MAX)));
        dormant.truncate(POLICIES);
        let mut restricted = restricted(&cluster);
        // Pods of other nodes are not migrated.
        restricted.retain(|node, _| cluster.node(node).is_some());
        let preview = Preview {
            unread,
            unjudged: lists.unjudged,
            dormant,
            policies,
            selected_pods: restricted.values().map(|restricted| restricted.pods).sum(),
            observation: None,
        };
        Holding {
            cluster,
            preview,
            restricted,
        }
    }

    fn publish(&self, begun: Instant, preview: Preview) {
        self.found.send_replace(Some(Found {
            begun,
            at: Instant::now(),
            preview: Arc::new(preview),
        }));
    }
}
