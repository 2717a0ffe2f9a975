//! `status`: shows the progress of a migration.

use jiff::Timestamp;
use kube::ResourceExt;

use super::watch;
use crate::args::Status;
use crate::choose;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::render::status::status;
use crate::render::view::View;
use crate::say;

pub(super) async fn run(cluster: &Cluster, args: &Status) -> Result<Outcome, CliError> {
    let migration = choose::existing(&cluster.migrations().await?, args.name.as_deref())?;
    let name = migration.name_any();
    if args.watch {
        return watch::run(cluster, &name, args.shown.output, args.timeout).await;
    }
    let nodes = cluster.nodes(&name).await?;
    let view = View::of(&migration, &nodes);
    match args.shown.output {
        Output::Json => say::json(&view)?,
        Output::Table => say::answer(&status(&view, Timestamp::now(), None))?,
    }
    Ok(view.end().unwrap_or(Outcome::Done))
}
