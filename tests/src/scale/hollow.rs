//! Hollow agents: many agents in one program, without hosts. Each has a model of its host, which follows the pods
//! that the API reports on its node. The agent's own code decides the steps and writes the reports.
//!
//! Simulated are: the state of a host, the effects of steps and of calico-node on it, Felix's routes, kube-proxy's
//! rules, the kubelet's settings for new pods, and an answer to every probe. One watch of all objects replaces one
//! watch of each agent.

mod agent;
mod flannel_to_calico;
mod fleet;
mod host;
mod pod_cidr;
mod pods;
mod service_cidr;
mod steps;

pub use fleet::Fleet;

/// User name of the hollow agents.
pub const USER: &str = "replumb-hollow";
