//! Shared by all parts of a pass: clients, names, metrics, the recorder of Events, and objects that cannot be written.

use std::sync::Arc;

use kube::{Client, Config};

use crate::events::EventRecorder;
use crate::metrics::Metrics;
use crate::obstacles::Obstacles;
use crate::words::MessagePace;

/// Shared by all parts of a pass. No field is a decision.
pub struct Context {
    /// Client for reads and writes; each request has a time limit.
    pub client: Client,
    /// Client for work beside the passes, with a rate of its own: such work does not delay a pass.
    pub background: Client,
    /// Client for watches, without a limit on reads.
    pub watching: Client,
    /// Address and credentials of the API server.
    pub config: Config,
    /// Whether other servers than the API server may be asked: etcd, the kubelets of a cluster. Not for a cluster in memory.
    pub asks_other_servers: bool,
    /// Namespace of the coordinator, its Lease and its probe pods.
    pub namespace: String,
    /// Node of the coordinator.
    pub node_name: String,
    /// Image of the agent, for probe pods.
    pub agent_image: String,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Recorder of Events.
    pub events: EventRecorder,
    /// Objects whose last write failed.
    pub obstacles: Obstacles,
    /// Delay and interval of messages.
    pub pace: MessagePace,
}
