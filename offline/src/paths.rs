//! Paths of collections in the API. `*` is every namespace.

/// Migrations.
pub const MIGRATIONS: &str = "/apis/replumb.dev/v1alpha1/migrations";
/// The objects of nodes.
pub const NODE_MIGRATIONS: &str = "/apis/replumb.dev/v1alpha1/nodemigrations";
/// Nodes.
pub const NODES: &str = "/api/v1/nodes";
/// Pods.
pub const PODS: &str = "/api/v1/namespaces/*/pods";
/// `DaemonSet`s.
pub const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/*/daemonsets";
