//! A netlink socket of netfilter that is read by datagram, into one buffer.

use std::fmt;
use std::io;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

/// The kernel fills datagrams of at most 32 KiB; a smaller buffer would cut them.
const DATAGRAM: usize = 64 << 10;

/// The socket and its buffer.
pub(super) struct Socket {
    netlink: TokioSocket,
    datagram: Box<[u8]>,
    /// Length of a datagram that was received, but not given to the caller yet.
    waiting: Option<usize>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Socket").finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens a socket that receives the events of these groups.
    pub(super) fn open(groups: u32) -> io::Result<Self> {
        let mut netlink = TokioSocket::new(NETLINK_NETFILTER)?;
        netlink.socket_mut().bind(&SocketAddr::new(0, groups))?;
        Ok(Self {
            netlink,
            datagram: vec![0; DATAGRAM].into(),
            waiting: None,
        })
    }

    /// Sets the memory that the kernel may use for what was not received yet, beyond the limit for other programs
    /// (`net.core.rmem_max`).
    pub(super) fn set_buffer(&self, bytes: usize) -> io::Result<()> {
        Ok(set_socket_recv_buffer_size_force(
            self.netlink.socket_ref(),
            bytes,
        )?)
    }

    /// Sends a message to the kernel, which answers it before it returns.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        self.netlink.socket_ref().send(message, 0)?;
        Ok(())
    }

    /// Waits until a datagram arrives, and receives it for [`Self::try_receive`].
    pub(super) async fn arrived(&mut self) -> io::Result<()> {
        // Other tasks of the thread continue during thousands of answers, none of which has to be waited for.
        tokio::task::coop::consume_budget().await;
        if self.waiting.is_none() {
            self.waiting = self.receive_now()?;
        }
        if self.waiting.is_none() {
            let mut rest = &mut *self.datagram;
            self.netlink.recv(&mut rest).await?;
            self.waiting = Some(DATAGRAM - rest.len());
        }
        Ok(())
    }

    /// Waits for a datagram. Of one that does not fit, the last message is cut, and is malformed then.
    pub(super) async fn receive(&mut self) -> io::Result<&[u8]> {
        self.arrived().await?;
        let length = self.waiting.take().unwrap_or_default();
        Ok(&self.datagram[..length])
    }

    /// A datagram that has arrived; `None` if there is none.
    pub(super) fn try_receive(&mut self) -> io::Result<Option<&[u8]>> {
        let length = match self.waiting.take() {
            Some(length) => Some(length),
            None => self.receive_now()?,
        };
        Ok(length.map(|length| &self.datagram[..length]))
    }

    /// The length of a datagram that has arrived; `None` if there is none.
    fn receive_now(&mut self) -> io::Result<Option<usize>> {
        match self.netlink.socket_ref().recv(&mut &mut *self.datagram, 0) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}
