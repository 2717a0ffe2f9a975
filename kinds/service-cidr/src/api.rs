//! The fields of this kind in the API.

use std::collections::BTreeMap;
use std::net::IpAddr;

use engine::kind_fields::KindFields;
use engine::stage::{CurrentStage, FinishedStage};
use ipnet::IpNet;
use jiff::Timestamp;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::assignment::AssignedAddresses;
use crate::settings::Settings;
use crate::side::Sides;
use crate::step::Stage;

pub use self::{ServiceCidr as Spec, ServiceCidrStatus as Status};
pub use crate::host::{HostFacts as NodeStatus, HostSettings as NodeSpec};

/// `serviceCidr` moves the `ClusterIPs` of Services to a new range. The old and the new address of a Service both answer until
/// the old addresses are released at the end. Immutable, except `rollbackServices`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.to.all(range, isCIDR(range) && cidr(range) == cidr(range).masked())")
    .message("to must be ranges without host bits, such as 172.30.0.0/16"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceCidr {
    /// `to` is the list of new ranges for Services, in CIDR notation without host bits: one for each address family that changes.
    /// A range must not overlap the current range of its family, and the prefix length of an IPv6 range must be at least 64. 1 or
    /// 2 items of at most 43 characters.
    #[schemars(with = "Vec<ServiceRange>", length(min = 1, max = 2))]
    pub to: Vec<IpNet>,
    /// `keepLoadBalancers` keeps the `ClusterIPs` of Services of type `LoadBalancer`. A change of these addresses would make the
    /// cloud provider delete the load balancer. At most 4000 addresses can be kept. If false, the migration waits, before it
    /// releases the old addresses, until the owners of these Services have replaced them. Defaults to true.
    #[serde(default = "default_true")]
    pub keep_load_balancers: bool,
    /// `order` is a list of Services, as `namespace/name`, that change before all others, in this order. Service
    /// `default/kubernetes` and the DNS Services always change first. Each Service must exist when the checks run. At most 1000
    /// items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub order: Vec<String>,
    /// `servicesAtOnce` is the maximum number of Services that change their addresses at the same time. Services without
    /// endpoints, and Services that were created during the migration, have limits of their own. Every batch needs reports from
    /// the agents of all nodes: use a larger value for thousands of Services on hundreds of nodes. Defaults to 10. Minimum 1,
    /// maximum 250.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 250))]
    pub services_at_once: Option<u32>,
    /// `podsAtOnce` is the maximum number of pods that restart at the same time, over all workloads. Defaults to 5. Minimum 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pods_at_once: Option<u32>,
    /// `deleteBarePods` allows the eviction of pods without a controller, after all other pods. Evicted pods without a controller
    /// are not created again. Defaults to false.
    #[serde(default)]
    pub delete_bare_pods: bool,
    /// `soakSeconds` is how long the old addresses keep answering before they are released, in seconds. The time starts when no
    /// old address is in use any more or, with `gates.soak: Elapsed`, with stage Soak. A rollback does not wait for this time.
    /// Defaults to 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<u32>,
    /// `rollbackServices` is the list of Services, as `namespace/name`, to roll back to the addresses that they had before the
    /// migration. A Service keeps that address until its name is removed from the list. Applies until stage Close; after that, only
    /// `desired: Rollback` rolls back Services. The migration is paused while the list names a Service that cannot be rolled back.
    /// `kubectl replumb rollback --service` adds names, and `kubectl replumb resume` clears the list. At most 1000 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub rollback_services: Vec<String>,
}

impl KindFields for ServiceCidr {
    const CHANGEABLE: &'static [&'static str] = &["rollbackServices"];
}

fn default_true() -> bool {
    true
}

/// A range for Services, in CIDR notation without host bits. At most 43 characters.
#[derive(JsonSchema)]
#[schemars(transparent)]
struct ServiceRange(
    #[expect(dead_code, reason = "only the schema is used")]
    #[schemars(length(max = 43))]
    String,
);

/// `serviceCidr` is the state of a change of the Service range. Unset until its settings are known, and for other kinds. The
/// source range is the one that Services leave: the old range, or the new range during a rollback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceCidrStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: Settings,
    /// `stage` is the current stage. Unset before the first stage and after the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<CurrentStage<Stage>>,
    /// `history` is the list of finished stages, oldest first. At most 60 items; older ones are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FinishedStage<Stage>>,
    /// `addresses` is where earlier versions recorded the old and new addresses of Services, by `namespace/name`. Deprecated: the
    /// addresses are in `MigrationRecords` with `content: ServiceAddresses`. The coordinator moves entries there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, ServiceAddresses>,
    /// `servicesInOldRange` is the number of Services with an address in the old range, including Services that keep their
    /// address.
    #[serde(default)]
    pub services_in_old_range: u32,
    /// `servicesInNewRange` is the number of Services with an address in the new range.
    #[serde(default)]
    pub services_in_new_range: u32,
    /// `podsWithSourceAddresses` is the number of pods that received an address of the source range (the range that Services
    /// leave) at their start, in an environment variable or as name server. Unset until all agents have reported, and while the
    /// source range assigns addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_with_source_addresses: Option<u32>,
    /// `connectionsToSource` is the number of connections to addresses of the source range that the kernels of the nodes track.
    /// Unset until all agents have reported, and while the source range assigns addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_to_source: Option<u32>,
    /// `targetAnnouncedSince` is the time since which pods that start receive no address of the source range: the source range
    /// assigns no addresses, and no kubelet and no object of the cluster names one. Unset otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub target_announced_since: Option<Timestamp>,
    /// `sourceUnusedSince` is the time since which no address of the source range has been in use. Unset while any is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub source_unused_since: Option<Timestamp>,
    /// `soakStartedAt` is the time at which stage Soak was first reached in the current direction. Unset before. With
    /// `gates.soak: Elapsed`, the time of `soakSeconds` starts here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub soak_started_at: Option<Timestamp>,
    /// `exchangeStartedAt` is the time at which Services started to change their addresses in the current direction. Unset
    /// before. Services that were created later do not delay the closing of the source range, and change their addresses after
    /// that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub exchange_started_at: Option<Timestamp>,
}

impl ServiceCidrStatus {
    /// The status of a migration that has not started.
    pub fn of(settings: Settings) -> Self {
        Self {
            settings,
            stage: None,
            history: Vec::new(),
            addresses: BTreeMap::new(),
            services_in_old_range: 0,
            services_in_new_range: 0,
            pods_with_source_addresses: None,
            connections_to_source: None,
            target_announced_since: None,
            source_unused_since: None,
            soak_started_at: None,
            exchange_started_at: None,
        }
    }

    /// The addresses in `addresses`, in the form that decisions use.
    pub fn written_here(&self) -> AssignedAddresses {
        let sides = |both: &ServiceAddresses| Sides {
            old: both.old.clone(),
            new: both.new.clone(),
        };
        self.addresses
            .iter()
            .map(|(name, both)| (name.clone(), sides(both)))
            .collect()
    }
}

/// `ServiceAddresses` are the addresses of one Service that change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAddresses {
    /// `old` is the list of addresses before the migration, in the order of the address families of the Service.
    #[schemars(with = "Vec<String>")]
    pub old: Vec<IpAddr>,
    /// `new` is the list of addresses in the new range, in the same order.
    #[schemars(with = "Vec<String>")]
    pub new: Vec<IpAddr>,
}
