//! A played person: does what only people may do while a migration runs, as the demo's operator does.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde::Serialize;

use super::migration;
use super::proxy::Way;
use super::shape;
use super::size::{Kind, NEW_PODS, NEW_SERVICES};
use crate::apilab::OwnApiLab;
use crate::progress::Progress;

/// The Migration's words for it.
const API_SERVERS: &str = "ApiServers";
const CONFIGURATION: &str = "ConfigurationFollowUp";
/// The variable of calico-node with the range of the pool that calico-node makes.
const POOL_VARIABLE: &str = "CALICO_IPV4POOL_CIDR";
/// Between two looks at the Migration.
const PACE: Duration = Duration::from_millis(500);
/// The letters of a question that the report keeps: a question may name every kubelet.
const WORDS: usize = 240;

/// One thing that was asked for and done.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowUp {
    /// The beginning of the Migration's message.
    pub asked: String,
    /// The answer of the person.
    pub done: String,
}

/// The person, with all that the work needs.
pub struct Person<'lab> {
    /// The API server and its store.
    pub lab: &'lab OwnApiLab,
    /// The administrator.
    pub client: &'lab Client,
    /// The way of the coordinator's requests.
    pub way: Way,
    /// The place for words on each answer.
    pub progress: &'lab Progress,
}

impl Person<'_> {
    /// Does what the migration asks for, once each, until it is dropped. What was done is added to `all`.
    pub async fn play(self, kind: Kind, all: &mut Vec<FollowUp>) -> Result<Infallible> {
        match kind {
            // Nothing is asked.
            Kind::FlannelToCalico => std::future::pending().await,
            Kind::PodCidr => self.pods(all).await,
            Kind::ServiceCidr => self.services(all).await,
        }
    }

    /// Tells calico-node the new range of the pool that it would make.
    async fn pods(self, all: &mut Vec<FollowUp>) -> Result<Infallible> {
        loop {
            tokio::time::sleep(PACE).await;
            let Some(stand) = migration::stand(self.client).await? else {
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
            self.tell(&stand.message, format!("kubectl {}", command.join(" ")), all);
        }
    }

    fn tell(&self, asked: &str, done: String, all: &mut Vec<FollowUp>) {
        self.progress.say(format_args!("the person: {done}"));
        all.push(FollowUp {
            asked: asked.chars().take(WORDS).collect(),
            done,
        });
    }

    async fn services(self, all: &mut Vec<FollowUp>) -> Result<Infallible> {
        let (mut has_flag, mut has_name_server) = (false, false);
        loop {
            tokio::time::sleep(PACE).await;
            let Some(stand) = migration::stand(self.client).await? else {
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
            self.tell(&stand.message, done, all);
        }
    }

    /// Starts the API server with the new range. Meanwhile the coordinator is led to a second one, as a balancer in front of several
    /// does it; all other clients wait until the first one is back.
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

    /// Tells every kubelet the new address of the name servers. Hollow kubelets run with what their `ConfigMap` says.
    async fn name_server(&self) -> Result<String> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), "kube-system");
        let service = services
            .get("kube-dns")
            .await
            .context("read Service kube-system/kube-dns")?;
        let address: Ipv4Addr = service
            .spec
            .and_then(|spec| spec.cluster_ip)
            .context("Service kube-system/kube-dns has an address")?
            .parse()
            .context("read the address of Service kube-system/kube-dns")?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let change = Patch::Merge(shape::kubelet_configuration(address));
        maps.patch(shape::KUBELET_CONFIGURATION, &PatchParams::default(), &change)
            .await
            .with_context(|| format!("change ConfigMap kube-system/{}", shape::KUBELET_CONFIGURATION))?;
        Ok(format!("let every kubelet run with clusterDNS {address}"))
    }
}
