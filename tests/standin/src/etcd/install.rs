//! `install-cni` of v2.6 and v3.8: copies the plugins, a kubeconfig with the pod's own token, and the conflist to the host.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::install::{
    CREDENTIALS, HOST_CONFIGURATION, HOST_PLUGINS, KUBECONFIG, OWN_PLUGINS, base64, kubeconfig, plugins,
    write_secret,
};
use crate::node::environment::Environment;
use crate::version::Generation;

/// Mount of the secret with etcd's certificates.
const SECRETS: &str = "/calico-secrets";
/// Their path on the host, below the folder of the conflist.
const TLS: &str = "calico-tls";

/// Installs the files. A container that is not an init container stays until a signal.
pub async fn run(environment: &Environment, generation: Generation) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    plugins(Path::new(OWN_PLUGINS), Path::new(HOST_PLUGINS))?;
    write_kubeconfig(environment)?;
    let folder = environment.get("CNI_NET_DIR").unwrap_or("/etc/cni/net.d");
    let certificates = copy_certificates(
        Path::new(SECRETS),
        &Path::new(HOST_CONFIGURATION).join(TLS),
        folder,
    )?;
    let text = conflist(environment, generation, folder, &certificates)?;
    let name = environment.get("CNI_CONF_NAME").unwrap_or("10-calico.conf");
    write_secret(&Path::new(HOST_CONFIGURATION).join(name), &text)?;
    info!("Created CNI config {name}");
    if environment.get("SLEEP") != Some("false") {
        terminate.recv().await;
    }
    Ok(())
}

/// The plugin reads pods with the rights of this pod.
fn write_kubeconfig(environment: &Environment) -> Result<()> {
    let read = |name: &str| {
        let path = Path::new(CREDENTIALS).join(name);
        fs::read(&path).with_context(|| format!("read {}", path.display()))
    };
    let token = String::from_utf8(read("token")?).context("read the pod's token: it is not text")?;
    let host = environment.get("KUBERNETES_SERVICE_HOST").unwrap_or_default();
    let port = environment.get("KUBERNETES_SERVICE_PORT").unwrap_or("443");
    let text = kubeconfig(host, port, &base64(&read("ca.crt")?), token.trim());
    write_secret(&Path::new(HOST_CONFIGURATION).join(KUBECONFIG), &text)
}

/// Copies the files of the secret; returns the plugin's paths of authority, certificate and key, empty for each missing one.
fn copy_certificates(from: &Path, to: &Path, folder: &str) -> Result<[String; 3]> {
    let mut paths = [const { String::new() }; 3];
    for (name, path) in ["etcd-ca", "etcd-cert", "etcd-key"].iter().zip(&mut paths) {
        let source = from.join(name);
        let Ok(text) = fs::read_to_string(&source) else {
            continue;
        };
        fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
        write_secret(&to.join(name), &text)?;
        *path = format!("{folder}/{TLS}/{name}");
    }
    Ok(paths)
}

/// The template with known values inserted. **v2.6 does not know `__CNI_MTU__`, and neither release checks that the
/// result is JSON**: a node that returns to v2.6 with v3's template gets a file that no runtime can parse.
fn conflist(
    environment: &Environment,
    generation: Generation,
    folder: &str,
    [authority, certificate, key]: &[String; 3],
) -> Result<String> {
    let template = environment.get("CNI_NETWORK_CONFIG");
    let mut text = template
        .context("write the conflist: CNI_NETWORK_CONFIG is not set")?
        .to_owned();
    let or = |name: &str, fallback: &str| environment.get(name).unwrap_or(fallback).to_owned();
    let mut known = vec![
        ("__ETCD_ENDPOINTS__", or("ETCD_ENDPOINTS", "")),
        ("__ETCD_CA_CERT_FILE__", authority.clone()),
        ("__ETCD_CERT_FILE__", certificate.clone()),
        ("__ETCD_KEY_FILE__", key.clone()),
        (
            "__KUBERNETES_NODE_NAME__",
            or("KUBERNETES_NODE_NAME", &or("HOSTNAME", "")),
        ),
        ("__KUBECONFIG_FILEPATH__", format!("{folder}/{KUBECONFIG}")),
        ("__LOG_LEVEL__", or("LOG_LEVEL", "info")),
    ];
    if generation == Generation::V3 {
        known.push(("__CNI_MTU__", or("CNI_MTU", "1500")));
    }
    for (placeholder, value) in known {
        text = text.replace(placeholder, &value);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_template_is_filled_with_the_contents_of_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let (secret, host) = (folder.path().join("secret"), folder.path().join("host"));
        fs::create_dir(&secret).unwrap();
        let paths = || copy_certificates(&secret, &host, "/etc/cni/net.d").unwrap();
        assert_eq!(paths(), [const { String::new() }; 3], "an empty secret");
        assert!(!host.exists());
        fs::write(secret.join("etcd-ca"), "CA").unwrap();
        let environment = Environment::from([
            ("ETCD_ENDPOINTS", "http://172.30.0.2:2479"),
            (
                "CNI_NETWORK_CONFIG",
                r#"{"etcd_endpoints": "__ETCD_ENDPOINTS__", "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__",
                    "etcd_key_file": "__ETCD_KEY_FILE__", "mtu": __CNI_MTU__}"#,
            ),
        ]);
        let filled = |generation| conflist(&environment, generation, "/etc/cni/net.d", &paths()).unwrap();
        let text = filled(Generation::V3);
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({
                "etcd_endpoints": "http://172.30.0.2:2479",
                "etcd_ca_cert_file": "/etc/cni/net.d/calico-tls/etcd-ca",
                "etcd_key_file": "", "mtu": 1500,
            })
        );
        assert_eq!(fs::read_to_string(host.join("etcd-ca")).unwrap(), "CA");
        assert!(filled(Generation::V2).contains("__CNI_MTU__"));
    }
}
