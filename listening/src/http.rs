//! HTTP for metrics and health: one request per connection, within a few seconds. Accepts connections.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::slots::{ConnectionSlots, Limits};

/// The kubelet and each scraper need one connection.
const LIMITS: Limits = Limits {
    all: 64,
    per_address: 8,
    own: 32,
};
/// Timeout of the head of a request.
const HEADERS: Duration = Duration::from_secs(5);
/// Timeout of a connection, from its first byte to the last byte of the response.
const LIFE: Duration = Duration::from_secs(15);
/// The largest head of a request, and the largest read of its body, in bytes.
const BUFFER: usize = 16 << 10;

/// Serves until the process ends. A connection above the limits closes the oldest connection of the client that has the most.
/// Each request has the address of its client as `ConnectInfo<SocketAddr>`.
pub async fn serve(listener: TcpListener, router: Router) -> Infallible {
    serve_by(listener, router, answer).await
}

/// Serves with TLS, within the same limits.
pub async fn serve_tls(listener: TcpListener, router: Router, acceptor: TlsAcceptor) -> Infallible {
    serve_by(listener, router, move |stream, router| {
        let accepted = acceptor.accept(stream);
        async move { answer(accepted.await?, router).await }
    })
    .await
}

async fn serve_by<Answered>(
    listener: TcpListener,
    router: Router,
    answer: impl Fn(TcpStream, Router) -> Answered,
) -> Infallible
where
    Answered: Future<Output = io::Result<()>> + Send + 'static,
{
    let slots = ConnectionSlots::new(LIMITS);
    loop {
        let (stream, peer, slot) = crate::accept(&listener, &slots).await;
        let router = router.clone().layer(Extension(ConnectInfo(peer)));
        let answered = answer(stream, router);
        tokio::spawn(async move {
            let served = tokio::time::timeout(LIFE, answered);
            match slot.hold(served).await {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => tracing::debug!(%peer, %error, "connection failed"),
                Some(Err(_)) => tracing::debug!(%peer, "connection closed after its timeout"),
                None => tracing::debug!(%peer, "connection closed for a newer connection"),
            }
        });
    }
}

async fn answer<S>(stream: S, router: Router) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let from = async |ConnectInfo(peer): ConnectInfo<SocketAddr>| format!("{peer}\n");
        let router = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/from", get(from));
        tokio::spawn(serve(listener, router));
        address
    }

    /// The bytes that arrive until the other end closes.
    async fn received(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut bytes = Vec::new();
        // A reset also closes the connection.
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes));
        let _ = read.await.expect("the other end closes");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Longer than any pause of the machine. Times are asserted with a paused clock, or by the order of events.
    const PATIENCE: Duration = Duration::from_mins(1);

    /// The client end of a served connection, with a clock that advances when all tasks are idle.
    fn connected() -> DuplexStream {
        let (near, far) = tokio::io::duplex(BUFFER);
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        tokio::spawn(answer(far, router));
        near
    }

    #[tokio::test]
    async fn a_request_is_answered_and_the_connection_closed() {
        let mut stream = TcpStream::connect(start().await).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let answer = received(&mut stream).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"),
            "{answer}"
        );
        assert!(answer.contains("connection: close"), "{answer}");
    }

    #[tokio::test]
    async fn a_request_has_the_address_of_its_client() {
        let address = start().await;
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(TcpStream::connect(address).await.unwrap());
        }
        for mut stream in streams {
            let own = stream.local_addr().unwrap();
            stream.write_all(b"GET /from HTTP/1.0\r\n\r\n").await.unwrap();
            let answer = received(&mut stream).await;
            assert!(answer.ends_with(&format!("\r\n{own}\n")), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_and_the_close_are_immediate() {
        let mut stream = connected();
        let began = Instant::now();
        let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request).await.unwrap();
        assert!(received(&mut stream).await.ends_with("ok\n"));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_request_is_closed_after_a_few_seconds() {
        for words in ["", "GET /healthz HTTP/1.1\r\nX: "] {
            let mut stream = connected();
            stream.write_all(words.as_bytes()).await.unwrap();
            let began = Instant::now();
            received(&mut stream).await;
            let took = began.elapsed();
            assert!(
                took >= HEADERS && took < HEADERS + Duration::from_secs(1),
                "{took:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_incomplete_request_over_tcp_is_closed_after_a_few_seconds() {
        let address = start().await;
        let began = Instant::now();
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET /healthz HTTP/1.1\r\nX: ").await.unwrap();
        for stream in [&mut silent, &mut half] {
            received(stream).await;
        }
        assert!(began.elapsed() >= HEADERS, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_head_is_refused_with_bounded_memory() {
        let mut stream = connected();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").await.unwrap();
        let began = Instant::now();
        // The head is refused once it is too large: further bytes are not accepted.
        let mut taken = 0;
        while stream.write_all(&[b'x'; 64]).await.is_ok() {
            taken += 64;
        }
        assert!(taken <= 4 * BUFFER, "{taken} bytes");
        assert_eq!(began.elapsed(), Duration::ZERO, "the refusal is immediate");
    }

    /// Answers a client that has sent one byte, and waits for it as long as a connection may last.
    async fn answer_one_byte(mut stream: TcpStream, _: Router) -> io::Result<()> {
        stream.read_exact(&mut [0]).await?;
        stream.write_all(b"ok\n").await
    }

    #[tokio::test]
    async fn above_the_limit_the_oldest_connection_is_closed_and_the_next_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_by(listener, Router::new(), answer_one_byte));
        let began = Instant::now();
        let mut held = Vec::new();
        for _ in 0..LIMITS.own {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let mut late = TcpStream::connect(address).await.unwrap();
        late.write_all(b"x").await.unwrap();
        assert_eq!(received(&mut late).await, "ok\n");
        assert_eq!(received(&mut held[0]).await, "");
        assert!(
            began.elapsed() < LIFE,
            "the lifetime of the connection was not over: {:?}",
            began.elapsed()
        );
        let mut second = held.swap_remove(1);
        second.write_all(b"x").await.unwrap();
        assert_eq!(received(&mut second).await, "ok\n");
    }
}
