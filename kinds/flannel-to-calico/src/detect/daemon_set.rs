//! Detection of flannel's `DaemonSet`.

use super::super::check_name::CheckName;
use super::super::facts::ClusterFacts;
use super::super::settings::{Options, defaults};
use super::recognise::{looks_like_canal, looks_like_flannel};
use engine::check::names;
use engine::check::{Check, Verdict};
use engine::cluster::DaemonSet;
use engine::sourced::{Source, Sourced};
use engine::words::number;

/// Name and namespace of flannel's `DaemonSet`.
///
/// A `DaemonSet` in the spec must exist. Without a name in the spec: the only `DaemonSet` that runs flannel, else the documented
/// default, if a `DaemonSet` of that name exists.
pub(super) fn choose(
    options: &Options,
    facts: &ClusterFacts,
) -> Result<(Sourced<String>, Sourced<String>), Box<Check>> {
    let (name, namespace) = (
        &options.flannel_daemon_set_name,
        &options.flannel_daemon_set_namespace,
    );
    let default_namespace = defaults::FLANNEL_DAEMON_SET_NAMESPACE;
    let exists = |namespace: &str, name: &str| {
        facts
            .daemon_sets
            .contains_key(&(namespace.to_owned(), name.to_owned()))
    };
    match (name, namespace) {
        (Some(name), Some(namespace)) if exists(namespace, name) => Ok((spec(name), spec(namespace))),
        (Some(name), Some(namespace)) => Err(Box::new(not_found(&format!("{namespace}/{name}"), facts))),
        (Some(name), None) => {
            if exists(default_namespace, name) {
                return Ok((spec(name), default(default_namespace)));
            }
            let found = only(facts, name, |set| &set.name == name)?;
            Ok((spec(name), detected(&found.namespace, found)))
        }
        (None, Some(namespace)) => {
            let found = only(facts, &format!("{namespace}/*"), |set| {
                &set.namespace == namespace && looks_like_flannel(set)
            })?;
            Ok((detected(&found.name, found), spec(namespace)))
        }
        (None, None) => {
            let name = defaults::FLANNEL_DAEMON_SET_NAME;
            let runs = facts.daemon_sets.values().any(looks_like_flannel);
            if !runs && exists(default_namespace, name) {
                return Ok((default(name), default(default_namespace)));
            }
            let found = only(facts, &format!("{default_namespace}/{name}"), looks_like_flannel)?;
            Ok((detected(&found.name, found), detected(&found.namespace, found)))
        }
    }
}

fn spec(value: &str) -> Sourced<String> {
    Sourced {
        value: value.to_owned(),
        source: Source::Spec,
    }
}

fn default(value: &str) -> Sourced<String> {
    Sourced {
        value: value.to_owned(),
        source: Source::Default,
    }
}

fn detected(value: &str, found: &DaemonSet) -> Sourced<String> {
    Sourced {
        value: value.to_owned(),
        source: Source::Detected(format!("DaemonSet {}", found.key())),
    }
}

/// The only `DaemonSet` that fits. If several fit, those without desired pods (for example for other architectures) do not
/// count.
fn only<'facts>(
    facts: &'facts ClusterFacts,
    wanted: &str,
    fits: impl Fn(&DaemonSet) -> bool,
) -> Result<&'facts DaemonSet, Box<Check>> {
    let fitting: Vec<&DaemonSet> = facts.daemon_sets.values().filter(|set| fits(set)).collect();
    let in_use: Vec<&DaemonSet> = fitting.iter().copied().filter(|set| set.desired > 0).collect();
    match (fitting.as_slice(), in_use.as_slice()) {
        ([found], _) | (_, [found]) => Ok(found),
        ([], _) => Err(Box::new(not_found(wanted, facts))),
        (_, []) => Err(Box::new(CheckName::FlannelDaemonSet.not_pass(
            Verdict::Fail,
            format!("DaemonSets {}", keys(&fitting)),
            "none of them has a desired pod",
            "one DaemonSet that runs flannel on every node",
            "correct the node selector of the DaemonSet that fits the nodes: without flannel there is nothing to migrate",
        ))),
        _ => Err(Box::new(CheckName::FlannelDaemonSet.not_pass(
            Verdict::Fail,
            format!("DaemonSets {}", keys(&in_use)),
            format!("each runs flannel: {}", counts(&in_use)),
            "one DaemonSet that runs flannel",
            "let one of them run on every node (its node selector and its image), and delete the others: as long as they \
             run, they configure flannel's devices",
        ))),
    }
}

/// The number of desired pods of each `DaemonSet`.
fn counts(sets: &[&DaemonSet]) -> String {
    let counts: Vec<String> = sets
        .iter()
        .map(|set| {
            format!(
                "{} ({})",
                set.key(),
                number(set.desired.unsigned_abs(), "pod", "pods")
            )
        })
        .collect();
    names(&counts)
}

/// The refusal that names the existing `DaemonSet`s.
fn not_found(wanted: &str, facts: &ClusterFacts) -> Check {
    let all = || facts.daemon_sets.values();
    let flannel: Vec<&DaemonSet> = all().filter(|set| looks_like_flannel(set)).collect();
    let canal: Vec<&DaemonSet> = all().filter(|set| looks_like_canal(set)).collect();
    let object = format!("DaemonSet {wanted}");
    if flannel.is_empty() && !canal.is_empty() {
        return CheckName::Canal.not_pass(
            Verdict::Fail,
            object,
            format!("Canal (flannel and Calico in one pod): {}", keys(&canal)),
            "flannel alone",
            "replumb does not migrate Canal: its pods already use Calico's plugin",
        );
    }
    let (found, fix) = if !flannel.is_empty() {
        (
            format!("no DaemonSet of that name; flannel runs in {}", keys(&flannel)),
            "set flannelDaemonSetName and flannelDaemonSetNamespace in spec.flannelToCalico.options to an existing \
             DaemonSet",
        )
    } else if facts.daemon_sets.is_empty() {
        (
            "no DaemonSet in the whole cluster".to_owned(),
            "replumb cannot migrate flannel that is not installed as a DaemonSet, such as the flannel inside k3s",
        )
    } else {
        (
            format!(
                "no DaemonSet runs flanneld; existing DaemonSets: {}",
                keys(&all().collect::<Vec<_>>())
            ),
            "set flannelDaemonSetName and flannelDaemonSetNamespace in spec.flannelToCalico.options to flannel's \
             DaemonSet; replumb cannot migrate flannel that is not installed as a DaemonSet, such as the flannel \
             inside k3s",
        )
    };
    CheckName::FlannelDaemonSet.not_pass(Verdict::Fail, object, found, "flannel's DaemonSet", fix)
}

fn keys(sets: &[&DaemonSet]) -> String {
    let keys: Vec<String> = sets.iter().map(|set| set.key()).collect();
    names(&keys)
}
