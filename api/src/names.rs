//! Names that more than one program uses: labels, annotations, field managers, ports and environment variables.

/// API group of the custom resources.
pub const GROUP: &str = "replumb.dev";
/// API version of the custom resources.
pub const VERSION: &str = "v1alpha1";

/// Namespace in the manifests.
pub const NAMESPACE: &str = "replumb-system";
/// Name of the agent's `DaemonSet` and `ServiceAccount`.
pub const AGENT: &str = "replumb-agent";
/// Name of the coordinator's `Deployment`, `ServiceAccount` and Lease.
pub const COORDINATOR: &str = "replumb-coordinator";
/// Field manager of the coordinator.
pub const COORDINATOR_FIELD_MANAGER: &str = "replumb-coordinator";
/// Field manager of the agents.
pub const AGENT_FIELD_MANAGER: &str = "replumb-agent";
/// Field manager of the command line tool.
pub const CLI_FIELD_MANAGER: &str = "kubectl-replumb";

/// Label on a Node that says which network the node is on. Calico defines it: the IPAM garbage collector of Calico skips nodes
/// with this label.
pub const NODE_NETWORK_LABEL: &str = "projectcalico.org/node-network-during-migration";
/// Value of [`NODE_NETWORK_LABEL`]: the pods of flannel run on the node.
pub const NETWORK_FLANNEL: &str = "flannel";
/// Value of [`NODE_NETWORK_LABEL`]: neither network runs on the node.
pub const NETWORK_NONE: &str = "none";
/// Value of [`NODE_NETWORK_LABEL`]: the pods of Calico run on the node.
pub const NETWORK_CALICO: &str = "calico";

/// Annotation on a Node that the coordinator has cordoned: name of the Migration. A Node that was already cordoned does not get
/// the annotation, and is not uncordoned.
pub const CORDONED_BY_ANNOTATION: &str = "replumb.dev/cordoned-by";
/// Annotation on a Node whose objects in Calico's datastore are complete: UID of the Migration.
pub const PREPARED_BY_ANNOTATION: &str = "replumb.dev/prepared-by";
/// Annotation on a Node in progress. The cluster autoscaler does not remove Nodes with this annotation.
pub const SCALE_DOWN_DISABLED_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Annotation on a Node whose [`SCALE_DOWN_DISABLED_ANNOTATION`] was set by the coordinator: name of the Migration.
pub const SCALE_DOWN_DISABLED_BY_ANNOTATION: &str = "replumb.dev/scale-down-disabled-by";

/// Label on a Node that was excluded from one of the two pools while the pod range changes. The value names the pool.
pub const OFF_POOL_LABEL: &str = pod_cidr::pools::OFF_LABEL;

/// Label on a `MigrationRecord`: UID of the Migration.
pub const RECORD_OF_LABEL: &str = "replumb.dev/migration-uid";

/// Label on all pods of replumb: the component.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Value of [`COMPONENT_LABEL`] of probe pods, which test the pod network of their node.
pub const PROBE_COMPONENT: &str = "probe";

/// Value of [`COMPONENT_LABEL`] of traffic pods, which send and answer probes continuously.
pub const TRAFFIC_COMPONENT: &str = "traffic";
/// Label on a traffic pod: the network that it was created for.
pub const TRAFFIC_NETWORK_LABEL: &str = "replumb.dev/network";
/// Service of the traffic pods.
pub const TRAFFIC_SERVICE: &str = "replumb-traffic";
/// Directory on the host of the socket on which the agent accepts connections of traffic pods.
pub const RUN_DIRECTORY: &str = "/run/replumb";

/// Port of the agent for metrics and health checks (hostNetwork).
pub const AGENT_PORT: u16 = 9810;
/// Port of the coordinator for metrics and health checks (hostNetwork).
pub const COORDINATOR_PORT: u16 = 9811;
/// User and group ID of probe pods: `nobody`.
pub const PROBE_USER: u32 = 65534;
/// UDP and TCP port on which probe pods answer.
pub const PROBE_PORT: u16 = 9812;

/// Environment variable with the address of the node of the pod.
pub const HOST_ADDRESS_ENVIRONMENT: &str = "HOST_IP";
/// Environment variable with the name of the node of the pod.
pub const NODE_NAME_ENVIRONMENT: &str = "NODE_NAME";
