//! Requests to the kernel: their timeout and their errors.

use std::io;
use std::num::NonZeroI32;
use std::time::Duration;

use api::FailureCategory;
use rtnetlink::packet_core::ErrorMessage;
use thiserror::Error;

/// The kernel's network state could not be read or changed.
#[derive(Debug, Error)]
pub enum NetlinkError {
    /// No netlink socket could be opened.
    #[error("could not open a netlink socket")]
    Connect(#[source] io::Error),
    /// The kernel refused a request, or its answer was invalid.
    #[error("could not {attempt}")]
    Request {
        /// The operation and its object.
        attempt: String,
        /// The kernel's error.
        #[source]
        source: rtnetlink::Error,
    },
}

impl NetlinkError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Connect(_) => FailureCategory::NetlinkSocket,
            Self::Request { .. } => FailureCategory::NetlinkRequest,
        }
    }
}

/// Timeout of one request to the kernel.
const LIMIT: Duration = Duration::from_secs(30);

/// The kernel's answer to a request. With a full socket buffer the answer is lost and would never arrive: the request then ends
/// with ETIMEDOUT, and the agent repeats it.
pub(super) async fn answer<T>(
    request: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> Result<T, rtnetlink::Error> {
    tokio::time::timeout(LIMIT, request).await.unwrap_or_else(|_| {
        let mut late = ErrorMessage::default();
        late.code = NonZeroI32::new(-(nix::errno::Errno::ETIMEDOUT as i32));
        Err(rtnetlink::Error::NetlinkError(late))
    })
}

pub(super) fn reading(what: &str, source: rtnetlink::Error) -> NetlinkError {
    NetlinkError::Request {
        attempt: format!("read the {what} of the host"),
        source,
    }
}

pub(super) fn request(attempt: String, source: rtnetlink::Error) -> NetlinkError {
    NetlinkError::Request { attempt, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_ends_the_request_with_a_timeout() {
        for what in ["read the links of the host", "add the route to 10.244.1.0/24"] {
            let error = answer::<()>(std::future::pending()).await.unwrap_err();
            let error = request(what.to_owned(), error);
            assert_eq!(error.category(), FailureCategory::NetlinkRequest);
            let text = runtime::error::chain(&error);
            assert!(
                text.starts_with(&format!("could not {what}: ")) && text.contains("timed out"),
                "{text}"
            );
        }
    }
}
