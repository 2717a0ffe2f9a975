//! What kube-proxy is told by its configuration, as far as it matters when Services change.

use jiff::SignedDuration;
use serde_json::Value;

/// `minSyncPeriod` of every mode where nobody says another one (`SetDefaults_KubeProxyConfiguration`, v1.36).
const MIN_SYNC_PERIOD: SignedDuration = SignedDuration::from_secs(1);

/// How kube-proxy makes its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Chains of iptables.
    Iptables,
    /// A table of nftables.
    Nftables,
    /// Virtual servers of the kernel.
    Ipvs,
}

impl Mode {
    /// As kube-proxy's configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// What the configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// How rules are made.
    pub mode: Mode,
    /// How long rules are not made again after they were made.
    pub min_sync_period: SignedDuration,
}

/// Reads a `KubeProxyConfiguration`, which is one for Linux; the words say what is not understood.
pub fn configuration(object: &Value) -> Result<Configuration, String> {
    let mode = match object["mode"].as_str().unwrap_or_default() {
        "" | "iptables" => Mode::Iptables,
        "nftables" => Mode::Nftables,
        "ipvs" => Mode::Ipvs,
        other => return Err(format!("mode {other}")),
    };
    let said = match &object[mode.as_str()]["minSyncPeriod"] {
        Value::Null => SignedDuration::ZERO,
        Value::String(text) => text
            .parse()
            .map_err(|_| format!("{}.minSyncPeriod {text}", mode.as_str()))?,
        other => return Err(format!("{}.minSyncPeriod {other}", mode.as_str())),
    };
    Ok(Configuration {
        mode,
        // It takes nothing for the default.
        min_sync_period: if said.is_zero() { MIN_SYNC_PERIOD } else { said },
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({}), Mode::Iptables, 1_000)]
    #[case(json!({"mode": "iptables", "iptables": {"minSyncPeriod": "0s"}}), Mode::Iptables, 1_000)]
    #[case(json!({"mode": "nftables", "nftables": {"minSyncPeriod": "2s"}, "iptables": {"minSyncPeriod": "9s"}}), Mode::Nftables, 2_000)]
    #[case(json!({"mode": "", "iptables": {"minSyncPeriod": "1m30s"}}), Mode::Iptables, 90_000)]
    #[case(json!({"mode": "ipvs", "ipvs": {"minSyncPeriod": null}}), Mode::Ipvs, 1_000)]
    fn what_it_says(#[case] object: Value, #[case] mode: Mode, #[case] milliseconds: i64) {
        let expected = Configuration {
            mode,
            min_sync_period: SignedDuration::from_millis(milliseconds),
        };
        assert_eq!(configuration(&object), Ok(expected));
    }

    #[rstest]
    #[case(json!({"mode": "kernelspace"}), "mode kernelspace")]
    #[case(json!({"iptables": {"minSyncPeriod": "soon"}}), "iptables.minSyncPeriod soon")]
    #[case(json!({"iptables": {"minSyncPeriod": 5}}), "iptables.minSyncPeriod 5")]
    fn what_nobody_understands_is_named(#[case] object: Value, #[case] words: &str) {
        assert_eq!(configuration(&object), Err(words.to_owned()));
    }
}
