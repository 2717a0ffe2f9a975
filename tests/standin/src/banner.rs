//! The stand-in's description of itself.

use crate::version::Played;

/// The first line of every log and the output of `--version`.
pub fn text() -> String {
    let played = Played::of_program().map(|played| played.version);
    let version = played.unwrap_or_else(|error| format!("{error:#}"));
    format!(
        "{version} — replumb's stand-in for Calico (build {}). This is not Calico: no policy is enforced, no BGP \
         is spoken. For labs only.",
        env!("CARGO_PKG_VERSION")
    )
}
