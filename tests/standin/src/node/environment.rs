//! The environment variables of Calico's manifests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};

/// The environment; a separate type so that tests can create one.
#[derive(Debug, Clone, Default)]
pub struct Environment(Vec<(String, String)>);

impl Environment {
    /// The environment of the process.
    pub fn of_process() -> Self {
        Self(std::env::vars().collect())
    }

    /// Every variable.
    pub fn variables(&self) -> BTreeMap<String, String> {
        self.0.iter().cloned().collect()
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// The kubeconfig; without one, the service account.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        self.get("KUBECONFIG").map(PathBuf::from)
    }

    /// The node's name.
    pub fn node_name(&self) -> Result<String> {
        match self
            .get("NODENAME")
            .or_else(|| self.get("FELIX_FELIXHOSTNAME"))
            .or_else(|| self.get("HOSTNAME"))
        {
            Some(name) => Ok(name.trim().to_lowercase()),
            None => bail!("find the node's name: NODENAME is not set"),
        }
    }

    /// The backend for packets between nodes. With the Kubernetes API only `vxlan` is played; with etcd `bird`
    /// without a tunnel, and `vxlan`.
    pub fn backend(&self) -> &str {
        self.get("CALICO_NETWORKING_BACKEND").unwrap_or("bird")
    }
}

#[cfg(test)]
impl<const COUNT: usize> From<[(&str, &str); COUNT]> for Environment {
    fn from(variables: [(&str, &str); COUNT]) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }
}
