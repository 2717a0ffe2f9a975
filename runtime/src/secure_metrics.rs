//! A port of its own for metrics: by TLS, and for users who may read them. Accepts connections.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use listening::certificate;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::error::chain;
use crate::metrics_access::{Access, Verdict};

/// The port, and who may come in.
pub struct SecureMetrics {
    listener: TcpListener,
    port: u16,
    acceptor: TlsAcceptor,
    access: Arc<Access>,
}

impl SecureMetrics {
    /// On a port that is open already, with a certificate that is made now. `program` is the name in it.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub fn new(listener: TcpListener, program: &str, access: Access) -> Result<Self, certificate::Error> {
        let port = listener.local_addr().map_or(0, |address| address.port());
        Ok(Self {
            listener,
            port,
            acceptor: certificate::made_for(program)?,
            access: Arc::new(access),
        })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Serves these routes to users who may read metrics, until the process ends.
    pub async fn serve(self, routes: Router) -> Infallible {
        let Self {
            listener,
            port: _,
            acceptor,
            access,
        } = self;
        listening::http::serve_tls(listener, guarded(routes, access), acceptor).await
    }
}

/// What stands at `/metrics` of the other port then.
pub fn elsewhere(port: u16) -> Router {
    let words =
        format!("Metrics are served by TLS on port {port}, to a token whose user may get /metrics.\n");
    Router::new().route("/metrics", get(async move || (StatusCode::FORBIDDEN, words)))
}

fn guarded(routes: Router, access: Arc<Access>) -> Router {
    routes.layer(middleware::from_fn_with_state(access, admit))
}

async fn admit(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let Some(token) = token(request.headers()) else {
        return unauthenticated("a token is missing: Authorization: Bearer TOKEN\n");
    };
    match access.of_token(token).await {
        Ok(Verdict::Allowed) => next.run(request).await,
        Ok(Verdict::Unauthenticated) => unauthenticated("the API server knows no user of this token\n"),
        Ok(Verdict::Forbidden(user)) => (
            StatusCode::FORBIDDEN,
            format!("user {user:?} cannot get the path \"/metrics\"; ClusterRole replumb-metrics-reader gives that right\n"),
        )
            .into_response(),
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(error, "a client that reads metrics has no answer");
            (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response()
        }
    }
}

fn unauthenticated(words: &'static str) -> Response {
    (
        StatusCode::UNAUTHORIZED,
        [(header::WWW_AUTHENTICATE, "Bearer")],
        words,
    )
        .into_response()
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_stands_after_bearer() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            token(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc ").as_deref(), Some("abc"));
        for other in ["Bearer", "Bearer ", "Basic abc", "abc", ""] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
