//! `install`: copies the plugins, their kubeconfig and the conflist to the host, like the init container
//! `install-cni`, and then renews the kubeconfig's token.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::node::environment::Environment;
use crate::version::{Datastore, Played};
use crate::{datastore, etcd, log};

/// Mounts of the host's folders in the init container.
pub const HOST_PLUGINS: &str = "/host/opt/cni/bin";
/// See above.
pub const HOST_CONFIGURATION: &str = "/host/etc/cni/net.d";
/// Folder of the container that holds plugins for the host, next to the program itself.
pub const OWN_PLUGINS: &str = "/opt/cni/bin";
/// Path of a pod's token.
pub const CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Name of the plugin's kubeconfig.
pub const KUBECONFIG: &str = "calico-kubeconfig";
/// Requested lifetime of a token, as in Calico.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;
/// A token is renewed long before it expires.
const RENEWAL: Duration = Duration::from_hours(6);
const RETRY: Duration = Duration::from_secs(5);

/// Installs.
pub fn main() -> ExitCode {
    log::to_standard_output("install");
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start a runtime")
        .and_then(|runtime| {
            let environment = Environment::of_process();
            match Played::of_program()?.datastore {
                Datastore::Kubernetes => runtime.block_on(install(&environment)),
                Datastore::Etcd(generation) => runtime.block_on(etcd::install::run(&environment, generation)),
            }
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("install (stand-in): {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn install(environment: &Environment) -> Result<()> {
    plugins(Path::new(OWN_PLUGINS), Path::new(HOST_PLUGINS))?;
    if Path::new(CREDENTIALS).join("token").exists() {
        write_kubeconfig(environment).await?;
    }
    let text = conflist(environment)?;
    let name = environment.get("CNI_CONF_NAME").unwrap_or("10-calico.conflist");
    write_secret(&Path::new(HOST_CONFIGURATION).join(name), &text)?;
    info!("wrote {HOST_CONFIGURATION}/{name}");
    // As in Calico: without SLEEP=false the program stays, for a container that is not an init container.
    if environment.get("SLEEP") != Some("false") {
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Renews the kubeconfig for ever.
pub async fn keep_kubeconfig(environment: &Environment) -> Result<()> {
    loop {
        let pause = match write_kubeconfig(environment).await {
            Ok(()) => RENEWAL,
            Err(error) => {
                warn!("{error:#}; trying again in {RETRY:?}");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Copies the plugins of the image to the host.
pub fn plugins(own: &Path, host: &Path) -> Result<()> {
    if !host.is_dir() {
        bail!(
            "found no writeable directory: {} is none (mount the host's folder of plugins there)",
            host.display()
        );
    }
    // The real plugins if the image has them, and other plugins of the image, such as portmap.
    for entry in fs::read_dir(own).into_iter().flatten() {
        let path = entry.with_context(|| format!("list {}", own.display()))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        if name != "install" && path.is_file() {
            copy(&path, &host.join(name))?;
        }
    }
    let program = std::env::current_exe().context("find the own program")?;
    for name in ["calico", "calico-ipam"] {
        if !own.join(name).is_file() {
            copy(&program, &host.join(name))?;
        }
    }
    Ok(())
}

/// Copies in one step: a plugin that the runtime starts at this moment is the old or the new one, never an incomplete one.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let temporary = to.with_extension("tmp");
    let attempt = || -> std::io::Result<()> {
        fs::copy(from, &temporary)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
        fs::rename(&temporary, to)
    };
    attempt().with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    info!("installed {}", to.display());
    Ok(())
}

/// Creates the conflist from the template in the environment.
fn conflist(environment: &Environment) -> Result<String> {
    let Some(template) = environment.get("CNI_NETWORK_CONFIG") else {
        bail!("write the conflist: CNI_NETWORK_CONFIG is not set");
    };
    let folder = environment.get("CNI_NET_DIR").unwrap_or("/etc/cni/net.d");
    let kubeconfig = format!("{folder}/{KUBECONFIG}");
    let or = |name: &str, fallback: &str| environment.get(name).unwrap_or(fallback).to_owned();
    let mut text = template.to_owned();
    for (placeholder, value) in [
        ("__LOG_LEVEL__", or("LOG_LEVEL", "info")),
        (
            "__LOG_FILE_PATH__",
            or("LOG_FILE_PATH", "/var/log/calico/cni/cni.log"),
        ),
        ("__LOG_FILE_MAX_SIZE__", or("LOG_FILE_MAX_SIZE", "100")),
        ("__LOG_FILE_MAX_AGE__", or("LOG_FILE_MAX_AGE", "30")),
        ("__LOG_FILE_MAX_COUNT__", or("LOG_FILE_MAX_COUNT", "10")),
        ("__DATASTORE_TYPE__", or("DATASTORE_TYPE", "kubernetes")),
        (
            "__KUBERNETES_NODE_NAME__",
            or("KUBERNETES_NODE_NAME", &or("HOSTNAME", "")),
        ),
        ("__KUBECONFIG_FILEPATH__", kubeconfig),
        ("__CNI_MTU__", or("CNI_MTU", "1500")),
        ("__KUBERNETES_SERVICE_HOST__", or("KUBERNETES_SERVICE_HOST", "")),
        ("__KUBERNETES_SERVICE_PORT__", or("KUBERNETES_SERVICE_PORT", "")),
    ] {
        text = text.replace(placeholder, &value);
    }
    serde_json::from_str::<Value>(&text).context("CNI config is not valid JSON")?;
    Ok(text)
}

async fn write_kubeconfig(environment: &Environment) -> Result<()> {
    let namespace = fs::read_to_string(Path::new(CREDENTIALS).join("namespace")).unwrap_or_default();
    let namespace = if namespace.trim().is_empty() {
        "kube-system"
    } else {
        namespace.trim()
    };
    let account = environment
        .get("CALICO_CNI_SERVICE_ACCOUNT")
        .unwrap_or("calico-cni-plugin");
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS}
    });
    let answer: Value = accounts
        .create_subresource("token", account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("request a token of ServiceAccount {namespace}/{account}"))?;
    let token = answer["status"]["token"].as_str();
    let token =
        token.with_context(|| format!("read the token of ServiceAccount {namespace}/{account}: none"))?;
    let authority = Path::new(CREDENTIALS).join("ca.crt");
    let authority = fs::read(&authority).with_context(|| format!("read {}", authority.display()))?;
    let host = environment.get("KUBERNETES_SERVICE_HOST").unwrap_or_default();
    let port = environment.get("KUBERNETES_SERVICE_PORT").unwrap_or("443");
    let text = kubeconfig(host, port, &base64(&authority), token);
    write_secret(&Path::new(HOST_CONFIGURATION).join(KUBECONFIG), &text)?;
    info!("wrote {HOST_CONFIGURATION}/{KUBECONFIG}");
    Ok(())
}

/// A kubeconfig for the plugin.
pub fn kubeconfig(host: &str, port: &str, authority: &str, token: &str) -> String {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    // JSON is YAML, too; its strings cannot change the structure.
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {
            "server": format!("https://{host}:{port}"), "certificate-authority-data": authority}}],
        "users": [{"name": "calico", "user": {"token": token}}],
        "contexts": [{"name": "calico-context", "context": {"cluster": "local", "user": "calico"}}],
        "current-context": "calico-context"
    })
    .to_string()
}

/// Writes a file that only root may read, in one step.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension("tmp");
    let attempt = || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    attempt().with_context(|| format!("write {}", path.display()))
}

/// Standard base 64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |position: usize| u32::from(chunk.get(position).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            text.push(if position <= chunk.len() {
                char::from(ALPHABET[(group >> (18 - 6 * position) & 63) as usize])
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_filled() {
        let environment = Environment::from([
            (
                "CNI_NETWORK_CONFIG",
                r#"{"nodename": "__KUBERNETES_NODE_NAME__", "mtu": __CNI_MTU__,
                    "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}"#,
            ),
            ("KUBERNETES_NODE_NAME", "n1"),
            ("CNI_MTU", "1450"),
        ]);
        let text = conflist(&environment).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({"nodename": "n1", "mtu": 1450,
                   "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"}})
        );
        assert!(conflist(&Environment::from([("CNI_NETWORK_CONFIG", "{")])).is_err());
        assert!(conflist(&Environment::default()).is_err());
    }

    #[test]
    fn base_64_agrees_with_other_programs() {
        for (plain, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(plain.as_bytes()), expected);
        }
    }

    #[test]
    fn plugins_are_copied_and_the_installer_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (own, host) = (folder.path().join("own"), folder.path().join("host"));
        fs::create_dir(&own).unwrap();
        for name in ["install", "portmap", "calico"] {
            fs::write(own.join(name), name).unwrap();
        }
        assert!(plugins(&own, &host).is_err());
        fs::create_dir(&host).unwrap();
        plugins(&own, &host).unwrap();
        let mut names: Vec<_> = fs::read_dir(&host)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["calico", "calico-ipam", "portmap"]);
        // The image's own plugin is installed; this program plays missing ones.
        assert_eq!(fs::read_to_string(host.join("calico")).unwrap(), "calico");
        assert!(fs::metadata(host.join("calico-ipam")).unwrap().len() > 1000);
        let mode = fs::metadata(host.join("portmap")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn only_root_can_read_the_conflist() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("10-calico.conflist");
        write_secret(&path, "{}").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    }

    #[test]
    fn the_kubeconfig_can_be_read_by_a_client() {
        let text = kubeconfig("10.96.0.1", "443", "Zm9v", "secret");
        let read = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("calico-context"));
        assert_eq!(
            read.clusters[0].cluster.as_ref().unwrap().server.as_deref(),
            Some("https://10.96.0.1:443")
        );
    }
}
