//! Access to metrics with `deploy/secure-metrics`: tokens of a real API server, checked with the coordinator's own rights.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_metrics -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test says that it failed by a panic")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::names;
use http::{Request, StatusCode};
use kube::{Client, Config};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use lab::ports::Port;
use runtime::admin::{self, Health};
use runtime::client::Observer;
use runtime::secure_metrics::SecureMetrics;
use tokio::net::TcpListener;

const TEXT: &str = "replumb_leading 1\n";

struct Well;

impl Health for Well {
    fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }
}

struct Unheard;

impl Observer for Unheard {
    fn request(&self, _: &http::Method, _: &str) {}

    fn warning(&self, _: &str) {}
}

/// A program's two ports: health and metrics.
async fn program(config: Config) -> (u16, Port) {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain_port = plain.local_addr().unwrap().port();
    let claimed = Port::claim().unwrap();
    let port = claimed.number();
    let secure = SecureMetrics {
        given: plain.local_addr().ok(),
        node: None,
        port,
        program: names::COORDINATOR,
        config,
        observer: Arc::new(Unheard),
    };
    let text = || Ok(TEXT.to_owned());
    tokio::spawn(admin::serve(
        plain,
        Some(secure),
        text,
        Arc::new(Well),
        axum::Router::new(),
    ));
    (plain_port, claimed)
}

/// The answer to a scrape by a client that accepts any certificate.
async fn scrape(address: &str, token: Option<&str>) -> (StatusCode, String) {
    let mut config = Config::new(address.parse().unwrap());
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let mut request = Request::get("/metrics");
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let answer = client
        .send(request.body(Vec::new().into()).unwrap())
        .await
        .unwrap();
    let status = answer.status();
    let bytes = answer.into_body().collect_bytes().await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// A `ServiceAccount` and its token.
async fn account(name: &str) -> String {
    let lab = ApiLab::shared().unwrap();
    lab.kubectl(&["create", "serviceaccount", name, "-n", "default"])
        .unwrap();
    lab.token("default", name, None).await.unwrap()
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn only_tokens_with_the_right_to_metrics_can_read_them() {
    let lab = ApiLab::shared().unwrap();
    let (prometheus, another) = (account("prometheus").await, account("another").await);
    let own = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    let (plain, port) = program(lab.config_with_token(&own).await.unwrap()).await;
    let (plain, secure) = (
        format!("http://127.0.0.1:{plain}"),
        format!("https://127.0.0.1:{}", port.number()),
    );

    // The health port serves no metrics.
    let (status, text) = scrape(&plain, Some(&prometheus)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        text.contains(&format!("on port {}, with TLS", port.number())),
        "{text}"
    );

    // Metrics are served by a separate thread, which listens a moment later.
    let limit = Duration::from_mins(1);
    until("the port of metrics", limit, Path::new("/"), async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port.number())).await?;
        Ok(Observation::Done(()))
    })
    .await
    .unwrap();

    // Without the overlay no program of replumb may check tokens.
    let (status, text) = scrape(&secure, Some(&prometheus)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    assert!(
        text.starts_with("the API server has not reviewed the token"),
        "{text}"
    );
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/secure-metrics");
    lab.kubectl(&["apply", "--server-side", "-k", folder]).unwrap();
    lab.kubectl(&[
        "create",
        "clusterrolebinding",
        "prometheus-reads-replumb",
        "--clusterrole=replumb-metrics-reader",
        "--serviceaccount=default:prometheus",
    ])
    .unwrap();

    // An authorizer learns of a role a moment later.
    let text = until(
        "Prometheus to read metrics",
        Duration::from_mins(1),
        Path::new("/"),
        async || {
            Ok(match scrape(&secure, Some(&prometheus)).await {
                (StatusCode::OK, text) => Observation::Done(text),
                (status, text) => Observation::NotYet(format!("{status}: {text}")),
            })
        },
    )
    .await
    .unwrap();
    assert_eq!(text, TEXT);
    let (status, text) = scrape(&secure, Some(&another)).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
    assert!(
        text.contains("\"system:serviceaccount:default:another\"") && text.contains("replumb-metrics-reader"),
        "{text}"
    );
    for token in [None, Some("garbage"), Some(&prometheus[1..])] {
        let (status, text) = scrape(&secure, token).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{text}");
    }
}
