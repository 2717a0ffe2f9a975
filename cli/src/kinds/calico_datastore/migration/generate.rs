//! `generate calico-v3-objects`: the objects of Calico's manifest that must exist before the migration. Needs no cluster.

use std::path::PathBuf;

use calico_datastore::cluster::manifest;
use clap::{Args, Subcommand};

use super::flags::{documents, texts};
use crate::error::CliError;
use crate::kinds::calico_datastore::help;
use crate::kinds::kind::GenerateManifest;

/// The subcommands of `generate`.
#[derive(Clone, Debug, Subcommand)]
pub enum Manifest {
    /// The objects of Calico's v3 manifest that must exist before the datastore is converted: all except Secrets and objects that
    /// the migration writes.
    #[command(after_help = help::GENERATE_CALICO_OBJECTS_EXAMPLES)]
    CalicoV3Objects(CalicoObjectsArguments),
}

impl GenerateManifest for Manifest {
    fn text(&self) -> Result<String, CliError> {
        let Self::CalicoV3Objects(arguments) = self;
        arguments.text()
    }
}

/// `generate calico-v3-objects`.
#[derive(Clone, Debug, Args)]
pub struct CalicoObjectsArguments {
    /// YAML manifest of Calico v3 with etcd.
    #[arg(long = "calico-v3-manifest", value_name = "FILE")]
    manifest: PathBuf,
}

impl CalicoObjectsArguments {
    /// The manifest without Secrets and without objects that the migration writes.
    pub fn text(&self) -> Result<String, CliError> {
        let file = self.manifest.display().to_string();
        let failed = |why: String| CliError::File {
            file: file.clone(),
            why,
        };
        let documents = documents(&self.manifest)?;
        let manifest = manifest::read(&documents).map_err(|problems| failed(problems.join("; ")))?;
        texts(&manifest.others).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_the_migration_writes_are_omitted() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("calico.yaml");
        let text = "kind: DaemonSet\napiVersion: apps/v1\nmetadata: {name: calico-node, namespace: kube-system}\n\
                    spec: {template: {spec: {containers: [{name: calico-node, image: 'calico/node:v3.8.9', \
                    env: [{name: ETCD_ENDPOINTS, value: 'http://a:1'}]}]}}}\n---\n\
                    kind: ServiceAccount\napiVersion: v1\nmetadata: {name: calico-node, namespace: kube-system}\n";
        std::fs::write(&manifest, text).unwrap();
        let text = CalicoObjectsArguments { manifest }.text().unwrap();
        assert!(
            text.contains("ServiceAccount") && !text.contains("DaemonSet"),
            "{text}"
        );
    }
}
