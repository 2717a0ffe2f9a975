//! Finds pods with old addresses, in the environment of their processes and in their `resolv.conf`. Reads /proc.

mod environment;
mod groups;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::found::Found;
use runtime::error::chain;
use service_cidr::host::{
    AddressOrigin, MOST_CARRIERS, PodWithSourceAddress, PodsWithSourceAddresses, SourceAddresses,
};

use self::environment::Environment;
use self::process::{Process, ReadResult};
use super::old_addresses::OldAddresses;
use crate::host::files::read_small;
use crate::host::processes::{self, ProcessError};
use crate::host::slow_read::BoundedReads;

/// Maximum bytes of environments per pod: those of 90 processes with variables of 1 000 Services each.
const MOST_BYTES: u64 = 32 << 20;
/// Maximum number of processes per pod.
const MOST_PROCESSES: usize = 2_048;
/// Control groups of the agent itself.
const OWN_GROUPS: &str = "thread-self/cgroup";

/// Reader of pods' processes. Remembers the processes whose reads have not ended. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct ProcessReader {
    groups: BoundedReads<u32>,
    /// By pod: a pod whose files cannot be read blocks one thread, not one thread per process.
    told: BoundedReads<String>,
    /// The process that is being read, by pod.
    reading: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl ProcessReader {
    /// Reads every process of every pod of this host; `own_pod` is the UID of the agent's own pod. Takes some seconds at most.
    ///
    /// Only processes of this node are visible: the agent has its host's PID namespace (`hostPID`), and a node inside a machine
    /// (in the lab, or with a kubelet in a container) has its own. Network namespaces, which identify the host's daemons, do not
    /// help here, since each pod has its own. Processes of a node that is nested in this one count as those of the pod that
    /// contains it.
    pub fn read(&self, proc: &Path, own_pod: &str, left: &SourceAddresses) -> Found<PodsWithSourceAddresses> {
        if nix::unistd::getpid().as_raw() == 1 {
            return Found::Malformed(chain(&ProcessError::OwnNamespace));
        }
        match self.scan(proc, own_pod, left) {
            Ok(found) => found.with_old_addresses(),
            Err(what) => Found::Malformed(what),
        }
    }

    fn scan(&self, proc: &Path, own_pod: &str, left: &SourceAddresses) -> Result<Tally, String> {
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
            // With a process of an unknown pod there is no answer at all: the process may belong to any pod.
            let pod = pod.map_err(|why| format!("could not read {}/cgroup: {why}", path.display()))?;
            match pod {
                ReadResult::Value(Some(pod)) => asked.entry(pod).or_default().push(number),
                ReadResult::Value(None) | ReadResult::Missing => {}
                ReadResult::Refused(what) => return Err(format!("{}: {what}", path.display())),
            }
        }
        let (folder, left, reading) = (
            proc.to_owned(),
            OldAddresses::from(left),
            Arc::clone(&self.reading),
        );
        let pods = asked.keys().cloned().collect();
        let told = self.told.read_in_parts(pods, move |pod, given_up| {
            let mut found = FoundInPod::default();
            let (mut read_mounts, mut allowance) = (BTreeSet::new(), MOST_BYTES);
            let numbers = asked.get(pod).map(Vec::as_slice).unwrap_or_default();
            for number in numbers.iter().take(MOST_PROCESSES) {
                if given_up.is_cancelled() || allowance == 0 {
                    break;
                }
                lock(&reading).insert(pod.clone(), *number);
                let path = folder.join(number.to_string());
                read_process(&path, &left, &mut read_mounts, &mut allowance, &mut found);
            }
            if allowance == 0 || numbers.len() > MOST_PROCESSES {
                found.unread(TOO_MUCH);
            }
            lock(&reading).remove(pod);
            found
        });
        let mut tally = Tally::default();
        for (pod, found) in told {
            match found {
                Ok(found) => tally.add(&pod, found),
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
    // Each change is complete before a panic is possible.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pod of a process; `None` for a process of the host.
fn pod_of(path: &Path, own: Option<&str>) -> ReadResult<Option<String>> {
    match Process::open(path) {
        ReadResult::Value(process) => match process.groups() {
            ReadResult::Value(groups) => ReadResult::Value(groups::pod(&groups, own)),
            ReadResult::Missing => ReadResult::Missing,
            ReadResult::Refused(what) => ReadResult::Refused(what),
        },
        ReadResult::Missing => ReadResult::Missing,
        ReadResult::Refused(what) => ReadResult::Refused(what),
    }
}

/// Old addresses in the processes of one pod, and the reason why a process could not be read. A pod determines its number of
/// processes: one address of each kind and one reason are kept.
#[derive(Debug, Default)]
struct FoundInPod {
    /// The smallest address.
    told: BTreeMap<AddressOrigin, IpAddr>,
    /// The first reason.
    unread: Option<String>,
}

impl FoundInPod {
    fn add_address(&mut self, by: AddressOrigin, address: Option<IpAddr>) {
        if let Some(address) = address {
            let known = self.told.entry(by).or_insert(address);
            *known = (*known).min(address);
        }
    }

    fn unread(&mut self, why: &str) {
        self.unread.get_or_insert_with(|| why.to_owned());
    }
}

/// Reads one process. A process that ends meanwhile is not an error.
fn read_process(
    path: &Path,
    left: &OldAddresses,
    read_mounts: &mut BTreeSet<PathBuf>,
    allowance: &mut u64,
    found: &mut FoundInPod,
) {
    let process = match Process::open(path) {
        ReadResult::Value(process) => process,
        ReadResult::Missing => return,
        ReadResult::Refused(what) => {
            found.unread(&needs_rights(&what));
            return;
        }
    };
    match process.environment(allowance, |entries| environment::by_environment(entries, left)) {
        ReadResult::Value(Environment::Parsed(address)) => {
            found.add_address(AddressOrigin::Environment, address);
        }
        ReadResult::Value(Environment::Overwritten) => found.unread(OVERWRITTEN),
        ReadResult::Missing => {}
        ReadResult::Refused(what) => found.unread(&needs_rights(&what)),
    }
    // The processes of a container share its file system.
    if let Some(mounts) = process.mounts()
        && !read_mounts.insert(mounts)
    {
        return;
    }
    match process.resolver() {
        ReadResult::Value(text) => {
            found.add_address(AddressOrigin::Resolver, environment::by_resolver(&text, left));
        }
        ReadResult::Missing => {}
        ReadResult::Refused(what) => found.unread(&needs_rights(&what)),
    }
}

/// The part above the limit is unknown.
const TOO_MUCH: &str = "a pod has more than 2 048 processes, or more than 32 MiB in their environments";

/// Programs that overwrite their environment with their state (nginx, `PostgreSQL`) hide the original values.
const OVERWRITTEN: &str = "a process has overwritten its environment";

fn needs_rights(what: &str) -> String {
    format!(
        "{what}; the agent's pod needs capability SYS_PTRACE (apply deploy/service-cidr), and an AppArmor or SELinux profile that \
         permits it"
    )
}

/// Results of all pods so far.
#[derive(Debug, Default)]
struct Tally {
    /// Smallest old address by pod UID and kind.
    told: BTreeMap<(String, AddressOrigin), IpAddr>,
    /// Reason why a process could not be read, by pod UID.
    unread: BTreeMap<String, String>,
}

impl Tally {
    fn add(&mut self, pod: &str, found: FoundInPod) {
        let told = found.told.into_iter();
        self.told
            .extend(told.map(|(by, address)| ((pod.to_owned(), by), address)));
        if let Some(why) = found.unread {
            self.unread(pod, &why);
        }
    }

    fn unread(&mut self, pod: &str, why: &str) {
        self.unread
            .entry(pod.to_owned())
            .or_insert_with(|| why.to_owned());
    }

    fn with_old_addresses(self) -> Found<PodsWithSourceAddresses> {
        if self.told.is_empty() && self.unread.is_empty() {
            return Found::Absent;
        }
        let with_old_address = |((pod_uid, told_by), address)| PodWithSourceAddress {
            pod_uid,
            origin: told_by,
            address,
        };
        Found::Present(PodsWithSourceAddresses {
            pods: self
                .told
                .into_iter()
                .take(MOST_CARRIERS)
                .map(with_old_address)
                .collect(),
            unread_reason: self.unread.values().next().cloned().unwrap_or_default(),
            unread: self.unread.into_keys().take(MOST_CARRIERS).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
