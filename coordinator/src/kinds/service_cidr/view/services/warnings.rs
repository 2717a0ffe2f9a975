//! Warnings about Services that take long, or that their owners have changed.

use std::collections::BTreeMap;

use api::migration::ServiceCidrStatus;
use engine::decision::Decision;
use engine::words::number;
use service_cidr::class::Class;
use service_cidr::decide::ServiceView;
use service_cidr::side::Side;

use super::super::super::pass::Pass;
use super::super::super::read_cache::ExchangeTimes;
use super::super::super::service_index::name_of;

/// Number of late Services in one namespace from which a warning says why the migration takes longer.
const CROWD: usize = 100;

impl Pass<'_> {
    /// Warnings about Services that take long, or that their owners have changed: the object, and the text.
    pub(super) fn told(
        &self,
        known: &ServiceCidrStatus,
        views: &[ServiceView],
        waits: &ExchangeTimes,
    ) -> Vec<(String, String)> {
        let started = self
            .migration
            .status
            .as_ref()
            .and_then(|status| status.started_at);
        let changed = known.settings.changed();
        let (mut crowds, mut told) = (BTreeMap::<&str, usize>::new(), Vec::new());
        for view in views {
            let entry = name_of(&view.name).and_then(|name| self.index.service(&name));
            let Some(entry) = entry else { continue };
            let namespace = entry.namespace.as_str();
            let about = || format!("namespace {namespace}");
            let is_late = entry
                .created
                .is_some_and(|at| started.is_some_and(|started| at > started));
            if is_late && !view.has_target_address {
                *crowds.entry(namespace).or_default() += 1;
            }
            let both = self.assigned.book.get(&view.name);
            let is_at_either =
                both.is_some_and(|both| Side::ALL.iter().any(|side| entry.is_at(both.of(*side))));
            let moves = matches!(entry.class(changed.of(self.goal.other())), Class::Moves(_));
            if !is_at_either && !moves && !entry.is_away() {
                told.push((
                    about(),
                    format!(
                        "Service {}: its owner changed it after the start, and it has no address to exchange: replumb does not \
                         touch it",
                        view.name
                    ),
                ));
            } else if view.is_slow {
                let why = match &view.decision {
                    _ if waits.is_restless(&view.name, self.now) => "its owner edits it all the time",
                    Some(Decision::Wait(wait)) => wait.message.as_str(),
                    Some(Decision::Run(_) | Decision::Settled | Decision::Halt(_)) | None => continue,
                };
                told.push((
                    about(),
                    format!(
                        "Service {}: its exchange takes long, and other Services continue: {why}",
                        view.name
                    ),
                ));
            }
        }
        let crowds = crowds.into_iter().filter(|(_, count)| *count >= CROWD);
        told.extend(crowds.map(|(namespace, count)| {
            (
                format!("namespace {namespace}"),
                format!(
                    "namespace {namespace}: {} an address to exchange; Services of other namespaces do not wait for them",
                    number(
                        count,
                        "Service created after the start has",
                        "Services created after the start have"
                    )
                ),
            )
        }));
        told
    }
}
