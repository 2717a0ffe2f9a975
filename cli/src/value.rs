//! Parsers of values for flags and environment variables: one for each form. The error names the needed form.

use std::path::Path;
use std::time::Duration;

use engine::ranges;
use engine::rollout::MaxUnavailable;
use ipnet::{IpNet, Ipv4Net};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// An IPv4 network in CIDR form, without host bits.
pub fn network(text: &str) -> Result<Ipv4Net, String> {
    let needed = || "needed an IPv4 network such as 10.244.0.0/16".to_owned();
    let network: Ipv4Net = text.parse().map_err(|_| needed())?;
    if network.trunc() == network {
        Ok(network)
    } else {
        Err(format!(
            "{}; {text} has host bits, its network is {}",
            needed(),
            network.trunc()
        ))
    }
}

/// A network of either family in CIDR form, without host bits.
pub fn range(text: &str) -> Result<IpNet, String> {
    ranges::read(text)
}

fn number(text: &str, least: u32, most: u32) -> Result<u32, String> {
    text.parse::<u32>()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("needed a number from {least} to {most}"))
}

fn small_number(text: &str, least: u8, most: u8) -> Result<u8, String> {
    text.parse::<u8>()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("needed a number from {least} to {most}"))
}

/// An MTU in bytes.
pub fn mtu(text: &str) -> Result<u32, String> {
    number(text, 576, 65_535)
}

/// A VXLAN network identifier.
pub fn vni(text: &str) -> Result<u32, String> {
    number(text, 1, 16_777_215)
}

/// A UDP port.
pub fn port(text: &str) -> Result<u16, String> {
    text.parse::<u16>()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| "needed a port from 1 to 65535".to_owned())
}

/// The prefix length of a node's subnet.
pub fn subnet_length(text: &str) -> Result<u8, String> {
    small_number(text, 8, 30)
}

/// The prefix length of a block of the new pool.
pub fn block_size(text: &str) -> Result<u8, String> {
    small_number(text, 20, 32)
}

/// The prefix length of a block of a pool of either family; the valid values depend on the range of the pool.
pub fn pool_block_size(text: &str) -> Result<u8, String> {
    small_number(text, 20, 32)
        .or_else(|_| small_number(text, 116, 128))
        .map_err(|_| "needed a number from 20 to 32, or from 116 to 128 for IPv6".to_owned())
}

/// A boolean, in the forms that Calico's controller accepts.
pub fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("needed true or false".to_owned()),
    }
}

/// The name of an object.
pub fn object_name(text: &str) -> Result<String, String> {
    if text.len() <= 253 && text.split('.').all(is_label) {
        Ok(text.to_owned())
    } else {
        Err("needed the name of an object: lower-case letters, digits, '-' and '.'".to_owned())
    }
}

/// Namespace and name of an object, with a slash between.
pub fn namespaced_name(text: &str) -> Result<String, String> {
    let is_one =
        |(namespace_of, name): (&str, &str)| namespace(namespace_of).is_ok() && object_name(name).is_ok();
    if text.split_once('/').is_some_and(is_one) {
        Ok(text.to_owned())
    } else {
        Err("needed namespace and name of an object: shop/web".to_owned())
    }
}

/// The name of a network policy: with its namespace, or that of a policy of the whole cluster.
pub fn policy_name(text: &str) -> Result<String, String> {
    namespaced_name(text).or_else(|_| object_name(text)).map_err(|_| {
        "needed NAMESPACE/NAME of a network policy such as shop/db, or NAME of a policy of the whole cluster".to_owned()
    })
}

/// The name of a namespace.
pub fn namespace(text: &str) -> Result<String, String> {
    if text.len() <= 63 && is_label(text) {
        Ok(text.to_owned())
    } else {
        Err("needed the name of a namespace: lower-case letters, digits and '-'".to_owned())
    }
}

/// A prefix of annotations: a domain, with an optional path (flannel's `--kube-annotation-prefix`).
pub fn annotation_prefix(text: &str) -> Result<String, String> {
    let needed = || "needed a domain such as flannel.alpha.coreos.com, or domain/path".to_owned();
    let (domain, path) = text
        .split_once('/')
        .map_or((text, None), |(domain, path)| (domain, Some(path)));
    let path_is_good = path.is_none_or(|path| {
        path.chars()
            .all(|character| character.is_ascii_alphanumeric() || "-_.".contains(character))
    });
    object_name(domain).map_err(|_| needed())?;
    if path_is_good {
        Ok(text.to_owned())
    } else {
        Err(needed())
    }
}

/// A folder on the host.
pub fn folder(text: &str) -> Result<String, String> {
    let path = Path::new(text);
    let plain = path
        .components()
        .all(|part| !matches!(part, std::path::Component::ParentDir));
    if path.is_absolute() && plain {
        Ok(text.to_owned())
    } else {
        Err("needed the full path of a folder such as /etc/cni/net.d".to_owned())
    }
}

/// `2` or `25%`.
pub fn max_unavailable(text: &str) -> Result<IntOrString, String> {
    MaxUnavailable::parse(text)
        .map_err(|_| "needed a number of nodes from 1, or a percentage from 1% to 100%".to_owned())?;
    Ok(text
        .parse::<i32>()
        .map_or_else(|_| IntOrString::String(text.to_owned()), IntOrString::Int))
}

/// A duration in whole seconds: `90`, `90s`, `15m`, `1h30m`.
pub fn seconds(text: &str) -> Result<u32, String> {
    let needed = || "needed a duration in seconds or such as 90s, 15m, 1h30m".to_owned();
    if let Ok(number) = text.parse::<u32>() {
        return Ok(number);
    }
    let duration: SignedDuration = text.parse().map_err(|_| needed())?;
    if duration.subsec_nanos() != 0 {
        return Err(needed());
    }
    u32::try_from(duration.as_secs()).map_err(|_| needed())
}

/// The longest time for which connections are observed: a week.
const LONGEST_OBSERVATION: u32 = 7 * 24 * 60 * 60;

/// The time for which connections are observed, at most a week; 0 for none.
pub fn observation(text: &str) -> Result<u32, String> {
    let seconds = seconds(text)?;
    if seconds <= LONGEST_OBSERVATION {
        Ok(seconds)
    } else {
        Err(format!("needed at most {LONGEST_OBSERVATION} seconds, a week"))
    }
}

/// A grace period, not zero: with 0 the API server removes a pod whose process still runs.
pub fn grace_period(text: &str) -> Result<u32, String> {
    match seconds(text)? {
        0 => Err("needed 1s or longer: with 0 a pod is deleted while its process still runs".to_owned()),
        seconds => Ok(seconds),
    }
}

/// A ratio from 0 to 1.
pub fn ratio(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| "needed a number from 0 to 1, such as 0.01".to_owned())
}

/// The hash of a plan: SHA-256, hexadecimal.
pub fn plan_hash(text: &str) -> Result<String, String> {
    let hash = text.to_ascii_lowercase();
    if hash.len() == 64 && hash.chars().all(|character| character.is_ascii_hexdigit()) {
        Ok(hash)
    } else {
        Err("needed the 64 hexadecimal digits that `kubectl replumb plan` prints".to_owned())
    }
}

/// A timeout, not zero.
pub fn wait(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        0 => Err("needed a duration of at least 1s".to_owned()),
        number => Ok(Duration::from_secs(u64::from(number))),
    }
}

fn is_label(text: &str) -> bool {
    let good = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    !text.is_empty()
        && text.chars().all(|character| good(character) || character == '-')
        && text.starts_with(good)
        && text.ends_with(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_seconds() {
        assert_eq!(seconds("90"), Ok(90));
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("15m"), Ok(900));
        assert_eq!(seconds("1h30m"), Ok(5_400));
        for bad in ["", "-1s", "1.5s", "soon", "99999999999"] {
            assert!(seconds(bad).is_err(), "{bad} was accepted");
        }
        assert!(wait("0").is_err());
        assert_eq!(grace_period("1s"), Ok(1));
        for bad in ["0", "0s", "soon"] {
            assert!(grace_period(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn max_unavailable_is_a_number_or_a_percentage() {
        assert_eq!(max_unavailable("2"), Ok(IntOrString::Int(2)));
        assert_eq!(max_unavailable("25%"), Ok(IntOrString::String("25%".to_owned())));
        for bad in ["0", "0%", "101%", "5o%", "-1", "", "all"] {
            assert!(max_unavailable(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn a_policy_has_a_namespace_or_is_one_of_the_cluster() {
        for good in ["shop/db", "deny-all"] {
            assert_eq!(policy_name(good), Ok(good.to_owned()));
        }
        for bad in ["", "shop/", "/db", "shop/a/b", "Shop/db"] {
            assert!(policy_name(bad).unwrap_err().contains("such as shop/db"), "{bad}");
        }
    }

    #[test]
    fn an_observation_takes_at_most_a_week() {
        assert_eq!((observation("0"), observation("10m")), (Ok(0), Ok(600)));
        assert!(observation("8d").is_err() && observation("-1").is_err());
        assert!(observation("604801").unwrap_err().contains("604800"));
    }

    #[test]
    fn a_namespaced_name_has_both_parts() {
        assert_eq!(namespaced_name("shop/web"), Ok("shop/web".to_owned()));
        for bad in ["web", "shop/", "/web", "shop/web/more", "Shop/web"] {
            assert!(namespaced_name(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn a_network_has_no_host_bits() {
        assert_eq!(
            network("10.244.0.0/16").map(|network| network.to_string()),
            Ok("10.244.0.0/16".to_owned())
        );
        let message = network("10.244.1.0/16").unwrap_err();
        assert!(message.contains("its network is 10.244.0.0/16"), "{message}");
        assert!(network("fd00::/48").is_err());
        assert!(network("10.244.0.0").is_err());
        assert!(range("fd00::/48").is_ok());
        assert!(range("10.244.1.0/16").unwrap_err().contains("10.244.0.0/16"));
    }

    #[test]
    fn a_pool_block_size_is_valid_for_either_family() {
        assert_eq!(pool_block_size("26"), Ok(26));
        assert_eq!(pool_block_size("122"), Ok(122));
        for bad in ["19", "33", "115", "129", "", "many"] {
            assert!(pool_block_size(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn names_prefixes_and_folders_are_validated() {
        assert!(object_name("kube-flannel-ds").is_ok());
        assert!(object_name("kube.flannel").is_ok());
        for bad in ["", "-a", "a-", "A", "a..b", "a/b", "a b"] {
            assert!(object_name(bad).is_err(), "{bad} was accepted");
        }
        assert!(namespace("kube-flannel").is_ok());
        assert!(namespace("kube.flannel").is_err());
        assert!(annotation_prefix("flannel.alpha.coreos.com").is_ok());
        assert!(annotation_prefix("a.b/c").is_ok());
        assert!(annotation_prefix("a.b/c/d").is_err());
        assert!(folder("/etc/cni/net.d").is_ok());
        assert!(folder("etc/cni").is_err());
        assert!(folder("/etc/../cni").is_err());
    }
}
