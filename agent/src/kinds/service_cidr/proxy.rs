//! What kube-proxy has written into the kernel: how it works, and which addresses it knows. Reads the rules that packets go by.

mod iptables;
mod nftables;
mod virtual_servers;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::Path;

use engine::found::Found;
use flannel_to_calico::facts::FirewallBackend;
use service_cidr::host::{LocalTraffic, ProxyMode, ServicePort};

use crate::host::files;
use crate::host::firewall::{FirewallError, Nftables, chain, legacy_tables, save};
use crate::host::program::{ProgramError, command_line, run};

/// kube-proxy's chain of iptables that every new connection goes through. In table filter it is there in mode iptables alone; in table
/// nat mode ipvs has one of this name, too.
const CHAIN: &str = "KUBE-SERVICES";
/// Tables of iptables that have rules for Services: those without endpoints, and those with.
const TABLES: [&str; 2] = ["filter", "nat"];
/// kube-proxy's table of nftables, and the two maps in it: of Services with endpoints, and of those without.
const TABLE: &str = "kube-proxy";
const MAPS: [&str; 2] = ["service-ips", "no-endpoint-services"];
/// Its chain that every new connection goes through.
const SERVICES: &str = "services";
/// Families as `nft` calls them.
const FAMILIES: [&str; 2] = ["ip", "ip6"];
/// The kernel's list of virtual servers; it is not there while nobody has used any.
const VIRTUAL_SERVERS: &str = "thread-self/net/ip_vs";

/// Where kube-proxy can have rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// iptables with the backend `nf_tables`.
    Iptables,
    /// iptables with the legacy backend.
    IptablesLegacy,
    /// Its own table of nftables.
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

/// Where a rule leads who asks for a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Leads {
    /// To its endpoints, by the chain of this name.
    ToEndpoints(String),
    /// To where those are led who come by a load balancer.
    AsFromOutside,
    /// Nowhere: it has no endpoints.
    Nowhere,
}

/// A rule for a port of a Service at one address.
type Rule = (ServicePort, Leads);

/// What kube-proxy knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Where it has rules; more than one where its mode was changed and not tidied up.
    places: BTreeSet<Place>,
    /// Every port of every Service that it has a rule for.
    known: HashSet<ServicePort>,
    /// Those of them that are led as from outside.
    balanced: HashSet<ServicePort>,
    /// How it knows pods.
    local_traffic: Found<LocalTraffic>,
}

impl Rules {
    /// How it works.
    pub fn mode(&self) -> Found<ProxyMode> {
        let mut places = self.places.iter();
        match (places.next(), places.next()) {
            (None, _) => Found::Absent,
            (Some(place), None) => Found::Present(place.mode()),
            (Some(_), Some(_)) => {
                let names: Vec<&str> = self.places.iter().map(|place| place.as_str()).collect();
                Found::Malformed(format!(
                    "rules of kube-proxy in {} at once: `kube-proxy --cleanup` on this node takes all of them away, and its kube-proxy, \
                     started again, makes its own",
                    names.join(" and ")
                ))
            }
        }
    }

    /// Which of these it has no rule for: of any kind, and one of a load balancer. Where it works in two ways, one of them is left over and
    /// knows old addresses for ever.
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

    /// How it knows which connections are of pods; absent where it has no rule by which one could see that.
    pub fn local_traffic(&self) -> &Found<LocalTraffic> {
        &self.local_traffic
    }

    /// Takes what is there. Returns the name of the first chain of a Service.
    fn has(&mut self, place: Place, rules: impl IntoIterator<Item = Rule>) -> Option<String> {
        self.places.insert(place);
        let mut first = None;
        for (port, leads) in rules {
            match leads {
                Leads::ToEndpoints(chain) => {
                    first.get_or_insert(chain);
                }
                Leads::AsFromOutside => {
                    self.balanced.insert(port.clone());
                }
                Leads::Nowhere => {}
            }
            self.known.insert(port);
        }
        first
    }

    fn knows_pods(&mut self, mut by: LocalTraffic) {
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

/// Reads every mode's rules. `bound` are the addresses on kube-proxy's link of mode ipvs: virtual servers elsewhere are somebody
/// else's, who shares out connections to API servers by them.
pub async fn read(proc: &Path, bound: &BTreeSet<IpAddr>) -> Result<Rules, FirewallError> {
    let mut rules = Rules::default();
    let nft = Nftables::read(|chain| (chain == CHAIN).then_some(CHAIN)).await?;
    for family in FAMILIES {
        if nft.has_table(family, TABLE) {
            let mut first = None;
            for map in MAPS {
                let found = rules.has(Place::Nftables, read_map(family, map).await?);
                first = first.or(found);
            }
            if let Some(first) = first {
                let mut by = read_sources(family, SERVICES).await?;
                if by == LocalTraffic::default() {
                    // Before version 1.34 the chain of each Service says it.
                    by = read_sources(family, &first).await?;
                }
                rules.knows_pods(by);
            }
        }
    }
    for (backend, family) in [
        (FirewallBackend::IptablesNft, "ip"),
        (FirewallBackend::Ip6tablesNft, "ip6"),
    ] {
        if !nft.has_chain(family, "filter", CHAIN) {
            continue;
        }
        for table in TABLES {
            if nft.has_chain(family, table, CHAIN) {
                let lines = chain(backend, table, CHAIN).await?;
                if let Some(first) = rules.has(Place::Iptables, iptables::rules(&lines)) {
                    let lines = chain(backend, table, &first).await?;
                    rules.knows_pods(iptables::sources(&lines, &first));
                }
            }
        }
    }
    for backend in [FirewallBackend::IptablesLegacy, FirewallBackend::Ip6tablesLegacy] {
        let tables = legacy_tables(proc, backend)?;
        if !tables.contains("filter") {
            continue;
        }
        let filter = save(backend, "filter", iptables::is_asked_for).await?;
        if !iptables::has_chain(&filter) {
            continue;
        }
        rules.has(Place::IptablesLegacy, iptables::rules(&filter));
        if tables.contains("nat") {
            let nat = save(backend, "nat", iptables::is_asked_for).await?;
            if let Some(first) = rules.has(Place::IptablesLegacy, iptables::rules(&nat)) {
                rules.knows_pods(iptables::sources(&nat, &first));
            }
        }
    }
    if let Some(bytes) = files::read_if_there(&proc.join(VIRTUAL_SERVERS))? {
        let mut servers = virtual_servers::ports(&String::from_utf8_lossy(&bytes));
        servers.retain(|server| bound.contains(&server.address));
        if !servers.is_empty() {
            rules.has(
                Place::Ipvs,
                servers.into_iter().map(|server| (server, Leads::Nowhere)),
            );
        }
    }
    Ok(rules)
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

    fn port(address: &str) -> ServicePort {
        ServicePort {
            address: address.parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: 443,
        }
    }

    fn to_endpoints(address: &str) -> Rule {
        (port(address), Leads::ToEndpoints("KUBE-SVC-A".to_owned()))
    }

    #[test]
    fn what_it_has_no_rule_for_is_unknown() {
        let asked = [port("10.96.0.1"), port("172.30.0.1")];
        let mut rules = Rules::default();
        assert_eq!(rules.mode(), Found::Absent);
        assert_eq!(rules.unknown(&asked, &[]), Found::Present(asked.to_vec()));
        rules.has(Place::Nftables, [to_endpoints("10.96.0.1")]);
        assert_eq!(rules.mode(), Found::Present(ProxyMode::Nftables));
        assert_eq!(
            rules.unknown(&asked, &[]),
            Found::Present(vec![port("172.30.0.1")])
        );
        assert_eq!(rules.unknown(&[], &[]), Found::Present(Vec::new()));
    }

    #[test]
    fn an_address_of_a_service_is_none_of_a_load_balancer() {
        let asked = [port("172.30.255.9")];
        let mut rules = Rules::default();
        rules.has(Place::Iptables, [to_endpoints("172.30.255.9")]);
        assert_eq!(rules.unknown(&asked, &[]), Found::Present(Vec::new()));
        assert_eq!(rules.unknown(&[], &asked), Found::Present(asked.to_vec()));
        rules.has(Place::Iptables, [(port("172.30.255.9"), Leads::AsFromOutside)]);
        assert_eq!(rules.unknown(&asked, &asked), Found::Present(Vec::new()));
    }

    #[test]
    fn pods_are_known_by_the_rules_of_every_family() {
        let mut rules = Rules::default();
        assert_eq!(rules.local_traffic(), &Found::Absent);
        let by = |range: &str| LocalTraffic {
            ranges: vec![range.parse().unwrap()],
            links: Vec::new(),
        };
        for range in ["10.244.0.0/16", "fd00:244::/56", "10.244.0.0/16"] {
            rules.knows_pods(by(range));
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
    fn of_two_ways_nobody_knows_which_packets_go() {
        for (one, other, words) in [
            (Place::Nftables, Place::Ipvs, "in nftables and ipvs at once"),
            (
                Place::Iptables,
                Place::IptablesLegacy,
                "in iptables (nf_tables) and iptables (legacy) at once",
            ),
        ] {
            let mut rules = Rules::default();
            rules.has(one, [to_endpoints("10.96.0.1")]);
            rules.has(other, []);
            assert!(matches!(rules.mode(), Found::Malformed(what) if what.contains(words)));
            let unknown = rules.unknown(&[port("10.96.0.1")], &[]);
            assert!(matches!(unknown, Found::Malformed(what) if what.contains(words)));
        }
    }
}
