//! Observes the host and performs the steps that follow. Touches the host and the journal, never the API.

mod foreign;
mod orders;
mod report;
mod step;
mod taking;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use ::flannel_to_calico::api::NodeStatus;
use api::node_migration::{FinishedStep, NodeMigrationSpec};
use flannel_to_calico::host::{self, HostSettings, JournalState};
use flannel_to_calico::host_checks;
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use runtime::error::chain;
use tokio::sync::watch;

use self::foreign::{ForeignRuleKeeper, Task};
use self::report::{pending, report_of};
use self::taking::TakingClock;
use crate::host::connections;
use crate::host::firewall::FirewallError;
use crate::host::netlink::{Netlink, NetlinkError, NfTables, nf_tables};
use crate::host::paths::Paths;
use crate::host::process_end;
use crate::host::processes::Processes;
use crate::kinds::HostParts;
use crate::kinds::flannel_to_calico::inactivity::InactivityClock;
use crate::kinds::flannel_to_calico::journal::Journal;
use crate::kinds::flannel_to_calico::observe::{Observation, ObserveError, observe};
use crate::report::{Pending, Report};
use crate::watched_object::WatchedObject;

/// Further observations while a new link on the bridge has no record, and the pause before each.
const RECORD_READS: u32 = 5;
const RECORD_PAUSE: Duration = Duration::from_millis(200);

/// Pause after the end of a process.
const AFTER_END: Duration = Duration::from_millis(30);

/// Observes the host and performs steps on it.
#[derive(Debug)]
pub struct Worker {
    configuration: HostParts,
    netlink: Netlink,
    processes: Processes,
    journal: Option<Journal>,
    quiet: InactivityClock,
    /// State of the host at the last successful observation.
    at: Option<Position>,
    /// Steps performed in this phase, each with its object.
    performed: BTreeSet<(&'static str, String)>,
    /// Adopted pods that wait for calico-node.
    taking: TakingClock,
    /// Links on the bridge without a known pod at the last observation.
    unknown_links: Vec<String>,
    /// Numbers of the processes whose end the next step waits for.
    awaited: Vec<u32>,
    /// Rules of other programs.
    foreign: ForeignRuleKeeper,
}

/// State of a host on its way to the goal.
#[derive(Clone, Copy, Debug)]
struct Position {
    phase: Phase,
    /// The network of new pods.
    service: host::PodNetworkService,
}

impl Worker {
    /// A worker that has not observed the host yet.
    ///
    /// # Errors
    ///
    /// The kernel gives no netlink socket.
    pub fn start(parts: &HostParts) -> Result<Self, NetlinkError> {
        Ok(Self {
            configuration: parts.clone(),
            netlink: Netlink::connect()?,
            processes: Processes::default(),
            journal: None,
            quiet: InactivityClock::new(),
            at: None,
            performed: BTreeSet::new(),
            taking: TakingClock::default(),
            unknown_links: Vec::new(),
            awaited: Vec::new(),
            foreign: ForeignRuleKeeper::default(),
        })
    }

    /// Steps performed on this host, the newest last.
    fn done(&self) -> Vec<FinishedStep> {
        self.journal
            .as_ref()
            .map(|journal| journal.done().to_vec())
            .unwrap_or_default()
    }

    fn remembered(&self) -> JournalState {
        self.journal.as_ref().map(Journal::remembered).unwrap_or_default()
    }

    /// Observes the host and performs steps until the goal is reached or a step has to wait.
    ///
    /// `goals` shows whether the goal has changed meanwhile: no further step starts for the old one.
    pub async fn work(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Report {
        let mut report = self.observe_and_work(spec, goals).await;
        if report.pending != Pending::Steps {
            report.pending = pending(spec, &report);
        }
        if report.pending != Pending::Process {
            self.awaited.clear();
        }
        report.steps = self.done();
        report
    }

    async fn observe_and_work(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Report {
        // The journal has the goal from before a restart.
        let is_new = self.journal.is_none();
        let opened = self.open_journal();
        let is_interrupted = is_new && self.remembered().interrupted.is_some();
        if is_interrupted && nf_tables() == NfTables::Present {
            // Each change of links removes these rules first, too.
            if let Err(error) = connections::remove_rules().await {
                tracing::warn!(error = chain(&error), "rules of an interrupted step may remain");
            }
        }
        let spec = self.effective_spec(spec);
        let orders = self.orders(spec);
        let settings = orders.as_ref().map_or_else(
            || {
                let folder = &self.configuration.paths.cni_configuration;
                HostSettings::before_detection(folder.to_string_lossy())
            },
            |orders| orders.settings.clone(),
        );
        let mut paths = self.configuration.paths.clone();
        paths.cni_configuration = PathBuf::from(&settings.cni_configuration_directory);
        for folder in [&paths.cni_configuration, &paths.flannel] {
            if let Err(error) = self.configuration.folders.add(folder) {
                tracing::debug!(error = chain(&error), "watching a folder failed");
            }
        }
        let mut seen = match self.observe(&paths).await {
            Ok(seen) => seen,
            Err(report) => return self.report_unreadable(spec, orders.as_ref(), report, goals),
        };
        let detour = end_detour(&seen, &paths).await.map_err(|error| chain(&error));
        let opened = opened.and(detour);
        let journal = opened.and_then(|()| self.finish_interrupted(&seen));
        let at = self.set_position(&seen, &settings);
        let goal = self.goal(spec, orders.as_ref(), at, goals);
        let (goal, failure) = match goal {
            Ok(goal) => (goal, self.missing_settings(spec)),
            Err(failure) => (Goal::Hold, Some(failure)),
        };
        let journal = journal.and_then(|()| self.return_not_taken(&seen, &settings, goal));
        let migration = spec.map(|spec| spec.migration.as_str());
        let task = Task::of(at.phase, goal, &settings);
        let foreign = self.foreign.perform(task, migration, &paths.proc).await;
        let failure = failure.or(foreign.problem.filter(|_| Task::is_needed(at.phase, goal)));
        let outcome = self
            .perform_steps(&mut seen, &settings, &paths, goal, goals, failure)
            .await;
        // Twins that the steps needed go last, and before others learn that the host is back.
        let next = self.at.map_or(task, |now| Task::of(now.phase, goal, &settings));
        let foreign_rules = if next == task {
            foreign.rules
        } else {
            self.foreign.perform(next, migration, &paths.proc).await.rules
        };
        seen.facts.foreign_rules = foreign_rules;
        self.report(&seen, &settings, orders.as_ref(), goal, &journal, outcome)
    }

    /// Waits until a process has ended that the next step waits for.
    pub async fn process_ended(&self) {
        process_end::one_ended(&self.awaited).await;
        // The processes of a container end together: one observation for all of them.
        tokio::time::sleep(AFTER_END).await;
    }

    fn fell_back(&self) -> Option<String> {
        self.journal
            .as_ref()
            .and_then(Journal::automatic_rollback)
            .map(str::to_owned)
    }

    /// The state of the host, kept until the next observation.
    fn set_position(&mut self, seen: &Observation, settings: &HostSettings) -> Position {
        let position = Position {
            phase: host::phase(&seen.facts, settings),
            service: host::service(&seen.facts, settings),
        };
        if self.at.is_none_or(|at| at.phase != position.phase) {
            self.performed.clear();
        }
        self.at = Some(position);
        self.quiet.observe(position.service);
        position
    }

    /// The host thread was suspended, and may not know the newest spec yet.
    pub fn record_suspension(&mut self) {
        self.quiet.record_suspension();
    }

    /// Observes the host. A link on the bridge without a record refuses the start of a migration, and libcni writes the record of a pod
    /// after its plugins have attached the link: a new link may have its record a moment later.
    async fn observe(&mut self, paths: &Paths) -> Result<Observation, Report> {
        let mut seen = self.observe_once(paths).await?;
        for _ in 0..RECORD_READS {
            let unknown = host::links_without_known_pod(&seen.facts);
            if unknown.iter().all(|link| self.unknown_links.contains(link)) {
                break;
            }
            tokio::time::sleep(RECORD_PAUSE).await;
            seen = self.observe_once(paths).await?;
        }
        self.unknown_links = host::links_without_known_pod(&seen.facts);
        Ok(seen)
    }

    async fn observe_once(&mut self, paths: &Paths) -> Result<Observation, Report> {
        let timer = self.configuration.metrics.observe_duration.start_timer();
        let seen = observe(paths, &self.netlink, &self.processes).await;
        timer.observe_duration();
        self.configuration.health.set_host_read(seen.is_ok());
        if let Err(ObserveError::Netlink(_)) = &seen {
            // A failed socket does not recover: the next observation uses a new one.
            match Netlink::connect() {
                Ok(netlink) => self.netlink = netlink,
                Err(error) => tracing::debug!(error = chain(&error), "opening a new netlink socket failed"),
            }
        }
        seen.map_err(|error| {
            let report = Report::unreadable(error.category(), &error);
            let checks = host_checks::unreadable(&self.configuration.node, &report.message);
            Report {
                kinds: report_of(NodeStatus {
                    checks,
                    ..NodeStatus::default()
                }),
                ..report
            }
        })
    }

    /// Opens the journal once. Returns the error as text: without the journal no step starts.
    fn open_journal(&mut self) -> Result<(), String> {
        if self.journal.is_some() {
            return Ok(());
        }
        let journal = Journal::open(&self.configuration.state).map_err(|error| chain(&error))?;
        let orders = journal.orders().filter(|orders| orders.goal.is_forward());
        let time_limit = orders.and_then(|orders| orders.time_limit.as_ref());
        let starts = time_limit.map_or(0, |_| journal.count_start());
        self.quiet
            .resume(journal.last_at(), Timestamp::now(), time_limit, starts);
        self.journal = Some(journal);
        Ok(())
    }
}

/// Ends the detour of a step that an agent did not finish, whatever the goal: packets of pods would go through the loopback interface.
///
/// # Errors
///
/// nft fails, or a parameter cannot be written.
pub async fn end_detour(seen: &Observation, paths: &Paths) -> Result<(), FirewallError> {
    match &seen.detour {
        Some(detour) => detour.end(&paths.sysctl).await,
        None => Ok(()),
    }
}
