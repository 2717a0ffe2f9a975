//! One long-running process for each client: it tries connections for as long as the comparison lasts.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use traffic::ask::{Answer, Batch, Question};

use crate::cluster::Cluster;
use crate::cluster::state::CONTROL_PLANE;

/// Time for a batch beyond its own: a busy machine delays processes by seconds.
const SLACK: Duration = Duration::from_mins(1);

/// The process.
#[derive(Debug)]
pub struct Asker {
    name: String,
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Asker {
    /// In a pod, by `kubectl exec`.
    pub async fn in_pod(cluster: &Cluster, namespace: &str, pod: &str) -> Result<Self> {
        let mut command = Command::new(cluster.kubectl_program().await);
        command
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .args(["exec", "--stdin", "--namespace", namespace, pod])
            .args(["--container", "answer", "--", "/usr/bin/traffic", "ask"]);
        Self::start(cluster, format!("{namespace}/{pod}"), command)
    }

    /// On the machine of the control plane, which is no node of the cluster.
    pub fn outside(cluster: &Cluster, program: &std::path::Path) -> Result<Self> {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--target",
                &cluster.pid(CONTROL_PLANE)?.to_string(),
                "--net",
                "--",
            ])
            .arg(program)
            .arg("ask");
        Self::start(cluster, CONTROL_PLANE.to_owned(), command)
    }

    fn start(cluster: &Cluster, name: String, mut command: Command) -> Result<Self> {
        let log = cluster
            .directory()
            .logs()
            .join(format!("ask-{}.log", name.replace('/', "-")));
        let log = std::fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start the asking process of {name}"))?;
        let questions = child
            .stdin
            .take()
            .context("open the input of the asking process")?;
        let answers = child
            .stdout
            .take()
            .context("open the output of the asking process")?;
        Ok(Self {
            name,
            child,
            questions,
            answers: BufReader::new(answers).lines(),
        })
    }

    /// Asks all questions at the same time; one answer for each, in their order.
    pub async fn ask(&mut self, questions: Vec<Question>, wait: Duration) -> Result<Vec<Answer>> {
        let asked = questions.len();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let mut line = serde_json::to_string(&Batch { questions, wait_ms })?;
        line.push('\n');
        let exchange = async {
            self.questions.write_all(line.as_bytes()).await?;
            self.answers.next_line().await
        };
        let answered = tokio::time::timeout(wait + SLACK, exchange)
            .await
            .with_context(|| format!("{} answers no batch of {asked} questions in time", self.name))?
            .with_context(|| format!("ask from {}", self.name))?;
        let Some(line) = answered else {
            let status = self.child.wait().await.context("wait for the asking process")?;
            bail!(
                "the asking process of {} has ended ({status}): its errors are in ask-{}.log of the lab's logs",
                self.name,
                self.name.replace('/', "-")
            );
        };
        let answers: Vec<Answer> = serde_json::from_str(&line)
            .with_context(|| format!("parse the answers of {}: {line}", self.name))?;
        ensure!(
            answers.len() == asked,
            "{}: found {} answers, needed {asked}",
            self.name,
            answers.len()
        );
        Ok(answers)
    }
}
