//! Kubernetes' `NetworkPolicy` as Calico enforces it, with the data planes iptables and nftables.
//!
//! flannel enforces no policy. Under Calico the policies of a cluster begin to hold, pod by pod. [`evaluate()`] says what Calico
//! does with a connection that was seen under flannel: [`Verdict::Allowed`], [`Verdict::Refused`] with the policies that isolate
//! the pod, or [`Verdict::Unknown`]. An unclear fact never becomes a yes or a no.
//!
//! | module | holds |
//! |---|---|
//! | [`cluster`], [`pod`], [`settings`] | what a verdict depends on, in few bytes for each pod |
//! | [`rules`], [`selector`], [`cidr`] | policies, read from the API as Calico reads them |
//! | [`admin`] | policies of administrators, and Calico's own |
//! | [`flow`], [`conntrack`], [`connection`] | a connection as one node sees it: given, from connection tracking, or planned |
//! | [`mod@evaluate`], [`verdict`] | the decision |
//! | [`dormant`](mod@dormant) | policies that begin to hold, with the pods that each selects |
//! | [`class`], [`sketch`] | connections with the same verdict are one key; a bounded number of keys is kept |
//! | [`tally`], [`end`] | connections that nodes have seen, judged and summed up by workload |
//!
//! The semantics are those of Calico's source, v3.29 to v3.32: `libcalico-go/lib/backend/k8s/conversion` turns a policy into
//! Calico's rules, `felix/rules` turns these into chains. Kubernetes leaves some of it open: what is matched before or after
//! NAT, policies of `hostNetwork` pods, connections that are open when a policy arrives.
//!
//! Nothing here reads a clock, a file, a socket or an API; `clippy.toml` beside this crate bans them.

pub mod admin;
mod certainty;
pub mod cidr;
pub mod class;
pub mod cluster;
pub mod connection;
pub mod conntrack;
pub mod dormant;
pub mod end;
pub mod evaluate;
#[cfg(test)]
mod fixture;
pub mod flow;
pub mod name;
pub mod pod;
pub mod rules;
pub mod selector;
pub mod settings;
pub mod sketch;
pub mod tally;
pub mod verdict;

pub use admin::AdminPolicy;
pub use cluster::{Cluster, Facts, Node};
pub use connection::{Client, Connection, Route, forecast};
pub use dormant::dormant;
pub use end::End;
pub use evaluate::evaluate;
pub use flow::{Flow, Protocol, State};
pub use name::{ObjectKind, ObjectName};
pub use pod::Pod;
pub use rules::Policy;
pub use settings::Settings;
pub use tally::Tally;
pub use verdict::{AllowReason, Direction, RefuseReason, UnknownReason, Verdict};
