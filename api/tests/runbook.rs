//! Every name that can appear in a status, an Event or a metric has a heading in the runbook, every heading has such a name, and
//! the index lists them all.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails with a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use api::{Announcement, FailureCategory};
use calico_datastore::cluster as datastore;
use engine::check::UNUSED_FIELDS;
use engine::decision::{HaltReason, WaitReason};
use engine::reason::Reason;
use flannel_to_calico::checks::CheckName;
use flannel_to_calico::host::HostStep;
use flannel_to_calico::host_checks::HostCheck;
use flannel_to_calico::node::Stage;
use flannel_to_calico::phase::Phase;
use schemars::JsonSchema;

/// `docs/runbook.md`: the front page.
const FRONT: &str = include_str!("../../docs/runbook.md");

/// The largest number of lines of the front page: one screen.
const SCREEN: usize = 60;

/// A page of the runbook that has entries: reasons, checks, steps and failures.
struct Page {
    /// The file in `docs/runbook/`.
    file: &'static str,
    /// The kind of migration that the page is about; `None` for the page of all kinds.
    kind: Option<&'static str>,
    text: &'static str,
}

/// The page of all kinds, then one page per kind.
static PAGES: [Page; 5] = [
    COMMON,
    FLANNEL_TO_CALICO,
    POD_CIDR,
    SERVICE_CIDR,
    CALICO_DATASTORE,
];

const COMMON: Page = Page {
    file: "common.md",
    kind: None,
    text: include_str!("../../docs/runbook/common.md"),
};

const FLANNEL_TO_CALICO: Page = Page {
    file: "flannel-to-calico.md",
    kind: Some("flannelToCalico"),
    text: include_str!("../../docs/runbook/flannel-to-calico.md"),
};

const POD_CIDR: Page = Page {
    file: "pod-cidr.md",
    kind: Some("podCidr"),
    text: include_str!("../../docs/runbook/pod-cidr.md"),
};

const SERVICE_CIDR: Page = Page {
    file: "service-cidr.md",
    kind: Some("serviceCidr"),
    text: include_str!("../../docs/runbook/service-cidr.md"),
};

const CALICO_DATASTORE: Page = Page {
    file: "calico-datastore.md",
    kind: Some("calicoDatastore"),
    text: include_str!("../../docs/runbook/calico-datastore.md"),
};

/// Sections whose headings are entries of the index: the section, the prefix of the name in its headings, and the type of the
/// entry in the index.
const SECTIONS: [(&str, &str, &str); 8] = [
    ("Blocked", "", "blocked"),
    ("Waits", "", "wait"),
    ("Halts", "", "halt"),
    ("Events", "", "event"),
    ("Checks", "", "check"),
    ("Checks of one host", "Host: ", "check of one host"),
    ("Steps on a host", "Step: ", "step on a host"),
    ("Failures of an agent", "Failure: ", "failure of an agent"),
];

/// Sections whose entries have the parts of [`PARTS`].
const SECTIONS_WITH_PARTS: [&str; 6] = [
    "Blocked",
    "Waits",
    "Halts",
    "Events",
    "Checks",
    "Checks of one host",
];

/// The parts of an entry, in order.
const PARTS: [&str; 4] = ["Means", "Check", "Meanwhile", "Do"];

/// One heading with the text below it.
struct Entry {
    page: &'static Page,
    /// The whole heading.
    heading: &'static str,
    /// The heading without its prefix.
    name: &'static str,
    lines: Vec<&'static str>,
}

/// The lines of a page outside blocks of code: a shell comment looks like a heading.
fn lines_outside_code(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.lines()
        .filter(|line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
        .collect()
}

/// The lines below `## <section>` of a page; none if the page has no such section.
fn section(page: &Page, name: &str) -> Vec<&'static str> {
    let start = format!("## {name}");
    lines_outside_code(page.text)
        .into_iter()
        .skip_while(|line| *line != start)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .collect()
}

/// The entries below `## <section>` of all pages.
fn entries(name: &str, prefix: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for page in &PAGES {
        for line in section(page, name) {
            if let Some(heading) = line.strip_prefix("### ") {
                let name = heading.strip_prefix(prefix).unwrap_or_else(|| {
                    panic!(
                        "{}: heading {heading:?} does not start with {prefix:?}",
                        page.file
                    )
                });
                entries.push(Entry {
                    page,
                    heading,
                    name,
                    lines: Vec::new(),
                });
            } else if let Some(entry) = entries.last_mut().filter(|entry| entry.page.file == page.file) {
                entry.lines.push(line);
            }
        }
    }
    assert!(
        !entries.is_empty(),
        "no page of the runbook has a section {name:?}"
    );
    entries
}

fn set<'text>(names: impl IntoIterator<Item = &'text str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

fn assert_same(section: &str, prefix: &str, names: &BTreeSet<String>) {
    let entries = entries(section, prefix);
    let headings: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    let found = set(headings.iter().copied());
    assert_eq!(
        found.len(),
        headings.len(),
        "section {section:?} has a heading twice: {headings:?}"
    );
    let missing: Vec<&String> = names.difference(&found).collect();
    let stale: Vec<&String> = found.difference(names).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/runbook, sections {section:?}: headings missing: {missing:?}; headings without such a name: {stale:?}"
    );
}

/// The names of an enum's variants, in order.
fn names<T: Copy + Into<&'static str>>(variants: &[T]) -> Vec<&'static str> {
    variants.iter().map(|variant| (*variant).into()).collect()
}

/// The variants of an enum from its derived schema, which is always complete.
fn variants<T: JsonSchema>() -> BTreeSet<String> {
    let schema = schemars::schema_for!(T).to_value();
    let listed = schema["enum"].as_array().into_iter().flatten();
    let described = schema["oneOf"].as_array().into_iter().flatten().flat_map(|part| {
        let several = part["enum"].as_array().into_iter().flatten();
        several.chain(part.get("const"))
    });
    let names: BTreeSet<String> = listed
        .chain(described)
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    assert!(!names.is_empty(), "a schema without variants: {schema}");
    names
}

#[test]
fn the_front_page_fits_on_one_screen() {
    let lines = FRONT.lines().count();
    assert!(lines <= SCREEN, "docs/runbook.md has {lines} lines");
}

/// The section of a reason.
fn section_of(reason: Reason) -> &'static str {
    match reason {
        Reason::Blocked(_) => "Blocked",
        Reason::Wait(_) => "Waits",
        Reason::Halt(_) => "Halts",
    }
}

/// The names of the reasons in this section.
fn reasons(section: &str) -> BTreeSet<String> {
    set(Reason::all()
        .filter(|reason| section_of(*reason) == section)
        .map(Reason::as_str))
}

#[test]
fn every_value_of_blocked_has_its_heading() {
    assert_same("Blocked", "", &reasons("Blocked"));
}

#[test]
fn every_wait_has_its_heading() {
    let names = reasons("Waits");
    assert_eq!(names, variants::<WaitReason>(), "Reason::all is not complete");
    assert_same("Waits", "", &names);
}

#[test]
fn every_halt_has_its_heading() {
    let names = reasons("Halts");
    assert_eq!(names, variants::<HaltReason>(), "Reason::all is not complete");
    assert_same("Halts", "", &names);
}

/// The description in the API names every reason that is neither a wait nor a halt.
#[test]
fn the_description_of_status_reason_names_every_value_of_blocked() {
    let schema = schemars::schema_for!(api::MigrationStatus).to_value();
    let description = schema["properties"]["reason"]["description"].as_str().unwrap();
    for name in reasons("Blocked") {
        assert!(
            description.contains(&format!("`{name}`")),
            "{name}: {description}"
        );
    }
}

/// The names of the checks of each kind.
fn checks() -> [(&'static str, BTreeSet<String>); 4] {
    let mut all = [
        ("flannelToCalico", set(names(CheckName::ALL))),
        ("podCidr", set(names(pod_cidr::checks::CheckName::ALL))),
        ("serviceCidr", set(names(service_cidr::checks::CheckName::ALL))),
        ("calicoDatastore", set(names(datastore::checks::CheckName::ALL))),
    ];
    for (_, names) in &mut all {
        names.insert(UNUSED_FIELDS.to_owned());
    }
    all
}

/// The names of the checks of all kinds.
fn all_checks() -> BTreeSet<String> {
    checks().into_iter().flat_map(|(_, names)| names).collect()
}

#[test]
fn every_check_has_its_heading() {
    assert_same("Checks", "", &all_checks());
}

/// The kinds that an entry is about: the kind of its page, or the kinds in its line `Kinds: …`.
fn kinds(entry: &Entry) -> BTreeSet<String> {
    let listed: Vec<&str> = entry
        .lines
        .iter()
        .filter_map(|line| line.strip_prefix("Kinds: "))
        .collect();
    match (entry.page.kind, listed.as_slice()) {
        (Some(kind), []) => set([kind]),
        (None, [line]) => set(line.split('`').skip(1).step_by(2)),
        (_, lines) => panic!(
            "{}, {}: {} lines `Kinds: …`",
            entry.page.file,
            entry.name,
            lines.len()
        ),
    }
}

/// A check of several kinds has one heading with all of them; a check of one kind is on the page of that kind.
#[test]
fn every_check_names_its_kinds() {
    let checks = checks();
    for entry in entries("Checks", "") {
        let having = checks.iter().filter(|(_, names)| names.contains(entry.name));
        let having = set(having.map(|(kind, _)| *kind));
        assert_eq!(kinds(&entry), having, "{}, check {}", entry.page.file, entry.name);
        assert_eq!(
            entry.page.kind.is_none(),
            having.len() > 1,
            "{}, check {}: wrong page",
            entry.page.file,
            entry.name
        );
    }
}

/// Readers find each part at the same place.
#[test]
fn every_reason_and_every_check_has_the_same_four_parts() {
    for (section, prefix, _) in SECTIONS {
        if !SECTIONS_WITH_PARTS.contains(&section) {
            continue;
        }
        for entry in entries(section, prefix) {
            let parts: Vec<&str> = entry
                .lines
                .iter()
                .filter_map(|line| line.strip_prefix("- **")?.split_once("**"))
                .map(|(part, _)| part)
                .collect();
            assert_eq!(parts, PARTS, "{}, {}", entry.page.file, entry.name);
            // Panics unless the entry names its kinds once.
            kinds(&entry);
        }
    }
}

/// The names of the checks of one host.
fn host_checks() -> BTreeSet<String> {
    set(names(HostCheck::ALL))
}

#[test]
fn every_check_of_a_host_has_its_heading() {
    assert_same("Checks of one host", "Host: ", &host_checks());
}

/// The names of the steps on a host.
fn host_step_names() -> BTreeSet<String> {
    set(HostStep::names())
}

#[test]
fn every_step_on_a_host_has_its_heading() {
    assert_same("Steps on a host", "Step: ", &host_step_names());
}

/// Names in the first column of the tables below `## <section>` of a page.
fn first_column(page: &Page, name: &str) -> Vec<String> {
    section(page, name)
        .into_iter()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[test]
fn every_stage_is_in_its_table_in_order() {
    assert_eq!(
        first_column(&FLANNEL_TO_CALICO, "Stages of a node"),
        names(Stage::ALL)
    );
    for phase in Phase::ALL {
        assert!(
            FLANNEL_TO_CALICO.text.contains(&format!("`{}`", phase.as_str())),
            "{} does not mention phase {phase:?}",
            FLANNEL_TO_CALICO.file
        );
    }
}

#[test]
fn every_stage_of_pod_cidr_is_in_its_table_in_order() {
    let stages = names(pod_cidr::decide::Stage::ALL);
    assert_eq!(
        set(stages.iter().copied()),
        variants::<pod_cidr::decide::Stage>(),
        "Stage::ALL is not complete"
    );
    assert_eq!(first_column(&POD_CIDR, "Stages"), stages);
}

#[test]
fn every_stage_of_service_cidr_is_in_its_table_in_order() {
    let stages = names(service_cidr::step::Stage::ALL);
    assert_eq!(
        set(stages.iter().copied()),
        variants::<service_cidr::step::Stage>(),
        "Stage::ALL is not complete"
    );
    assert_eq!(first_column(&SERVICE_CIDR, "Stages"), stages);
}

#[test]
fn every_stage_of_calico_datastore_is_in_its_table_in_order() {
    let stages = names(datastore::step::Stage::ALL);
    assert_eq!(
        set(stages.iter().copied()),
        variants::<datastore::step::Stage>(),
        "Stage::ALL is not complete"
    );
    assert_eq!(first_column(&CALICO_DATASTORE, "Stages"), stages);
}

/// The names of the failures of an agent.
fn failures() -> BTreeSet<String> {
    set(names(FailureCategory::ALL))
}

#[test]
fn every_failure_of_an_agent_has_its_heading() {
    assert_same("Failures of an agent", "Failure: ", &failures());
}

/// An Event that needs no action has a row in the table, each other one a heading.
#[test]
fn every_announcement_has_its_heading_or_its_row() {
    let rows = set(first_column(&COMMON, "Events").iter().map(String::as_str));
    let announcements = set(names(Announcement::ALL));
    assert!(rows.is_subset(&announcements), "{rows:?}");
    let headings = announcements.difference(&rows).cloned().collect();
    assert_same("Events", "", &headings);
}

/// The anchor of a heading: lower case, blanks as dashes, without other punctuation.
fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            letter if letter.is_alphanumeric() || letter == '-' || letter == '_' => Some(letter),
            _ => None,
        })
        .collect()
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// The first heading of a page.
fn title(page: &Page) -> &'static str {
    let first = page.text.lines().next();
    first.and_then(|line| line.strip_prefix("# ")).unwrap()
}

/// The names that a section has to have; the headings of Events, where other announcements have a row.
fn names_of(section: &str, entries: &[Entry]) -> BTreeSet<String> {
    match section {
        "Blocked" | "Waits" | "Halts" => reasons(section),
        "Checks" => all_checks(),
        "Checks of one host" => host_checks(),
        "Steps on a host" => host_step_names(),
        "Failures of an agent" => failures(),
        _ => set(entries.iter().map(|entry| entry.name)),
    }
}

/// `docs/runbook/reasons.md` as it has to be: every name, with a link to its entry.
fn index() -> String {
    let mut rows = Vec::new();
    for (section, prefix, what) in SECTIONS {
        let entries = entries(section, prefix);
        for name in names_of(section, &entries) {
            let entry = entries.iter().find(|entry| entry.name == name);
            let entry = entry.unwrap_or_else(|| panic!("docs/runbook has no heading {prefix}{name}"));
            let link = format!("[{}]({}#{})", entry.name, entry.page.file, anchor(entry.heading));
            let row = format!("| {link} | {what} | {} |\n", title(entry.page));
            rows.push((entry.name, what, row));
        }
    }
    rows.sort();
    let rows: String = rows.into_iter().map(|(_, _, row)| row).collect();
    format!("{INDEX}{rows}")
}

/// The index without its rows.
const INDEX: &str = "\
# Index of reasons and checks

Every word in CamelCase of `kubectl replumb status`, of Events and of metrics. Generated from the enums of the code:
`UPDATE_RUNBOOK_INDEX=1 cargo test -p api --test runbook`.

| name | what it is | page |
|---|---|---|
";

#[test]
fn the_index_has_every_entry_once() {
    let path = root().join("docs/runbook/reasons.md");
    let index = index();
    if std::env::var_os("UPDATE_RUNBOOK_INDEX").is_some() {
        fs::write(&path, &index).unwrap();
    }
    let written = read(&path);
    let first = written
        .lines()
        .zip(index.lines())
        .find(|(old, new)| old != new)
        .map_or_else(String::new, |(old, new)| {
            format!(": found {old:?}, needed {new:?}")
        });
    assert!(
        written == index,
        "docs/runbook/reasons.md is stale{first}; run: UPDATE_RUNBOOK_INDEX=1 cargo test -p api --test runbook"
    );
}

/// The Markdown files whose links are checked: all of `docs/`, and the files that link there.
fn documents() -> Vec<PathBuf> {
    let names = [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "SECURITY.md",
        "tests/README.md",
        "tests/standin/README.md",
    ];
    let mut found: Vec<PathBuf> = names.map(|name| root().join(name)).into();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The number of headings with each anchor in a text.
fn anchors(text: &str) -> BTreeMap<String, usize> {
    let mut anchors = BTreeMap::new();
    for line in lines_outside_code(text) {
        if let Some((marks, heading)) = line.split_once(' ')
            && !marks.is_empty()
            && marks.chars().all(|mark| mark == '#')
        {
            *anchors.entry(anchor(heading)).or_default() += 1;
        }
    }
    anchors
}

#[test]
fn every_anchor_of_a_page_of_the_runbook_is_unique() {
    let pages = PAGES.iter().map(|page| (page.file, page.text));
    for (file, text) in pages.chain([("../runbook.md", FRONT)]) {
        let anchors = anchors(text);
        assert!(!anchors.is_empty(), "{file}");
        let twice: Vec<&String> = anchors
            .iter()
            .filter(|(_, times)| **times > 1)
            .map(|(name, _)| name)
            .collect();
        assert!(
            twice.is_empty(),
            "{file}: headings with the same anchor: {twice:?}"
        );
    }
}

#[test]
fn every_link_has_an_existing_target() {
    let mut links = 0;
    for path in documents() {
        let text = read(&path);
        let found = lines_outside_code(&text)
            .into_iter()
            .flat_map(|line| line.split("](").skip(1))
            .filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
        for target in found.filter(|target| !target.contains("://")) {
            links += 1;
            let (file, name) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() {
                path.clone()
            } else {
                path.with_file_name(file)
            };
            assert!(
                to.exists(),
                "{}: the target of link {target} does not exist",
                path.display()
            );
            if !name.is_empty() {
                assert!(
                    anchors(&read(&to)).contains_key(name),
                    "{}: the heading of link {target} does not exist",
                    path.display()
                );
            }
        }
    }
    assert!(links > 0);
}
