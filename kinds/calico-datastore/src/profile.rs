//! Converts profiles: three values each in v2, one object in v3. Tags become labels without a value.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::escape::{escaped, unescaped};
use super::finding::Findings;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::note::Note;
use super::report::Cause;
use super::resource::Resource;
use super::rule::{self, OldRule, Rule};
use super::v2::{Entry, Tree};
use super::validate::{self, metadata};

/// Parent key of the profiles.
pub(super) const DIRECTORY: &str = "/calico/v1/policy/profile";
/// Prefix of profiles of namespaces.
pub(super) const OF_NAMESPACE: &str = "k8s_ns.";
/// Prefixes of profiles that controllers write again: those of namespaces, and security groups of `OpenStack`, which are policies
/// in v3.
const OF_CONTROLLERS: [&str; 2] = [OF_NAMESPACE, "openstack-sg-"];

/// A profile in v2, in three values.
#[derive(Debug, Default)]
struct Profile {
    /// Whether at least one of the three values is valid.
    is_read: bool,
    tags: Vec<String>,
    labels: BTreeMap<String, String>,
    rules: Rules,
}

#[derive(Debug, Default)]
struct Rules {
    inbound: Vec<OldRule>,
    outbound: Vec<OldRule>,
}

impl Decode for Rules {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            inbound: fields.get("inbound_rules")?,
            outbound: fields.get("outbound_rules")?,
        })
    }
}

/// A profile in v3.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ingress: Vec<Rule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    egress: Vec<Rule>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels_to_apply: BTreeMap<String, String>,
}

/// Converts all profiles except those of controllers, in the order of their names.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let mut of_controllers = BTreeSet::new();
    let mut profiles: BTreeMap<String, Profile> = BTreeMap::new();
    for entry in tree.matching(&format!("{DIRECTORY}/*/*")) {
        let name = unescaped(entry.parts[0]);
        if OF_CONTROLLERS.iter().any(|start| name.starts_with(start)) {
            of_controllers.insert(name);
        } else {
            take(&entry, name, &mut profiles, conversion);
        }
    }
    let mut batch = conversion.batch();
    for (name, profile) in profiles.into_iter().filter(|(_, profile)| profile.is_read) {
        let key = V2Key::Profile(name.clone());
        let path = format!("{DIRECTORY}/{}", escaped(&name));
        let converted = converted(&key, &name, profile);
        batch.add(key, &path, converted);
    }
    if !of_controllers.is_empty() {
        conversion.notes.push(Note::WrittenByControllers {
            what: "profiles of namespaces and security groups",
            count: of_controllers.len(),
        });
    }
}

/// Adds one of the three values of a profile.
fn take(
    entry: &Entry<'_>,
    name: String,
    profiles: &mut BTreeMap<String, Profile>,
    conversion: &mut Conversion,
) {
    let profile = profiles.entry(name.clone()).or_default();
    let (part, outcome) = match entry.parts[1] {
        "tags" => ("Tags", read(entry.value).map(|tags| profile.tags = tags)),
        "labels" => ("Labels", read(entry.value).map(|labels| profile.labels = labels)),
        "rules" => ("Rules", read(entry.value).map(|rules| profile.rules = rules)),
        _ => return,
    };
    match outcome {
        Ok(()) => profile.is_read = true,
        Err(cause) => conversion.fail(V2Key::ProfilePart(part, name), entry.path, cause),
    }
}

fn converted(key: &V2Key, name: &str, profile: Profile) -> Result<Resource, Cause> {
    let mut labels = profile.labels;
    for tag in profile.tags {
        // A repeated tag is an existing label.
        if let Some(value) = labels.get(&tag) {
            return Err(Cause::TagIsLabel {
                value: value.clone(),
                tag,
            });
        }
        labels.insert(tag, String::new());
    }
    let mut notes = Vec::new();
    let mut note = |of_rule: rule::RuleNote| notes.push(of_rule.of(key));
    let spec = Spec {
        ingress: rule::converted(&profile.rules.inbound, "inbound_rules", &mut note),
        egress: rule::converted(&profile.rules.outbound, "outbound_rules", &mut note),
        labels_to_apply: labels,
    };
    let name = names::profile(name);
    let mut findings = Findings::default();
    metadata::name(&name, &mut findings);
    metadata::labels("spec.labelsToApply", &spec.labels_to_apply, &mut findings);
    validate::rule::rules("spec.ingress", &spec.ingress, &mut findings);
    validate::rule::rules("spec.egress", &spec.egress, &mut findings);
    let mut resource = Resource::new(ObjectKind::Profile, name, &spec)?;
    resource.findings = findings.0;
    resource.notes = notes;
    Ok(resource)
}

#[cfg(test)]
mod tests;
