//! Pods that were told an address that is left: by the environment of their processes, and by their `resolv.conf`. Reads /proc.

mod groups;
mod look;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use plan::found::Found;
use plan::service_cidr::host::{Carrier, Carriers, Left, MOST_CARRIERS, ToldBy};

use self::look::{Looked, Process};
use self::told::Environment;
use crate::host::processes::ProcessError;
use crate::report::chain;

/// The groups of the agent itself.
const OWN_GROUPS: &str = "thread-self/cgroup";

/// Looks into every process of every pod of this host; `own_pod` is the UID of the agent's own.
///
/// Whose node a pod is on is told by what the agent sees at all: its PID namespace is its host's (`hostPID`), and a node inside a
/// machine (in the lab, and wherever a kubelet runs in a container) has one of its own. Network namespaces, by which the host's own
/// daemons are told apart, say nothing here: each pod has another one. Of a node that is nested in ours the processes are seen, as
/// those of the pod that holds it.
pub fn read(proc: &Path, own_pod: &str, left: &Left) -> Found<Carriers> {
    if nix::unistd::getpid().as_raw() == 1 {
        return Found::Malformed(chain(&ProcessError::OwnNamespace));
    }
    match scan(proc, own_pod, left) {
        Ok(found) => found.carriers(),
        Err(what) => Found::Malformed(what),
    }
}

fn scan(proc: &Path, own_pod: &str, left: &Left) -> Result<Tally, String> {
    let own_groups = proc.join(OWN_GROUPS);
    let own_groups = fs::read_to_string(&own_groups)
        .map_err(|error| format!("could not read {}: {error}", own_groups.display()))?;
    let own = groups::hidden(&own_groups, own_pod);
    let failed = |error| format!("could not list folder {}: {error}", proc.display());
    let mut tally = Tally::default();
    for entry in fs::read_dir(proc).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry
            .file_name()
            .to_string_lossy()
            .bytes()
            .all(|byte| byte.is_ascii_digit())
        {
            look_into(&entry.path(), own, left, &mut tally)?;
        }
    }
    Ok(tally)
}

/// Looks into one process. One that ends meanwhile is no error; one whose pod nobody knows leaves no answer at all.
fn look_into(path: &Path, own: Option<&str>, left: &Left, tally: &mut Tally) -> Result<(), String> {
    let groups = match Process::open(path) {
        Looked::Seen(process) => match process.groups() {
            Looked::Seen(groups) => Looked::Seen((process, groups)),
            Looked::Gone => Looked::Gone,
            Looked::Refused(what) => Looked::Refused(what),
        },
        Looked::Gone => Looked::Gone,
        Looked::Refused(what) => Looked::Refused(what),
    };
    let (process, groups) = match groups {
        Looked::Seen(seen) => seen,
        Looked::Gone => return Ok(()),
        Looked::Refused(what) => return Err(format!("{}: {what}", path.display())),
    };
    let Some(pod) = groups::pod(&groups, own) else {
        return Ok(());
    };
    match process.environment() {
        Looked::Seen(text) => match told::by_environment(&text, left) {
            Environment::Tells(address) => tally.told(&pod, ToldBy::Environment, address),
            Environment::Overwritten => tally.unread(&pod, OVERWRITTEN),
        },
        Looked::Gone => {}
        Looked::Refused(what) => tally.unread(&pod, &needs_rights(&what)),
    }
    // The processes of a container share its file system.
    let mounts = process.mounts();
    if let Some(mounts) = mounts
        && !tally.looked_at.insert((pod.clone(), mounts))
    {
        return Ok(());
    }
    match process.resolver() {
        Looked::Seen(text) => tally.told(&pod, ToldBy::Resolver, told::by_resolver(&text, left)),
        Looked::Gone => {}
        Looked::Refused(what) => tally.unread(&pod, &needs_rights(&what)),
    }
    Ok(())
}

/// Programs that write their state over it (nginx, `PostgreSQL`) say nothing any more of what they were told.
const OVERWRITTEN: &str = "a process has overwritten its environment";

fn needs_rights(what: &str) -> String {
    format!(
        "{what}; the agent's pod needs capability SYS_PTRACE, and a profile (AppArmor, SELinux) that lets it look"
    )
}

/// What was found so far.
#[derive(Debug, Default)]
struct Tally {
    /// By UID of the pod: the smallest address that it was told.
    told: BTreeMap<(String, ToldBy), IpAddr>,
    /// By UID of the pod: why a process of it says nothing.
    unread: BTreeMap<String, String>,
    /// Pods with the mount namespaces in which their `resolv.conf` was looked at.
    looked_at: BTreeSet<(String, PathBuf)>,
}

impl Tally {
    fn told(&mut self, pod: &str, by: ToldBy, address: Option<IpAddr>) {
        if let Some(address) = address {
            let known = self.told.entry((pod.to_owned(), by)).or_insert(address);
            *known = (*known).min(address);
        }
    }

    fn unread(&mut self, pod: &str, why: &str) {
        self.unread
            .entry(pod.to_owned())
            .or_insert_with(|| why.to_owned());
    }

    fn carriers(self) -> Found<Carriers> {
        if self.told.is_empty() && self.unread.is_empty() {
            return Found::Absent;
        }
        let carrier = |((pod_uid, told_by), address)| Carrier {
            pod_uid,
            told_by,
            address,
        };
        Found::Present(Carriers {
            pods: self.told.into_iter().take(MOST_CARRIERS).map(carrier).collect(),
            why_unread: self.unread.values().next().cloned().unwrap_or_default(),
            unread: self.unread.into_keys().take(MOST_CARRIERS).collect(),
        })
    }
}

#[cfg(test)]
#[path = "carriers_tests.rs"]
mod tests;
