//! Parses the kernel's virtual servers from `/proc/net/ip_vs`. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use service_cidr::host::ServicePort;

/// All virtual servers. Headings, real servers (`->`) and virtual servers by firewall mark (`FWM`) are skipped.
pub(super) fn ports(text: &str) -> Vec<ServicePort> {
    text.lines().filter_map(port).collect()
}

/// `TCP  0A600001:01BB rr`, or `TCP  [fd00:0096:0000:0000:0000:0000:0000:0001]:01BB rr`: numbers in hexadecimal.
fn port(line: &str) -> Option<ServicePort> {
    let mut words = line.split_ascii_whitespace();
    let protocol = words.next()?;
    if !["TCP", "UDP", "SCTP"].contains(&protocol) {
        return None;
    }
    let (address, port) = words.next()?.rsplit_once(':')?;
    let address = match address.strip_prefix('[') {
        Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?),
        None => IpAddr::V4(Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?)),
    };
    Some(ServicePort {
        address,
        protocol: protocol.to_owned(),
        port: u16::from_str_radix(port, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> AC120002:192B      Masq    1      0          0
UDP  0A60000A:0035 rr ops
TCP  [fd00:0096:0000:0000:0000:0000:0000:0001]:01BB rr persistent 10800 FFFFFFFF
  -> [fd00:0012:0000:0000:0000:0000:0000:0002]:192B      Masq    1      0          0
FWM  00000005 wlc
";

    #[test]
    fn virtual_servers_are_parsed_and_other_lines_skipped() {
        let texts: Vec<String> = ports(TEXT).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["10.96.0.1:443/TCP", "10.96.0.10:53/UDP", "[fd00:96::1]:443/TCP"]
        );
    }
}
