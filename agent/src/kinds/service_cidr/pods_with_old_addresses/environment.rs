//! Finds old addresses in the environment of a process and in its `resolv.conf`. Pure.

use std::io::{self, BufRead, Read as _};
use std::net::{IpAddr, SocketAddr};

use service_cidr::objects::is_about_helper;

use crate::kinds::service_cidr::old_addresses::OldAddresses;

/// Maximum size of a parsed variable: no variable with an address is longer.
const MOST_ENTRY: u64 = 64 << 10;

/// Result of parsing an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Environment {
    /// The smallest old address, if any.
    Parsed(Option<IpAddr>),
    /// The environment is not empty and contains no variable: the process has overwritten it.
    Overwritten,
}

/// Parses an environment in the format of /proc: variables, each with a zero byte at its end. Variables of helper Services do not
/// count. Holds one entry at a time: a pod determines the number of entries, and 8 MiB contain millions.
pub(super) fn by_environment(mut entries: impl BufRead, left: &OldAddresses) -> io::Result<Environment> {
    let (mut is_empty, mut has_variables, mut smallest) = (true, false, None::<IpAddr>);
    let mut bytes = Vec::new();
    while entries.by_ref().take(MOST_ENTRY).read_until(0, &mut bytes)? > 0 {
        is_empty = false;
        if bytes.pop_if(|last| *last == 0).is_none() {
            entries.skip_until(0)?;
        }
        if let Some((name, value)) = variable(&String::from_utf8_lossy(&bytes)) {
            has_variables = true;
            let found = address(value).filter(|address| smallest.is_none_or(|smallest| *address < smallest));
            if let Some(found) = found.filter(|found| left.contains(*found) && !is_about_helper(name)) {
                smallest = Some(found);
            }
        }
        bytes.clear();
    }
    Ok(if has_variables || is_empty {
        Environment::Parsed(smallest)
    } else {
        Environment::Overwritten
    })
}

/// The smallest old address among the name servers of a `resolv.conf`.
pub(super) fn by_resolver(text: &str, left: &OldAddresses) -> Option<IpAddr> {
    let name_server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver")
            .then(|| words.next()?.parse().ok())
            .flatten()
    };
    let servers = text.lines().filter_map(name_server);
    servers.filter(|address| left.contains(*address)).min()
}

/// Name and value of a variable. Names of variables contain no spaces; text that a program writes over its environment mostly
/// does.
fn variable(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    is_name.then_some((name, value))
}

/// An address alone, with a port, or in the format of the kubelet's variables: `tcp://10.96.0.1:443`, `tcp://[fd00:96::1]:443`.
fn address(value: &str) -> Option<IpAddr> {
    let rest = value.split_once("://").map_or(value, |(_, rest)| rest);
    let with_port = || rest.parse().ok().map(|address: SocketAddr| address.ip());
    let in_brackets = || rest.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    rest.parse().ok().or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use service_cidr::host::SourceAddresses;

    use super::*;

    fn left() -> OldAddresses {
        OldAddresses::from(&SourceAddresses {
            ranges: vec!["10.96.0.0/12".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
            excluded: vec!["10.96.3.9".parse().unwrap()],
        })
    }

    #[rstest]
    #[case::alone("PATH=/bin\0KUBERNETES_SERVICE_HOST=10.96.0.1\0", Some("10.96.0.1"))]
    #[case::a_link("WEB_PORT=tcp://10.96.0.7:80\0", Some("10.96.0.7"))]
    #[case::a_link_of_udp("DNS_PORT=udp://10.96.0.10:53\0", Some("10.96.0.10"))]
    #[case::with_a_port("ETCD=10.96.0.9:2379\0", Some("10.96.0.9"))]
    #[case::the_smallest("B=10.96.0.9\0A=10.96.0.2\0C=10.96.0.10\0", Some("10.96.0.2"))]
    #[case::ipv6("KUBERNETES_SERVICE_HOST=fd00:96::1\0", Some("fd00:96::1"))]
    #[case::ipv6_with_a_port("ETCD=[fd00:96::9]:2379\0", Some("fd00:96::9"))]
    #[case::a_link_of_ipv6("KUBERNETES_PORT=tcp://[fd00:96::1]:443\0", Some("fd00:96::1"))]
    #[case::in_brackets("HOST=[fd00:96::1]\0", Some("fd00:96::1"))]
    #[case::another_range("KUBERNETES_SERVICE_HOST=172.30.0.1\0", None)]
    #[case::in_a_sentence("NOTE=10.96.0.10 is old\0", None)]
    #[case::in_a_path("URL=http://10.96.0.10/a\0", None)]
    #[case::a_list("ALL=10.96.0.1,10.96.0.2\0", None)]
    #[case::no_port("A=10.96.0.1:http\0", None)]
    #[case::of_a_helper(
        "WEB_REPLUMB_OLD_SERVICE_HOST=10.96.0.7\0WEB_REPLUMB_OLD_PORT=tcp://10.96.0.7:80\0",
        None
    )]
    #[case::beside_a_helper(
        "WEB_REPLUMB_OLD_SERVICE_HOST=10.96.0.7\0WEB_SERVICE_HOST=10.96.0.9\0",
        Some("10.96.0.9")
    )]
    #[case::of_a_load_balancer("BALANCER_SERVICE_HOST=10.96.3.9\0", None)]
    #[case::nothing("", None)]
    #[case::an_empty_value("A=\0", None)]
    fn an_environment_yields_its_smallest_old_address(#[case] text: &str, #[case] expected: Option<&str>) {
        let expected = expected.map(|address| address.parse().unwrap());
        assert_eq!(
            by_environment(text.as_bytes(), &left()).unwrap(),
            Environment::Parsed(expected)
        );
    }

    #[rstest]
    #[case::zeros("\0\0\0\0\0\0")]
    #[case::a_title("ster process nginx -g daemon off;\0\0\0\0")]
    #[case::a_title_with_an_equals_sign("postgres: checkpointer mode = idle\0\0\0")]
    fn an_overwritten_environment_is_recognized(#[case] text: &str) {
        assert_eq!(
            by_environment(text.as_bytes(), &left()).unwrap(),
            Environment::Overwritten
        );
    }

    #[test]
    fn a_long_entry_is_skipped_and_later_entries_count() {
        let endless = io::repeat(b'x').take(32 << 20);
        let text = b"A=".chain(endless).chain(&b"\0B=10.96.0.2\0"[..]);
        let mut entries = io::BufReader::new(text);
        assert_eq!(
            by_environment(&mut entries, &left()).unwrap(),
            Environment::Parsed(Some("10.96.0.2".parse().unwrap()))
        );
    }

    #[test]
    fn a_resolv_conf_yields_its_smallest_old_name_server() {
        let found = |text: &str| by_resolver(text, &left()).map(|address| address.to_string());
        assert_eq!(
            found(
                "search default.svc.cluster.local\nnameserver 10.96.0.10\nnameserver 10.96.0.2 # second\noptions ndots:5\n"
            ),
            Some("10.96.0.2".to_owned())
        );
        assert_eq!(found("nameserver\tfd00:96::a\n"), Some("fd00:96::a".to_owned()));
        for text in [
            "",
            "nameserver 192.0.2.53\n",
            "# nameserver 10.96.0.10\n",
            "nameservers 10.96.0.10\n",
            "nameserver\n",
            "search 10.96.0.10\n",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
