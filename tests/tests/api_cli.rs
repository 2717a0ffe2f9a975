//! `kubectl replumb` against a real API server, as a user with only the operator's role.
//!
//! If a case needs a coordinator, either the real one runs, or the test plays it: the test holds the Lease with the
//! coordinator's own code and writes statuses, so that the command sees every phase.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_cli -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says that it failed by a panic"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use api::migration::{Desired, MigrationPhase};
use api::record::{Content, RecordContent};
use api::{Migration, MigrationSpec, MigrationStatus, NodeMigration, names};
use coordinator::clock::Moment;
use coordinator::lease::Candidate;
use coordinator::records::Records;
use engine::document::{Action, Document, NodeActions};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lab::apilab::{ApiLab, built};
use lab::cluster::authority;
use lab::cluster::wait::{Observation, until};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::ChildStdout;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::JoinHandle;

const NAME: &str = "flannel-to-calico";

/// Migrations have no namespace: one case at a time, each in a clean cluster.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let lab = ApiLab::shared().unwrap();
    if lab.clear().await.is_err() {
        // A failed case may have deleted the definitions.
        lab.install().await.unwrap();
        lab.clear().await.unwrap();
    }
    let leases: Api<Lease> = Api::namespaced(lab.admin().await.unwrap(), names::NAMESPACE);
    match leases.delete(names::COORDINATOR, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        other => drop(other.unwrap()),
    }
    turn
}

/// The kubeconfig of a user who has only the operator's role.
fn operator() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let lab = ApiLab::shared().unwrap();
        let bind = [
            "create",
            "clusterrolebinding",
            "operator",
            "--clusterrole=replumb-operator",
            "--user=olga",
        ];
        lab.kubectl(&bind).unwrap();
        let file = lab.folder().join("olga.conf");
        authority::write(&file, &lab.kubeconfig_of("olga").unwrap()).unwrap();
        file
    })
}

/// Result of the command.
#[derive(Debug)]
struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    fn expect(self, code: i32, needed: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        for text in needed {
            let said = self.out.contains(text) || self.err.contains(text);
            assert!(said, "{text:?} is not in\n{}\n{}", self.out, self.err);
        }
        self
    }
}

/// The command, built once.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built("kubectl-replumb").unwrap())
}

/// Runs the command without a terminal.
async fn replumb(arguments: &[&str]) -> Answer {
    let mut command = tokio::process::Command::new(program());
    command
        .arg("--kubeconfig")
        .arg(operator())
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(90), command.output())
        .await
        .unwrap_or_else(|_| panic!("{arguments:?} has not ended"))
        .unwrap();
    Answer {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The command while it runs, without a terminal.
struct Running {
    child: tokio::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    out: String,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = tokio::process::Command::new(program())
            .arg("--kubeconfig")
            .arg(operator())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
            out: String::new(),
        }
    }

    /// The next line; `None` at the end.
    async fn line(&mut self) -> Option<String> {
        let next = tokio::time::timeout(Duration::from_secs(90), self.lines.next_line());
        let line = next
            .await
            .unwrap_or_else(|_| panic!("no more output: {}", self.out))
            .unwrap()?;
        self.out.push_str(&line);
        self.out.push('\n');
        Some(line)
    }

    /// Waits for this text in the output.
    async fn says(&mut self, words: &str) {
        while !self.out.contains(words) {
            assert!(
                self.line().await.is_some(),
                "the command ended without {words:?}: {}",
                self.out
            );
        }
    }

    async fn ends(mut self) -> Answer {
        while self.line().await.is_some() {}
        let mut err = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut err).await.unwrap();
        Answer {
            code: self.child.wait().await.unwrap().code(),
            out: self.out,
            err,
        }
    }
}

/// Runs the command at a terminal made by `script`, where a user types this.
async fn at_a_terminal(arguments: &str, typed: &str) -> Answer {
    let line = format!(
        "{} --kubeconfig {} {arguments}",
        program().display(),
        operator().display()
    );
    let mut child = tokio::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(typed.as_bytes()).await.unwrap();
    let output = tokio::time::timeout(Duration::from_secs(90), child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("{arguments:?} has not ended"))
        .unwrap();
    // Held until now: `script` ends the terminal with it.
    drop(stdin);
    Answer {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn migrations() -> Api<Migration> {
    Api::all(ApiLab::shared().unwrap().admin().await.unwrap())
}

async fn migration(name: &str) -> Migration {
    migrations().await.get(name).await.unwrap()
}

fn rollback_nodes(spec: MigrationSpec) -> Vec<String> {
    spec.flannel_to_calico.unwrap().rollback_nodes
}

async fn create(name: &str) {
    let object: Migration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": {"name": name},
        "spec": {"flannelToCalico": {}},
    }))
    .unwrap();
    migrations()
        .await
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

/// A coordinator played by the test: it leads, and answers every generation with the given status.
struct Played {
    status: watch::Sender<MigrationStatus>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Played {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Played {
    async fn start(status: MigrationStatus) -> Self {
        let client: Client = ApiLab::shared().unwrap().admin().await.unwrap();
        let (leading, mut leads) = watch::channel(false);
        let candidate = Candidate::new(client.clone(), names::NAMESPACE, names::COORDINATOR, "played");
        let lease = tokio::spawn(candidate.run(leading));
        tokio::time::timeout(Duration::from_secs(20), leads.wait_for(|leads| *leads))
            .await
            .unwrap()
            .unwrap();
        let (sender, receiver) = watch::channel(status);
        let answers = tokio::spawn(answer_all(client, receiver));
        Self {
            status: sender,
            tasks: vec![lease, answers],
        }
    }

    fn say(&self, status: MigrationStatus) {
        self.status.send(status).unwrap();
    }
}

/// Writes the given status for the present generation of every Migration, again and again.
async fn answer_all(client: Client, status: watch::Receiver<MigrationStatus>) {
    let migrations: Api<Migration> = Api::all(client);
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    loop {
        ticks.tick().await;
        let list = migrations.list(&kube::api::ListParams::default()).await.unwrap();
        for migration in list {
            let mut wanted = status.borrow().clone();
            // The real coordinator pauses a started migration that should not run.
            wanted.paused = wanted.started_at.is_some()
                && !matches!(migration.spec.desired, Desired::Run | Desired::Rollback);
            wanted.observed_generation = migration.metadata.generation.unwrap();
            let name = migration.metadata.name.unwrap();
            // A merge patch does not change fields that it does not name.
            let there = serde_json::to_value(&migration.status).unwrap();
            let wanted = serde_json::to_value(&wanted).unwrap();
            let Some(change) = api::merge::difference(&there, &wanted) else {
                continue;
            };
            let patch = Patch::Merge(json!({"status": change}));
            match migrations
                .patch_status(&name, &PatchParams::default(), &patch)
                .await
            {
                // The Migration was just deleted.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                other => drop(other.unwrap()),
            }
        }
    }
}

/// Two nodes with their part of a plan, and the plan's status.
async fn planned() -> MigrationStatus {
    let nodes: Api<NodeMigration> = Api::all(ApiLab::shared().unwrap().admin().await.unwrap());
    let mut document = Document {
        prepare: vec![Action::new(
            "create",
            "IPPool default-ipv4-ippool",
            "cidr 10.244.0.0/16",
        )],
        nodes: Vec::new(),
        finish: vec![Action::new(
            "delete",
            "DaemonSet kube-flannel/kube-flannel-ds",
            "the point of no return",
        )],
    };
    for (position, name) in ["worker-1", "worker-2"].into_iter().enumerate() {
        let actions = vec![
            Action::new("cordon", format!("Node {name}"), "cordon (uncordoned afterwards)"),
            Action::as_of_now("evict", format!("pods of node {name}"), "default/web-1"),
        ];
        let blocks = Action::new(
            "create",
            format!("IPAM blocks of node {name}"),
            "IPAMBlock and BlockAffinity",
        );
        let object: NodeMigration = serde_json::from_value(json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": name},
            "spec": {"nodeName": name, "migration": NAME, "position": position, "prepare": [blocks], "plan": actions},
        }))
        .unwrap();
        nodes.create(&PostParams::default(), &object).await.unwrap();
        document.nodes.push(NodeActions {
            node: name.to_owned(),
            prepare: vec![blocks],
            actions,
        });
    }
    MigrationStatus {
        phase: MigrationPhase::Planned,
        message: "every check allows the migration".to_owned(),
        checks: vec![engine::check::Check::pass(
            "FlannelBackend",
            "ConfigMap kube-flannel/kube-flannel-cfg",
            "vxlan",
        )],
        plan: Some(api::migration::Plan {
            hash: document.hash(),
            prepare: document.prepare.clone(),
            prepare_in_records: 0,
            node_count: 2,
            finish: document.finish.clone(),
            finish_in_records: 0,
        }),
        ..MigrationStatus::default()
    }
}

fn begun(phase: MigrationPhase, working: &[&str]) -> MigrationStatus {
    MigrationStatus {
        phase,
        started_at: Some(Timestamp::now()),
        progress: api::migration::Progress {
            text: "0/2".to_owned(),
            nodes: 2,
            working: working.iter().map(|node| (*node).to_owned()).collect(),
            ..api::migration::Progress::default()
        },
        ..MigrationStatus::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn without_replumb_the_command_says_how_to_install_it() {
    let _turn = turn().await;
    let lab = ApiLab::shared().unwrap();
    let definitions = [
        "crd/migrations.replumb.dev",
        "crd/nodemigrations.replumb.dev",
        "crd/migrationrecords.replumb.dev",
    ];
    lab.kubectl(&[&["delete", "--wait"][..], &definitions].concat())
        .unwrap();
    let needed = [
        "replumb is not installed in this cluster",
        "kubectl apply --server-side -k deploy/base",
    ];
    for command in ["status", "preflight", "plan", "pause", "resume"] {
        replumb(&[command]).await.expect(1, &needed);
    }
    replumb(&["apply", "--yes"]).await.expect(1, &needed);
    // Restored for the next case.
    lab.install().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn a_plan_larger_than_its_migration_is_printed_completely() {
    let _turn = turn().await;
    create(NAME).await;
    let made = migration(NAME).await;
    let mut status = planned().await;
    let client = ApiLab::shared().unwrap().admin().await.unwrap();
    let exchange = |number: usize| Action::new("exchange", format!("Service shop/{number}"), "both answer");
    let parts = vec![
        Content::Actions((0..500).map(exchange).collect()),
        Content::Actions((500..1000).map(exchange).collect()),
    ];
    let mut records = Records::default();
    records
        .write(&client, &made, RecordContent::Prepare, parts)
        .await
        .unwrap();
    let nodes: Api<NodeMigration> = Api::all(client);
    let nodes = nodes.list(&kube::api::ListParams::default()).await.unwrap().items;
    let plan = status.plan.as_mut().unwrap();
    plan.prepare_in_records = 1000;
    plan.hash = api::record::document(plan, &nodes, records.holding(RecordContent::Prepare)).hash();
    let hash = plan.hash.clone();
    let played = Played::start(status.clone()).await;
    let text = replumb(&["plan"]).await.expect(0, &[&hash]).out;
    for number in 0..1000 {
        assert!(
            text.contains(&format!("Service shop/{number} ")),
            "{number} is not in\n{text}"
        );
    }
    let document = replumb(&["plan", "-o", "json"]).await.expect(0, &[]).json();
    // One action of the cluster, a thousand in records, one of each node.
    assert_eq!(document["prepare"].as_array().unwrap().len(), 1003);
    assert_eq!(document["prepare"][1000]["object"], "Service shop/999");
    assert_eq!(
        document["prepare"][1002]["object"],
        "IPAM blocks of node worker-2"
    );
    drop(played);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn wrong_missing_and_ambiguous_names_are_errors() {
    let _turn = turn().await;
    replumb(&["status"]).await.expect(
        1,
        &["no Migration found in this cluster", "kubectl replumb preflight"],
    );
    replumb(&["pause", "mine"])
        .await
        .expect(1, &["Migration mine not found; there are no Migrations"]);
    create(NAME).await;
    replumb(&["status"]).await.expect(0, &[NAME, "Pending"]);
    replumb(&["status", "flanel"]).await.expect(
        1,
        &["Migration flanel not found; existing: flannel-to-calico (Pending)"],
    );
    replumb(&["plan", "flanel"]).await.expect(
        1,
        &[
            "cannot be created while another Migration",
            "flannel-to-calico (Pending)",
        ],
    );
    assert!(
        migrations().await.get_opt("flanel").await.unwrap().is_none(),
        "a misspelled name created a Migration"
    );
    create("another").await;
    replumb(&["status"]).await.expect(
        1,
        &[
            "several Migrations found, name one",
            "another (Pending)",
            "flannel-to-calico (Pending)",
        ],
    );
    replumb(&["status", "another"]).await.expect(0, &["another"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn without_a_leader_no_old_status_is_shown_as_new() {
    let _turn = turn().await;
    replumb(&["preflight"]).await.expect(
        1,
        &[
            "no active coordinator, the leader Lease is not renewed",
            "Lease replumb-system/replumb-coordinator does not exist",
            "logs deployment/",
        ],
    );
    let made = migration(NAME).await;
    assert_eq!(made.spec.desired, Desired::Plan);

    // A leader that died an hour ago, and its answer that allows everything.
    let status = planned().await;
    let patch = Patch::Merge(json!({"status": MigrationStatus { observed_generation: 1, ..status }}));
    migrations()
        .await
        .patch_status(NAME, &PatchParams::default(), &patch)
        .await
        .unwrap();
    let client = ApiLab::shared().unwrap().admin().await.unwrap();
    let hour_ago = Moment {
        wall: Timestamp::now() - SignedDuration::from_hours(1),
        ..Moment::now()
    };
    assert!(
        Candidate::new(client, names::NAMESPACE, names::COORDINATOR, "coordinator-7")
            .try_once(hour_ago)
            .await
            .unwrap()
    );
    for command in [&["preflight"][..], &["plan"], &["apply", "--yes"]] {
        replumb(command).await.expect(
            1,
            &["no active coordinator", "held by coordinator-7, last renewed 1h"],
        );
    }
    assert_eq!(migration(NAME).await.spec.desired, Desired::Plan);
    // Another namespace has no coordinator; the user may not even read the Lease there.
    replumb(&["preflight", "-n", "elsewhere"])
        .await
        .expect(1, &["Lease elsewhere/replumb-coordinator does not exist"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn a_plan_is_shown_completely_and_started_only_after_confirmation() {
    let _turn = turn().await;
    let status = planned().await;
    let hash = status.plan.clone().unwrap().hash;
    let played = Played::start(status.clone()).await;

    replumb(&["preflight"]).await.expect(
        0,
        &[
            "created with `desired: Plan`",
            "PASS  FlannelBackend",
            "may start",
        ],
    );
    let plan = replumb(&["plan"])
        .await
        .expect(0, &[&hash, "Node worker-1 (1 of 2)", "Blockers (1 PASS)\n  none"]);
    let order = [
        "create  IPPool",
        "cordon  Node worker-1",
        "evict   pods of node worker-1",
        "Node worker-2",
        "point of no return",
    ];
    let places: Vec<usize> = order
        .iter()
        .map(|text| {
            plan.out
                .find(text)
                .unwrap_or_else(|| panic!("{text}\n{}", plan.out))
        })
        .collect();
    assert!(places.is_sorted(), "{places:?}\n{}", plan.out);
    let document = replumb(&["plan", "-o", "json"]).await.expect(0, &[]).json();
    assert_eq!(document["hash"], json!(hash));
    assert_eq!(document["nodes"][1]["node"], "worker-2");
    assert_eq!(document["nodes"][1]["actions"][1]["verb"], "evict");

    replumb(&["apply"])
        .await
        .expect(1, &["not a terminal: nothing was started", "--yes"]);
    let other = "0".repeat(64);
    replumb(&["apply", "--yes", "--plan-hash", &other])
        .await
        .expect(2, &["the plan has changed since its review", &hash]);
    assert_eq!(migration(NAME).await.spec.desired, Desired::Plan);
    assert_eq!(migration(NAME).await.spec.plan_hash, None);

    replumb(&["plan", "--flannel-vni", "4096"]).await.expect(
        1,
        &[
            "flannelVni: found nothing, requested 4096",
            "kubectl delete migration flannel-to-calico",
        ],
    );

    // The coordinator starts at once when requested.
    let started = tokio::spawn({
        let status = status.clone();
        let sender = played.status.clone();
        async move {
            let mut looks = tokio::time::interval(Duration::from_millis(100));
            while migration(NAME).await.spec.desired != Desired::Run {
                looks.tick().await;
            }
            sender
                .send(MigrationStatus {
                    plan: status.plan,
                    ..begun(MigrationPhase::Rolling, &["worker-1"])
                })
                .unwrap();
        }
    });
    replumb(&["apply", "--yes", "--plan-hash", &hash, "--max-unavailable", "2"])
        .await
        .expect(0, &["is Rolling", "status --watch"]);
    started.await.unwrap();
    let spec = migration(NAME).await.spec;
    assert_eq!((spec.desired, spec.plan_hash), (Desired::Run, Some(hash)));
    assert_eq!(
        serde_json::to_value(spec.rollout.max_unavailable).unwrap(),
        json!(2)
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn a_user_at_a_terminal_is_asked_for_confirmation() {
    let _turn = turn().await;
    let played = Played::start(planned().await).await;
    let question = "Start Migration flannel-to-calico (nodes: 2) in the cluster at https://127.0.0.1:";
    for no in ["n\n", "\n", "maybe\n"] {
        at_a_terminal("apply", no)
            .await
            .expect(1, &["Node worker-2", question, "nothing was started"]);
        assert_eq!(migration(NAME).await.spec.desired, Desired::Plan, "after {no:?}");
    }
    // No coordinator starts it here: only the request counts.
    at_a_terminal("apply --timeout 3s", "y\n")
        .await
        .expect(1, &[question, "is not accepted by the coordinator after 3s"]);
    assert_eq!(migration(NAME).await.spec.desired, Desired::Run);

    played.say(begun(MigrationPhase::Completed, &[]));
    settled(MigrationPhase::Completed).await;
    // A terminal is redrawn, and shows the whole table.
    let answer = at_a_terminal("status --watch", "")
        .await
        .expect(0, &["NODE", "worker-1", "worker-2", "Completed"]);
    assert!(
        answer.out.contains("\u{1b}["),
        "the terminal was not redrawn: {answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn a_refusal_has_exit_code_2_and_starts_no_migration() {
    let _turn = turn().await;
    let mut status = planned().await;
    status.phase = MigrationPhase::Refused;
    status.reason = "ChecksFailed".to_owned();
    status.checks.push(engine::check::Check::not_pass(
        "FlannelBackend",
        engine::check::Verdict::Fail,
        "ConfigMap kube-flannel/kube-flannel-cfg",
        "host-gw",
        "vxlan",
        "change Backend.Type",
    ));
    let _played = Played::start(status).await;
    let needed = [
        "FAIL     FlannelBackend: ConfigMap kube-flannel/kube-flannel-cfg",
        "host-gw",
        "vxlan",
        "change Backend.Type",
    ];
    let answer = replumb(&["preflight"]).await.expect(2, &needed);
    assert!(
        answer.out.find("FAIL") < answer.out.find("PASS"),
        "{}",
        answer.out
    );
    replumb(&["plan"]).await.expect(2, &needed);
    replumb(&["apply", "--yes"]).await.expect(2, &needed);
    let document = replumb(&["preflight", "-o", "json"]).await.expect(2, &[]).json();
    assert_eq!(document["allowed"], false);
    let spec = migration(NAME).await.spec;
    assert_eq!((spec.desired, spec.plan_hash), (Desired::Plan, None));
    replumb(&["status"]).await.expect(2, &["Refused"]);
    replumb(&["status", "--watch"]).await.expect(2, &["Refused"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn pause_and_resume_change_the_desired_state_and_each_end_has_its_exit_code() {
    let _turn = turn().await;
    planned().await;
    create(NAME).await;
    let played = Played::start(MigrationStatus::default()).await;
    replumb(&["pause"]).await.expect(1, &["has not started"]);
    replumb(&["resume"])
        .await
        .expect(1, &["has not started", "kubectl replumb apply"]);

    let patch = Patch::Merge(json!({"spec": {"desired": "Run"}}));
    migrations()
        .await
        .patch(NAME, &PatchParams::default(), &patch)
        .await
        .unwrap();
    played.say(begun(MigrationPhase::Rolling, &["worker-1"]));
    settled(MigrationPhase::Rolling).await;
    replumb(&["status"])
        .await
        .expect(0, &["Rolling", "0/2 nodes done", "worker-1"]);
    replumb(&["pause"])
        .await
        .expect(0, &["Rolling, paused", "finished first: worker-1"]);
    assert_eq!(migration(NAME).await.spec.desired, Desired::Pause);
    // A node is being migrated: the migration is pausing, not paused.
    replumb(&["status"]).await.expect(0, &["Rolling, paused"]);
    replumb(&["status", "--watch", "--timeout", "2s"])
        .await
        .expect(1, &["is not ended after 2s"]);
    played.say(begun(MigrationPhase::Rolling, &[]));
    replumb(&["status", "--watch"])
        .await
        .expect(3, &["paused", "kubectl replumb resume"]);
    replumb(&["status"]).await.expect(3, &[]);
    replumb(&["pause", "--wait"]).await.expect(3, &[]);

    let before = Timestamp::now() - SignedDuration::from_secs(1);
    replumb(&["resume"]).await.expect(0, &["Rolling"]);
    let spec = migration(NAME).await.spec;
    assert_eq!(spec.desired, Desired::Run);
    assert!(
        spec.resumed_at.is_some_and(|at| at >= before),
        "{:?}",
        spec.resumed_at
    );

    played.say(MigrationStatus {
        message: "no agent is Ready on node worker-1".to_owned(),
        ..begun(MigrationPhase::Halted, &["worker-1"])
    });
    settled(MigrationPhase::Halted).await;
    replumb(&["status"])
        .await
        .expect(1, &["Halted", "no agent is Ready on node worker-1"]);
    replumb(&["status", "--watch"])
        .await
        .expect(1, &["Halted", "kubectl replumb resume"]);
    replumb(&["apply", "--yes"])
        .await
        .expect(1, &["is halted: no agent is Ready", "kubectl replumb resume"]);
    // The migration stays halted: the command has not reached its goal.
    replumb(&["resume"]).await.expect(1, &["Halted"]);

    played.say(begun(MigrationPhase::Finishing, &[]));
    settled(MigrationPhase::Finishing).await;
    let watched = tokio::spawn(async { replumb(&["status", "--watch", "-o", "json"]).await });
    played.say(begun(MigrationPhase::Completed, &[]));
    let answer = watched.await.unwrap().expect(0, &[]);
    let last: Value = serde_json::from_str(answer.out.lines().last().unwrap()).unwrap();
    assert_eq!(last["phase"], "Completed");
    replumb(&["status", "--watch"]).await.expect(0, &["Completed"]);
    replumb(&["pause"]).await.expect(1, &["is Completed"]);
    replumb(&["rollback", "--all", "--yes"])
        .await
        .expect(1, &["is Completed"]);
    replumb(&["apply", "--yes"]).await.expect(0, &["is Completed"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn a_rollback_is_requested_and_each_end_has_its_exit_code() {
    let _turn = turn().await;
    planned().await;
    create(NAME).await;
    let played = Played::start(MigrationStatus::default()).await;
    for command in [&["abort"][..], &["rollback", "--all", "--yes"]] {
        replumb(command).await.expect(1, &["has not started"]);
    }
    played.say(begun(MigrationPhase::Rolling, &["worker-1"]));
    settled(MigrationPhase::Rolling).await;
    replumb(&["rollback", "--all"])
        .await
        .expect(1, &["not a terminal", "--yes"]);
    replumb(&["rollback", "--yes"]).await.expect(1, &["NODE"]);
    replumb(&["rollback", "worker-9", "--yes"])
        .await
        .expect(1, &["no node worker-9", "worker-1, worker-2"]);
    assert_eq!(rollback_nodes(migration(NAME).await.spec), Vec::<String>::new());

    replumb(&["abort"])
        .await
        .expect(0, &["Rolling, paused", "rolled back: worker-1"]);
    assert_eq!(migration(NAME).await.spec.desired, Desired::Abort);
    replumb(&["rollback", "worker-2", "--yes"])
        .await
        .expect(0, &["worker-2", "evicted within their PodDisruptionBudgets"]);
    let spec = migration(NAME).await.spec;
    assert_eq!(
        (spec.desired, rollback_nodes(spec)),
        (Desired::Pause, vec!["worker-2".to_owned()])
    );
    replumb(&["resume"]).await.expect(0, &[]);
    let spec = migration(NAME).await.spec;
    assert_eq!((spec.desired, rollback_nodes(spec)), (Desired::Run, Vec::new()));

    replumb(&["rollback", "--all", "--yes"])
        .await
        .expect(0, &["worker-1", "worker-2", "DaemonSet"]);
    assert_eq!(migration(NAME).await.spec.desired, Desired::Rollback);
    played.say(MigrationStatus {
        reason: "PastReturn".to_owned(),
        message: "DaemonSet kube-flannel/kube-flannel-ds is deleted".to_owned(),
        ..begun(MigrationPhase::Finishing, &[])
    });
    settled(MigrationPhase::Finishing).await;
    replumb(&["status", "--watch"])
        .await
        .expect(1, &["is deleted", "kubectl replumb resume"]);
    played.say(begun(MigrationPhase::RollingBack, &["worker-1"]));
    settled(MigrationPhase::RollingBack).await;
    replumb(&["apply", "--yes"])
        .await
        .expect(1, &["is being rolled back", "kubectl replumb resume"]);
    let asked = migration(NAME).await.spec.resumed_at;
    let watched = tokio::spawn(async { replumb(&["rollback", "--all", "--yes", "--wait"]).await });
    tokio::time::timeout(Duration::from_secs(20), async {
        while migration(NAME).await.spec.resumed_at == asked {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    played.say(begun(MigrationPhase::RolledBack, &[]));
    watched.await.unwrap().expect(0, &["RolledBack"]);
    replumb(&["apply", "--yes"])
        .await
        .expect(1, &["was rolled back", "kubectl delete migration"]);
}

/// Waits until the test's status is written.
async fn settled(phase: MigrationPhase) {
    let lab = ApiLab::shared().unwrap();
    until(
        "the test's status",
        Duration::from_secs(20),
        lab.folder(),
        async || {
            let seen = migration(NAME).await.status.unwrap_or_default().phase;
            Ok(if seen == phase {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{seen:?}"))
            })
        },
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn a_watch_prints_changes_and_ends_when_the_migration_is_deleted() {
    let _turn = turn().await;
    planned().await;
    create(NAME).await;
    let played = Played::start(begun(MigrationPhase::Rolling, &["worker-1"])).await;
    settled(MigrationPhase::Rolling).await;
    let mut watched = Running::start(&["status", "--watch"]);
    let nodes: Api<NodeMigration> = Api::all(ApiLab::shared().unwrap().admin().await.unwrap());
    let step = json!({"spec": {"started": true, "step": {
        "name": "Drain", "since": Timestamp::now(), "reason": "DisruptionBudget",
        "message": "eviction of pod default/web-1 refused: PodDisruptionBudget default/web allows 0 disruptions",
    }}});
    for number in 0..8 {
        let progress = begun(MigrationPhase::Rolling, &["worker-1"]);
        played.say(MigrationStatus {
            message: format!("look {number}"),
            // Only a migration that has changed nothing may be deleted.
            started_at: None,
            ..progress
        });
        watched.says(&format!("look {number}")).await;
    }
    nodes
        .patch("worker-1", &PatchParams::default(), &Patch::Merge(&step))
        .await
        .unwrap();
    watched.says("eviction of pod default/web-1").await;
    migrations()
        .await
        .delete(NAME, &DeleteParams::default())
        .await
        .unwrap();
    let answer = watched
        .ends()
        .await
        .expect(1, &["Migration flannel-to-calico was deleted"]);
    assert!(
        answer
            .out
            .contains("node worker-1: -, Drain: DisruptionBudget: eviction of pod default/web-1"),
        "{answer:?}"
    );
    assert!(answer.out.contains("look 7"), "{answer:?}");
    let of_other = answer
        .out
        .lines()
        .filter(|line| line.contains("node worker-2"))
        .count();
    assert_eq!(
        of_other, 1,
        "a line that did not change was printed again: {}",
        answer.out
    );
}

/// The real coordinator, with its own rights, in a cluster without nodes and without flannel.
struct RealCoordinator(Child);

impl Drop for RealCoordinator {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn real_coordinator() -> RealCoordinator {
    let lab = ApiLab::shared().unwrap();
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    let kubeconfig = lab.folder().join("coordinator.conf");
    authority::write(&kubeconfig, &lab.kubeconfig_with_token(&token).unwrap()).unwrap();
    let log = std::fs::File::create(lab.folder().join("coordinator.log")).unwrap();
    let child = Command::new(built("replumb-coordinator").unwrap())
        .env("KUBECONFIG", kubeconfig)
        .args([
            "--pod-name",
            "coordinator-1",
            "--node-name",
            "none",
            "--agent-image",
            "none",
            "--listen",
            "127.0.0.1:0",
        ])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    RealCoordinator(child)
}

/// Waits until the real coordinator leads.
async fn leads() -> Api<Lease> {
    let lab = ApiLab::shared().unwrap();
    let leases: Api<Lease> = Api::namespaced(lab.admin().await.unwrap(), names::NAMESPACE);
    until(
        "the coordinator to lead",
        Duration::from_mins(1),
        lab.folder(),
        async || {
            let lease = leases.get_opt(names::COORDINATOR).await?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            Ok(if holder.as_deref() == Some("coordinator-1") {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{holder:?}"))
            })
        },
    )
    .await
    .unwrap();
    leases
}

/// Two hops in the command's form, as a file.
async fn two_hops() -> String {
    let manifest = replumb(&[
        "generate",
        "pod-cidr",
        "--from",
        "100.64.0.0/10",
        "--to",
        "100.96.0.0/11",
        "--via",
        "10.200.0.0/16",
    ])
    .await
    .expect(0, &["pod-cidr-hop-1", "pod-cidr-hop-2"]);
    let file = ApiLab::shared().unwrap().folder().join("hops.yaml");
    std::fs::write(&file, manifest.out).unwrap();
    file.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn manifests_of_the_command_are_accepted_and_neither_start_nor_stop_a_migration() {
    let _turn = turn().await;
    let lab = ApiLab::shared().unwrap();
    let file = two_hops().await;
    let hops = ["pod-cidr-hop-1", "pod-cidr-hop-2"];
    lab.kubectl(&["apply", "-f", &file]).unwrap();
    for hop in hops {
        let spec = migration(hop).await.spec;
        assert_eq!((spec.desired, spec.plan_hash), (Desired::Plan, None), "{hop}");
        assert!(spec.pod_cidr.is_some(), "{hop}");
    }
    replumb(&["status"])
        .await
        .expect(1, &["several Migrations found, name one", hops[0], hops[1]]);
    replumb(&["plan", "-f", &file])
        .await
        .expect(1, &["found 2 documents", "kubectl replumb plan pod-cidr-hop-1"]);

    // The kind is immutable, and the command refuses a change of the kind before a request to the API server.
    replumb(&["plan", hops[0], "--pod-cidr-soak", "1h"]).await.expect(
        1,
        &[
            "podCidr.soakSeconds: found nothing, requested 3600",
            "kubectl delete migration pod-cidr-hop-1",
        ],
    );
    replumb(&["plan", hops[0], "--flannel-vni", "1"]).await.expect(
        1,
        &["found spec.podCidr, requested spec.flannelToCalico by --flannel-vni"],
    );
    replumb(&["plan", "mine", "--pod-cidr-from", "10.0.0.0/16"])
        .await
        .expect(
            1,
            &["cannot be created while another Migration", hops[0], hops[1]],
        );

    // The same file again: the running migration is not stopped.
    let patch = Patch::Merge(json!({"spec": {"desired": "Run"}}));
    migrations()
        .await
        .patch(hops[0], &PatchParams::default(), &patch)
        .await
        .unwrap();
    for how in [
        &["apply", "-f", &file][..],
        &["apply", "--server-side", "--force-conflicts", "-f", &file],
    ] {
        lab.kubectl(how).unwrap();
        assert_eq!(migration(hops[0]).await.spec.desired, Desired::Run, "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn the_second_of_two_hops_waits_for_the_first() {
    let _turn = turn().await;
    let lab = ApiLab::shared().unwrap();
    let file = two_hops().await;
    // Calico is installed here, but has no pool.
    let calico = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/calico-crds.yaml");
    lab.kubectl(&["apply", "--server-side", "-f", calico]).unwrap();
    lab.kubectl(&[
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "-f",
        calico,
    ])
    .unwrap();
    lab.kubectl(&["apply", "-f", &file]).unwrap();
    let coordinator = real_coordinator().await;
    leads().await;
    let blocked = async |name: &str, wanted: &[&str]| {
        until("the refusal", Duration::from_mins(2), lab.folder(), async || {
            let blocked = migration(name).await.status.unwrap_or_default().reason;
            Ok(if wanted.contains(&blocked.as_str()) {
                Observation::Done(())
            } else {
                Observation::NotYet(blocked)
            })
        })
        .await
        .unwrap();
    };
    // The first is refused by its own checks, and the second by the first.
    blocked("pod-cidr-hop-1", &["ChecksFailed"]).await;
    blocked("pod-cidr-hop-2", &["AnotherMigration"]).await;
    replumb(&["apply", "pod-cidr-hop-2", "--yes"])
        .await
        .expect(2, &["AnotherMigration", "pod-cidr-hop-1 is active"]);
    replumb(&["preflight", "pod-cidr-hop-1"])
        .await
        .expect(2, &["FAIL", "OldPool", "IPPool of 100.64.0.0/10"]);
    // Once the first is finished, the second is checked alone, and its own checks decide.
    lab.kubectl(&["delete", "migration", "pod-cidr-hop-1"]).unwrap();
    blocked("pod-cidr-hop-2", &["ChecksFailed"]).await;
    replumb(&["preflight"])
        .await
        .expect(2, &["OldPool", "IPPool of 10.200.0.0/16"]);
    drop(coordinator);
    lab.kubectl(&["delete", "-f", calico]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts an API server: cargo lab test"]
async fn the_real_coordinator_refuses_a_cluster_without_flannel_and_names_it() {
    let _turn = turn().await;
    let coordinator = real_coordinator().await;
    let lab = ApiLab::shared().unwrap();
    let leases = leads().await;

    // The answer is never "nothing to migrate": the missing objects are named.
    let answer = replumb(&["preflight", "--flannel-daemonset-name", "kube-flannel-ds-amd64"]).await;
    let answer = answer.expect(2, &["FAIL", "kube-flannel-ds-amd64", "REFUSED"]);
    assert!(answer.out.contains("fix"), "{}", answer.out);
    replumb(&["apply", "--yes"]).await.expect(2, &["REFUSED"]);
    create("second").await;
    let second = async || migration("second").await.status.unwrap_or_default();
    until(
        "the second to be refused",
        Duration::from_secs(30),
        lab.folder(),
        async || {
            let status = second().await;
            Ok(if status.reason == "AnotherMigration" {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{status:?}"))
            })
        },
    )
    .await
    .unwrap();
    replumb(&["status", "second"])
        .await
        .expect(2, &["AnotherMigration", "flannel-to-calico is active"]);

    drop(coordinator);
    // A status of a moment ago is still valid; an older one is not shown any more.
    until(
        "the Lease to grow old",
        Duration::from_secs(30),
        lab.folder(),
        async || {
            let spec = leases.get(names::COORDINATOR).await?.spec.unwrap();
            let age = Timestamp::now().duration_since(spec.renew_time.unwrap().0);
            Ok(if age > SignedDuration::from_secs(6) {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{age:#}"))
            })
        },
    )
    .await
    .unwrap();
    replumb(&["preflight", NAME])
        .await
        .expect(1, &["no active coordinator", "held by coordinator-1"]);
}
