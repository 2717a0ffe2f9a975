//! Which `DaemonSet` is flannel's.

use super::super::checks::CheckName;
use super::super::cluster::ClusterFacts;
use super::super::settings::{Options, defaults};
use super::{looks_like_canal, looks_like_flannel};
use engine::check::names;
use engine::check::{Check, Verdict};
use engine::cluster::DaemonSet;
use engine::sourced::{Source, Sourced};

/// Name and namespace of flannel's `DaemonSet`.
///
/// What the spec names must be there. Without it: the documented default, else the only one that runs flannel.
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
            if exists(default_namespace, name) {
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

/// The only `DaemonSet` that fits. Of several, those whose pods no node wants (one for each architecture, say) do
/// not count.
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
        _ => Err(Box::new(CheckName::FlannelDaemonSet.not_pass(
            Verdict::Fail,
            format!("DaemonSet {wanted}"),
            format!("several: {}", keys(&fitting)),
            "one DaemonSet that runs flannel",
            "name the one to migrate by flannelDaemonSetName and flannelDaemonSetNamespace in \
             spec.flannelToCalico.options",
        ))),
    }
}

/// The refusal that names what is there instead.
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
            "this version migrates plain flannel only; Canal's pods are wired by Calico's plugin already",
        );
    }
    let (found, fix) = if !flannel.is_empty() {
        (
            format!("none of that name; flannel runs in {}", keys(&flannel)),
            "set flannelDaemonSetName and flannelDaemonSetNamespace in spec.flannelToCalico.options to it",
        )
    } else if facts.daemon_sets.is_empty() {
        (
            "no DaemonSet in the whole cluster".to_owned(),
            "flannel that is not installed as a DaemonSet (k3s has it built in) cannot be migrated",
        )
    } else {
        (
            format!(
                "none that runs flanneld; DaemonSets found: {}",
                keys(&all().collect::<Vec<_>>())
            ),
            "name flannel's DaemonSet by flannelDaemonSetName and flannelDaemonSetNamespace in \
             spec.flannelToCalico.options; flannel that is not installed as a DaemonSet (k3s has it built in) \
             cannot be migrated",
        )
    };
    CheckName::FlannelDaemonSet.not_pass(Verdict::Fail, object, found, "flannel's DaemonSet", fix)
}

fn keys(sets: &[&DaemonSet]) -> String {
    let keys: Vec<String> = sets.iter().map(|set| set.key()).collect();
    names(&keys)
}
