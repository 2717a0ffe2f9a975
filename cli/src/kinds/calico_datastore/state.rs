//! `datastore status`.

use calico_datastore::run::record::Phase;
use datastore::run::{Flags, Status, status};
use jiff::Timestamp;

use super::flags::Look;
use super::reach::{self, Variables};
use crate::args::Output;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::say;

/// Shows both stores. Paused is an exit code of its own: no pod gets a network.
pub async fn run(look: &Look, variables: &Variables) -> Result<Outcome, CliError> {
    let stores = reach::stores(&look.stores, variables).await?;
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
        Flags::V2 => "Calico works with etcd v2".to_owned(),
        Flags::V3 => "Calico works with etcd v3".to_owned(),
        Flags::Paused => "Calico is paused: pods that run go on, new ones get no network".to_owned(),
        Flags::Both => {
            "Calico works with BOTH stores: what is changed in one is not known in the other".to_owned()
        }
        Flags::Nothing => "there is nothing of Calico's in either store".to_owned(),
    }];
    let word = |value: Option<&str>| value.unwrap_or("not there").to_owned();
    lines.push(format!(
        "  v2: /calico/v1/Ready {}, Calico {}, etcd {}",
        word(found.ready_v2.as_deref()),
        word(found.version_v2.as_deref()),
        found.etcd[0]
    ));
    let ready = found.ready_v3.map(|ready| ready.to_string());
    lines.push(format!(
        "  v3: datastoreReady {}, Calico {}, {} keys, etcd {}",
        word(ready.as_deref()),
        word(found.version_v3.as_deref()),
        found.keys_v3,
        found.etcd[1]
    ));
    match (found.needed, &found.needed_unknown) {
        (Some(true), _) => {
            lines.push("a conversion is needed: no calico-node of v3 works with etcd v3 yet".to_owned());
        }
        (Some(false), _) => lines.push("no conversion is needed".to_owned()),
        (None, Some(why)) => lines.push(format!("whether a conversion is needed is not known: {why}")),
        (None, None) => {}
    }
    if let Some(record) = &found.record {
        let objects = record.snapshot.as_ref().map_or(0, |snapshot| snapshot.objects);
        lines.push(format!(
            "conversion {}: phase {}, {} of {objects} keys written, begun {}",
            &record.id.get(..8).unwrap_or(&record.id),
            record.phase,
            record.written,
            record.started_at.strftime("%Y-%m-%d %H:%M:%SZ"),
        ));
        if let Some(why) = &record.why {
            lines.push(format!("  it went back: {why}"));
        }
        let at = record.abort_at.strftime("%H:%M:%SZ");
        if found.is_overdue {
            lines.push(format!(
                "  OVERDUE since {at}: whoever holds it takes it back now, or `abort` does"
            ));
        } else if record.phase < Phase::Completing {
            lines.push(format!("  the pause has to end by {at}"));
        }
        let next = match record.phase {
            Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written => {
                Some("`start` goes on where it stopped, `abort` takes it back")
            }
            Phase::Verified => Some("upgrade every calico-node to v3, then `complete`; or `abort`"),
            Phase::Completing => Some("`complete` goes on where it stopped"),
            Phase::Aborting => Some("`abort` goes on where it stopped"),
            Phase::Completed | Phase::Aborted => None,
        };
        lines.extend(next.map(|next| format!("  next: {next}")));
    }
    if let Some(holder) = &found.at_work {
        lines.push(format!("at work now: {holder}"));
    }
    lines.join("\n") + "\n"
}
