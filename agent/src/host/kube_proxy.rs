//! Reads kube-proxy's rules from the kernel: its mode, and the Service ports that have a rule.

#[cfg(test)]
pub(crate) mod fixture;
mod iptables;
mod nftables;
mod virtual_servers;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::Path;

use engine::found::Found;
use engine::local_traffic::LocalTraffic;
use flannel_to_calico::facts::FirewallBackend;
use service_cidr::host::{ProxyMode, ServicePort};

use crate::host::files;
use crate::host::firewall::{FirewallError, Nftables, chain, legacy_tables, save};
use crate::host::program::{ProgramError, command_line, run};

/// kube-proxy's iptables chain for every new connection. Table filter has it only in iptables mode; table nat also in ipvs mode.
const CHAIN: &str = "KUBE-SERVICES";
/// iptables tables with rules for Services: without endpoints (filter), and with endpoints (nat).
const TABLES: [&str; 2] = ["filter", "nat"];
/// kube-proxy's nftables table, and its two maps: of Services with endpoints, and of Services without.
const TABLE: &str = "kube-proxy";
const MAPS: [&str; 2] = ["service-ips", "no-endpoint-services"];
/// kube-proxy's nftables chain for every new connection.
const SERVICES: &str = "services";
/// Names of the families for `nft`.
const FAMILIES: [&str; 2] = ["ip", "ip6"];
/// The kernel's list of virtual servers; missing until the first one is created.
const VIRTUAL_SERVERS: &str = "thread-self/net/ip_vs";

/// Backends that can contain kube-proxy's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// iptables with the backend `nf_tables`.
    Iptables,
    /// iptables with the legacy backend.
    IptablesLegacy,
    /// kube-proxy's own nftables table.
    Nftables,
    /// The kernel's virtual servers.
    Ipvs,
}

impl Place {
    fn mode(self) -> ProxyMode {
        match self {
            Self::Iptables | Self::IptablesLegacy => ProxyMode::Iptables,
            Self::Nftables => ProxyMode::Nftables,
            Self::Ipvs => ProxyMode::Ipvs,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables (nf_tables)",
            Self::IptablesLegacy => "iptables (legacy)",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// The target of a rule for a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleTarget {
    /// The endpoints, through the chain with this name.
    Endpoints(String),
    /// The chain for external traffic (load balancers).
    External,
    /// None: the Service has no endpoints.
    NoEndpoints,
}

/// A rule for a port of a Service at one address.
type Rule = (ServicePort, RuleTarget);

/// kube-proxy's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Backends with rules; more than one if the mode was changed without a cleanup.
    places: BTreeSet<Place>,
    /// Every port of every Service with a rule.
    known: HashSet<ServicePort>,
    /// Ports with a rule for external traffic.
    balanced: HashSet<ServicePort>,
    /// How the rules recognize traffic of local pods.
    local_traffic: Found<LocalTraffic>,
}

impl Rules {
    /// The mode of kube-proxy.
    pub fn mode(&self) -> Found<ProxyMode> {
        let mut places = self.places.iter();
        match (places.next(), places.next()) {
            (None, _) => Found::Absent,
            (Some(place), None) => Found::Present(place.mode()),
            (Some(_), Some(_)) => {
                let names: Vec<&str> = self.places.iter().map(|place| place.as_str()).collect();
                Found::Malformed(format!(
                    "rules of kube-proxy in {} at once, needed only one of them: run `kube-proxy --cleanup` on this node, then \
                     restart its kube-proxy",
                    names.join(" and ")
                ))
            }
        }
    }

    /// The given ports without a rule: `known` without any, `balanced` without one for external traffic. With rules in two
    /// backends, one of them is obsolete and has old addresses forever.
    pub fn unknown(&self, known: &[ServicePort], balanced: &[ServicePort]) -> Found<Vec<ServicePort>> {
        match self.mode() {
            Found::Malformed(what) => Found::Malformed(what),
            Found::Absent | Found::Present(_) => {
                let known = known.iter().filter(|port| !self.known.contains(port));
                let balanced = balanced.iter().filter(|port| !self.balanced.contains(port));
                Found::Present(known.chain(balanced).cloned().collect())
            }
        }
    }

    /// How the rules recognize connections of local pods; absent without such a rule.
    pub fn local_traffic(&self) -> &Found<LocalTraffic> {
        &self.local_traffic
    }

    /// Adds the rules of one backend. Returns the name of the first chain of a Service.
    fn add(&mut self, place: Place, rules: impl IntoIterator<Item = Rule>) -> Option<String> {
        self.places.insert(place);
        let mut first = None;
        for (port, rule_target) in rules {
            match rule_target {
                RuleTarget::Endpoints(chain) => {
                    first.get_or_insert(chain);
                }
                RuleTarget::External => {
                    self.balanced.insert(port.clone());
                }
                RuleTarget::NoEndpoints => {}
            }
            self.known.insert(port);
        }
        first
    }

    fn add_local_traffic(&mut self, mut by: LocalTraffic) {
        let mut all = match std::mem::take(&mut self.local_traffic) {
            Found::Present(all) => all,
            Found::Absent | Found::Malformed(_) => LocalTraffic::default(),
        };
        by.ranges.retain(|range| !all.ranges.contains(range));
        by.links.retain(|link| !all.links.contains(link));
        all.ranges.extend(by.ranges);
        all.links.extend(by.links);
        self.local_traffic = Found::Present(all);
    }
}

/// Reads the rules of every mode. `bound` are the addresses on kube-proxy's link in ipvs mode: virtual servers with other
/// addresses belong to other programs, for example load balancers of API servers.
///
/// # Errors
///
/// A program (iptables, nft) fails or prints lines that cannot be read, or a file in `/proc` cannot be read.
pub async fn read(proc: &Path, bound: &BTreeSet<IpAddr>) -> Result<Rules, FirewallError> {
    let mut rules = Rules::default();
    let nft = Nftables::read(|chain| (chain == CHAIN).then_some(CHAIN)).await?;
    read_nftables(&nft, &mut rules).await?;
    let mut of_ipvs = read_iptables_nft(&nft, &mut rules).await?;
    of_ipvs.extend(read_iptables_legacy(proc, &mut rules).await?);
    // Beside rules of another mode these are remains.
    if rules.places.is_empty() {
        for local_traffic in of_ipvs {
            rules.add_local_traffic(local_traffic);
        }
    }
    if let Some(bytes) = files::read_if_exists(&proc.join(VIRTUAL_SERVERS))? {
        let mut servers = virtual_servers::ports(&String::from_utf8_lossy(&bytes));
        servers.retain(|server| bound.contains(&server.address));
        if !servers.is_empty() {
            let servers = servers.into_iter();
            rules.add(
                Place::Ipvs,
                servers.map(|server| (server, RuleTarget::NoEndpoints)),
            );
        }
    }
    Ok(rules)
}

/// Adds the rules of kube-proxy's own nftables tables.
async fn read_nftables(nft: &Nftables, rules: &mut Rules) -> Result<(), FirewallError> {
    for family in FAMILIES {
        if nft.has_table(family, TABLE) {
            let mut first = None;
            for map in MAPS {
                let found = rules.add(Place::Nftables, read_map(family, map).await?);
                first = first.or(found);
            }
            if let Some(first) = first {
                let mut by = read_sources(family, SERVICES).await?;
                if by == LocalTraffic::default() {
                    // Before version 1.34 the chain of each Service contains it.
                    by = read_sources(family, &first).await?;
                }
                rules.add_local_traffic(by);
            }
        }
    }
    Ok(())
}

/// Adds the rules of iptables with the backend `nf_tables`. Returns how ipvs mode recognizes local pods: there table nat alone has
/// kube-proxy's chain, with one rule for all Services.
async fn read_iptables_nft(nft: &Nftables, rules: &mut Rules) -> Result<Vec<LocalTraffic>, FirewallError> {
    let mut of_ipvs = Vec::new();
    for (backend, family) in [
        (FirewallBackend::IptablesNft, "ip"),
        (FirewallBackend::Ip6tablesNft, "ip6"),
    ] {
        if !nft.has_chain(family, "filter", CHAIN) {
            if nft.has_chain(family, "nat", CHAIN) {
                of_ipvs.extend(iptables::sources_of_sets(&chain(backend, "nat", CHAIN).await?));
            }
            continue;
        }
        for table in TABLES {
            if nft.has_chain(family, table, CHAIN) {
                let lines = chain(backend, table, CHAIN).await?;
                if let Some(first) = rules.add(Place::Iptables, iptables::rules(&lines)) {
                    let lines = chain(backend, table, &first).await?;
                    rules.add_local_traffic(iptables::sources(&lines, &first));
                }
            }
        }
    }
    Ok(of_ipvs)
}

/// The same of iptables with the legacy backend.
async fn read_iptables_legacy(proc: &Path, rules: &mut Rules) -> Result<Vec<LocalTraffic>, FirewallError> {
    let mut of_ipvs = Vec::new();
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        let tables = legacy_tables(proc, backend)?;
        let lines = async |table: &str| {
            if tables.contains(table) {
                save(backend, table, iptables::is_needed).await
            } else {
                Ok(Vec::new())
            }
        };
        let (filter, nat) = (lines("filter").await?, lines("nat").await?);
        if !iptables::has_chain(&filter) {
            of_ipvs.extend(iptables::sources_of_sets(&nat));
            continue;
        }
        rules.add(Place::IptablesLegacy, iptables::rules(&filter));
        if let Some(first) = rules.add(Place::IptablesLegacy, iptables::rules(&nat)) {
            rules.add_local_traffic(iptables::sources(&nat, &first));
        }
    }
    Ok(of_ipvs)
}

async fn read_map(family: &str, map: &str) -> Result<Vec<Rule>, ProgramError> {
    ask_nft(&["-j", "list", "map", family, TABLE, map], nftables::rules).await
}

async fn read_sources(family: &str, chain: &str) -> Result<LocalTraffic, ProgramError> {
    ask_nft(&["-j", "list", "chain", family, TABLE, chain], nftables::sources).await
}

async fn ask_nft<T>(
    arguments: &[&str],
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ProgramError> {
    let text = run("nft", arguments, None).await?;
    parse(&text).map_err(|problem| ProgramError::Answer {
        command: command_line("nft", arguments),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kube_proxy::fixture::port;

    fn to_endpoints(address: &str) -> Rule {
        (port(address), RuleTarget::Endpoints("KUBE-SVC-A".to_owned()))
    }

    #[test]
    fn a_port_without_a_rule_is_unknown() {
        let asked = [port("10.96.0.1"), port("172.30.0.1")];
        let mut rules = Rules::default();
        assert_eq!(rules.mode(), Found::Absent);
        assert_eq!(rules.unknown(&asked, &[]), Found::Present(asked.to_vec()));
        rules.add(Place::Nftables, [to_endpoints("10.96.0.1")]);
        assert_eq!(rules.mode(), Found::Present(ProxyMode::Nftables));
        assert_eq!(
            rules.unknown(&asked, &[]),
            Found::Present(vec![port("172.30.0.1")])
        );
        assert_eq!(rules.unknown(&[], &[]), Found::Present(Vec::new()));
    }

    #[test]
    fn a_load_balancer_port_needs_a_rule_for_external_traffic() {
        let asked = [port("172.30.255.9")];
        let mut rules = Rules::default();
        rules.add(Place::Iptables, [to_endpoints("172.30.255.9")]);
        assert_eq!(rules.unknown(&asked, &[]), Found::Present(Vec::new()));
        assert_eq!(rules.unknown(&[], &asked), Found::Present(asked.to_vec()));
        rules.add(Place::Iptables, [(port("172.30.255.9"), RuleTarget::External)]);
        assert_eq!(rules.unknown(&asked, &asked), Found::Present(Vec::new()));
    }

    #[test]
    fn local_traffic_is_merged_from_every_family() {
        let mut rules = Rules::default();
        assert_eq!(rules.local_traffic(), &Found::Absent);
        let by = |range: &str| LocalTraffic {
            ranges: vec![range.parse().unwrap()],
            links: Vec::new(),
        };
        for range in ["10.244.0.0/16", "fd00:244::/56", "10.244.0.0/16"] {
            rules.add_local_traffic(by(range));
        }
        let texts: Vec<String> = rules
            .local_traffic()
            .present()
            .unwrap()
            .ranges
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(texts, ["10.244.0.0/16", "fd00:244::/56"]);
    }

    #[test]
    fn rules_in_two_backends_are_malformed() {
        for (one, other, words) in [
            (Place::Nftables, Place::Ipvs, "in nftables and ipvs at once"),
            (
                Place::Iptables,
                Place::IptablesLegacy,
                "in iptables (nf_tables) and iptables (legacy) at once",
            ),
        ] {
            let mut rules = Rules::default();
            rules.add(one, [to_endpoints("10.96.0.1")]);
            rules.add(other, []);
            assert!(matches!(rules.mode(), Found::Malformed(what) if what.contains(words)));
            let unknown = rules.unknown(&[port("10.96.0.1")], &[]);
            assert!(matches!(unknown, Found::Malformed(what) if what.contains(words)));
        }
    }
}
