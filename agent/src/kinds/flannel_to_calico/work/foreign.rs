//! When the rules of other programs are read: while the host is on flannel, and more seldom than the rest of the host.

use std::path::Path;
use std::time::{Duration, Instant};

use flannel_to_calico::foreign_rules::ForeignRules;
use flannel_to_calico::phase::{Goal, Phase};

use crate::host::firewall::foreign;

/// Age at which the rules are read again.
const AGE: Duration = Duration::from_mins(1);

/// The rules that were read last.
#[derive(Debug, Default)]
pub(super) struct ForeignRuleReader {
    read: Option<(Instant, ForeignRules)>,
}

impl ForeignRuleReader {
    /// The rules, read again if they are old. `None` once the host leaves flannel: the check is over, and steps must not wait.
    pub(super) async fn rules(&mut self, phase: Phase, goal: Goal, proc: &Path) -> Option<ForeignRules> {
        if phase != Phase::Flannel || goal != Goal::Hold {
            self.read = None;
            return None;
        }
        let fresh = self.read.as_ref().is_some_and(|(at, _)| at.elapsed() < AGE);
        if !fresh {
            self.read = Some((Instant::now(), foreign::read(proc).await));
        }
        self.read.as_ref().map(|(_, rules)| rules.clone())
    }
}
