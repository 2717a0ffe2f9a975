//! Reads the host and reports what of Services is there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::found::Found;
use engine::kernel::{Listed, Tables};
use kube::Config;
use runtime::error::chain;
use service_cidr::host::{
    Carriers, Connection, HostFacts, HostSettings, IPVS_LINK, Left, LocalTraffic, ProxyMode, Question,
    ServicePort, in_target,
};
use tokio::sync::watch;

use super::carriers::Looker;
use super::expected::Held;
use super::kubelet::Kubelet;
use super::{connections, proxy};
use crate::health::Health;
use crate::host::apart::Apart;
use crate::host::netlink::{Netlink, NetlinkError};
use crate::kinds::pod_cidr::facts::tables;
use crate::metrics::Metrics;
use crate::report::{Pending, Report};

/// How old what is known of kube-proxy's rules may be while nobody waits for one of them: a host may have many thousands.
const SELDOM: Duration = Duration::from_secs(15);
/// While somebody waits for one, reading them may take one part of the time in this many.
const SHARE: u32 = 4;

/// Why nothing can be said of any pod.
const MAY_NOT_LOOK: &str = "what pods were told cannot be read: the agent's pod has no capability SYS_PTRACE; apply deploy/service-cidr";

/// Whether this process may look into others. Where the kernel does not say so, they are asked.
fn may_look() -> bool {
    rustix::thread::capabilities(None).map_or(true, |sets| {
        sets.effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE)
    })
}

/// The agent's eyes on its host.
pub struct Observer {
    proc: PathBuf,
    own_pod: String,
    api_server: String,
    expected: watch::Receiver<Held>,
    kubelet: Kubelet,
    rules: Option<RulesRead>,
    looker: Looker,
    carriers: Apart<Left, Found<Carriers>>,
    connections: Apart<Left, Found<Listed<Connection>>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

/// What kube-proxy's rules said when they were read last.
#[derive(Clone, Debug)]
struct RulesRead {
    at: Instant,
    took: Duration,
    asked: Option<Arc<Question>>,
    said: Proxy,
}

/// What its rules say, as [`HostFacts`] has it.
#[derive(Clone, Debug)]
struct Proxy {
    mode: Found<ProxyMode>,
    unknown: Found<Vec<ServicePort>>,
    local_traffic: Found<LocalTraffic>,
}

impl RulesRead {
    /// Whether it answers this question at this age. A question that is new is never answered by rules that are older than it.
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
    /// An observer that has not looked yet. `own_pod` is the UID of the agent's own pod, `config` how the agent reaches the API server,
    /// and who it is; `expected` is what is asked of all agents.
    pub fn new(
        proc: PathBuf,
        own_pod: String,
        config: &Config,
        expected: watch::Receiver<Held>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Self {
        let host = config.cluster_url.host().unwrap_or_default();
        Self {
            proc,
            own_pod,
            api_server: host.trim_matches(['[', ']']).to_owned(),
            expected,
            kubelet: Kubelet::new(config),
            rules: None,
            looker: Looker::default(),
            carriers: Apart::new("the environments and name servers of pods"),
            connections: Apart::new("the kernel's list of connections"),
            metrics,
            health,
        }
    }

    /// Forgets what may be some seconds old: the next look reads it anew.
    pub fn forget(&mut self) {
        self.rules = None;
        self.kubelet.forget();
    }

    /// Waits until something else is asked of all agents since the last look.
    pub async fn is_asked_anew(&mut self) {
        if self.expected.changed().await.is_err() {
            // Nothing is asked any more.
            std::future::pending::<()>().await;
        }
    }

    /// Looks at the host and says what is there. There is no phase: nothing is asked of the host.
    pub async fn look(&mut self, settings: &HostSettings) -> Report {
        let timer = self.metrics.observe_duration.start_timer();
        let seen = self.observe(settings).await;
        timer.observe_duration();
        self.health.set_host_read(seen.is_ok());
        match seen {
            Ok(facts) => Report {
                message: "looks at Services, and changes nothing".to_owned(),
                pending: pending(facts.expected_digest.is_some(), &facts.unknown),
                service_cidr: Some(facts),
                ..Report::default()
            },
            Err(error) => Report::unreadable(error.category(), &error),
        }
    }

    /// Reads everything. What cannot be read says so in its own place, but for the kernel's tables.
    pub async fn observe(&mut self, settings: &HostSettings) -> Result<HostFacts, NetlinkError> {
        let HostSettings {
            left,
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
        // A socket of its own for each look: one that broke stays broken.
        let tables = tables(&Netlink::connect()?.tables().await?);
        let mut proxy = self.proxy(asked, &tables).await;
        let expected_digest = question.map(|question| question.digest());
        if let Some(Err(what)) = expected {
            proxy.unknown = Found::Malformed(what);
        }
        let cluster_dns = self.kubelet.cluster_dns().await;
        let (looker, proc, own_pod) = (self.looker.clone(), self.proc.clone(), self.own_pod.clone());
        let carriers = if may_look() {
            self.carriers
                .ask(left, move |left| looker.read(&proc, &own_pod, left))
                .await
                .unwrap_or_else(|error| Found::Malformed(chain(&error)))
        } else {
            Found::Malformed(MAY_NOT_LOOK.to_owned())
        };
        let proc = self.proc.clone();
        let connections = self
            .connections
            .ask(left, move |left| connections::read(&proc, left))
            .await;
        let connections = connections.unwrap_or_else(|error| Found::Malformed(chain(&error)));
        let (carriers, connections) = if *report_users {
            (carriers, connections)
        } else {
            (without(carriers), without(connections))
        };
        Ok(HostFacts {
            proxy_mode: proxy.mode,
            unknown: proxy.unknown,
            expected_digest,
            local_traffic: proxy.local_traffic,
            cluster_dns,
            api_server: self.api_server.clone(),
            in_target: in_target(target, &tables),
            carriers,
            connections,
        })
    }

    /// How kube-proxy works, and what of this it has no rule for.
    async fn proxy(&mut self, asked: Option<&Arc<Question>>, tables: &Tables) -> Proxy {
        if let Some(read) = &self.rules
            && read.answers(asked, read.at.elapsed())
        {
            let mut said = read.said.clone();
            if asked.is_none() {
                said.unknown = Found::Present(Vec::new());
            }
            return said;
        }
        self.rules = None;
        let began = Instant::now();
        match proxy::read(&self.proc, &bound(tables)).await {
            Ok(rules) => {
                let unknown = asked.map_or_else(
                    || rules.unknown(&[], &[]),
                    |asked| rules.unknown(&asked.ports.known, &asked.ports.balanced),
                );
                let said = Proxy {
                    mode: rules.mode(),
                    unknown,
                    local_traffic: rules.local_traffic().clone(),
                };
                self.rules = Some(RulesRead {
                    at: Instant::now(),
                    took: began.elapsed(),
                    asked: asked.cloned(),
                    said: said.clone(),
                });
                said
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

/// Whether it can be found out, and nothing of what was found.
fn without<T: Default>(found: Found<T>) -> Found<T> {
    match found {
        Found::Present(_) => Found::Present(T::default()),
        Found::Absent => Found::Absent,
        Found::Malformed(what) => Found::Malformed(what),
    }
}

/// Addresses that kube-proxy has on its link of mode ipvs.
fn bound(tables: &Tables) -> BTreeSet<IpAddr> {
    let devices = tables.devices.iter();
    devices
        .filter(|device| device.name == IPVS_LINK)
        .flat_map(|device| device.addresses.iter().map(ipnet::IpNet::addr))
        .collect()
}

/// How soon the next look is due: kube-proxy announces nothing, and neither does a pod that was told something.
fn pending(is_asked: bool, unknown: &Found<Vec<ServicePort>>) -> Pending {
    match unknown {
        _ if !is_asked => Pending::Unannounced,
        Found::Present(unknown) if unknown.is_empty() => Pending::Unannounced,
        Found::Present(_) => Pending::Process,
        Found::Absent | Found::Malformed(_) => Pending::Change,
    }
}

#[cfg(test)]
mod tests {
    use service_cidr::host::ExpectedPorts;

    use super::*;

    fn port(address: &str) -> ServicePort {
        ServicePort {
            address: address.parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: 443,
        }
    }

    #[test]
    fn the_next_look_is_soon_while_somebody_waits_for_a_rule() {
        let none = Found::Present(Vec::new());
        let one = Found::Present(vec![port("172.30.0.1")]);
        let blind = Found::Malformed("no nft".to_owned());
        assert_eq!(pending(true, &one), Pending::Process);
        assert_eq!(pending(true, &none), Pending::Unannounced);
        assert_eq!(pending(true, &blind), Pending::Change);
        assert_eq!(pending(false, &none), Pending::Unannounced);
        assert_eq!(pending(false, &blind), Pending::Unannounced, "nobody waits");
    }

    #[test]
    fn rules_that_take_long_are_read_less_often_and_never_for_another_question() {
        let question = |second: i64, known: &[&str], balanced: &[&str]| {
            let ports = |addresses: &[&str]| addresses.iter().map(|address| port(address)).collect();
            Arc::new(Question {
                asked_at: jiff::Timestamp::from_second(second).unwrap(),
                ports: ExpectedPorts {
                    known: ports(known),
                    balanced: ports(balanced),
                },
            })
        };
        let asked = question(1, &["172.30.0.1"], &[]);
        let read = |milliseconds| RulesRead {
            at: Instant::now(),
            took: Duration::from_millis(milliseconds),
            asked: Some(Arc::clone(&asked)),
            said: Proxy {
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
            // The same ports, asked about once more.
            question(2, &["172.30.0.1"], &[]),
        ] {
            assert!(!slow.answers(Some(&other), Duration::ZERO), "{other:?}");
        }
        assert!(quick.answers(None, age) && !quick.answers(None, SELDOM));
    }
}
