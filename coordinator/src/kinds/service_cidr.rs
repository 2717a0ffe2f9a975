//! Another range for the Services: reads and writes of the cluster. The crate `service_cidr` decides the steps and their order.
//!
//! `advance` makes a pass: `observe` reads, `view` has what the decision depends on, `apply` runs one step, `report` writes the
//! status. Forward and back are the same procedure between two ranges.

mod adopt;
mod advance;
mod answers;
mod api_servers;
pub mod apply;
pub mod assigned_addresses;
mod dry_run;
mod gate;
mod kept_decisions;
mod knowledge;
mod lagging;
mod mentions;
mod objects;
mod observe;
pub mod observed;
mod pass;
mod question;
mod quotas;
mod read_cache;
mod report;
#[cfg(test)]
mod scenarios;
pub mod service_index;
pub mod view;
pub mod whole_objects;

pub use read_cache::ExchangeTimes;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::migration::{ServiceCidr, ServiceCidrStatus};
use api::traffic::TrafficGate;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::cluster::silent_nodes;
use engine::document::Document;
use engine::reason::Reason;
use engine::words::number;
use memory_api::Objects;
use service_cidr::assignment::{self, AssignedAddresses, AssignmentInputs};
use service_cidr::checks::{self, CheckPolicy};
use service_cidr::detect::detect;
use service_cidr::document::{Options, document};
use service_cidr::entry::Entry;
use service_cidr::facts::ClusterFacts;
use service_cidr::settings::Settings;
use service_cidr::side::Side;

use self::service_index::ServiceStore;
use crate::cache::{Cache, OptionalWatches};
use crate::context::Context;
use crate::kind::Kind;
use crate::kind_stores::KindStores;
use crate::limits;
use crate::memory::Memory;
use crate::memory_objects::read;
use crate::pass_error::PassError;
use crate::staged::settings_gone;
use crate::unready_before_start::{self, UNREADY_BEFORE_START};
use crate::unused_fields::SpecField;

pub use read_cache::ReadCache;

/// Default time for which both addresses answer at the end.
const SOAK_SECONDS: u32 = 24 * 60 * 60;
/// Default number of Services that exchange their addresses at the same time.
const SERVICES_AT_ONCE: u32 = 10;

/// Time for which both addresses answer after the last use of an old address.
fn soak_seconds(kind: &ServiceCidr) -> u32 {
    kind.soak_seconds.unwrap_or(SOAK_SECONDS)
}

fn services_at_once(kind: &ServiceCidr) -> usize {
    usize::try_from(kind.services_at_once.unwrap_or(SERVICES_AT_ONCE)).unwrap_or(1)
}

impl Kind for ServiceCidr {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError> {
        let left = observe::default_ranges(context).await?;
        let look = adopt::settings_before_detection(&left, &self.to);
        Ok(adopt::adopt(context, cache, migration, &look).await?)
    }

    async fn observe(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, PassError> {
        Box::pin(observe::cluster(
            context,
            cache,
            memory,
            migration,
            node_migrations,
            &self.to,
        ))
        .await
    }

    fn silent(&self, facts: &ClusterFacts) -> Vec<String> {
        silent_nodes(&facts.nodes, &facts.hosts)
    }

    fn unfinished(&self, facts: &ClusterFacts) -> Option<String> {
        let untried = facts.untried_before;
        (untried > 0).then(|| {
            let services = number(untried, "Service", "Services");
            format!("trying each write on the API server by a dry run: {services} to go")
        })
    }

    fn check(&self, migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        let settings = match detect(&self.to, facts) {
            Ok(settings) => settings,
            Err(checks) => return (None, checks),
        };
        let policy = CheckPolicy {
            permissions: limits::permissions(migration),
            on_blocked: limits::on_blocked(migration),
            delete_bare_pods: self.delete_bare_pods,
            keep_load_balancers: self.keep_load_balancers,
            order: self.order.clone(),
            services_at_once: services_at_once(self),
            is_unwatched: migration.spec.gates.traffic == TrafficGate::Ignore,
        };
        let found = checks::check(&settings, facts, &policy);
        (Some(settings), found)
    }

    fn is_judged_offline() -> bool {
        // Each API server is asked for its flag and its certificate.
        false
    }

    fn fill_stores(objects: &Objects, stores: &KindStores) -> anyhow::Result<()> {
        stores.put(ServiceStore::of(
            read(objects, "/api/v1/namespaces/*/services/")?,
            read(objects, "/apis/discovery.k8s.io/v1/namespaces/*/endpointslices/")?,
        ));
        Ok(())
    }

    fn watches(&self) -> OptionalWatches {
        OptionalWatches {
            of_kind: Some(TypeId::of::<ServiceStore>()),
            workloads: true,
        }
    }

    fn uses(&self, field: SpecField) -> bool {
        match field {
            SpecField::GracePeriod
            | SpecField::OnBlocked
            | SpecField::EmptyDirData
            | SpecField::Force
            | SpecField::SoakGate => true,
            SpecField::MaxUnavailable
            | SpecField::CanaryNodes
            | SpecField::CanarySoak
            | SpecField::Interval
            | SpecField::SourceAddressGate
            | SpecField::DrainTimeout => false,
        }
    }

    fn document(&self, settings: &Settings, facts: &ClusterFacts, _coordinator_node: &str) -> Document {
        let services: Vec<Entry> = facts.services.iter().map(Entry::of).collect();
        let holders: BTreeMap<IpAddr, &Entry> = services
            .iter()
            .flat_map(|service| service.addresses.iter().map(move |address| (*address, service)))
            .collect();
        let ground = AssignmentInputs {
            goal: Side::New,
            settings,
            since: None,
            holder: &|address| holders.get(address).copied(),
        };
        // A check has refused a range without room.
        let booked = assignment::assign_addresses(&AssignedAddresses::new(), &services, &ground);
        let options = Options {
            book: &booked.book,
            order: &self.order,
            services_at_once: services_at_once(self),
            soak_seconds: soak_seconds(self),
            keep_load_balancers: self.keep_load_balancers,
        };
        document(settings, facts, &options)
    }

    fn save_settings(&self, settings: Settings, _facts: &Self::Facts, status: &mut MigrationStatus) {
        status.service_cidr = Some(ServiceCidrStatus::of(settings));
    }

    async fn saved_state(
        &self,
        _context: &Context,
        cache: &Cache,
        _migration: &Migration,
        _facts: &Self::Facts,
    ) -> Result<BTreeMap<String, String>, PassError> {
        Ok(BTreeMap::from([(
            UNREADY_BEFORE_START.to_owned(),
            unready_before_start::read(cache),
        )]))
    }

    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<Reason>, PassError> {
        let Some(known) = status.service_cidr.clone() else {
            settings_gone(status, "status.serviceCidr", "");
            return Ok(Vec::new());
        };
        let unready = match unready_before_start::parse(&status.saved_state) {
            Ok(unready) => unready,
            Err(what) => {
                settings_gone(status, &what, "");
                return Ok(Vec::new());
            }
        };
        Box::pin(advance::advance(
            context, cache, memory, migration, self, &unready, known, status,
        ))
        .await?;
        Ok(Vec::new())
    }
}

/// Addresses of a Service.
fn addresses_of(service: &serde_json::Value) -> Vec<IpAddr> {
    service_cidr::class::addresses(&service["spec"])
}
