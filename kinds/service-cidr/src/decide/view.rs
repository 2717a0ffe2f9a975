//! The inputs of the decision: the ranges, and one value for each Service.

use std::net::IpAddr;

use engine::decision::{Decision, Halt, Wait};
use ipnet::IpNet;

use crate::covers::Kept;
use crate::exchange::{self, Role};
use crate::ranges::{DEFAULT, ServiceCidr};
use crate::settings::Settings;
use crate::side::Side;
use crate::step::Missing;

/// The order of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// `default/kubernetes`.
    Kubernetes,
    /// The Services of the cluster DNS.
    NameServer,
    /// All other Services.
    Other,
}

/// One Service that changes its address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ServiceView {
    /// `namespace/name`.
    pub name: String,
    /// Its turn.
    pub turn: Turn,
    /// Whether it has its target address.
    pub has_target_address: bool,
    /// Whether it has no address now, because a process was killed in the middle of the change.
    pub has_no_address: bool,
    /// Whether it is in `spec.serviceCidr.rollbackServices`: it goes back to its source address, and stays there.
    pub is_rolled_back: bool,
    /// Whether it has been in progress for so long, or its writes are refused, that another Service may use its slot.
    pub is_slow: bool,
    /// Whether it was created after the exchange had started: the range is closed without it, so that no owner can prevent that.
    pub is_late: bool,
    /// Addresses that a helper needs and that no range assigns: a `ServiceCIDR` for these addresses is created.
    pub uncovered: Vec<IpAddr>,
    /// Whether it has an endpoint that answers. Without one, no request can be lost.
    pub is_served: bool,
    /// The decision for it; `None` if it was not observed in this pass.
    pub decision: Option<Decision<exchange::Step>>,
}

/// All inputs of the decision.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// The side of the target addresses.
    pub goal: Side,
    /// The settings of the migration.
    pub settings: &'facts Settings,
    /// Every `ServiceCIDR`.
    pub ranges: &'facts [ServiceCidr],
    /// Wait until all API servers have the flag of the target, with the fix; `None` once all have it.
    pub api_servers: Option<Wait>,
    /// Every Service that changes its address, in rollout order.
    pub services: &'facts [ServiceView],
    /// Services with an address of a source range for which the target range has no free address. Only these wait.
    pub without_address: &'facts [String],
    /// Addresses of the source ranges that load balancers keep.
    pub kept: &'facts Kept,
    /// Addresses of Services, helpers included.
    pub addresses: &'facts [IpAddr],
    /// Wait for kubelets and objects of the cluster that contain a source address, with the fix. Objects of tenants are not
    /// included, because they must not delay the restart of other pods.
    pub follow_up: Option<Wait>,
    /// Pods that have received a source address.
    pub pods_with_old_addresses: Option<Missing>,
    /// Wait before the source addresses are released: their soak time has not passed, or an object of a tenant contains one;
    /// `None` once they may be released.
    pub soak: Option<Wait>,
}

/// Limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum number of Services that change their addresses at the same time.
    pub services_at_once: usize,
    /// Why no step may run now: the user has paused the migration, or has to review it first.
    pub hold: Option<Wait>,
}

impl View<'_> {
    pub(super) fn default_range(&self) -> Option<&ServiceCidr> {
        self.range(DEFAULT)
    }

    pub(super) fn range(&self, name: &str) -> Option<&ServiceCidr> {
        self.ranges.iter().find(|range| range.name == name)
    }

    /// The target ranges.
    pub(super) fn target(&self) -> Vec<IpNet> {
        self.settings.changed().of(self.goal).clone()
    }

    /// The source ranges.
    pub(super) fn source(&self) -> Vec<IpNet> {
        self.settings.changed().of(self.goal.other()).clone()
    }

    /// Whether a range other than the covers of single addresses still assigns source addresses.
    pub(super) fn is_open(&self) -> bool {
        let source = self.source();
        let mut ranges = self.ranges.iter();
        ranges.any(|range| range.is_open_to_all(&source, self.kept))
    }

    /// Whether the default range has its final state.
    pub(super) fn is_default_there(&self) -> bool {
        let wanted = self.settings.defaults();
        self.default_range()
            .is_some_and(|range| range.ready && !range.terminating && range.ranges == *wanted.of(self.goal))
    }
}

impl ServiceView {
    /// Whether it continues during a hold: it has no address, or the user wants it back.
    pub(super) fn ignores_hold(&self) -> bool {
        self.has_no_address || self.is_rolled_back
    }

    pub(super) fn step(&self) -> Option<(String, exchange::Step)> {
        match &self.decision {
            Some(Decision::Run(step)) => Some((self.name.clone(), *step)),
            Some(Decision::Wait(_) | Decision::Settled | Decision::Halt(_)) | None => None,
        }
    }

    pub(super) fn halt(&self) -> Option<&Halt> {
        match &self.decision {
            Some(Decision::Halt(halt)) => Some(halt),
            Some(Decision::Run(_) | Decision::Wait(_) | Decision::Settled) | None => None,
        }
    }

    pub(super) fn is_in_progress(&self) -> bool {
        self.has_no_address || matches!(&self.decision, Some(Decision::Run(_) | Decision::Wait(_)))
    }

    /// Whether it has its target address, and the next step updates one of its helpers.
    pub(super) fn updates_helper(&self) -> bool {
        let step = matches!(
            self.decision,
            Some(Decision::Run(
                exchange::Step::Refresh(_) | exchange::Step::Copy(_)
            ))
        );
        self.has_target_address && step
    }

    /// Whether no request depends on its next step.
    pub(super) fn is_light(&self) -> bool {
        let removes = Some(Decision::Run(exchange::Step::Remove(Role::Address(Side::Old))));
        let removes_other = Some(Decision::Run(exchange::Step::Remove(Role::Address(Side::New))));
        !self.is_served
            || (self.has_target_address && (self.decision == removes || self.decision == removes_other))
    }
}
