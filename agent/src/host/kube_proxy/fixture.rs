//! Values that tests share.

use service_cidr::host::ServicePort;

/// The TCP port 443 of this address.
pub fn port(address: &str) -> ServicePort {
    ServicePort {
        address: address.parse().unwrap(),
        protocol: "TCP".to_owned(),
        port: 443,
    }
}
