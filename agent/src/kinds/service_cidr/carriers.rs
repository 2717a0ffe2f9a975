//! Pods that were told an address that is left: by the environment of their processes, and by their `resolv.conf`. Reads /proc.

mod groups;
mod look;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::found::Found;
use runtime::error::chain;
use service_cidr::host::{Carrier, Carriers, Left, MOST_CARRIERS, ToldBy};

use self::look::{Looked, Process};
use self::told::Environment;
use super::left::Asked;
use crate::host::apart::Each;
use crate::host::files::read_small;
use crate::host::processes::{self, ProcessError};

/// So many bytes of environments are looked at a pod: those of 90 processes that were told of 1 000 Services each.
const MOST_BYTES: u64 = 32 << 20;
/// So many processes are looked at a pod.
const MOST_PROCESSES: usize = 2_048;
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
        let (folder, left, reading) = (proc.to_owned(), Asked::from(left), Arc::clone(&self.reading));
        let pods = asked.keys().cloned().collect();
        let told = self.told.read_in_parts(pods, move |pod, given_up| {
            let mut said = Said::default();
            let (mut looked_at, mut allowance) = (BTreeSet::new(), MOST_BYTES);
            let numbers = asked.get(pod).map(Vec::as_slice).unwrap_or_default();
            for number in numbers.iter().take(MOST_PROCESSES) {
                if given_up.is_so() || allowance == 0 {
                    break;
                }
                lock(&reading).insert(pod.clone(), *number);
                let path = folder.join(number.to_string());
                look_into(&path, &left, &mut looked_at, &mut allowance, &mut said);
            }
            if allowance == 0 || numbers.len() > MOST_PROCESSES {
                said.unread(TOO_MUCH);
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

/// What the processes of one pod were told, and why something of them was not read. A pod decides how many processes it has: of each
/// kind one is kept.
#[derive(Debug, Default)]
struct Said {
    /// The smallest address.
    told: BTreeMap<ToldBy, IpAddr>,
    /// The first reason.
    unread: Option<String>,
}

impl Said {
    fn told(&mut self, by: ToldBy, address: Option<IpAddr>) {
        if let Some(address) = address {
            let known = self.told.entry(by).or_insert(address);
            *known = (*known).min(address);
        }
    }

    fn unread(&mut self, why: &str) {
        self.unread.get_or_insert_with(|| why.to_owned());
    }
}

/// Looks into one process. One that ends meanwhile is no error.
fn look_into(
    path: &Path,
    left: &Asked,
    looked_at: &mut BTreeSet<PathBuf>,
    allowance: &mut u64,
    said: &mut Said,
) {
    let process = match Process::open(path) {
        Looked::Seen(process) => process,
        Looked::Gone => return,
        Looked::Refused(what) => {
            said.unread(&needs_rights(&what));
            return;
        }
    };
    match process.environment(allowance, |entries| told::by_environment(entries, left)) {
        Looked::Seen(Environment::Tells(address)) => said.told(ToldBy::Environment, address),
        Looked::Seen(Environment::Overwritten) => said.unread(OVERWRITTEN),
        Looked::Gone => {}
        Looked::Refused(what) => said.unread(&needs_rights(&what)),
    }
    // The processes of a container share its file system.
    if let Some(mounts) = process.mounts()
        && !looked_at.insert(mounts)
    {
        return;
    }
    match process.resolver() {
        Looked::Seen(text) => said.told(ToldBy::Resolver, told::by_resolver(&text, left)),
        Looked::Gone => {}
        Looked::Refused(what) => said.unread(&needs_rights(&what)),
    }
}

/// What is behind it may say anything.
const TOO_MUCH: &str = "a pod has more than 2 048 processes, or more than 32 MiB in their environments";

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
        let told = said.told.into_iter();
        self.told
            .extend(told.map(|(by, address)| ((pod.to_owned(), by), address)));
        if let Some(why) = said.unread {
            self.unread(pod, &why);
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
