//! The progress of a migration as text.

use api::migration::{MigrationPhase, Warnings};
use api::traffic::ClassCount;
use jiff::Timestamp;

use super::view::View;
use crate::age::age;
use crate::kinds::KindView;
use crate::table::{cut, table, wrap};

/// The migration on one line, without ages.
pub fn line(view: &View) -> String {
    let mut line = format!("Migration {}: {}", view.migration, words(view));
    if let Some(stage) = view.of_kind.as_ref().and_then(KindView::stage_text) {
        line.push_str(&format!(", {stage}"));
    }
    if let Some(done) = done(view) {
        line.push_str(&format!(", {done}"));
    }
    for part in [&view.reason, &view.message] {
        if !part.is_empty() {
            line.push_str(": ");
            line.push_str(part);
        }
    }
    line
}

/// One class of path: lost and sent probes, and the longest gap.
fn traffic(count: &ClassCount) -> String {
    let lost = count.totals;
    let gap = if lost.lost == 0 {
        String::new()
    } else {
        format!(", longest gap {} ms", lost.longest_gap_milliseconds)
    };
    let late = if lost.late == 0 {
        String::new()
    } else {
        format!(" ({} answered too late)", lost.late)
    };
    format!(
        "{}: {} of {} lost{late}{gap}",
        count.class.words(),
        lost.lost,
        lost.sent
    )
}

/// The number of nodes or pods that are done or rolled back; `None` while there are no counts.
fn done(view: &View) -> Option<String> {
    let goes_back = match view.phase {
        MigrationPhase::RollingBack | MigrationPhase::RolledBack => true,
        MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Preparing
        | MigrationPhase::Rolling
        | MigrationPhase::Mixed
        | MigrationPhase::Finishing
        | MigrationPhase::Completed
        | MigrationPhase::Halted => view.of_kind.as_ref().is_some_and(KindView::goes_back),
    };
    let what = if goes_back { "rolled back" } else { "done" };
    let text = &view.progress.text;
    if view.of_kind.is_some() {
        // The text has its own noun.
        return view.started_at.map(|_| format!("{text} {what}"));
    }
    (view.progress.nodes > 0).then(|| [text, "nodes", what].join(" "))
}

fn words(view: &View) -> String {
    let phase = view.phase.as_str();
    if view.paused {
        format!("{phase}, paused")
    } else {
        phase.to_owned()
    }
}

/// The complete status. `width` cuts the lines of the table, not the texts below it.
pub fn status(view: &View, now: Timestamp, width: Option<usize>) -> String {
    let mut head = vec![
        vec!["Migration".to_owned(), view.migration.clone()],
        vec!["Phase".to_owned(), words(view)],
    ];
    let mut add = |name: &str, text: String| {
        if !text.is_empty() {
            head.push(vec![name.to_owned(), text]);
        }
    };
    let begun = view.started_at.is_some();
    add("Progress", done(view).unwrap_or_default());
    for (name, text) in view.of_kind.iter().flat_map(|kind| kind.rows(begun, now)) {
        add(name, text);
    }
    match (view.started_at, view.completed_at) {
        (Some(started), Some(completed)) => add(
            "Took",
            format!(
                "{} (completed {} ago)",
                age(started, completed),
                age(completed, now)
            ),
        ),
        (Some(started), None) => add("Running", age(started, now)),
        (None, _) => add("Running", "not started; nothing has changed".to_owned()),
    }
    add("Blocked", view.reason.clone());
    let room = width.unwrap_or(110).saturating_sub(11).max(40);
    let message = wrap(&view.message, room);
    for (index, text) in message.into_iter().enumerate() {
        add(if index == 0 { "Message" } else { "" }, text);
    }
    for (index, count) in view.traffic.iter().enumerate() {
        add(if index == 0 { "Traffic" } else { "" }, traffic(count));
    }
    for (name, text) in warnings(view.warnings.as_ref(), room) {
        add(name, text);
    }
    if !view.current {
        add(
            "Note",
            "the coordinator has not processed the current spec yet".to_owned(),
        );
    }
    let mut text = table(&[], &head);
    // In a kind with stages, nodes have no steps.
    if !view.nodes.is_empty() && view.of_kind.is_none() {
        text.push('\n');
        text.push_str(&nodes(view, now, width));
    }
    text.push_str(&blockers(view, now, width));
    let next = view.next();
    if !next.is_empty() {
        text.push_str(&format!("\n{next}\n"));
    }
    text
}

/// The rows of warnings, wrapped to this width.
fn warnings(warnings: Option<&Warnings>, width: usize) -> Vec<(&'static str, String)> {
    let Some(warnings) = warnings else {
        return Vec::new();
    };
    let lines = warnings.items.iter().flat_map(|warning| wrap(warning, width));
    let mut rows: Vec<(&str, String)> = lines.map(|line| ("", line)).collect();
    let listed = u32::try_from(warnings.items.len()).unwrap_or(u32::MAX);
    let more = warnings.count.saturating_sub(listed);
    if more > 0 {
        rows.push(("", format!("and {more} more")));
    }
    if let Some((name, _)) = rows.first_mut() {
        *name = "Warnings";
    }
    rows
}

fn nodes(view: &View, now: Timestamp, width: Option<usize>) -> String {
    let rows: Vec<Vec<String>> = view
        .nodes
        .iter()
        .map(|node| {
            let message = if node.is_blocked() {
                let what = if node.halted { "halted, " } else { "" };
                let reason = if node.reason.is_empty() {
                    "AgentFailure"
                } else {
                    &node.reason
                };
                format!("{what}{reason}: see below")
            } else if node.step == "Done" && !node.leftovers.is_empty() {
                format!("leftovers of the old network: {}", node.leftovers.join(", "))
            } else if let Some(seconds) = node.seconds {
                format!("took {seconds} s")
            } else {
                node.message.clone()
            };
            vec![
                node.node.clone(),
                node.phase.unwrap_or("-").to_owned(),
                node.step.clone(),
                node.since.map_or_else(|| "-".to_owned(), |since| age(since, now)),
                message,
            ]
        })
        .collect();
    let text = table(&["NODE", "PHASE", "STEP", "AGE", "MESSAGE"], &rows);
    match width {
        Some(width) => text
            .lines()
            .map(|line| format!("{}\n", cut(line, width)))
            .collect(),
        None => text,
    }
}

/// The blocked nodes with their full messages, which name the pod, its budget and the numbers of the budget.
fn blockers(view: &View, now: Timestamp, width: Option<usize>) -> String {
    let mut text = String::new();
    for node in view.nodes.iter().filter(|node| node.is_blocked()) {
        let since = node
            .since
            .map(|since| format!(" for {}", age(since, now)))
            .unwrap_or_default();
        let reason = if node.reason.is_empty() {
            "AgentFailure"
        } else {
            &node.reason
        };
        text.push_str(&format!(
            "\nnode {} is in {}{since}: {reason}\n",
            node.node, node.step
        ));
        let parts = [Some(&node.message), node.failure.as_ref()];
        for part in parts.into_iter().flatten().filter(|part| !part.is_empty()) {
            for line in wrap(part, width.unwrap_or(110).saturating_sub(4).max(40)) {
                text.push_str(&format!("    {line}\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Outcome;
    use crate::fixture;

    #[test]
    fn status_has_nodes_in_order_with_step_age_and_blocker() {
        let (migration, nodes) = fixture::rolling();
        let view = View::of(&migration, &nodes);
        assert_eq!(view.end(), None);
        insta::assert_snapshot!(status(&view, fixture::now(), None), @r"
        Migration  flannel-to-calico
        Phase      Rolling
        Progress   1/3 nodes done
        Running    5m0s
        Blocked    DisruptionBudget
        Message    eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web
                   allows 0 disruptions (2 healthy, 2 needed, 2 expected)

        NODE      PHASE    STEP     AGE   MESSAGE
        worker-1  Calico   Done     -     took 42 s
        worker-2  Flannel  Drain    1m0s  DisruptionBudget: see below
        worker-3  Flannel  Waiting  -

        node worker-2 is in Drain for 1m0s: DisruptionBudget
            eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web allows 0
            disruptions (2 healthy, 2 needed, 2 expected)
        ");
    }

    #[test]
    fn warnings_are_listed_and_the_others_counted() {
        let (mut migration, nodes) = fixture::rolling();
        migration.status.as_mut().unwrap().warnings = Some(Warnings {
            count: 5,
            items: vec!["Pod shop/a: one".to_owned(), "node b: two".to_owned()],
        });
        let text = status(&View::of(&migration, &nodes), fixture::now(), None);
        let rows = "Warnings   Pod shop/a: one\n           node b: two\n           and 3 more\n";
        assert!(text.contains(rows), "{text}");
    }

    #[test]
    fn a_terminal_cuts_the_table_and_not_the_blockers() {
        let (migration, nodes) = fixture::rolling();
        let text = status(&View::of(&migration, &nodes), fixture::now(), Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("default/web"), "{text}");
    }

    #[test]
    fn every_end_has_an_exit_code_and_an_outdated_status_has_none() {
        let (mut migration, nodes) = fixture::rolling();
        let mut of = |phase, paused, working: &[&str]| {
            let status = migration.status.as_mut().unwrap();
            status.phase = phase;
            status.paused = paused;
            status.progress.working = working.iter().map(|node| (*node).to_owned()).collect();
            View::of(&migration, &nodes).end()
        };
        assert_eq!(of(MigrationPhase::Completed, false, &[]), Some(Outcome::Done));
        assert_eq!(of(MigrationPhase::Halted, false, &["a"]), Some(Outcome::Failed));
        assert_eq!(of(MigrationPhase::Refused, false, &[]), Some(Outcome::Refused));
        assert_eq!(of(MigrationPhase::Rolling, true, &[]), Some(Outcome::Paused));
        assert_eq!(of(MigrationPhase::Rolling, true, &["a"]), None);
        assert_eq!(of(MigrationPhase::Finishing, true, &[]), None);
        migration.metadata.generation = Some(9);
        migration.status.as_mut().unwrap().phase = MigrationPhase::Halted;
        assert_eq!(View::of(&migration, &nodes).end(), None);
    }

    #[test]
    fn a_line_does_not_change_with_the_clock() {
        let (migration, nodes) = fixture::rolling();
        let view = View::of(&migration, &nodes);
        assert_eq!(view.nodes[0].line(), "node worker-1: Calico, Done in 42 s");
        assert!(
            view.nodes[1]
                .line()
                .contains("Drain: DisruptionBudget: eviction of pod default/web-1")
        );
        assert!(
            line(&view).starts_with("Migration flannel-to-calico: Rolling, 1/3 nodes done"),
            "{}",
            line(&view)
        );
    }

    #[test]
    fn a_node_without_a_report_says_so() {
        let (migration, mut nodes) = fixture::rolling();
        nodes[2].status = None;
        let view = View::of(&migration, &nodes);
        assert_eq!(view.nodes[2].phase, None);
        assert_eq!(view.nodes[2].message, "no report from its agent");
        nodes[1].status = None;
        let message = &View::of(&migration, &nodes).nodes[1].message;
        assert!(
            message.starts_with("eviction of pod") && message.ends_with("; no report from its agent"),
            "{message}"
        );
    }
}
