//! The inputs of one pass's decision, and the decision.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Instant;

use api::MigrationStatus;
use api::migration::ServiceCidrStatus;
use api::record::RecordContent;
use api::traffic::SoakGate;
use engine::decision::{Wait, WaitReason};
use engine::drain::Pod;
use engine::evict;
use engine::found::Found;
use engine::moves::{self, Movers, Resident};
use engine::owner::Owner;
use engine::residents::{START_GRACE, health, residents, workloads_of};
use engine::words::{self, lines, names};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use service_cidr::addresses::first;
use service_cidr::class::Class;
use service_cidr::covers::Kept;
use service_cidr::decide::{Next, Policy, View, decide};
use service_cidr::entry::{self, Entry};
use service_cidr::facts::ApiServer;
use service_cidr::host::MAX_EXCLUDED;
use service_cidr::mentions::AddressUses;
use service_cidr::ranges::{ServiceCidr as Range, joined};
use service_cidr::side::Side;
use service_cidr::step::{Missing, Stage};

use super::adopt;
use super::drive::{Pass, direction};
use super::knowledge::{self, Answer, Answers, Asking};
use super::question::Expected;
use super::read_cache::ReadCache;
use super::services::{Services, is_late};
use super::{services_at_once, soak_seconds};
use crate::memory::Memory;
use crate::read_cache::Pace;
use crate::records::Content;
use crate::staged::Gate;
use crate::write::WriteError;
use crate::{facts, limits, stalls};

/// Default number of pods that restart at the same time.
const PODS_AT_ONCE: u32 = 5;

/// The next step, the halt that needs a user, and the Services that change.
pub(super) type Observation = (Next, Gate, Services);

/// The uses of source addresses, for a view. Empty once source addresses are released.
#[derive(Default)]
struct SourceUses {
    follow_up: Option<Wait>,
    carriers: Option<Missing>,
    soak: Option<Wait>,
    /// Changes that tenants have to make: the namespace, and the text.
    of_tenants: Vec<(String, String)>,
}

/// A load balancer, and its source addresses.
struct LoadBalancer<'index> {
    service: &'index Entry,
    addresses: Vec<IpAddr>,
}

impl LoadBalancer<'_> {
    fn line(&self) -> String {
        let texts: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        format!(
            "Service {} of type LoadBalancer has {}. Fix: move its clients to another Service and delete it, or set \
             keepLoadBalancers",
            self.service.key(),
            texts.join(",")
        )
    }
}

/// The kept addresses that agents are told, and the load balancers whose addresses exceed their number.
fn split_at_limit<'keepers, 'index>(
    keepers: &'keepers [LoadBalancer<'index>],
) -> (Vec<IpAddr>, &'keepers [LoadBalancer<'index>]) {
    let mut told = Vec::new();
    for (index, keeper) in keepers.iter().enumerate() {
        if told.len() + keeper.addresses.len() > MAX_EXCLUDED {
            return (told, &keepers[index..]);
        }
        told.extend(&keeper.addresses);
    }
    (told, &[])
}

/// The wait for changes that only the user can make; `None` without any.
fn follow_ups(lines: impl IntoIterator<Item = String>) -> Option<Wait> {
    let lines: Vec<String> = lines.into_iter().collect();
    (!lines.is_empty()).then(|| Wait {
        reason: WaitReason::ConfigurationFollowUp,
        message: format!("waiting for changes by the user: {}", words::lines(&lines)),
        until: None,
    })
}

/// The wait for pods that would get a source address again at each start; `None` without any.
fn restart_later(residents: &[&Resident<'_>]) -> Option<Wait> {
    let pods: Vec<String> = residents.iter().map(|resident| resident.pod.key()).collect();
    (!pods.is_empty()).then(|| Wait {
        reason: WaitReason::ServiceRanges,
        message: format!(
            "late Services still have source addresses. A pod gets the addresses of all Services in its namespace, so these pods \
             restart later: {}",
            names(&pods)
        ),
        until: None,
    })
}

impl Pass<'_> {
    /// The next step.
    pub(super) async fn look(
        &self,
        memory: &mut Memory,
        known: &mut ServiceCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<Observation, WriteError> {
        memory
            .kinds
            .of::<ReadCache>()
            .expected
            .resume(memory.records.holding(RecordContent::ExpectedPorts));
        let answers = self.answers(&memory.kinds.of::<ReadCache>().expected);
        let gate = self.traffic(memory, status).await?;
        let stage = known.stage.as_ref().map(|stage| stage.name);
        let is_at_the_end = stage.is_some_and(|stage| stage >= Stage::Close);
        let (api_pace, end_pace) = match stage {
            None | Some(Stage::Range | Stage::ControlPlane) => (Pace::Waited, Pace::Counted),
            Some(_) if is_at_the_end => (Pace::Waited, Pace::Waited),
            Some(_) => (Pace::Counted, Pace::Counted),
        };
        let servers = memory
            .kinds
            .of::<ReadCache>()
            .api_servers(self.context, self.cache, api_pace)
            .await?;
        let api_servers = self.api_servers(&servers, known);
        let is_closed = self.is_closed(known);
        let SourceUses {
            follow_up,
            carriers,
            soak,
            of_tenants,
        } = self
            .source_uses(memory, &answers, known, status, end_pace)
            .await?;
        let left_is_used = follow_up.is_some() || carriers.is_some() || soak.is_some();
        let unheard = self.unheard(memory, &answers);
        let mut heard = Cow::Borrowed(&answers);
        if !unheard.is_empty() {
            heard.to_mut().retain(|node, _| !unheard.contains_key(node));
        }
        let services = self.services(memory, known, &heard, left_is_used).await?;
        let of_tenants = of_tenants.into_iter();
        let of_tenants = of_tenants.map(|(namespace, words)| (format!("namespace {namespace}"), words));
        let unheard = unheard.into_iter();
        let of_nodes = unheard.map(|(node, words)| (format!("node {node}"), words));
        memory.warnings.add(of_tenants.chain(of_nodes));
        let mut wanted = adopt::settings_of_agents(&known.settings, self.goal);
        wanted.report_users = is_closed;
        // Before that, uses of these addresses are not read: a tenant that creates load balancers costs no write for each node.
        if is_closed {
            wanted.source.excluded = split_at_limit(&self.keepers(known)).0;
        }
        self.expect(memory, &services, is_at_the_end).await?;
        wanted.expected_ports = memory.kinds.of::<ReadCache>().expected.place(self.migration);
        adopt::ask(self.context, &self.snapshot.node_migrations, &wanted).await?;
        let view = View {
            goal: self.goal,
            settings: &known.settings,
            ranges: self.ranges,
            api_servers,
            services: &services.views,
            without_address: &self.assigned.without_room,
            kept: &self.kept(known),
            addresses: &self.addresses(),
            follow_up,
            pods_with_old_addresses: carriers,
            soak,
        };
        let policy = Policy {
            services_at_once: services_at_once(self.kind),
            hold: self.not_rolled_back_alone(known).or(gate.hold.clone()),
        };
        Ok((decide(&view, &policy), gate, services))
    }

    /// Records the ports that agents have to check now.
    async fn expect(
        &self,
        memory: &mut Memory,
        services: &Services,
        is_at_the_end: bool,
    ) -> Result<(), WriteError> {
        let (expected, now) = (&mut memory.kinds.of::<ReadCache>().expected, Instant::now());
        let nodes = self.snapshot.node_migrations.len();
        let Asking { needed, is_answered } = services.asking.clone();
        if is_at_the_end {
            expected.only(needed, now);
        } else if expected.need(needed, is_answered, nodes, now) {
            // The record may be deleted, or differ: it is read again.
            memory.records.forget();
        }
        // The record stays when nothing is asked any more: otherwise each agent would have to be told of the next one.
        let question = expected.question().cloned().map(Content::ExpectedPorts);
        let parts: Vec<Content> = question.into_iter().collect();
        memory
            .records
            .write(
                &self.context.client,
                self.migration,
                RecordContent::ExpectedPorts,
                parts,
            )
            .await
    }

    /// Finds the uses of source addresses.
    async fn source_uses(
        &self,
        memory: &mut Memory,
        answers: &Answers<'_>,
        known: &mut ServiceCidrStatus,
        status: &MigrationStatus,
        pace: Pace,
    ) -> Result<SourceUses, WriteError> {
        let changed = known.settings.changed();
        let ranges = [changed.old.as_slice(), changed.new.as_slice()].concat();
        let mentions = memory
            .kinds
            .of::<ReadCache>()
            .mentions(self.context, pace, &ranges)
            .await?;
        let mut said = AddressUses::of(&mentions, &changed, self.goal);
        if self.allocates_nothing(known) && self.is_released(known) {
            // No range allocates these addresses again: a use that is reported now changes nothing.
            return Ok(SourceUses {
                of_tenants: match self.goal {
                    Side::Old => said.warnings,
                    // Each was changed before.
                    Side::New => Vec::new(),
                },
                ..SourceUses::default()
            });
        }
        let of_the_cluster = std::mem::take(&mut said.follow_up).into_iter();
        let follow_up = follow_ups(of_the_cluster.chain(self.changes_before_restart(answers, known)));
        let is_closed = self.is_closed(known);
        known.target_announced_since = if is_closed && follow_up.is_none() {
            known.target_announced_since.or(Some(self.now))
        } else {
            None
        };
        let carriers = self.carriers(memory, answers, known, status, &mut said).await?;
        let may_be_in_use = match &carriers {
            // A silent agent reports no use: earlier reports hold, and nothing ends before its report.
            Some(Missing::Answer(wait)) => wait.reason != WaitReason::AgentSilent,
            Some(Missing::Evict(_)) => true,
            None => false,
        };
        known.soak_started_at = if is_closed && follow_up.is_none() {
            known
                .soak_started_at
                .or_else(|| carriers.is_none().then_some(self.now))
        } else {
            None
        };
        let is_unused = is_closed && follow_up.is_none() && !may_be_in_use;
        let soak = self.soak(answers, known, is_unused);
        // Changes by tenants are waited for only at the end.
        let awaited = self.awaited_load_balancers(known);
        for balancer in &awaited {
            said.warn(&balancer.service.namespace, &balancer.line(), self.goal);
        }
        let release = match self.migration.spec.gates.soak {
            SoakGate::Unused => said.release,
            SoakGate::Elapsed => Vec::new(),
        };
        let of_tenants = awaited.iter().map(LoadBalancer::line).chain(release);
        Ok(SourceUses {
            follow_up,
            carriers,
            soak: soak.or_else(|| follow_ups(of_tenants)),
            of_tenants: said.warnings,
        })
    }

    /// Whether the source addresses are being released, or have been.
    fn is_released(&self, known: &ServiceCidrStatus) -> bool {
        let stage = known.stage.as_ref();
        stage.is_some_and(|stage| stage.name >= Stage::Release && stage.direction == direction(self.goal))
    }

    /// The answer of every node to its present question.
    fn answers(&self, expected: &Expected) -> Answers<'_> {
        let mut answers = Answers::new();
        for (name, node) in &self.snapshot.nodes {
            // A node that is not Ready learns everything when it is Ready again: kube-proxy starts with a full list.
            let is_away = !facts::nodes::is_ready(node) || node.metadata.deletion_timestamp.is_some();
            if facts::nodes::is_linux(node) && !is_away {
                answers.insert(name.as_str(), self.answer(name, expected));
            }
        }
        answers
    }

    /// The answer of this node to its last question.
    fn answer(&self, node: &str, expected: &Expected) -> Option<Answer<'_>> {
        let object = self.snapshot.node_migrations.get(node)?;
        let status = object.status.as_ref()?;
        let is_current = Some(status.observed_generation) == object.metadata.generation;
        let said = status.service_cidr.as_ref()?;
        let asked = object.spec.service_cidr.as_ref()?;
        (is_current && self.snapshot.agent_ready(node)).then(|| Answer {
            reports_users: asked.report_users,
            is_newest: expected.is_of(said.expected_digest.as_deref()),
            said,
        })
    }

    /// Nodes that Services do not wait for, each with the text of its warning. During a rollback: nodes whose agent has been silent, or
    /// has sent malformed reports, for long, and nodes whose kube-proxy has lacked a rule for long. No node keeps the Services of other
    /// nodes from rolling back.
    fn unheard<'pass>(&self, memory: &mut Memory, answers: &Answers<'pass>) -> BTreeMap<&'pass str, String> {
        let ReadCache {
            expected,
            silent,
            lagging,
            ..
        } = memory.kinds.of::<ReadCache>();
        let unheard = knowledge::nodes_given_up(answers, expected.ports(), silent, lagging);
        if self.goal == Side::New {
            return BTreeMap::new();
        }
        let words = |why: String| {
            format!(
                "{why}: Services roll back without the rules of its kube-proxy. Fix: check the logs of its agent and of \
                 kube-proxy"
            )
        };
        unheard
            .into_iter()
            .map(|(node, why)| (node, format!("node {node} {}", words(why))))
            .collect()
    }

    /// Services that the user has rolled back while the others continue: possible as long as the old range allocates addresses.
    pub(super) fn services_rolled_back_alone(&self, known: &ServiceCidrStatus) -> BTreeSet<String> {
        if self.goal == Side::Old || self.is_closed(known) {
            return BTreeSet::new();
        }
        self.migration.spec.rollback_services.iter().cloned().collect()
    }

    /// The wait for Services that cannot be rolled back alone: too late, or not part of the migration.
    fn not_rolled_back_alone(&self, known: &ServiceCidrStatus) -> Option<Wait> {
        let (held, book) = (self.services_rolled_back_alone(known), &self.assigned.book);
        let asked = self.migration.spec.rollback_services.iter();
        let missed: Vec<&str> = asked
            .filter(|name| !held.contains(*name) || !book.contains_key(*name))
            .map(String::as_str)
            .collect();
        (self.goal == Side::New && !missed.is_empty()).then(|| Wait {
            reason: WaitReason::Paused,
            message: format!(
                "spec.rollbackServices has Services that cannot roll back alone: {}. Either no such Service changes its address, \
                 or the old range allocates no address any more. Run `kubectl replumb resume` to continue with all Services, or \
                 `kubectl replumb rollback --all` to roll all back",
                names(&missed)
            ),
            until: None,
        })
    }

    /// Whether the source range allocates no address, except to late Services: these come and go, and change nothing for the other
    /// Services.
    fn is_closed(&self, known: &ServiceCidrStatus) -> bool {
        !self.any_range(known, Range::is_open_to_all)
    }

    /// Whether no range allocates a source address to any Service.
    fn allocates_nothing(&self, known: &ServiceCidrStatus) -> bool {
        !self.any_range(known, Range::is_open)
    }

    fn any_range(&self, known: &ServiceCidrStatus, is_open: fn(&Range, &[IpNet], &Kept) -> bool) -> bool {
        let changed = known.settings.changed();
        let left = changed.of(self.goal.other());
        let kept = self.kept(known);
        self.ranges.iter().any(|range| is_open(range, left, &kept))
    }

    /// Addresses of all Services, those of helpers included.
    fn addresses(&self) -> Vec<IpAddr> {
        let services = self.index.services();
        services
            .flat_map(|service| service.addresses.iter().copied())
            .collect()
    }

    /// Addresses of load balancers that stay.
    fn kept(&self, known: &ServiceCidrStatus) -> Kept {
        let keepers = self.keepers(known).into_iter();
        Kept::of(keepers.flat_map(|keeper| keeper.addresses).collect())
    }

    /// Whether load balancers keep their source addresses. A rollback asks no tenant to move clients to another Service.
    fn keeps_load_balancers(&self) -> bool {
        self.kind.keep_load_balancers || self.goal == Side::Old
    }

    /// Load balancers that stay.
    fn keepers(&self, known: &ServiceCidrStatus) -> Vec<LoadBalancer<'_>> {
        if self.keeps_load_balancers() {
            self.load_balancers(known)
        } else {
            Vec::new()
        }
    }

    /// Load balancers with a source address, the oldest first.
    fn load_balancers(&self, known: &ServiceCidrStatus) -> Vec<LoadBalancer<'_>> {
        let changed = known.settings.changed();
        let services = entry::of_migration(self.index.services());
        let found = services.filter_map(|service| match service.class(changed.of(self.goal.other())) {
            Class::LoadBalancer(addresses) => Some(LoadBalancer { service, addresses }),
            Class::Moves(_) | Class::Headless | Class::ExternalName | Class::Elsewhere => None,
        });
        let mut found: Vec<LoadBalancer<'_>> = found.collect();
        found.sort_by_key(|balancer| balancer.service.created);
        found
    }

    /// Load balancers that may not keep their addresses, and for which the pods of other users do not wait.
    fn awaited_load_balancers(&self, known: &ServiceCidrStatus) -> Vec<LoadBalancer<'_>> {
        if self.keeps_load_balancers() {
            return Vec::new();
        }
        let mut found = self.load_balancers(known);
        found.retain(|found| self.ends_the_soak(found.service, known));
        found
    }

    /// Whether a load balancer is waited for only at the end: it is late, or it is a tenant's. A tenant may create a load balancer at any
    /// time.
    fn ends_the_soak(&self, balancer: &Entry, known: &ServiceCidrStatus) -> bool {
        let owner = Owner::of(Some(&balancer.namespace), &[&self.context.namespace]);
        is_late(balancer, known) || owner.tenant().is_some()
    }

    /// Namespaces whose pods would get a source address at each start, for now.
    fn namespaces_to_wait_for(&self, known: &ServiceCidrStatus) -> BTreeSet<&str> {
        let mut namespaces = self.namespaces_with_late_services_to_move(known);
        let (keepers, late) = (self.keepers(known), self.awaited_load_balancers(known));
        let (_, untold) = split_at_limit(&keepers);
        namespaces.extend(
            untold
                .iter()
                .chain(&late)
                .map(|found| found.service.namespace.as_str()),
        );
        namespaces
    }

    /// The wait for API servers without the needed flag or certificate.
    fn api_servers(&self, servers: &BTreeMap<IpAddr, ApiServer>, known: &ServiceCidrStatus) -> Option<Wait> {
        let defaults = known.settings.defaults();
        let wanted = defaults.of(self.goal);
        let changed = known.settings.changed();
        let firsts: Vec<IpAddr> = Side::ALL
            .into_iter()
            .flat_map(|side| changed.of(side).iter().filter_map(first))
            .collect();
        let mut missing = Vec::new();
        if servers.is_empty() {
            missing.push("Service default/kubernetes has no API server".to_owned());
        }
        for (address, server) in servers {
            match &server.ranges {
                Ok(ranges) if ranges == wanted => {}
                Ok(ranges) => missing.push(format!(
                    "API server {address}: found --service-cluster-ip-range={}, needed {}",
                    joined(ranges),
                    joined(wanted)
                )),
                Err(why) => missing.push(format!(
                    "API server {address}: --service-cluster-ip-range is unknown: {why}"
                )),
            }
            match &server.addresses {
                Ok(names) => {
                    let lacks: Vec<String> = firsts
                        .iter()
                        .filter(|first| !names.contains(first))
                        .map(ToString::to_string)
                        .collect();
                    if !lacks.is_empty() {
                        missing.push(format!(
                            "API server {address}: its certificate is not for {}",
                            words::names(&lacks)
                        ));
                    }
                }
                Err(why) => missing.push(format!("API server {address}: its certificate is unknown: {why}")),
            }
        }
        (!missing.is_empty()).then(|| Wait {
            reason: WaitReason::ApiServers,
            message: format!("waiting for changes by the user: {}", lines(&missing)),
            until: None,
        })
    }

    /// Kubelets that have a source address, and load balancers that had to be changed before.
    fn changes_before_restart(&self, answers: &Answers<'_>, known: &ServiceCidrStatus) -> Vec<String> {
        let changed = known.settings.changed();
        let (left, target) = (changed.of(self.goal.other()), changed.of(self.goal));
        let is_left = |address: &IpAddr| left.iter().any(|range| range.contains(address));
        let mut lines = Vec::new();
        for (node, answer) in answers {
            match answer.as_ref().map(|answer| &answer.said.cluster_dns) {
                Some(Found::Present(said)) => lines.extend(said.iter().filter(|said| is_left(said)).map(|said| {
                    format!(
                        "kubelet of Node {node}: clusterDNS: found {said}, needed an address of {}. Fix: change it in the \
                         kubelet's configuration (/var/lib/kubelet/config.yaml, or --cluster-dns), then `systemctl restart \
                         kubelet`",
                        joined(target)
                    )
                })),
                // A node without a report is waited for once the pods of the other nodes have restarted. Its former report holds for that
                // time.
                Some(Found::Absent | Found::Malformed(_)) | None => {}
            }
        }
        if !self.keeps_load_balancers() {
            let found = self.load_balancers(known).into_iter();
            let of_the_cluster = found.filter(|found| !self.ends_the_soak(found.service, known));
            lines.extend(of_the_cluster.map(|found| found.line()));
        }
        lines
    }

    /// UIDs of pods that were given a source address, and the nodes where that is unknown, each with the reason.
    fn pods_with_source_addresses(
        &self,
        answers: &Answers<'_>,
        since: Timestamp,
    ) -> (HashSet<&str>, Vec<String>) {
        let mut told: HashSet<&str> = HashSet::new();
        let mut silent = Vec::new();
        for (node, answer) in answers {
            if let Some(what) = answer.as_ref().and_then(Answer::unknown_cluster_dns) {
                silent.push(format!(
                    "node {node}: clusterDNS of its kubelet is unknown: {what}"
                ));
            }
            match answer.as_ref().and_then(Answer::carriers) {
                Some(Found::Present(carriers)) => {
                    let told_here = carriers.pods_to_restart(self.snapshot.pods_on(node), since);
                    told.extend(told_here);
                }
                Some(Found::Absent) => {}
                Some(Found::Malformed(what)) => silent.push(format!("node {node}: {what}")),
                None => silent.push(format!("node {node}: its agent has not reported")),
            }
        }
        (told, silent)
    }

    /// Whether this pod of a tenant gets a source address at each start: its own manifest contains the address.
    fn has_address_in_manifest(&self, resident: &Resident<'_>) -> bool {
        let owner = Owner::of(Some(&resident.pod.namespace), &[&self.context.namespace]);
        resident.created_after_close && owner.tenant().is_some()
    }

    /// The change that such a pod's owner has to make.
    fn manifest_fix(&self, pod: &Pod, known: &ServiceCidrStatus) -> String {
        let changed = known.settings.changed();
        format!(
            "Pod {}: created after every Service had its new address, and still given one of {}: its own manifest contains it, \
             in a variable or in dnsConfig. Fix: replace it by the name of the Service, or by the address of {}",
            pod.key(),
            joined(changed.of(self.goal.other())),
            joined(changed.of(self.goal))
        )
    }

    /// Pods that were given a source address, and the next step for them.
    async fn carriers(
        &self,
        memory: &mut Memory,
        answers: &Answers<'_>,
        known: &mut ServiceCidrStatus,
        status: &MigrationStatus,
        said: &mut AddressUses,
    ) -> Result<Option<Missing>, WriteError> {
        if !self.is_closed(known) {
            known.pods_with_source_addresses = None;
            return Ok(Some(Missing::Answer(Wait {
                reason: WaitReason::ServiceRanges,
                message: "pods with source addresses are read once no range allocates a source address"
                    .to_owned(),
                until: None,
            })));
        }
        let (told, silent) =
            self.pods_with_source_addresses(answers, known.target_announced_since.unwrap_or(Timestamp::MAX));
        let pods = self.snapshot.pods();
        crate::evict::update(self.context, memory, pods);
        let workloads = workloads_of(pods);
        let needed = memory.needs.read(self.context, pods, Pace::Counted).await?;
        let mut residents = residents(pods, &workloads, &needed, known.target_announced_since);
        let late = self.namespaces_to_wait_for(known);
        let arrived = memory.kinds.of::<ReadCache>().migrated_since(
            self.namespaces_with_late_services(known),
            &late,
            self.now,
        );
        for resident in &mut residents {
            // A pod gets the addresses of all Services in its namespace, late ones included.
            if let Some(arrived) = arrived.get(&resident.pod.namespace) {
                let made_at = resident.pod.made_at;
                resident.created_after_close &= made_at.is_some_and(|made| made > *arrived + START_GRACE);
            }
        }
        let told: Vec<&Resident<'_>> = residents
            .iter()
            .filter(|resident| told.contains(resident.pod.uid.as_str()))
            .filter(|resident| !resident.pod.finished && !resident.pod.mirror)
            .collect();
        if silent.is_empty() {
            known.pods_with_source_addresses = Some(u32::try_from(told.len()).unwrap_or(u32::MAX));
        }
        // A pod gets the addresses of all Services in its namespace: one that restarts now would have to restart again.
        let (later, told): (Vec<&Resident<'_>>, Vec<&Resident<'_>>) = told
            .into_iter()
            .partition(|resident| late.contains(resident.pod.namespace.as_str()));
        // An eviction would give such a pod the same address again. The pod keeps no other pod from restarting.
        let (again, told): (Vec<&Resident<'_>>, Vec<&Resident<'_>>) = told
            .into_iter()
            .partition(|resident| self.has_address_in_manifest(resident));
        for Resident { pod, .. } in again {
            said.add_tenant_change(&pod.namespace, self.manifest_fix(pod, known), self.goal);
        }
        let told: BTreeSet<String> = told.iter().map(|resident| resident.pod.uid.clone()).collect();
        let mut health = health(self.workloads, self.ill, status.started_at.unwrap_or(self.now));
        let (name, movers) = (self.migration.name_any(), Movers::StartedWithOldAddress(&told));
        let goes_back = self.goal == Side::Old;
        stalls::mark(
            memory,
            &name,
            &residents,
            movers,
            &mut health,
            goes_back,
            self.now,
        );
        let view = moves::View {
            residents: &residents,
            movers,
            budgets: &self.snapshot.budgets,
            refusals: &memory.refusals,
            workloads: &health,
            only: None,
        };
        let policy = moves::Policy {
            pods_at_once: usize::try_from(self.kind.pods_at_once.unwrap_or(PODS_AT_ONCE)).unwrap_or(1),
            permissions: limits::permissions(self.migration),
            delete_bare_pods: self.kind.delete_bare_pods,
        };
        if let Some(next) = moves::next(&view, &policy, self.now) {
            return Ok(Some(match next {
                evict::Next::Evict(pods) => Missing::Evict(pods),
                evict::Next::Wait(wait) => Missing::Answer(wait),
            }));
        }
        // The last pods are not Ready yet.
        if let Some(found) = moves::moved_not_ready(&view, self.now) {
            return Ok(Some(Missing::Answer(found.wait)));
        }
        if let Some(found) = restart_later(&later) {
            return Ok(Some(Missing::Answer(found)));
        }
        // With soak gate Elapsed the time alone counts.
        if self.goal == Side::New && self.migration.spec.gates.soak == SoakGate::Elapsed {
            return Ok(None);
        }
        // A node without an answer keeps no pod of another node from restarting.
        Ok((!silent.is_empty()).then(|| {
            Missing::Answer(Wait {
                reason: WaitReason::AgentSilent,
                message: format!(
                    "pods that were given source addresses are unknown: {}",
                    words::lines(&silent)
                ),
                until: None,
            })
        }))
    }

    /// Start of the time for which source addresses still answer; `None` while something else has to end first.
    fn soak_since(&self, known: &ServiceCidrStatus) -> Option<Timestamp> {
        match self.migration.spec.gates.soak {
            SoakGate::Unused => known.source_unused_since,
            SoakGate::Elapsed => known.soak_started_at,
        }
    }

    /// The wait for source addresses to answer for some time, when no pod is known to have been given one.
    fn soak(&self, answers: &Answers<'_>, known: &mut ServiceCidrStatus, is_unused: bool) -> Option<Wait> {
        let mut count = 0;
        let mut first: Vec<String> = Vec::new();
        let mut unknown: Vec<String> = Vec::new();
        for (node, answer) in answers {
            match answer.as_ref().and_then(Answer::connections) {
                Some(Found::Present(connections)) => {
                    count += connections.count();
                    first.extend(
                        connections
                            .items
                            .iter()
                            .map(|found| format!("{found} (node {node})")),
                    );
                }
                Some(Found::Absent) => {}
                Some(Found::Malformed(what)) => unknown.push(format!("node {node}: {what}")),
                None => unknown.push(format!("node {node}: its agent has not reported")),
            }
        }
        if !self.is_closed(known) {
            known.connections_to_source = None;
        } else if unknown.is_empty() {
            known.connections_to_source = Some(u32::try_from(count).unwrap_or(u32::MAX));
        }
        known.source_unused_since = if !is_unused || count > 0 {
            None
        } else if unknown.is_empty() {
            known.source_unused_since.or(Some(self.now))
        } else {
            known.source_unused_since
        };
        let is_elapsed = self.migration.spec.gates.soak == SoakGate::Elapsed;
        // A rollback is wanted at once; and a release that the time alone has decided stays decided.
        if self.goal == Side::Old || (is_elapsed && self.is_released(known)) {
            return None;
        }
        let used_by = format!(
            "{}, first: {}",
            words::number(
                count,
                "connection uses a source address",
                "connections use source addresses"
            ),
            lines(&first)
        );
        let until = |since: Timestamp| since + SignedDuration::from_secs(i64::from(soak_seconds(self.kind)));
        let message = match self.soak_since(known) {
            Some(since) if self.now >= until(since) && (is_elapsed || unknown.is_empty()) => return None,
            Some(_) if !is_elapsed && !unknown.is_empty() => unknown.swap_remove(0),
            Some(since) if known.source_unused_since.is_some() => format!(
                "no use of a source address since {since:.0}; source addresses answer until {:.0}",
                until(since)
            ),
            Some(since) => {
                let seen = match unknown.first() {
                    _ if count > 0 => used_by,
                    Some(unknown) => unknown.clone(),
                    None => "pods may use source addresses".to_owned(),
                };
                format!(
                    "{seen}. Source addresses answer until {:.0} (spec.gates.soak: Elapsed)",
                    until(since)
                )
            }
            None if count > 0 => format!("{used_by}. Source addresses still answer"),
            None => unknown
                .first()
                .cloned()
                .unwrap_or_else(|| "pods were given source addresses".to_owned()),
        };
        Some(Wait {
            reason: WaitReason::ServiceSoak,
            message,
            until: None,
        })
    }
}
