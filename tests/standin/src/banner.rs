//! What the stand-in says about itself.

/// Version of Calico whose behaviour is played, with a mark that it is not the real one.
pub const VERSION: &str = "v3.31.7-standin";

/// The first line of every log and the answer to a question for the version.
pub fn text() -> String {
    format!(
        "{VERSION} — replumb's stand-in for Calico (build {}). This is not Calico: no policy is enforced, no BGP \
         is spoken. For labs only.",
        env!("CARGO_PKG_VERSION")
    )
}
