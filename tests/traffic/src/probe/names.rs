//! DNS queries for a name, and the answers of name servers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};

/// The file with a pod's name servers, written when the pod was created.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The port of DNS.
const PORT: u16 = 53;

/// The name servers in a file.
pub async fn servers(file: &Path) -> Result<Vec<SocketAddr>> {
    let text = tokio::fs::read_to_string(file)
        .await
        .with_context(|| format!("read {}", file.display()))?;
    let servers = of(&text).with_context(|| format!("understand {}", file.display()))?;
    ensure!(!servers.is_empty(), "{} names no name server", file.display());
    Ok(servers)
}

fn of(text: &str) -> Result<Vec<SocketAddr>> {
    let words = text.lines().map(|line| line.split_whitespace());
    let addresses = words.filter_map(|mut words| {
        let is_one = words.next() == Some("nameserver");
        words.next().filter(|_| is_one)
    });
    let parse = |address: &str| {
        let address: IpAddr = address
            .parse()
            .with_context(|| format!("nameserver {address} is not an address"))?;
        Ok(SocketAddr::new(address, PORT))
    };
    addresses.map(parse).collect()
}

/// The query for a name's address of one family.
pub fn question(id: u16, name: &str, ipv6: bool) -> Result<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).with_context(|| format!("parse the name {name:?}"))?;
    let kind = if ipv6 { TYPE::AAAA } else { TYPE::A };
    packet.questions.push(Question::new(
        name,
        QTYPE::TYPE(kind),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec().context("build a DNS query")
}

/// Whether this is an answer to that query; an answer without an address is an error.
pub fn answer(id: u16, bytes: &[u8]) -> Result<bool> {
    let packet = Packet::parse(bytes).context("parse a DNS answer")?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return Ok(false);
    }
    if packet.rcode() != RCODE::NoError {
        bail!("the name server answers {:?}", packet.rcode());
    }
    let has_address = packet
        .answers
        .iter()
        .any(|record| matches!(record.rdata, RData::A(_) | RData::AAAA(_)));
    ensure!(has_address, "the name server returned no address");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use simple_dns::ResourceRecord;
    use simple_dns::rdata::{A, CNAME};

    use super::*;

    #[test]
    fn the_name_servers_of_a_pod_are_read_from_its_file() {
        let text = "search a.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\nnameserver fd00::a\noptions ndots:5\n#\n";
        let servers = of(text).unwrap();
        let servers: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
        assert_eq!(servers, ["10.96.0.10:53", "[fd00::a]:53"]);
        let error = of("nameserver here").unwrap_err();
        assert_eq!(error.to_string(), "nameserver here is not an address");
    }

    fn reply(change: impl FnOnce(&mut Packet<'_>)) -> Vec<u8> {
        let asked = question(7, "echo.traffic.svc.cluster.local", false).unwrap();
        let mut reply = Packet::parse(&asked).unwrap().into_reply();
        change(&mut reply);
        reply.build_bytes_vec().unwrap()
    }

    fn record(data: RData<'static>) -> ResourceRecord<'static> {
        let name = Name::new("echo.traffic.svc.cluster.local").unwrap();
        ResourceRecord::new(name, CLASS::IN, 30, data)
    }

    #[test]
    fn an_answer_has_an_address() {
        let address = A::from(Ipv4Addr::new(10, 96, 0, 9));
        let answered = reply(|reply| reply.answers.push(record(RData::A(address))));
        assert!(answer(7, &answered).unwrap());
        assert!(!answer(8, &answered).unwrap(), "to another question");
        let asked = question(7, "echo.traffic.svc.cluster.local", false).unwrap();
        assert!(!answer(7, &asked).unwrap(), "the query is not an answer");
    }

    #[test]
    fn a_name_without_an_address_is_an_error() {
        let elsewhere = CNAME(Name::new("other.traffic.svc.cluster.local").unwrap());
        for (answered, said) in [
            (reply(|_| {}), "the name server returned no address"),
            (
                reply(|reply| reply.answers.push(record(RData::CNAME(elsewhere)))),
                "the name server returned no address",
            ),
            (
                reply(|reply| *reply.rcode_mut() = RCODE::NameError),
                "the name server answers NameError",
            ),
            (b"x".to_vec(), "parse a DNS answer"),
        ] {
            assert_eq!(answer(7, &answered).unwrap_err().to_string(), said);
        }
    }
}
