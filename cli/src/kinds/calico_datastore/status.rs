//! `datastore status`: shows both stores and the progress of a conversion.

use calico_datastore::run::record::Phase;
use datastore::run::{Flags, Status, status};
use jiff::Timestamp;

use super::flags::StoreArguments;
use super::stores::{self, Variables};
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::say;

/// Shows both stores. A pause has its own exit code, because new pods get no network.
pub async fn run(look: &StoreArguments, variables: &Variables) -> Result<Outcome, CliError> {
    let stores = stores::stores(&look.stores, variables).await?;
    let found = status(&stores, Timestamp::now()).await?;
    match look.shown.output {
        Output::Json => say::json(&found)?,
        Output::Table => say::answer(&text(&found))?,
    }
    Ok(match found.works_with {
        Flags::V2 | Flags::V3 => Outcome::Done,
        Flags::Paused => Outcome::Paused,
        Flags::Both | Flags::Nothing => Outcome::Failed,
    })
}

fn text(found: &Status) -> String {
    let mut lines = vec![match found.works_with {
        Flags::V2 => "Calico uses etcd v2".to_owned(),
        Flags::V3 => "Calico uses etcd v3".to_owned(),
        Flags::Paused => "Calico is paused: running pods keep their network, new pods get none".to_owned(),
        Flags::Both => "Calico uses BOTH stores: a change in one is unknown in the other".to_owned(),
        Flags::Nothing => "no Calico data in either store".to_owned(),
    }];
    let word = |value: Option<&str>| value.unwrap_or("unset").to_owned();
    lines.push(format!(
        "  v2: /calico/v1/Ready {}, Calico {}, etcd {}",
        word(found.ready_v2.as_deref()),
        word(found.version_v2.as_deref()),
        found.etcd[0]
    ));
    let ready = found.ready_v3.map(|ready| ready.to_string());
    lines.push(format!(
        "  v3: datastoreReady {}, Calico {}, keys {}, etcd {}",
        word(ready.as_deref()),
        word(found.version_v3.as_deref()),
        found.keys_v3,
        found.etcd[1]
    ));
    match (found.needed, &found.needed_unknown) {
        (Some(true), _) => {
            lines.push("a conversion is needed: no calico-node of v3 uses etcd v3 yet".to_owned());
        }
        (Some(false), _) => lines.push("no conversion is needed".to_owned()),
        (None, Some(why)) => lines.push(format!("unknown whether a conversion is needed: {why}")),
        (None, None) => {}
    }
    if let Some(record) = &found.record {
        let objects = record.snapshot.as_ref().map_or(0, |snapshot| snapshot.objects);
        lines.push(format!(
            "conversion {}: phase {}, {} of {objects} keys written, started {}",
            &record.id.get(..8).unwrap_or(&record.id),
            record.phase,
            record.written,
            record.started_at.strftime("%Y-%m-%d %H:%M:%SZ"),
        ));
        if let Some(why) = &record.why {
            lines.push(format!("  rolled back: {why}"));
        }
        let at = record.abort_at.strftime("%H:%M:%SZ");
        if found.is_overdue {
            lines.push(format!(
                "  OVERDUE since {at}: a running `start` rolls back now, otherwise run `abort`"
            ));
        } else if record.phase < Phase::Completing {
            lines.push(format!("  the pause must end by {at}"));
        }
        let next = match record.phase {
            Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written => {
                Some("`start` continues the conversion, `abort` rolls it back")
            }
            Phase::Verified => Some("upgrade every calico-node to v3, then `complete`; or `abort`"),
            Phase::Completing => Some("`complete` continues"),
            Phase::Aborting => Some("`abort` continues"),
            Phase::Completed | Phase::Aborted => None,
        };
        lines.extend(next.map(|next| format!("  next: {next}")));
    }
    if let Some(holder) = &found.at_work {
        lines.push(format!("lock holder: {holder}"));
    }
    lines.join("\n") + "\n"
}
