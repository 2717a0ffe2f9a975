//! Pods that were told an address that is left: by the environment of their processes, and by their `resolv.conf`. Reads /proc.

mod groups;
mod look;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plan::found::Found;
use plan::service_cidr::host::{Carrier, Carriers, Left, MOST_CARRIERS, ToldBy};

use self::look::{Looked, Process};
use self::told::Environment;
use crate::host::apart::Each;
use crate::host::files::read_small;
use crate::host::processes::{self, ProcessError};
use crate::report::chain;

/// The groups of the agent itself.
const OWN_GROUPS: &str = "thread-self/cgroup";

/// The eye on pods' processes. It remembers which of them do not answer. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Looker {
    groups: Each<u32>,
    /// By pod: one that lets nobody read its files has one thread, and not one a process.
    told: Each<String>,
    /// The process that is read, by pod.
    reading: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Looker {
    /// Looks into every process of every pod of this host; `own_pod` is the UID of the agent's own. It takes some seconds at most.
    ///
    /// Whose node a pod is on is told by what the agent sees at all: its PID namespace is its host's (`hostPID`), and a node inside a
    /// machine (in the lab, and wherever a kubelet runs in a container) has one of its own. Network namespaces, by which the host's
    /// own daemons are told apart, say nothing here: each pod has another one. Of a node that is nested in ours the processes are
    /// seen, as those of the pod that holds it.
    pub fn read(&self, proc: &Path, own_pod: &str, left: &Left) -> Found<Carriers> {
        if nix::unistd::getpid().as_raw() == 1 {
            return Found::Malformed(chain(&ProcessError::OwnNamespace));
        }
        match self.scan(proc, own_pod, left) {
            Ok(found) => found.carriers(),
            Err(what) => Found::Malformed(what),
        }
    }

    fn scan(&self, proc: &Path, own_pod: &str, left: &Left) -> Result<Tally, String> {
        let own_groups = proc.join(OWN_GROUPS);
        let own_groups = read_small(&own_groups)
            .map_err(|error| format!("could not read {}: {error}", own_groups.display()))?;
        let own = groups::hidden(&own_groups, own_pod).map(str::to_owned);
        let numbers = processes::numbers(proc).map_err(|error| chain(&error))?;
        let folder = proc.to_owned();
        let of_pods = self.groups.read(numbers, move |number| {
            pod_of(&folder.join(number.to_string()), own.as_deref())
        });
        let mut asked = BTreeMap::<String, Vec<u32>>::new();
        for (number, pod) in of_pods {
            let path = proc.join(number.to_string());
            // A process of which it is not known whose it is leaves no answer at all: it may be any pod's.
            let pod = pod.map_err(|why| format!("could not read {}/cgroup: {why}", path.display()))?;
            match pod {
                Looked::Seen(Some(pod)) => asked.entry(pod).or_default().push(number),
                Looked::Seen(None) | Looked::Gone => {}
                Looked::Refused(what) => return Err(format!("{}: {what}", path.display())),
            }
        }
        let (folder, left, reading) = (proc.to_owned(), left.clone(), Arc::clone(&self.reading));
        let pods = asked.keys().cloned().collect();
        let told = self.told.read(pods, move |pod| {
            let mut said = Said::default();
            let mut looked_at = BTreeSet::new();
            for number in asked.get(pod).into_iter().flatten() {
                lock(&reading).insert(pod.clone(), *number);
                look_into(&folder.join(number.to_string()), &left, &mut looked_at, &mut said);
            }
            lock(&reading).remove(pod);
            said
        });
        let mut tally = Tally::default();
        for (pod, said) in told {
            match said {
                Ok(said) => tally.add(&pod, said),
                Err(why) => {
                    let process = lock(&self.reading).get(&pod).map_or_else(
                        || "its processes".to_owned(),
                        |number| format!("process {number}"),
                    );
                    tally.unread(&pod, &format!("could not read {process}: {why}"));
                }
            }
        }
        Ok(tally)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change of it is whole before something can fail.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pod of a process; `None` where it is the host's.
fn pod_of(path: &Path, own: Option<&str>) -> Looked<Option<String>> {
    match Process::open(path) {
        Looked::Seen(process) => match process.groups() {
            Looked::Seen(groups) => Looked::Seen(groups::pod(&groups, own)),
            Looked::Gone => Looked::Gone,
            Looked::Refused(what) => Looked::Refused(what),
        },
        Looked::Gone => Looked::Gone,
        Looked::Refused(what) => Looked::Refused(what),
    }
}

/// What the processes of one pod were told, and why something of them was not read.
#[derive(Debug, Default)]
struct Said {
    told: Vec<(ToldBy, Option<IpAddr>)>,
    unread: Vec<String>,
}

/// Looks into one process. One that ends meanwhile is no error.
fn look_into(path: &Path, left: &Left, looked_at: &mut BTreeSet<PathBuf>, said: &mut Said) {
    let process = match Process::open(path) {
        Looked::Seen(process) => process,
        Looked::Gone => return,
        Looked::Refused(what) => {
            said.unread.push(needs_rights(&what));
            return;
        }
    };
    match process.environment() {
        Looked::Seen(text) => match told::by_environment(&text, left) {
            Environment::Tells(address) => said.told.push((ToldBy::Environment, address)),
            Environment::Overwritten => said.unread.push(OVERWRITTEN.to_owned()),
        },
        Looked::Gone => {}
        Looked::Refused(what) => said.unread.push(needs_rights(&what)),
    }
    // The processes of a container share its file system.
    if let Some(mounts) = process.mounts()
        && !looked_at.insert(mounts)
    {
        return;
    }
    match process.resolver() {
        Looked::Seen(text) => said.told.push((ToldBy::Resolver, told::by_resolver(&text, left))),
        Looked::Gone => {}
        Looked::Refused(what) => said.unread.push(needs_rights(&what)),
    }
}

/// Programs that write their state over it (nginx, `PostgreSQL`) say nothing any more of what they were told.
const OVERWRITTEN: &str = "a process has overwritten its environment";

fn needs_rights(what: &str) -> String {
    format!(
        "{what}; the agent's pod needs capability SYS_PTRACE (apply deploy/service-cidr), and a profile (AppArmor, SELinux) that lets it look"
    )
}

/// What was found so far.
#[derive(Debug, Default)]
struct Tally {
    /// By UID of the pod: the smallest address that it was told.
    told: BTreeMap<(String, ToldBy), IpAddr>,
    /// By UID of the pod: why a process of it says nothing.
    unread: BTreeMap<String, String>,
}

impl Tally {
    fn add(&mut self, pod: &str, said: Said) {
        for (by, address) in said.told {
            self.told(pod, by, address);
        }
        for why in said.unread {
            self.unread(pod, &why);
        }
    }

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
