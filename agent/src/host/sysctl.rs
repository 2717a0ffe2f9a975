//! Reads and writes kernel parameters under /proc/sys.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use api::FailureCategory;
use thiserror::Error;

use super::files::{FileError, read_if_exists, read_small};

/// A loose reverse path filter.
pub const LOOSE: &str = "2";

/// A parameter could not be read.
#[derive(Debug, Error)]
pub enum SysctlError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The value is not a number in this range.
    #[error("{parameter} is {found:?}, needed a number from 0 to 255")]
    Value {
        /// Name of the parameter.
        parameter: String,
        /// The value found.
        found: String,
    },
    /// The value is not a range of ports.
    #[error("net.ipv4.ip_local_port_range is {found:?}, needed two ports")]
    PortRange {
        /// The value found.
        found: String,
    },
}

impl SysctlError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::File(_) => FailureCategory::SysctlFile,
            Self::Value { .. } | Self::PortRange { .. } => FailureCategory::SysctlValue,
        }
    }
}

/// Reads `net.ipv4.conf.*.rp_filter` of `all` (first) and of every interface.
///
/// # Errors
///
/// The parameters cannot be listed or read, one is not a number, or `all` is missing.
pub fn reverse_path_filter(proc: &Path) -> Result<(u8, BTreeMap<String, u8>), SysctlError> {
    let folder = proc.join("sys/net/ipv4/conf");
    let mut values = BTreeMap::new();
    let entries = fs::read_dir(&folder).map_err(FileError::of("list folder", &folder))?;
    for entry in entries {
        let entry = entry.map_err(FileError::of("list folder", &folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path().join("rp_filter");
        match read_small(&path) {
            Ok(text) => {
                let value = number(&text, || format!("net.ipv4.conf.{name}.rp_filter"))?;
                values.insert(name, value);
            }
            // The interface was deleted meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(FileError::of("read", &path)(error).into()),
        }
    }
    let all = values.remove("all").ok_or_else(|| {
        SysctlError::from(FileError {
            attempt: "read",
            path: folder.join("all/rp_filter"),
            source: io::ErrorKind::NotFound.into(),
        })
    })?;
    Ok((all, values))
}

/// Reads `net.bridge.bridge-nf-call-iptables`; `None` when `br_netfilter` is not loaded.
///
/// # Errors
///
/// `/proc` is not mounted, or the parameter is not a number or cannot be read.
pub fn bridge_netfilter(proc: &Path) -> Result<Option<bool>, SysctlError> {
    let path = proc.join("sys/net/bridge/bridge-nf-call-iptables");
    match read_small(&path) {
        Ok(text) => Ok(Some(
            number(&text, || "net.bridge.bridge-nf-call-iptables".to_owned())? != 0,
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The folder of all parameters must exist, else the result is unknown.
            read_if_exists(&proc.join("sys/net/core/somaxconn"))?;
            Ok(None)
        }
        Err(error) => Err(FileError::of("read", &path)(error).into()),
    }
}

/// Reads `net.ipv4.ip_local_port_range`: the first and the last port that the host gives to clients.
///
/// # Errors
///
/// The parameter cannot be read, or is not two ports.
pub fn client_ports(proc: &Path) -> Result<(u16, u16), SysctlError> {
    let path = proc.join("sys/net/ipv4/ip_local_port_range");
    let text = read_small(&path).map_err(FileError::of("read", &path))?;
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next(), words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last)), None) => Ok((first, last)),
        _ => Err(SysctlError::PortRange {
            found: text.trim().to_owned(),
        }),
    }
}

/// Reads `net.netfilter.nf_conntrack_events`: whether the kernel sends events of connection tracking. A kernel without the parameter
/// sends none.
///
/// # Errors
///
/// The parameter cannot be read, or is not a number.
pub fn connection_events(proc: &Path) -> Result<bool, SysctlError> {
    let path = proc.join("sys/net/netfilter/nf_conntrack_events");
    match read_small(&path) {
        Ok(text) => Ok(number(&text, || "net.netfilter.nf_conntrack_events".to_owned())? != 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::of("read", &path)(error).into()),
    }
}

/// Parameters with which a bridge answers without delay for addresses that it does not have: path below `/proc/sys/net`, value.
/// The IPv6 parameters only if the bridge `speaks_ipv6`: otherwise they may not exist.
pub fn answering(bridge: &str, speaks_ipv6: bool) -> Vec<(String, &'static str)> {
    let ipv6 = [
        (format!("ipv6/neigh/{bridge}/proxy_delay"), "0"),
        (format!("ipv6/conf/{bridge}/proxy_ndp"), "1"),
    ];
    [
        (format!("ipv4/neigh/{bridge}/proxy_delay"), "0"),
        (format!("ipv4/conf/{bridge}/proxy_arp"), "1"),
    ]
    .into_iter()
    .chain(ipv6.into_iter().filter(|_| speaks_ipv6))
    .collect()
}

/// Whether a bridge has these parameters set; false if the bridge does not exist.
///
/// # Errors
///
/// The parameters of the network are not mounted, or one exists and cannot be read.
pub fn answers(network: &Path, bridge: &str, speaks_ipv6: bool) -> Result<bool, SysctlError> {
    // The folder of all parameters must exist, else the result is unknown.
    read_if_exists(&network.join("core/somaxconn"))?;
    are_set(network, answering(bridge, speaks_ipv6))
}

/// The reverse path filter of a link, as a path below `/proc/sys/net`.
pub fn reverse_path_filter_of(link: &str) -> String {
    format!("ipv4/conf/{link}/rp_filter")
}

/// Whether a link has no IPv6, as a path below `/proc/sys/net`.
pub fn ipv6_is_disabled_on(link: &str) -> String {
    format!("ipv6/conf/{link}/disable_ipv6")
}

/// Whether a link checks that no other host has its IPv6 addresses before it uses them, as a path below `/proc/sys/net`.
pub fn duplicate_address_detection_of(link: &str) -> String {
    format!("ipv6/conf/{link}/accept_dad")
}

/// Parameters with which the link of a pod answers without delay for all addresses, and forwards: path below `/proc/sys/net`,
/// value. Those of IPv6 only if the pod `speaks_ipv6`.
pub fn answering_for_all(link: &str, speaks_ipv6: bool) -> Vec<(String, &'static str)> {
    let mut parameters = answering(link, speaks_ipv6);
    parameters.push((forwards(link), "1"));
    if speaks_ipv6 {
        parameters.push((format!("ipv6/conf/{link}/forwarding"), "1"));
    }
    parameters
}

/// Whether IPv4 packets that arrive on a link are forwarded, as a path below `/proc/sys/net`.
pub fn forwards(link: &str) -> String {
    format!("ipv4/conf/{link}/forwarding")
}

/// The folder of all IPv4 parameters of a link, as a path below `/proc/sys/net`.
pub fn ipv4_of(link: &str) -> String {
    format!("ipv4/conf/{link}")
}

/// Parameters that Felix sets on the link of a pod, as paths below `/proc/sys/net`.
pub fn of_felix(link: &str) -> [String; 5] {
    [
        format!("ipv4/conf/{link}/route_localnet"),
        format!("ipv6/conf/{link}/accept_ra"),
        format!("ipv6/conf/{link}/forwarding"),
        format!("ipv6/conf/{link}/proxy_ndp"),
        format!("ipv6/neigh/{link}/proxy_delay"),
    ]
}

/// Whether the link of a pod answers for all addresses; false if the link does not exist.
///
/// # Errors
///
/// A parameter exists and cannot be read.
pub fn answers_for_all(network: &Path, link: &str, speaks_ipv6: bool) -> Result<bool, SysctlError> {
    are_set(network, answering_for_all(link, speaks_ipv6))
}

/// Whether a link has IPv6; false if the link does not exist.
///
/// # Errors
///
/// The parameter exists and cannot be read.
pub fn has_ipv6(network: &Path, link: &str) -> Result<bool, SysctlError> {
    are_set(network, [(ipv6_is_disabled_on(link), "0")])
}

fn are_set(
    network: &Path,
    parameters: impl IntoIterator<Item = (String, &'static str)>,
) -> Result<bool, SysctlError> {
    for (parameter, wanted) in parameters {
        let path = network.join(parameter);
        match read_small(&path) {
            Ok(found) if found.trim() == wanted => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(FileError::of("read", &path)(error).into()),
        }
    }
    Ok(true)
}

/// Writes a parameter. The kernel's file is neither created nor replaced.
///
/// # Errors
///
/// The parameter does not exist or cannot be written, or the kernel refuses the value.
pub fn write(path: &Path, value: &str) -> Result<(), FileError> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(FileError::of(
            "write kernel parameter (is /proc/sys/net mounted?)",
            path,
        ))
}

/// Writes a parameter of a link (`…/conf/LINK/NAME`), unless the link does not exist any more.
///
/// # Errors
///
/// The folder of all links does not exist, the parameter cannot be written, or the kernel refuses the value.
pub fn write_if_exists(path: &Path, value: &str) -> Result<(), FileError> {
    let of_link = path.parent().unwrap_or(path);
    match write(path, value) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound && !of_link.exists() => {
            let of_all = of_link.parent().unwrap_or(of_link);
            fs::metadata(of_all)
                .map(drop)
                .map_err(FileError::of("access folder (is /proc/sys/net mounted?)", of_all))
        }
        result => result,
    }
}

/// The kernel accepts any number for these parameters: a larger one has the effect of the largest valid one.
fn number(text: &str, parameter: impl FnOnce() -> String) -> Result<u8, SysctlError> {
    let number: i64 = text.trim().parse().map_err(|_| SysctlError::Value {
        parameter: parameter(),
        found: text.trim().to_owned(),
    })?;
    Ok(u8::try_from(number.max(0)).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A folder of parameters with this one.
    fn parameter(path: &str, value: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let path = proc.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value).unwrap();
        proc
    }

    #[rstest]
    #[case::default("32768\t60999\n", Some((32768, 60999)))]
    #[case::one_port("32768\n", None)]
    #[case::three_ports("1 2 3\n", None)]
    #[case::no_port("1024 65536\n", None)]
    #[case::empty("", None)]
    fn ports_of_clients_are_two_ports(#[case] value: &str, #[case] expected: Option<(u16, u16)>) {
        let proc = parameter("sys/net/ipv4/ip_local_port_range", value);
        let found = client_ports(proc.path());
        assert_eq!(found.as_ref().ok().copied(), expected);
        if let Err(error) = found {
            assert!(
                error.to_string().contains("net.ipv4.ip_local_port_range is "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_missing_range_of_ports_is_an_error() {
        let proc = tempfile::tempdir().unwrap();
        let error = client_ports(proc.path()).unwrap_err();
        assert!(error.to_string().contains("ip_local_port_range"), "{error}");
    }

    #[rstest]
    #[case::none("0\n", false)]
    #[case::all("1\n", true)]
    #[case::automatic("2\n", true)]
    fn events_are_sent_unless_the_parameter_is_zero(#[case] value: &str, #[case] expected: bool) {
        let proc = parameter("sys/net/netfilter/nf_conntrack_events", value);
        assert_eq!(connection_events(proc.path()).unwrap(), expected);
    }

    #[test]
    fn a_kernel_without_the_parameter_sends_no_events() {
        assert!(!connection_events(tempfile::tempdir().unwrap().path()).unwrap());
    }
}
