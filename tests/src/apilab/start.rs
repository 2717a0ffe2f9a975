//! Starts etcd and the API server, which end with this process, however it ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use serde_json::{Value, json};

use super::server::{self, Server};
use super::{ApiLab, Settings, programs};
use crate::cluster::authority::{self, Authority};
use crate::cluster::control_plane::{KUBERNETES_SERVICE, SERVICE_NETWORK};
use crate::cluster::replumb::manifests;
use crate::cluster::wait::{Observation, until};
use crate::ports::Port;
use crate::started::{Ended, Process, on_free_ports};

/// Prefix of the folders of labs; the number of the process follows.
const FOLDER: &str = "replumb-apilab-";
/// Time limit for the API server to be ready on a busy machine, while every client of a large cluster reconnects.
const START_LIMIT: Duration = Duration::from_mins(5);

/// Starts an API server on a thread that never ends: the kernel kills a child with a parent-death signal when the
/// *thread* that started it ends, and tests run on short-lived threads.
pub(super) fn kept(programs: Option<PathBuf>, settings: Settings) -> Result<ApiLab> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("apilab".to_owned())
        .spawn(move || {
            let started = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("create a runtime")
                .and_then(|runtime| runtime.block_on(start(programs, &settings)));
            // The other side waits for exactly one value.
            sender.send(started).ok();
            loop {
                std::thread::park();
            }
        })
        .context("start the thread of the API server")?;
    receiver.recv().context("wait for the API server")?
}

async fn start(programs: Option<PathBuf>, settings: &Settings) -> Result<ApiLab> {
    let programs = match programs {
        Some(programs) => programs,
        None => programs::find().await?,
    };
    let folder = folder()?;
    server::certify(&Authority::create(&folder.join("pki"))?, &[KUBERNETES_SERVICE])?;
    let lab = on_free_ports(async || begin(&programs, &folder, settings).await).await?;
    if let Some(controllers) = settings.controllers {
        lab.run(
            "kube-controller-manager",
            &format!(
                "--kubeconfig={} --leader-elect=false --secure-port=0 --controllers={controllers}",
                lab.kubeconfig().display(),
            ),
        )?;
    }
    install(&lab).await?;
    Ok(lab)
}

/// Starts etcd and the API server, and waits until they answer. If one of them ends, the other is ended, too.
async fn begin(programs: &Path, folder: &Path, settings: &Settings) -> Result<ApiLab> {
    let authority = Authority::open(&folder.join("pki"))?;
    let [etcd, peers, port] = Port::claim_all()?;
    let server = format!("https://127.0.0.1:{}", port.number());
    let admin = authority.client("lab-admin", Some("system:masters"))?;
    authority::write(
        &folder.join("admin.conf"),
        &authority.kubeconfig(&server, "lab-admin", &admin)?,
    )?;

    // The data need not survive the machine under the lab: no fsync.
    let data = folder.join("etcd").display().to_string();
    let (store_port, peers_port) = (etcd.number(), peers.number());
    let store = spawn(
        programs,
        folder,
        "etcd",
        &format!(
            "--name=lab --data-dir={data} --unsafe-no-fsync --log-level=warn \
             --listen-client-urls=http://127.0.0.1:{store_port} --advertise-client-urls=http://127.0.0.1:{store_port} \
             --listen-peer-urls=http://127.0.0.1:{peers_port} --initial-advertise-peer-urls=http://127.0.0.1:{peers_port} \
             --initial-cluster=lab=http://127.0.0.1:{peers_port} {}",
            settings.etcd
        ),
    )?;
    let own = Server {
        etcd,
        _peers: peers,
        port,
        more: settings.server(folder)?,
    };
    let server_process = spawn(
        programs,
        folder,
        "kube-apiserver",
        &own.arguments(authority.folder(), &own.port, SERVICE_NETWORK),
    )?;
    let lab = ApiLab {
        folder: folder.to_owned(),
        programs: programs.to_owned(),
        server,
        own,
        authority,
        processes: Mutex::new(vec![store, server_process]),
    };
    ready(&lab.admin().await?, folder, || lab.ended()).await?;
    Ok(lab)
}

/// Waits until the API server of this client is ready, or one of its programs has ended.
pub(super) async fn ready(
    client: &Client,
    logs: &Path,
    mut ended: impl FnMut() -> Result<Option<Ended>>,
) -> Result<()> {
    until("the API server to be ready", START_LIMIT, logs, async || {
        if let Some(ended) = ended()? {
            return Ok(Observation::Never(ended.into()));
        }
        let request = http::Request::get("/readyz?verbose").body(Vec::new())?;
        let text = client.request_text(request).await?;
        Ok(if text.contains("readyz check passed") {
            Observation::Done(())
        } else {
            Observation::NotYet(text)
        })
    })
    .await
}

/// Installs replumb with the command in the documentation.
pub(super) async fn install(lab: &ApiLab) -> Result<()> {
    let base = manifests().display().to_string();
    lab.kubectl(&["apply", "--server-side", "-k", &base])?;
    for name in [
        "migrations",
        "nodemigrations",
        "migrationrecords",
        "connectionsamples",
    ] {
        let definition = format!("crd/{name}.replumb.dev");
        lab.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            &definition,
        ])?;
    }
    policies_hold(lab).await
}

/// A new policy is not enforced at once: waits until the policies of both accounts refuse an object.
async fn policies_hold(lab: &ApiLab) -> Result<()> {
    let agents = json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": "policy-probe"},
        "spec": {"nodeName": "policy-probe", "migration": "policy-probe"},
    });
    let coordinators = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "policy-probe", "namespace": "default"},
        "spec": {"ports": [{"port": 80}]},
    });
    refuses(lab, "replumb-agent", &agents, "carries no node name").await?;
    refuses(
        lab,
        "replumb-coordinator",
        &coordinators,
        "helpers of an exchange alone",
    )
    .await
}

/// Waits until this account is refused to create this object, with these words.
async fn refuses(lab: &ApiLab, account: &str, object: &Value, words: &str) -> Result<()> {
    let file = lab.folder.join(format!("{account}-probe.json"));
    authority::write(&file, &object.to_string())?;
    let file = file.display().to_string();
    let account = format!("--as=system:serviceaccount:replumb-system:{account}");
    until(
        "the admission policies to be enforced",
        Duration::from_mins(1),
        &lab.folder,
        async || {
            // A member of system:masters has all rights: only the policy can refuse this object.
            let asked = [
                "create",
                "--dry-run=server",
                "-f",
                &file,
                &account,
                "--as-group=system:masters",
            ];
            Ok(match lab.kubectl(&asked) {
                Err(error) if format!("{error:#}").contains(words) => Observation::Done(()),
                Err(error) => Observation::NotYet(format!("{error:#}")),
                Ok(_) => Observation::NotYet(format!("{account} may create {object}")),
            })
        },
    )
    .await
}

/// A new folder of this process; folders of processes that have ended are removed.
fn folder() -> Result<PathBuf> {
    let parent = std::env::temp_dir();
    for entry in fs::read_dir(&parent).with_context(|| format!("list {}", parent.display()))? {
        let path = entry?.path();
        let owner = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(FOLDER)?.parse::<u32>().ok());
        if let Some(owner) = owner
            && !Path::new(&format!("/proc/{owner}")).exists()
        {
            // Another program's lab may be removing it at the same time.
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("remove the old {}", path.display()));
                }
                Ok(()) | Err(_) => {}
            }
        }
    }
    let folder = parent.join(format!("{FOLDER}{}", std::process::id()));
    if folder.exists() {
        // Left by an earlier process with this number.
        fs::remove_dir_all(&folder).with_context(|| format!("remove the old {}", folder.display()))?;
    }
    fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// Starts a program that ends with the thread that calls this, however the thread ends.
pub(super) fn spawn(programs: &Path, folder: &Path, name: &str, arguments: &str) -> Result<Process> {
    spawn_as(programs, folder, name, name, arguments)
}

/// The same with another name for its log.
pub(super) fn spawn_as(
    programs: &Path,
    folder: &Path,
    name: &str,
    log: &str,
    arguments: &str,
) -> Result<Process> {
    let mut command = Command::new("setpriv");
    command
        .arg("--pdeathsig=KILL")
        .arg(programs.join(name))
        .args(arguments.split_whitespace());
    Process::start(name, folder.join(format!("{log}.log")), &mut command)
        .context("find setpriv (Debian: apt-get install util-linux)")
}
