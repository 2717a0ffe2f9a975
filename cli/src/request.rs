//! The requested spec: the existing object, overridden by the file, by Calico's variables and by flags.

use std::collections::BTreeMap;
use std::path::Path;

use api::migration::{Canary, Drain, FlannelToCalico, OnBlocked as WireOnBlocked, Rollout};
use api::traffic::GateRules;
use api::{Migration, MigrationSpec};
use kube::ResourceExt;
use serde_json::Value;

use crate::args::{OnBlocked, RequestFlags, RolloutFlags};
use crate::choose::is_over;
use crate::error::CliError;
use crate::file;
use crate::kinds::Kind;
use crate::kinds::flannel_to_calico::environment;

/// The request of the user, read before any request to the cluster.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The Migration of the file, if there is a file.
    pub file: Option<Migration>,
    /// Calico's variables, with `--from-env`.
    environment: Option<environment::FromEnvironment>,
    /// Flags.
    flags: RequestFlags,
    /// The flags of one kind; `None` if there are none.
    kind_flags: Option<KindFlags>,
    /// Variables without an effect, one line each.
    pub warnings: Vec<String>,
}

/// The flags of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KindFlags {
    kind: Kind,
    /// The flags as they are typed.
    flags: Vec<&'static str>,
}

impl KindFlags {
    /// The flags that are set. Flags of two kinds are an error that names both.
    fn of(wanted: &RequestFlags) -> Result<Option<Self>, CliError> {
        let mut flannel = wanted.flannel_to_calico.said();
        if wanted.from_env {
            flannel.insert(0, "--from-env");
        }
        let said = [
            (Kind::FlannelToCalico, flannel),
            (Kind::PodCidr, wanted.pod_cidr.set_flags()),
            (Kind::ServiceCidr, wanted.service_cidr.said()),
            (Kind::CalicoDatastore, wanted.calico_datastore.said()),
        ];
        let mut said = said
            .into_iter()
            .filter(|(_, flags)| !flags.is_empty())
            .map(|(kind, flags)| Self { kind, flags });
        match (said.next(), said.next()) {
            (Some(one), Some(other)) => Err(CliError::TwoKinds {
                kinds: [one, other].map(|of| (of.kind, of.flags.join(", "))),
            }),
            (said, _) => Ok(said),
        }
    }
}

impl Request {
    /// Reads the file and the variables.
    pub fn read(
        wanted: &RequestFlags,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, CliError> {
        let kind_flags = KindFlags::of(wanted)?;
        let file = wanted.file.as_deref().map(file::read).transpose()?;
        let environment = if wanted.from_env {
            Some(environment::read(variables).map_err(|errors| CliError::Environment { errors })?)
        } else {
            None
        };
        let warnings = environment
            .as_ref()
            .map(|read| read.warnings.clone())
            .unwrap_or_default();
        let asked = Self {
            file,
            environment,
            flags: wanted.clone(),
            kind_flags,
            warnings,
        };
        if let Some(file) = &asked.file {
            asked.check_flags(&format!("file {}", asked.file_name()), &file.spec, || {
                "omit these options, or correct the file".to_owned()
            })?;
        }
        Ok(asked)
    }

    /// The requested kind: that of the file, otherwise that of the flags; `None` without either.
    pub fn kind(&self) -> Option<Kind> {
        let of_file = self.file.as_ref().and_then(|file| Kind::of(&file.spec));
        of_file.or(self.kind_flags.as_ref().map(|said| said.kind))
    }

    /// Refuses flags of a kind other than that of this spec.
    fn check_flags(
        &self,
        object: &str,
        spec: &MigrationSpec,
        hint: impl FnOnce() -> String,
    ) -> Result<(), CliError> {
        let Some(said) = &self.kind_flags else {
            return Ok(());
        };
        check_same(object, Kind::of(spec), said.kind, &said.flags.join(", "), hint)
    }

    /// Refuses to change the kind of a Migration.
    fn check_kind(&self, there: &Migration) -> Result<(), CliError> {
        let name = there.name_any();
        let object = format!("Migration {name}");
        let hint = || {
            if is_over(there) {
                "the Migration has ended, and its name is in use: use another name".to_owned()
            } else {
                format!(
                    "one Migration runs at a time: omit the other kind to use {name}, or end {name} first (`kubectl replumb \
                     status {name}`)"
                )
            }
        };
        match self.file.as_ref().and_then(|file| Kind::of(&file.spec)) {
            Some(kind) => {
                let by = format!("file {}", self.file_name());
                check_same(&object, Kind::of(&there.spec), kind, &by, hint)
            }
            None => self.check_flags(&object, &there.spec, hint),
        }
    }

    /// The requested name: the argument, otherwise the name in the file.
    pub fn name(&self, argument: Option<&str>) -> Result<Option<String>, CliError> {
        let of_file = self.file.as_ref().and_then(|file| file.metadata.name.clone());
        match (argument, of_file) {
            (Some(argument), Some(of_file)) if argument != of_file => Err(CliError::File {
                file: self.file_name(),
                why: format!(
                    "metadata.name: found {of_file:?}, the command has {argument:?}: omit one of them"
                ),
            }),
            (Some(argument), _) => Ok(Some(argument.to_owned())),
            (None, of_file) => Ok(of_file),
        }
    }

    /// Labels of the Migration in the file.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.file
            .as_ref()
            .and_then(|file| file.metadata.labels.clone())
            .unwrap_or_default()
    }

    /// The requested spec, merged with the existing one. `desired`, `planHash` and `resumedAt` are those of the existing object:
    /// the command sets them.
    pub fn spec(&self, there: Option<&Migration>) -> Result<MigrationSpec, CliError> {
        there.map_or(Ok(()), |there| self.check_kind(there))?;
        let mut spec = match (&self.file, there) {
            (Some(file), _) => file.spec.clone(),
            (None, Some(there)) => there.spec.clone(),
            (None, None) => empty(),
        };
        let base = there.map_or_else(empty, |there| there.spec.clone());
        spec.desired = base.desired;
        spec.plan_hash = base.plan_hash;
        spec.resumed_at = base.resumed_at;
        let new = self.file.is_none() && there.is_none();
        let default = self.kind().unwrap_or(Kind::FlannelToCalico);
        match Kind::of(&spec).or(new.then_some(default)) {
            Some(Kind::FlannelToCalico) => {
                let variables = self.environment.as_ref().map(|read| read.options.clone());
                let kind = spec
                    .flannel_to_calico
                    .get_or_insert_with(FlannelToCalico::default);
                self.flags
                    .flannel_to_calico
                    .over(kind, variables.unwrap_or_default());
            }
            Some(Kind::PodCidr) => spec.pod_cidr = Some(self.flags.pod_cidr.over(spec.pod_cidr.take())?),
            Some(Kind::ServiceCidr) => {
                spec.service_cidr = Some(self.flags.service_cidr.over(spec.service_cidr.take())?);
            }
            Some(Kind::CalicoDatastore) => {
                spec.calico_datastore = Some(self.flags.calico_datastore.over(spec.calico_datastore.take())?);
            }
            None => {}
        }
        apply_rollout_flags(&mut spec.rollout, &mut spec.drain, &self.flags.rollout);
        spec.gates = self.flags.gates.over(&spec.gates);
        Ok(spec)
    }

    fn file_name(&self) -> String {
        self.flags
            .file
            .as_deref()
            .unwrap_or(Path::new("-"))
            .display()
            .to_string()
    }
}

/// Refuses a requested kind that differs from the existing one.
fn check_same(
    object: &str,
    found: Option<Kind>,
    asked: Kind,
    by: &str,
    hint: impl FnOnce() -> String,
) -> Result<(), CliError> {
    match found {
        Some(found) if found != asked => Err(CliError::OtherKind {
            object: object.to_owned(),
            found,
            asked,
            by: by.to_owned(),
            hint: hint(),
        }),
        Some(_) | None => Ok(()),
    }
}

fn empty() -> MigrationSpec {
    MigrationSpec {
        flannel_to_calico: None,
        pod_cidr: None,
        service_cidr: None,
        calico_datastore: None,
        desired: api::migration::Desired::default(),
        rollback_nodes: Vec::new(),
        rollback_services: Vec::new(),
        rollout: Rollout::default(),
        drain: Drain::default(),
        gates: GateRules::default(),
        plan_hash: None,
        resumed_at: None,
    }
}

fn apply_rollout_flags(rollout: &mut Rollout, drain: &mut Drain, flags: &RolloutFlags) {
    let RolloutFlags {
        max_unavailable,
        canary,
        canary_soak,
        interval,
        step_timeout,
        drain_timeout,
        grace_period,
        on_blocked,
        delete_emptydir_data,
        force,
    } = flags.clone();
    rollout.max_unavailable = max_unavailable.or(rollout.max_unavailable.take());
    if let Some(nodes) = canary {
        let soak = rollout.canary.as_ref().map_or(0, |canary| canary.soak_seconds);
        rollout.canary = Some(Canary {
            nodes,
            soak_seconds: canary_soak.unwrap_or(soak),
        });
    }
    rollout.interval_seconds = interval.unwrap_or(rollout.interval_seconds);
    rollout.step_timeout_seconds = step_timeout.or(rollout.step_timeout_seconds);
    drain.timeout_seconds = drain_timeout.or(drain.timeout_seconds);
    drain.grace_period_seconds = grace_period.or(drain.grace_period_seconds);
    drain.on_blocked = on_blocked.map_or(drain.on_blocked, |policy| match policy {
        OnBlocked::Pause => WireOnBlocked::Pause,
        OnBlocked::Wait => WireOnBlocked::Wait,
        OnBlocked::Skip => WireOnBlocked::Skip,
    });
    drain.delete_empty_dir_data = delete_emptydir_data.unwrap_or(drain.delete_empty_dir_data);
    drain.force = force.unwrap_or(drain.force);
}

/// The differences between the kinds of two specs: field, current value, requested value. Empty if they are equal.
pub fn differences(there: &MigrationSpec, asked: &MigrationSpec) -> Vec<String> {
    let value = |spec: &MigrationSpec| serde_json::to_value(spec).unwrap_or_default();
    let (there, asked) = (value(there), value(asked));
    let mut found = Vec::new();
    for field in Kind::ALL.iter().map(|kind| kind.field()) {
        compare(&there[field], &asked[field], field, &mut found);
    }
    found
}

fn compare(there: &Value, asked: &Value, path: &str, found: &mut Vec<String>) {
    if there == asked {
        return;
    }
    let (Value::Object(left), Value::Object(right)) = (there, asked) else {
        let show = |value: &Value| {
            if value.is_null() {
                "nothing".to_owned()
            } else {
                value.to_string()
            }
        };
        found.push(format!(
            "{path}: found {}, requested {}",
            show(there),
            show(asked)
        ));
        return;
    };
    let names: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    for name in names {
        let of = |side: &serde_json::Map<String, Value>| side.get(name).cloned().unwrap_or_default();
        compare(&of(left), &of(right), &format!("{path}.{name}"), found);
    }
}

#[cfg(test)]
mod tests {
    use api::migration::{Desired, Mode};
    use clap::{CommandFactory as _, Parser as _};
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::args::{Args, Command};

    fn asked(line: &[&str], variables: &[(&str, &str)]) -> Result<Request, CliError> {
        let args = Args::try_parse_from([&["kubectl-replumb", "plan"], line].concat()).unwrap();
        let Command::Plan(look) = args.command else {
            panic!("not a plan")
        };
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Request::read(&look.wanted, variables)
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
        let words =
            format!("file {path}: found spec.podCidr, requested spec.flannelToCalico by --flannel-vni");
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
}
