//! Checks of both stores: access, state, and the conversion of the data.

use super::CheckName;
use crate::cluster::facts::{ClusterFacts, StoreFacts};
use crate::cluster::settings::Settings;
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use engine::check::{Check, Finding, Report, Verdict, names};

/// Name of both stores together in messages.
const BOTH: &str = "etcd of Calico v2 and v3";

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let stores = match &facts.stores {
        Some(Ok(stores)) => stores,
        Some(Err(problem)) => {
            return vec![CheckName::DatastoreAccess.not_pass(
                Verdict::Fail,
                BOTH,
                problem.message.clone(),
                "an answer of both stores to the coordinator",
                problem.hint.clone(),
            )];
        }
        None => {
            return vec![CheckName::DatastoreAccess.not_pass(
                Verdict::Unknown,
                BOTH,
                "no request yet",
                "an answer of both stores to the coordinator",
                "check the coordinator's log",
            )];
        }
    };
    let endpoints = format!(
        "v2: {}; v3: {}",
        settings.etcd_v2.value.endpoints.join(","),
        settings.etcd_v3.value.endpoints.join(",")
    );
    [
        vec![
            CheckName::DatastoreAccess.pass(BOTH, endpoints),
            CheckName::Versions.pass(
                "versions",
                format!(
                    "Kubernetes {}, Calico {}, etcd {} for v2, etcd {} for v3",
                    facts.kubernetes_version, stores.calico_version, stores.etcd_v2, stores.etcd_v3
                ),
            ),
        ],
        state(settings, stores),
        conversion(stores),
    ]
    .concat()
}

fn state(settings: &Settings, stores: &StoreFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::DatastoreState);
    if let Some(who) = &stores.lock_holder {
        report.fail(
            "",
            BOTH,
            Finding::new(
                "the lock",
                format!("held by {who}"),
                "free",
                "wait until the process ends; the lock of a dead process expires after 15 s",
            ),
        );
    }
    let unfinished = unfinished(stores);
    record(stores, unfinished, &mut report);
    if stores.ready_v2 == ReadyV2::Missing {
        report.fail(
            "",
            "etcd of Calico v2",
            Finding::new(
                "/calico/v1/Ready",
                "no such key",
                "\"true\"",
                "check that these are the endpoints of the etcd of Calico v2. After an upgrade from etcd v2 to v3, its v2 data \
                 may be gone: `ETCDCTL_API=2 etcdctl ls /calico`",
            ),
        );
    }
    if stores.ready_v3 == ReadyV3::Open {
        report.fail(
            "",
            "etcd of Calico v3",
            Finding::new(
                "datastoreReady",
                "true: Calico works with etcd v3",
                "no data of Calico",
                "check whether the migration is done already: `kubectl replumb datastore status` shows both stores",
            ),
        );
    } else if stores.keys_v3 > 0 && !settings.ignore_v3_data.value && unfinished.is_none() {
        report.fail(
            "",
            "etcd of Calico v3",
            Finding::new(
                "/calico/",
                format!("keys: {}", stores.keys_v3),
                "no key",
                "list them (`etcdctl get --prefix --keys-only /calico/`) and remove them, or set ignoreV3Data: equal keys are \
                 overwritten, and a rollback restores them",
            ),
        );
    }
    report.finish(BOTH, "Calico works with v2, and v3 is empty")
}

/// The phase of a conversion that is not finished.
fn unfinished(stores: &StoreFacts) -> Option<Phase> {
    stores
        .phase
        .filter(|phase| !matches!(phase, Phase::Completed | Phase::Aborted))
}

/// Checks that no earlier conversion is in the stores, and that Calico is not paused.
fn record(stores: &StoreFacts, unfinished: Option<Phase>, report: &mut Report) {
    if let Some(phase) = unfinished {
        report.fail(
            "",
            BOTH,
            Finding::new(
                "the record of a conversion",
                format!("phase {phase}"),
                "no conversion in progress",
                "it was started by hand and is not finished: `kubectl replumb datastore abort` opens v2 again and restores v3",
            ),
        );
    } else if let (ReadyV2::Paused(value), ReadyV3::Missing | ReadyV3::Paused) =
        (&stores.ready_v2, stores.ready_v3)
    {
        report.fail(
            "",
            "etcd of Calico v2",
            Finding::new(
                "/calico/v1/Ready",
                format!("{value:?}"),
                "\"true\"",
                "Calico is paused, and no new pod gets a network: if no upgrade is in progress, `kubectl replumb datastore \
                 abort` sets it to true. Remove what Calico's own tool wrote to v3, or set ignoreV3Data to overwrite it",
            ),
        );
    }
    if stores.phase == Some(Phase::Completed) && stores.ready_v3 != ReadyV3::Open {
        report.fail(
            "",
            BOTH,
            Finding::new(
                "the record of a conversion",
                "phase Completed, and Calico does not work with etcd v3",
                "no record, or phase Aborted",
                "Calico was returned to v2 without it: when no calico-node of v3 runs, `kubectl replumb datastore abort \
                 --after-completion` ends it",
            ),
        );
    }
}

fn conversion(stores: &StoreFacts) -> Vec<Check> {
    let name = CheckName::DatastoreConversion;
    match &stores.conversion {
        Err(refused) => {
            let mut report = Report::new(name);
            for line in &refused.lines {
                report.fail(
                    "",
                    line.clone(),
                    Finding::new(
                        "",
                        "no conversion",
                        "a value that can be converted",
                        refused.hint.clone(),
                    ),
                );
            }
            if refused.lines.is_empty() {
                report.fail(
                    "",
                    "etcd of Calico v2",
                    Finding::new(
                        "",
                        refused.message.clone(),
                        "data that can be converted",
                        refused.hint.clone(),
                    ),
                );
            }
            report.finish("etcd of Calico v2", "")
        }
        Ok(converted) => {
            let kinds: Vec<String> = converted
                .keys
                .iter()
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            let found = format!("keys to write to v3: {} ({})", converted.objects(), names(&kinds));
            if converted.notes.is_empty() {
                return vec![name.pass("all data in etcd v2", found)];
            }
            let mut report = Report::new(name);
            for note in &converted.notes {
                report.warn(
                    "",
                    "etcd of Calico v2",
                    Finding::new(
                        "",
                        note.clone(),
                        "no note, or one that you accept",
                        "read the note; `kubectl replumb datastore dry-run` writes all reports",
                    ),
                );
            }
            report.finish("", "")
        }
    }
}
