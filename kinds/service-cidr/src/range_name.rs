//! Names of the `ServiceCIDR`s that replumb creates.

use ipnet::IpNet;

use super::side::Side;

/// Prefix of the name of every `ServiceCIDR` that replumb creates.
const OURS: &str = "replumb-";

/// Names of the `ServiceCIDR` that assigns addresses of a side while the default one does not. The second name is for a
/// reversal of the direction while the first one is being deleted: its deletion completes only if another one contains its
/// addresses.
pub fn range_names(side: Side) -> [String; 2] {
    let first = format!("{OURS}{}", side.as_str());
    let second = format!("{first}-again");
    [first, second]
}

/// Name of the `ServiceCIDR` that reserves addresses of load balancers. The name depends on the range only.
pub fn cover_name(range: &IpNet) -> String {
    let address: String = range
        .addr()
        .to_string()
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    format!("{OURS}keep-{}-{}", address.trim_matches('-'), range.prefix_len())
}

/// Whether replumb creates a `ServiceCIDR` of this name.
pub fn is_ours(name: &str) -> bool {
    let mut ours = Side::ALL.into_iter().flat_map(range_names);
    is_cover(name) || ours.any(|ours| ours == name)
}

/// Whether a `ServiceCIDR` of this name reserves single addresses: of load balancers, or of late Services.
pub fn is_cover(name: &str) -> bool {
    name.starts_with(&format!("{OURS}keep-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_covers_are_valid_and_recognized() {
        let name = cover_name(&"10.96.0.8/30".parse().unwrap());
        assert_eq!(name, "replumb-keep-10-96-0-8-30");
        let others = range_names(Side::New)
            .into_iter()
            .chain(["kubernetes".to_owned()]);
        assert!(is_cover(&name) && others.into_iter().all(|name| !is_cover(&name)));
        assert_eq!(
            cover_name(&"fd00::/126".parse().unwrap()),
            "replumb-keep-fd00-126"
        );
    }
}
