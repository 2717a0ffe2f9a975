//! The client of the API server for all programs. The API server refuses a write with an unknown field instead of dropping the
//! field; warnings of the API server are reported; requests are counted, and their rate is limited.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use http::header::WARNING;
use http::{HeaderMap, Method, Request, Response, Uri};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::limit::RateLimitLayer;
use tower::{Layer, Service};

/// The parameter that makes the API server refuse unknown and duplicate fields of a write. Without it, the API server drops the
/// fields and reports success.
const STRICT: &str = "fieldValidation=Strict";

/// An observer of the requests of a client.
pub trait Observer: Send + Sync {
    /// Called for each request. `resource` is the plural name with the subresource (`pods/eviction`), or the path of a request
    /// that is for no resource.
    fn request(&self, method: &Method, resource: &str);

    /// Called for each warning that the API server sends with an answer.
    fn warning(&self, text: &str);
}

/// The limit of requests of a client in a period. A watch counts when it starts. A request above the limit waits, and later
/// requests wait, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The number of requests.
    pub requests: u64,
    /// The period, which starts with its first request.
    pub period: Duration,
}

/// A client with strict validation of writes, an observer of requests and warnings, and a rate limit.
///
/// # Errors
/// If the configuration names certificates or a proxy that cannot be used.
pub fn client(config: Config, observer: Arc<dyn Observer>, limit: Limit) -> Result<Client, kube::Error> {
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder
        .with_layer(&RateLimitLayer::new(limit.requests, limit.period))
        .with_layer(&StrictLayer::new(observer))
        .build())
}

/// Makes every write of a client strict, and reports requests and warnings to an [`Observer`].
#[derive(Clone)]
pub struct StrictLayer {
    observer: Arc<dyn Observer>,
}

impl StrictLayer {
    /// A layer that reports to `observer`.
    pub fn new(observer: Arc<dyn Observer>) -> Self {
        Self { observer }
    }
}

impl<S> Layer<S> for StrictLayer {
    type Service = Strict<S>;

    fn layer(&self, inner: S) -> Strict<S> {
        Strict {
            inner,
            observer: Arc::clone(&self.observer),
        }
    }
}

/// The service of a [`StrictLayer`].
#[derive(Clone)]
pub struct Strict<S> {
    inner: S,
    observer: Arc<dyn Observer>,
}

impl<S, B> Service<Request<Body>> for Strict<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if is_write(request.method()) {
            let uri = std::mem::take(request.uri_mut());
            *request.uri_mut() = strict(uri);
        }
        self.observer
            .request(request.method(), &resource(request.uri().path()));
        let observer = Arc::clone(&self.observer);
        self.inner
            .call(request)
            .inspect_ok(move |response| {
                for warning in warnings(response.headers()) {
                    observer.warning(&warning);
                }
            })
            .boxed()
    }
}

/// Whether the API server validates fields of such a request. A deletion has no fields.
fn is_write(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(method)
}

fn strict(uri: Uri) -> Uri {
    let query = uri.query().unwrap_or_default();
    if query.contains("fieldValidation=") {
        return uri;
    }
    let separator = if query.is_empty() { "" } else { "&" };
    let with_parameter = format!("{}?{query}{separator}{STRICT}", uri.path());
    let mut parts = uri.clone().into_parts();
    let Ok(path_and_query) = with_parameter.parse() else {
        return uri;
    };
    parts.path_and_query = Some(path_and_query);
    Uri::from_parts(parts).unwrap_or(uri)
}

/// `nodes`, `pods/eviction`, or the path itself if it is not of a resource.
fn resource(path: &str) -> String {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (["api", _, in_group @ ..] | ["apis", _, _, in_group @ ..]) = parts.as_slice() else {
        return path.to_owned();
    };
    let in_namespace = match in_group {
        // Subresources of a Namespace are at the place where other paths have a plural.
        ["namespaces", _, "status" | "finalize"] => in_group,
        ["namespaces", _, plural @ ..] if !plural.is_empty() => plural,
        _ => in_group,
    };
    match in_namespace {
        [plural] | [plural, _] => (*plural).to_owned(),
        [plural, _, subresource @ ..] => format!("{plural}/{}", subresource.join("/")),
        [] => path.to_owned(),
    }
}

/// Texts of the warnings in the headers of an answer: `299 - "unknown field \"spec.x\""`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(WARNING).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .map(|value| {
            let quoted = value
                .split_once('"')
                .and_then(|(_, rest)| rest.rsplit_once('"'))
                .map_or(value, |(text, _)| text);
            quoted.replace("\\\"", "\"")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};

    use super::*;

    /// The observed requests and warnings.
    #[derive(Default)]
    struct Recorded {
        requests: Mutex<Vec<String>>,
        warnings: Mutex<Vec<String>>,
    }

    impl Observer for Recorded {
        fn request(&self, method: &Method, resource: &str) {
            self.requests.lock().unwrap().push(format!("{method} {resource}"));
        }

        fn warning(&self, text: &str) {
            self.warnings.lock().unwrap().push(text.to_owned());
        }
    }

    /// The queries of the requests, and the observed requests and warnings.
    async fn made_by(request: impl AsyncFnOnce(Api<Node>)) -> (Vec<String>, Arc<Recorded>) {
        let queries: Arc<Mutex<Vec<String>>> = Arc::default();
        let recorded: Arc<Recorded> = Arc::default();
        let seen = Arc::clone(&queries);
        let server = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            seen.lock().unwrap().push(query);
            async move {
                Ok::<_, Infallible>(
                    Response::builder()
                        .header(WARNING, r#"299 - "unknown field \"spec.colour\"""#)
                        .header(WARNING, r#"299 - "v1 Endpoints is deprecated""#)
                        .body(Body::from(br#"{"metadata":{"name":"a"},"items":[]}"#.to_vec()))
                        .unwrap(),
                )
            }
        });
        let layer = StrictLayer::new(recorded.clone());
        let client = ClientBuilder::new(server, "default").with_layer(&layer).build();
        request(Api::all(client)).await;
        let queries = queries.lock().unwrap().clone();
        (queries, recorded)
    }

    #[tokio::test]
    async fn every_kind_of_write_is_strict() {
        let (queries, _) = made_by(async |nodes| {
            let node = Node::default();
            let manager = PostParams {
                field_manager: Some("replumb".to_owned()),
                ..PostParams::default()
            };
            nodes.create(&manager, &node).await.unwrap();
            nodes.replace("a", &PostParams::default(), &node).await.unwrap();
            let change = Patch::Merge(serde_json::json!({}));
            nodes.patch("a", &PatchParams::default(), &change).await.unwrap();
            nodes
                .patch_status("a", &PatchParams::default(), &change)
                .await
                .unwrap();
            let strict = PatchParams {
                field_validation: Some(kube::api::ValidationDirective::Warn),
                ..PatchParams::default()
            };
            nodes.patch("a", &strict, &change).await.unwrap();
        })
        .await;
        let lines: Vec<&str> = queries.iter().map(|query| query.trim_matches('&')).collect();
        assert_eq!(
            lines,
            [
                "fieldManager=replumb&fieldValidation=Strict",
                "fieldValidation=Strict",
                "fieldValidation=Strict",
                "fieldValidation=Strict",
                "fieldValidation=Warn",
            ]
        );
    }

    #[tokio::test]
    async fn reads_and_deletions_are_sent_unchanged() {
        let (queries, _) = made_by(async |nodes| {
            nodes.get("a").await.unwrap();
            nodes.list(&ListParams::default()).await.unwrap();
            nodes.delete("a", &DeleteParams::default()).await.unwrap();
        })
        .await;
        assert!(
            queries.iter().all(|query| !query.contains("fieldValidation")),
            "{queries:?}"
        );
    }

    #[tokio::test]
    async fn each_warning_of_an_answer_is_reported() {
        let (_, recorded) = made_by(async |nodes| {
            nodes.get("a").await.unwrap();
        })
        .await;
        assert_eq!(
            *recorded.warnings.lock().unwrap(),
            ["unknown field \"spec.colour\"", "v1 Endpoints is deprecated"]
        );
    }

    #[tokio::test]
    async fn every_request_is_reported_with_its_resource() {
        let (_, recorded) = made_by(async |nodes| {
            nodes.get("a").await.unwrap();
            let change = Patch::Merge(serde_json::json!({}));
            nodes
                .patch_status("a", &PatchParams::default(), &change)
                .await
                .unwrap();
        })
        .await;
        assert_eq!(
            *recorded.requests.lock().unwrap(),
            ["GET nodes", "PATCH nodes/status"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn requests_above_the_limit_wait_and_none_is_lost() {
        let server = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::from(
                br#"{"metadata":{"name":"a"}}"#.to_vec(),
            )))
        });
        let limit = RateLimitLayer::new(20, Duration::from_secs(4));
        let client = ClientBuilder::new(server, "default")
            .with_layer(&limit)
            .with_layer(&StrictLayer::new(Arc::<Recorded>::default()))
            .build();
        let nodes: Api<Node> = Api::all(client);
        let began = tokio::time::Instant::now();
        let all = futures::future::join_all((0..50).map(|_| nodes.get("a"))).await;
        assert!(all.iter().all(Result::is_ok));
        let took = began.elapsed();
        // Two periods are full, and the third starts.
        assert!(
            (Duration::from_secs(8)..Duration::from_secs(9)).contains(&took),
            "{took:?}"
        );
    }

    #[test]
    fn a_path_is_counted_by_its_resource() {
        for (path, expected) in [
            ("/api/v1/nodes", "nodes"),
            ("/api/v1/nodes/a", "nodes"),
            ("/api/v1/nodes/a/status", "nodes/status"),
            ("/api/v1/nodes/a/proxy/configz", "nodes/proxy/configz"),
            ("/api/v1/namespaces", "namespaces"),
            ("/api/v1/namespaces/shop", "namespaces"),
            ("/api/v1/namespaces/shop/status", "namespaces/status"),
            ("/api/v1/namespaces/shop/pods", "pods"),
            ("/api/v1/namespaces/shop/pods/web/eviction", "pods/eviction"),
            (
                "/apis/apps/v1/namespaces/shop/deployments/web/scale",
                "deployments/scale",
            ),
            (
                "/apis/replumb.dev/v1alpha1/nodemigrations/a/status",
                "nodemigrations/status",
            ),
            ("/flagz", "/flagz"),
        ] {
            assert_eq!(resource(path), expected, "{path}");
        }
    }
}
