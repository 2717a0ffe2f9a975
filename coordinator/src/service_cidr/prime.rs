//! A Service of no use, whose change makes every kube-proxy write its rules now: see [`plan::service_cidr::prime`].

use std::net::IpAddr;
use std::time::Instant;

use jiff::SignedDuration;
use kube::Client;
use plan::service_cidr::side::Side;
use plan::service_cidr::subjects::OURS_LABEL;
use serde_json::json;

use super::objects::{create_service, delete_service, patch_service, service};
use crate::write::WriteError;

/// Its two ports: it has one, then the other.
const PORTS: [u64; 2] = [9, 10];

/// Who makes every kube-proxy write its rules.
#[derive(Clone)]
pub struct Prime<'pass> {
    /// A client.
    pub client: &'pass Client,
    /// Namespace of the Service.
    pub namespace: &'pass str,
    /// Which addresses are come to: on the way back it is another Service, since its address holds the range that it is of.
    pub goal: Side,
    /// Address of the Service. It is asked for: one that the API chose could be of the range that is left, and hold it.
    pub address: IpAddr,
}

impl Prime<'_> {
    /// The Service as watches name it.
    pub fn object(&self) -> String {
        format!("Service {}/{}", self.namespace, name(self.goal))
    }

    /// Changes the Service, and says how long the API server took for it. The first time it is made.
    pub async fn make(&self) -> Result<SignedDuration, WriteError> {
        let found = service(self.client, self.namespace, &name(self.goal)).await?;
        let asked = Instant::now();
        match found {
            None => {
                let object = json!({
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {
                        "name": name(self.goal),
                        "namespace": self.namespace,
                        "labels": { "app.kubernetes.io/managed-by": "replumb", OURS_LABEL: "prime" },
                    },
                    // Nobody is behind it, and nobody asks it.
                    "spec": { "clusterIP": self.address, "ports": [{ "port": PORTS[0] }] },
                });
                create_service(self.client, self.namespace, &object).await?;
            }
            Some(found) => {
                let has = found["spec"]["ports"][0]["port"].as_u64();
                let port = if has == Some(PORTS[0]) { PORTS[1] } else { PORTS[0] };
                let change =
                    json!({ "spec": { "ports": [{ "port": port, "targetPort": port, "protocol": "TCP" }] } });
                patch_service(self.client, &found, &change).await?;
            }
        }
        Ok(SignedDuration::try_from(asked.elapsed()).unwrap_or(SignedDuration::MAX))
    }
}

fn name(goal: Side) -> String {
    format!("replumb-prime-{}", goal.as_str())
}

/// Deletes the Service of this way.
pub async fn remove(client: &Client, namespace: &str, goal: Side) -> Result<(), WriteError> {
    match service(client, namespace, &name(goal)).await? {
        Some(found) => delete_service(client, &found).await,
        None => Ok(()),
    }
}
