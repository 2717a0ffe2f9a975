//! `status --watch`: redraws on a terminal, prints changed lines otherwise, and ends with the migration.

use std::collections::BTreeMap;
use std::time::Duration;

use api::{Migration, NodeMigration};
use console::Term;
use futures::{Stream, StreamExt as _};
use jiff::{Timestamp, Unit};
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watching};
use runtime::error::chain;
use tokio::time::{Instant, MissedTickBehavior};

use crate::cluster::{self, Cluster};
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::render::status::{line, status};
use crate::render::view::View;
use crate::say;

/// The interval at which ages are redrawn.
const REDRAW: Duration = Duration::from_secs(1);
/// Changes within this time are shown together.
const SETTLE: Duration = Duration::from_millis(100);

/// Watches a Migration until it ends.
pub(super) async fn run(
    cluster: &Cluster,
    name: &str,
    output: Output,
    patience: Option<Duration>,
) -> Result<Outcome, CliError> {
    let only = watching::Config::default().fields(&format!("metadata.name={name}"));
    let mut migrations = Box::pin(watching(cluster.watched_migrations(), only).default_backoff());
    let mut nodes =
        Box::pin(watching(cluster.watched_nodes(), watching::Config::default()).default_backoff());
    let mut screen = Screen::new(output);
    let mut seen = Seen::default();
    let started = Instant::now();
    let mut tick = tokio::time::interval(REDRAW);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut changed = false;
    let mut settled = Instant::now();
    loop {
        tokio::select! {
            event = next(&mut migrations) => {
                seen.migration(event, name)?;
                changed = true;
                settled = Instant::now() + SETTLE;
            }
            event = next(&mut nodes) => {
                seen.node(event);
                changed = true;
                settled = Instant::now() + SETTLE;
            }
            () = tokio::time::sleep_until(settled), if changed => {
                changed = false;
                if let Some(view) = seen.view(name) {
                    screen.show(&view, seen.trouble.as_deref(), true)?;
                    if let Some(outcome) = view.end() {
                        screen.last(&view)?;
                        return Ok(outcome);
                    }
                } else if let Some(trouble) = &seen.trouble {
                    screen.trouble(trouble);
                }
            }
            _ = tick.tick() => {
                if let Some(view) = seen.view(name) {
                    screen.show(&view, seen.trouble.as_deref(), false)?;
                }
                if let Some(patience) = patience.filter(|patience| started.elapsed() >= *patience) {
                    let last = seen.view(name).map_or_else(|| "nothing".to_owned(), |view| line(&view));
                    return Err(CliError::Deadline {
                        name: name.to_owned(),
                        wanted: "ended",
                        waited: patience,
                        seen: seen.trouble.clone().unwrap_or(last),
                        missing: Vec::new(),
                    });
                }
            }
        }
    }
}

async fn next<T, S>(stream: &mut S) -> watcher::Result<Event<T>>
where
    S: Stream<Item = watcher::Result<Event<T>>> + Unpin,
{
    match stream.next().await {
        Some(event) => event,
        // A watcher never ends.
        None => std::future::pending().await,
    }
}

/// The state from the watches.
#[derive(Default)]
struct Seen {
    migration: Option<Migration>,
    /// Whether the first list of each kind is complete.
    listed: (bool, bool),
    nodes: BTreeMap<String, NodeMigration>,
    /// Nodes of a list that is not complete yet.
    relisted: BTreeMap<String, NodeMigration>,
    /// Why there are no events at present.
    trouble: Option<String>,
}

impl Seen {
    fn migration(&mut self, event: watcher::Result<Event<Migration>>, name: &str) -> Result<(), CliError> {
        let gone = || CliError::Gone {
            name: name.to_owned(),
        };
        match self.event_or_trouble(event) {
            Some(Event::Apply(migration) | Event::InitApply(migration)) => self.migration = Some(migration),
            Some(Event::Delete(_)) => return Err(gone()),
            Some(Event::Init) => self.migration = None,
            Some(Event::InitDone) => {
                self.listed.0 = true;
                if self.migration.is_none() {
                    return Err(gone());
                }
            }
            None => {}
        }
        Ok(())
    }

    fn node(&mut self, event: watcher::Result<Event<NodeMigration>>) {
        match self.event_or_trouble(event) {
            Some(Event::Apply(node)) => {
                self.nodes.insert(node.name_any(), node);
            }
            Some(Event::Delete(node)) => {
                self.nodes.remove(&node.name_any());
            }
            Some(Event::Init) => self.relisted.clear(),
            Some(Event::InitApply(node)) => {
                self.relisted.insert(node.name_any(), node);
            }
            Some(Event::InitDone) => {
                self.listed.1 = true;
                self.nodes = std::mem::take(&mut self.relisted);
            }
            None => {}
        }
    }

    /// The loss of the API server is a normal state: it is reported, and the watch continues.
    fn event_or_trouble<T>(&mut self, event: watcher::Result<Event<T>>) -> Option<Event<T>> {
        match event {
            Ok(event) => {
                self.trouble = None;
                Some(event)
            }
            Err(error) => {
                self.trouble = Some(format!("the API server does not answer: {}", chain(&error)));
                None
            }
        }
    }

    fn view(&self, name: &str) -> Option<View> {
        if self.listed != (true, true) {
            return None;
        }
        let mut nodes: Vec<NodeMigration> = self
            .nodes
            .values()
            .filter(|node| node.spec.migration == name)
            .cloned()
            .collect();
        cluster::sort(&mut nodes);
        Some(View::of(self.migration.as_ref()?, &nodes))
    }
}

/// The output.
struct Screen {
    output: Output,
    terminal: Option<Term>,
    /// Subject → its last printed line.
    lines: BTreeMap<String, String>,
    view: Option<View>,
    troubled: bool,
}

impl Screen {
    fn new(output: Output) -> Self {
        let terminal = Term::stdout();
        let drawn = output == Output::Table && terminal.is_term();
        Self {
            output,
            terminal: drawn.then_some(terminal),
            lines: BTreeMap::new(),
            view: None,
            troubled: false,
        }
    }

    fn show(&mut self, view: &View, trouble: Option<&str>, changed: bool) -> Result<(), CliError> {
        if let Some(terminal) = &self.terminal {
            let (_, width) = terminal.size();
            let mut text = status(view, Timestamp::now(), Some(usize::from(width).max(40)));
            if let Some(trouble) = trouble {
                text.push_str(&format!(
                    "\n{trouble}\nDisplay is stale since the connection dropped.\n"
                ));
            }
            terminal.clear_screen().map_err(CliError::Write)?;
            return say::answer(&text);
        }
        self.report_trouble(trouble);
        if !changed || self.view.as_ref() == Some(view) {
            return Ok(());
        }
        let shown = match self.output {
            Output::Json => say::json_line(view),
            Output::Table => self.lines(view),
        };
        self.view = Some(view.clone());
        shown
    }

    /// Prints the changed lines, each with the time.
    fn lines(&mut self, view: &View) -> Result<(), CliError> {
        let now = Timestamp::now()
            .round(Unit::Second)
            .unwrap_or_else(|_| Timestamp::now());
        // In a kind with stages, nodes have no steps.
        let nodes = view.nodes.iter().filter(|_| view.of_kind.is_none());
        let subjects = std::iter::once((String::new(), line(view)))
            .chain(nodes.map(|node| (node.node.clone(), node.line())));
        let mut text = String::new();
        for (subject, line) in subjects {
            if self.lines.get(&subject) != Some(&line) {
                text.push_str(&format!("{now} {line}\n"));
                self.lines.insert(subject, line);
            }
        }
        say::answer(&text)
    }

    /// Prints the next command at the end, which a terminal already shows.
    fn last(&self, view: &View) -> Result<(), CliError> {
        let next = view.next();
        if self.terminal.is_none() && self.output == Output::Table && !next.is_empty() {
            return say::answer(&format!("{next}\n"));
        }
        Ok(())
    }

    fn trouble(&mut self, trouble: &str) {
        self.report_trouble(Some(trouble));
    }

    fn report_trouble(&mut self, trouble: Option<&str>) {
        match trouble {
            Some(trouble) if !self.troubled => say::note(trouble),
            None if self.troubled => say::note("the API server answers again"),
            Some(_) | None => {}
        }
        self.troubled = trouble.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn seen() -> Seen {
        let (migration, nodes) = fixture::rolling();
        let mut seen = Seen::default();
        seen.migration(Ok(Event::Init), "flannel-to-calico").unwrap();
        seen.migration(Ok(Event::InitApply(migration)), "flannel-to-calico")
            .unwrap();
        seen.node(Ok(Event::Init));
        for node in nodes {
            seen.node(Ok(Event::InitApply(node)));
        }
        seen
    }

    #[test]
    fn nothing_is_shown_before_both_lists_are_complete() {
        let mut seen = seen();
        assert!(seen.view("flannel-to-calico").is_none());
        seen.migration(Ok(Event::InitDone), "flannel-to-calico").unwrap();
        assert!(seen.view("flannel-to-calico").is_none());
        seen.node(Ok(Event::InitDone));
        let view = seen.view("flannel-to-calico").unwrap();
        let names: Vec<&str> = view.nodes.iter().map(|node| node.node.as_str()).collect();
        assert_eq!(names, ["worker-1", "worker-2", "worker-3"]);
        assert!(seen.view("another").unwrap().nodes.is_empty());
    }

    #[test]
    fn a_deleted_migration_is_an_error() {
        let mut seen = Seen::default();
        seen.migration(Ok(Event::Init), "a").unwrap();
        assert!(matches!(
            seen.migration(Ok(Event::InitDone), "a"),
            Err(CliError::Gone { .. })
        ));
    }

    #[test]
    fn a_lost_api_server_is_reported_until_it_answers_again() {
        let mut seen = seen();
        seen.node(Err(watcher::Error::NoResourceVersion));
        assert!(seen.trouble.is_some());
        seen.node(Ok(Event::InitDone));
        assert!(seen.trouble.is_none());
        assert_eq!(seen.nodes.len(), 3);
    }
}
