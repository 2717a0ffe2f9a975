//! Calls CNI plugins. Starts their executables in the host's network namespace.

use std::path::Path;

use flannel_to_calico::attachment::PluginCall;

use super::program::{self, ProgramError};

/// Performs the calls in order. A missing plugin is an error: its state of the pod (for example a host port) would remain.
///
/// # Errors
///
/// A plugin is missing, exits with an error, or does not end in time.
pub async fn call(folder: &Path, calls: &[PluginCall]) -> Result<(), ProgramError> {
    let folder_text = folder.to_string_lossy();
    for call in calls {
        let mut environment: Vec<(&str, &str)> = call
            .environment
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        environment.push(("CNI_PATH", &folder_text));
        let path = folder.join(&call.plugin);
        program::run_with(&path.to_string_lossy(), &[], &environment, Some(&call.input)).await?;
    }
    Ok(())
}
