//! Compares the result of this tool with that of Calico's own tool. Every difference must be in a list of intended differences.

use std::collections::{BTreeMap, BTreeSet};

use calico_datastore::controller_objects::ControllerObjects;
use calico_datastore::convert::{Conversion, convert};
use calico_datastore::difference::Difference;
use calico_datastore::note::Note;
use calico_datastore::v2::Tree;
use serde_json::Value;

use super::case::{Case, Step};
use super::corpus::Came;
use super::intended::Intended;
use super::written::{is_no_object, key, lines, normalize, put_right};

/// Path of the settings of Calico's IPAM.
const IPAM_CONFIG: &str = "/calico/ipam/v2/config";
/// Number of errors shown for a case.
const SHOWN: usize = 5;

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Same result as Calico's own tool.
    Identical,
    /// Same result as Calico's own tool, except for these intended differences.
    Intended(BTreeSet<Intended>),
    /// An unintended difference.
    Wrong(Vec<String>),
}

/// Compares step by step.
pub struct Judge<'case> {
    case: &'case Case,
    conversion: Conversion,
    /// The intended differences of the conversion in this case.
    meant: BTreeSet<Difference>,
    found: BTreeSet<Intended>,
    wrong: Vec<String>,
    /// Whether `abort` has removed the written keys.
    is_rolled_back: bool,
    /// Whether a `start` has written everything.
    is_converted: bool,
    /// Whether another program has written to v2 since.
    is_changed: bool,
    /// Keys that were in v3 before a `start` and are left to its controllers.
    stale: BTreeSet<String>,
}

impl<'case> Judge<'case> {
    /// The state before the first step; `tree` has the keys of v2 that etcd lists: keys with a leading underscore are not listed.
    pub fn new(case: &'case Case, tree: &Tree) -> Self {
        let conversion = convert(tree);
        Self {
            meant: conversion.differences(),
            conversion,
            case,
            found: BTreeSet::new(),
            wrong: Vec::new(),
            is_rolled_back: false,
            is_converted: false,
            is_changed: false,
            stale: case
                .v3pre
                .keys()
                .filter(|key| ControllerObjects::is_key(key))
                .cloned()
                .collect(),
        }
    }

    /// Records a write of another program to v2.
    pub fn v2_changed(&mut self) {
        self.is_changed |= self.is_converted;
    }

    /// Compares a step. `false` if the two are in different states from here on, as intended.
    pub fn step(&mut self, step: &Step, came: &Came) -> bool {
        let name = &step.step;
        let theirs = step.rc == 0;
        let ours = came.rc == 0;
        let is_question = matches!(name.as_str(), "needed" | "inprogress");
        if (is_question && step.rc != came.rc) || theirs != ours {
            if let Some(why) = self.other_outcome(step, came) {
                self.found.insert(why);
                // The step has changed no key.
                return why == Intended::StartsAgain;
            }
            self.say(format!(
                "{name}: rc {} instead of {}: {}",
                came.rc,
                step.rc,
                came.said.trim()
            ));
            return true;
        }
        if name == "abort" && ours && came.keys != step.v3_key_count && came.keys == self.case.v3pre.len() {
            self.found.insert(Intended::AbortTakesBack);
            self.is_rolled_back = true;
        }
        if came.ready_v2 != step.v1_ready {
            self.say(format!(
                "{name}: Ready is {:?} instead of {:?}",
                came.ready_v2, step.v1_ready
            ));
        }
        if came.ready_v3 != step.v3_datastore_ready && !self.is_rolled_back {
            self.say(format!(
                "{name}: datastoreReady is {:?} instead of {:?}",
                came.ready_v3, step.v3_datastore_ready
            ));
        }
        if came.is_v2_unchanged != step.v1_unchanged {
            self.say(format!("{name}: v2 has changed"));
        }
        // The keys themselves are compared at the end.
        let adds = [Difference::IpamConfig, Difference::PeerAsNumber];
        let verb = name.split(' ').next().unwrap_or_default();
        self.record_other_write(verb, step);
        let expected = if self.is_converted || (verb == "start" && ours) {
            step.v3_key_count.saturating_sub(self.stale.len())
        } else {
            step.v3_key_count
        };
        let may_be_more = came.keys > expected && adds.iter().any(|one| self.meant.contains(one));
        if came.keys != expected && !may_be_more && !self.is_rolled_back {
            self.say(format!("{name}: {} keys in v3 instead of {expected}", came.keys));
        }
        if matches!(verb, "dry-run" | "start") {
            self.reports(step, came);
        }
        match verb {
            "start" if ours => self.is_converted = true,
            "abort" if ours => self.is_converted = false,
            _ => {}
        }
        true
    }

    /// Another program writes to v3: before a `start` like controllers of an earlier attempt, after it like running controllers.
    fn record_other_write(&mut self, verb: &str, step: &Step) {
        let Some(key) = &step.key else {
            return;
        };
        match verb {
            "v3put" if self.is_converted => {
                self.stale.remove(key);
            }
            "v3put" if ControllerObjects::is_key(key) => {
                self.stale.insert(key.clone());
            }
            "v3del" => self.stale.retain(|stale| !stale.starts_with(key.as_str())),
            _ => {}
        }
    }

    /// The intended difference if one tool succeeds and the other does not.
    fn other_outcome(&self, step: &Step, came: &Came) -> Option<Intended> {
        let verb = step.step.split(' ').next().unwrap_or_default();
        let ours = came.rc == 0;
        match verb {
            "complete" if !ours && !self.is_converted => Some(Intended::NothingToComplete),
            "complete" if !ours && self.is_changed => Some(Intended::ChangedSince),
            "abort" if !ours && came.ready_v2.is_none() => Some(Intended::NoFlag),
            "start" | "abort" if !ours && came.ready_v3 == Some(Value::Bool(true)) => {
                Some(Intended::NoSecondStore)
            }
            "start" if ours && self.case.v3pre.values().any(is_no_object) => Some(Intended::KeptAside),
            // After an abort that removed the written keys, v3 is empty again.
            "start" | "dry-run" if ours && self.is_rolled_back => Some(Intended::AbortTakesBack),
            "start" | "dry-run" if ours && self.is_converted => Some(Intended::StartsAgain),
            "start" | "dry-run" => {
                let explains = |difference: &&Difference| explains(**difference, ours);
                let found = self.meant.iter().find(explains)?;
                Some(Intended::Conversion(*found))
            }
            _ => None,
        }
    }

    /// Whether Calico's own tool stops in the middle, without a report.
    fn stops_theirs(&self) -> bool {
        let stops = [Difference::GlobalAsNumber, Difference::Crash];
        stops.iter().any(|difference| self.meant.contains(difference))
    }

    fn reports(&mut self, step: &Step, came: &Came) {
        let name = &step.step;
        // If Calico's own tool refuses for a reason outside the conversion, or stops in the middle, it writes no report.
        let has_none =
            step.rc != 0 && step.reports.is_empty() && (self.conversion.is_clean() || self.stops_theirs());
        for report in ["convertednames", "nameclashes"] {
            let [theirs, ours] = [&step.reports, &came.reports].map(|all| lines(all.get(report)));
            if has_none {
                continue;
            }
            let other: BTreeSet<String> = ours.symmetric_difference(&theirs).cloned().collect();
            for line in other {
                let key = line.split(" -> ").next().unwrap_or_default();
                let meant = self.differences_of(key);
                if meant.is_empty() {
                    let who = if ours.contains(&line) {
                        "this tool"
                    } else {
                        "Calico's own"
                    };
                    self.say(format!("{name}: {report}: only {who} has the line {line:?}"));
                }
                self.found.extend(meant.into_iter().map(Intended::Conversion));
            }
        }
        if has_none {
            self.found.extend(
                self.meant
                    .iter()
                    .map(|difference| Intended::Conversion(*difference)),
            );
            return;
        }
        let errors = step.reports.get("conversionerrors");
        let theirs: BTreeSet<String> = lines(errors).iter().map(|line| key(line)).collect();
        let ours: BTreeSet<String> = self
            .conversion
            .conversion_errors
            .iter()
            .map(|problem| problem.key.to_string())
            .collect();
        self.keys(name, "conversionerrors", &ours, &theirs);
        let theirs: BTreeSet<String> = step
            .reports
            .get("validationerrors")
            .into_iter()
            .flat_map(|text| text.split("v1 name: ").skip(1))
            .filter_map(|text| Some(text.split_once("v3 name: ")?.0.to_owned()))
            .collect();
        let ours: BTreeSet<String> = self
            .conversion
            .validation_errors
            .iter()
            .map(|problem| problem.key.to_string())
            .collect();
        self.keys(name, "validationerrors", &ours, &theirs);
        for (report, problems) in [
            ("conversionerrors", self.conversion.conversion_errors.len()),
            ("validationerrors", self.conversion.validation_errors.len()),
            ("notes", self.conversion.notes.len()),
        ] {
            let written = came.reports.get(report).map_or(0, |text| text.lines().count());
            if written != problems {
                let text = format!("{name}: {report} has {written} lines, the conversion found {problems}");
                self.say(text);
            }
        }
    }

    /// For each value that only one tool refuses, an intended difference of this value must exist.
    fn keys(&mut self, step: &str, report: &str, ours: &BTreeSet<String>, theirs: &BTreeSet<String>) {
        for key in ours.symmetric_difference(theirs) {
            let meant = self.differences_of(key);
            if meant.is_empty() {
                let who = if ours.contains(key) {
                    "only this tool"
                } else {
                    "only Calico's own tool"
                };
                self.say(format!("{step}: {report}: {key} is refused by {who}"));
            }
            self.found.extend(meant.into_iter().map(Intended::Conversion));
        }
    }

    /// The intended differences of this value.
    fn differences_of(&self, key: &str) -> Vec<Difference> {
        let conversion = &self.conversion;
        let problems = conversion
            .conversion_errors
            .iter()
            .chain(&conversion.validation_errors);
        let of_problems = problems
            .filter(|problem| problem.key.to_string() == key)
            .filter_map(|problem| problem.cause.difference());
        let of_notes = conversion
            .notes
            .iter()
            .filter(|note| note.to_string().starts_with(&format!("{key}: ")))
            .filter_map(Note::difference);
        of_problems.chain(of_notes).collect()
    }

    /// The intended differences of the value that became this key.
    fn differences_of_new(&self, key: &str) -> Vec<Difference> {
        let became = self.conversion.renamed.iter().filter(|renamed| {
            let to = renamed.to.to_string();
            let name = to
                .split_once('(')
                .map_or("", |(_, rest)| rest.trim_end_matches(')'));
            key.ends_with(&format!("/{name}"))
        });
        became
            .flat_map(|renamed| self.differences_of(&renamed.from.to_string()))
            .collect()
    }

    /// Compares the final contents of v3.
    pub fn end(&mut self, v3: &BTreeMap<String, String>) {
        if self.is_rolled_back {
            return;
        }
        let mut theirs = self.case.v3.clone();
        let mut ours: BTreeMap<String, Value> = v3
            .iter()
            .map(|(key, text)| {
                (
                    key.clone(),
                    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.clone())),
                )
            })
            .collect();
        if self.meant.contains(&Difference::IpamConfig) && ours.remove(IPAM_CONFIG).is_some() {
            self.found.insert(Intended::Conversion(Difference::IpamConfig));
        }
        let keys: BTreeSet<String> = ours.keys().chain(theirs.keys()).cloned().collect();
        for key in keys {
            match (ours.get_mut(&key), theirs.get_mut(&key)) {
                (Some(ours), Some(theirs)) => {
                    normalize(ours);
                    normalize(theirs);
                    for right in put_right(theirs) {
                        if self.meant.contains(&right) {
                            self.found.insert(Intended::Conversion(right));
                        }
                    }
                    if ours != theirs {
                        let text = format!("{key}: {ours} instead of {theirs}");
                        self.say(text);
                    }
                }
                (Some(_), None) => {
                    let meant = self.differences_of_new(&key);
                    if meant.is_empty() {
                        self.say(format!("{key} is written only by this tool"));
                    }
                    self.found.extend(meant.into_iter().map(Intended::Conversion));
                }
                (None, _) if self.is_converted && self.stale.contains(&key) => {
                    self.found.insert(Intended::ControllersRewrite);
                }
                (None, _) => self.say(format!("{key} is not written")),
            }
        }
    }

    fn say(&mut self, text: String) {
        self.wrong.push(text);
    }

    /// The result.
    pub fn verdict(mut self) -> Verdict {
        if !self.wrong.is_empty() {
            self.wrong.truncate(SHOWN);
            return Verdict::Wrong(self.wrong);
        }
        if self.found.is_empty() {
            Verdict::Identical
        } else {
            Verdict::Intended(self.found)
        }
    }
}

/// Whether only one of the two tools converts such a store.
fn explains(difference: Difference, converts: bool) -> bool {
    match difference {
        Difference::MarkMask | Difference::WorkloadPorts | Difference::PeerAsNumber => converts,
        Difference::UnparsableValue
        | Difference::UnreadableKey
        | Difference::GlobalAsNumber
        | Difference::NodeValue
        | Difference::TunnelAddress
        | Difference::NodeMesh
        | Difference::DurationOnce
        | Difference::DurationRange
        | Difference::LateFailure
        | Difference::Namespace
        | Difference::IpamConfig
        | Difference::FelixAction
        | Difference::XdpName
        | Difference::PortNumber => !converts,
        // A value that makes Calico's tool crash is converted, or an error.
        Difference::Crash => true,
    }
}
