//! Logging: the node part to standard output, the plugins to Calico's CNI log file and standard error.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use crate::banner;

/// Logs of the node part go to the standard output of the container.
pub fn to_standard_output(component: &str) {
    let filter = EnvFilter::try_from_env("RUST_LOG").unwrap_or_else(|_| EnvFilter::new("info,kube=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false)
        .init();
    tracing::info!(component, "{}", banner::text());
}

/// A plugin must not log to standard output, which has its answer. The file is Calico's own, `cni.log`.
pub fn to_file(path: &Path) {
    let filter = EnvFilter::try_from_env("RUST_LOG").unwrap_or_else(|_| EnvFilter::new("info,kube=warn"));
    if let Some(folder) = path.parent() {
        // A log that cannot be written is no reason to leave a pod without network.
        let _ = std::fs::create_dir_all(folder);
    }
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(false);
    match OpenOptions::new().create(true).append(true).open(path) {
        Ok(file) => builder.with_writer(Mutex::new(file)).init(),
        Err(_) => builder.with_writer(std::io::stderr).init(),
    }
}
