//! Subcommands that change the stores: `start`, `complete`, `abort`; and `export`, which writes a file.

use std::time::Duration;

use calico_datastore::run::decide::Goal;
use calico_datastore::run::record::{Phase, Record};
use datastore::backup;
use datastore::run::{self, Flags, Options, RunError};
use datastore::stores::{ROOT, Stores};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::dry_run;
use super::error::ConversionError;
use super::flags::{Abort, Change, Complete, Start, StoreArguments};
use super::stores::{self, Variables};
use crate::confirm;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::say;

/// The interval of reads of the record while `start` waits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Pauses Calico, converts all data, and waits until the conversion is completed or aborted.
pub async fn start(start: &Start, variables: &Variables) -> Result<Outcome, CliError> {
    let look = &start.change.look;
    confirm::possible(start.change.yes)?;
    let options = Options {
        settle: SignedDuration::from_secs(i64::from(start.settle)),
        pause_limit: signed(start.pause_limit),
        batch: usize::from(start.batch),
        ..options(look)
    };
    if options.pause_limit <= options.settle {
        return Err(ConversionError::PauseTooShort.into());
    }
    let stores = stores::stores(&look.stores, variables).await?;
    let found = dry_run::convert(&stores, &look.folder.output_dir, start.ignore_v3_data).await?;
    say::note(found.text().trim_end());
    // In a conversion in progress, a refusal causes a rollback: the continued conversion handles it.
    let is_refused = found.outcome() == Outcome::Refused || found.not_now.is_some();
    if is_refused && !found.is_begun {
        return Ok(Outcome::Refused);
    }
    if !start.change.yes {
        confirm::ask(if found.is_begun {
            "Calico is paused by a conversion in progress. Continue?"
        } else {
            "Calico is paused from now until `complete` or `abort`: running pods keep their network, NEW PODS GET NO NETWORK, \
             and changes of policies have no effect. Start?"
        })?;
    }
    let goal = Goal::Start {
        over_existing: start.ignore_v3_data,
    };
    let record = arrive(&stores, &options, goal).await?;
    answer(look, record.as_ref())?;
    if start.no_hold {
        return Ok(Outcome::Done);
    }
    hold(look, &stores, &options).await
}

/// Switches Calico to v3.
pub async fn complete(complete: &Complete, variables: &Variables) -> Result<Outcome, CliError> {
    confirm::possible(complete.change.yes)?;
    let stores = stores::stores(&complete.change.look.stores, variables).await?;
    let status = run::status(&stores, Timestamp::now()).await?;
    if status.needed == Some(true) && status.works_with == Flags::Paused {
        say::note(
            "warning: no calico-node of v3 has written its version to etcd v3 yet. Calico will use etcd v3: nodes that do not \
             run v3 are not updated any more",
        );
    }
    let goal = Goal::Complete {
        despite_changes: complete.despite_changes,
        despite_missing: complete.despite_missing,
    };
    let question = "Every calico-node, every CNI plugin and the controllers must run Calico v3. Switch Calico to etcd v3?";
    go(
        &stores,
        &options(&complete.change.look),
        &complete.change,
        goal,
        question,
    )
    .await
}

/// Switches Calico back to v2.
pub async fn abort(abort: &Abort, variables: &Variables) -> Result<Outcome, CliError> {
    confirm::possible(abort.change.yes)?;
    let stores = stores::stores(&abort.change.look.stores, variables).await?;
    let goal = Goal::Abort {
        after_completion: abort.after_completion,
    };
    let question =
        "The upgrade of calico-node and the controllers must be rolled back. Switch Calico back to etcd v2?";
    let options = Options {
        no_nodes_of_v3: abort.no_nodes_of_v3,
        ..options(&abort.change.look)
    };
    go(&stores, &options, &abort.change, goal, question).await
}

async fn go(
    stores: &Stores,
    options: &Options,
    change: &Change,
    goal: Goal,
    question: &str,
) -> Result<Outcome, CliError> {
    if !change.yes {
        confirm::ask(question)?;
    }
    let record = arrive(stores, options, goal).await?;
    answer(&change.look, record.as_ref())?;
    Ok(Outcome::Done)
}

/// Writes the data of both stores into a file.
pub async fn export(look: &StoreArguments, variables: &Variables) -> Result<Outcome, CliError> {
    let stores = stores::stores(&look.stores, variables).await?;
    let tree = stores.v2.tree().await?;
    let entries = stores.v3.list(ROOT).await?;
    let made =
        backup::write(&look.folder.output_dir, &tree, &entries, Timestamp::now()).map_err(RunError::from)?;
    match look.shown.output {
        Output::Json => say::json(&made)?,
        Output::Table => say::answer(&format!(
            "{}: keys of v2: {}, keys of v3: {}, sha256 {}\n",
            made.path.display(),
            made.v2_keys,
            made.v3_keys,
            made.sha256
        ))?,
    }
    Ok(Outcome::Done)
}

async fn arrive(stores: &Stores, options: &Options, goal: Goal) -> Result<Option<Record>, CliError> {
    let tell = |line: &str| say::note(line);
    Ok(Box::pin(run::run_to(stores, options, goal, &tell)).await?)
}

/// Waits until the conversion is completed or aborted, and rolls it back after its deadline. Only the state of the record ends
/// the wait.
async fn hold(look: &StoreArguments, stores: &Stores, options: &Options) -> Result<Outcome, CliError> {
    say::note("waiting for `complete` or `abort` in another terminal");
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let status = match run::status(stores, Timestamp::now()).await {
            Ok(status) => status,
            Err(error) => {
                say::note(&format!("{error}; trying again"));
                continue;
            }
        };
        let Some(record) = status.record else {
            return Err(ConversionError::RecordGone.into());
        };
        match record.phase {
            Phase::Completed => {
                answer(look, Some(&record))?;
                return Ok(Outcome::Done);
            }
            Phase::Aborted => {
                answer(look, Some(&record))?;
                return Ok(Outcome::Failed);
            }
            Phase::Pausing
            | Phase::Paused
            | Phase::Writing
            | Phase::Written
            | Phase::Verified
            | Phase::Completing
            | Phase::Aborting => {}
        }
        if !status.is_overdue {
            continue;
        }
        say::note(&format!(
            "the pause had to end by {}; aborting the conversion",
            record.abort_at
        ));
        let abort = Goal::Abort {
            after_completion: false,
        };
        match arrive(stores, options, abort).await {
            Ok(_) => {
                let why = format!("the pause had to end by {}", record.abort_at);
                return Err(RunError::Aborted { why }.into());
            }
            // Another process holds the lock, or a store does not answer: the next read decides.
            Err(error) => say::note(&format!("{error}; trying again")),
        }
    }
}

fn answer(look: &StoreArguments, record: Option<&Record>) -> Result<(), CliError> {
    match look.shown.output {
        Output::Json => say::json(&json!({ "record": record })),
        Output::Table => say::answer(&match record {
            None => "Calico uses etcd v2; there is no record of a conversion\n".to_owned(),
            Some(record) => format!("phase {}{}\n", record.phase, next(record)),
        }),
    }
}

fn next(record: &Record) -> String {
    match record.phase {
        Phase::Verified => format!(
            ": Calico is paused. Upgrade every calico-node, the CNI plugin and the controllers to v3, then run `kubectl \
             replumb datastore complete`, by {} at the latest. To roll back, undo the upgrade, then run `abort`",
            record.abort_at.strftime("%H:%M:%SZ")
        ),
        Phase::Completed => {
            ": Calico uses etcd v3. The data in etcd v2 is unchanged, and its Ready flag stays false"
                .to_owned()
        }
        Phase::Aborted => ": Calico uses etcd v2, and the previous state of etcd v3 is restored".to_owned(),
        Phase::Pausing
        | Phase::Paused
        | Phase::Writing
        | Phase::Written
        | Phase::Completing
        | Phase::Aborting => String::new(),
    }
}

/// The options of a change, with defaults that `start` overrides.
fn options(look: &StoreArguments) -> Options {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = std::env::var("USER").unwrap_or_default();
    Options {
        settle: SignedDuration::ZERO,
        pause_limit: SignedDuration::ZERO,
        batch: 100,
        backups: Some(look.folder.output_dir.clone()),
        no_nodes_of_v3: false,
        holder: format!(
            "kubectl replumb datastore, {user}@{}, process {}, since {}",
            host.trim(),
            std::process::id(),
            Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
        ),
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
