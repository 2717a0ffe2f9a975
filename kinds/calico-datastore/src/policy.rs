//! Converts policies.

use std::collections::BTreeMap;

use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::escape::unescaped;
use super::finding::Findings;
use super::go_values::lower;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::names;
use super::note::Note;
use super::policy_name::{OF_KUBERNETES, PolicyName};
use super::report::Cause;
use super::resource::Resource;
use super::rule::{self, OldRule};
use super::selector;
use super::spec::policy::{Order, Spec};
use super::v2::Tree;
use super::validate::{metadata, policy};

/// The tier whose policies are read.
const TIER: &str = "default";
/// Parent key of the policies of the tier.
pub(super) const DIRECTORY: &str = "/calico/v1/policy/tier/default/policy";

/// A policy in v2.
#[derive(Debug, Default)]
struct Policy {
    order: Option<f64>,
    inbound: Vec<OldRule>,
    outbound: Vec<OldRule>,
    selector: String,
    untracked: bool,
    annotations: BTreeMap<String, String>,
    before_translation: bool,
    forward: bool,
    types: Vec<String>,
}

impl Decode for Policy {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        // Only its type is checked.
        fields.get::<String>("namespace")?;
        Ok(Self {
            order: fields.get("order")?,
            inbound: fields.get("inbound_rules")?,
            outbound: fields.get("outbound_rules")?,
            selector: fields.get("selector")?,
            untracked: fields.get("untracked")?,
            annotations: fields.get("annotations")?,
            before_translation: fields.get("pre_dnat")?,
            forward: fields.get("apply_on_forward")?,
            types: fields.get("types")?,
        })
    }
}

/// Converts all policies of the default tier, except those of Kubernetes.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let mut of_kubernetes = 0;
    let mut batch = conversion.batch();
    for entry in tree.matching("/calico/v1/policy/tier/*/policy/*") {
        if entry.parts[0] != TIER {
            batch.conversion.notes.push(Note::NotRead {
                path: entry.path.to_owned(),
                what: "the policy belongs to another tier than the default one",
            });
            continue;
        }
        let name = unescaped(entry.parts[1]);
        if name.starts_with(OF_KUBERNETES) {
            of_kubernetes += 1;
            if PolicyName::of_v2(&name).is_some_and(|policy| policy.is_too_long()) {
                let key = V2Key::Policy(name);
                batch.conversion.notes.push(Note::LongPolicyName { key });
            }
            continue;
        }
        let key = V2Key::Policy(name.clone());
        let converted = read(entry.value).and_then(|policy| converted(&key, &name, policy));
        batch.add(key, entry.path, converted);
    }
    if of_kubernetes > 0 {
        conversion.notes.push(Note::WrittenByControllers {
            what: "policies of Kubernetes",
            count: of_kubernetes,
        });
    }
}

fn converted(key: &V2Key, name: &str, policy: Policy) -> Result<Resource, Cause> {
    let mut notes = Vec::new();
    if selector::is_rewritten_inside_words(&policy.selector) {
        notes.push(Note::Selector {
            key: key.clone(),
            field: "selector".to_owned(),
            selector: policy.selector.clone(),
        });
    }
    let mut note = |of_rule: rule::RuleNote| notes.push(of_rule.of(key));
    let spec = Spec {
        order: policy.order.map(Order),
        ingress: rule::converted(&policy.inbound, "inbound_rules", &mut note),
        egress: rule::converted(&policy.outbound, "outbound_rules", &mut note),
        selector: selector::rewritten(&policy.selector),
        types: types(&policy)?,
        do_not_track: policy.untracked,
        pre_dnat: policy.before_translation,
        // Such policies apply to forwarded traffic, also older ones without this field.
        apply_on_forward: policy.forward || policy.untracked || policy.before_translation,
    };
    let name = names::name_without_dots(name);
    let mut findings = Findings::default();
    metadata::name(&name, &mut findings);
    metadata::annotations(&policy.annotations, &mut findings);
    policy::spec(&spec, &mut findings);
    let mut resource = Resource::new(ObjectKind::GlobalNetworkPolicy, name, &spec)?;
    resource.annotations = policy.annotations;
    resource.findings = findings.0;
    resource.notes = notes;
    Ok(resource)
}

/// Types of a policy. Older policies without this field have both types, but a pre-DNAT policy only ingress.
fn types(policy: &Policy) -> Result<Vec<&'static str>, Cause> {
    if policy.types.is_empty() {
        return Ok(if policy.before_translation {
            vec!["Ingress"]
        } else {
            vec!["Ingress", "Egress"]
        });
    }
    policy
        .types
        .iter()
        .map(|found| match lower(found).as_str() {
            "ingress" => Ok("Ingress"),
            "egress" => Ok("Egress"),
            _ => Err(Cause::PolicyType { found: found.clone() }),
        })
        .collect()
}

#[cfg(test)]
mod tests;
