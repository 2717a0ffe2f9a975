//! A simulated user: takes the manual steps while a migration runs, as the demo's user does.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};

use super::migration;
use super::proxy::Target;
use super::shape;
use super::size::{Kind, NEW_PODS, NEW_SERVICES};
use crate::apilab::OwnApiLab;
use crate::demo::report::ManualStep;
use crate::progress::Progress;

/// The Migration's texts for the manual step.
const API_SERVERS: &str = "ApiServers";
const CONFIGURATION: &str = "ConfigurationFollowUp";
/// The variable of calico-node with the range of the pool that calico-node creates.
const POOL_VARIABLE: &str = "CALICO_IPV4POOL_CIDR";
/// Time between two reads of the Migration.
const PACE: Duration = Duration::from_millis(500);
/// Number of letters of a request that the report keeps: a request may name every kubelet.
const WORDS: usize = 240;

/// The user, with the means for the manual steps.
pub struct Person<'lab> {
    /// The API server and its etcd.
    pub lab: &'lab OwnApiLab,
    /// The administrator's client.
    pub client: &'lab Client,
    /// The path of the coordinator's requests.
    pub way: Target,
    /// Receives a line for each step.
    pub progress: &'lab Progress,
}

impl Person<'_> {
    /// Takes each requested step once, until dropped, and adds it to `all`.
    pub async fn play(self, kind: Kind, all: &mut Vec<ManualStep>) -> Result<Infallible> {
        match kind {
            // The Migration requests no step.
            Kind::FlannelToCalico => std::future::pending().await,
            Kind::PodCidr => self.pods(all).await,
            Kind::ServiceCidr => self.services(all).await,
        }
    }

    /// Sets the new range of the pool that calico-node would create.
    async fn pods(self, all: &mut Vec<ManualStep>) -> Result<Infallible> {
        loop {
            tokio::time::sleep(PACE).await;
            let Some(stand) = migration::status(self.client).await? else {
                continue;
            };
            if stand.blocked != CONFIGURATION || !stand.message.contains(POOL_VARIABLE) || !all.is_empty() {
                continue;
            }
            let setting = format!("{POOL_VARIABLE}={NEW_PODS}");
            let command = [
                "set",
                "env",
                "daemonset/calico-node",
                "--containers=calico-node",
                &setting,
            ];
            self.lab
                .kubectl(&[&["-n", "kube-system"], &command[..]].concat())?;
            self.record(&stand.message, format!("kubectl {}", command.join(" ")), all);
        }
    }

    fn record(&self, requested: &str, done: String, all: &mut Vec<ManualStep>) {
        self.progress.say(format_args!("the person: {done}"));
        all.push(ManualStep {
            requested: requested.chars().take(WORDS).collect(),
            done,
        });
    }

    async fn services(self, all: &mut Vec<ManualStep>) -> Result<Infallible> {
        let (mut has_flag, mut has_name_server) = (false, false);
        loop {
            tokio::time::sleep(PACE).await;
            let Some(stand) = migration::status(self.client).await? else {
                continue;
            };
            let done = match stand.blocked.as_str() {
                API_SERVERS if !has_flag => {
                    has_flag = true;
                    self.flag().await?
                }
                CONFIGURATION if !has_name_server => {
                    has_name_server = true;
                    self.name_server().await?
                }
                _ => continue,
            };
            self.record(&stand.message, done, all);
        }
    }

    /// Starts the API server with the new range. Meanwhile the coordinator is connected to a second one, as through a
    /// load balancer in front of several API servers; all other clients wait until the first one is back.
    async fn flag(&self) -> Result<String> {
        let range: Ipv4Net = NEW_SERVICES.parse().context("read the new range of Services")?;
        let first = Ipv4Addr::from_bits(range.network().to_bits() + 1);
        self.lab.certify_also(first)?;
        let second = self.lab.second_server(NEW_SERVICES).await?;
        self.way.lead_to(second.address);
        self.lab.restart_server(NEW_SERVICES).await?;
        self.way
            .lead_to(SocketAddr::from((Ipv4Addr::LOCALHOST, self.lab.port())));
        Ok(format!(
            "started the API server with --service-cluster-ip-range={NEW_SERVICES} and a certificate for {first}"
        ))
    }

    /// Sets the new address of the name servers in every kubelet. Hollow kubelets use the settings in their `ConfigMap`.
    async fn name_server(&self) -> Result<String> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), "kube-system");
        let service = services
            .get("kube-dns")
            .await
            .context("read Service kube-system/kube-dns")?;
        let address: Ipv4Addr = service
            .spec
            .and_then(|spec| spec.cluster_ip)
            .context("read the clusterIP of Service kube-system/kube-dns")?
            .parse()
            .context("read the address of Service kube-system/kube-dns")?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let change = Patch::Merge(shape::kubelet_configuration(address));
        maps.patch(shape::KUBELET_CONFIGURATION, &PatchParams::default(), &change)
            .await
            .with_context(|| format!("change ConfigMap kube-system/{}", shape::KUBELET_CONFIGURATION))?;
        Ok(format!("set clusterDNS {address} in every kubelet"))
    }
}
