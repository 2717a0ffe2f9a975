//! The kinds of migration as the agent drives them: one folder and one `mod` line for each. The loop names no kind.

pub mod calico_datastore;
#[cfg(feature = "example-kind")]
pub mod example;
pub mod flannel_to_calico;
pub mod pod_cidr;
pub mod service_cidr;

use std::path::PathBuf;
use std::sync::Arc;

use api::FailureCategory;
use api::Kind;
use api::node_migration::{Failure, NodeMigrationSpec, NodeMigrationStatus};
use engine::check::Check;
use engine::host_report::{HostReport, Urgency};
use jiff::Timestamp;
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::health::Health;
use crate::host::folders::FolderWatch;
use crate::host::paths::Paths;
use crate::metrics::Metrics;
use crate::probe::LEAST_MTU;
use crate::report::Report;
use crate::watched_object::WatchedObject;

/// What the kinds share on a host.
#[derive(Clone, Debug)]
pub struct HostParts {
    /// Name of the node.
    pub node: String,
    /// Folders of the host.
    pub paths: Paths,
    /// Folder of the journal.
    pub state: PathBuf,
    /// UID of the agent's own pod.
    pub pod_uid: String,
    /// Address of the API server and credentials of the agent.
    pub config: Config,
    /// Folders whose changes cause an observation.
    pub folders: Arc<FolderWatch>,
    /// Metrics of the agent.
    pub metrics: Arc<Metrics>,
    /// Health of the agent.
    pub health: Arc<Health>,
}

/// How closely the agent follows the `NodeMigration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attention {
    /// The coordinator waits for nothing from this node.
    Idle,
    /// The coordinator needs observations of this node.
    Observed,
    /// The host changes.
    Changing,
}

#[expect(async_fn_in_trait, reason = "the host thread runs one kind at a time")]
/// One kind of migration on the host.
pub trait AgentKind: Sized {
    /// The part of this kind in the spec of the `NodeMigration`.
    type Spec;
    /// What the kind watches in the API beside the `NodeMigration`.
    type Watched: Send + 'static;

    /// Starts the watches of the API. A task that ends is an error.
    fn watch(
        client: &Client,
        goals: &watch::Receiver<WatchedObject>,
    ) -> (Self::Watched, Option<JoinHandle<()>>);

    /// The kind without an observation, created on the host thread.
    ///
    /// # Errors
    ///
    /// The kernel gives no netlink socket.
    fn start(parts: &HostParts, watched: Self::Watched) -> anyhow::Result<Self>;

    /// Observes the host and works towards the spec. `goals` shows whether the spec has changed meanwhile.
    async fn work(&mut self, spec: &NodeMigrationSpec, goals: &watch::Receiver<WatchedObject>) -> Report;

    /// Another kind is requested: a host that this kind left between two networks is brought to one of them first. `None` if it
    /// was not.
    async fn take_over(&mut self, _goals: &watch::Receiver<WatchedObject>) -> Option<Report> {
        None
    }

    /// No kind is requested: the report about what this kind left on the host. `None` if this kind leaves nothing.
    async fn observe_remains(
        &mut self,
        _spec: Option<&NodeMigrationSpec>,
        _goals: &watch::Receiver<WatchedObject>,
    ) -> Option<Report> {
        None
    }

    /// This kind is not requested: removes what it keeps on the host and in memory.
    async fn release(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The host thread was suspended.
    fn record_suspension(&mut self) {}

    /// Waits until a new observation is needed although neither the host nor the spec has changed.
    async fn question_changed(&mut self) {
        std::future::pending::<()>().await;
    }

    /// The MTU of pods on this node; `None` if the settings do not say it.
    fn pod_mtu(_spec: &Self::Spec) -> Option<u32> {
        None
    }

    /// How closely the agent follows the `NodeMigration`.
    fn attention(_spec: &Self::Spec) -> Attention {
        Attention::Observed
    }
}

/// Defines [`Kinds`], [`Watched`] and what depends on every kind, from the registry.
macro_rules! kinds {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $field:ident $api_field:literal $default_name:literal,)+) => {
        /// Every kind on the host.
        #[derive(Debug)]
        pub struct Kinds {
            $($(#[cfg($($cfg)*)])? $field: $field::Agent,)+
        }

        /// What every kind watches in the API.
        pub struct Watched {
            $(
                $(#[cfg($($cfg)*)])?
                #[doc = concat!("What `", $api_field, "` watches.")]
                pub $field: <$field::Agent as AgentKind>::Watched,
            )+
        }

        impl Watched {
            /// Starts the watches. The tasks run until the process ends.
            pub fn start(
                client: &Client,
                goals: &watch::Receiver<WatchedObject>,
            ) -> (Self, Vec<JoinHandle<()>>) {
                let mut tasks = Vec::new();
                let watched = Self {
                    $($(#[cfg($($cfg)*)])? $field: {
                        let (watched, task) = <$field::Agent as AgentKind>::watch(client, goals);
                        tasks.extend(task);
                        watched
                    },)+
                };
                (watched, tasks)
            }
        }

        impl Kinds {
            /// Nothing has been observed yet.
            ///
            /// # Errors
            ///
            /// The kernel gives no netlink socket.
            pub fn start(parts: &HostParts, watched: Watched) -> anyhow::Result<Self> {
                Ok(Self {
                    $($(#[cfg($($cfg)*)])? $field: AgentKind::start(parts, watched.$field)?,)+
                })
            }

            /// The host thread was suspended.
            pub fn record_suspension(&mut self) {
                $($(#[cfg($($cfg)*)])? { self.$field.record_suspension(); })+
            }

            /// Waits until a kind needs a new observation although neither the host nor the spec has changed.
            pub async fn question_changed(&mut self) {
                futures::future::select_all([
                    $($(#[cfg($($cfg)*)])? { Box::pin(self.$field.question_changed()) as futures::future::LocalBoxFuture<'_, ()> },)+
                ])
                .await;
            }

            /// The report of a kind that has left the host between two networks, and that is not requested.
            async fn take_over(
                &mut self,
                requested: Option<Kind>,
                goals: &watch::Receiver<WatchedObject>,
            ) -> Option<Report> {
                $($(#[cfg($($cfg)*)])? {
                    if requested != Some(Kind::$kind)
                        && let Some(report) = self.$field.take_over(goals).await
                    {
                        return Some(report);
                    }
                })+
                None
            }

            /// The report about what kinds have left on the host.
            async fn observe_remains(
                &mut self,
                spec: Option<&NodeMigrationSpec>,
                goals: &watch::Receiver<WatchedObject>,
            ) -> Report {
                $($(#[cfg($($cfg)*)])? {
                    if let Some(report) = self.$field.observe_remains(spec, goals).await {
                        return report;
                    }
                })+
                Report::default()
            }

            /// The report of the requested kind.
            async fn work_of(
                &mut self,
                kind: Kind,
                spec: &NodeMigrationSpec,
                goals: &watch::Receiver<WatchedObject>,
            ) -> Report {
                match kind {
                    $($(#[cfg($($cfg)*)])? Kind::$kind => self.$field.work(spec, goals).await,)+
                }
            }

            /// Removes what the other kinds keep on the host. The first failure is added to the report.
            async fn release_others(&mut self, requested: Option<Kind>, report: &mut Report) {
                $($(#[cfg($($cfg)*)])? {
                    if requested != Some(Kind::$kind)
                        && let Err(failure) = self.$field.release().await
                    {
                        report.failure.get_or_insert(failure);
                    }
                })+
            }
        }

        /// The MTU of pods on this node; the smallest possible one while the settings do not say it.
        pub fn pod_mtu(spec: Option<&NodeMigrationSpec>) -> u32 {
            let of_kinds = |spec: &NodeMigrationSpec| {
                $($(#[cfg($($cfg)*)])? {
                    if let Some(mtu) = spec.$field.as_ref().and_then(<$field::Agent as AgentKind>::pod_mtu) {
                        return Some(mtu);
                    }
                })+
                None
            };
            spec.and_then(of_kinds).unwrap_or(LEAST_MTU)
        }

        /// How closely the agent follows the `NodeMigration`.
        pub fn attention(spec: &NodeMigrationSpec) -> Attention {
            let mut attention = Attention::Idle;
            $($(#[cfg($($cfg)*)])? {
                if let Some(of_kind) = spec.$field.as_ref().map(<$field::Agent as AgentKind>::attention) {
                    attention = attention.max(of_kind);
                }
            })+
            attention
        }

        /// How soon the reports of the kinds in `new` are needed.
        pub fn urgency(spec: &NodeMigrationSpec, old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> Urgency {
            let mut urgency = Urgency::Late;
            $($(#[cfg($($cfg)*)])? {
                urgency = urgency.min(match (&old.$field, &new.$field) {
                    (None, None) => Urgency::Late,
                    (Some(old), Some(new)) => new.urgency(old, spec.$field.as_ref()),
                    (None, Some(_)) | (Some(_), None) => Urgency::Now,
                });
            })+
            urgency
        }

        /// Takes over each time of the old status whose value has not changed.
        pub fn keep_times(new: &mut NodeMigrationStatus, old: &NodeMigrationStatus, now: Timestamp) {
            $($(#[cfg($($cfg)*)])? {
                if let Some(new) = &mut new.$field {
                    new.keep_times(old.$field.as_ref(), now);
                }
            })+
        }

        /// The status without what the kinds report.
        pub fn without_kinds(status: &NodeMigrationStatus) -> NodeMigrationStatus {
            NodeMigrationStatus {
                $($(#[cfg($($cfg)*)])? $field: None,)+
                ..status.clone()
            }
        }

        /// Number of objects of old networks on the host, whatever the kind of the migration.
        pub fn count_leftovers(status: &NodeMigrationStatus) -> usize {
            let mut count = 0;
            $($(#[cfg($($cfg)*)])? { count += status.$field.as_ref().map_or(0, HostReport::count_leftovers); })+
            count
        }

        /// Names of the phases of every kind.
        pub fn phases() -> Vec<&'static str> {
            let mut names = Vec::new();
            $($(#[cfg($($cfg)*)])? { names.extend(<::$field::api::NodeStatus as HostReport>::phases()); })+
            names
        }

        /// The phase that a kind reports; `None` while it is unknown.
        pub fn phase(status: &NodeMigrationStatus) -> Option<&'static str> {
            $($(#[cfg($($cfg)*)])? {
                if let Some(phase) = status.$field.as_ref().and_then(HostReport::phase) {
                    return Some(phase);
                }
            })+
            None
        }

        /// Names of the checks that the kinds make on the host.
        pub fn check_names() -> Vec<&'static str> {
            let mut names = Vec::new();
            $($(#[cfg($($cfg)*)])? { names.extend(<::$field::api::NodeStatus as HostReport>::check_names()); })+
            names
        }

        /// The checks that the kinds have made on the host.
        pub fn checks(status: &NodeMigrationStatus) -> Vec<&Check> {
            let mut checks = Vec::new();
            $($(#[cfg($($cfg)*)])? { checks.extend(status.$field.as_ref().map_or(&[][..], HostReport::checks)); })+
            checks
        }
    };
}

api::for_each_kind!(kinds);

impl Kinds {
    /// Observes the host and works towards the spec. `goals` shows whether the spec has changed meanwhile.
    pub async fn work(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Report {
        let requested = spec.map_or(Ok(None), NodeMigrationSpec::kind);
        let kind = requested.as_ref().copied().unwrap_or_default();
        // A spec of another kind does not say how to continue a host that is between two networks.
        if requested != Ok(None)
            && let Some(report) = self.take_over(kind, goals).await
        {
            return report;
        }
        let mut report = match (requested, spec) {
            (Ok(Some(kind)), Some(spec)) => self.work_of(kind, spec, goals).await,
            (Ok(_), spec) => self.observe_remains(spec, goals).await,
            (Err(_), _) => return contradiction(),
        };
        // The spec is not known yet: an agent that starts in the middle of a migration removes nothing.
        if !matches!(*goals.borrow(), WatchedObject::Unknown) {
            self.release_others(kind, &mut report).await;
        }
        report
    }
}

/// The report about a spec with several kinds.
fn contradiction() -> Report {
    let message = format!(
        "more than one of {} is set, needed exactly one; the agent observes and changes nothing",
        api::kind::fields()
    );
    Report {
        message: message.clone(),
        failure: Some(Failure {
            category: FailureCategory::Contradiction.into(),
            message,
            retriable: false,
        }),
        ..Report::default()
    }
}

#[cfg(test)]
mod tests;
