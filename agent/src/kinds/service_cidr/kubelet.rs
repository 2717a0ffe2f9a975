//! Reads the cluster DNS addresses from the kubelet's configuration. Sends requests to the kubelet over the loopback link.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::found::Found;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::{Client, Config};
use runtime::error::chain;
use serde_json::Value;

/// URL of this host's kubelet.
const URL: &str = "https://127.0.0.1:10250";
/// Path of the kubelet's configuration.
const PATH: &str = "/configz";
/// Timeout of a request: a kubelet that needs longer is busy.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum size of the answer: no kubelet's configuration is larger.
const MOST: usize = 1 << 20;
/// Maximum age of an answer: the configuration changes only with a restart of the kubelet.
const PACE: Duration = Duration::from_secs(5);

/// How long the last answer stays valid while the kubelet does not answer: a busy kubelet alone is nothing that the user has to
/// repair.
const HOLDS: Duration = Duration::from_mins(1);

/// The kubelet of this host, and its newest answer.
#[derive(Debug)]
pub struct Kubelet {
    config: Config,
    answer: Option<(Instant, Found<Vec<IpAddr>>)>,
    /// The last successful answer.
    last_success: Option<(Instant, Found<Vec<IpAddr>>)>,
}

impl Kubelet {
    /// A kubelet without a request so far. `config` has the agent's credentials for the API server: the kubelet asks the API
    /// server whether this user is allowed.
    ///
    /// The kubelet's certificate is not verified, since it is often self-signed. While the kubelet runs, it is the process behind
    /// this port of the loopback link; otherwise a pod in the host network could be, which is trusted by the node already.
    pub fn new(config: &Config) -> Self {
        Self::at(Uri::from_static(URL), config)
    }

    fn at(url: Uri, config: &Config) -> Self {
        let mut config = config.clone();
        config.cluster_url = url;
        config.tls_server_name = None;
        config.proxy_url = None;
        config.accept_invalid_certs = true;
        config.connect_timeout = Some(LIMIT);
        config.read_timeout = Some(LIMIT);
        Self {
            config,
            answer: None,
            last_success: None,
        }
    }

    /// Drops the cached answers: the next observation asks again.
    pub fn forget(&mut self) {
        self.answer = None;
        self.last_success = None;
    }

    /// `clusterDNS` of the kubelet, at most five seconds old; at most a minute old while the kubelet does not answer.
    pub async fn cluster_dns(&mut self) -> Found<Vec<IpAddr>> {
        match &self.answer {
            Some((at, found)) if at.elapsed() < PACE => found.clone(),
            Some(_) | None => {
                let found = match self.ask().await {
                    Ok(page) => {
                        let found = addresses(&page);
                        self.last_success = Some((Instant::now(), found.clone()));
                        found
                    }
                    Err(what) => match &self.last_success {
                        Some((at, found)) if at.elapsed() < HOLDS => found.clone(),
                        Some(_) | None => Found::Malformed(what),
                    },
                };
                self.answer = Some((Instant::now(), found.clone()));
                found
            }
        }
    }

    async fn ask(&self) -> Result<Value, String> {
        let asked = format!(
            "GET {}{PATH}",
            self.config.cluster_url.to_string().trim_end_matches('/')
        );
        // A new client for each request: a restarted kubelet does not have the old connection.
        let client =
            Client::try_from(self.config.clone()).map_err(|error| format!("{asked}: {}", chain(&error)))?;
        let request = http::Request::get(PATH)
            .body(Body::empty())
            .map_err(|error| format!("{asked}: {error}"))?;
        let talk = async {
            let response = client.send(request).await.map_err(|error| chain(&error))?;
            let status = response.status();
            // Whatever answers on this port, only this much is held in memory.
            let body = Limited::new(response.into_body(), MOST).collect().await;
            let bytes = body.map_err(|error| error.to_string())?.to_bytes();
            Ok::<_, String>((status, bytes))
        };
        let (status, bytes) = match tokio::time::timeout(LIMIT, talk).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(what)) => return Err(format!("{asked}: {what}")),
            Err(_) => return Err(format!("{asked}: no answer within {} s", LIMIT.as_secs())),
        };
        match status {
            StatusCode::UNAUTHORIZED => Err(format!(
                "{asked}: kubelet could not authenticate the agent: set authentication.webhook.enabled: true in the \
                 kubelet's configuration"
            )),
            StatusCode::FORBIDDEN => Err(format!(
                "{asked}: the agent's ClusterRole needs get on nodes/configz, and the kubelet version 1.33 or later: {}",
                words(&bytes)
            )),
            status if status.is_success() => {
                serde_json::from_slice(&bytes).map_err(|error| format!("{asked}: {error}"))
            }
            status => Err(format!("{asked}: {status}: {}", words(&bytes))),
        }
    }
}

/// The text of a refusal: the message of an API status, or the plain text.
fn words(bytes: &[u8]) -> String {
    let status: Option<Value> = serde_json::from_slice(bytes).ok();
    let message = status.as_ref().and_then(|status| status["message"].as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(bytes), std::convert::Into::into);
    text.trim().chars().take(200).collect()
}

fn addresses(page: &Value) -> Found<Vec<IpAddr>> {
    let configuration = &page["kubeletconfig"];
    if !configuration.is_object() {
        return Found::Malformed(format!("GET {PATH}: no kubeletconfig in the answer"));
    }
    let value = &configuration["clusterDNS"];
    if value.is_null() {
        return Found::Absent;
    }
    let address = |text: &Value| text.as_str()?.parse().ok();
    let parsed: Option<Vec<IpAddr>> = value.as_array().and_then(|all| all.iter().map(address).collect());
    match parsed {
        None => Found::Malformed(format!(
            "GET {PATH}: clusterDNS {value}, needed a list of addresses"
        )),
        Some(addresses) if addresses.is_empty() => Found::Absent,
        Some(addresses) => Found::Present(addresses),
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::get;
    use kube::config::AuthInfo;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// A kubelet with this answer to requests with the agent's token.
    async fn kubelet(status: StatusCode, page: String) -> Kubelet {
        let answer = move |headers: HeaderMap| async move {
            assert_eq!(headers["authorization"], "Bearer the-agents-own");
            (status, page)
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, Router::new().route(PATH, get(answer))).await });
        asked_at(&url)
    }

    fn asked_at(url: &str) -> Kubelet {
        let mut config = Config::new("http://192.0.2.1:6443".parse().unwrap());
        // A proxy for the API server is not used for the kubelet.
        config.proxy_url = Some("http://192.0.2.2:3128".parse().unwrap());
        config.auth_info = AuthInfo {
            token: Some("the-agents-own".to_owned().into()),
            ..AuthInfo::default()
        };
        Kubelet::at(url.parse().unwrap(), &config)
    }

    #[rstest]
    #[case::one(json!({ "kubeletconfig": { "clusterDNS": ["10.96.0.10"] } }), Found::Present(vec!["10.96.0.10".parse().unwrap()]))]
    #[case::none(json!({ "kubeletconfig": {} }), Found::Absent)]
    #[case::an_empty_list(json!({ "kubeletconfig": { "clusterDNS": [] } }), Found::Absent)]
    #[case::another_page(json!({}), Found::Malformed("GET /configz: no kubeletconfig in the answer".to_owned()))]
    #[case::a_name(
        json!({ "kubeletconfig": { "clusterDNS": ["dns"] } }),
        Found::Malformed("GET /configz: clusterDNS [\"dns\"], needed a list of addresses".to_owned())
    )]
    #[case::no_list(
        json!({ "kubeletconfig": { "clusterDNS": "10.96.0.10" } }),
        Found::Malformed("GET /configz: clusterDNS \"10.96.0.10\", needed a list of addresses".to_owned())
    )]
    #[tokio::test]
    async fn cluster_dns_is_parsed_from_the_answer(
        #[case] page: Value,
        #[case] expected: Found<Vec<IpAddr>>,
    ) {
        let mut kubelet = kubelet(StatusCode::OK, page.to_string()).await;
        assert_eq!(kubelet.cluster_dns().await, expected);
    }

    /// A kubelet answers with plain text, not with an API object.
    #[rstest]
    #[case::no_right(
        StatusCode::FORBIDDEN,
        "Forbidden (user=system:serviceaccount:replumb-system:replumb-agent, verb=get, resource=nodes, subresource(s)=[configz proxy])",
        "needs get on nodes/configz, and the kubelet version 1.33 or later: "
    )]
    #[case::not_authenticated(
        StatusCode::UNAUTHORIZED,
        "Unauthorized",
        "authentication.webhook.enabled: true"
    )]
    #[case::no_such_page(StatusCode::NOT_FOUND, "404 page not found", "/configz")]
    #[case::no_json(StatusCode::OK, "ok", "/configz")]
    #[tokio::test]
    async fn a_refused_or_malformed_answer_has_a_reason(
        #[case] status: StatusCode,
        #[case] page: &str,
        #[case] words: &str,
    ) {
        let mut kubelet = kubelet(status, page.to_owned()).await;
        let found = kubelet.cluster_dns().await;
        assert!(
            matches!(&found, Found::Malformed(what) if what.contains(words) && what.starts_with("GET http://127.0.0.1:")),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn an_answer_above_the_limit_is_not_held_in_memory() {
        let mut kubelet = kubelet(StatusCode::OK, "x".repeat(MOST + 1)).await;
        let found = kubelet.cluster_dns().await;
        assert!(
            matches!(&found, Found::Malformed(what) if what.contains("length limit exceeded")),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn a_silent_and_a_missing_kubelet_have_a_reason() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let found = asked_at(&url).cluster_dns().await;
        assert!(
            matches!(&found, Found::Malformed(what) if what.contains("no answer within 2 s")),
            "{found:?}"
        );
        drop(listener);
        let mut kubelet = asked_at(&url);
        let found = kubelet.cluster_dns().await;
        assert!(
            matches!(&found, Found::Malformed(what) if what.contains("onnection refused")),
            "{found:?}"
        );
        // The error is cached as well.
        assert_eq!(kubelet.answer.as_ref().map(|(_, answer)| answer), Some(&found));
    }

    #[tokio::test]
    async fn the_last_answer_of_a_busy_kubelet_stays_valid_for_a_while() {
        let page = json!({ "kubeletconfig": { "clusterDNS": ["10.96.0.10"] } });
        let mut kubelet = kubelet(StatusCode::OK, page.to_string()).await;
        let first = kubelet.cluster_dns().await;
        let unreachable = asked_at("http://127.0.0.1:1").config;
        kubelet.config = unreachable;
        kubelet.answer = None;
        assert_eq!(kubelet.cluster_dns().await, first);
        kubelet.answer = None;
        kubelet.last_success = Instant::now().checked_sub(HOLDS).map(|at| (at, first));
        assert!(matches!(kubelet.cluster_dns().await, Found::Malformed(_)));
    }

    #[test]
    fn the_kubelet_is_asked_on_the_loopback_without_certificate_check() {
        let kubelet = Kubelet::new(&Config::new("https://10.96.0.1".parse().unwrap()));
        assert_eq!(kubelet.config.cluster_url.to_string(), "https://127.0.0.1:10250/");
        assert!(kubelet.config.accept_invalid_certs);
    }
}
