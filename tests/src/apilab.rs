//! A real etcd and kube-apiserver on the loopback, with what `deploy/` installs: for the rules, the rights and the
//! conflicts that only a real API server has. Nothing runs in it: no node, no controller.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;

use crate::assets;
use crate::cluster::authority::{self, Authority};
use crate::cluster::wait::{Look, until};
use crate::progress::Progress;

/// The programs that are run.
const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];
/// Folders of labs begin so; the process that made it follows.
const FOLDER: &str = "replumb-apilab-";
/// How long the API server may take to be ready on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(120);

/// An API server that runs, with replumb's definitions, roles and policy in it.
#[derive(Debug)]
pub struct ApiLab {
    folder: PathBuf,
    programs: PathBuf,
    server: String,
    authority: Authority,
}

impl ApiLab {
    /// The one API server of this process: started by whoever asks first, ended with the process.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<std::result::Result<ApiLab, String>> = OnceLock::new();
        SHARED
            .get_or_init(|| kept().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    /// The folder with keys and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.conf")
    }

    /// A client of the administrator. A client belongs to the runtime that made it: each test makes its own.
    pub async fn admin(&self) -> Result<Client> {
        client(&fs::read_to_string(self.kubeconfig()).context("read the administrator's kubeconfig")?).await
    }

    /// A kubeconfig of a person with a certificate.
    pub fn kubeconfig_of(&self, user: &str) -> Result<String> {
        self.authority
            .kubeconfig(&self.server, user, &self.authority.client(user, None)?)
    }

    /// A client that shows this token.
    pub async fn with_token(&self, token: &str) -> Result<Client> {
        let authority = fs::read_to_string(self.authority.folder().join("ca.crt")).context("read ca.crt")?;
        let file = self.folder.join("ca-of-tokens.crt");
        authority::write(&file, &authority)?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "token",
            "clusters": [{"name": "lab", "cluster": {"server": self.server, "certificate-authority": file}}],
            "users": [{"name": "token", "user": {"token": token}}],
            "contexts": [{"name": "token", "context": {"cluster": "lab", "user": "token"}}],
        });
        client(&kubeconfig.to_string()).await
    }

    /// A token of a `ServiceAccount`, bound to a pod or not.
    pub async fn token(&self, namespace: &str, account: &str, pod: Option<&Pod>) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                bound_object_ref: pod.map(|pod| BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
                expiration_seconds: None,
            },
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .with_context(|| format!("ask for a token of ServiceAccount {namespace}/{account}"))?;
        Ok(answer
            .status
            .context("a TokenRequest is answered with a status")?
            .token)
    }

    /// A Node object of this name; no machine is behind it.
    pub async fn node(&self, name: &str) -> Result<Node> {
        let nodes: Api<Node> = Api::all(self.admin().await?);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        nodes
            .create(&PostParams::default(), &node)
            .await
            .with_context(|| format!("create Node {name}"))
    }

    /// A pod object of this `ServiceAccount` on this node; nobody runs it.
    pub async fn pod_on(&self, namespace: &str, account: &str, node: &str) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.admin().await?, namespace);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("{account}-{node}")},
            "spec": {
                "serviceAccountName": account, "nodeName": node,
                "containers": [{"name": "main", "image": "nothing"}],
            },
        }))?;
        pods.create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("create pod {} on node {node}", pod.name_any()))
    }

    /// A new namespace, which is deleted with everything in it as far as an API server alone does that.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.admin().await?);
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("create Namespace {name}"))?;
        Ok(())
    }

    /// Runs kubectl as the administrator; an exit code other than 0 is an error. Returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        run(Command::new(self.programs.join("kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments))
    }

    /// Removes every Migration and every `NodeMigration`: what a case leaves is not the next one's.
    pub async fn clear(&self) -> Result<()> {
        let client = self.admin().await?;
        let migrations: Api<api::Migration> = Api::all(client.clone());
        let nodes: Api<api::NodeMigration> = Api::all(client);
        for name in migrations
            .list(&kube::api::ListParams::default())
            .await?
            .iter()
            .map(ResourceExt::name_any)
        {
            migrations.delete(&name, &DeleteParams::default()).await?;
        }
        for name in nodes
            .list(&kube::api::ListParams::default())
            .await?
            .iter()
            .map(ResourceExt::name_any)
        {
            nodes.delete(&name, &DeleteParams::default()).await?;
        }
        Ok(())
    }
}

/// Starts an API server on a thread that never ends: the kernel kills a child that asked for it when the *thread*
/// that made it ends, and tests come and go on theirs.
fn kept() -> Result<ApiLab> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("apilab".to_owned())
        .spawn(move || {
            let started = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("make a runtime")
                .and_then(|runtime| runtime.block_on(start()));
            // The other side waits for exactly one value.
            sender.send(started).ok();
            loop {
                std::thread::park();
            }
        })
        .context("start the thread of the API server")?;
    receiver.recv().context("wait for the API server")?
}

async fn start() -> Result<ApiLab> {
    let programs = programs().await?;
    let folder = folder()?;
    let authority = Authority::create(&folder.join("pki"))?;
    let pki = authority.folder();
    authority
        .server(
            "kube-apiserver",
            &["localhost"],
            &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
        )?
        .write(pki, "apiserver")?;
    let [etcd, peers, port] = ports()?;
    let server = format!("https://127.0.0.1:{port}");
    let admin = authority.client("lab-admin", Some("system:masters"))?;
    authority::write(
        &folder.join("admin.conf"),
        &authority.kubeconfig(&server, "lab-admin", &admin)?,
    )?;

    // The data need not survive the machine under the lab: no fsync.
    let data = folder.join("etcd").display().to_string();
    spawn(
        &programs,
        &folder,
        "etcd",
        &format!(
            "--name=lab --data-dir={data} --unsafe-no-fsync --log-level=warn \
             --listen-client-urls=http://127.0.0.1:{etcd} --advertise-client-urls=http://127.0.0.1:{etcd} \
             --listen-peer-urls=http://127.0.0.1:{peers} --initial-advertise-peer-urls=http://127.0.0.1:{peers} \
             --initial-cluster=lab=http://127.0.0.1:{peers}"
        ),
    )?;
    let keys = pki.display();
    spawn(
        &programs,
        &folder,
        "kube-apiserver",
        &format!(
            "--etcd-servers=http://127.0.0.1:{etcd} --bind-address=127.0.0.1 --advertise-address=127.0.0.1 \
             --secure-port={port} --endpoint-reconciler-type=none --service-cluster-ip-range=10.96.0.0/16 \
             --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
             --anonymous-auth=false --client-ca-file={keys}/ca.crt --cert-dir={keys} \
             --tls-cert-file={keys}/apiserver.crt --tls-private-key-file={keys}/apiserver.key \
             --service-account-issuer=https://kubernetes.default.svc.cluster.local \
             --service-account-key-file={keys}/service-account.pub \
             --service-account-signing-key-file={keys}/service-account.key \
             --profiling=false --shutdown-delay-duration=0s"
        ),
    )?;
    let lab = ApiLab {
        folder,
        programs,
        server,
        authority,
    };
    ready(&lab).await?;
    install(&lab).await?;
    Ok(lab)
}

async fn ready(lab: &ApiLab) -> Result<()> {
    let client = lab.admin().await?;
    until(
        "the API server to be ready",
        START_LIMIT,
        &lab.folder,
        async || {
            let request = http::Request::get("/readyz?verbose").body(Vec::new())?;
            let text = client.request_text(request).await?;
            Ok(if text.contains("readyz check passed") {
                Look::Done(())
            } else {
                Look::NotYet(text)
            })
        },
    )
    .await
}

/// What a user installs, by the command that the documentation names.
async fn install(lab: &ApiLab) -> Result<()> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base");
    let base = base.display().to_string();
    lab.kubectl(&["apply", "--server-side", "-k", &base])?;
    for name in ["migrations", "nodemigrations"] {
        let definition = format!("crd/{name}.replumb.dev");
        lab.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            &definition,
        ])?;
    }
    policy_holds(lab).await
}

/// A policy that was just created is not obeyed yet: waits until it is, by what it refuses.
async fn policy_holds(lab: &ApiLab) -> Result<()> {
    let probe = json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": "policy-probe"},
        "spec": {"nodeName": "policy-probe", "migration": "policy-probe"},
    });
    let file = lab.folder.join("policy-probe.json");
    authority::write(&file, &probe.to_string())?;
    let file = file.display().to_string();
    let agent = "--as=system:serviceaccount:replumb-system:replumb-agent";
    until(
        "the admission policy to be obeyed",
        Duration::from_secs(60),
        &lab.folder,
        async || {
            // A member of system:masters may do everything: only the policy can refuse this.
            let asked = [
                "create",
                "--dry-run=server",
                "-f",
                &file,
                agent,
                "--as-group=system:masters",
            ];
            Ok(match lab.kubectl(&asked) {
                Err(error) if format!("{error:#}").contains("carries no node name") => Look::Done(()),
                Err(error) => Look::NotYet(format!("{error:#}")),
                Ok(_) => Look::NotYet("an agent without a node may create a NodeMigration".to_owned()),
            })
        },
    )
    .await
}

/// The folder with the programs: the one that the environment names, or what the lab builds.
async fn programs() -> Result<PathBuf> {
    let asked = ["REPLUMB_LAB_ASSETS", "KUBEBUILDER_ASSETS"]
        .iter()
        .find_map(std::env::var_os)
        .map(PathBuf::from);
    if let Some(folder) = &asked
        && PROGRAMS.iter().all(|name| folder.join(name).is_file())
    {
        return folder
            .canonicalize()
            .with_context(|| format!("find {}", folder.display()));
    }
    let options = assets::Options {
        folder: asked,
        calico: None,
        programs: Vec::new(),
    };
    Ok(assets::ensure(&options, &Progress::default()).await?.binaries)
}

/// A new folder of this process; those of processes that are gone are removed.
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
            fs::remove_dir_all(&path).with_context(|| format!("remove the old {}", path.display()))?;
        }
    }
    let folder = parent.join(format!("{FOLDER}{}", std::process::id()));
    if folder.exists() {
        // Of an earlier process of this number.
        fs::remove_dir_all(&folder).with_context(|| format!("remove the old {}", folder.display()))?;
    }
    fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// Three ports that were free a moment ago.
fn ports() -> Result<[u16; 3]> {
    let take = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("take a free port");
    // All three are held until each is known: no number comes twice.
    let held = [take()?, take()?, take()?];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr().context("look at the port")?.port();
    }
    Ok(ports)
}

/// Starts a program that dies with this process, whatever kills it.
fn spawn(programs: &Path, folder: &Path, name: &str, arguments: &str) -> Result<()> {
    let log = folder.join(format!("{name}.log"));
    let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    let errors = out
        .try_clone()
        .with_context(|| format!("open {} again", log.display()))?;
    Command::new("setpriv")
        .arg("--pdeathsig=KILL")
        .arg(programs.join(name))
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("run {name} by setpriv (Debian: apt-get install util-linux)"))?;
    Ok(())
}

/// Builds kubectl's plugin as this test was built, and returns where it is.
pub fn command_line() -> Result<PathBuf> {
    let test = std::env::current_exe().context("find the test's own program")?;
    // target/debug/deps/api_cli-0123 → target/debug
    let target = test
        .parent()
        .and_then(Path::parent)
        .with_context(|| format!("find the target folder above {}", test.display()))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--quiet", "--package", "cli"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    if target.file_name().is_some_and(|name| name == "release") {
        build.arg("--release");
    }
    run(&mut build)?;
    let program = target.join("kubectl-replumb");
    if !program.is_file() {
        bail!(
            "cargo built the package cli, but there is no {}",
            program.display()
        );
    }
    Ok(program)
}

async fn client(kubeconfig: &str) -> Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).context("read a kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .context("use a kubeconfig")?;
    // A proxy of the host's environment is not for the loopback.
    config.proxy_url = None;
    config.connect_timeout = Some(Duration::from_secs(5));
    Client::try_from(config).context("make a client")
}

fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
