//! Flags: the manifest of v3, and how long Calico may be paused.

use std::path::{Path, PathBuf};

use api::migration::{CalicoDatastore, EtcdAccess};
use calico_datastore::cluster::manifest::{self, Name};
use clap::Args;
use serde::Deserialize as _;
use serde_json::Value;

use crate::error::CliError;
use crate::value;

/// What this kind lets one choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Calico datastore (etcd v2 to v3, with calico-node and the controllers)")]
#[group(skip)]
pub struct Flags {
    /// What Calico ships for v3 with etcd, as YAML. Any option of this group asks for this kind. Secrets in it are left out: apply them by
    /// themselves.
    #[arg(long = "calico-v3-manifest", value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// How long Calico may be paused before everything goes back by itself. Default 1h.
    #[arg(long = "calico-pause-limit", value_name = "DURATION", value_parser = value::seconds)]
    pause_limit: Option<u32>,
    /// How long etcd v2 is left alone after the pause. Default 15s.
    #[arg(long = "calico-settle", value_name = "DURATION", value_parser = value::seconds)]
    settle: Option<u32>,
    /// Where etcd v2 is, with commas between. Default: as calico-node in the cluster has it.
    #[arg(long = "calico-etcd-v2", value_name = "URL", value_delimiter = ',')]
    etcd_v2: Vec<String>,
    /// A Secret in replumb's namespace with etcd-ca, etcd-cert and etcd-key for it.
    #[arg(long = "calico-etcd-v2-secret", value_name = "NAME", requires = "etcd_v2")]
    etcd_v2_secret: Option<String>,
    /// Where etcd v3 is, with commas between. Default: as calico-node of the manifest has it.
    #[arg(long = "calico-etcd-v3", value_name = "URL", value_delimiter = ',')]
    etcd_v3: Vec<String>,
    /// A Secret in replumb's namespace with etcd-ca, etcd-cert and etcd-key for it.
    #[arg(long = "calico-etcd-v3-secret", value_name = "NAME", requires = "etcd_v3")]
    etcd_v3_secret: Option<String>,
    /// Go on although something is below /calico/ in etcd v3: equal keys are written over, profiles of namespaces and policies of Kubernetes
    /// are deleted (its controllers write them anew), others stay; on the way back everything is put back.
    #[arg(long = "calico-ignore-v3-data", value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    ignore_v3_data: Option<bool>,
}

impl Flags {
    /// The flags that were given, as they are typed.
    pub fn said(&self) -> Vec<&'static str> {
        // Every field by name: one that is added is not forgotten here.
        let Self {
            manifest,
            pause_limit,
            settle,
            etcd_v2,
            etcd_v2_secret,
            etcd_v3,
            etcd_v3_secret,
            ignore_v3_data,
        } = self;
        [
            ("--calico-v3-manifest", manifest.is_some()),
            ("--calico-pause-limit", pause_limit.is_some()),
            ("--calico-settle", settle.is_some()),
            ("--calico-etcd-v2", !etcd_v2.is_empty()),
            ("--calico-etcd-v2-secret", etcd_v2_secret.is_some()),
            ("--calico-etcd-v3", !etcd_v3.is_empty()),
            ("--calico-etcd-v3-secret", etcd_v3_secret.is_some()),
            ("--calico-ignore-v3-data", ignore_v3_data.is_some()),
        ]
        .into_iter()
        .filter_map(|(flag, said)| said.then_some(flag))
        .collect()
    }

    /// The flags over the kind that is there; without one the manifest has to be given.
    pub fn over(&self, there: Option<CalicoDatastore>) -> Result<CalicoDatastore, CliError> {
        let mut kind = match (there, &self.manifest) {
            (Some(there), _) => there,
            (None, Some(_)) => CalicoDatastore::default(),
            (None, None) => return Err(CliError::NoCalicoManifest),
        };
        if let Some(path) = &self.manifest {
            kind.manifest = read(path)?;
        }
        kind.pause_limit_seconds = self.pause_limit.or(kind.pause_limit_seconds);
        kind.settle_seconds = self.settle.or(kind.settle_seconds);
        kind.ignore_v3_data = self.ignore_v3_data.unwrap_or(kind.ignore_v3_data);
        kind.etcd_v2 = access(&self.etcd_v2, self.etcd_v2_secret.as_ref()).or(kind.etcd_v2);
        kind.etcd_v3 = access(&self.etcd_v3, self.etcd_v3_secret.as_ref()).or(kind.etcd_v3);
        Ok(kind)
    }
}

fn access(endpoints: &[String], secret: Option<&String>) -> Option<EtcdAccess> {
    (!endpoints.is_empty()).then(|| EtcdAccess {
        endpoints: endpoints.to_vec(),
        secret: secret.cloned(),
    })
}

/// The manifest without Secrets that have something in them. What is wrong with it is said before anything is asked of the cluster.
fn read(path: &Path) -> Result<String, CliError> {
    let failed = |why: String| CliError::File {
        file: path.display().to_string(),
        why,
    };
    let documents = documents(path)?;
    manifest::read(&documents).map_err(|problems| failed(problems.join("; ")))?;
    texts(&documents).map_err(failed)
}

/// What is in a manifest, but for Secrets that have something in them.
pub(super) fn documents(path: &Path) -> Result<Vec<Value>, CliError> {
    let file = path.display().to_string();
    let failed = |why: String| CliError::File {
        file: file.clone(),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
    let mut documents = Vec::new();
    for document in yaml_serde::Deserializer::from_str(&text) {
        let document =
            Value::deserialize(document).map_err(|error| failed(format!("is not YAML: {error}")))?;
        if !document.is_null() && !is_filled_secret(&document) {
            documents.push(document);
        }
    }
    Ok(documents)
}

/// As YAML again.
pub(super) fn texts(documents: &[Value]) -> Result<String, String> {
    let texts: Result<Vec<String>, String> = documents
        .iter()
        .map(|document| yaml_serde::to_string(document).map_err(|error| error.to_string()))
        .collect();
    Ok(texts?.join("---\n"))
}

fn is_filled_secret(document: &Value) -> bool {
    Name::of(document).kind == "Secret" && manifest::has_data(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "kind: Secret\napiVersion: v1\nmetadata: {name: calico-etcd-secrets, namespace: kube-system}\ndata: {etcd-key: eA==}\n\
                            ---\nkind: DaemonSet\napiVersion: apps/v1\nmetadata: {name: calico-node, namespace: kube-system}\n\
                            spec: {template: {spec: {containers: [{name: calico-node, image: 'calico/node:v3.8.9', \
                            env: [{name: ETCD_ENDPOINTS, value: 'http://a:1'}]}]}}}\n---\n";

    fn flags(manifest: &str) -> (tempfile::TempDir, Flags) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calico.yaml");
        std::fs::write(&path, manifest).unwrap();
        let flags = Flags {
            manifest: Some(path),
            pause_limit: Some(600),
            ..Flags::default()
        };
        (folder, flags)
    }

    #[test]
    fn a_manifest_comes_without_its_secrets() {
        let (_folder, flags) = flags(MANIFEST);
        let kind = flags.over(None).unwrap();
        assert!(kind.manifest.contains("calico/node:v3.8.9"), "{}", kind.manifest);
        assert!(!kind.manifest.contains("eA=="), "{}", kind.manifest);
        assert_eq!(kind.pause_limit_seconds, Some(600));
        assert_eq!(flags.said(), ["--calico-v3-manifest", "--calico-pause-limit"]);
        let again = Flags::default().over(Some(kind.clone())).unwrap();
        assert_eq!(again, kind, "what nobody says stays");
    }

    #[test]
    fn what_is_wrong_with_it_is_said_at_once() {
        let (_folder, flags) = flags("kind: ConfigMap\nmetadata: {name: x}\n");
        let refused = flags.over(None).unwrap_err().to_string();
        assert!(
            refused.contains("DaemonSet with a container calico-node"),
            "{refused}"
        );
        assert!(matches!(
            Flags::default().over(None),
            Err(CliError::NoCalicoManifest)
        ));
    }
}
