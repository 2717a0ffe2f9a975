//! Tests of the requested spec.

use api::migration::{Desired, FlannelToCalico, Mode};
use clap::{CommandFactory as _, Parser as _};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;
use crate::args::{Args, Command};

fn asked(line: &[&str], variables: &[(&str, &str)]) -> Result<Request, CliError> {
    let args = Args::try_parse_from([&["kubectl-replumb", "plan"], line].concat()).unwrap();
    let Command::Plan(plan) = args.command else {
        panic!("not a plan")
    };
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Request::read(&plan.judgement.look.wanted, variables)
}

fn spec(line: &[&str]) -> MigrationSpec {
    asked(line, &[]).unwrap().spec(None).unwrap()
}

fn there(spec: MigrationSpec) -> Migration {
    Migration::new("mine", spec)
}

const RANGES: [&str; 4] = [
    "--pod-cidr-from",
    "10.244.0.0/16",
    "--pod-cidr-to",
    "10.200.0.0/16",
];

#[test]
fn without_flags_the_default_kind_is_used_and_an_existing_spec_is_unchanged() {
    let said = spec(&[]);
    assert_eq!(said.flannel_to_calico, Some(FlannelToCalico::default()));
    assert_eq!(said.desired, Desired::Plan);
    for mut kept in [said, spec(&RANGES)] {
        kept.desired = Desired::Run;
        kept.rollout.interval_seconds = 7;
        let again = asked(&[], &[]).unwrap().spec(Some(&there(kept.clone())));
        assert_eq!(again.unwrap(), kept);
    }
}

#[test]
fn flags_win_over_variables_and_both_over_the_existing_spec() {
    let before = spec(&[
        "--flannel-vni",
        "1",
        "--flannel-mtu",
        "1450",
        "--max-unavailable",
        "2",
    ]);
    let spec = asked(
        &[
            "--from-env",
            "--flannel-vni",
            "4096",
            "--canary",
            "1",
            "--canary-soak",
            "5m",
            "--on-blocked",
            "skip",
        ],
        &[("FLANNEL_VNI", "2"), ("FLANNEL_PORT", "8472")],
    )
    .unwrap()
    .spec(Some(&there(before)))
    .unwrap();
    let options = spec.flannel_to_calico.unwrap().options;
    assert_eq!(
        (options.flannel_vni, options.flannel_port, options.flannel_mtu),
        (Some(4096), Some(8472), Some(1450))
    );
    assert_eq!(spec.rollout.max_unavailable, Some(IntOrString::Int(2)));
    assert_eq!(
        spec.rollout.canary,
        Some(Canary {
            nodes: 1,
            soak_seconds: 300
        })
    );
    assert_eq!(spec.drain.on_blocked, WireOnBlocked::Skip);
}

#[test]
fn flags_of_pod_cidr_set_its_spec() {
    let line = [
        &RANGES[..],
        &["--pod-cidr-soak", "1h", "--pod-cidr-mode", "by-node"],
    ]
    .concat();
    let said = spec(&line);
    assert_eq!(said.flannel_to_calico, None);
    let range = said.pod_cidr.unwrap();
    assert_eq!(
        (range.from.to_string(), range.to.to_string()),
        ("10.244.0.0/16".to_owned(), "10.200.0.0/16".to_owned())
    );
    assert_eq!((range.soak_seconds, range.mode), (Some(3_600), Mode::ByNode));
    // A new Migration needs both ranges.
    let half = asked(&RANGES[..2], &[]).unwrap();
    let error = half.spec(None).unwrap_err().to_string();
    assert!(
        error.contains("--pod-cidr-to") && !error.contains("--pod-cidr-from"),
        "{error}"
    );
}

#[test]
fn flags_of_service_cidr_set_its_spec() {
    let line = [
        "--service-cidr-to",
        "172.31.0.0/16,fd00:31::/108",
        "--service-cidr-order=shop/web,shop/till",
        "--service-cidr-soak=1h",
        "--service-cidr-keep-load-balancers=false",
    ];
    let said = spec(&line);
    assert_eq!((&said.flannel_to_calico, &said.pod_cidr), (&None, &None));
    let kind = said.service_cidr.clone().unwrap();
    let ranges: Vec<String> = kind.to.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["172.31.0.0/16", "fd00:31::/108"]);
    assert_eq!(kind.order, ["shop/web", "shop/till"]);
    assert_eq!(
        (kind.soak_seconds, kind.keep_load_balancers),
        (Some(3_600), false)
    );
    // Existing values stay unless a flag sets them.
    let again = asked(&["--service-cidr-services-at-once=3"], &[]).unwrap();
    let again = again.spec(Some(&there(said))).unwrap().service_cidr.unwrap();
    assert_eq!(
        (again.services_at_once, again.keep_load_balancers, again.to),
        (Some(3), false, kind.to)
    );
    let half = asked(&line[3..], &[]).unwrap();
    let error = half.spec(None).unwrap_err().to_string();
    assert!(error.contains("--service-cidr-to"), "{error}");
}

#[test]
fn flags_of_two_kinds_or_of_another_kind_are_refused_by_name() {
    let refused = |line: &[&str], found: Option<&[&str]>, words: &[&str]| {
        let read = asked(line, &[("FLANNEL_VNI", "2")]);
        let found = found.map(|line| there(spec(line)));
        let error = read.and_then(|asked| asked.spec(found.as_ref())).unwrap_err();
        let said = format!("{error}\n{}", error.hint().unwrap_or_default());
        for word in words {
            assert!(said.contains(word), "{word} is not in {said}");
        }
    };
    let line = [
        "--flannel-vni",
        "1",
        "--strategy",
        "drain",
        "--pod-cidr-soak",
        "1h",
    ];
    refused(
        &line,
        None,
        &[
            "flannelToCalico from --strategy, --flannel-vni",
            "podCidr from --pod-cidr-soak",
        ],
    );
    refused(
        &["--from-env", "--delete-bare-pods"],
        None,
        &[
            "flannelToCalico from --from-env",
            "podCidr from --delete-bare-pods",
        ],
    );
    refused(
        &RANGES,
        Some(&[]),
        &[
            "Migration mine: found spec.flannelToCalico",
            "spec.podCidr by --pod-cidr-from, --pod-cidr-to",
            "kubectl replumb status mine",
        ],
    );
    refused(
        &["--flannel-vni", "1"],
        Some(&RANGES),
        &["found spec.podCidr", "spec.flannelToCalico by --flannel-vni"],
    );
}

#[test]
fn flags_override_a_file_of_their_kind_only() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = "{apiVersion: replumb.dev/v1alpha1, kind: Migration, metadata: {}, spec: {podCidr: {from: 10.244.0.0/16, \
                to: 10.200.0.0/16}}}";
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let said = spec(&["-f", path, "--pods-at-once", "2"]);
    assert_eq!(said.pod_cidr.unwrap().pods_at_once, Some(2));
    let error = asked(&["-f", path, "--flannel-vni", "1"], &[]).unwrap_err();
    let words = format!("file {path}: found spec.podCidr, requested spec.flannelToCalico by --flannel-vni");
    assert_eq!(error.to_string(), words);
    let flannel = there(spec(&[]));
    let error = asked(&["-f", path], &[]).unwrap().spec(Some(&flannel));
    let words = format!("found spec.flannelToCalico, requested spec.podCidr by file {path}");
    let error = error.unwrap_err().to_string();
    assert!(error.contains(&words), "{error}");
}

/// A new flag has to be assigned to its kind.
#[test]
fn every_flag_of_a_kind_is_known_as_one() {
    let command = Args::command();
    let plan = command.find_subcommand("plan").unwrap();
    let of_heading = |heading: &str| match heading.split(' ').next()? {
        "flannel" => Some(Kind::FlannelToCalico),
        "Pod" => Some(Kind::PodCidr),
        "Service" => Some(Kind::ServiceCidr),
        _ => None,
    };
    let mut flags = 0;
    for flag in plan.get_arguments() {
        let heading = flag.get_help_heading().unwrap_or_default();
        let (Some(long), Some(kind)) = (flag.get_long(), of_heading(heading)) else {
            continue;
        };
        let value_name = flag.get_value_names().map(|names| names[0].to_string());
        let value = match (flag.get_possible_values().first(), value_name.as_deref()) {
            (Some(value), _) => value.get_name().to_owned(),
            (None, Some("CIDR" | "RANGE")) => "10.0.0.0/8".to_owned(),
            (None, Some("BOOL")) => "true".to_owned(),
            (None, Some("FOLDER")) => "/a".to_owned(),
            (None, Some("NAME" | "NAMESPACE" | "PREFIX")) => "a".to_owned(),
            (None, Some("BYTES")) => "1450".to_owned(),
            (None, Some("NAMESPACE/NAME")) => "a/b".to_owned(),
            (None, _) => "26".to_owned(),
        };
        let flag = format!("--{long}");
        let given = format!("{flag}={value}");
        // The flag of a Secret requires the flag of its store.
        let store = flag.strip_suffix("-secret").map(|store| format!("{store}=a"));
        let line: Vec<&str> = store.iter().map(String::as_str).chain([given.as_str()]).collect();
        let said = asked(&line, &[]).unwrap().kind_flags.unwrap();
        assert_eq!(said.flags.len(), line.len());
        assert_eq!(said.flags.last(), Some(&flag.as_str()));
        assert_eq!(said.kind, kind, "{long}");
        flags += 1;
    }
    assert!(flags > 20, "{flags}");
}

#[test]
fn changes_of_immutable_fields_are_named_field_by_field() {
    let there = spec(&["--flannel-vni", "1"]);
    let wanted = spec(&["--flannel-vni", "4096", "--allow-single-node"]);
    assert_eq!(
        differences(&there, &wanted),
        [
            "flannelToCalico.allowSingleNode: found false, requested true",
            "flannelToCalico.options.flannelVni: found 1, requested 4096"
        ]
    );
    assert!(differences(&there, &there).is_empty());
    let range = spec(&RANGES);
    let mut another = range.clone();
    let kind = another.pod_cidr.as_mut().unwrap();
    kind.to = "10.201.0.0/16".parse().unwrap();
    kind.soak_seconds = Some(60);
    assert_eq!(
        differences(&range, &another),
        [
            "podCidr.soakSeconds: found nothing, requested 60",
            "podCidr.to: found \"10.200.0.0/16\", requested \"10.201.0.0/16\""
        ]
    );
}
