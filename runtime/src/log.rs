//! The log of a program: its flags, its start, and what it never has in it.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, filter};

/// Lines that no filter lets through. The client of the API server logs an answer that it cannot read in full, at `warn`, and the answer may
/// be a Secret; the same fault is in the error that the client gives back. Its lines about certificates have no answer in them.
const LEFT_OUT: [&str; 2] = ["kube_client::client=error", "kube_client::client::tls=warn"];

/// Flags of the log.
#[derive(Clone, Debug, Args)]
pub struct Log {
    /// How log lines are written.
    #[arg(long = "log-format", env = "REPLUMB_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Which log lines are written, in the syntax of `RUST_LOG`. Answers of the API server that cannot be read are never written.
    #[arg(
        long = "log-filter",
        env = "REPLUMB_LOG_FILTER",
        default_value = "info,kube=warn"
    )]
    pub filter: Filter,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Which log lines are written: a text in the syntax of `RUST_LOG`, every part of which was understood.
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
    fn of_subscriber(&self) -> EnvFilter {
        let left_out = LEFT_OUT.iter().filter_map(|directive| directive.parse().ok());
        left_out.fold(EnvFilter::new(&self.0), EnvFilter::add_directive)
    }
}

impl Log {
    /// Lines for people, about what happens: the log of a program that has no flags for it.
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
        let filter = self.filter.of_subscriber();
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
    //! What a log has, for tests.

    use std::io;
    use std::sync::{Arc, Mutex};

    /// What was written. Cloning shares it.
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

    /// An API server that answers with a Secret which no client can read.
    fn without_understanding() -> Client {
        let answer = service_fn(|_: Request<kube::client::Body>| async {
            let secret = r#"{"kind":"Secret","metadata":{"name":"s"},"data":"c2VjcmV0"}"#;
            Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(secret))))
        });
        Client::new(answer, "default")
    }

    #[tokio::test]
    async fn no_secret_is_logged_that_cannot_be_read() {
        for filter in [
            "info,kube=warn",
            "trace",
            "kube_client=trace",
            "kube_client::client=trace",
        ] {
            for format in [Format::Text, Format::Json] {
                let (written, _started) = started(format, filter);
                tracing::error!("the log is kept");
                let secrets: Api<Secret> = Api::namespaced(without_understanding(), "default");
                let error = secrets.get("s").await.unwrap_err();
                assert!(matches!(error, kube::Error::SerdeError(_)), "{error}");
                let text = written.text();
                assert!(
                    filter.starts_with("kube_client") || text.contains("the log is kept"),
                    "{text}"
                );
                assert!(!text.contains("\"data\"") && !text.contains("c2VjcmV0"), "{text}");
            }
        }
    }

    #[test]
    fn the_client_still_says_what_is_wrong_with_certificates() {
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
    fn a_filter_that_is_not_understood_is_refused() {
        for wrong in ["info,kube=loud", "agent=debug=trace", "[span{"] {
            assert!(wrong.parse::<Filter>().is_err(), "{wrong}");
        }
        for right in ["info", "info,kube=warn", "", "agent::turn=debug", "off"] {
            assert!(right.parse::<Filter>().is_ok(), "{right}");
        }
    }
}
