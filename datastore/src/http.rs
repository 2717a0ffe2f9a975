//! Sends HTTP requests to the endpoints of a store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;

use crate::access::{Access, Pem};
use crate::error::StoreError;

/// Time limit of one request, from the first byte to the last.
const LIMIT: Duration = Duration::from_secs(10);
/// Time limit of a request with a long answer: the v2 API returns all keys of a store in one answer.
const LONG: Duration = Duration::from_mins(1);
/// Time limit for opening a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Time for which a store may be unreachable during the work: enough for etcd to restart and to elect a leader.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// A longer answer does not come from etcd: its databases are smaller.
const LONGEST: usize = 1 << 30;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Vec<u8>,
    /// The endpoint that answered.
    pub endpoint: String,
}

impl Reply {
    /// Status and beginning of the body, for messages.
    pub fn text(&self) -> String {
        const SHOWN: usize = 300;
        let text = String::from_utf8_lossy(&self.body);
        let shown: String = text.trim().chars().take(SHOWN).collect();
        format!("{} {shown}", self.status.as_u16())
    }
}

/// The body of a request.
#[derive(Clone, Debug)]
pub struct Body {
    /// The `Content-Type`.
    pub content_type: &'static str,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Whether the request may be sent to the next endpoint when the connection broke, or when etcd does not know the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Always: the request changes nothing, or a second request has the same effect.
    Always,
    /// Always, with a long answer.
    AlwaysLong,
    /// Only before the request is sent: afterwards its effect may exist already, and the caller reads first.
    BeforeSend,
}

/// The endpoints of one store.
#[derive(Debug)]
pub struct Http {
    store: &'static str,
    endpoints: Vec<String>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    authorization: RwLock<Option<HeaderValue>>,
    patience: Duration,
    /// The endpoint that answered last, which is tried first.
    last: AtomicUsize,
}

impl Http {
    /// Reads the certificates. Sends no request yet.
    ///
    /// # Errors
    ///
    /// A certificate or key cannot be read.
    pub fn new(access: &Access) -> Result<Self, StoreError> {
        let store = access.side.store();
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(access)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self {
            store,
            endpoints: access.endpoints.clone(),
            client: Client::builder(TokioExecutor::new()).build(connector),
            authorization: RwLock::new(None),
            patience: Duration::ZERO,
            last: AtomicUsize::new(0),
        })
    }

    /// From now on requests wait for a store that is unreachable for a moment. Called after the first answer.
    pub fn wait_for_recovery(&mut self) {
        self.patience = PATIENCE;
    }

    /// From now on requests do not wait: for a caller that reads regularly.
    pub fn fail_at_once(&mut self) {
        self.patience = Duration::ZERO;
    }

    /// Name of the store in messages.
    pub fn store(&self) -> &'static str {
        self.store
    }

    /// Sets the `Authorization` header of all further requests.
    pub fn authorize(&self, value: HeaderValue) {
        let mut authorization = self.authorization.write().unwrap_or_else(PoisonError::into_inner);
        *authorization = Some(value);
    }

    /// Sends the request to one endpoint after the other until one answers.
    ///
    /// # Errors
    ///
    /// No endpoint answers within the limit, or a request that must not be repeated was sent and not answered. An answer with any
    /// HTTP status is no error.
    pub async fn send(
        &self,
        attempt: &str,
        method: Method,
        path: &str,
        body: Option<&Body>,
        repeat: Repeat,
    ) -> Result<Reply, StoreError> {
        let deadline = Instant::now() + self.patience;
        loop {
            let mut tried = Vec::new();
            let mut was_sent = false;
            let first = self.last.load(Ordering::Relaxed);
            for place in (0..self.endpoints.len()).map(|place| (first + place) % self.endpoints.len()) {
                let endpoint = &self.endpoints[place];
                let limit = if repeat == Repeat::AlwaysLong { LONG } else { LIMIT };
                match self.ask(endpoint, &method, path, body, limit).await {
                    Ok(reply) => {
                        self.last.store(place, Ordering::Relaxed);
                        return Ok(reply);
                    }
                    Err(failure) => {
                        tried.push(format!("{endpoint}: {}", failure.why));
                        was_sent = failure.was_sent;
                        if was_sent && repeat == Repeat::BeforeSend {
                            break;
                        }
                    }
                }
            }
            let gives_up = was_sent && repeat == Repeat::BeforeSend;
            if gives_up || Instant::now() >= deadline {
                return Err(StoreError::Unreachable {
                    store: self.store,
                    attempt: attempt.to_owned(),
                    attempts: tried,
                });
            }
            // A back-off within the deadline above.
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(
        &self,
        endpoint: &str,
        method: &Method,
        path: &str,
        body: Option<&Body>,
        limit: Duration,
    ) -> Result<Reply, Failure> {
        let mut request = Request::builder().method(method).uri(format!("{endpoint}{path}"));
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, body.content_type);
        }
        let authorization = self
            .authorization
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let bytes = body.map(|body| body.bytes.clone()).unwrap_or_default();
        let request = request
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|error| Failure::before(error.to_string()))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| Failure {
                was_sent: !error.is_connect(),
                why: chain(&error),
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LONGEST).collect().await;
            let body = body.map_err(|error| Failure::after(chain(error.as_ref())))?;
            let reply = Reply {
                status,
                body: body.to_bytes().to_vec(),
                endpoint: endpoint.to_owned(),
            };
            // The endpoint does not know, or has no leader: another endpoint, or this one later, may answer.
            if matches!(status.as_u16(), 500 | 503 | 504) {
                return Err(Failure::after(reply.text()));
            }
            Ok(reply)
        };
        tokio::time::timeout(limit, exchange)
            .await
            .unwrap_or_else(|_| Err(Failure::after(format!("no answer within {} s", limit.as_secs()))))
    }
}

/// One endpoint did not answer.
struct Failure {
    /// Whether the endpoint may have read the request.
    was_sent: bool,
    why: String,
}

impl Failure {
    fn before(why: String) -> Self {
        Self { was_sent: false, why }
    }

    fn after(why: String) -> Self {
        Self { was_sent: true, why }
    }
}

/// An error with its causes, without a cause that the text before it contains already.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

fn tls(access: &Access) -> Result<ClientConfig, StoreError> {
    let store = access.side.store();
    let unreadable = |what: &'static str, pem: &Pem, why: String| StoreError::File {
        store,
        what,
        place: pem.place(),
        why,
    };
    let certificates = |what: &'static str, pem: &Pem| {
        let read = match pem {
            Pem::File(path) => {
                CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>)
            }
            Pem::Memory { bytes, .. } => CertificateDer::pem_slice_iter(bytes).collect(),
        };
        let all = read.map_err(|error| unreadable(what, pem, error.to_string()))?;
        if all.is_empty() {
            return Err(unreadable(what, pem, "no certificate found".to_owned()));
        }
        Ok(all)
    };
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &access.authority {
        const WHAT: &str = "the CA certificate of etcd";
        for certificate in certificates(WHAT, pem)? {
            roots
                .add(certificate)
                .map_err(|error| unreadable(WHAT, pem, error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Access {
            store,
            what: error.to_string(),
        })?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &access.pair else {
        return Ok(builder.with_no_client_auth());
    };
    let client_certificates = certificates("the client certificate for etcd", certificate)?;
    let what = "the key of the client certificate for etcd";
    let read = match key {
        Pem::File(path) => PrivateKeyDer::from_pem_file(path),
        Pem::Memory { bytes, .. } => PrivateKeyDer::from_pem_slice(bytes),
    };
    let secret = read.map_err(|error| unreadable(what, key, error.to_string()))?;
    builder
        .with_client_auth_cert(client_certificates, secret)
        .map_err(|error| unreadable(what, key, error.to_string()))
}
