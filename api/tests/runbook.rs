//! Every name that can appear in status, an Event or a metric has its heading in the runbook, and no heading stands
//! for a name that is gone.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says that it failed by a panic"
)]

use std::collections::{BTreeMap, BTreeSet};

use calico_datastore::cluster as datastore;
use engine::decision::{HaltReason, WaitReason};
use flannel_to_calico::checks::CheckName;
use flannel_to_calico::facts::{FirewallBackend, FirewallObject};
use flannel_to_calico::host::HostStep;
use flannel_to_calico::host_checks::HostCheck;
use flannel_to_calico::node::Stage;
use flannel_to_calico::phase::Phase;
use pod_cidr;
use schemars::JsonSchema;
use service_cidr;

/// `docs/runbook.md`.
const RUNBOOK: &str = include_str!("../../docs/runbook.md");

/// Documents that lead into the runbook.
const OTHERS: [&str; 2] = [
    include_str!("../../docs/design.md"),
    include_str!("../../docs/limits.md"),
];

/// Headings below `## <section>`, without the words before the name.
fn headings(section: &str, prefix: &str) -> Vec<String> {
    let start = format!("## {section}");
    let lines: Vec<&str> = outside_of_code()
        .into_iter()
        .skip_while(|line| *line != start)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .collect();
    assert!(!lines.is_empty(), "docs/runbook.md has no section {start:?}");
    lines
        .iter()
        .filter_map(|line| line.strip_prefix("### "))
        .map(|heading| {
            heading
                .strip_prefix(prefix)
                .unwrap_or_else(|| panic!("heading {heading:?} of {start:?} does not begin with {prefix:?}"))
                .to_owned()
        })
        .collect()
}

/// Lines of the runbook that are not in a block of code: a comment of a shell looks like a heading.
fn outside_of_code() -> Vec<&'static str> {
    let mut inside = false;
    RUNBOOK
        .lines()
        .filter(|line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
        .collect()
}

fn set<'text>(names: impl IntoIterator<Item = &'text str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

fn assert_same(section: &str, prefix: &str, names: &BTreeSet<String>) {
    let headings = headings(section, prefix);
    let found: BTreeSet<String> = headings.iter().cloned().collect();
    assert_eq!(
        found.len(),
        headings.len(),
        "a heading of {section:?} is there twice: {headings:?}"
    );
    let missing: Vec<&String> = names.difference(&found).collect();
    let stale: Vec<&String> = found.difference(names).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/runbook.md, section {section:?}: no heading for {missing:?}; nothing of the name {stale:?} exists"
    );
}

/// Variants of an enum as its derived schema lists them: this list cannot be out of date.
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
fn every_wait_has_its_heading() {
    let names = set(WaitReason::ALL.map(WaitReason::as_str));
    assert_eq!(names, variants::<WaitReason>(), "WaitReason::ALL is not complete");
    assert_same("Waits", "", &names);
}

#[test]
fn every_halt_has_its_heading() {
    let names = set(HaltReason::ALL.map(HaltReason::as_str));
    assert_eq!(names, variants::<HaltReason>(), "HaltReason::ALL is not complete");
    assert_same("Halts", "", &names);
}

/// Names of the checks of each kind. That `CheckName::ALL` is complete is proved beside it: a good cluster passes every check by
/// name.
fn checks() -> [BTreeSet<String>; 4] {
    [
        set(CheckName::ALL.map(CheckName::as_str)),
        set(pod_cidr::checks::CheckName::ALL.map(pod_cidr::checks::CheckName::as_str)),
        set(service_cidr::checks::CheckName::ALL.map(service_cidr::checks::CheckName::as_str)),
        set(datastore::checks::CheckName::ALL.map(datastore::checks::CheckName::as_str)),
    ]
}

#[test]
fn every_check_has_its_heading() {
    let all = checks().into_iter().flatten().collect();
    assert_same("Checks", "", &all);
}

/// A name that two kinds share has one heading, which speaks for both.
#[test]
fn every_check_says_of_which_kind_it_is() {
    let [_, pods, services, stores] = checks();
    let texts = texts("Checks");
    for (kind, names) in [
        ("`podCidr`", pods),
        ("`serviceCidr`", services),
        ("`calicoDatastore`", stores),
    ] {
        for (name, text) in &texts {
            assert_eq!(
                text.contains(kind),
                names.contains(name),
                "docs/runbook.md, check {name}: does it speak of {kind}?"
            );
        }
        assert!(names.iter().all(|name| texts.contains_key(name)));
    }
}

/// What stands below each heading of `## <section>`.
fn texts(section: &str) -> BTreeMap<String, String> {
    let start = format!("## {section}");
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut current = None;
    for line in RUNBOOK
        .lines()
        .skip_while(|line| *line != start)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
    {
        match line.strip_prefix("### ") {
            Some(heading) => current = Some(heading.to_owned()),
            None => {
                if let Some(heading) = &current {
                    let text = texts.entry(heading.clone()).or_default();
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    texts
}

#[test]
fn every_check_of_a_host_has_its_heading() {
    assert_same(
        "Checks of one host",
        "Host: ",
        &set(HostCheck::ALL.map(HostCheck::as_str)),
    );
}

/// One step of each kind. A new kind does not compile here until it is added.
fn host_steps() -> Vec<HostStep> {
    let object = FirewallObject {
        backend: FirewallBackend::IptablesNft,
        table: "nat".to_owned(),
        chain: "FLANNEL-POSTRTG".to_owned(),
    };
    let steps = vec![
        HostStep::WithdrawSubnetEnvironment,
        HostStep::DeleteVxlanDevice("flannel.1".to_owned()),
        HostStep::DeleteBridge,
        HostStep::DeleteFirewallObject(object.clone()),
        HostStep::RemoveLeases,
        HostStep::RemoveConflist("10-flannel.conflist".to_owned()),
        HostStep::RouteLegacyPods(Vec::new()),
        HostStep::AnswerForPods,
        HostStep::RenameVxlanDevice {
            from: "flannel.1".to_owned(),
            to: "vxlan.calico".to_owned(),
            block_size: 26,
        },
        HostStep::ForgetLegacyPod("16cc".to_owned()),
        HostStep::RestoreConflist("10-flannel.conflist".to_owned()),
        HostStep::RemoveCalicoConflist("10-calico.conflist".to_owned()),
        HostStep::DeleteCalicoFirewall(object.clone()),
        HostStep::DeleteCalicoSets,
        HostStep::RestoreFirewallObject(object),
        HostStep::DeleteBlackholes,
        HostStep::RestoreNodeRoutes {
            link: "vxlan.calico".to_owned(),
            length: 24,
        },
        HostStep::ReturnVxlanDevice {
            from: "vxlan.calico".to_owned(),
            to: "flannel.1".to_owned(),
        },
        HostStep::RestoreVxlanDevice("flannel.1".to_owned()),
        HostStep::UnrouteLegacyPods,
        HostStep::StopAnsweringForPods,
        HostStep::RemoveCalicoRecords,
        HostStep::RestoreSubnetEnvironment,
        HostStep::AnswerForAddresses(Vec::new()),
        HostStep::RouteSubnets {
            link: "vxlan-v6.calico".to_owned(),
            length: 64,
        },
        HostStep::StopAnsweringForAddresses,
        HostStep::UnrouteSubnets,
    ];
    let mut kinds = BTreeSet::new();
    for step in &steps {
        kinds.insert(match step {
            HostStep::WithdrawSubnetEnvironment => 0,
            HostStep::DeleteVxlanDevice(_) => 1,
            HostStep::DeleteBridge => 2,
            HostStep::DeleteFirewallObject(_) => 3,
            HostStep::RemoveLeases => 4,
            HostStep::RemoveConflist(_) => 5,
            HostStep::RouteLegacyPods(_) => 6,
            HostStep::AnswerForPods => 7,
            HostStep::RenameVxlanDevice { .. } => 8,
            HostStep::ForgetLegacyPod(_) => 9,
            HostStep::RestoreConflist(_) => 10,
            HostStep::RemoveCalicoConflist(_) => 11,
            HostStep::DeleteCalicoFirewall(_) => 12,
            HostStep::DeleteCalicoSets => 13,
            HostStep::RestoreFirewallObject(_) => 14,
            HostStep::DeleteBlackholes => 15,
            HostStep::RestoreNodeRoutes { .. } => 16,
            HostStep::ReturnVxlanDevice { .. } => 17,
            HostStep::RestoreVxlanDevice(_) => 18,
            HostStep::UnrouteLegacyPods => 19,
            HostStep::StopAnsweringForPods => 20,
            HostStep::RemoveCalicoRecords => 21,
            HostStep::RestoreSubnetEnvironment => 22,
            HostStep::AnswerForAddresses(_) => 23,
            HostStep::RouteSubnets { .. } => 24,
            HostStep::StopAnsweringForAddresses => 25,
            HostStep::UnrouteSubnets => 26,
        });
    }
    assert_eq!(kinds.len(), steps.len());
    steps
}

#[test]
fn every_step_on_a_host_has_its_heading() {
    let steps = host_steps();
    assert_same(
        "Steps on a host",
        "Step: ",
        &set(steps.iter().map(HostStep::name)),
    );
}

/// Names in the first column of the table below `## <section>`.
fn first_column(section: &str) -> Vec<String> {
    let start = format!("## {section}");
    outside_of_code()
        .into_iter()
        .skip_while(|line| *line != start)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[test]
fn every_stage_is_in_its_table_in_order() {
    assert_eq!(
        first_column("Where a node is"),
        Stage::ALL.map(|stage| stage.as_str().to_owned())
    );
    for phase in Phase::ALL {
        assert!(
            RUNBOOK.contains(&format!("`{}`", phase.as_str())),
            "the runbook has no word on phase {phase:?}"
        );
    }
}

#[test]
fn every_stage_of_a_change_of_the_range_is_in_its_table_in_order() {
    let stages = pod_cidr::decide::Stage::ALL.map(|stage| stage.as_str().to_owned());
    assert_eq!(
        stages.iter().cloned().collect::<BTreeSet<_>>(),
        variants::<pod_cidr::decide::Stage>(),
        "Stage::ALL is not complete"
    );
    assert_eq!(first_column("How a change of the pods' range goes"), stages);
}

#[test]
fn every_stage_of_a_conversion_is_in_its_table_in_order() {
    let stages = datastore::step::Stage::ALL.map(|stage| stage.as_str().to_owned());
    assert_eq!(
        stages.iter().cloned().collect::<BTreeSet<_>>(),
        variants::<datastore::step::Stage>(),
        "Stage::ALL is not complete"
    );
    assert_eq!(first_column("How Calico goes from v2 to v3 in a cluster"), stages);
}

/// The anchor that a heading gets: lower case, blanks as dashes, other marks away.
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

#[test]
fn every_anchor_is_there_once_and_every_link_leads_somewhere() {
    let mut anchors: BTreeMap<String, usize> = BTreeMap::new();
    for line in outside_of_code() {
        if let Some((marks, heading)) = line.split_once(' ')
            && !marks.is_empty()
            && marks.chars().all(|mark| mark == '#')
        {
            *anchors.entry(anchor(heading)).or_default() += 1;
        }
    }
    let twice: Vec<&String> = anchors
        .iter()
        .filter(|(_, times)| **times > 1)
        .map(|(name, _)| name)
        .collect();
    assert!(twice.is_empty(), "headings with the same anchor: {twice:?}");
    let links: Vec<&str> = outside_of_code()
        .iter()
        .flat_map(|line| line.split("](#").skip(1))
        .chain(OTHERS.iter().flat_map(|text| text.split("](runbook.md#").skip(1)))
        .filter_map(|rest| rest.split_once(')').map(|(name, _)| name))
        .collect();
    assert!(!links.is_empty());
    for link in links {
        assert!(anchors.contains_key(link), "the link #{link} leads nowhere");
    }
}
