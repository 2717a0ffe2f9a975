//! One HTTP request to one of the endpoints of a store.

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

/// One request, from the first byte to the last.
const LIMIT: Duration = Duration::from_secs(10);
/// One whose answer may be long: all keys of a store come in one of its v2 API.
const LONG: Duration = Duration::from_mins(1);
/// A connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a store may be away in the middle of the work: as long as an etcd takes to be started again and to choose a leader.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts meanwhile.
const PAUSE: Duration = Duration::from_millis(500);
/// An answer that is longer is none of etcd's: its databases are smaller.
const LONGEST: usize = 1 << 30;

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Vec<u8>,
    /// Who answered.
    pub endpoint: String,
}

impl Reply {
    /// The body as it is put into messages.
    pub fn text(&self) -> String {
        const SHOWN: usize = 300;
        let text = String::from_utf8_lossy(&self.body);
        let shown: String = text.trim().chars().take(SHOWN).collect();
        format!("{} {shown}", self.status.as_u16())
    }
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Body {
    /// Its `Content-Type`.
    pub content_type: &'static str,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Whether the request may be sent to the next endpoint when the connection broke in the middle, or etcd could not say what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It changes nothing, or the same when it is done twice.
    Always,
    /// Likewise, and the answer may be long.
    AlwaysLong,
    /// It may have been done already: whoever asked looks first.
    BeforeItIsSent,
}

/// The endpoints of one store.
#[derive(Debug)]
pub struct Http {
    store: &'static str,
    endpoints: Vec<String>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    authorization: RwLock<Option<HeaderValue>>,
    patience: Duration,
    /// The endpoint that answered last: one that does not answer is not tried first each time.
    last: AtomicUsize,
}

impl Http {
    /// Reads the certificates. Asks nobody yet.
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

    /// Once it has answered: from now on it is waited for when it is away for a moment.
    pub fn be_patient(&mut self) {
        self.patience = PATIENCE;
    }

    /// Whoever only looks, and looks again, does not wait.
    pub fn be_impatient(&mut self) {
        self.patience = Duration::ZERO;
    }

    /// Which store, in messages.
    pub fn store(&self) -> &'static str {
        self.store
    }

    /// What every request from now on says of who asks.
    pub fn authorize(&self, value: HeaderValue) {
        let mut authorization = self.authorization.write().unwrap_or_else(PoisonError::into_inner);
        *authorization = Some(value);
    }

    /// Asks one endpoint after the other until one answers.
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
                        if was_sent && repeat == Repeat::BeforeItIsSent {
                            break;
                        }
                    }
                }
            }
            let gives_up = was_sent && repeat == Repeat::BeforeItIsSent;
            if gives_up || Instant::now() >= deadline {
                return Err(StoreError::Unreachable {
                    store: self.store,
                    attempt: attempt.to_owned(),
                    tried,
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
            // It could not find out, or has nobody who leads it: another one, or this one later, may.
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
    /// Whether it may have read the request.
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

/// An error with its causes; a cause that the text before it says already is left away.
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
            Pem::Here { bytes, .. } => CertificateDer::pem_slice_iter(bytes).collect(),
        };
        let all = read.map_err(|error| unreadable(what, pem, error.to_string()))?;
        if all.is_empty() {
            return Err(unreadable(what, pem, "no certificate is in it".to_owned()));
        }
        Ok(all)
    };
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &access.authority {
        const WHAT: &str = "the certificate authority of etcd";
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
    let shown = certificates("the certificate to show to etcd", certificate)?;
    let what = "the key of the certificate to show to etcd";
    let read = match key {
        Pem::File(path) => PrivateKeyDer::from_pem_file(path),
        Pem::Here { bytes, .. } => PrivateKeyDer::from_pem_slice(bytes),
    };
    let secret = read.map_err(|error| unreadable(what, key, error.to_string()))?;
    builder
        .with_client_auth_cert(shown, secret)
        .map_err(|error| unreadable(what, key, error.to_string()))
}
