//! Flags of calicoDatastore: the manifest of v3, the pause limit, and the connections to etcd.

use std::path::{Path, PathBuf};

use api::MigrationSpec;
use api::migration::{CalicoDatastore, EtcdAccess};
use calico_datastore::cluster::manifest::{self, Name};
use clap::Args;
use serde::Deserialize as _;
use serde_json::Value;

use super::error::NoCalicoManifest;
use crate::error::CliError;
use crate::kinds::kind::KindFlags;
use crate::{value, yaml};

/// Flags of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Calico datastore (etcd v2 to v3, with calico-node and the controllers)")]
#[group(skip)]
pub struct Flags {
    /// YAML manifest of Calico v3 with etcd. Any option of this group selects calicoDatastore. Secrets in the manifest are
    /// omitted: apply them separately.
    #[arg(long = "calico-v3-manifest", value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Longest pause of Calico, after which the migration is rolled back automatically. Default 1h.
    #[arg(long = "calico-pause-limit", value_name = "DURATION", value_parser = value::seconds)]
    pause_limit: Option<u32>,
    /// Time between the pause and the first read of etcd v2. Default 15s.
    #[arg(long = "calico-settle", value_name = "DURATION", value_parser = value::seconds)]
    settle: Option<u32>,
    /// Endpoints of etcd v2, separated by commas. Default: the endpoints of calico-node in the cluster.
    #[arg(long = "calico-etcd-v2", value_name = "URL", value_delimiter = ',')]
    etcd_v2: Vec<String>,
    /// Secret in the namespace of replumb with etcd-ca, etcd-cert and etcd-key.
    #[arg(long = "calico-etcd-v2-secret", value_name = "NAME", requires = "etcd_v2")]
    etcd_v2_secret: Option<String>,
    /// Endpoints of etcd v3, separated by commas. Default: the endpoints of calico-node in the manifest.
    #[arg(long = "calico-etcd-v3", value_name = "URL", value_delimiter = ',')]
    etcd_v3: Vec<String>,
    /// Secret in the namespace of replumb with etcd-ca, etcd-cert and etcd-key.
    #[arg(long = "calico-etcd-v3-secret", value_name = "NAME", requires = "etcd_v3")]
    etcd_v3_secret: Option<String>,
    /// Continue although etcd v3 has keys below /calico/: equal keys are overwritten, profiles of namespaces and Kubernetes
    /// policies are deleted (the controllers recreate them), other keys stay; a rollback restores all keys.
    #[arg(long = "calico-ignore-v3-data", value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    ignore_v3_data: Option<bool>,
}

impl KindFlags for Flags {
    fn set_flags(&self) -> Vec<&'static str> {
        // Destructured, so that a new field cannot be forgotten here.
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
        .filter_map(|(flag, is_set)| is_set.then_some(flag))
        .collect()
    }

    fn merge(&self, spec: &mut MigrationSpec) -> Result<(), CliError> {
        spec.calico_datastore = Some(self.over(spec.calico_datastore.take())?);
        Ok(())
    }
}

impl Flags {
    /// The existing spec, overridden by the flags; a new spec needs the manifest.
    fn over(&self, there: Option<CalicoDatastore>) -> Result<CalicoDatastore, CliError> {
        let mut kind = match (there, &self.manifest) {
            (Some(there), _) => there,
            (None, Some(_)) => CalicoDatastore::default(),
            (None, None) => return Err(NoCalicoManifest.into()),
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

/// The manifest without Secrets that have data. Its errors are reported before any request to the cluster.
fn read(path: &Path) -> Result<String, CliError> {
    let failed = |why: String| CliError::File {
        file: path.display().to_string(),
        why,
    };
    let documents = documents(path)?;
    manifest::read(&documents).map_err(|problems| failed(problems.join("; ")))?;
    texts(&documents).map_err(failed)
}

/// The documents of a manifest, without Secrets that have data.
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

/// The documents as YAML.
pub(super) fn texts(documents: &[Value]) -> Result<String, String> {
    let texts: Result<Vec<String>, String> = documents
        .iter()
        .map(|document| yaml::text(document).map_err(|error| error.to_string()))
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
    fn a_manifest_is_read_without_its_secrets() {
        let (_folder, flags) = flags(MANIFEST);
        let kind = flags.over(None).unwrap();
        assert!(kind.manifest.contains("calico/node:v3.8.9"), "{}", kind.manifest);
        assert!(!kind.manifest.contains("eA=="), "{}", kind.manifest);
        assert_eq!(kind.pause_limit_seconds, Some(600));
        assert_eq!(
            flags.set_flags(),
            ["--calico-v3-manifest", "--calico-pause-limit"]
        );
        let again = Flags::default().over(Some(kind.clone())).unwrap();
        assert_eq!(again, kind, "unset flags change nothing");
    }

    #[test]
    fn an_invalid_or_missing_manifest_is_an_error() {
        let (_folder, flags) = flags("kind: ConfigMap\nmetadata: {name: x}\n");
        let refused = flags.over(None).unwrap_err().to_string();
        assert!(
            refused.contains("DaemonSet with a container calico-node"),
            "{refused}"
        );
        let refused = Flags::default().over(None).unwrap_err();
        assert_eq!(refused.to_string(), NoCalicoManifest.to_string());
    }
}
