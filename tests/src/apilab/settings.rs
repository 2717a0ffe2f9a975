//! What an API server of a lab is told besides what each is told.

use std::path::Path;

use anyhow::Result;

use crate::cluster::authority;

/// The file in the lab's folder that the API server writes its audit log into.
const AUDIT_LOG: &str = "audit.log";
/// The size at which the API server begins another file: none that is read here comes to it.
const AUDIT_MEGABYTES: u32 = 100_000;

/// What an API server of a lab is told besides what each is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Arguments of etcd.
    pub etcd: String,
    /// The policy of the audit log; without one there is none.
    pub audit: Option<String>,
    /// Arguments of the API server.
    pub server: String,
    /// Controllers that start with it, by name; without any they start later or never.
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
    /// The API server's arguments; the files that they name are written.
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

/// Where the audit log is.
pub(super) fn audit_log(folder: &Path) -> std::path::PathBuf {
    folder.join(AUDIT_LOG)
}
