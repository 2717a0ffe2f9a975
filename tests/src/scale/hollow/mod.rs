//! Hollow agents: many agents in one program, without hosts. Each has a model of its host, which follows the pods that the API
//! shows on its node. What is done on it is decided by the agent's own code, and reported by the agent's own code.
//!
//! Played are: what a host looks like, what steps and calico-node do to it, which routes Felix lays, which rules kube-proxy has, what the kubelet tells new
//! pods, and that every probe is answered. One watch of all objects stands for one watch of each agent.

mod agent;
mod flannel_to_calico;
mod fleet;
mod host;
mod pod_cidr;
mod pods;
mod service_cidr;
mod steps;

pub use fleet::Fleet;

/// Who the hollow agents are for the API server.
pub const USER: &str = "replumb-hollow";
