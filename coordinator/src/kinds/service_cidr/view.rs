//! The view of one pass: everything that its decision depends on, and the decision.

mod control_plane;
mod load_balancers;
mod restarts;
pub mod service;
mod services;
mod soak;
mod source_uses;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use api::MigrationStatus;
use api::migration::ServiceCidrStatus;
use api::record::{Content, RecordContent};
use engine::decision::{Wait, WaitReason};
use engine::words::names;
use ipnet::IpNet;
use service_cidr::covers::Kept;
use service_cidr::decide::{Next, Policy, View, decide};
use service_cidr::ranges::ServiceCidr as Range;
use service_cidr::side::Side;
use service_cidr::step::Stage;

use self::load_balancers::split_at_limit;
use self::services::Services;
use self::source_uses::SourceUses;
use super::adopt;
use super::answers::{Answer, Answers};
use super::knowledge::{self, Asking};
use super::pass::Pass;
use super::question::Expected;
use super::read_cache::ReadCache;
use super::services_at_once;
use crate::facts;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::read_cache::Pace;
use crate::staged::Gate;
use crate::write::WriteError;

/// The next step, the halt that needs a user, and the Services that change.
pub(super) type Observation = (Next, Gate, Services);

impl Pass<'_> {
    /// Fills the view, and decides.
    pub(super) async fn view_and_decide(
        &self,
        memory: &mut Memory,
        known: &mut ServiceCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<Observation, PassError> {
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
            with_old_addresses,
            soak,
            of_tenants,
        } = self
            .source_uses(memory, &answers, known, status, end_pace)
            .await?;
        let left_is_used = follow_up.is_some() || with_old_addresses.is_some() || soak.is_some();
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
            pods_with_old_addresses: with_old_addresses,
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

    /// Nodes that Services do not wait for, each with the text of its warning. During a rollback: nodes whose agent has been
    /// silent, or has sent malformed reports, for long, and nodes whose kube-proxy has lacked a rule for long. No node keeps the
    /// Services of other nodes from rolling back.
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
        self.kind.rollback_services.iter().cloned().collect()
    }

    /// The wait for Services that cannot be rolled back alone: too late, or not part of the migration.
    fn not_rolled_back_alone(&self, known: &ServiceCidrStatus) -> Option<Wait> {
        let (held, book) = (self.services_rolled_back_alone(known), &self.assigned.book);
        let asked = self.kind.rollback_services.iter();
        let missed: Vec<&str> = asked
            .filter(|name| !held.contains(*name) || !book.contains_key(*name))
            .map(String::as_str)
            .collect();
        (self.goal == Side::New && !missed.is_empty()).then(|| Wait {
            reason: WaitReason::Paused,
            message: format!(
                "spec.serviceCidr.rollbackServices has Services that cannot roll back alone: {}. Either no such Service changes \
                 its address, or the old range allocates no address any more. Run `kubectl replumb resume` to continue with all Services, or \
                 `kubectl replumb rollback --all` to roll all back",
                names(&missed)
            ),
            until: None,
        })
    }

    /// Whether the source range allocates no address, except to late Services: these come and go, and change nothing for the
    /// other Services.
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
}
