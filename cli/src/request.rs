//! The requested spec: the existing object, overridden by the file, by environment variables and by flags.

use std::collections::BTreeMap;
use std::path::Path;

use api::migration::{Canary, Drain, OnBlocked as WireOnBlocked, Rollout};
use api::{Kind, Migration, MigrationSpec};
use kube::ResourceExt;
use serde_json::Value;

use crate::args::{OnBlocked, RequestFlags, RolloutFlags};
use crate::choose::is_over;
use crate::error::CliError;
use crate::file;

/// The request of the user, read before any request to the cluster.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The Migration of the file, if there is a file.
    pub file: Option<Migration>,
    /// Flags, with the environment variables that a flag requests.
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
        let each = wanted.kinds.each().into_iter();
        let mut said = each
            .map(|(kind, flags)| Self {
                kind,
                flags: flags.set_flags(),
            })
            .filter(|said| !said.flags.is_empty());
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
        let mut flags = wanted.clone();
        let variables: Vec<(String, String)> = variables.into_iter().collect();
        let warnings = flags.kinds.read_environment(&variables)?;
        let asked = Self {
            file,
            flags,
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
            (None, None) => MigrationSpec::default(),
        };
        let base = there.map_or_else(MigrationSpec::default, |there| there.spec.clone());
        spec.desired = base.desired;
        spec.plan_hash = base.plan_hash;
        spec.resumed_at = base.resumed_at;
        let new = self.file.is_none() && there.is_none();
        let default = self.kind().unwrap_or(Kind::DEFAULT);
        if let Some(kind) = Kind::of(&spec).or(new.then_some(default)) {
            self.flags.kinds.merge(kind, &mut spec)?;
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

/// The differences between the immutable fields of the kinds of two specs: field, current value, requested value. Empty if they are equal.
pub fn differences(there: &MigrationSpec, asked: &MigrationSpec) -> Vec<String> {
    let value = |spec: &MigrationSpec| serde_json::to_value(spec).unwrap_or_default();
    let (there, asked) = (value(there), value(asked));
    let mut found = Vec::new();
    for kind in Kind::ALL {
        let immutable = |spec: &Value| {
            let mut part = spec[kind.field()].clone();
            if let Some(fields) = part.as_object_mut() {
                fields.retain(|name, _| !kind.changeable().contains(&name.as_str()));
            }
            part
        };
        compare(&immutable(&there), &immutable(&asked), kind.field(), &mut found);
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
mod tests;
