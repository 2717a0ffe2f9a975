//! Requests to the server.

use std::future::Future;

use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use serde_json::Value;

use crate::answer::Answer;

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// The verb.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The query; empty for none.
    pub query: String,
    /// The body; null for none. A list is a JSON patch.
    pub body: Value,
}

/// A client of a server that answers by this function; an error is that of a connection.
pub fn client<F>(
    answer: impl Fn(Call) -> F + Clone + Send + 'static,
) -> ClientBuilder<
    impl tower::Service<
        Request<Body>,
        Response = Response<Body>,
        Error = std::io::Error,
        Future = impl Future<Output = std::io::Result<Response<Body>>> + Send,
    > + Clone
    + Send
    + 'static,
>
where
    F: Future<Output = std::io::Result<Answer>> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let invalid = |error: &dyn std::fmt::Display| {
                std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string())
            };
            let bytes = body.collect_bytes().await.map_err(|error| invalid(&error))?;
            let body = if bytes.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(&bytes)?
            };
            let call = Call {
                method: parts.method,
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                body,
            };
            let (status, value) = answer(call).await?;
            Response::builder()
                .status(status)
                .body(Body::from(serde_json::to_vec(&value)?))
                .map_err(|error| invalid(&error))
        }
    });
    ClientBuilder::new(service, "default")
}
