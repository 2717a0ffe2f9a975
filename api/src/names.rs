//! Every label, annotation, field manager, port and environment variable, each once.

/// API group of our own resources.
pub const GROUP: &str = "replumb.dev";
/// Version of our own resources.
pub const VERSION: &str = "v1alpha1";

/// Namespace that the manifests install into.
pub const NAMESPACE: &str = "replumb-system";
/// Name of the agent's `DaemonSet` and `ServiceAccount`.
pub const AGENT: &str = "replumb-agent";
/// Name of the coordinator's `Deployment`, `ServiceAccount` and Lease.
pub const COORDINATOR: &str = "replumb-coordinator";
/// Field manager of every write of the coordinator.
pub const COORDINATOR_FIELD_MANAGER: &str = "replumb-coordinator";
/// Field manager of every write of an agent.
pub const AGENT_FIELD_MANAGER: &str = "replumb-agent";
/// Field manager of the command line tool.
pub const CLI_FIELD_MANAGER: &str = "kubectl-replumb";

/// Calico's own label: which network a node is on. Calico's IPAM garbage collector spares nodes by it.
pub const NODE_NETWORK_LABEL: &str = "projectcalico.org/node-network-during-migration";
/// Value of [`NODE_NETWORK_LABEL`]: flannel's pods run here.
pub const NETWORK_FLANNEL: &str = "flannel";
/// Value of [`NODE_NETWORK_LABEL`]: neither runs here.
pub const NETWORK_NONE: &str = "none";
/// Value of [`NODE_NETWORK_LABEL`]: Calico's pods run here.
pub const NETWORK_CALICO: &str = "calico";

/// Annotation on a Node that we cordoned: name of the Migration. A node that somebody else had cordoned
/// does not carry it, and is never uncordoned.
pub const CORDONED_BY_ANNOTATION: &str = "replumb.dev/cordoned-by";
/// Annotation on a Node for which Calico's objects are written: UID of the Migration. Written last.
pub const PREPARED_BY_ANNOTATION: &str = "replumb.dev/prepared-by";
/// Annotation on a Node in work: the cluster autoscaler must not remove it meanwhile.
pub const SCALE_DOWN_DISABLED_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Annotation that remembers that [`SCALE_DOWN_DISABLED_ANNOTATION`] is ours.
pub const SCALE_DOWN_OURS_ANNOTATION: &str = "replumb.dev/scale-down-disabled-by";

/// Label on a Node that was taken off one of the two pools while the range of pods changes; its value says off which.
pub const OFF_POOL_LABEL: &str = pod_cidr::pools::OFF_LABEL;

/// Label on a record: UID of the Migration that it belongs to.
pub const RECORD_OF_LABEL: &str = "replumb.dev/migration-uid";

/// Label on every pod of ours: which part of replumb it is.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Value of [`COMPONENT_LABEL`] on a pod that proves the pod network of its node.
pub const PROBE_COMPONENT: &str = "probe";

/// Value of [`COMPONENT_LABEL`] on a pod that sends and answers without pause.
pub const TRAFFIC_COMPONENT: &str = "traffic";
/// Label on such a pod: the network that it was made for, a value of [`NODE_NETWORK_LABEL`].
pub const TRAFFIC_NETWORK_LABEL: &str = "replumb.dev/network";
/// Service of the traffic pods.
pub const TRAFFIC_SERVICE: &str = "replumb-traffic";
/// Folder of the host in which the agent listens for traffic pods.
pub const RUN_DIRECTORY: &str = "/run/replumb";

/// Port of metrics and health on the agent (hostNetwork).
pub const AGENT_PORT: u16 = 9810;
/// Port of metrics and health on the coordinator (hostNetwork).
pub const COORDINATOR_PORT: u16 = 9811;
/// User and group of the probe pod: one that owns nothing.
pub const PROBE_USER: u32 = 65534;
/// Port on which a probe pod answers, UDP and TCP.
pub const PROBE_PORT: u16 = 9812;

/// Environment: address of the node that a pod runs on.
pub const HOST_ADDRESS_ENVIRONMENT: &str = "HOST_IP";
/// Environment: name of the node that a pod runs on.
pub const NODE_NAME_ENVIRONMENT: &str = "NODE_NAME";
