//! Asks the kernel whether it has `nf_tables`: kernels for small boards are often built without it, and use iptables-legacy.

use std::io;

use nix::errno::Errno;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message type.
const SUBSYSTEM: u16 = 10 << 8;
/// `NFT_MSG_NEWGEN` and `NFT_MSG_GETGEN`: the number of the ruleset, which exists without any table.
const NEW_GENERATION: u16 = SUBSYSTEM | 15;
const GET_GENERATION: u16 = SUBSYSTEM | 16;
/// `NLMSG_ERROR`, and `NLM_F_REQUEST`.
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
/// Length of the request: the header of netlink (16 bytes) and that of netfilter.
const LENGTH: u32 = 20;
/// The answer has some attributes after its headers.
const LONGEST_ANSWER: usize = 4096;

/// Whether the kernel has `nf_tables`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfTables {
    /// It has.
    Present,
    /// It has not: no rule of nftables, or of iptables with the nft backend, can exist.
    Missing,
}

/// Asks the kernel. If the question itself fails, `nft` is called as if the kernel had `nf_tables`, and reports what is wrong.
pub fn nf_tables() -> NfTables {
    ask().unwrap_or_else(|error| {
        tracing::debug!(%error, "asking the kernel for nf_tables failed");
        NfTables::Present
    })
}

fn ask() -> io::Result<NfTables> {
    let mut socket = match Socket::new(NETLINK_NETFILTER) {
        Ok(socket) => socket,
        // The kernel has no netfilter over netlink at all.
        Err(error) => return judge_error(error.raw_os_error().unwrap_or_default()),
    };
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The kernel answers before it returns from the request, so that nothing has to be waited for.
    socket.set_non_blocking(true)?;
    socket.send(&request(), 0)?;
    let mut answer = Vec::with_capacity(LONGEST_ANSWER);
    socket.recv(&mut answer, 0)?;
    judge(&answer)
}

fn request() -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(LENGTH.to_ne_bytes());
    message.extend(GET_GENERATION.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // Sequence and port, then family, version and resource: all 0.
    message.resize(LENGTH as usize, 0);
    message
}

/// What an answer says.
fn judge(answer: &[u8]) -> io::Result<NfTables> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let code = answer.get(16..20).and_then(|bytes| bytes.try_into().ok());
    match (kind.map(u16::from_ne_bytes), code.map(i32::from_ne_bytes)) {
        (Some(NEW_GENERATION), _) => Ok(NfTables::Present),
        (Some(ERROR), Some(code)) => judge_error(code.saturating_neg()),
        (kind, _) => Err(io::Error::other(format!("answer of kind {kind:?}"))),
    }
}

/// What an error number says. A kernel without the subsystem refuses its messages as invalid; other errors, such as a missing right, say
/// nothing about it.
fn judge_error(errno: i32) -> io::Result<NfTables> {
    match Errno::from_raw(errno) {
        Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => {
            Ok(NfTables::Missing)
        }
        _ => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn answer(kind: u16, rest: &[u8]) -> Vec<u8> {
        let mut message = vec![0; 16];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.extend(rest);
        message
    }

    fn refusal(errno: Errno) -> Vec<u8> {
        answer(ERROR, &(-(errno as i32)).to_ne_bytes())
    }

    #[rstest]
    #[case::no_subsystem(Errno::EINVAL)]
    #[case::no_operation(Errno::EOPNOTSUPP)]
    #[case::no_protocol(Errno::EPROTONOSUPPORT)]
    #[case::no_netlink(Errno::EAFNOSUPPORT)]
    fn a_kernel_that_refuses_the_message_has_no_nf_tables(#[case] errno: Errno) {
        assert_eq!(judge(&refusal(errno)).unwrap(), NfTables::Missing);
        assert_eq!(judge_error(errno as i32).unwrap(), NfTables::Missing);
    }

    #[rstest]
    #[case::no_right(Errno::EPERM)]
    #[case::no_memory(Errno::ENOMEM)]
    #[case::interrupted(Errno::EINTR)]
    fn another_error_says_nothing_about_it(#[case] errno: Errno) {
        assert_eq!(
            judge(&refusal(errno)).unwrap_err().raw_os_error(),
            Some(errno as i32)
        );
    }

    #[test]
    fn the_number_of_the_ruleset_shows_that_it_exists() {
        assert_eq!(
            judge(&answer(NEW_GENERATION, &[0; 12])).unwrap(),
            NfTables::Present
        );
    }

    #[test]
    fn a_cut_or_other_answer_is_an_error() {
        for cut in [&[][..], &[0; 5], &answer(ERROR, &[]), &answer(3, &[0; 4])] {
            assert!(judge(cut).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn the_request_has_its_length_and_kind() {
        let request = request();
        assert_eq!(request.len(), 20);
        assert_eq!(request[..4], 20_u32.to_ne_bytes());
        assert_eq!(request[4..6], 0x0a10_u16.to_ne_bytes());
    }

    /// The kernel answers this request, whatever it says: a malformed one would get no answer, and fail with `WouldBlock`.
    #[test]
    fn the_kernel_answers() {
        match ask() {
            Ok(NfTables::Present | NfTables::Missing) => {}
            Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::EPERM as i32), "{error}"),
        }
    }
}
