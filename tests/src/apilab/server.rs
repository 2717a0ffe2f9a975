//! The API server's process: its certificate, its arguments, and a restart with another range of Services.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::PoisonError;

use anyhow::{Result, ensure};

use super::{ApiLab, client, start};
use crate::cluster::authority::{self, Authority};
use crate::cluster::control_plane::KUBERNETES_SERVICE;
use crate::ports::Port;
use crate::started::{Process, on_free_ports};

/// Index among the processes of a lab: after etcd.
const PLACE: usize = 1;
/// The name with which a client reaches each API server at its own address.
const NAMES: [&str; 2] = ["localhost", "kubernetes.default.svc"];
const PROGRAM: &str = "kube-apiserver";

/// The arguments that every start of the API server shares.
#[derive(Debug)]
pub(super) struct Server {
    /// The port of etcd.
    pub(super) etcd: Port,
    /// The peer port of etcd.
    pub(super) _peers: Port,
    /// The port that clients use.
    pub(super) port: Port,
    /// Additional arguments of the lab.
    pub(super) more: String,
}

impl Server {
    /// The arguments with this range of Services and this port.
    pub(super) fn arguments(&self, keys: &Path, port: &Port, services: &str) -> String {
        let (etcd, port, more) = (self.etcd.number(), port.number(), &self.more);
        let keys = keys.display();
        format!(
            "--etcd-servers=http://127.0.0.1:{etcd} --bind-address=127.0.0.1 --advertise-address=127.0.0.1 \
             --secure-port={port} --endpoint-reconciler-type=none --service-cluster-ip-range={services} \
             --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
             --anonymous-auth=false --client-ca-file={keys}/ca.crt --cert-dir={keys} \
             --tls-cert-file={keys}/apiserver.crt --tls-private-key-file={keys}/apiserver.key \
             --service-account-issuer=https://kubernetes.default.svc.cluster.local \
             --service-account-key-file={keys}/service-account.pub \
             --service-account-signing-key-file={keys}/service-account.key \
             --profiling=false --shutdown-delay-duration=0s {more}"
        )
    }
}

/// Writes a certificate of the API server for the loopback, and for these addresses of Service `default/kubernetes`.
pub(super) fn certify(authority: &Authority, services: &[Ipv4Addr]) -> Result<()> {
    let addresses: Vec<IpAddr> = [Ipv4Addr::LOCALHOST]
        .iter()
        .chain(services)
        .map(|address| IpAddr::V4(*address))
        .collect();
    authority
        .server(PROGRAM, &NAMES, &addresses)?
        .write(authority.folder(), "apiserver")
}

/// One more API server with the same etcd. Dropped, it is ended.
#[derive(Debug)]
pub struct SecondServer {
    /// The address of the server.
    pub address: SocketAddr,
    process: Process,
    _port: Port,
}

impl ApiLab {
    /// Writes another certificate for the API server, which is also valid for this address of Service
    /// `default/kubernetes`. A running API server reloads it.
    pub fn certify_also(&self, address: Ipv4Addr) -> Result<()> {
        certify(&self.authority, &[KUBERNETES_SERVICE, address])
    }

    /// Starts one more API server with this range of Services, on its own port, and waits until it is ready. The
    /// server ends with the thread that calls this.
    pub async fn second_server(&self, services: &str) -> Result<SecondServer> {
        on_free_ports(async || self.begin_second_server(services).await).await
    }

    async fn begin_second_server(&self, services: &str) -> Result<SecondServer> {
        let port = Port::claim()?;
        let arguments = self.own.arguments(self.authority.folder(), &port, services);
        let mut second = SecondServer {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port.number())),
            process: start::spawn_as(
                &self.programs,
                &self.folder,
                PROGRAM,
                "second-apiserver",
                &arguments,
            )?,
            _port: port,
        };
        let identity = self.authority.client("lab-admin", Some("system:masters"))?;
        let url = format!("https://{}", second.address);
        let kubeconfig = self.authority.kubeconfig(&url, "lab-admin", &identity)?;
        let client = client(&kubeconfig).await?;
        start::ready(&client, &self.folder, || second.process.ended()).await?;
        Ok(second)
    }

    /// Stops the API server and starts it again with this range of Services. The server ends with the lab and with
    /// the thread that calls this.
    pub async fn restart_server(&self, services: &str) -> Result<()> {
        {
            let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
            ensure!(processes.len() > PLACE, "the lab has no API server");
            // The port belongs to this lab until the next server listens on it.
            drop(processes.remove(PLACE));
            let arguments = self
                .own
                .arguments(self.authority.folder(), &self.own.port, services);
            let again = start::spawn_as(
                &self.programs,
                &self.folder,
                PROGRAM,
                "kube-apiserver-again",
                &arguments,
            )?;
            processes.insert(PLACE, again);
        }
        start::ready(&self.admin().await?, &self.folder, || self.ended()).await
    }

    /// The port on which the API server listens.
    pub fn port(&self) -> u16 {
        self.own.port.number()
    }

    /// Writes an object into a file of the lab and applies it as the administrator.
    pub fn apply(&self, name: &str, manifest: &str) -> Result<()> {
        let file = self.folder.join(format!("{name}.yaml"));
        authority::write(&file, manifest)?;
        self.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()])?;
        Ok(())
    }
}
