//! replumb itself in the cluster, from the manifests that users install.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Cluster;
use super::api::FIELD_MANAGER;

const LIMIT: Duration = Duration::from_mins(2);
/// The namespace in the manifests.
const NAMESPACE: &str = "replumb-system";
const WORKLOADS: [&str; 2] = ["daemonset/replumb-agent", "deployment/replumb-coordinator"];

/// The folder of manifests that users install.
pub fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base")
}

impl Cluster {
    /// Applies `deploy/base` and waits until agents and coordinator are Ready. Their images must be on the nodes (see
    /// [`Cluster::import_images`]). Running agents and coordinators are restarted: an image can be new under an old
    /// name.
    pub async fn install_replumb(&self) -> Result<()> {
        let there = self
            .api
            .kubectl(&["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"])
            .await?;
        self.apply_folder(&manifests()).await?;
        self.api.definitions_established("replumb.dev", LIMIT).await?;
        for workload in WORKLOADS {
            if !there.trim().is_empty() {
                self.api
                    .kubectl(&["rollout", "restart", "-n", NAMESPACE, workload])
                    .await?;
            }
        }
        for workload in WORKLOADS {
            self.api.rolled_out(workload, NAMESPACE, LIMIT).await?;
        }
        self.progress.say("replumb's agents and coordinator are Ready");
        Ok(())
    }

    /// Applies `deploy/service-cidr` in place of `deploy/base`, as a user does before a `serviceCidr` migration.
    pub async fn apply_service_cidr_overlay(&self) -> Result<()> {
        self.apply_folder(&manifests().with_file_name("service-cidr"))
            .await
    }

    async fn apply_folder(&self, folder: &Path) -> Result<()> {
        let manager = format!("--field-manager={FIELD_MANAGER}");
        let folder = folder.to_string_lossy();
        self.api
            .kubectl(&[
                "apply",
                "--server-side",
                "--force-conflicts",
                &manager,
                "-k",
                &folder,
            ])
            .await
            .with_context(|| format!("apply {folder}"))?;
        Ok(())
    }
}
