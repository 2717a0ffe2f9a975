//! Every prerequisite as a check on cluster facts.

use crate::check::{Check, Verdict};

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckName {
    /// The API has ranges of Services as objects.
    ApiVersion,
    /// kube-proxy is understood.
    KubeProxy,
    /// The name servers are understood.
    NameServers,
    /// The new ranges are nobody else's.
    Ranges,
}

impl CheckName {
    /// The name as it stands in status, metrics and the runbook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiVersion => "ApiVersion",
            Self::KubeProxy => "KubeProxy",
            Self::NameServers => "NameServers",
            Self::Ranges => "Ranges",
        }
    }

    /// A check of this name that does not plainly hold.
    pub(super) fn not_pass(
        self,
        verdict: Verdict,
        object: impl Into<String>,
        found: impl Into<String>,
        needed: impl Into<String>,
        fix: impl Into<String>,
    ) -> Check {
        Check::not_pass(self.as_str(), verdict, object, found, needed, fix)
    }
}
