//! The view of one pass: everything that its decision depends on, and the decision.

mod by_node;
mod redundancy;
mod remaining;
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::MigrationStatus;
use api::migration::PodCidrStatus;
use engine::decision::Direction;
use engine::moves::{self, Health, Resident, Workload};
use engine::residents::{health, residents, workloads_of};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use pod_cidr::decide::{Next, Policy, PoolRole, PoolView, View, decide};
use pod_cidr::hardcoded_range::{self, RangeUse};
use pod_cidr::kube_proxy_rules;
use pod_cidr::movers;
use pod_cidr::pools::{self, Openness};
use pod_cidr::settings::Mode;

use self::remaining::Remaining;
use super::ReadCache;
use super::gate::{Watched, openness};
use super::pass::Pass;
use super::{report, soak_seconds};
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::read_cache::Pace;
use crate::snapshot::node_order;
use crate::staged::Gate;
use crate::{evict, limits, stalls};

/// Default number of pods that move at the same time.
const PODS_AT_ONCE: u32 = 5;

impl Pass<'_> {
    /// Fills the view, and decides: the next step, and the halt that needs a user.
    pub(super) async fn view_and_decide(
        &self,
        memory: &mut Memory,
        known: &mut PodCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(Next, Gate), PassError> {
        let (from, to) = (self.range(PoolRole::Old), self.range(PoolRole::New));
        let (target, left_range) = match self.source_pool() {
            PoolRole::Old => (to, from),
            PoolRole::New => (from, to),
        };
        known.source_closed_at = self.source_closed_at(known);
        let pods = self.snapshot.pods();
        evict::update(self.context, memory, pods);
        report::count(known, pods, self.direction, status);

        let workloads = workloads_of(pods);
        let needed = memory.needs.read(self.context, pods, Pace::Counted).await?;
        let residents = residents(pods, &workloads, &needed, known.source_closed_at);
        let targets = known.settings.remaining_ranges(&target, self.pools.ranges());
        let strange_pool = self.malformed_pool();
        let movers = if strange_pool.is_some() {
            movers::within(&left_range)
        } else {
            movers::out_of(&targets)
        };
        let left_there = moves::remaining_pods(&residents, movers);
        let nodes = left_there
            .values()
            .flatten()
            .map(|resident| resident.pod.node.as_str());
        let with_pods: BTreeSet<&str> = nodes.collect();
        let have_to_move = !with_pods.is_empty();
        let once_moved = if have_to_move { Pace::Counted } else { Pace::Waited };
        let workload_health = self.workload_health(memory, &residents, movers, status);
        let held = self.traffic(memory, have_to_move, known, status).await?;
        let left = self
            .remaining(memory, &left_range, have_to_move, once_moved, known)
            .await?;
        let routes = self.routes(known);
        let mentions = self
            .mentions(memory, known, (&left_range, &target), once_moved)
            .await?;
        let (mentions, widen) = self.with_rules(&mentions, &left_range, &target);
        let switch = self.switch(memory, &left_range, &target, known);
        let redundancy = self.redundancy(&residents, self.workloads, known, &mut memory.restores);
        let Watched { gate, unproved } = held;
        let order = node_order(self.snapshot, &self.context.node_name);
        let by_node = match self.kind.mode {
            Mode::ByWorkload => None,
            Mode::ByNode => Some(self.nodes_in_order(memory, &order, &with_pods)),
        };
        let view = View {
            direction: self.direction,
            old: self.pool_view(PoolRole::Old, known, &left, &routes),
            new: self.pool_view(PoolRole::New, known, &left, &routes),
            wanted: &pools::wanted(&self.saved.old_pool, &to, known.settings.block_size.value),
            widen: &widen,
            tunnel_changes: switch.ends,
            kept_in_source: self.kept_in_source(&left_range),
            kept_in_target: switch.kept_in_target,
            former_addresses_to_allocate: &self.to_hold(&target),
            to_release: &self.to_release(&left_range, &target),
            unknown_former_addresses: self.free_addresses_unknown(&target),
            unclear_pool: strange_pool,
            switched: switch.switched,
            canary: self.canary(known, unproved.as_ref()),
            redundancy,
            follow_up: &hardcoded_range::follow_up(&mentions, &from, &to),
            rolling: self.daemon_set_rollout(known),
            moves: moves::View {
                residents: &residents,
                movers,
                budgets: &self.snapshot.budgets,
                refusals: &memory.refusals,
                workloads: &workload_health,
                only: None,
            },
            nodes: by_node.as_deref(),
        };
        Ok((decide(&view, &self.policy(gate.hold.clone()), self.now), gate))
    }

    /// Time since which the source pool is closed.
    fn source_closed_at(&self, known: &PodCidrStatus) -> Option<Timestamp> {
        match openness(self.pool(self.source_pool(), known)) {
            Openness::Closed => known.source_closed_at.or(Some(self.now)),
            Openness::Absent => known.source_closed_at,
            Openness::OptIn | Openness::Narrowed | Openness::AllPods => None,
        }
    }

    /// Health of every workload; a stalled namespace is marked.
    fn workload_health(
        &self,
        memory: &mut Memory,
        residents: &[Resident<'_>],
        movers: moves::Movers<'_>,
        status: &MigrationStatus,
    ) -> BTreeMap<Workload, Health> {
        let started_at = status.started_at.unwrap_or(self.now);
        let mut health = health(self.workloads, &self.saved.unready, started_at);
        let goes_back = self.direction == Direction::Rollback;
        let name = self.migration.name_any();
        stalls::mark(memory, &name, residents, movers, &mut health, goes_back, self.now);
        health
    }

    /// Objects that contain a range. Those of tenants go to the warnings. `ranges`: the source range and the target range.
    async fn mentions(
        &self,
        memory: &mut Memory,
        known: &PodCidrStatus,
        ranges: (&IpNet, &IpNet),
        pace: Pace,
    ) -> Result<Arc<[RangeUse]>, PassError> {
        let calico = known.settings.calico_daemon_set();
        let reads = memory.kinds.of::<ReadCache>();
        let found = reads
            .mentions(self.context, self.cache, self.store, self.kind, calico, pace)
            .await?;
        let of_tenants = hardcoded_range::tenant_warnings(&found, ranges.0, ranges.1).into_iter();
        let of_tenants = of_tenants.map(|(namespace, words)| (format!("namespace {namespace}"), words));
        memory.warnings.add(of_tenants);
        Ok(found)
    }

    /// The same objects with kube-proxy's rules on nodes, and what has to allow both ranges before pods move.
    fn with_rules(
        &self,
        mentions: &[RangeUse],
        left: &IpNet,
        target: &IpNet,
    ) -> (Vec<RangeUse>, Vec<String>) {
        // The user has confirmed what the rules would show.
        let hosts = || self.hosts().filter(|_| !self.kind.local_ranges_checked);
        let all = kube_proxy_rules::with_rules(mentions, hosts(), left, target);
        let mut widen = hardcoded_range::widen(&all, left, target);
        widen.extend(kube_proxy_rules::unreadable(hosts()));
        (all, widen)
    }

    fn policy(&self, hold: Option<engine::decision::Wait>) -> Policy {
        Policy {
            moves: moves::Policy {
                pods_at_once: usize::try_from(self.kind.pods_at_once.unwrap_or(PODS_AT_ONCE)).unwrap_or(1),
                permissions: limits::permissions(self.migration),
                delete_bare_pods: self.kind.delete_bare_pods,
            },
            nodes_at_once: limits::rules(self.migration)
                .max_unavailable
                .resolve(self.snapshot.nodes.len()),
            soak: SignedDuration::from_secs(i64::from(soak_seconds(self.kind))),
            hold,
        }
    }

    fn pool_view<'view>(
        &'view self,
        which: PoolRole,
        known: &'view PodCidrStatus,
        left: &'view Remaining,
        routes: &'view [String],
    ) -> PoolView<'view> {
        let found = self.pool(which, known);
        let is_left = which == self.source_pool();
        PoolView {
            which,
            name: match which {
                PoolRole::Old => &known.settings.old_pool.value,
                PoolRole::New => &known.settings.new_pool.value,
            },
            range: self.range(which),
            spec: found.map(|pool| &pool.spec),
            terminating: found.is_some_and(|pool| pool.terminating),
            blocks: if is_left { &left.blocks } else { &[] },
            holders: if is_left { &left.holders } else { &[] },
            empty_since: known.source_empty_since,
            routes,
        }
    }
}
