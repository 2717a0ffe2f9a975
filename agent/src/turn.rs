//! The loop: observe → decide → journal → apply → report, on every change of the host or the goal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::NodeMigration;
use api::node_migration::{Failure, NodeMigrationSpec};
use futures::FutureExt;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use plan::flannel_to_calico::host::{self, HostDecision, HostSettings};
use plan::flannel_to_calico::host_checks::{self, Subject};
use plan::flannel_to_calico::phase::Goal;
use plan::flannel_to_calico::settings::defaults;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::admin::Health;
use crate::flannel_to_calico::apply::apply;
use crate::flannel_to_calico::observe::{Observation, Paths, observe};
use crate::goal::Seen;
use crate::host::folders::FolderWatch;
use crate::host::netlink::Netlink;
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::probe::Probes;
use crate::report::{self, Report, chain};

/// Changes come in bursts (a device, its address, its routes): one look for all of them.
const BURST: Duration = Duration::from_millis(150);
/// Shortest pause between two looks while nothing is asked of the node: pods come and go.
const CALM: Duration = Duration::from_secs(1);
/// Next look while a process is waited for: nobody announces its end.
const PROCESS: Duration = Duration::from_millis(500);
/// Next look while anything else is waited for: links and files announce themselves, this is the second net.
const WORKING: Duration = Duration::from_secs(2);
/// Next try after something failed.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Next look while nothing changes: what no event announces (a kernel parameter, a firewall chain) is seen then.
const RESYNC: Duration = Duration::from_mins(1);
/// How long a change of mere facts may wait for its write.
const LAZY_WRITE: Duration = Duration::from_secs(10);
/// More steps than any host has: past it, something puts back what is removed.
const MOST_STEPS: usize = 64;
/// MTU of the tunnel until the settings say it: the usual uplink's, less VXLAN's header.
const USUAL_MTU: u32 = 1450;

/// What the agent is told at its start.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Name of the node.
    pub node: String,
    /// Where the host's folders are.
    pub paths: Paths,
    /// Folder of the journal.
    pub state: PathBuf,
}

/// The agent of one node.
#[derive(Debug)]
pub struct Agent {
    configuration: Configuration,
    api: Api<NodeMigration>,
    netlink: Netlink,
    folders: FolderWatch,
    seen: watch::Receiver<Seen>,
    changed: Arc<Notify>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    probes: Probes,
    journal: Option<Journal>,
    /// The object as our last write left it, until the watch has seen that write.
    written: Option<Arc<NodeMigration>>,
    /// When the status was last written.
    wrote_at: Option<Instant>,
    /// What went wrong in the last turn: it is logged once, not every time it is tried again.
    complaint: String,
}

/// What one turn leaves behind: when to turn again without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    next: Duration,
    /// Shortest pause before a change of the host makes the next turn.
    rest: Duration,
}

impl Agent {
    /// The agent, which has not looked yet.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a socket, a folder or a channel of its own"
    )]
    pub fn new(
        configuration: Configuration,
        api: Api<NodeMigration>,
        netlink: Netlink,
        folders: FolderWatch,
        seen: watch::Receiver<Seen>,
        changed: Arc<Notify>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            configuration,
            api,
            netlink,
            folders,
            seen,
            probes: Probes::new(Arc::clone(&changed)),
            changed,
            metrics,
            health,
            journal: None,
            written: None,
            wrote_at: None,
            complaint: String::new(),
        }
    }

    /// Turns until the process ends.
    pub async fn run(mut self) {
        loop {
            let pace = self.turn().await;
            self.health.turned(Timestamp::now());
            let until = Instant::now() + pace.next;
            tokio::select! {
                // A new goal is not kept waiting.
                changed = self.seen.changed() => if changed.is_err() { return },
                () = self.changed.notified() => {
                    let goal = self.seen.changed();
                    tokio::select! {
                        () = tokio::time::sleep(pace.rest) => {}
                        changed = goal => if changed.is_err() { return },
                    }
                    // What came during the pause is seen by the next look as well.
                    let _ = self.changed.notified().now_or_never();
                }
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// The object as far as it is known: the watch's, or our own write that the watch has not seen yet.
    fn object(&mut self) -> Option<Arc<NodeMigration>> {
        let seen = self.seen.borrow_and_update().clone();
        let watched = match seen {
            Seen::NotYet => return None,
            Seen::Absent => {
                self.health.goal_read();
                self.written = None;
                return None;
            }
            Seen::Present(object) => object,
        };
        self.health.goal_read();
        let newer = self
            .written
            .take()
            .filter(|written| written.uid() == watched.uid() && version(written) > version(&watched));
        self.written.clone_from(&newer);
        Some(newer.unwrap_or(watched))
    }

    async fn turn(&mut self) -> Pace {
        self.metrics.turns.inc();
        let object = self.object();
        let spec = object.as_ref().map(|object| object.spec.clone());
        let settings = spec.as_ref().and_then(|spec| spec.flannel_to_calico.clone());
        let targets = spec.as_ref().map(|spec| spec.probes.clone()).unwrap_or_default();
        self.probes
            .set(&targets, settings.as_ref().map(|settings| settings.mtu));

        let mut report = self.work(spec.as_ref()).await;
        self.complain(&report);
        report.probes = self.probes.results(&targets);
        report.steps = self
            .journal
            .as_ref()
            .map(|journal| journal.done().to_vec())
            .unwrap_or_default();
        self.tell_metrics(&report, targets.len());

        let goal = spec.as_ref().map(|spec| spec.goal).unwrap_or_default();
        let reached = goal.phase().is_none_or(|wanted| report.phase >= Some(wanted));
        let process = report.facts.as_ref().is_some_and(|facts| facts.flanneld_running);
        let mut pace = match (&report.failure, reached) {
            (Some(_), _) => Pace {
                next: AFTER_FAILURE,
                rest: CALM,
            },
            (None, false) if process => Pace {
                next: PROCESS,
                rest: BURST,
            },
            (None, false) => Pace {
                next: WORKING,
                rest: BURST,
            },
            (None, true) if goal == Goal::Hold => Pace {
                next: RESYNC,
                rest: CALM,
            },
            (None, true) => Pace {
                next: RESYNC,
                rest: BURST,
            },
        };
        if let Some(object) = object {
            pace.next = pace.next.min(self.tell(&object, &report).await);
        }
        pace
    }

    /// Looks at the host and performs steps until the goal is reached or something has to happen first.
    async fn work(&mut self, spec: Option<&NodeMigrationSpec>) -> Report {
        let asked = spec.map(|spec| spec.goal).unwrap_or_default();
        let known = spec.and_then(|spec| spec.flannel_to_calico.clone());
        // Without the settings nothing is changed: they say which link is flannel's.
        let goal = if known.is_some() { asked } else { Goal::Hold };
        let missing = (known.is_none() && asked != Goal::Hold).then(|| Failure {
            category: "SettingsMissing".to_owned(),
            message: format!(
                "NodeMigration {}: goal {asked:?} is set and spec.flannelToCalico is not; the coordinator has to \
                 write it",
                self.configuration.node
            ),
            retriable: true,
        });
        let settings = known.unwrap_or_else(usual_settings);
        let mut paths = self.configuration.paths.clone();
        paths.cni_configuration = PathBuf::from(&settings.cni_configuration_directory);
        for folder in [&paths.cni_configuration, &paths.flannel] {
            if let Err(error) = self.folders.add(folder) {
                tracing::debug!(error = chain(&error), "a folder is not watched");
            }
        }
        let mut seen = match self.look(&paths).await {
            Ok(seen) => seen,
            Err(report) => return report,
        };
        self.open_journal(&settings, &seen);
        let mut failure = missing;
        let mut message = String::new();
        for _ in 0..MOST_STEPS {
            match host::decide(&seen.facts, &settings, goal) {
                HostDecision::Run(step) => {
                    if failure.is_some() || self.seen.has_changed().unwrap_or(true) {
                        message = format!("next: {} ({})", step.name(), step.object());
                        break;
                    }
                    match self.perform(&step, &seen, &paths).await {
                        Ok(after) => seen = after,
                        Err(problem) => failure = Some(problem),
                    }
                }
                HostDecision::Wait(what) => {
                    message = what;
                    break;
                }
                HostDecision::Settled => {
                    message = match goal.phase() {
                        Some(phase) => format!("the host is at {} or further", phase.as_str()),
                        None => "looks and changes nothing".to_owned(),
                    };
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
        let phase = host::phase(&seen.facts, &settings);
        let subject = Subject {
            node: &self.configuration.node,
            facts: &seen.facts,
            settings: &settings,
            phase,
            goal,
        };
        Report {
            phase: Some(phase),
            message,
            failure,
            leftovers: host::leftovers(&seen.facts, &settings),
            checks: host_checks::checks(subject),
            facts: Some(seen.facts),
            ..Report::default()
        }
    }

    async fn look(&self, paths: &Paths) -> Result<Observation, Report> {
        let timer = self.metrics.observe_duration.start_timer();
        let seen = observe(paths, &self.netlink).await;
        timer.observe_duration();
        self.health.set_host_read(seen.is_ok());
        seen.map_err(|error| {
            let message = format!("the host cannot be read: {}", chain(&error));
            Report {
                checks: host_checks::unreadable(&self.configuration.node, &message),
                failure: Some(Failure {
                    category: error.category().to_owned(),
                    message: message.clone(),
                    retriable: true,
                }),
                message,
                ..Report::default()
            }
        })
    }

    /// Opens the journal once; a step that a crash interrupted and that turns out to be done is finished there.
    fn open_journal(&mut self, settings: &HostSettings, seen: &Observation) {
        if self.journal.is_some() {
            return;
        }
        match Journal::open(&self.configuration.state) {
            Ok(mut journal) => {
                if let Some(step) = journal
                    .open_step()
                    .filter(|step| step.is_done(&seen.facts))
                    .cloned()
                {
                    tracing::info!(step = step.name(), "a step that was interrupted is done");
                    if let Err(error) = journal.finish(&step, Timestamp::now()) {
                        tracing::warn!(error = chain(&error), "the journal cannot be written");
                    }
                }
                tracing::debug!(
                    phase = host::phase(&seen.facts, settings).as_str(),
                    "the journal is open"
                );
                self.journal = Some(journal);
            }
            // A step needs it and says so; looking does not.
            Err(error) => tracing::warn!(error = chain(&error), "the journal cannot be opened"),
        }
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
                        message: format!("{name} ({object}) was not begun: {}", chain(&error)),
                        retriable: true,
                    });
                }
            },
        };
        let began = std::time::Instant::now();
        let outcome = apply(step, seen, paths, &self.netlink, journal).await;
        let label = if outcome.is_ok() { "done" } else { "failed" };
        self.metrics
            .step_duration
            .with_label_values(&[name, label])
            .observe(began.elapsed().as_secs_f64());
        match outcome {
            Ok(after) => {
                tracing::info!(
                    step = name,
                    object,
                    milliseconds = began.elapsed().as_millis(),
                    "a step is done"
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

    fn complain(&mut self, report: &Report) {
        match &report.failure {
            Some(Failure {
                category, message, ..
            }) if *message != self.complaint => {
                tracing::warn!(category, message, "the agent does not go on");
                self.complaint.clone_from(message);
            }
            Some(_) => {}
            None if self.complaint.is_empty() => {}
            None => {
                tracing::info!(phase = ?report.phase, "the agent goes on");
                self.complaint.clear();
            }
        }
    }

    fn tell_metrics(&self, report: &Report, targets: usize) {
        self.metrics.set_phase(report.phase);
        self.metrics.set_checks(&report.checks);
        self.metrics
            .leftovers
            .set(i64::try_from(report.leftovers.len()).unwrap_or(i64::MAX));
        self.metrics.failing.set(i64::from(report.failure.is_some()));
        let reached = report.probes.iter().filter(|probe| probe.reached).count();
        self.metrics.set_probes(reached, targets.saturating_sub(reached));
    }

    /// Writes the status when it says something new, and returns when to try again.
    async fn tell(&mut self, object: &Arc<NodeMigration>, report: &Report) -> Duration {
        let old = object.status.clone().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let wanted = report::status(report, generation, &old, Timestamp::now());
        if object.status.as_ref() == Some(&wanted) {
            return RESYNC;
        }
        if let Some(wrote_at) = self.wrote_at
            && object.status.is_some()
            && !report::is_urgent(&old, &wanted)
            && wrote_at.elapsed() < LAZY_WRITE
        {
            return LAZY_WRITE.saturating_sub(wrote_at.elapsed());
        }
        match report::write(&self.api, object, &wanted).await {
            Ok(None) => RESYNC,
            Ok(Some(after)) => {
                self.metrics.writes.with_label_values(&["written"]).inc();
                self.wrote_at = Some(Instant::now());
                self.written = Some(Arc::new(after));
                RESYNC
            }
            Err(error) => {
                self.metrics.writes.with_label_values(&["error"]).inc();
                tracing::warn!(
                    error = chain(&error),
                    "the status cannot be written; trying again"
                );
                // Another object of the name, or none: the watch says which.
                self.written = None;
                AFTER_FAILURE
            }
        }
    }
}

/// The resource version as a number. A version that is none is older than everything.
fn version(object: &NodeMigration) -> u64 {
    object
        .metadata
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// What flannel uses when nobody says otherwise: enough to look, never to change.
fn usual_settings() -> HostSettings {
    HostSettings {
        vni: defaults::FLANNEL_VNI,
        port: defaults::FLANNEL_PORT,
        mtu: USUAL_MTU,
        cni_configuration_directory: defaults::CNI_CONFIGURATION_DIRECTORY.to_owned(),
    }
}
