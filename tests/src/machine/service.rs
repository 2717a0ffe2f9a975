//! The services of a machine: started, reaped, restarted after a crash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use super::{Service, ServiceStatus};

/// The shortest time between two starts of a service that crashes at once.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// The search path inside a machine; the lab's own programs come first.
const PATH: &str = "/opt/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

struct Entry {
    service: Service,
    pid: Option<Pid>,
    wanted: bool,
    restarts: u32,
    last_exit: Option<String>,
    /// Counts the requested starts and stops: a delayed restart of an older generation has no effect.
    generation: u64,
}

/// All services of one machine.
pub struct Services {
    logs: PathBuf,
    entries: Mutex<BTreeMap<String, Entry>>,
    changed: Condvar,
}

impl Services {
    pub fn new(logs: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            logs,
            entries: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a service; a running one of the same name is ended first.
    pub fn start(&self, service: Service) -> Result<()> {
        if self
            .entries()
            .get(&service.name)
            .is_some_and(|entry| entry.pid.is_some())
        {
            self.stop(&service.name, Duration::from_secs(10))?;
        }
        let mut entries = self.entries();
        let (restarts, generation) = entries
            .get(&service.name)
            .map_or((0, 0), |entry| (entry.restarts, entry.generation));
        // The lock is held from before the start until the pid is stored, so that the reaper can identify the process.
        let pid = self.spawn(&service)?;
        let name = service.name.clone();
        let entry = Entry {
            service,
            pid: Some(pid),
            wanted: true,
            restarts,
            last_exit: None,
            generation: generation + 1,
        };
        entries.insert(name, entry);
        self.changed.notify_all();
        Ok(())
    }

    /// Stops a service without a restart.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(name) else {
            bail!("there is no service {name:?} on this machine");
        };
        entry.wanted = false;
        entry.generation += 1;
        if let Some(pid) = entry.pid {
            signal(pid, Signal::SIGTERM)?;
        }
        let mut deadline = Instant::now() + grace;
        let mut killed = false;
        while let Some(pid) = entries.get(name).and_then(|entry| entry.pid) {
            let now = Instant::now();
            if now >= deadline {
                if killed {
                    bail!("service {name:?} (pid {pid}) still exists after SIGKILL");
                }
                signal(pid, Signal::SIGKILL)?;
                killed = true;
                deadline = now + Duration::from_secs(10);
            }
            let left = deadline.saturating_duration_since(now);
            entries = self
                .changed
                .wait_timeout(entries, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(())
    }

    /// Removes a stopped service from the list.
    pub fn forget(&self, name: &str) -> Result<()> {
        let mut entries = self.entries();
        match entries.get(name) {
            None => bail!("there is no service {name:?} on this machine"),
            Some(entry) if entry.wanted || entry.pid.is_some() => bail!("service {name:?} is not stopped"),
            Some(_) => {
                entries.remove(name);
                Ok(())
            }
        }
    }

    /// The services and their states.
    pub fn status(&self) -> Vec<ServiceStatus> {
        let status = |(name, entry): (&String, &Entry)| ServiceStatus {
            name: name.clone(),
            pid: entry.pid.map(Pid::as_raw),
            restarts: entry.restarts,
            last_exit: entry.last_exit.clone(),
        };
        self.entries().iter().map(status).collect()
    }

    fn spawn(&self, service: &Service) -> Result<Pid> {
        let [program, arguments @ ..] = service.command.as_slice() else {
            bail!("service {:?} has no command", service.name);
        };
        let path = self.logs.join(format!("{}.log", service.name));
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        writeln!(log, "--- {}", service.command.join(" ")).ok();
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/root")
            .envs(service.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start service {:?}: {program}", service.name))?;
        i32::try_from(child.id())
            .map(Pid::from_raw)
            .context("convert the pid to a positive i32")
    }

    /// Reaps every child for ever: the services, and the orphans that become children of process 1.
    pub fn reap(self: Arc<Self>) {
        loop {
            match wait() {
                Ok(status) => self.reaped(status),
                Err(Errno::ECHILD) => {
                    let entries = self.entries();
                    // No child: sleep until a service is started. Orphans come only from services.
                    if entries.values().all(|entry| entry.pid.is_none()) {
                        drop(self.changed.wait(entries).unwrap_or_else(PoisonError::into_inner));
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn reaped(self: &Arc<Self>, status: WaitStatus) {
        let Some(pid) = status.pid() else { return };
        let mut entries = self.entries();
        let Some((name, entry)) = entries.iter_mut().find(|(_, entry)| entry.pid == Some(pid)) else {
            return;
        };
        entry.pid = None;
        entry.last_exit = Some(describe(status));
        println!("service {name} {}", describe(status));
        if entry.wanted {
            let services = Arc::clone(self);
            let (name, generation) = (name.clone(), entry.generation);
            let restart = move || {
                thread::sleep(RESTART_DELAY);
                services.restart(&name, generation);
            };
            if let Err(error) = thread::Builder::new().name("restart".into()).spawn(restart) {
                println!("no thread for the restart: {error}");
            }
        }
        self.changed.notify_all();
    }

    fn restart(&self, name: &str, generation: u64) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(name) else {
            return;
        };
        if !entry.wanted || entry.generation != generation || entry.pid.is_some() {
            return;
        }
        entry.restarts += 1;
        match self.spawn(&entry.service) {
            Ok(pid) => entry.pid = Some(pid),
            Err(error) => {
                entry.last_exit = Some(format!("{error:#}"));
                println!("restart of {name}: {error:#}");
            }
        }
        self.changed.notify_all();
    }
}

fn describe(status: WaitStatus) -> String {
    match status {
        WaitStatus::Exited(_, code) => format!("exited with code {code}"),
        WaitStatus::Signaled(_, signal, _) => format!("was ended by {signal}"),
        other => format!("{other:?}"),
    }
}

fn signal(pid: Pid, signal: Signal) -> Result<()> {
    match kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("send {signal} to pid {pid}")),
    }
}
