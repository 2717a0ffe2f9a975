//! A bundle is judged as its cluster is, has no secret, and without names as with names. The cluster is one in memory: a field case.

#![expect(clippy::unwrap_used, reason = "a test fails with a panic")]

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use api::{Migration, NodeMigration};
use kube::api::ListParams;
use kube::{Api, Client};
use offline::bundle::{self, Cluster};
use offline::cluster::MemoryCluster;
use offline::field_case::FieldCase;
use offline::judge::{Judgement, judge_existing};
use offline::snapshot::{Document, Snapshot};
use serde_json::{Value, json};

const NAME: &str = "judged";

/// The judgement of a cluster, and its bundle.
async fn bundled(snapshot: Snapshot, spec: &Value) -> anyhow::Result<(Judgement, Document)> {
    let cluster = MemoryCluster::of(snapshot)?;
    let mut spec = spec.clone();
    spec["desired"] = json!("Plan");
    cluster.put_migration(NAME, &spec);
    let judgement = judge_existing(&cluster, NAME).await?;
    let document = bundle::collect(Cluster {
        client: cluster.client(),
        coordinator: cluster.coordinator().clone(),
        migration: Api::<Migration>::all(cluster.client()).get(NAME).await?,
        reports: reports(&cluster.client()).await?,
    })
    .await?;
    Ok((judgement, document))
}

async fn reports(
    client: &Client,
) -> anyhow::Result<BTreeMap<String, api::node_migration::NodeMigrationStatus>> {
    let nodes = Api::<NodeMigration>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    let report = |node: NodeMigration| Some((node.spec.node_name, node.status?));
    Ok(nodes.into_iter().filter_map(report).collect())
}

/// The document as a file has it.
fn read_again(document: &Document) -> Document {
    let text = yaml_serde::to_string(&json!(document)).unwrap();
    Document::parse(&text).unwrap()
}

/// Names and verdicts of the checks.
fn verdicts(judgement: &Judgement) -> Vec<String> {
    let checks = judgement.checks.iter();
    let mut all: Vec<String> = checks
        .map(|check| format!("{} {}", check.name, check.verdict.as_str()))
        .collect();
    all.sort();
    all
}

async fn differences(path: &Path) -> anyhow::Result<Vec<String>> {
    let case = FieldCase::parse(&std::fs::read_to_string(path)?)?;
    let (snapshot, specs) = case.cluster()?;
    let mut found = Vec::new();
    for spec in specs {
        let (judgement, document) = Box::pin(bundled(snapshot.clone(), spec)).await?;
        let judged = bundle::judge(&read_again(&document), NAME).await?;
        for (here, there) in [(&judgement, &judged), (&judged, &judgement)] {
            for check in &here.checks {
                if !there.checks.contains(check) {
                    found.push(format!("{spec}: {check:?}"));
                }
            }
        }
        if judgement.plan_hash != judged.plan_hash {
            found.push(format!("{spec}: another plan"));
        }
        let mut redacted = document;
        bundle::hide_names(&mut redacted, b"salt");
        let redacted = read_again(&redacted);
        let judged = bundle::judge(&redacted, NAME)
            .await
            .context("with replaced names")?;
        if verdicts(&judgement) != verdicts(&judged) {
            found.push(format!(
                "{spec}: with replaced names {:?}, with names {:?}",
                verdicts(&judged),
                verdicts(&judgement)
            ));
        }
    }
    Ok(found)
}

#[tokio::test]
async fn a_bundle_of_each_field_case_is_judged_as_its_cluster() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/field-cases");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 80, "{} cases", paths.len());
    let mut wrong = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match Box::pin(differences(&path)).await {
            Ok(found) => wrong.extend(found.into_iter().map(|line| format!("{name}: {line}"))),
            Err(error) => wrong.push(format!("{name}: {error:#}")),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A cluster with a secret in every place that people use for one.
const PLANTED: &str = r#"
apiVersion: replumb.dev/v1alpha1
kind: ClusterSnapshot
base: good-flannel-cluster
patches:
  - object: {kind: DaemonSet, namespace: kube-flannel, name: kube-flannel-ds}
    patch:
      metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"env":"hunter2"}', note: hunter2}}
  - object: {kind: ConfigMap, namespace: kube-flannel, name: kube-flannel-cfg}
    patch: {data: {other: hunter2}, binaryData: {blob: hunter2}}
  - object: {kind: Deployment, namespace: shop, name: web}
    patch:
      metadata:
        annotations:
          vault.example/token: hunter2
          kapp.k14s.io/original: '{"env":[{"name":"DB_PASSWORD","value":"hunter2"}]}'
          objectset.rio.cattle.io/applied: hunter2
          argocd.argoproj.io/tracking-id: hunter2
      spec:
        template:
          metadata: {annotations: {vault.example/token: hunter2}, labels: {app: web}}
          spec:
            hostAliases: [{ip: 10.0.0.9, hostnames: [hunter2.example]}]
            containers:
              - name: web
                image: shop/web:1
                command: [sh, -c, "run --password hunter2"]
                args: ["--token=hunter2", hunter2, -phunter2, "--password:hunter2", "--config=root:hunter2@tcp(db:3306)/x"]
                env:
                  - {name: PASSWORD, value: hunter2}
                  - {name: FELIX_HTTPPASSWORD, value: hunter2}
                  - {name: KUBERNETES_SERVICE_ACCOUNT_JWT, value: hunter2}
                  - {name: CALICO_LICENSE_KEY, value: hunter2}
                livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: Authorization, value: hunter2}]}}
                lifecycle: {preStop: {exec: {command: [hunter2]}}}
            volumes: [{name: share, cifs: {password: hunter2}}, {name: csi, csi: {driver: x, volumeAttributes: {key: hunter2}}}]
objects:
  - apiVersion: v1
    kind: Pod
    metadata: {namespace: kube-system, name: kube-apiserver-control-1, annotations: {kubernetes.io/config.mirror: hunter2}}
    spec:
      nodeName: control-1
      hostNetwork: true
      containers:
        - name: kube-apiserver
          command: [kube-apiserver, "--service-cluster-ip-range=10.96.0.0/12", "--etcd-password=hunter2"]
          env: [{name: TOKEN, value: hunter2}]
    status: {phase: Running, message: hunter2, conditions: [{type: Ready, status: "True", message: hunter2}]}
  - apiVersion: admissionregistration.k8s.io/v1
    kind: ValidatingWebhookConfiguration
    metadata: {name: hooks}
    webhooks:
      - name: a.example.com
        failurePolicy: Ignore
        sideEffects: None
        admissionReviewVersions: [v1]
        clientConfig: {url: "https://me:hunter2@hooks.example/", caBundle: hunter2}
  - apiVersion: v1
    kind: ConfigMap
    metadata: {namespace: kube-system, name: kube-proxy}
    data:
      kubeconfig.conf: "users: [{user: {token: hunter2}}]"
      config.conf: "kind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\npassword: hunter2\n"
"#;

#[tokio::test]
async fn nothing_secret_is_in_a_bundle() {
    let snapshot = Snapshot::parse(PLANTED).unwrap();
    for spec in [
        json!({ "flannelToCalico": { "strategy": "Drain" } }),
        json!({ "podCidr": { "from": "10.244.0.0/16", "to": "10.200.0.0/16" } }),
    ] {
        let (_, document) = Box::pin(bundled(snapshot.clone(), &spec)).await.unwrap();
        let text = yaml_serde::to_string(&json!(document)).unwrap();
        let found: Vec<&str> = text.lines().filter(|line| line.contains("hunter2")).collect();
        assert!(found.is_empty(), "{spec}: {found:#?}");
        assert!(
            text.contains("name: PASSWORD") && text.contains("kube-flannel-cfg"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_read_that_the_api_server_refuses_ends_the_bundle_with_its_path() {
    let cluster = MemoryCluster::of(Snapshot::parse(PLANTED).unwrap()).unwrap();
    let answering = cluster.client();
    let refusing = memory_api::client(move |call: memory_api::Call| {
        let client = answering.clone();
        async move {
            if call.path.ends_with("/validatingwebhookconfigurations") {
                return Ok(memory_api::failure(http::StatusCode::FORBIDDEN, "Forbidden"));
            }
            let uri = format!("{}?{}", call.path, call.query);
            let request = http::Request::builder().method(call.method).uri(uri);
            let request = request.body(Vec::new()).map_err(std::io::Error::other)?;
            Ok(match client.request::<Value>(request).await {
                Ok(answer) => (http::StatusCode::OK, answer),
                Err(_) => memory_api::failure(http::StatusCode::NOT_FOUND, "NotFound"),
            })
        }
    })
    .build();
    let migration = json!({ "metadata": { "name": NAME }, "spec": { "desired": "Plan", "flannelToCalico": { "strategy": "Drain" } } });
    let error = bundle::collect(Cluster {
        client: refusing,
        coordinator: cluster.coordinator().clone(),
        migration: serde_json::from_value(migration).unwrap(),
        reports: BTreeMap::new(),
    })
    .await
    .unwrap_err();
    assert!(
        error.to_string().contains("/validatingwebhookconfigurations"),
        "{error}"
    );
}
