//! Observes the host and performs the steps that follow. Touches the host and the journal, never the API.

mod orders;

use std::collections::BTreeSet;
use std::path::PathBuf;

use ::flannel_to_calico::api::{NodeStatus, OrEmpty as _};
use api::node_migration::{Failure, FinishedStep, NodeMigrationSpec, NodeMigrationStatus};
use flannel_to_calico::host::{self, HostDecision, HostSettings, JournalState, Orders};
use flannel_to_calico::host_checks::{self, Subject};
use flannel_to_calico::phase::{Goal, Phase};
use flannel_to_calico::settings::defaults;
use jiff::Timestamp;
use runtime::error::chain;
use tokio::sync::watch;

use crate::goal::WatchedObject;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::host::processes::Processes;
use crate::kinds::HostParts;
use crate::kinds::flannel_to_calico::apply::apply;
use crate::kinds::flannel_to_calico::inactivity::InactivityClock;
use crate::kinds::flannel_to_calico::journal::Journal;
use crate::kinds::flannel_to_calico::observe::{Observation, ObserveError, Paths, observe};
use crate::report::{Pending, Report};

/// More steps than any host needs: above it, another program reverts the steps.
const MOST_STEPS: usize = 64;
/// MTU of the tunnel until the settings are known: the usual MTU of an uplink less the VXLAN header.
const USUAL_MTU: u32 = 1450;

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
    /// If the kernel gives no netlink socket.
    pub fn start(parts: &HostParts) -> Result<Self, NetlinkError> {
        Ok(Self {
            configuration: parts.clone(),
            netlink: Netlink::connect()?,
            processes: Processes::default(),
            journal: None,
            quiet: InactivityClock::new(),
            at: None,
            performed: BTreeSet::new(),
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
        report.pending = pending(spec, &report);
        report.steps = self.done();
        report
    }

    async fn observe_and_work(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Report {
        // The journal has the goal from before a restart.
        let opened = self.open_journal();
        let spec = self.effective_spec(spec);
        let orders = self.orders(spec);
        let settings = orders.as_ref().map_or_else(
            || usual_settings(&self.configuration.paths),
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
        let journal = opened.and_then(|()| self.finish_interrupted(&seen));
        let at = self.set_position(&seen, &settings);
        let goal = self.goal(spec, orders.as_ref(), at, goals);
        let (goal, mut failure) = match goal {
            Ok(goal) => (goal, self.missing_settings(spec)),
            Err(failure) => (Goal::Hold, Some(failure)),
        };
        let mut message = String::new();
        for _ in 0..MOST_STEPS {
            match host::decide(&seen.facts, &settings, goal, &self.remembered()) {
                HostDecision::Run(step) => {
                    if failure.is_some() || goals.has_changed().unwrap_or(true) {
                        message = format!("next: {} ({})", step.name(), step.object());
                        break;
                    }
                    match self.perform(&step, &seen, &paths).await {
                        Ok(after) => {
                            seen = after;
                            self.record_step(&step, &seen, &settings);
                        }
                        Err(problem) => failure = Some(problem),
                    }
                }
                HostDecision::Wait(what) => {
                    message = what;
                    break;
                }
                HostDecision::Settled => {
                    message = settled(goal);
                    failure = failure.or_else(|| self.close_changes(goal));
                    break;
                }
                HostDecision::Halt(why) => {
                    failure = Some(Failure {
                        category: "Contradiction".to_owned(),
                        message: why,
                        retriable: false,
                    });
                    break;
                }
            }
            if failure.is_some() {
                break;
            }
        }
        if let Some(failure) = &failure {
            message.clone_from(&failure.message);
        }
        let at = self.set_position(&seen, &settings);
        let phase = at.phase;
        let subject = Subject {
            node: &self.configuration.node,
            facts: &seen.facts,
            settings: &settings,
            settings_are_known: orders.is_some(),
            phase,
            goal,
        };
        let mut checks = host_checks::checks(subject);
        checks.push(host_checks::journal(
            &self.configuration.node,
            &self.configuration.state,
            &journal,
        ));
        let fell_back = self.fell_back();
        let of_host = NodeStatus {
            phase: Some(phase),
            leftovers: host::leftovers(&seen.facts, &settings),
            changes: host::changes(&seen.facts, &settings, &self.remembered().unreverted),
            goal: Some(goal),
            automatic_rollback: fell_back.clone(),
            checks,
            facts: Some(seen.facts),
            ..NodeStatus::default()
        };
        Report {
            message,
            failure,
            falls_back_in: orders
                .filter(|_| fell_back.is_none())
                .and_then(|orders| self.remaining_patience(&orders, at)),
            kinds: report_of(of_host),
            ..Report::default()
        }
    }

    /// The report while the host cannot be read. The dead man's switch uses the last known state: once its time is over, the next
    /// successful observation starts the rollback.
    fn report_unreadable(
        &mut self,
        spec: Option<&NodeMigrationSpec>,
        orders: Option<&Orders>,
        mut report: Report,
        goals: &watch::Receiver<WatchedObject>,
    ) -> Report {
        if let Some(at) = self.at {
            // The next successful observation works towards the goal; an unwritable journal is no worse than an unreadable host.
            let _ = self.goal(spec, orders, at, goals);
            let of_host = report.kinds.flannel_to_calico.get_or_insert_default();
            of_host.automatic_rollback = self.fell_back();
        }
        report
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

    /// Records a performed step. A step that is repeated in the same phase is no progress: another program reverts it.
    fn record_step(&mut self, step: &host::HostStep, seen: &Observation, settings: &HostSettings) {
        self.set_position(seen, settings);
        if self.performed.insert((step.name(), step.object())) {
            self.quiet.record_step();
        }
    }

    /// The host thread was suspended, and may not know the newest spec yet.
    pub fn record_suspension(&mut self) {
        self.quiet.record_suspension();
    }

    /// Closes the changes in the journal once the host is rolled back and the coordinator knows why.
    fn close_changes(&mut self, goal: Goal) -> Option<Failure> {
        let journal = self
            .journal
            .as_mut()
            .filter(|journal| journal.automatic_rollback().is_none())?;
        if goal != Goal::Flannel {
            return None;
        }
        let error = journal.record_rollback(Timestamp::now()).err()?;
        Some(Failure {
            category: error.category().to_owned(),
            message: chain(&error),
            retriable: true,
        })
    }

    async fn observe(&mut self, paths: &Paths) -> Result<Observation, Report> {
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
        let patience = orders.and_then(|orders| orders.patience.as_ref());
        let starts = patience.map_or(0, |_| journal.count_start());
        self.quiet
            .resume(journal.last_at(), Timestamp::now(), patience, starts);
        self.journal = Some(journal);
        Ok(())
    }

    /// Records an interrupted step as finished if the facts show that it is done.
    fn finish_interrupted(&mut self, seen: &Observation) -> Result<(), String> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        let done = journal
            .open_step()
            .filter(|step| step.is_proved_by_facts() && step.is_done(&seen.facts))
            .cloned();
        let Some(step) = done else {
            return Ok(());
        };
        tracing::info!(step = step.name(), "interrupted step is done");
        journal
            .finish(&step, Timestamp::now())
            .map_err(|error| chain(&error))
    }

    async fn perform(
        &mut self,
        step: &host::HostStep,
        seen: &Observation,
        paths: &Paths,
    ) -> Result<Observation, Failure> {
        let name = step.name();
        let object = step.object();
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => match Journal::open(&self.configuration.state) {
                Ok(journal) => none.insert(journal),
                Err(error) => {
                    return Err(Failure {
                        category: error.category().to_owned(),
                        message: format!("{object}: {name} was not started: {}", chain(&error)),
                        retriable: true,
                    });
                }
            },
        };
        let began = std::time::Instant::now();
        let outcome = apply(step, seen, paths, &self.netlink, &self.processes, journal).await;
        let label = if outcome.is_ok() { "done" } else { "failed" };
        self.configuration
            .metrics
            .step_duration
            .with_label_values(&[name, label])
            .observe(began.elapsed().as_secs_f64());
        match outcome {
            Ok(after) => {
                tracing::info!(
                    step = name,
                    object,
                    milliseconds = began.elapsed().as_millis(),
                    "step done"
                );
                Ok(after)
            }
            Err(error) => Err(Failure {
                category: error.category().to_owned(),
                message: format!("{object}: {}", chain(&error)),
                retriable: true,
            }),
        }
    }
}

/// The change that the next observation waits for.
fn pending(spec: Option<&NodeMigrationSpec>, report: &Report) -> Pending {
    let goal = spec
        .map(|spec| spec.flannel_to_calico.or_empty().goal)
        .unwrap_or_default();
    let of_host = report.kinds.flannel_to_calico.or_empty();
    let reached = match goal {
        _ if of_host.automatic_rollback.is_some() => of_host.changes.is_empty(),
        Goal::Flannel => of_host.changes.is_empty(),
        _ => goal.phase().is_none_or(|wanted| of_host.phase >= Some(wanted)),
    };
    let process = of_host
        .facts
        .as_ref()
        .is_some_and(|facts| facts.flanneld_running || facts.calico.node_running);
    match (reached, goal) {
        (false, _) if process => Pending::Process,
        (false, _) => Pending::Change,
        (true, Goal::Hold) => Pending::NoGoal,
        (true, _) => Pending::GoalReached,
    }
}

/// The status of a node with the part of this kind.
fn report_of(of_host: NodeStatus) -> NodeMigrationStatus {
    NodeMigrationStatus {
        flannel_to_calico: Some(of_host),
        ..NodeMigrationStatus::default()
    }
}

fn settled(goal: Goal) -> String {
    match goal.phase() {
        Some(Phase::Flannel) => "host is in its state before the migration".to_owned(),
        Some(phase) => format!("host has reached phase {}", phase.as_str()),
        None => "observing, no changes".to_owned(),
    }
}

/// flannel's default settings: sufficient for observations, never used for changes.
fn usual_settings(paths: &Paths) -> HostSettings {
    HostSettings {
        vni: defaults::FLANNEL_VNI,
        port: defaults::FLANNEL_PORT,
        mtu: USUAL_MTU,
        block_size: defaults::IP_POOL_BLOCK_SIZE,
        node_range_length: defaults::FLANNEL_SUBNET_LENGTH,
        ipv6: None,
        cni_configuration_directory: paths.cni_configuration.to_string_lossy().into_owned(),
    }
}
