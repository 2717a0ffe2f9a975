//! A bundle of a live cluster: judged on the file as in the cluster, without the secrets that were planted in the cluster.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::demo;
use crate::demo::operator::{Exit, Operator};

/// What no bundle may contain.
const PLANTED: &str = "planted-4f1c";
/// Where people have secrets: a Secret, a `ConfigMap`, and a workload's variables, arguments, annotations and probes.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Secret
metadata: {namespace: sample, name: planted}
stringData: {password: planted-4f1c}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: sample, name: planted}
data: {password: planted-4f1c}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: sample, name: planted, annotations: {vault.example/token: planted-4f1c}}
spec:
  replicas: 0
  selector: {matchLabels: {app: planted}}
  template:
    metadata: {labels: {app: planted}, annotations: {vault.example/token: planted-4f1c}}
    spec:
      containers:
        - name: planted
          image: planted.example/planted
          command: [sh, -c, "run --password planted-4f1c"]
          args: ["--token=planted-4f1c"]
          env: [{name: PASSWORD, value: planted-4f1c}]
          livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: Authorization, value: planted-4f1c}]}}
"#;

/// Writes bundles of the cluster for this Migration, and judges them: the checks, and without replaced names the plan, are those of
/// the cluster.
pub(super) async fn judged_offline(cluster: &Cluster, operator: &Operator, manifest: &Value) -> Result<()> {
    let folder = cluster.directory().path();
    let objects = folder.join("planted.yaml");
    std::fs::write(&objects, OBJECTS).with_context(|| format!("write {}", objects.display()))?;
    let objects = objects.to_string_lossy();
    cluster.api().kubectl(&["apply", "-f", &objects]).await?;
    let judged = judge(cluster, operator, manifest).await;
    cluster
        .api()
        .kubectl(&["delete", "-f", &objects, "--wait"])
        .await?;
    judged
}

async fn judge(cluster: &Cluster, operator: &Operator, manifest: &Value) -> Result<()> {
    let file = operator.write_manifest(manifest)?;
    let file = file.to_string_lossy();
    let bundle = async |name: &str, more: &[&str]| -> Result<(String, Value)> {
        let path = cluster.directory().path().join(name);
        if path.exists() {
            std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        let path = path.to_string_lossy().into_owned();
        let arguments = [&["bundle", &path, "--filename", &file, "--output", "json"], more].concat();
        let answer = operator.expect(Exit::Done, &arguments).await?;
        let written = answer.first_object().context("read the answer of bundle")?;
        ensure!(
            written["differences"] == json!([]),
            "{path}: {}",
            written["differences"]
        );
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let planted: Vec<&str> = text.lines().filter(|line| line.contains(PLANTED)).collect();
        ensure!(planted.is_empty(), "{path} has the planted secret: {planted:?}");
        ensure!(
            text.contains("name: PASSWORD"),
            "{path} has not read the planted workload"
        );
        Ok((path, written))
    };
    let (path, written) = bundle("bundle.yaml", &[]).await?;
    let online = demo::status(cluster).await?["plan"]["hash"].clone();
    ensure!(
        written["planHash"] == online,
        "{} on the file, {online} in the cluster",
        written["planHash"]
    );
    let answer = operator
        .expect(Exit::Done, &["plan", "--snapshot", &path, "--output", "json"])
        .await?;
    let plan = answer.first_object().context("read the plan of the bundle")?;
    ensure!(
        plan["hash"] == online,
        "plan --snapshot: {}, in the cluster {online}",
        plan["hash"]
    );
    let (path, _) = bundle("redacted.yaml", &["--redact"]).await?;
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    for name in cluster
        .node_names()
        .await
        .iter()
        .map(String::as_str)
        .chain(["sample", "planted"])
    {
        let found: Vec<&str> = text.lines().filter(|line| has_word(line, name)).collect();
        ensure!(found.is_empty(), "{path} has the name {name}: {found:?}");
    }
    operator
        .expect(Exit::Done, &["plan", "--snapshot", &path])
        .await
        .map(|_| ())
}

fn has_word(line: &str, name: &str) -> bool {
    let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '-');
    words.any(|word| word == name)
}
