//! The API server's process: its certificate, its arguments, and how it is started anew with another range of Services.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Child;
use std::sync::PoisonError;

use anyhow::{Context, Result};

use super::{ApiLab, client, start};
use crate::cluster::authority::{self, Authority};
use crate::cluster::control_plane::KUBERNETES_SERVICE;

/// The place among the processes of a lab: behind the store.
const PLACE: usize = 1;
/// The name by which a client asks each API server by its own address.
const NAMES: [&str; 2] = ["localhost", "kubernetes.default.svc"];
const PROGRAM: &str = "kube-apiserver";

/// The part of the arguments that every start of the API server shares.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The port of the store.
    pub(super) etcd: u16,
    /// The port on which clients expect it.
    pub(super) port: u16,
    /// Arguments that the lab was asked for.
    pub(super) more: String,
}

impl Server {
    /// The arguments with this range of Services, listening on this port.
    pub(super) fn arguments(&self, keys: &Path, port: u16, services: &str) -> String {
        let Self { etcd, port: _, more } = self;
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

/// Writes a certificate of the API server's for the loopback, and for these addresses of Service `default/kubernetes`.
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

/// One more API server over the same store. Dropped, it is ended.
#[derive(Debug)]
pub struct SecondServer {
    /// The address of the server.
    pub address: SocketAddr,
    process: Child,
}

impl Drop for SecondServer {
    fn drop(&mut self) {
        // A process that has ended cannot be killed, and is waited for all the same.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl ApiLab {
    /// Writes another certificate for the API server, which is for this address of Service `default/kubernetes` as well. An API
    /// server that runs reads it by itself.
    pub fn certify_also(&self, address: Ipv4Addr) -> Result<()> {
        certify(&self.authority, &[KUBERNETES_SERVICE, address])
    }

    /// Starts one more API server with this range of Services, on a port of its own, and waits until it is ready. The server ends
    /// with the thread that calls this.
    pub async fn second_server(&self, services: &str) -> Result<SecondServer> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .context("take a free port")?
            .port();
        let arguments = self.own.arguments(self.authority.folder(), port, services);
        let second = SecondServer {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            process: start::spawn_as(
                &self.programs,
                &self.folder,
                PROGRAM,
                "second-apiserver",
                &arguments,
            )?,
        };
        let identity = self.authority.client("lab-admin", Some("system:masters"))?;
        let url = format!("https://{}", second.address);
        let kubeconfig = self.authority.kubeconfig(&url, "lab-admin", &identity)?;
        start::ready(&client(&kubeconfig).await?, &self.folder).await?;
        Ok(second)
    }

    /// Ends the API server and starts it anew with this range of Services. The server ends with the lab and with the thread that
    /// calls this.
    pub async fn restart_server(&self, services: &str) -> Result<()> {
        {
            let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
            let process = processes.get_mut(PLACE).context("the lab has an API server")?;
            process.kill().context("end the API server")?;
            process.wait().context("wait for the API server")?;
            let arguments = self
                .own
                .arguments(self.authority.folder(), self.own.port, services);
            *process = start::spawn_as(
                &self.programs,
                &self.folder,
                PROGRAM,
                "kube-apiserver-again",
                &arguments,
            )?;
        }
        start::ready(&self.admin().await?, &self.folder).await
    }

    /// The port on which the API server listens.
    pub fn port(&self) -> u16 {
        self.own.port
    }

    /// Writes an object of the administrator's into a file of the lab and applies it.
    pub fn apply(&self, name: &str, manifest: &str) -> Result<()> {
        let file = self.folder.join(format!("{name}.yaml"));
        authority::write(&file, manifest)?;
        self.kubectl(&["apply", "--server-side", "-f", &file.to_string_lossy()])?;
        Ok(())
    }
}
