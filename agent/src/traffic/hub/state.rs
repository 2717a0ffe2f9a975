//! What is known of the streams of one node: counts, who reports, and which paths lose more than they may. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api::traffic::{Breach, ClassCount};
use engine::traffic::gates::judge;
use engine::traffic::stream::Totals;
use engine::traffic::{Flow, PathClass, Protocol};
use jiff::Timestamp;
use tokio::time::Instant;

use super::super::line::Counts;
use super::Orders;
use crate::echo::flood::MOST_OF_ONE;

/// A pod that says nothing for this long is one that nobody knows anything of.
const SILENCE: Duration = Duration::from_secs(5);
/// A path to the API server is a breach only after this time: by then the agent knows whether it hears of it itself.
const OWN_LOOK: Duration = Duration::from_secs(1);

type Key = (Flow, Protocol);

/// What is known of every stream.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Since when each flow is asked for.
    asked: BTreeMap<Flow, Instant>,
    /// When each pod said something last, by UID.
    heard: BTreeMap<String, Instant>,
    streams: BTreeMap<Key, Known>,
    /// Streams that are not sent any more.
    over: BTreeMap<PathClass, Totals>,
    pub(super) breaches: BTreeMap<(Flow, Option<Protocol>), Breach>,
    /// Pods that answer and are flooded, one sentence each.
    pub(super) floods: BTreeSet<String>,
}

/// What is known of one stream.
#[derive(Clone, Debug, Default)]
struct Known {
    /// From before the pod's process was started anew.
    before: Totals,
    last: Totals,
    /// The words, and since when without a pause.
    exceeded: Option<(Instant, String)>,
    /// From where the pod at its other end gets more than it answers.
    flooded_by: Option<IpAddr>,
}

impl State {
    pub(super) fn forget_all_but(&mut self, wanted: &BTreeSet<&Flow>) {
        let now = Instant::now();
        let (kept, over): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.streams)
            .into_iter()
            .partition(|((flow, _), _)| wanted.contains(flow));
        self.streams = kept;
        for ((flow, _), known) in over {
            let sum = self.over.entry(flow.class).or_default();
            *sum = sum.and(known.totals());
        }
        self.asked.retain(|flow, _| wanted.contains(flow));
        for flow in wanted {
            self.asked.entry((*flow).clone()).or_insert(now);
        }
        self.heard
            .retain(|uid, _| wanted.iter().any(|flow| flow.source == *uid));
    }

    pub(super) fn hear(&mut self, pod_uid: &str, counts: Counts, orders: &Orders) {
        // It has not heard of its new task yet.
        if counts.judged_since != orders.judged_since {
            return;
        }
        self.heard.insert(pod_uid.to_owned(), Instant::now());
        for count in counts.streams {
            // What it sends still, although it is not asked for any more, is counted already.
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
            let since = known
                .exceeded
                .take()
                .map_or_else(Instant::now, |(since, _)| since);
            known.exceeded = judge(class, &count.recent, &orders.gates).map(|words| {
                if count.problem.is_empty() {
                    (since, words)
                } else {
                    (since, format!("{words} ({})", count.problem))
                }
            });
        }
    }

    pub(super) fn is_silent(&self, pod_uid: &str) -> bool {
        self.heard.get(pod_uid).is_none_or(|at| at.elapsed() > SILENCE)
    }

    /// Whether something is counted on each of the pod's streams.
    pub(super) fn has_begun(&self, pod_uid: &str, orders: &Orders) -> bool {
        let mut flows = orders.flows.iter().filter(|flow| flow.source == pod_uid);
        flows.all(|flow| {
            flow.class.protocols().iter().all(|protocol| {
                let known = self.streams.get(&(flow.clone(), *protocol));
                known.is_some_and(|known| known.totals().sent > 0)
            })
        })
    }

    /// Breaches that begin now get their words; those that go on keep theirs, and those that are over go.
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
                    "{source} sends more than {MOST_OF_ONE} datagrams a second to {} ({}): what is lost there does not count",
                    flow.to, flow.address
                )
            })
            .collect();
        for flow in &orders.flows {
            let patient = self.asked.get(flow).is_none_or(|at| at.elapsed() <= SILENCE);
            if self.is_silent(&flow.source) {
                if !patient {
                    let words = "the traffic pod does not report: nobody knows what is lost".to_owned();
                    found.insert((flow.clone(), None), words);
                }
                continue;
            }
            for protocol in flow.class.protocols() {
                let known = self.streams.get(&(flow.clone(), *protocol));
                let Some((since, words)) = known.and_then(|known| known.exceeded.clone()) else {
                    continue;
                };
                let to_api = flow.class == PathClass::PodToApi;
                let is_away = silent.contains(&SocketAddr::new(flow.address, flow.port));
                // One that floods is no path that is broken: whoever can send could stop the rollout otherwise. A pod that
                // answers nothing at all does not say that it is flooded, and is a breach.
                if flooded.contains_key(&SocketAddr::new(flow.address, flow.port)) {
                    continue;
                }
                if to_api && (is_away || since.elapsed() < OWN_LOOK) {
                    continue;
                }
                found.insert((flow.clone(), Some(*protocol)), words);
            }
        }
        self.breaches.retain(|key, _| found.contains_key(key));
        for ((flow, protocol), words) in found {
            let how = protocol.map_or("nothing", Protocol::words);
            let message = format!(
                "{}, {how} from node {node} to {} ({}): {words}",
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

    /// Whom the pods say that they are flooded by, by where they answer.
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

    pub(super) fn sums(&self) -> Vec<ClassCount> {
        let mut sums = self.over.clone();
        for ((flow, _), known) in &self.streams {
            let sum = sums.entry(flow.class).or_default();
            *sum = sum.and(known.totals());
        }
        sums.into_iter()
            .map(|(class, totals)| ClassCount { class, totals })
            .collect()
    }
}

impl Known {
    fn totals(&self) -> Totals {
        self.before.and(self.last)
    }
}
