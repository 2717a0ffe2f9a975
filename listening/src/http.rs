//! HTTP of metrics and health: one request a connection, within a few seconds. Accepts connections.

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

use crate::seats::{Limits, Seats};

/// The kubelet and whoever scrapes have one connection each.
const LIMITS: Limits = Limits {
    all: 64,
    of_one: 8,
    own: 32,
};
/// How long a client may take to say what it wants.
const HEADERS: Duration = Duration::from_secs(5);
/// How long a connection may last, from its first byte to the last one of the answer.
const LIFE: Duration = Duration::from_secs(15);
/// Bytes of a request's head, and of what is read of its body at a time.
const BUFFER: usize = 16 << 10;

/// Serves until the process ends. A connection past the limits ends the oldest one of the client that has the most. Each request says by a
/// `ConnectInfo<SocketAddr>` from where it comes.
pub async fn serve(listener: TcpListener, router: Router) -> Infallible {
    serve_by(listener, router, answer).await
}

/// Serves by TLS, within the same limits.
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
    let seats = Seats::new(LIMITS);
    loop {
        let (stream, peer, seat) = crate::accept(&listener, &seats).await;
        let router = router.clone().layer(Extension(ConnectInfo(peer)));
        let answered = answer(stream, router);
        tokio::spawn(async move {
            let served = tokio::time::timeout(LIFE, answered);
            match seat.hold(served).await {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => tracing::debug!(%peer, %error, "a connection ended"),
                Some(Err(_)) => tracing::debug!(%peer, "a connection lasted too long"),
                None => tracing::debug!(%peer, "a connection was ended: another one has its place"),
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

    /// What comes back until the other end closes.
    async fn said(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes));
        let _ = read.await.expect("the other end closes");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Longer than any machine stands still. What has to be in time is told by a clock that stands still itself, or by the order.
    const PATIENCE: Duration = Duration::from_mins(1);

    /// One end of a connection that is answered, under a clock that goes on when nothing else is to be done.
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
        let answer = said(&mut stream).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"),
            "{answer}"
        );
        assert!(answer.contains("connection: close"), "{answer}");
    }

    #[tokio::test]
    async fn a_request_says_from_where_it_comes() {
        let address = start().await;
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(TcpStream::connect(address).await.unwrap());
        }
        for mut stream in streams {
            let own = stream.local_addr().unwrap();
            stream.write_all(b"GET /from HTTP/1.0\r\n\r\n").await.unwrap();
            let answer = said(&mut stream).await;
            assert!(answer.ends_with(&format!("\r\n{own}\n")), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_and_the_end_of_its_connection_wait_for_no_clock() {
        let mut stream = connected();
        let began = Instant::now();
        let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request).await.unwrap();
        assert!(said(&mut stream).await.ends_with("ok\n"));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_or_half_of_it_is_closed_after_a_few_seconds() {
        for words in ["", "GET /healthz HTTP/1.1\r\nX: "] {
            let mut stream = connected();
            stream.write_all(words.as_bytes()).await.unwrap();
            let began = Instant::now();
            said(&mut stream).await;
            let took = began.elapsed();
            assert!(
                took >= HEADERS && took < HEADERS + Duration::from_secs(1),
                "{took:?}"
            );
        }
    }

    #[tokio::test]
    async fn who_says_nothing_or_half_of_it_is_closed_by_the_server_as_well() {
        let address = start().await;
        let began = Instant::now();
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET /healthz HTTP/1.1\r\nX: ").await.unwrap();
        for stream in [&mut silent, &mut half] {
            said(stream).await;
        }
        assert!(began.elapsed() >= HEADERS, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_without_an_end_is_not_kept_in_memory() {
        let mut stream = connected();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").await.unwrap();
        let began = Instant::now();
        // Refused as soon as it has more than there may be: what is written then is not taken.
        let mut taken = 0;
        while stream.write_all(&[b'x'; 64]).await.is_ok() {
            taken += 64;
        }
        assert!(taken <= 4 * BUFFER, "{taken} bytes");
        assert_eq!(began.elapsed(), Duration::ZERO, "it does not wait for more");
    }

    /// Answers what has said one byte, and waits for it as long as a connection may last.
    async fn answer_one_byte(mut stream: TcpStream, _: Router) -> io::Result<()> {
        stream.read_exact(&mut [0]).await?;
        stream.write_all(b"ok\n").await
    }

    #[tokio::test]
    async fn past_the_limit_the_oldest_connection_ends_and_the_next_is_answered() {
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
        assert_eq!(said(&mut late).await, "ok\n");
        assert_eq!(said(&mut held[0]).await, "");
        assert!(
            began.elapsed() < LIFE,
            "its own time was not over: {:?}",
            began.elapsed()
        );
        let mut second = held.swap_remove(1);
        second.write_all(b"x").await.unwrap();
        assert_eq!(said(&mut second).await, "ok\n");
    }
}
