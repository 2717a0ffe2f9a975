//! Ranges of addresses as Calico reads them: with Go's `net.ParseCIDR`, which accepts bits of the host and masks them, and
//! refuses numbers with leading zeros. The API server once accepted these, and stores them.

use std::net::IpAddr;

use ipnet::IpNet;

/// The range that this text names; `None` if Calico cannot read it.
///
/// ```
/// use policy::cidr::parse;
///
/// assert_eq!(parse("10.0.0.5/8"), "10.0.0.0/8".parse().ok());
/// assert_eq!(parse("010.1.0.0/16"), None);
/// ```
pub fn parse(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    // The parsers of Go and of the standard library agree: no leading zeros, no zone.
    let address: IpAddr = address.parse().ok()?;
    // Go reads the digits of the length as a number, leading zeros included.
    if length.is_empty() || !length.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    let range = IpNet::new(address, length).ok()?.trunc();
    Some(unmapped(range))
}

/// A range of mapped addresses (`::ffff:0:0/96`) is one of IPv4 for Calico.
fn unmapped(range: IpNet) -> IpNet {
    if let IpNet::V6(of_v6) = range
        && let Some(address) = of_v6.network().to_ipv4_mapped()
        && let Some(length) = of_v6.prefix_len().checked_sub(96)
        && let Ok(range) = IpNet::new(address.into(), length)
    {
        return range;
    }
    range
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::exact("192.0.2.0/24", Some("192.0.2.0/24"))]
    #[case::bits_of_the_host("10.0.0.5/8", Some("10.0.0.0/8"))]
    #[case::everything("0.0.0.0/0", Some("0.0.0.0/0"))]
    #[case::of_ipv6("2001:db8::1/32", Some("2001:db8::/32"))]
    #[case::mapped("::ffff:10.1.2.3/104", Some("10.0.0.0/8"))]
    #[case::wider_than_mapped("::ffff:10.1.2.3/90", Some("::ffc0:0:0/90"))]
    #[case::length_with_zeros("10.0.0.0/08", Some("10.0.0.0/8"))]
    #[case::leading_zeros("010.1.0.0/16", None)]
    #[case::no_length("10.0.0.1", None)]
    #[case::empty_length("10.0.0.1/", None)]
    #[case::sign("10.0.0.1/+8", None)]
    #[case::too_long("10.0.0.1/33", None)]
    #[case::far_too_long("10.0.0.1/4294967304", None)]
    #[case::zone("fe80::1%eth0/64", None)]
    #[case::blank(" 10.0.0.0/8", None)]
    fn ranges_are_read_as_go_reads_them(#[case] text: &str, #[case] range: Option<&str>) {
        assert_eq!(parse(text), range.map(|range| range.parse().unwrap()));
    }
}
