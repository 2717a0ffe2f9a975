//! flannel VXLAN → Calico VXLAN on this host: reads the host into facts, and changes it step by step; the journal is written
//! before each step.

pub mod apply;
pub mod facts;
mod inactivity;
pub mod journal;
pub mod observe;
pub mod work;

use ::flannel_to_calico::api::NodeSpec;
use ::flannel_to_calico::phase::Goal;
use api::node_migration::NodeMigrationSpec;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::work::Worker;
use crate::kinds::{AgentKind, Attention, HostParts};
use crate::report::Report;
use crate::watched_object::WatchedObject;

/// The kind on this host.
#[derive(Debug)]
pub struct Agent(Worker);

impl AgentKind for Agent {
    type Spec = NodeSpec;
    type Watched = ();

    fn watch(_client: &Client, _goals: &watch::Receiver<WatchedObject>) -> ((), Option<JoinHandle<()>>) {
        ((), None)
    }

    fn start(parts: &HostParts, (): ()) -> anyhow::Result<Self> {
        Ok(Self(Worker::start(parts)?))
    }

    async fn work(&mut self, spec: &NodeMigrationSpec, goals: &watch::Receiver<WatchedObject>) -> Report {
        self.0.work(Some(spec), goals).await
    }

    async fn take_over(&mut self, goals: &watch::Receiver<WatchedObject>) -> Option<Report> {
        if !self.0.may_be_between() {
            return None;
        }
        let report = self.0.work(None, goals).await;
        self.0.is_between().then_some(report)
    }

    /// The journal may have a goal although the spec has none any more.
    async fn observe_remains(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Option<Report> {
        Some(self.0.work(spec, goals).await)
    }

    fn record_suspension(&mut self) {
        self.0.record_suspension();
    }

    async fn question_changed(&mut self) {
        self.0.process_ended().await;
    }

    fn pod_mtu(spec: &NodeSpec) -> Option<u32> {
        spec.host
            .as_ref()
            .map(::flannel_to_calico::host::HostSettings::pod_mtu)
    }

    fn attention(spec: &NodeSpec) -> Attention {
        match spec.goal {
            Goal::Hold => Attention::Idle,
            _ => Attention::Changing,
        }
    }
}
