//! The optional settings of a lab's API server.

use std::path::Path;

use anyhow::Result;

use crate::cluster::authority;

/// The file of the audit log in the lab's folder.
const AUDIT_LOG: &str = "audit.log";
/// The size at which the API server begins another file: no log read here becomes as large.
const AUDIT_MEGABYTES: u32 = 100_000;

/// The optional settings of a lab's API server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Arguments of etcd.
    pub etcd: String,
    /// The policy of the audit log; `None` for no log.
    pub audit: Option<String>,
    /// Arguments of the API server.
    pub server: String,
    /// Names of controllers that start with the API server; if empty, they start later or never.
    pub controllers: Option<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            etcd: String::new(),
            audit: None,
            server: String::new(),
            controllers: Some("endpointslice-controller,service-cidr-controller"),
        }
    }
}

impl Settings {
    /// The API server's arguments; writes the files that they name.
    pub(super) fn server(&self, folder: &Path) -> Result<String> {
        let Some(policy) = &self.audit else {
            return Ok(self.server.clone());
        };
        let file = folder.join("audit-policy.json");
        authority::write(&file, policy)?;
        Ok(format!(
            "{} --audit-policy-file={} --audit-log-path={} --audit-log-maxsize={AUDIT_MEGABYTES}",
            self.server,
            file.display(),
            audit_log(folder).display()
        ))
    }
}

/// Path of the audit log.
pub(super) fn audit_log(folder: &Path) -> std::path::PathBuf {
    folder.join(AUDIT_LOG)
}
