//! When the rules of other programs are read: while the host is on flannel, for each new Migration, and after that more seldom than the
//! rest of the host.

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
    read: Option<Read>,
}

/// One reading.
#[derive(Debug)]
struct Read {
    at: Instant,
    /// Name of the Migration that it was for; none without one.
    migration: Option<String>,
    rules: ForeignRules,
}

impl ForeignRuleReader {
    /// The rules, read again if they are old, or were read for another Migration: the user may have corrected them in between. `None`
    /// once the host leaves flannel: the check is over, and steps must not wait.
    pub(super) async fn rules(
        &mut self,
        phase: Phase,
        goal: Goal,
        migration: Option<&str>,
        proc: &Path,
    ) -> Option<ForeignRules> {
        if phase != Phase::Flannel || goal != Goal::Hold {
            self.read = None;
            return None;
        }
        let is_current = |read: &Read| read.at.elapsed() < AGE && read.migration.as_deref() == migration;
        if !self.read.as_ref().is_some_and(is_current) {
            self.read = Some(Read {
                at: Instant::now(),
                migration: migration.map(str::to_owned),
                rules: foreign::read(proc).await,
            });
        }
        self.read.as_ref().map(|read| read.rules.clone())
    }
}
