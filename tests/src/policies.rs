//! Compares the preview of policies (crate `policy`) with what Felix does: pods on three nodes, policies in rounds, and in each
//! round every pod tries every other one.

mod asker;
mod canary;
mod compare;
mod facts;
mod fleet;
mod report;
mod rounds;
mod trial;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::core::{Selector, SelectorExt as _};
use policy::Settings;
use traffic::ask::{Answer, Means, Question};

use crate::cluster::pods::CALICO_NAMESPACE;
use crate::cluster::state::CONTROL_PLANE;
use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Values};
use crate::progress::Progress;
use asker::Asker;
use canary::Canary;
use compare::{Measured, Preview};
use facts::Objects;
use report::Selection;
use trial::{Source, Targets, Trial};

pub use report::Report;
pub use rounds::{ROUNDS, Round};

/// Time for an answer. A connection is tried three times in it.
const WAIT: Duration = Duration::from_millis(2500);
/// Clients that ask at the same time, each all its questions: more would delay answers on two cores.
const AT_ONCE: usize = 8;
/// Time until calico-node runs again on every node.
const ROLLOUT_LIMIT: Duration = Duration::from_mins(3);
/// Further attempts for a connection without an answer that the preview does not refuse: one answer proves that Felix allows it.
const ATTEMPTS: usize = 2;

/// The data plane of Felix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DataPlane {
    /// iptables, as in Calico's manifest.
    #[default]
    Iptables,
    /// nftables.
    Nftables,
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Request<'request> {
    /// The implementation of Calico.
    pub calico: &'request str,
    /// The traffic generator on this machine.
    pub traffic: &'request Path,
    /// The data plane.
    pub data_plane: DataPlane,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// The address at which pods listen.
    pub listen: &'request str,
}

/// The prepared pods, and a process for each client.
struct Scene<'cluster> {
    cluster: &'cluster Cluster,
    progress: Progress,
    canary: Canary,
    clients: Vec<(Asker, Vec<Trial>)>,
    pods: Vec<Pod>,
    settings: Settings,
    values: Values,
}

/// Makes all rounds.
pub async fn compare(cluster: &Cluster, request: &Request<'_>) -> Result<Report> {
    let progress = Progress::default();
    if request.data_plane == DataPlane::Nftables {
        use_nftables(cluster).await?;
    }
    let (settings, version) = facts::settings(cluster).await?;
    uses_data_plane(cluster, request.data_plane).await?;
    let data_plane = format!("{:?}", settings.data_plane).to_lowercase();
    let mut report = Report::new(request.calico.to_owned(), version, data_plane);
    let mut scene = Scene::prepare(cluster, request, settings, progress).await?;
    report.pods = scene.pods.len();
    let started = Instant::now();
    for round in &request.rounds {
        scene.round(*round, &mut report).await?;
    }
    report.seconds = started.elapsed().as_secs_f64();
    report.finish(request.rounds.len() == ROUNDS.len());
    Ok(report)
}

/// Sets the data plane by the variable that Felix reads first, and restarts calico-node.
async fn use_nftables(cluster: &Cluster) -> Result<()> {
    let set = [
        "set",
        "env",
        "daemonset/calico-node",
        "FELIX_NFTABLESMODE=Enabled",
    ];
    let namespace = ["-n", CALICO_NAMESPACE];
    cluster.api().kubectl(&[&namespace[..], &set].concat()).await?;
    cluster
        .api()
        .rolled_out("daemonset/calico-node", CALICO_NAMESPACE, ROLLOUT_LIMIT)
        .await
}

/// Waits until Felix has its rules where the data plane has them, on each node: its settings do not say what it does.
async fn uses_data_plane(cluster: &Cluster, wanted: DataPlane) -> Result<()> {
    let logs = cluster.directory().logs();
    for node in cluster.node_names().await {
        let what = format!("Felix on node {node} has its rules in {wanted:?}");
        until(&what, ROLLOUT_LIMIT, &logs, async || {
            let tables = cluster.run_in_node(&node, &["nft", "list", "tables"]).await?;
            let chains = cluster
                .run_in_node(&node, &["iptables-save", "-t", "filter"])
                .await?;
            let is_nftables = tables.lines().any(|line| line.trim() == "table ip calico");
            let is_iptables = chains.lines().any(|line| line.starts_with(":cali-FORWARD"));
            let is_wanted = match wanted {
                DataPlane::Iptables => is_iptables && !is_nftables,
                DataPlane::Nftables => is_nftables,
            };
            Ok(if is_wanted {
                Observation::Done(())
            } else {
                Observation::NotYet(format!(
                    "rules in iptables: {is_iptables}, in nftables: {is_nftables}"
                ))
            })
        })
        .await?;
    }
    Ok(())
}

impl<'cluster> Scene<'cluster> {
    /// Creates the pods, and waits until every one answers.
    async fn prepare(
        cluster: &'cluster Cluster,
        request: &Request<'_>,
        settings: Settings,
        progress: Progress,
    ) -> Result<Self> {
        fleet::create(cluster, request.listen).await?;
        let mut canary = Canary::create(cluster).await?;
        let objects = Objects::read(cluster).await?;
        ensure!(
            objects.policies.is_empty(),
            "the cluster has {} NetworkPolicies before the first round, needed none",
            objects.policies.len()
        );
        let pods = fleet::pods(cluster).await?;
        let outside: Vec<IpAddr> = vec![cluster.control_plane_address().await.into()];
        let services = fleet::read_services(cluster).await?;
        let targets = Targets::new(&objects, pods.clone(), services, outside[0]);
        let mut clients = Vec::new();
        for pod in &pods {
            let trials = targets.trials(&Source::pod(pod))?;
            let namespace = pod.namespace().unwrap_or_default();
            clients.push((Asker::in_pod(cluster, &namespace, &pod.name_any()).await?, trials));
        }
        let trials = targets.trials(&Source::outside(CONTROL_PLANE, outside))?;
        clients.push((Asker::outside(cluster, request.traffic)?, trials));
        canary.reaches(cluster, &once_each(&clients)).await?;
        let values = rounds::values(cluster.values().await, &pods, &objects);
        progress.say(format_args!(
            "{} pods answer; connections in each round: {}",
            pods.len(),
            clients.iter().map(|(_, trials)| trials.len()).sum::<usize>()
        ));
        Ok(Self {
            cluster,
            progress,
            canary,
            clients,
            pods,
            settings,
            values,
        })
    }

    /// Applies the policies of a round, waits until Felix holds them, tries every connection, and removes them.
    async fn round(&mut self, round: Round, report: &mut Report) -> Result<()> {
        let mut held = None;
        if round.has_policies() {
            self.cluster
                .api()
                .apply(&round.manifest(&self.values)?)
                .await
                .with_context(|| format!("apply the policies of round {}", round.name))?;
            held = Some(self.canary.hold(self.cluster).await?.as_secs_f64());
        }
        let before = Objects::read(self.cluster).await?;
        let preview = policy::Cluster::new(before.facts(&self.settings));
        let started = Instant::now();
        let results = self.measure(&preview, report).await?;
        let seconds = started.elapsed().as_secs_f64();
        if round.has_policies() {
            self.canary.is_held().await?;
        }
        let after = Objects::read(self.cluster).await?;
        ensure!(
            before.identities() == after.identities(),
            "pods have changed during round {}: it proves nothing",
            round.name
        );
        let selections = self.selections(&before.policies)?;
        report.add(round, &selections, &results, seconds, held);
        let counts = report.rounds.last().map(|round| &round.counts);
        self.progress.say(format_args!(
            "round {}: {}",
            round.name,
            counts.map_or_else(String::new, |counts| format!(
                "agree {}, differ {}, unknown {}, failed {}",
                counts.agree, counts.differ, counts.unknown, counts.failed
            ))
        ));
        if round.has_policies() {
            for (namespace, _) in fleet::NAMESPACES {
                let delete = ["-n", namespace, "delete", "networkpolicies", "--all"];
                self.cluster.api().kubectl(&delete).await?;
            }
            self.canary.release(self.cluster).await?;
        }
        Ok(())
    }

    /// Tries every connection.
    async fn measure(
        &mut self,
        preview: &policy::Cluster,
        report: &mut Report,
    ) -> Result<Vec<(Trial, Preview, Measured)>> {
        let asked = self.clients.iter_mut().map(|(asker, trials)| async move {
            let previews: Vec<Preview> = trials
                .iter()
                .map(|trial| Preview::of(preview, &trial.planned))
                .collect();
            let questions = trials.iter().map(|trial| trial.question).collect();
            let mut answers = asker.ask(questions, WAIT).await?;
            let mut later = 0;
            for _ in 0..ATTEMPTS {
                later += ask_again(asker, trials, &previews, &mut answers).await?;
            }
            let measured = answers.iter().zip(trials.iter());
            let measured: Vec<Measured> = measured
                .map(|(answer, trial)| Measured::of(answer, trial.name.as_deref()))
                .collect();
            let results: Vec<_> = trials
                .iter()
                .cloned()
                .zip(previews)
                .zip(measured)
                .map(|((trial, preview), measured)| (trial, preview, measured))
                .collect();
            anyhow::Ok((results, later))
        });
        let asked: Vec<_> = futures::stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        report.answered_later += asked.iter().map(|(_, later)| later).sum::<usize>();
        Ok(asked.into_iter().flat_map(|(results, _)| results).collect())
    }

    /// The pods that each policy selects, by Kubernetes' own selectors and not by the crate that is compared.
    fn selections(&self, policies: &[NetworkPolicy]) -> Result<Vec<Selection>> {
        let own = policies.iter().filter(|policy| {
            let namespace = policy.namespace().unwrap_or_default();
            fleet::NAMESPACES.iter().any(|(name, _)| *name == namespace)
        });
        own.map(|policy| self.selection(policy)).collect()
    }

    fn selection(&self, policy: &NetworkPolicy) -> Result<Selection> {
        let namespace = policy.namespace();
        let name = format!("{}/{}", namespace.clone().unwrap_or_default(), policy.name_any());
        let spec = policy
            .spec
            .as_ref()
            .with_context(|| format!("NetworkPolicy {name} has no spec"))?;
        let selector: Selector = spec
            .pod_selector
            .clone()
            .unwrap_or_default()
            .try_into()
            .with_context(|| format!("read the podSelector of NetworkPolicy {name}"))?;
        let selected: BTreeSet<String> = self
            .pods
            .iter()
            .filter(|pod| pod.namespace() == namespace && !fleet::is_on_host(pod))
            .filter(|pod| selector.matches(pod.labels()))
            .map(fleet::name_of)
            .collect();
        // The API server writes the types.
        let of = |kind: &str| {
            let types = spec.policy_types.iter().flatten();
            let is_named = types.into_iter().any(|name| name == kind);
            if is_named {
                selected.clone()
            } else {
                BTreeSet::new()
            }
        };
        Ok(Selection {
            policy: name,
            ingress: of("Ingress"),
            egress: of("Egress"),
        })
    }
}

/// Asks again what got no answer and what the preview does not refuse. Returns the number of answers.
async fn ask_again(
    asker: &mut Asker,
    trials: &[Trial],
    previews: &[Preview],
    answers: &mut [Answer],
) -> Result<usize> {
    let open: Vec<usize> = answers
        .iter()
        .zip(previews)
        .enumerate()
        .filter(|(_, (answer, preview))| {
            **answer == Answer::Silent && !matches!(preview, Preview::Refused(_))
        })
        .map(|(place, _)| place)
        .collect();
    if open.is_empty() {
        return Ok(0);
    }
    let questions = open.iter().map(|place| trials[*place].question).collect();
    let found = asker.ask(questions, WAIT).await?;
    let mut later = 0;
    for (place, answer) in open.into_iter().zip(found) {
        later += usize::from(answer != Answer::Silent);
        answers[place] = answer;
    }
    Ok(later)
}

/// One TCP question for each pod.
fn once_each(clients: &[(Asker, Vec<Trial>)]) -> Vec<Question> {
    let trials = clients.iter().flat_map(|(_, trials)| trials);
    let direct =
        trials.filter(|trial| trial.class == trial::Class::Tcp && trial.question.means == Means::Tcp);
    let all: BTreeSet<_> = direct.map(|trial| trial.question.server).collect();
    let of_tcp = |server| Question {
        means: Means::Tcp,
        server,
    };
    all.into_iter().map(of_tcp).collect()
}
