//! Calls of CNI plugins. Starts their programs, in the host's network namespace.

use std::path::Path;

use engine::cni::PluginCall;

use super::program::{self, ProgramError};

/// Makes the calls in order. A plugin that is not there any more cannot be asked, and is an error: what it keeps of the
/// pod (a port of the host) would stay.
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
