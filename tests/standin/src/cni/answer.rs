//! Answers of the plugins, in the form of the configuration's protocol version.

use anyhow::{Context, Error, Result};
use ipnet::Ipv4Net;
use serde_json::{Value, json};

/// Result of ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The address.
    pub address: Ipv4Net,
    /// The devices; empty from the IPAM plugin.
    pub devices: Option<Devices>,
}

/// The two ends of the pod's veth pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// Name on the host.
    pub host: String,
    /// Name in the pod.
    pub pod: String,
    /// Hardware address in the pod.
    pub mac: String,
    /// MTU.
    pub mtu: u32,
    /// Path of the pod's network namespace.
    pub namespace: String,
}

impl Answer {
    /// The answer as text.
    pub fn json(&self, version: &str) -> Value {
        let mut address = json!({"address": self.address.to_string()});
        // Before 1.0.0 an address has its family.
        if !version.starts_with('1') {
            address["version"] = json!("4");
        }
        let mut answer = json!({"cniVersion": version, "dns": {}});
        if let Some(devices) = &self.devices {
            address["interface"] = json!(1);
            answer["interfaces"] = json!([
                {"name": devices.host},
                {"name": devices.pod, "mac": devices.mac, "mtu": devices.mtu, "sandbox": devices.namespace}
            ]);
        }
        answer["ips"] = json!([address]);
        answer
    }

    /// The first IPv4 address in another plugin's answer.
    pub fn address_of(answer: &Value) -> Result<Ipv4Net> {
        let addresses = answer.get("ips").and_then(Value::as_array);
        let first = addresses
            .into_iter()
            .flatten()
            .filter_map(|address| address.get("address").and_then(Value::as_str))
            .find_map(|address| address.parse().ok());
        first.with_context(|| format!("IPAM plugin returned no IPv4 addresses in result: {answer}"))
    }
}

/// The answer after a failed call.
pub fn failure(version: &str, error: &Error) -> Value {
    json!({"cniVersion": version, "code": 999, "msg": format!("{error:#}")})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_follows_the_version() {
        let answer = Answer {
            address: "10.244.1.5/32".parse().unwrap(),
            devices: Some(Devices {
                host: "cali123".to_owned(),
                pod: "eth0".to_owned(),
                mac: "02:00:00:00:00:01".to_owned(),
                mtu: 1450,
                namespace: "/run/netns/x".to_owned(),
            }),
        };
        let old = answer.json("0.3.1");
        assert_eq!(
            old["ips"][0],
            json!({"address": "10.244.1.5/32", "version": "4", "interface": 1})
        );
        let new = answer.json("1.0.0");
        assert_eq!(new["ips"][0], json!({"address": "10.244.1.5/32", "interface": 1}));
        assert_eq!(new["interfaces"][1]["sandbox"], "/run/netns/x");
        assert_eq!(Answer::address_of(&old).unwrap(), answer.address);
        assert!(Answer::address_of(&json!({"ips": []})).is_err());
    }
}
