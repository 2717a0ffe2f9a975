//! The log of a program: its flags, its start, and the lines that are never written.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, filter};

/// Directives that omit lines whatever the filter is. The client of the API server logs the whole of an answer that it cannot
/// decode, at
/// `warn`, and the answer may be a Secret; the returned error has the cause, too. The client's lines about certificates have no
/// answer in them and are written.
const OMITTED: [&str; 2] = ["kube_client::client=error", "kube_client::client::tls=warn"];

/// Flags of the log.
#[derive(Clone, Debug, Args)]
pub struct Log {
    /// Format of log lines.
    #[arg(long = "log-format", env = "REPLUMB_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Filter of log lines, in the syntax of `RUST_LOG`. Answers of the API server that cannot be decoded are never logged.
    #[arg(
        long = "log-filter",
        env = "REPLUMB_LOG_FILTER",
        default_value = "info,kube=warn"
    )]
    pub filter: Filter,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// A valid filter of log lines, in the syntax of `RUST_LOG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(String);

impl FromStr for Filter {
    type Err = filter::ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        EnvFilter::builder().parse(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl Filter {
    fn env_filter(&self) -> EnvFilter {
        let omitted = OMITTED.iter().filter_map(|directive| directive.parse().ok());
        omitted.fold(EnvFilter::new(&self.0), EnvFilter::add_directive)
    }
}

impl Log {
    /// Plain text at level `info`: the log of a program without flags for its log.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            format: Format::Text,
            filter: Filter("info".to_owned()),
        }
    }

    /// Writes log lines of the whole process to standard output from now on.
    pub fn start(&self) {
        self.to(io::stdout, io::stdout().is_terminal()).init();
    }

    fn to<W>(&self, writer: W, colours: bool) -> Box<dyn tracing::Subscriber + Send + Sync>
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        let filter = self.filter.env_filter();
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(writer);
        match self.format {
            Format::Text => Box::new(lines.with_ansi(colours).finish()),
            Format::Json => Box::new(lines.json().finish()),
        }
    }
}

#[cfg(test)]
pub(crate) mod written {
    //! Captures a log, for tests.

    use std::io;
    use std::sync::{Arc, Mutex};

    /// The written bytes. Clones share them.
    #[derive(Clone, Debug, Default)]
    pub struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Written {
        pub fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use k8s_openapi::api::core::v1::Secret;
    use kube::{Api, Client};
    use tower::service_fn;

    use super::written::Written;
    use super::*;

    fn started(format: Format, filter: &str) -> (Written, tracing::subscriber::DefaultGuard) {
        let written = Written::default();
        let writer = written.clone();
        let log = Log {
            format,
            filter: filter.parse().unwrap(),
        };
        let guard = log.to(move || writer.clone(), false).set_default();
        (written, guard)
    }

    /// A client whose API server answers with a malformed Secret.
    fn client_of_malformed_secret() -> Client {
        let answer = service_fn(|_: Request<kube::client::Body>| async {
            let secret = r#"{"kind":"Secret","metadata":{"name":"s"},"data":"c2VjcmV0"}"#;
            Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(secret))))
        });
        Client::new(answer, "default")
    }

    #[tokio::test]
    async fn a_malformed_secret_is_never_logged() {
        for filter in [
            "info,kube=warn",
            "trace",
            "kube_client=trace",
            "kube_client::client=trace",
        ] {
            for format in [Format::Text, Format::Json] {
                let (written, _started) = started(format, filter);
                tracing::error!("the log is written");
                let secrets: Api<Secret> = Api::namespaced(client_of_malformed_secret(), "default");
                let error = secrets.get("s").await.unwrap_err();
                assert!(matches!(error, kube::Error::SerdeError(_)), "{error}");
                let text = written.text();
                assert!(
                    filter.starts_with("kube_client") || text.contains("the log is written"),
                    "{text}"
                );
                assert!(!text.contains("\"data\"") && !text.contains("c2VjcmV0"), "{text}");
            }
        }
    }

    #[test]
    fn errors_about_certificates_are_logged() {
        let (written, _started) = started(Format::Text, "info,kube=warn");
        tracing::warn!(target: "kube_client::client::tls", "failed to reload CA bundle");
        tracing::error!(target: "kube_client::client::builder", "failed with status 500");
        let text = written.text();
        assert!(
            text.contains("CA bundle") && text.contains("status 500"),
            "{text}"
        );
    }

    #[test]
    fn an_invalid_filter_is_refused() {
        for wrong in ["info,kube=loud", "agent=debug=trace", "[span{"] {
            assert!(wrong.parse::<Filter>().is_err(), "{wrong}");
        }
        for right in ["info", "info,kube=warn", "", "agent::turn=debug", "off"] {
            assert!(right.parse::<Filter>().is_ok(), "{right}");
        }
    }
}
