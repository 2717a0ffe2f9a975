//! What the kubelet tells new pods: its own answer to how it runs. Asks it over the loopback.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::found::Found;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::{Client, Config};
use runtime::error::chain;
use serde_json::Value;

/// The kubelet of this host.
const URL: &str = "https://127.0.0.1:10250";
/// Where it says how it runs.
const PATH: &str = "/configz";
/// A kubelet that does not answer within this time is busy.
const LIMIT: Duration = Duration::from_secs(2);
/// More than any kubelet says of how it runs.
const MOST: usize = 1 << 20;
/// How old its answer may be: another one comes with a restart of the kubelet alone.
const PACE: Duration = Duration::from_secs(5);

/// So long what it said holds while it does not answer: a person who is asked to look after a busy kubelet finds nothing.
const HOLDS: Duration = Duration::from_mins(1);

/// The kubelet of this host, and its newest answer.
#[derive(Debug)]
pub struct Kubelet {
    config: Config,
    answer: Option<(Instant, Found<Vec<IpAddr>>)>,
    /// What it said when it answered last.
    said: Option<(Instant, Found<Vec<IpAddr>>)>,
}

impl Kubelet {
    /// Nothing has been asked yet. `config` is how the agent reaches the API server, and who it is: the kubelet asks the API server
    /// whether that may know.
    ///
    /// The kubelet's certificate is not verified: it is often one that it made itself, in nobody's name. Who answers on this port of
    /// the loopback is the kubelet as long as it runs; while it does not, it could be a pod in the host's network, which has the
    /// node's trust already.
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
            said: None,
        }
    }

    /// Asks it anew at the next look.
    pub fn forget(&mut self) {
        self.answer = None;
        self.said = None;
    }

    /// Its `clusterDNS`, five seconds old at most; a minute while it does not answer.
    pub async fn cluster_dns(&mut self) -> Found<Vec<IpAddr>> {
        match &self.answer {
            Some((at, found)) if at.elapsed() < PACE => found.clone(),
            Some(_) | None => {
                let found = match self.ask().await {
                    Ok(page) => {
                        let said = addresses(&page);
                        self.said = Some((Instant::now(), said.clone()));
                        said
                    }
                    Err(what) => match &self.said {
                        Some((at, said)) if at.elapsed() < HOLDS => said.clone(),
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
        // A client for each question: a kubelet that was started anew knows nothing of a connection to the one before.
        let client =
            Client::try_from(self.config.clone()).map_err(|error| format!("{asked}: {}", chain(&error)))?;
        let request = http::Request::get(PATH)
            .body(Body::empty())
            .map_err(|error| format!("{asked}: {error}"))?;
        let talk = async {
            let response = client.send(request).await.map_err(|error| chain(&error))?;
            let status = response.status();
            // Whatever answers there, no more of it than this is kept in memory.
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
                "{asked}: the kubelet does not know the agent: it has to ask the API server who somebody is \
                 (authentication.webhook.enabled: true)"
            )),
            StatusCode::FORBIDDEN => Err(format!(
                "{asked}: the agent's ClusterRole needs get on nodes/configz, and the kubelet Kubernetes 1.33: {}",
                words(&bytes)
            )),
            status if status.is_success() => {
                serde_json::from_slice(&bytes).map_err(|error| format!("{asked}: {error}"))
            }
            status => Err(format!("{asked}: {status}: {}", words(&bytes))),
        }
    }
}

/// What a refusal says: in the API's form, or as it is.
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
    let said = &configuration["clusterDNS"];
    if said.is_null() {
        return Found::Absent;
    }
    let address = |text: &Value| text.as_str()?.parse().ok();
    let parsed: Option<Vec<IpAddr>> = said.as_array().and_then(|all| all.iter().map(address).collect());
    match parsed {
        None => Found::Malformed(format!(
            "GET {PATH}: clusterDNS {said}, needed a list of addresses"
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

    /// A kubelet that answers with this, if somebody has a token.
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
        // A proxy on the way to the API server is none on the way to the kubelet.
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
    async fn what_it_says(#[case] page: Value, #[case] expected: Found<Vec<IpAddr>>) {
        let mut kubelet = kubelet(StatusCode::OK, page.to_string()).await;
        assert_eq!(kubelet.cluster_dns().await, expected);
    }

    /// A kubelet answers in plain words, not in an object of the API.
    #[rstest]
    #[case::no_right(
        StatusCode::FORBIDDEN,
        "Forbidden (user=system:serviceaccount:replumb-system:replumb-agent, verb=get, resource=nodes, subresource(s)=[configz proxy])",
        "needs get on nodes/configz, and the kubelet Kubernetes 1.33: "
    )]
    #[case::nobody(
        StatusCode::UNAUTHORIZED,
        "Unauthorized",
        "authentication.webhook.enabled: true"
    )]
    #[case::no_such_page(StatusCode::NOT_FOUND, "404 page not found", "/configz")]
    #[case::no_json(StatusCode::OK, "ok", "/configz")]
    #[tokio::test]
    async fn what_it_does_not_say(#[case] status: StatusCode, #[case] page: &str, #[case] words: &str) {
        let mut kubelet = kubelet(status, page.to_owned()).await;
        let found = kubelet.cluster_dns().await;
        assert!(
            matches!(&found, Found::Malformed(what) if what.contains(words) && what.starts_with("GET http://127.0.0.1:")),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn more_than_a_kubelet_says_is_not_kept_in_memory() {
        let mut kubelet = kubelet(StatusCode::OK, "x".repeat(MOST + 1)).await;
        let found = kubelet.cluster_dns().await;
        assert!(
            matches!(&found, Found::Malformed(what) if what.contains("length limit exceeded")),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn nobody_listens_and_nobody_answers() {
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
        // Not asked again at once.
        assert_eq!(kubelet.answer.as_ref().map(|(_, answer)| answer), Some(&found));
    }

    #[tokio::test]
    async fn what_a_busy_kubelet_has_said_holds_for_a_while() {
        let page = json!({ "kubeletconfig": { "clusterDNS": ["10.96.0.10"] } });
        let mut kubelet = kubelet(StatusCode::OK, page.to_string()).await;
        let said = kubelet.cluster_dns().await;
        let nobody = asked_at("http://127.0.0.1:1").config;
        kubelet.config = nobody;
        kubelet.answer = None;
        assert_eq!(kubelet.cluster_dns().await, said);
        kubelet.answer = None;
        kubelet.said = Instant::now().checked_sub(HOLDS).map(|at| (at, said));
        assert!(matches!(kubelet.cluster_dns().await, Found::Malformed(_)));
    }

    #[test]
    fn it_is_asked_on_the_loopback_whoever_it_is() {
        let kubelet = Kubelet::new(&Config::new("https://10.96.0.1".parse().unwrap()));
        assert_eq!(kubelet.config.cluster_url.to_string(), "https://127.0.0.1:10250/");
        assert!(kubelet.config.accept_invalid_certs);
    }
}
