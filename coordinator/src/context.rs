//! What every part of a pass needs: clients, names, metrics, the teller, and which objects cannot be written.

use std::sync::Arc;

use kube::{Client, Config};

use crate::metrics::Metrics;
use crate::obstacles::Obstacles;
use crate::tell::Teller;
use crate::words::Pace;

/// What every part of a pass needs. Nothing here is a decision.
pub struct Context {
    /// Client of every read and write; each request has a time limit.
    pub client: Client,
    /// Client of watches, which are long.
    pub watching: Client,
    /// How the API server is reached, and who asks.
    pub config: Config,
    /// Namespace of the coordinator, its Lease and its probe pods.
    pub namespace: String,
    /// Node that the coordinator runs on.
    pub node_name: String,
    /// Image of the agent, for probe pods.
    pub agent_image: String,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Events.
    pub teller: Teller,
    /// Objects whose last write failed.
    pub obstacles: Obstacles,
    /// How soon and how often words are written.
    pub pace: Pace,
}
