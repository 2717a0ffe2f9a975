//! Both stores.

use super::CheckName;
use crate::cluster::facts::{ClusterFacts, StoreFacts};
use crate::cluster::settings::Settings;
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use engine::check::{Check, Finding, Report, Verdict, names};

/// What both stores are called together.
const BOTH: &str = "etcd of Calico v2 and v3";

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let stores = match &facts.stores {
        Some(Ok(stores)) => stores,
        Some(Err(problem)) => {
            return vec![CheckName::DatastoreAccess.not_pass(
                Verdict::Fail,
                BOTH,
                problem.message.clone(),
                "both answer the coordinator",
                problem.hint.clone(),
            )];
        }
        None => {
            return vec![CheckName::DatastoreAccess.not_pass(
                Verdict::Unknown,
                BOTH,
                "nobody has asked them",
                "both answer the coordinator",
                "see the coordinator's log",
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
    if let Some(who) = &stores.at_work {
        report.fail(
            "",
            BOTH,
            Finding::new(
                "the lock",
                format!("{who} is at work"),
                "nobody",
                "wait until it has ended; the lock of a process that died goes by itself after 15 s",
            ),
        );
    }
    let under_way = stores
        .phase
        .filter(|phase| !matches!(phase, Phase::Completed | Phase::Aborted));
    if let Some(phase) = under_way {
        report.fail(
            "",
            BOTH,
            Finding::new(
                "the record of a conversion",
                format!("phase {phase}"),
                "none under way",
                "it was begun by hand and not ended. `kubectl replumb datastore abort` takes it back: v2 is open again, and v3 as it was",
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
                "somebody has paused Calico, and no pod gets a network: if no upgrade is under way, `kubectl replumb datastore abort` sets it to true. \
                 What Calico's own tool has left in v3 is removed by hand, or written over with ignoreV3Data",
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
                "none, or one that was taken back",
                "somebody has gone back without it: `kubectl replumb datastore abort --after-completion` ends it, once no calico-node of v3 runs",
            ),
        );
    }
    if stores.ready_v2 == ReadyV2::Missing {
        report.fail(
            "",
            "etcd of Calico v2",
            Finding::new(
                "/calico/v1/Ready",
                "there is no such key",
                "\"true\"",
                "are these the endpoints of the etcd that Calico v2 works with? After an upgrade from etcd v2 to v3 its v2 data may be gone: \
                 `etcdctl ls /calico` with ETCDCTL_API=2",
            ),
        );
    }
    if stores.ready_v3 == ReadyV3::Open {
        report.fail(
            "",
            "etcd of Calico v3",
            Finding::new(
                "datastoreReady",
                "true: Calico works with it",
                "nothing of Calico's",
                "is the migration over? `kubectl replumb datastore status` shows both stores",
            ),
        );
    } else if stores.keys_v3 > 0 && !settings.ignore_v3_data.value && under_way.is_none() {
        report.fail(
            "",
            "etcd of Calico v3",
            Finding::new(
                "/calico/",
                format!("{} keys", stores.keys_v3),
                "none",
                "look at them (`etcdctl get --prefix --keys-only /calico/`) and remove them, or set ignoreV3Data: equal keys are written over, and put \
                 back on the way back",
            ),
        );
    }
    report.finish(BOTH, "Calico works with v2, and v3 is empty")
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
                        "it cannot be converted",
                        "a value of v3",
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
            let what: Vec<String> = converted
                .keys
                .iter()
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            let found = format!("{} keys are written to v3: {}", converted.objects(), names(&what));
            if converted.notes.is_empty() {
                return vec![name.pass("everything in etcd v2", found)];
            }
            let mut report = Report::new(name);
            for note in &converted.notes {
                report.warn(
                    "",
                    "etcd of Calico v2",
                    Finding::new(
                        "",
                        note.clone(),
                        "that you know",
                        "`kubectl replumb datastore dry-run` writes all reports",
                    ),
                );
            }
            report.finish("", "")
        }
    }
}
