//! The matrix as data: every named step forward and back, the possible victims of a crash, and the crashes that share a round.

use crash_point::Edge;
use serde::Serialize;

/// The victim of the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// kill -9 of the agent on the step's node.
    Agent,
    /// kill -9 of the coordinator.
    Coordinator,
    /// The API server is unavailable for some seconds.
    ApiServer,
    /// The step's node loses its power, and is powered on again.
    Node,
    /// kill -9 of etcd.
    Etcd,
    /// kill -9 of the container runtime on the step's node.
    Containerd,
    /// kill -9 of the kubelet on the step's node.
    Kubelet,
    /// kill -9 of calico-node on the step's node, at steps at which it runs.
    CalicoNode,
    /// kill -9 of flanneld on the step's node, at steps at which it runs.
    Flanneld,
}

impl Victim {
    /// The default victims: replumb itself and the components that it depends on.
    pub const USUAL: [Self; 4] = [Self::Agent, Self::Coordinator, Self::ApiServer, Self::Node];

    /// Whether the victim runs at this step; otherwise it cannot crash.
    fn runs_at(self, step: Step) -> bool {
        match self {
            Self::Agent
            | Self::Coordinator
            | Self::ApiServer
            | Self::Node
            | Self::Etcd
            | Self::Containerd
            | Self::Kubelet => true,
            Self::CalicoNode => match step.leg {
                Leg::There => {
                    ["GoalMixed", "RemoveConflist", "CreateProbePod", "Complete"].contains(&step.name)
                        || STEPS_OF_ADOPTION.contains(&step)
                }
                Leg::Back => ["TurnAround", "Cordon", "Evict"].contains(&step.name),
                Leg::Prepare | Leg::Undo => false,
            },
            Self::Flanneld => match step.leg {
                Leg::Prepare | Leg::Undo => true,
                Leg::There => step.name == "StartNode",
                Leg::Back => ["Uncordon", "Return"].contains(&step.name),
            },
        }
    }

    /// The heading in a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Coordinator => "coordinator",
            Self::ApiServer => "API server",
            Self::Node => "node",
            Self::Etcd => "etcd",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::CalicoNode => "calico-node",
            Self::Flanneld => "flanneld",
        }
    }
}

/// The program that makes the step, and stops there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// The node's agent.
    Agent,
    /// The coordinator.
    Coordinator,
}

/// The part of a migration forward and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leg {
    /// Before the first node.
    Prepare,
    /// A node on its way to Calico.
    There,
    /// A node on its way back.
    Back,
    /// After the rollback of the last node.
    Undo,
}

impl Leg {
    /// The words in a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Prepare => "before the nodes",
            Self::There => "a node, forward",
            Self::Back => "a node, back",
            Self::Undo => "after the nodes",
        }
    }
}

/// One step by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The part of the migration.
    pub leg: Leg,
    /// The program that makes the step.
    pub owner: Owner,
    /// The name in the agent's journal and in the coordinator.
    pub name: &'static str,
    /// Whether the step is a single write, which is also its record: such a step has only the last edge.
    #[serde(skip)]
    pub single: bool,
    /// Whether the step is made only on a host with pods from before the migration, which a power failure ends.
    #[serde(skip)]
    pub for_old_pods: bool,
}

impl Step {
    /// The edges with a crash point.
    pub fn edges(&self) -> &'static [Edge] {
        if self.single {
            &[Edge::Recorded]
        } else {
            &Edge::ALL
        }
    }
}

const fn cluster(leg: Leg, name: &'static str) -> Step {
    Step {
        leg,
        owner: Owner::Coordinator,
        name,
        single: true,
        for_old_pods: false,
    }
}

const fn by_coordinator(leg: Leg, name: &'static str) -> Step {
    Step {
        leg,
        owner: Owner::Coordinator,
        name,
        single: false,
        for_old_pods: false,
    }
}

const fn by_agent(leg: Leg, name: &'static str) -> Step {
    Step {
        leg,
        owner: Owner::Agent,
        name,
        single: false,
        for_old_pods: false,
    }
}

const fn for_old_pods(step: Step) -> Step {
    Step {
        for_old_pods: true,
        ..step
    }
}

/// Every step of a migration in place and of its rollback, in the order of execution, whatever happens to the pods.
pub const STEPS: [Step; 45] = [
    cluster(Leg::Prepare, "LabelNodes"),
    cluster(Leg::Prepare, "SelectNodes"),
    cluster(Leg::Prepare, "WriteIpamConfig"),
    cluster(Leg::Prepare, "CreatePool"),
    cluster(Leg::Prepare, "WriteFelixConfiguration"),
    cluster(Leg::Prepare, "WriteNode"),
    cluster(Leg::There, "StartNode"),
    by_coordinator(Leg::There, "LabelNone"),
    by_coordinator(Leg::There, "GoalHeld"),
    by_agent(Leg::There, "WithdrawSubnetEnvironment"),
    by_coordinator(Leg::There, "Import"),
    by_coordinator(Leg::There, "GoalSwapped"),
    by_agent(Leg::There, "RouteLegacyPods"),
    by_agent(Leg::There, "AnswerForPods"),
    by_agent(Leg::There, "RenameVxlanDevice"),
    by_coordinator(Leg::There, "LabelCalico"),
    by_coordinator(Leg::There, "GoalMixed"),
    by_agent(Leg::There, "RemoveConflist"),
    by_coordinator(Leg::There, "CreateProbePod"),
    by_coordinator(Leg::There, "Complete"),
    cluster(Leg::Back, "TurnAround"),
    by_coordinator(Leg::Back, "Cordon"),
    by_coordinator(Leg::Back, "Evict"),
    by_coordinator(Leg::Back, "LabelNone"),
    by_coordinator(Leg::Back, "GoalFlannel"),
    by_agent(Leg::Back, "RestoreConflist"),
    by_agent(Leg::Back, "RemoveCalicoConflist"),
    by_agent(Leg::Back, "DeleteBlackholes"),
    by_agent(Leg::Back, "RestoreNodeRoutes"),
    by_agent(Leg::Back, "ReturnVxlanDevice"),
    for_old_pods(by_agent(Leg::Back, "UnrouteLegacyPods")),
    for_old_pods(by_agent(Leg::Back, "StopAnsweringForPods")),
    by_agent(Leg::Back, "RemoveCalicoRecords"),
    by_agent(Leg::Back, "RestoreSubnetEnvironment"),
    by_coordinator(Leg::Back, "LabelFlannel"),
    by_coordinator(Leg::Back, "CreateProbePod"),
    by_coordinator(Leg::Back, "Uncordon"),
    by_coordinator(Leg::Back, "Return"),
    cluster(Leg::Undo, "ForgetNode"),
    cluster(Leg::Undo, "RestoreFelixConfiguration"),
    cluster(Leg::Undo, "DeletePools"),
    cluster(Leg::Undo, "RestoreIpamConfig"),
    cluster(Leg::Undo, "DeselectNodes"),
    cluster(Leg::Undo, "ReleaseAgents"),
    cluster(Leg::Undo, "RemoveLabels"),
];

/// The steps of a node that adopts its pods, and of their return, in the order of execution.
pub const STEPS_OF_ADOPTION: [Step; 22] = [
    by_coordinator(Leg::There, "GoalCalico"),
    by_agent(Leg::There, "OpenBridge"),
    by_agent(Leg::There, "LoosenPodLinks"),
    by_agent(Leg::There, "RoutePodsByLink"),
    by_agent(Leg::There, "AnswerOnPodLinks"),
    by_agent(Leg::There, "AcceptPodFrames"),
    by_agent(Leg::There, "DetachPodLinks"),
    by_agent(Leg::There, "RenamePodLinks"),
    by_agent(Leg::There, "DeleteFirewallObject"),
    by_agent(Leg::There, "KeepBridgeAddresses"),
    by_agent(Leg::There, "DeleteBridge"),
    by_agent(Leg::There, "RemoveFrameRules"),
    by_agent(Leg::Back, "RestoreFirewallObject"),
    for_old_pods(by_agent(Leg::Back, "RestoreBridge")),
    for_old_pods(by_agent(Leg::Back, "ReturnPodLinks")),
    for_old_pods(by_agent(Leg::Back, "AttachPodLinks")),
    for_old_pods(by_agent(Leg::Back, "StopAcceptingPodFrames")),
    for_old_pods(by_agent(Leg::Back, "StopAnsweringOnPodLinks")),
    for_old_pods(by_agent(Leg::Back, "RoutePodsByBridge")),
    for_old_pods(by_agent(Leg::Back, "TightenPodLinks")),
    for_old_pods(by_agent(Leg::Back, "DropBridgeAddresses")),
    for_old_pods(by_agent(Leg::Back, "CloseBridge")),
];

/// Steps that exist only with the real Calico: the stand-in has no firewall.
pub const STEPS_OF_REAL_CALICO: [Step; 2] = [
    by_agent(Leg::Back, "DeleteCalicoFirewall"),
    by_agent(Leg::Back, "DeleteCalicoSets"),
];

/// Every step of a migration: with the real Calico, and with the adoption of pods.
pub fn steps(is_real: bool, adopts: bool) -> Vec<Step> {
    let of_adoption = STEPS_OF_ADOPTION.iter().filter(|_| adopts);
    let of_real = STEPS_OF_REAL_CALICO.iter().filter(|_| is_real);
    STEPS.iter().chain(of_adoption).chain(of_real).copied().collect()
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// The step.
    #[serde(flatten)]
    pub step: Step,
    /// The progress of the step at the crash.
    pub edge: Edge,
    /// The victim.
    pub victim: Victim,
}

impl Cell {
    /// Describes the crash.
    pub fn words(&self) -> String {
        format!(
            "{} crashes when {} is {} ({})",
            self.victim.words(),
            self.step.name,
            self.edge.as_str(),
            self.step.leg.words()
        )
    }
}

/// The filter for the cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The victims.
    pub victims: Vec<Victim>,
    /// The progress of the step. A step that is a single write has only its last edge, which is always selected.
    pub edges: Vec<Edge>,
    /// Names of steps; empty: all steps.
    pub steps: Vec<String>,
}

impl Selection {
    /// The selected cells, in the order of the steps. An unknown step is an error that names it.
    pub fn cells(&self, steps: &[Step]) -> Result<Vec<Cell>, String> {
        for name in &self.steps {
            if !steps.iter().any(|step| step.name == name) {
                let known: Vec<&str> = steps.iter().map(|step| step.name).collect();
                return Err(format!(
                    "unknown step {name:?}; the steps are {}",
                    known.join(", ")
                ));
            }
        }
        let named = |step: &&Step| self.steps.is_empty() || self.steps.iter().any(|name| name == step.name);
        let mut cells = Vec::new();
        for step in steps.iter().filter(named) {
            for edge in step.edges() {
                if !step.single && !self.edges.contains(edge) {
                    continue;
                }
                let there = self.victims.iter().filter(|victim| victim.runs_at(*step));
                cells.extend(there.map(|victim| Cell {
                    step: *step,
                    edge: *edge,
                    victim: *victim,
                }));
            }
        }
        Ok(cells)
    }
}

/// One migration forward and back, with at most one crash before the nodes, one on each node forward, one on each
/// node back, and one after the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Before the nodes.
    pub prepare: Option<Cell>,
    /// On each node forward, in the order of the nodes.
    pub there: Vec<Cell>,
    /// On each node back, in the order of the rollback.
    pub back: Vec<Cell>,
    /// After the nodes.
    pub undo: Option<Cell>,
}

impl Round {
    /// Every crash of the round.
    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.prepare
            .iter()
            .chain(&self.there)
            .chain(&self.back)
            .chain(&self.undo)
    }

    /// Whether a node loses its power: then the node is not as before, whatever the tool does.
    pub fn loses_power(&self) -> bool {
        self.cells().any(|cell| cell.victim == Victim::Node)
    }
}

/// Assigns the cells to rounds. Power failures share no round with other crashes: after them a host is compared by
/// its necessary settings, not line by line.
pub fn rounds(cells: &[Cell], nodes: usize) -> Vec<Round> {
    let (power, others): (Vec<Cell>, Vec<Cell>) = cells.iter().partition(|cell| cell.victim == Victim::Node);
    let mut all = fill(&others, nodes, nodes, |_| true);
    // A power failure ends the pods of flannel on a host. If the whole cluster has none, the migration completes and
    // cannot be rolled back. The host that keeps its pods is the last forward, and the first back.
    all.extend(fill(&power, nodes, nodes.saturating_sub(1).max(1), |place| {
        place == 0
    }));
    all
}

/// At most this number of crashes forward in each round, and one on each node back; `has_old_pods` lists, in the
/// order of the rollback, which hosts still have pods from before the migration.
fn fill(
    cells: &[Cell],
    nodes: usize,
    on_way_there: usize,
    has_old_pods: impl Fn(usize) -> bool,
) -> Vec<Round> {
    let of = |leg: Leg| cells.iter().copied().filter(move |cell| cell.step.leg == leg);
    let (mut prepare, mut undo) = (of(Leg::Prepare), of(Leg::Undo));
    let mut there = of(Leg::There);
    let mut back: Vec<Cell> = of(Leg::Back).collect();
    let mut rounds = Vec::new();
    loop {
        let round = Round {
            prepare: prepare.next(),
            there: there.by_ref().take(on_way_there).collect(),
            back: (0..nodes)
                .map_while(|place| take(&mut back, has_old_pods(place)))
                .collect(),
            undo: undo.next(),
        };
        if round == Round::default() {
            return rounds;
        }
        rounds.push(round);
    }
}

/// The next crash whose step is made on such a host.
fn take(cells: &mut Vec<Cell>, has_old_pods: bool) -> Option<Cell> {
    let next = cells
        .iter()
        .position(|cell| has_old_pods || !cell.step.for_old_pods)?;
    Some(cells.remove(next))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum as _;

    use super::*;

    fn everything() -> Selection {
        Selection {
            victims: Victim::value_variants().to_vec(),
            edges: Edge::ALL.to_vec(),
            steps: Vec::new(),
        }
    }

    #[test]
    fn every_cell_is_in_one_round_and_no_round_has_two_crashes_of_a_node() {
        let cells = everything().cells(&STEPS).unwrap();
        let rounds = rounds(&cells, 3);
        let placed: Vec<Cell> = rounds.iter().flat_map(Round::cells).copied().collect();
        assert_eq!(placed.len(), cells.len());
        assert_eq!(
            placed.iter().collect::<BTreeSet<_>>(),
            cells.iter().collect::<BTreeSet<_>>()
        );
        for round in &rounds {
            assert!(round.there.len() <= 3 && round.back.len() <= 3);
            let power = round.cells().filter(|cell| cell.victim == Victim::Node).count();
            assert!(power == 0 || power == round.cells().count());
            assert!(power == 0 || round.there.len() < 3, "one host keeps its pods");
            let mut later = round.back.iter().skip(1);
            assert!(
                power == 0 || later.all(|cell| !cell.step.for_old_pods),
                "on that one"
            );
            assert_eq!(round.loses_power(), power > 0);
        }
    }

    #[test]
    fn a_step_of_a_single_write_has_one_edge() {
        let wanted = Selection {
            edges: vec![Edge::Changed],
            victims: vec![Victim::Agent],
            steps: vec!["StartNode".to_owned(), "RenameVxlanDevice".to_owned()],
        };
        let edges: Vec<Edge> = wanted
            .cells(&STEPS)
            .unwrap()
            .iter()
            .map(|cell| cell.edge)
            .collect();
        assert_eq!(edges, [Edge::Recorded, Edge::Changed]);
    }

    #[test]
    fn a_program_that_does_not_run_at_a_step_is_no_victim() {
        let wanted = Selection {
            victims: vec![Victim::CalicoNode, Victim::Flanneld],
            edges: vec![Edge::Changed],
            steps: vec![
                "CreatePool".to_owned(),
                "RenameVxlanDevice".to_owned(),
                "RemoveConflist".to_owned(),
            ],
        };
        let cells = wanted.cells(&STEPS).unwrap();
        let found: Vec<(&str, Victim)> = cells.iter().map(|cell| (cell.step.name, cell.victim)).collect();
        assert_eq!(
            found,
            [
                ("CreatePool", Victim::Flanneld),
                ("RemoveConflist", Victim::CalicoNode)
            ]
        );
    }

    #[test]
    fn an_unknown_step_is_an_error_with_the_known_steps() {
        let wanted = Selection {
            steps: vec!["Rename".to_owned()],
            ..everything()
        };
        let error = wanted.cells(&STEPS).unwrap_err();
        assert!(
            error.contains("\"Rename\"") && error.contains("RenameVxlanDevice"),
            "{error}"
        );
    }
}
