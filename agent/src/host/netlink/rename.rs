//! Renames links: a kernel before Linux 6.2 does not rename a link that is up.

use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;
use nix::errno::Errno;
use rtnetlink::LinkUnspec;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};

use super::Netlink;
use super::request::{NetlinkError, answer, request};
use crate::host::snapshot::Link;

/// Result of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renamed {
    /// The link has its new name.
    Yes,
    /// The kernel does not rename a link that is up.
    Refused,
}

impl Netlink {
    /// Renames a link, if the kernel can, while it carries packets.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request for another reason than a busy link, or the netlink socket fails.
    pub async fn rename_link(&self, link: &Link, name: &str) -> Result<Renamed, NetlinkError> {
        if self.plays_old_kernel && link.up {
            return Ok(Renamed::Refused);
        }
        let message = LinkUnspec::new_with_index(link.index).name(name).build();
        match answer(self.handle.link().set(message).execute()).await {
            Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code() == -(Errno::EBUSY as i32) => {
                Ok(Renamed::Refused)
            }
            Err(source) => Err(request(format!("rename link {} to {name}", link.name), source)),
            Ok(()) => Ok(Renamed::Yes),
        }
    }

    /// Sets a link down, renames it, and sets it up. The kernel gets all three requests by one call, and performs them before other
    /// changes in most cases: then the other end of the link does not see that it was down. Opens a socket in the network namespace
    /// of the calling thread.
    ///
    /// # Errors
    ///
    /// The kernel refuses a request, or the netlink socket fails.
    pub fn rename_while_down(&self, link: &Link, name: &str) -> Result<(), NetlinkError> {
        let of_link = || LinkUnspec::new_with_index(link.index);
        let requests = [
            (of_link().down().build(), format!("set link {} down", link.name)),
            (
                of_link().name(name).build(),
                format!("rename link {} to {name}", link.name),
            ),
            (of_link().up().build(), format!("set link {name} up")),
        ];
        let answers = send(requests.each_ref().map(|(message, _)| message)).map_err(NetlinkError::Connect)?;
        for ((_, attempt), code) in requests.into_iter().zip(answers) {
            if let Err(error) = code {
                return Err(request(attempt, error));
            }
        }
        Ok(())
    }
}

/// Sends several changes of links by one call. The result has the kernel's answer to each.
fn send<const COUNT: usize>(
    messages: [&LinkMessage; COUNT],
) -> io::Result<[Result<(), rtnetlink::Error>; COUNT]> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut all = Vec::new();
    for (number, message) in (0..).zip(messages) {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK;
        header.sequence_number = number;
        let payload = NetlinkPayload::from(RouteNetlinkMessage::SetLink(message.clone()));
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
        message.serialize(&mut bytes);
        all.extend(bytes);
    }
    socket.send(&all, 0)?;
    let mut answers = std::array::from_fn(|_| Err(rtnetlink::Error::RequestFailed));
    for _ in 0..COUNT {
        // The kernel has answered before the call above returned.
        let (bytes, _) = socket.recv_from_full()?;
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes).map_err(io::Error::other)?;
        let NetlinkPayload::Error(error) = message.payload else {
            continue;
        };
        let answer = usize::try_from(message.header.sequence_number).unwrap_or(COUNT);
        if let Some(answer) = answers.get_mut(answer) {
            *answer = if error.raw_code() == 0 {
                Ok(())
            } else {
                Err(rtnetlink::Error::NetlinkError(error))
            };
        }
    }
    Ok(answers)
}
