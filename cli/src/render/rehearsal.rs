//! A rehearsal as text.

use std::time::Duration;

use api::migration::MigrationPhase;
use offline::rehearsal::record::{Blocked, Rehearsal};
use serde::Serialize;

use crate::age;
use crate::table::table;

/// The rehearsals of a migration; the JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RehearsalDocument {
    /// Name of the Migration.
    pub migration: String,
    /// The hash of its plan.
    pub plan_hash: Option<String>,
    /// With the usual times.
    pub usual: Rehearsal,
    /// Where everything is quick.
    pub quick: Rehearsal,
    /// Where everything is slow, and pods use their whole grace period.
    pub slow: Rehearsal,
}

/// The most lines of a list; JSON has all.
const LINES: usize = 40;

/// The rehearsal of a migration.
pub fn text(document: &RehearsalDocument) -> String {
    let RehearsalDocument {
        migration,
        usual,
        quick,
        slow,
        ..
    } = document;
    let mut text = format!(
        "Rehearsal of Migration {migration}: {}; {} where everything is quick, {} where everything is slow\n",
        end(usual),
        end(quick),
        end(slow)
    );
    if usual.phase != MigrationPhase::Completed {
        text.push_str(&format!("{}\n", usual.message));
    }
    text.push_str(&list("Nodes", nodes(usual)));
    text.push_str(&list("Evictions", evictions(usual)));
    text.push_str(&list(
        "Refused by a PodDisruptionBudget for some time",
        usual.blocked.iter().map(blocked).collect(),
    ));
    text.push_str(&list(
        "Workloads with fewer Ready pods than before",
        workloads(usual),
    ));
    text.push_str(&list("Pods without a place", without_place(usual)));
    text.push_str(
        "\nTimes are those of the lab (docs/snapshot.md); how long pods take to end and to start is assumed. The soak time is left out, \
         and no probe is lost\n",
    );
    text
}

fn end(rehearsal: &Rehearsal) -> String {
    format!("{} after {}", rehearsal.phase.as_str(), time(rehearsal.seconds))
}

fn time(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1}s");
    }
    age::seconds(Duration::from_secs_f64(seconds.round()))
}

fn list(title: &str, mut rows: Vec<Vec<String>>) -> String {
    let all = rows.len();
    if all == 0 {
        return format!("\n{title}\n  none\n");
    }
    rows.truncate(LINES);
    let mut text = format!("\n{title} ({all})\n");
    text.extend(table(&[], &rows).lines().map(|line| format!("  {line}\n")));
    if all > LINES {
        text.push_str(&format!("  … and {} more: -o json has all\n", all - LINES));
    }
    text
}

fn nodes(rehearsal: &Rehearsal) -> Vec<Vec<String>> {
    let rows = rehearsal.nodes.iter().map(|node| {
        let steps: Vec<String> = node
            .steps
            .iter()
            .map(|(step, seconds)| format!("{step} {seconds:.1}"))
            .collect();
        vec![
            format!("at {}", time(node.begins)),
            node.name.clone(),
            node.seconds.map_or("not done".to_owned(), time),
            steps.join(", "),
        ]
    });
    rows.collect()
}

fn evictions(rehearsal: &Rehearsal) -> Vec<Vec<String>> {
    let rows = rehearsal.evictions.iter();
    rows.map(|eviction| {
        vec![
            format!("at {}", time(eviction.at)),
            eviction.node.clone(),
            eviction.pod.clone(),
        ]
    })
    .collect()
}

fn blocked(blocked: &Blocked) -> Vec<String> {
    vec![
        format!("at {}", time(blocked.from)),
        blocked.budget.clone(),
        format!("{} on {}", blocked.pod, blocked.node),
        if blocked.is_evicted {
            format!("for {}", time(blocked.seconds))
        } else {
            format!("for {}, and not evicted", time(blocked.seconds))
        },
    ]
}

fn workloads(rehearsal: &Rehearsal) -> Vec<Vec<String>> {
    let rows = rehearsal.workloads.iter().map(|shortage| {
        vec![
            shortage.workload.clone(),
            format!("at most {} of {} missing", shortage.missing, shortage.before),
            format!("for {} in total", time(shortage.seconds)),
        ]
    });
    rows.collect()
}

fn without_place(rehearsal: &Rehearsal) -> Vec<Vec<String>> {
    let rows = rehearsal.without_place.iter().map(|pod| {
        vec![
            format!("at {}", time(pod.from)),
            pod.pod.clone(),
            pod.seconds.map_or("until the end".to_owned(), |seconds| {
                format!("for {}", time(seconds))
            }),
        ]
    });
    rows.collect()
}
