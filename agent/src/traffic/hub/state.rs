//! State of the streams of one node: counts, reporting pods, and paths that lose more than the gates allow. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api::traffic::{Breach, ClassCount, Masquerade};
use engine::traffic::gates::exceeded_limit;
use engine::traffic::stream::Totals;
use engine::traffic::{Flow, PathClass, Protocol};
use jiff::Timestamp;
use tokio::time::Instant;

use super::super::line::Counts;
use super::Orders;
use crate::echo::flood::MOST_OF_ONE;

/// The loss of a pod without a report for this long is unknown.
const SILENCE: Duration = Duration::from_secs(5);
/// A path to the API server is a breach only after this time: by then the agent knows whether the host reaches the API server.
const OWN_PROBE_TIME: Duration = Duration::from_secs(1);

type Key = (Flow, Protocol);

/// State of all streams.
#[derive(Debug, Default)]
pub(super) struct State {
    /// When each flow was first requested.
    requested: BTreeMap<Flow, Instant>,
    /// Time of each pod's last report, by UID.
    reported: BTreeMap<String, Instant>,
    streams: BTreeMap<Key, Known>,
    /// Totals of streams that ended.
    ended: BTreeMap<PathClass, Totals>,
    pub(super) breaches: BTreeMap<(Flow, Option<Protocol>), Breach>,
    /// Pods that answer and are flooded, one text each.
    pub(super) floods: BTreeSet<String>,
}

/// State of one stream.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Totals from before the restart of the pod's process.
    before: Totals,
    last: Totals,
    /// The start of the current breach, and its text.
    exceeded: Option<(Instant, String)>,
    /// Source that floods the pod at the other end.
    flooded_by: Option<IpAddr>,
    /// Address that probes came from at the other end, if that is not the pod's.
    masqueraded_as: Option<IpAddr>,
}

impl State {
    pub(super) fn forget_all_but(&mut self, wanted: &BTreeSet<&Flow>) {
        let now = Instant::now();
        let (kept, ended): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.streams)
            .into_iter()
            .partition(|((flow, _), _)| wanted.contains(flow));
        self.streams = kept;
        for ((flow, _), known) in ended {
            let sum = self.ended.entry(flow.class).or_default();
            *sum = sum.add(known.totals());
        }
        self.requested.retain(|flow, _| wanted.contains(flow));
        for flow in wanted {
            self.requested.entry((*flow).clone()).or_insert(now);
        }
        self.reported
            .retain(|uid, _| wanted.iter().any(|flow| flow.source == *uid));
    }

    pub(super) fn add_counts(&mut self, pod_uid: &str, counts: Counts, orders: &Orders) {
        // The pod has not received its new task yet.
        if counts.judged_since != orders.judged_since {
            return;
        }
        self.reported.insert(pod_uid.to_owned(), Instant::now());
        for count in counts.streams {
            // A stream that is not requested any more is counted already.
            if count.flow.source != pod_uid || !orders.flows.contains(&count.flow) {
                continue;
            }
            let class = count.flow.class;
            let known = self.streams.entry((count.flow, count.protocol)).or_default();
            if count.totals.sent < known.last.sent {
                known.before = known.totals();
            }
            known.last = count.totals;
            known.flooded_by = count.flooded_by;
            known.masqueraded_as = count.masqueraded_as;
            let since = known
                .exceeded
                .take()
                .map_or_else(Instant::now, |(since, _)| since);
            known.exceeded = exceeded_limit(class, &count.recent, &orders.gates).map(|text| {
                if count.problem.is_empty() {
                    (since, text)
                } else {
                    (since, format!("{text} ({})", count.problem))
                }
            });
        }
    }

    pub(super) fn is_silent(&self, pod_uid: &str) -> bool {
        self.reported.get(pod_uid).is_none_or(|at| at.elapsed() > SILENCE)
    }

    /// Whether each of the pod's streams has counts.
    pub(super) fn has_started(&self, pod_uid: &str, orders: &Orders) -> bool {
        let mut flows = orders.flows.iter().filter(|flow| flow.source == pod_uid);
        flows.all(|flow| {
            flow.class.protocols().iter().all(|protocol| {
                let known = self.streams.get(&(flow.clone(), *protocol));
                known.is_some_and(|known| known.totals().sent > 0)
            })
        })
    }

    /// Adds breaches that start now; a breach that continues keeps its text, and one that has ended is removed.
    pub(super) fn judge(
        &mut self,
        node: &str,
        orders: &Orders,
        silent: &BTreeSet<SocketAddr>,
        now: Timestamp,
    ) {
        let mut found: BTreeMap<(Flow, Option<Protocol>), String> = BTreeMap::new();
        let flooded = self.flooded(orders);
        self.floods = flooded
            .values()
            .map(|(flow, source)| {
                format!(
                    "{source} sends more than {MOST_OF_ONE} datagrams per second to {} ({}): losses to this address are no \
                     breach",
                    flow.to, flow.address
                )
            })
            .collect();
        for flow in &orders.flows {
            let is_new = self.requested.get(flow).is_none_or(|at| at.elapsed() <= SILENCE);
            if self.is_silent(&flow.source) {
                if !is_new {
                    let text = "the traffic pod does not report, so the loss is unknown".to_owned();
                    found.insert((flow.clone(), None), text);
                }
                continue;
            }
            for protocol in flow.class.protocols() {
                let known = self.streams.get(&(flow.clone(), *protocol));
                let Some((since, text)) = known.and_then(|known| known.exceeded.clone()) else {
                    continue;
                };
                let to_api = flow.class == PathClass::PodToApi;
                let is_unreachable = silent.contains(&SocketAddr::new(flow.address, flow.port));
                // A flood does not mean a broken path: otherwise any pod could stop the rollout. A pod that answers nothing at
                // all cannot report a flood, and is a breach.
                if flooded.contains_key(&SocketAddr::new(flow.address, flow.port)) {
                    continue;
                }
                if to_api && (is_unreachable || since.elapsed() < OWN_PROBE_TIME) {
                    continue;
                }
                found.insert((flow.clone(), Some(*protocol)), text);
            }
        }
        self.breaches.retain(|key, _| found.contains_key(key));
        for ((flow, protocol), text) in found {
            let how = protocol.map_or("no report", Protocol::words);
            let message = format!(
                "{}, {how} from node {node} to {} ({}): {text}",
                flow.class.words(),
                flow.to,
                flow.address
            );
            let breach = Breach {
                flow: flow.clone(),
                protocol,
                since: now,
                message,
            };
            self.breaches.entry((flow, protocol)).or_insert(breach);
        }
    }

    /// Sources that flood pods according to their answers, by the pods' addresses.
    fn flooded<'orders>(&self, orders: &'orders Orders) -> BTreeMap<SocketAddr, (&'orders Flow, IpAddr)> {
        let mut flooded = BTreeMap::new();
        for flow in orders.flows.iter().filter(|flow| !self.is_silent(&flow.source)) {
            let source = flow.class.protocols().iter().find_map(|protocol| {
                let known = self.streams.get(&(flow.clone(), *protocol))?;
                known.flooded_by
            });
            if let Some(source) = source {
                flooded.insert(SocketAddr::new(flow.address, flow.port), (flow, source));
            }
        }
        flooded
    }

    /// Flows of reporting pods whose packets arrive from another address, each with that address.
    pub(super) fn masquerades(&self, orders: &Orders) -> Vec<Masquerade> {
        let reporting = orders.flows.iter().filter(|flow| !self.is_silent(&flow.source));
        let masquerade = |flow: &Flow| {
            let source_seen = flow.class.protocols().iter().find_map(|protocol| {
                let known = self.streams.get(&(flow.clone(), *protocol))?;
                known.masqueraded_as
            })?;
            Some(Masquerade {
                flow: flow.clone(),
                source_seen,
            })
        };
        reporting.filter_map(masquerade).collect()
    }

    pub(super) fn sums(&self) -> Vec<ClassCount> {
        let mut sums = self.ended.clone();
        for ((flow, _), known) in &self.streams {
            let sum = sums.entry(flow.class).or_default();
            *sum = sum.add(known.totals());
        }
        sums.into_iter()
            .map(|(class, totals)| ClassCount { class, totals })
            .collect()
    }
}

impl Known {
    fn totals(&self) -> Totals {
        self.before.add(self.last)
    }
}
