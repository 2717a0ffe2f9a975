//! Load balancers with source addresses: those that keep them, and those that their owners have to change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::migration::ServiceCidrStatus;
use engine::owner::Owner;
use service_cidr::class::Class;
use service_cidr::covers::Kept;
use service_cidr::entry::{self, Entry};
use service_cidr::host::MAX_EXCLUDED;
use service_cidr::side::Side;

use super::super::pass::Pass;
use super::services::is_late;

/// A load balancer, and its source addresses.
pub(super) struct LoadBalancer<'index> {
    pub(super) service: &'index Entry,
    pub(super) addresses: Vec<IpAddr>,
}

impl LoadBalancer<'_> {
    pub(super) fn line(&self) -> String {
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
pub(super) fn split_at_limit<'keepers, 'index>(
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

impl Pass<'_> {
    /// Addresses of load balancers that stay.
    pub(super) fn kept(&self, known: &ServiceCidrStatus) -> Kept {
        let keepers = self.keepers(known).into_iter();
        Kept::of(keepers.flat_map(|keeper| keeper.addresses).collect())
    }

    /// Whether load balancers keep their source addresses. A rollback asks no tenant to move clients to another Service.
    pub(super) fn keeps_load_balancers(&self) -> bool {
        self.kind.keep_load_balancers || self.goal == Side::Old
    }

    /// Load balancers that stay.
    pub(super) fn keepers(&self, known: &ServiceCidrStatus) -> Vec<LoadBalancer<'_>> {
        if self.keeps_load_balancers() {
            self.load_balancers(known)
        } else {
            Vec::new()
        }
    }

    /// Load balancers with a source address, the oldest first.
    pub(super) fn load_balancers(&self, known: &ServiceCidrStatus) -> Vec<LoadBalancer<'_>> {
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
    pub(super) fn awaited_load_balancers(&self, known: &ServiceCidrStatus) -> Vec<LoadBalancer<'_>> {
        if self.keeps_load_balancers() {
            return Vec::new();
        }
        let mut found = self.load_balancers(known);
        found.retain(|found| self.ends_the_soak(found.service, known));
        found
    }

    /// Whether a load balancer is waited for only at the end: it is late, or it is a tenant's. A tenant may create a load
    /// balancer at any time.
    pub(super) fn ends_the_soak(&self, balancer: &Entry, known: &ServiceCidrStatus) -> bool {
        let owner = Owner::of(Some(&balancer.namespace), &[&self.context.namespace]);
        is_late(balancer, known) || owner.tenant().is_some()
    }

    /// Namespaces whose pods would get a source address at each start, for now.
    pub(super) fn namespaces_to_wait_for(&self, known: &ServiceCidrStatus) -> BTreeSet<&str> {
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
}
