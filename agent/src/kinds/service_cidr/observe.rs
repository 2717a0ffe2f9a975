//! Observes the host: the state of Services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::found::Found;
use engine::kernel::{Listed, Tables};
use engine::local_traffic::LocalTraffic;
use runtime::error::chain;
use service_cidr::host::{
    Connection, HostFacts, HostSettings, IPVS_LINK, PodsWithSourceAddresses, ProxyMode, Question,
    ServicePort, SourceAddresses, in_target,
};
use tokio::sync::watch;

use super::connections;
use super::expected::WatchedRecord;
use super::kubelet::Kubelet;
use super::pods_with_old_addresses::ProcessReader;
use super::report::report;
use crate::health::Health;
use crate::host::kube_proxy;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::host::slow_read::SlowRead;
use crate::kernel_tables::tables;
use crate::kinds::HostParts;
use crate::metrics::Metrics;
use crate::report::Report;

/// Maximum age of kube-proxy's rules while the migration does not wait for a rule: a host may have many thousands.
const SELDOM: Duration = Duration::from_secs(15);
/// While the migration waits for a rule, reads of the rules take at most the share 1/SHARE of the time.
const SHARE: u32 = 4;

/// Reason why no pod can be read.
const MISSING_CAPABILITY: &str = "could not read pods' environments: the agent's pod has no capability SYS_PTRACE: apply deploy/service-cidr";

/// Whether this process may read other processes; true if the kernel does not say.
fn may_read_processes() -> bool {
    rustix::thread::capabilities(None).map_or(true, |sets| {
        sets.effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE)
    })
}

/// Observes the host.
pub struct Observer {
    proc: PathBuf,
    own_pod: String,
    api_server: String,
    expected: watch::Receiver<WatchedRecord>,
    kubelet: Kubelet,
    rules: Option<RulesRead>,
    looker: ProcessReader,
    with_old_addresses: SlowRead<SourceAddresses, Found<PodsWithSourceAddresses>>,
    connections: SlowRead<SourceAddresses, Found<Listed<Connection>>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

/// The last read of kube-proxy's rules.
#[derive(Clone, Debug)]
struct RulesRead {
    at: Instant,
    took: Duration,
    asked: Option<Arc<Question>>,
    proxy: Proxy,
}

/// State of kube-proxy, in the types of [`HostFacts`].
#[derive(Clone, Debug)]
struct Proxy {
    mode: Found<ProxyMode>,
    unknown: Found<Vec<ServicePort>>,
    local_traffic: Found<LocalTraffic>,
}

impl RulesRead {
    /// Whether this read answers the question at this age. Rules that were read before a new question never answer it.
    fn answers(&self, asked: Option<&Arc<Question>>, age: Duration) -> bool {
        match asked {
            None => age < SELDOM,
            Some(_) => self.asked.as_ref() == asked && age < self.took * SHARE,
        }
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Observer")
            .field("proc", &self.proc)
            .field("own_pod", &self.own_pod)
            .finish_non_exhaustive()
    }
}

impl Observer {
    /// An observer without an observation. `expected` is the question to all agents.
    pub fn new(parts: &HostParts, expected: watch::Receiver<WatchedRecord>) -> Self {
        let host = parts.config.cluster_url.host().unwrap_or_default();
        Self {
            proc: parts.paths.proc.clone(),
            own_pod: parts.pod_uid.clone(),
            api_server: host.trim_matches(['[', ']']).to_owned(),
            expected,
            kubelet: Kubelet::new(&parts.config),
            rules: None,
            looker: ProcessReader::default(),
            with_old_addresses: SlowRead::new("the environments and name servers of pods"),
            connections: SlowRead::new("the kernel's list of connections"),
            metrics: Arc::clone(&parts.metrics),
            health: Arc::clone(&parts.health),
        }
    }

    /// Drops cached results: the next observation reads again.
    pub fn clear_cache(&mut self) {
        self.rules = None;
        self.kubelet.forget();
    }

    /// Waits until the question to all agents has changed since the last observation.
    pub async fn question_changed(&mut self) {
        if self.expected.changed().await.is_err() {
            // The sender is closed: no question can follow.
            std::future::pending::<()>().await;
        }
    }

    /// Observes the host. The report has no phase, since the host has no goal.
    pub async fn report(&mut self, settings: &HostSettings) -> Report {
        let timer = self.metrics.observe_duration.start_timer();
        let seen = self.observe(settings).await;
        timer.observe_duration();
        self.health.set_host_read(seen.is_ok());
        match seen {
            Ok(facts) => report(facts),
            Err(error) => Report::unreadable(error.category(), &error),
        }
    }

    /// Reads the whole state. An unreadable part is reported in its own field; only unreadable kernel tables are an error.
    ///
    /// # Errors
    ///
    /// Links, addresses, routes or rules of the kernel cannot be read.
    pub async fn observe(&mut self, settings: &HostSettings) -> Result<HostFacts, NetlinkError> {
        let HostSettings {
            source: left,
            target,
            report_users,
            expected_ports,
        } = settings;
        let expected = self
            .expected
            .borrow_and_update()
            .question(expected_ports.as_ref());
        let question = expected.as_ref().and_then(|expected| expected.as_ref().ok());
        let asked = question.filter(|question| !question.ports.is_empty());
        // A new socket for each observation: a failed one does not recover.
        let tables = tables(&Netlink::connect()?.tables().await?);
        let mut proxy = self.proxy(asked, &tables).await;
        let expected_digest = question.map(|question| question.digest());
        if let Some(Err(what)) = expected {
            proxy.unknown = Found::Malformed(what);
        }
        let cluster_dns = self.kubelet.cluster_dns().await;
        let (looker, proc, own_pod) = (self.looker.clone(), self.proc.clone(), self.own_pod.clone());
        let with_old_addresses = if may_read_processes() {
            self.with_old_addresses
                .ask(left, move |left| looker.read(&proc, &own_pod, left))
                .await
                .unwrap_or_else(|error| Found::Malformed(chain(&error)))
        } else {
            Found::Malformed(MISSING_CAPABILITY.to_owned())
        };
        let proc = self.proc.clone();
        let connections = self
            .connections
            .ask(left, move |left| connections::read(&proc, left))
            .await;
        let connections = connections.unwrap_or_else(|error| Found::Malformed(chain(&error)));
        let (with_old_addresses, connections) = if *report_users {
            (with_old_addresses, connections)
        } else {
            (without(with_old_addresses), without(connections))
        };
        Ok(HostFacts {
            proxy_mode: proxy.mode,
            missing_ports: proxy.unknown,
            expected_digest,
            local_traffic: proxy.local_traffic,
            cluster_dns,
            api_server: self.api_server.clone(),
            target: in_target(target, &tables),
            pods_with_source_addresses: with_old_addresses,
            connections,
        })
    }

    /// The state of kube-proxy, and the requested ports without a rule.
    async fn proxy(&mut self, asked: Option<&Arc<Question>>, tables: &Tables) -> Proxy {
        if let Some(read) = &self.rules
            && read.answers(asked, read.at.elapsed())
        {
            let mut proxy = read.proxy.clone();
            if asked.is_none() {
                proxy.unknown = Found::Present(Vec::new());
            }
            return proxy;
        }
        self.rules = None;
        let began = Instant::now();
        match kube_proxy::read(&self.proc, &bound(tables)).await {
            Ok(rules) => {
                let unknown = asked.map_or_else(
                    || rules.unknown(&[], &[]),
                    |asked| rules.unknown(&asked.ports.service_ports, &asked.ports.load_balancer_ports),
                );
                let proxy = Proxy {
                    mode: rules.mode(),
                    unknown,
                    local_traffic: rules.local_traffic().clone(),
                };
                self.rules = Some(RulesRead {
                    at: Instant::now(),
                    took: began.elapsed(),
                    asked: asked.cloned(),
                    proxy: proxy.clone(),
                });
                proxy
            }
            Err(error) => {
                let what = format!("rules of kube-proxy: {}", chain(&error));
                Proxy {
                    mode: Found::Malformed(what.clone()),
                    unknown: Found::Malformed(what.clone()),
                    local_traffic: Found::Malformed(what),
                }
            }
        }
    }
}

/// Whether the value can be read, without the value itself.
fn without<T: Default>(found: Found<T>) -> Found<T> {
    match found {
        Found::Present(_) => Found::Present(T::default()),
        Found::Absent => Found::Absent,
        Found::Malformed(what) => Found::Malformed(what),
    }
}

/// Addresses on kube-proxy's link in ipvs mode.
fn bound(tables: &Tables) -> BTreeSet<IpAddr> {
    let devices = tables.devices.iter();
    devices
        .filter(|device| device.name == IPVS_LINK)
        .flat_map(|device| device.addresses.iter().map(ipnet::IpNet::addr))
        .collect()
}

#[cfg(test)]
mod tests {
    use service_cidr::host::ExpectedPorts;

    use super::*;
    use crate::host::kube_proxy::fixture::port;

    #[test]
    fn slow_reads_are_repeated_less_often_and_never_answer_another_question() {
        let question = |second: i64, known: &[&str], balanced: &[&str]| {
            let ports = |addresses: &[&str]| addresses.iter().map(|address| port(address)).collect();
            Arc::new(Question {
                asked_at: jiff::Timestamp::from_second(second).unwrap(),
                ports: ExpectedPorts {
                    service_ports: ports(known),
                    load_balancer_ports: ports(balanced),
                },
            })
        };
        let asked = question(1, &["172.30.0.1"], &[]);
        let read = |milliseconds| RulesRead {
            at: Instant::now(),
            took: Duration::from_millis(milliseconds),
            asked: Some(Arc::clone(&asked)),
            proxy: Proxy {
                mode: Found::Absent,
                unknown: Found::Present(Vec::new()),
                local_traffic: Found::Absent,
            },
        };
        let (quick, slow) = (read(20), read(1000));
        let age = Duration::from_millis(500);
        assert!(!quick.answers(Some(&asked), age) && slow.answers(Some(&asked), age));
        assert!(!slow.answers(Some(&asked), Duration::from_secs(4)));
        for other in [
            question(1, &["10.96.0.1"], &[]),
            question(1, &[], &["172.30.0.1"]),
            // The same ports in a newer question.
            question(2, &["172.30.0.1"], &[]),
        ] {
            assert!(!slow.answers(Some(&other), Duration::ZERO), "{other:?}");
        }
        assert!(quick.answers(None, age) && !quick.answers(None, SELDOM));
    }
}
