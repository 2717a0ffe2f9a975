//! What the kubelet tells new pods: its own answer to how it runs.

use std::net::IpAddr;
use std::time::Duration;

use kube::{Client, Config};
use plan::found::Found;
use serde_json::Value;

use crate::report::chain;

/// The kubelet of this host. Its certificate is often one that it made itself, for its own name: it is asked on the loopback, where
/// nobody but root of this host answers.
const URL: &str = "https://127.0.0.1:10250";
/// A kubelet that does not answer within this time is busy.
const LIMIT: Duration = Duration::from_secs(2);

/// Asks it.
pub async fn cluster_dns(config: &Config) -> Found<Vec<IpAddr>> {
    match ask(config).await {
        Ok(page) => addresses(&page),
        Err(what) => Found::Malformed(what),
    }
}

async fn ask(config: &Config) -> Result<Value, String> {
    let mut config = config.clone();
    config.cluster_url = URL.parse().map_err(|error| format!("{URL}: {error}"))?;
    config.tls_server_name = None;
    config.accept_invalid_certs = true;
    config.read_timeout = Some(LIMIT);
    let client = Client::try_from(config).map_err(|error| chain(&error))?;
    let request = http::Request::get("/configz")
        .body(Vec::new())
        .map_err(|error| error.to_string())?;
    match tokio::time::timeout(LIMIT, client.request::<Value>(request)).await {
        Ok(Ok(page)) => Ok(page),
        Ok(Err(kube::Error::Api(status))) if [401, 403].contains(&status.code) => Err(format!(
            "the kubelet does not tell how it runs (GET {URL}/configz: {}); the agent's ClusterRole needs get on nodes/configz, and the \
             kubelet Kubernetes 1.33",
            status.message
        )),
        Ok(Err(error)) => Err(format!("GET {URL}/configz: {}", chain(&error))),
        Err(_) => Err(format!(
            "GET {URL}/configz: no answer within {} s",
            LIMIT.as_secs()
        )),
    }
}

fn addresses(page: &Value) -> Found<Vec<IpAddr>> {
    let said = &page["kubeletconfig"]["clusterDNS"];
    let Some(all) = said.as_array() else {
        return if page["kubeletconfig"].is_object() {
            Found::Absent
        } else {
            Found::Malformed("GET /configz: no kubeletconfig in the answer".to_owned())
        };
    };
    let parsed: Option<Vec<IpAddr>> = all.iter().map(|text| text.as_str()?.parse().ok()).collect();
    parsed.map_or_else(|| Found::Malformed(format!("clusterDNS {said}")), Found::Present)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_answer_of_a_kubelet() {
        let page = json!({ "kubeletconfig": { "clusterDNS": ["10.96.0.10"] } });
        assert_eq!(
            addresses(&page),
            Found::Present(vec!["10.96.0.10".parse().unwrap()])
        );
        assert_eq!(addresses(&json!({ "kubeletconfig": {} })), Found::Absent);
        assert!(matches!(addresses(&json!({})), Found::Malformed(_)));
        assert!(matches!(
            addresses(&json!({ "kubeletconfig": { "clusterDNS": ["dns"] } })),
            Found::Malformed(_)
        ));
    }
}
