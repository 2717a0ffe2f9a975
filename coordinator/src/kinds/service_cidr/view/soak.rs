//! The time for which source addresses still answer.

use api::migration::ServiceCidrStatus;
use api::traffic::SoakGate;
use engine::decision::{Wait, WaitReason};
use engine::found::Found;
use engine::words::{self, lines};
use jiff::{SignedDuration, Timestamp};
use service_cidr::side::Side;

use super::super::answers::{Answer, Answers};
use super::super::pass::Pass;
use super::super::soak_seconds;

impl Pass<'_> {
    /// Start of the time for which source addresses still answer; `None` while something else has to end first.
    fn soak_since(&self, known: &ServiceCidrStatus) -> Option<Timestamp> {
        match self.migration.spec.gates.soak {
            SoakGate::Unused => known.source_unused_since,
            SoakGate::Elapsed => known.soak_started_at,
        }
    }

    /// The wait for source addresses to answer for some time, when no pod is known to have been given one.
    pub(super) fn soak(
        &self,
        answers: &Answers<'_>,
        known: &mut ServiceCidrStatus,
        is_unused: bool,
    ) -> Option<Wait> {
        let mut count = 0;
        let mut first: Vec<String> = Vec::new();
        let mut unknown: Vec<String> = Vec::new();
        for (node, answer) in answers {
            match answer.as_ref().and_then(Answer::connections) {
                Some(Found::Present(connections)) => {
                    count += connections.count();
                    first.extend(
                        connections
                            .items
                            .iter()
                            .map(|found| format!("{found} (node {node})")),
                    );
                }
                Some(Found::Absent) => {}
                Some(Found::Malformed(what)) => unknown.push(format!("node {node}: {what}")),
                None => unknown.push(format!("node {node}: its agent has not reported")),
            }
        }
        if !self.is_closed(known) {
            known.connections_to_source = None;
        } else if unknown.is_empty() {
            known.connections_to_source = Some(u32::try_from(count).unwrap_or(u32::MAX));
        }
        known.source_unused_since = if !is_unused || count > 0 {
            None
        } else if unknown.is_empty() {
            known.source_unused_since.or(Some(self.now))
        } else {
            known.source_unused_since
        };
        let is_elapsed = self.migration.spec.gates.soak == SoakGate::Elapsed;
        // A rollback is wanted at once; and a release that the time alone has decided stays decided.
        if self.goal == Side::Old || (is_elapsed && self.is_released(known)) {
            return None;
        }
        let used_by = format!(
            "{}, first: {}",
            words::number(
                count,
                "connection uses a source address",
                "connections use source addresses"
            ),
            lines(&first)
        );
        let until = |since: Timestamp| since + SignedDuration::from_secs(i64::from(soak_seconds(self.kind)));
        let message = match self.soak_since(known) {
            Some(since) if self.now >= until(since) && (is_elapsed || unknown.is_empty()) => return None,
            Some(_) if !is_elapsed && !unknown.is_empty() => unknown.swap_remove(0),
            Some(since) if known.source_unused_since.is_some() => format!(
                "no use of a source address since {since:.0}; source addresses answer until {:.0}",
                until(since)
            ),
            Some(since) => {
                let seen = match unknown.first() {
                    _ if count > 0 => used_by,
                    Some(unknown) => unknown.clone(),
                    None => "pods may use source addresses".to_owned(),
                };
                format!(
                    "{seen}. Source addresses answer until {:.0} (spec.gates.soak: Elapsed)",
                    until(since)
                )
            }
            None if count > 0 => format!("{used_by}. Source addresses still answer"),
            None => unknown
                .first()
                .cloned()
                .unwrap_or_else(|| "pods were given source addresses".to_owned()),
        };
        Some(Wait {
            reason: WaitReason::ServiceSoak,
            message,
            until: None,
        })
    }
}
