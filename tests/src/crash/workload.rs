//! A pod of Calico on every node: the rollback has pods to move.

use std::time::Duration;

use anyhow::Result;

use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};

const LIMIT: Duration = Duration::from_mins(3);

/// Creates it once every node is on Calico.
pub async fn create(cluster: &Cluster) -> Result<()> {
    let busybox = Images::default().busybox;
    let replicas = cluster.node_names().await.len();
    cluster
        .api()
        .apply(&format!(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: newcomer, namespace: sample }}
spec:
  replicas: {replicas}
  selector: {{ matchLabels: {{ app: newcomer }} }}
  template:
    metadata: {{ labels: {{ app: newcomer }} }}
    spec:
      terminationGracePeriodSeconds: 1
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector: {{ matchLabels: {{ app: newcomer }} }}
      tolerations: [{{ key: node-role.kubernetes.io/control-plane, operator: Exists }}]
      containers:
        - {{ name: newcomer, image: '{busybox}', imagePullPolicy: Never, command: [sh, -c, 'sleep 86400'] }}
"
        ))
        .await?;
    cluster
        .api()
        .rolled_out("deployment/newcomer", "sample", LIMIT)
        .await
}

/// Deletes the workload, and waits until its pods have ended on their hosts.
pub async fn delete(cluster: &Cluster) -> Result<()> {
    let kubectl = async |arguments: &[&str]| {
        let arguments = [&["-n", "sample"], arguments].concat();
        cluster.api().kubectl(&arguments).await
    };
    kubectl(&[
        "delete",
        "deployment",
        "newcomer",
        "--cascade=foreground",
        "--wait",
    ])
    .await?;
    let logs = cluster.directory().logs();
    until("its pods to be deleted", LIMIT, &logs, async || {
        let left = kubectl(&["get", "pods", "-l", "app=newcomer", "-o", "name"]).await?;
        Ok(if left.trim().is_empty() {
            Observation::Done(())
        } else {
            Observation::NotYet(left)
        })
    })
    .await
}
