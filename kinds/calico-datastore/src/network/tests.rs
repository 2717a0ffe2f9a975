use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::decode::read;

// Results of net.ParseIP and net.ParseCIDR in Go 1.26.
#[rstest]
#[case("10.0.0.1", Some("10.0.0.1"))]
#[case("::ffff:1.2.3.4", Some("1.2.3.4"))]
#[case("::1.2.3.4", Some("::102:304"))]
#[case("1:0:0:2:0:0:0:3", Some("1:0:0:2::3"))]
#[case("2001:db8:0:1:1:1:1:1", Some("2001:db8:0:1:1:1:1:1"))]
#[case("010.0.0.1", None)]
#[case("fe80::1%eth0", None)]
#[case(" 10.0.0.1", None)]
#[case("", None)]
fn an_address_is_read_as_go_reads_it(#[case] text: &str, #[case] written: Option<&str>) {
    assert_eq!(
        address(text).map(|address| address.to_string()).as_deref(),
        written
    );
}

#[rstest]
#[case("192.168.0.129/25", Some(("192.168.0.129", "192.168.0.128/25")))]
#[case("1.2.3.4/08", Some(("1.2.3.4", "1.0.0.0/8")))]
#[case("0.0.0.0/0", Some(("0.0.0.0", "0.0.0.0/0")))]
#[case("fd00::9/64", Some(("fd00::9", "fd00::/64")))]
#[case("::ffff:1.2.3.4/120", Some(("1.2.3.4", "1.2.3.0/24")))]
#[case("::ffff:1.2.3.4/90", Some(("1.2.3.4", "::ffc0:0:0/90")))]
#[case("1.2.3.4/33", None)]
#[case("1.2.3.4/+8", None)]
#[case("1.2.3.4/", None)]
#[case("1.2.3.4/8/8", None)]
#[case("1.2.3.4", None)]
fn a_network_is_read_as_go_reads_it(#[case] text: &str, #[case] written: Option<(&str, &str)>) {
    let found = cidr(text).map(|(address, network)| (address.to_string(), network.to_string()));
    let wanted = written.map(|(address, network)| (address.to_owned(), network.to_owned()));
    assert_eq!(found, wanted);
}

#[rstest]
#[case(r#""10.0.0.5/24""#, "10.0.0.5/24")]
#[case(r#""10.0.0.5""#, "10.0.0.5/32")]
#[case(r#""fd00::5""#, "fd00::5/128")]
#[case(r#""""#, "<nil>")]
#[case("null", "<nil>")]
fn a_network_in_a_value_keeps_its_host_bits(#[case] json: &str, #[case] written: &str) {
    let network: Network = read(json).unwrap();
    assert_eq!(network.to_string(), written);
}

#[test]
fn an_empty_network_has_no_family_and_no_mask() {
    let nothing = Network::default();
    assert_eq!((nothing.version(), nothing.masked()), (0, None));
}

/// The settings of a node can mix families: Go uses the end of the longer mask.
#[rstest]
#[case("10.0.0.1", "10.0.0.0/24", "10.0.0.1/24")]
#[case("10.0.0.1", "fd00::/64", "10.0.0.1/0")]
#[case("fd00::1", "10.0.0.0/24", "<nil>")]
fn an_address_takes_the_length_of_a_network(#[case] own: &str, #[case] network: &str, #[case] written: &str) {
    let (_, network) = cidr(network).unwrap();
    let found = Network::with_length_of(address(own).unwrap(), &network);
    assert_eq!(found.to_string(), written);
}

#[rstest]
#[case("169.254.0.0/16", "169.254.1.0/24", true)]
#[case("169.254.0.0/16", "169.0.0.0/8", true)]
#[case("169.254.0.0/16", "169.255.0.0/16", false)]
#[case("169.254.0.0/16", "fe80::/10", false)]
#[case("fe80::/10", "fe80:1::/64", true)]
fn networks_with_a_common_address_overlap(#[case] one: &str, #[case] other: &str, #[case] wanted: bool) {
    let network = |text: &str| cidr(text).unwrap().1;
    assert_eq!(network(one).overlaps(&network(other)), wanted);
}

proptest! {
    #[test]
    fn a_parsed_network_is_masked_and_keeps_its_text(bits: u32, length in 0_u8..=32) {
        let text = format!("{}/{length}", Ipv4Addr::from_bits(bits));
        let (address, network) = cidr(&text).unwrap();
        prop_assert!(network.contains(address));
        prop_assert_eq!(network.masked(), Some(network));
        prop_assert_eq!(Network::with_length_of(address, &network).to_string(), text);
    }
}
